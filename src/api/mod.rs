//! Custom resources, and the labels, annotations and names that the operator shares with Kubernetes and Linkerd.
//!
//! Decoding is lenient: values that the current schema rejects are accepted, and a field that an older schema did not
//! have is absent. The code that uses a value validates it.

pub mod endpoint_slice;
mod external_workload;
mod label_selector;
pub mod linkerd_config;
pub mod linkerd_trust;
mod metadata;
mod namespaced_name;
pub mod quantity;
mod resource;
mod schema;
mod server;
mod service_profile;
mod uid;

pub use external_workload::{
    Condition, ExternalWorkload, ExternalWorkloadPort, ExternalWorkloadSpec, ExternalWorkloadStatus, MeshTls,
    WorkloadIp,
};
pub use label_selector::{LabelSelectorObject, LabelSelectorRequirementObject};
pub use linkerd_config::{LinkerdConfig, LinkerdConfigSpec, LinkerdConfigStatus};
pub use linkerd_trust::{LinkerdTrust, LinkerdTrustSpec, LinkerdTrustStatus};
pub use metadata::{
    BareMetadataOf, LinkerdMetadataOf, MetadataOf, last_update, lean_metadata, metadata_without_annotations,
    version_number,
};
pub use namespaced_name::{LONGEST_KEY, LONGEST_LABEL, LONGEST_NAME, NamespacedName, is_dns_label, is_dns_name};
pub(crate) use resource::parameter_resource;
pub use server::{Server, ServerSpec};
pub use service_profile::{
    RequestMatchSpec, ResponseClassSpec, ResponseMatchSpec, RetryBudgetSpec, RouteSpec, ServiceProfile,
    ServiceProfileSpec, StatusRange, WeightedDst,
};
pub use uid::Uid;

/// The API group of [`LinkerdConfig`], and the prefix of the operator's labels and annotations.
pub const CONFIG_GROUP: &str = "config.linkerd.io";
/// The `kind` of an owner reference to a [`LinkerdConfig`].
pub const LINKERD_CONFIG_KIND: &str = "LinkerdConfig";
/// The label, with the value `true`, of the Secret with the certificate that the operator manages for its webhooks, and of
/// the webhook configurations whose `caBundle` it writes.
pub const MANAGED_CERTIFICATE_LABEL: &str = "config.linkerd.io/managed-certificate";
/// The finalizer that delays the deletion of a [`LinkerdConfig`] until the installer's document is restored.
pub const RESTORE_BASE_FINALIZER: &str = "config.linkerd.io/restore-base";
/// Opts workloads in to restarts or out of them: a label of a namespace, a workload or a Pod template, or an annotation
/// of the template.
pub const RECONCILE: &str = "config.linkerd.io/reconcile";
/// The annotation of a workload's Pod template. Writing another value restarts the workload; writing the same value
/// does not.
pub const RESTARTED_FOR_ANNOTATION: &str = "config.linkerd.io/restarted-for";
/// The environment variable with the hash of the configuration that a proxy was injected with. It is an entry of
/// `proxy.additionalEnv`, and is not part of the hashed configuration.
pub const CONFIG_HASH_ENV: &str = "LINKERD_CONFIG_HASH";
/// The operator's name in `managedFields`.
pub const FIELD_MANAGER: &str = "linkerd-config-operator";
/// The ConfigMap that holds the trust anchors of a mesh.
pub const TRUST_ROOTS: &str = "linkerd-identity-trust-roots";
/// The key of the trust anchors in [`TRUST_ROOTS`].
pub const TRUST_ROOTS_KEY: &str = "ca-bundle.crt";
/// The Secret with the issuer that Linkerd's identity service reads.
pub const ISSUER: &str = "linkerd-identity-issuer";
/// The Secret with the issuer that [`ISSUER`] should get, and the one with the issuer that it had.
pub const NEXT_ISSUER: &str = "linkerd-identity-issuer-next";
pub const PREVIOUS_ISSUER: &str = "linkerd-identity-issuer-previous";
/// The annotation of [`PREVIOUS_ISSUER`] with the time at which another issuer replaced it.
pub const REPLACED_AT_ANNOTATION: &str = "config.linkerd.io/replaced-at";
/// The ConfigMap that Linkerd's proxy injector reads.
pub const INJECTORS_CONFIG_MAP: &str = "linkerd-config";
/// The ConfigMap with the configuration of a canary. Only the operator's proxy injector reads it.
pub const CANARY_CONFIG_MAP: &str = "linkerd-config-canary";
/// The annotation of [`CANARY_CONFIG_MAP`] with the label selector of the canary namespaces, as JSON.
pub const CANARY_NAMESPACES_ANNOTATION: &str = "config.linkerd.io/canary-namespaces";
/// The annotation of a ConfigMap that the operator writes. Its value is [`OPERATOR`].
pub const MANAGED_BY_ANNOTATION: &str = "config.linkerd.io/managed-by";
/// The operator's name in annotations and in audit annotations.
pub const OPERATOR: &str = "linkerd-operator";
/// The audit annotation in the answers of the operator's proxy injector. Its value begins with [`OPERATOR`].
pub const WEBHOOK_AUDIT_ANNOTATION: &str = "answered-by";
/// The Service and the Deployment of Linkerd's proxy injector.
pub const INJECTOR: &str = "linkerd-proxy-injector";
/// The MutatingWebhookConfiguration of Linkerd's proxy injector.
pub const INJECTOR_WEBHOOK_CONFIGURATION: &str = "linkerd-proxy-injector-webhook-config";
/// The name of the webhook in [`INJECTOR_WEBHOOK_CONFIGURATION`].
pub const INJECTOR_WEBHOOK: &str = "linkerd-proxy-injector.linkerd.io";
/// The MutatingWebhookConfiguration of the operator's proxy injector.
pub const OPERATOR_INJECTOR_WEBHOOK_CONFIGURATION: &str = "linkerd-operator-proxy-injector";
/// The name of the webhook in [`OPERATOR_INJECTOR_WEBHOOK_CONFIGURATION`].
pub const OPERATOR_INJECTOR_WEBHOOK: &str = "proxy-injector.linkerd-operator.linkerd.io";
/// The Service of the operator's webhooks.
pub const OPERATOR_WEBHOOK_SERVICE: &str = "linkerd-operator-webhook";
/// The annotation with the name and version of the installer of Linkerd.
pub const CREATED_BY_ANNOTATION: &str = "linkerd.io/created-by";
/// The label of a slice that names its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// The label of a slice that names its controller, the only writer of its content.
pub const MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
/// Linkerd's value of [`MANAGED_BY_LABEL`]. The operator uses the same value, so that either controller takes over the
/// other's slices; with another value every workload would be published twice.
pub const MANAGED_BY: &str = "linkerd-external-workloads-controller";
/// The label of a headless Service's slices; its value is empty.
pub const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// The label with the zone of a node, or of a workload outside the cluster.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// The annotations of a Service whose hints Kubernetes allocates in proportion to the CPUs of each zone. The first one is
/// deprecated, and precedes the other.
pub const TOPOLOGY_MODE_ANNOTATIONS: [&str; 2] =
    ["service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"];
/// The `kind` of a slice's `targetRef` to an ExternalWorkload.
pub const EXTERNAL_WORKLOAD_KIND: &str = "ExternalWorkload";
/// The namespace whose Services and workloads the operator never changes: they must not depend on the mesh.
pub const KUBE_SYSTEM: &str = "kube-system";
/// The namespace of cert-manager, which Linkerd's webhooks exclude.
pub const CERT_MANAGER: &str = "cert-manager";
/// The label of a meshed Pod with the namespace of its control plane.
pub const CONTROL_PLANE_NAMESPACE_LABEL: &str = "linkerd.io/control-plane-ns";
/// The label of the Pods of a Linkerd control plane, which are not injected.
pub const CONTROL_PLANE_COMPONENT_LABEL: &str = "linkerd.io/control-plane-component";
/// The label of a Deployment of the control plane with Linkerd's version.
pub const APP_VERSION_LABEL: &str = "app.kubernetes.io/version";
/// The label of a namespace that belongs to an extension of Linkerd.
pub const EXTENSION_LABEL: &str = "linkerd.io/extension";
/// The label of a namespace whose value `disabled` exempts its objects from Linkerd's webhooks.
pub const ADMISSION_WEBHOOKS_LABEL: &str = "config.linkerd.io/admission-webhooks";
/// The annotation of a namespace or a Pod that specifies whether a proxy is injected.
pub const INJECT_ANNOTATION: &str = "linkerd.io/inject";
/// The annotation of an injected Pod with the version of its proxy.
pub const PROXY_VERSION_ANNOTATION: &str = "linkerd.io/proxy-version";
/// The annotation of an injected Pod with the SHA-256 of its proxy's trust anchors.
pub const TRUST_ROOT_ANNOTATION: &str = "linkerd.io/trust-root-sha256";
/// The environment variable of a proxy with its trust anchors in PEM.
pub const TRUST_ANCHORS_ENV: &str = "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS";
/// The annotations of a Pod that override the version and the image of its proxy.
pub const PINNING_ANNOTATIONS: [&str; 2] = ["config.linkerd.io/proxy-version", "config.linkerd.io/proxy-image"];
/// The annotation of a Pod with environment variables for its proxy. On a namespace it makes injection fail.
pub const ADDITIONAL_ENV_ANNOTATION: &str = "config.linkerd.io/proxy-additional-env";
/// The label of a ReplicaSet's Pod with the hash of the Pod template that it was created from.
pub const POD_TEMPLATE_HASH_LABEL: &str = "pod-template-hash";
/// The annotation of a Service, a Pod or an ExternalWorkload with the ports for which proxies skip protocol detection.
pub const OPAQUE_PORTS_ANNOTATION: &str = "config.linkerd.io/opaque-ports";
/// The annotation of a Pod with the inbound ports that bypass the proxy.
pub const SKIP_INBOUND_PORTS_ANNOTATION: &str = "config.linkerd.io/skip-inbound-ports";
/// The annotations of a Pod, its template or its namespace that select whether the proxy is a native sidecar. The first
/// one that a Pod has decides; it inherits the first and the last from its namespace.
pub const NATIVE_SIDECAR_ANNOTATIONS: [&str; 3] = [
    "config.linkerd.io/proxy-enable-native-sidecar",
    "config.beta.linkerd.io/proxy-enable-native-sidecar",
    "config.alpha.linkerd.io/proxy-enable-native-sidecar",
];
/// The name of the init container that sets up the network of a Pod.
pub const INIT_NAME: &str = "linkerd-init";
/// The name of the init container that waits until a CNI plugin has set up the network of a Pod.
pub const NETWORK_VALIDATOR_NAME: &str = "linkerd-network-validator";
/// The label of the Pods of Linkerd's CNI plugin, which the injector's webhook excludes.
pub const CNI_RESOURCE_LABEL: &str = "linkerd.io/cni-resource";
/// The name of the proxy's container in a Pod, and of its inbound port in an ExternalWorkload.
pub const PROXY_NAME: &str = "linkerd-proxy";
/// On a Service: the cluster of its endpoints (as a label), or the members of a federated Service (as an annotation).
pub const REMOTE_DISCOVERY: &str = "multicluster.linkerd.io/remote-discovery";
/// The label of a Service with [`REMOTE_DISCOVERY`] that names the Service in that cluster.
pub const REMOTE_SERVICE_LABEL: &str = "multicluster.linkerd.io/remote-service";
/// The annotation of a federated Service that names its member in this cluster.
pub const LOCAL_DISCOVERY_ANNOTATION: &str = "multicluster.linkerd.io/local-discovery";
/// The type of a Secret with the kubeconfig of another cluster, in the namespace of the control plane.
pub const REMOTE_KUBECONFIG_TYPE: &str = "mirror.linkerd.io/remote-kubeconfig";
/// The label of such a Secret with the name of that cluster.
pub const CLUSTER_NAME_LABEL: &str = "multicluster.linkerd.io/cluster-name";
/// The annotations of such a Secret with the trust domain of that cluster's mesh, and the domain of its Services.
pub const TRUST_DOMAIN_ANNOTATION: &str = "multicluster.linkerd.io/trust-domain";
pub const CLUSTER_DOMAIN_ANNOTATION: &str = "multicluster.linkerd.io/cluster-domain";
/// The label of a mirrored Service's slices with the cluster that the Service is mirrored from.
pub const MIRROR_CLUSTER_LABEL: &str = "mirror.linkerd.io/cluster-name";
/// The annotation of a mirrored Service's slices with the name of the Service in that cluster.
pub const MIRROR_SERVICE_ANNOTATION: &str = "mirror.linkerd.io/remote-svc-fq-name";
/// The annotation of a mirrored Service's slices with the identity of the gateway to that cluster.
pub const MIRROR_GATEWAY_IDENTITY_ANNOTATION: &str = "mirror.linkerd.io/remote-gateway-identity";

/// Returns whether a port of this protocol, as Kubernetes spells it, carries TCP, which is all that proxies forward.
/// Nothing validates the text of an ExternalWorkload: there, `HTTP` or `tcp` means TCP.
pub fn carries_tcp(protocol: &str) -> bool {
    !matches!(protocol, "UDP" | "SCTP")
}
