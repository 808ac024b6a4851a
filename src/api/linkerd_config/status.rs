//! What the operator says about a `LinkerdConfig`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{rollout_status::RolloutStatus, schema};

/// What the operator did and found. Written by the operator alone.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = schema::tidy)]
pub struct LinkerdConfigStatus {
    /// The metadata.generation that this status is about. While it is lower than that of the resource, the operator has
    /// not seen the last change yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Whether this is the resource in effect among those for the same ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// Accepted: whether the resource makes sense and is the one in effect for its ConfigMap. ConfigMapSynced: whether
    /// the ConfigMap holds what is declared. InjectorSynced: whether every replica of the proxy-injector uses it. Ready:
    /// whether all is well with the configuration, else the first reason why not. RolloutComplete: whether every
    /// selected workload runs with it. Stalled: present while something does not get better by itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// The ConfigMap that this is about, as it was last seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetStatus>,
    /// The hash of the declared configuration, which the ConfigMap holds once it is synced. Neither the order of its
    /// keys nor how they are quoted matters to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_hash: Option<String>,
    /// The hash of that part of it which shapes injected Pods. Proxies that were injected with it have it in their
    /// variable LINKERD_CONFIG_HASH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub injection_hash: Option<String>,
    /// The SHA-256 of the trust anchors in the ConfigMap linkerd-identity-trust-roots, as Linkerd annotates Pods with
    /// it.
    #[serde(rename = "trustRootsSHA256", skip_serializing_if = "Option::is_none")]
    pub trust_roots_sha256: Option<String>,
    /// The version of the proxies that are injected now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_version: Option<String>,
    /// The ControllerRevisions that belong to this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revisions: Option<RevisionsStatus>,
    /// The replicas of the proxy-injector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub injector: Option<InjectorStatus>,
    /// The last time that somebody else changed the ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<DriftStatus>,
    /// How far the running proxies are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// The fields of this resource that are accepted and do nothing any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deprecated_fields: Vec<String>,
    /// The trust anchors of the mesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_anchors: Option<TrustAnchorsStatus>,
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
    /// Its UID, which is also the identity of the installation of Linkerd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RevisionsStatus {
    /// The revision that holds what the installer of Linkerd wrote last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<i64>,
    /// The revision with the document that the injectors were last seen to use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_known_good: Option<i64>,
    /// Its injection hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_known_good_hash: Option<String>,
    /// The revision with the document that all selected workloads were last seen to run with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_rolled_out: Option<i64>,
    /// The injection hashes of documents that injectors refused, or with which workloads failed, at most 5. None of them
    /// is written again before the resource or its annotation config.linkerd.io/retry changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub failed: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InjectorStatus {
    /// How many are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<i64>,
    /// How many of these were seen to use the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synced: Option<i64>,
    /// When the counts were found.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_probe_time: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftStatus {
    /// When it was noticed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_time: Option<Time>,
    /// How often it was noticed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
    /// The field manager who did it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manager: Option<String>,
    /// The paths that differed then, at most 10; never their values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub paths: Vec<String>,
    /// When injectors may have used what others wrote, at most 5. Pods that were created then are out of date, whatever
    /// they say of themselves; a window is dropped when none of them is left.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub windows: Vec<DriftWindow>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftWindow {
    /// When it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub from: Option<Time>,
    /// When every injector was seen to use what is declared again; absent while that is not so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub to: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrustAnchorsStatus {
    /// Where they were found: the ConfigMap linkerd-identity-trust-roots, or identityTrustAnchorsPEM of the document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The SHA-256 of each certificate in linkerd-identity-trust-roots, of the first 50.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub fingerprints: Vec<String>,
    /// The SHA-256 of a bundle that has none of the anchors that were there before: proxies with one bundle cannot talk
    /// to those with the other, so nothing is restarted for it until the annotation
    /// config.linkerd.io/approve-trust-roots has this value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<String>,
}
