//! The status of the rollout to running proxies.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::schema;

/// The progress of the rollout. Counts include all objects; lists have at most 20 entries.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStatus {
    /// The phase of the rollout. Idle: rollouts are disabled, or no workload is selected. Waiting: workloads are out of
    /// date, but a precondition is not met. Progressing: workloads are being restarted. Paused: spec.rollout.paused is
    /// true. Halted: too many workloads failed. RolledBack: the configuration was rolled back because workloads failed
    /// with it. Complete: every selected workload runs with the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The hash that workloads are restarted for: the injection hash and the first 8 characters of the hash of the first
    /// observed bundle with the present trust anchors. The annotation config.linkerd.io/restarted-for of their Pod templates begins with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// The time when the first workload was restarted for this hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub started_at: Option<Time>,
    /// The time when every selected workload was observed to run with the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub completed_at: Option<Time>,
    /// The time when restarts may begin again; set while the maintenance window is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub next_window: Option<Time>,
    /// The time since which every injected Pod has a LINKERD_CONFIG_HASH.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub adopted_at: Option<Time>,
    /// The injection hash of the document before the operator's first write. Pods without a LINKERD_CONFIG_HASH that
    /// are older than adoptedAt are assumed to run with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_hash: Option<String>,
    /// The injection hash of the installer's document. Pods without a LINKERD_CONFIG_HASH that are newer than adoptedAt
    /// are assumed to run with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub installed_hash: Option<String>,
    /// The hash that was rolled back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<String>,
    /// The last value of the annotation config.linkerd.io/retry that the operator processed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<String>,
    /// The SHA-256 of the values that the operator processed last: those of spec.global, spec.proxy and spec.values. A
    /// configuration that failed is not tried again until they or the annotation config.linkerd.io/retry change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declared_hash: Option<String>,
    /// The number of workloads in each state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workloads: Option<RolloutWorkloads>,
    /// The number of Pods in each state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<RolloutPods>,
    /// The selected workloads that run with the configuration, of all selected workloads, such as 12/40.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The workloads that are being restarted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub updating: Vec<RolloutWorkload>,
    /// The workloads that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub failures: Vec<RolloutFailure>,
    /// The reasons why workloads with outdated Pods are not restarted, with the number of workloads for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub skipped: Vec<RolloutSkipped>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutWorkloads {
    /// The Deployments, StatefulSets and DaemonSets with meshed Pods that opted in. With the trigger Uninjected also those
    /// whose Pods should have a proxy and have none.
    pub selected: i64,
    /// The selected workloads without outdated Pods.
    pub updated: i64,
    /// The selected workloads that are being restarted.
    pub updating: i64,
    /// The selected workloads that wait for their restart.
    pub pending: i64,
    /// The selected workloads that failed with this configuration.
    pub failed: i64,
    /// The workloads that are not restarted although they have outdated Pods, including those that cannot be restarted,
    /// such as Jobs.
    pub skipped: i64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutPods {
    /// The Pods with a proxy of this control plane that have not ended, selected or not.
    pub meshed: i64,
    /// The meshed Pods that are up to date.
    pub current: i64,
    /// The meshed Pods that are out of date.
    pub outdated: i64,
    /// The meshed Pods whose own annotation sets another version of the proxy.
    pub pinned: i64,
    /// The meshed Pods whose configuration cannot be determined.
    pub unknown: i64,
    /// The Pods that should have a proxy, but have none.
    pub uninjected: i64,
    /// The Pods with a proxy that have succeeded or failed.
    pub completed: i64,
    /// The meshed Pods that wait because their init container linkerd-network-validator runs or fails: no CNI plugin has
    /// set up their network.
    pub waiting_for_network: i64,
    /// The meshed Pods whose proxy has another shape than configured: a native sidecar or not, or a network that
    /// linkerd-init or a CNI plugin sets up.
    pub other_shape: i64,
}

#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutWorkload {
    /// The kind of the workload: Deployment, StatefulSet or DaemonSet.
    pub kind: String,
    /// The namespace of the workload.
    pub namespace: String,
    /// The name of the workload.
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutFailure {
    /// The kind of the workload: Deployment, StatefulSet or DaemonSet.
    pub kind: String,
    /// The namespace of the workload.
    pub namespace: String,
    /// The name of the workload.
    pub name: String,
    /// The reason, in one word.
    pub reason: String,
    /// A description of the failure, in a sentence.
    pub message: String,
    /// The time when its restart began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub time: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutSkipped {
    /// The reason, in one word.
    pub reason: String,
    /// The number of workloads with this reason.
    pub count: i64,
}
