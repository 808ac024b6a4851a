//! The custom resources, and the names of labels that Kubernetes, Linkerd and this operator agree on.
//!
//! Types here read what the API server holds, however odd: a field that a schema would refuse, or that an older
//! version of it never had, is read as absent. Whether a value makes sense is decided where it is used.

pub mod endpoint_slice;
mod external_workload;
pub mod go_duration;
mod label_selector;
pub mod linkerd_config;
mod metadata;
mod namespaced_name;
pub mod quantity;
mod resource;
mod server;
mod service_profile;

pub use external_workload::{
    Condition, ExternalWorkload, ExternalWorkloadPort, ExternalWorkloadSpec, ExternalWorkloadStatus, MeshTls,
    WorkloadIp,
};
pub use label_selector::{LabelSelectorObject, LabelSelectorRequirementObject};
pub use linkerd_config::{LinkerdConfig, LinkerdConfigSpec, LinkerdConfigStatus};
pub use metadata::{MetadataOf, last_update, lean_metadata};
pub use namespaced_name::{LONGEST_LABEL, LONGEST_NAME, NamespacedName};
pub(crate) use resource::parameter_resource;
pub use server::{Server, ServerSpec};
pub use service_profile::{
    RequestMatchSpec, ResponseClassSpec, ResponseMatchSpec, RetryBudgetSpec, RouteSpec, ServiceProfile,
    ServiceProfileSpec, StatusRange, WeightedDst,
};

/// Of [`LinkerdConfig`], and of our labels and annotations.
pub const CONFIG_GROUP: &str = "config.linkerd.io";
/// The `kind` of an owner reference to a [`LinkerdConfig`].
pub const LINKERD_CONFIG_KIND: &str = "LinkerdConfig";
/// The deletion of a [`LinkerdConfig`] waits until the ConfigMap is as its installer wrote it.
pub const RESTORE_BASE_FINALIZER: &str = "config.linkerd.io/restore-base";
/// On what may be restarted: whether it is, when its proxies are out of date (a label; on a template an annotation too).
pub const RECONCILE: &str = "config.linkerd.io/reconcile";
/// On the template of a workload: another value is a restart, the same one is none.
pub const RESTARTED_FOR_ANNOTATION: &str = "config.linkerd.io/restarted-for";
/// The variable that tells a proxy which configuration it was born with: an entry of `proxy.additionalEnv`, and no part of
/// what it is a hash of.
pub const CONFIG_HASH_ENV: &str = "LINKERD_CONFIG_HASH";
/// The ConfigMap that holds the trust anchors of a mesh.
pub const TRUST_ROOTS: &str = "linkerd-identity-trust-roots";
/// The ConfigMap that Linkerd's injectors read.
pub const INJECTORS_CONFIG_MAP: &str = "linkerd-config";
/// The Service and the Deployment of Linkerd's proxy-injector.
pub const INJECTOR: &str = "linkerd-proxy-injector";
/// Where it is registered, and under which name.
pub const INJECTOR_WEBHOOK_CONFIGURATION: &str = "linkerd-proxy-injector-webhook-config";
pub const INJECTOR_WEBHOOK: &str = "linkerd-proxy-injector.linkerd.io";
/// By which installers of Linkerd say who they are.
pub const CREATED_BY_ANNOTATION: &str = "linkerd.io/created-by";
/// Names the Service that a slice belongs to.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Names the controller that owns a slice's content; nobody else writes it.
pub const MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
/// Linkerd's value of [`MANAGED_BY_LABEL`]. Ours is the same, so that either controller takes over the other's slices;
/// another value would publish every workload twice.
pub const MANAGED_BY: &str = "linkerd-external-workloads-controller";
/// Present, and empty, on the slices of a headless Service.
pub const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// The zone of a node, and of a workload outside the cluster.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// The `kind` of a slice's `targetRef` that names an ExternalWorkload.
pub const EXTERNAL_WORKLOAD_KIND: &str = "ExternalWorkload";
/// Its Services are left alone: what runs there must not depend on the mesh.
pub const KUBE_SYSTEM: &str = "kube-system";
/// On a Pod: it is meshed, by the control plane in the namespace that this names.
pub const CONTROL_PLANE_NAMESPACE_LABEL: &str = "linkerd.io/control-plane-ns";
/// On a Pod: it belongs to a control plane of Linkerd, and is not injected.
pub const CONTROL_PLANE_COMPONENT_LABEL: &str = "linkerd.io/control-plane-component";
/// On a namespace: it belongs to an extension of Linkerd.
pub const EXTENSION_LABEL: &str = "linkerd.io/extension";
/// On a namespace: with the value `disabled` Linkerd's webhooks are not asked about what is in it.
pub const ADMISSION_WEBHOOKS_LABEL: &str = "config.linkerd.io/admission-webhooks";
/// On a namespace or a Pod: whether a proxy is to be injected.
pub const INJECT_ANNOTATION: &str = "linkerd.io/inject";
/// On an injected Pod: the version of its proxy.
pub const PROXY_VERSION_ANNOTATION: &str = "linkerd.io/proxy-version";
/// On an injected Pod: the SHA-256 of the trust anchors that its proxy has.
pub const TRUST_ROOT_ANNOTATION: &str = "linkerd.io/trust-root-sha256";
/// On a Pod: the version and the image that its proxy is to have, whatever others have.
pub const PINNING_ANNOTATIONS: [&str; 2] = ["config.linkerd.io/proxy-version", "config.linkerd.io/proxy-image"];
/// On a Pod: variables that its proxy is to have. On a namespace the injector cannot cope with it.
pub const ADDITIONAL_ENV_ANNOTATION: &str = "config.linkerd.io/proxy-additional-env";
/// On a Pod of a ReplicaSet: which of its templates it was made from.
pub const POD_TEMPLATE_HASH_LABEL: &str = "pod-template-hash";
/// On a Service, a Pod or an ExternalWorkload: its ports whose protocol proxies do not look at.
pub const OPAQUE_PORTS_ANNOTATION: &str = "config.linkerd.io/opaque-ports";
/// On a Pod: its ports that bypass the proxy.
pub const SKIP_INBOUND_PORTS_ANNOTATION: &str = "config.linkerd.io/skip-inbound-ports";
/// The name of the proxy's container in a Pod, and of its inbound port in an ExternalWorkload.
pub const PROXY_NAME: &str = "linkerd-proxy";
/// On a Service: the cluster where its endpoints are (a label), or the members of a federated one (an annotation).
pub const REMOTE_DISCOVERY: &str = "multicluster.linkerd.io/remote-discovery";
/// On a Service with [`REMOTE_DISCOVERY`]: the name of the Service in that cluster.
pub const REMOTE_SERVICE_LABEL: &str = "multicluster.linkerd.io/remote-service";
/// On a federated Service: its member in this cluster.
pub const LOCAL_DISCOVERY_ANNOTATION: &str = "multicluster.linkerd.io/local-discovery";
/// On the slices of a mirrored Service: the cluster that it is from.
pub const MIRROR_CLUSTER_LABEL: &str = "mirror.linkerd.io/cluster-name";
/// On the slices of a mirrored Service: its name in its own cluster.
pub const MIRROR_SERVICE_ANNOTATION: &str = "mirror.linkerd.io/remote-svc-fq-name";
/// On the slices of a mirrored Service: who the gateway in front of it is.
pub const MIRROR_GATEWAY_IDENTITY_ANNOTATION: &str = "mirror.linkerd.io/remote-gateway-identity";
