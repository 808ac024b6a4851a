//! The status of a `LinkerdConfig`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{canary::CanaryStatus, rollout_status::RolloutStatus};
use crate::api::schema;

/// The state that the operator observed, and its actions. Only the operator writes it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = schema::tidy)]
pub struct LinkerdConfigStatus {
    /// The metadata.generation that this status describes. While it is lower than that of the resource, the operator
    /// has not processed the last change yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Whether this resource is the one in effect for its ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// The conditions of the resource. Accepted: whether the resource is valid and the one in effect for its ConfigMap.
    /// ConfigMapSynced: whether the ConfigMap holds the declared configuration. InjectorSynced: whether every replica
    /// of the proxy injector uses it. Ready: whether the operator does what the resource requests; if not, its reason is
    /// that of the first problem. RolloutComplete: whether every selected workload runs with it. ControlPlaneMismatch:
    /// present while proxies get values that the control plane does not use. Stalled: present while a problem needs
    /// intervention. SuspectBase: present while the installer's document has values that seem wrong. VersionSkew: present while the declared versions differ from that of the control plane.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// The target ConfigMap, as it was last observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetStatus>,
    /// The hash of the declared configuration, which the ConfigMap holds once it is synced. The hash does not depend on
    /// the order or the quoting of keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_hash: Option<String>,
    /// The hash of the part of the configuration that affects injected Pods. Proxies that were injected with it have it
    /// in their environment variable LINKERD_CONFIG_HASH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub injection_hash: Option<String>,
    /// The SHA-256 of the trust anchors in the ConfigMap linkerd-identity-trust-roots. Linkerd annotates injected Pods
    /// with the same value.
    #[serde(rename = "trustRootsSHA256", skip_serializing_if = "Option::is_none")]
    pub trust_roots_sha256: Option<String>,
    /// The version of the proxies that are injected now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_version: Option<String>,
    /// The shape of the proxies that are injected now. Annotations of a Pod or its namespace may select another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_shape: Option<ProxyShapeStatus>,
    /// The ControllerRevisions of this resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revisions: Option<RevisionsStatus>,
    /// The replicas of the proxy injector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub injector: Option<InjectorStatus>,
    /// The last change of the ConfigMap by another field manager.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<DriftStatus>,
    /// The progress of the rollout to running proxies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// The last canary of spec.canary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanaryStatus>,
    /// The deprecated fields that this resource sets. The description of each field names its replacement, or says that
    /// the field has no effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deprecated_fields: Vec<String>,
    /// The trust anchors of the mesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_anchors: Option<TrustAnchorsStatus>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyShapeStatus {
    /// Whether the proxy is a native sidecar: an init container that keeps running.
    pub native_sidecar: bool,
    /// Whether a CNI plugin sets up the network of Pods, so that linkerd-network-validator takes the place of
    /// linkerd-init.
    pub cni_enabled: bool,
    /// Whether proxies get a token of their own. Otherwise a Pod without a mounted token of its ServiceAccount gets no
    /// proxy.
    pub token_projection: bool,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetStatus {
    /// The namespace of the ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name of the ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The UID of the ConfigMap, which also identifies the installation of Linkerd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RevisionsStatus {
    /// The revision with the document that the installer of Linkerd wrote last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<i64>,
    /// The revision with the document that the proxy injector was last observed to use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_known_good: Option<i64>,
    /// The injection hash of lastKnownGood.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_known_good_hash: Option<String>,
    /// The revision with the document that all selected workloads were last observed to run with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_rolled_out: Option<i64>,
    /// The revision with the document before the one in effect, which a rollback restores; 0 is the document of the
    /// installer. Absent once all selected workloads run with the document in effect, and after a change of the trust
    /// anchors: a later failure has another cause, and rolls back nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<i64>,
    /// The injection hashes of documents that the proxy injector denied, or with which workloads failed, at most 5.
    /// They are not written again until the declared values or the annotation config.linkerd.io/retry change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub failed: Vec<String>,
    /// The documents of failed that the proxy injector denied. One is retried when no ready replica of the injector has
    /// a Pod template that denied it, for example after an upgrade of Linkerd.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub denied: Vec<DeniedDocument>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeniedDocument {
    /// The injection hash of the document.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hash: String,
    /// The label pod-template-hash of the replicas that denied it, at most 5.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub templates: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InjectorStatus {
    /// The number of ready replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<i64>,
    /// The number of ready replicas that use the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synced: Option<i64>,
    /// The time when the replicas were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_probe_time: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftStatus {
    /// The time when drift was last detected.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_time: Option<Time>,
    /// The number of times that drift was detected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
    /// The field manager that caused the last drift.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manager: Option<String>,
    /// The paths that differed at the last drift, at most 10, without their values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub paths: Vec<String>,
    /// The periods in which the proxy injector may have used changes of other field managers, at most 5. Pods that were
    /// created in such a period are out of date, regardless of their LINKERD_CONFIG_HASH. A period is removed when none
    /// of these Pods is left.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub windows: Vec<DriftWindow>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftWindow {
    /// The time when the change was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub from: Option<Time>,
    /// The time when every replica of the proxy injector used the declared configuration again; absent until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub to: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrustAnchorsStatus {
    /// The source of the trust anchors: the ConfigMap linkerd-identity-trust-roots, or identityTrustAnchorsPEM of the
    /// document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The SHA-256 of each certificate in linkerd-identity-trust-roots, at most 50.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub fingerprints: Vec<String>,
    /// The SHA-256 of the bundle, if it has none of the trust anchors of some running Pods. Proxies without a common
    /// trust anchor cannot connect to each other, so no workload is restarted until the annotation
    /// config.linkerd.io/approve-trust-roots has this value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<String>,
}
