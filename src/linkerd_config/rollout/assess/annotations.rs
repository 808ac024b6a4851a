//! The annotations that record the rollout of a workload on the workload itself. Pure.
//!
//! Always holds: every leader reads the same record, so no step is repeated; a value that another client writes into
//! these annotations causes at most one restart.

use k8s_openapi::jiff::Timestamp;
use strum::{EnumString, IntoStaticStr};

use crate::cluster::kinds::apps_workload::AppsWorkload;

/// The key of the last restart, on the workload and not on its Pod template.
pub const HASH_ANNOTATION: &str = "config.linkerd.io/rollout-hash";
pub const STATE_ANNOTATION: &str = "config.linkerd.io/rollout-state";
pub const STARTED_ANNOTATION: &str = "config.linkerd.io/rollout-started-at";
/// Why the restart failed: a reason, a colon and a sentence.
pub const MESSAGE_ANNOTATION: &str = "config.linkerd.io/rollout-message";
/// The previous value of the template annotation; empty if there was none. Only restarts through the template set it.
pub const PREVIOUS_ANNOTATION: &str = "config.linkerd.io/rollout-previous";

/// The state of a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum RolloutState {
    Updating,
    /// Restarted a second time, because the first restart left Pods out of date.
    Retrying,
    Updated,
    Failed,
    /// The template annotation has its previous value again.
    RolledBack,
}

/// The annotations of a workload, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RolloutAnnotations<'a> {
    pub hash: &'a str,
    pub state: Option<RolloutState>,
    pub started: Option<Timestamp>,
    pub message: &'a str,
    /// `None` if Pods were evicted.
    pub previous: Option<&'a str>,
}

// === impl RolloutState ===

impl RolloutState {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

// === impl RolloutAnnotations ===

impl<'a> RolloutAnnotations<'a> {
    pub fn of(resource: &'a AppsWorkload) -> Self {
        let annotation = |key: &str| resource.annotations.get(key).map(|value| &**value);
        Self {
            hash: annotation(HASH_ANNOTATION).unwrap_or_default(),
            state: annotation(STATE_ANNOTATION).and_then(|text| text.parse().ok()),
            started: annotation(STARTED_ANNOTATION).and_then(|text| text.parse().ok()),
            message: annotation(MESSAGE_ANNOTATION).unwrap_or_default(),
            previous: annotation(PREVIOUS_ANNOTATION),
        }
    }
}
