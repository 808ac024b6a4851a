//! What the operator says about how far the running proxies are.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// How far the running proxies are. Counts are of all there are; lists have at most 20 entries.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStatus {
    /// Idle: there is nothing to do. Waiting: workloads are out of date, and something has to come first. Progressing:
    /// workloads are being restarted. Paused: the resource says so. Halted: too many failed. RolledBack: the
    /// configuration was taken back because workloads failed with it. Complete: every selected workload runs with the
    /// configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// What workloads are restarted for: the injection hash and the first 8 characters of the trust anchors' hash. It is
    /// the beginning of the annotation config.linkerd.io/restarted-for of their templates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// When the first workload was restarted for this hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub started_at: Option<Time>,
    /// When every selected workload was seen to run with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub completed_at: Option<Time>,
    /// When restarts may begin again, while the maintenance window is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub next_window: Option<Time>,
    /// Since when every injected Pod has a LINKERD_CONFIG_HASH.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub adopted_at: Option<Time>,
    /// The injection hash of the document that was there before the operator wrote it: what Pods without a
    /// LINKERD_CONFIG_HASH that are older than adoptedAt are taken to run with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_hash: Option<String>,
    /// The hash that was rolled back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<String>,
    /// The value of the annotation config.linkerd.io/retry that was acted upon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<String>,
    /// How many workloads there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workloads: Option<RolloutWorkloads>,
    /// How many Pods there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<RolloutPods>,
    /// The selected workloads that run with the configuration, of all that are selected: 12/40.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Those that are being restarted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub updating: Vec<RolloutWorkload>,
    /// Those that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub failures: Vec<RolloutFailure>,
    /// Why workloads with Pods that are out of date are left alone, and how many.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub skipped: Vec<RolloutSkipped>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutWorkloads {
    /// Deployments, StatefulSets and DaemonSets with meshed Pods that opted in.
    pub selected: i64,
    /// Of these: none of their Pods is out of date.
    pub updated: i64,
    /// Of these: being restarted.
    pub updating: i64,
    /// Of these: to be restarted.
    pub pending: i64,
    /// Of these: failed with this configuration.
    pub failed: i64,
    /// Left alone although Pods are out of date, those included that nobody can restart, such as Jobs.
    pub skipped: i64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutPods {
    /// With a proxy of this control plane, selected or not, and not at their end.
    pub meshed: i64,
    /// Of these: with the wanted configuration.
    pub current: i64,
    /// Of these: with another one.
    pub outdated: i64,
    /// Of these: with a proxy of another version, because their own annotation says so.
    pub pinned: i64,
    /// Of these: nobody can tell.
    pub unknown: i64,
    /// That should have a proxy, and have none.
    pub uninjected: i64,
    /// With a proxy, that have succeeded or failed.
    pub completed: i64,
}

#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutWorkload {
    /// Deployment, StatefulSet or DaemonSet.
    pub kind: String,
    /// The namespace that it is in.
    pub namespace: String,
    /// What it is called there.
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutFailure {
    /// Deployment, StatefulSet or DaemonSet.
    pub kind: String,
    /// The namespace that it is in.
    pub namespace: String,
    /// What it is called there.
    pub name: String,
    /// Why, in one word.
    pub reason: String,
    /// What happened, in a sentence.
    pub message: String,
    /// When its restart began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub time: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutSkipped {
    /// Why, in one word.
    pub reason: String,
    /// How many workloads that are.
    pub count: i64,
}
