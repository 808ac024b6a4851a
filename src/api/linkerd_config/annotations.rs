//! The annotations that the operator reads or writes for a LinkerdConfig.

// === on the LinkerdConfig, by people ===

/// Any new value retries the failed documents and workloads.
pub const RETRY_ANNOTATION: &str = "config.linkerd.io/retry";
/// The hash of an approved bundle that has no trust anchor of some running Pods.
pub const APPROVE_ANNOTATION: &str = "config.linkerd.io/approve-trust-roots";
/// The hash of the canary that all namespaces get.
pub const PROMOTE_ANNOTATION: &str = "config.linkerd.io/promote";

// === on the ConfigMaps, by the operator ===

/// The hash of the document that the operator wrote: the declared one, or the one that is in force instead.
pub const CONFIG_HASH_ANNOTATION: &str = "config.linkerd.io/config-hash";
/// The revision whose declared document the ConfigMap has.
pub const BASE_REVISION_ANNOTATION: &str = "config.linkerd.io/base-revision";
/// The UID of the LinkerdConfig that declares the canary.
pub const CANARY_OWNER_ANNOTATION: &str = "config.linkerd.io/canary-owner";

// === on workloads, not on their Pod templates, by the operator ===

/// The key of the last restart.
pub const ROLLOUT_HASH_ANNOTATION: &str = "config.linkerd.io/rollout-hash";
pub const ROLLOUT_STATE_ANNOTATION: &str = "config.linkerd.io/rollout-state";
pub const ROLLOUT_STARTED_ANNOTATION: &str = "config.linkerd.io/rollout-started-at";
/// Why the restart failed: a reason, a colon and a sentence.
pub const ROLLOUT_MESSAGE_ANNOTATION: &str = "config.linkerd.io/rollout-message";
/// The previous value of the template annotation; empty if there was none. Only restarts through the template set it.
pub const ROLLOUT_PREVIOUS_ANNOTATION: &str = "config.linkerd.io/rollout-previous";
/// The UID of the workload that the record is about. A copy of the workload has another UID.
pub const ROLLOUT_UID_ANNOTATION: &str = "config.linkerd.io/rollout-uid";
