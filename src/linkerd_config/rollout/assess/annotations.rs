//! The annotations that record the rollout of a workload on the workload itself. Pure.
//!
//! Always holds: every leader reads the same record, so no step is repeated; a record that was copied from another
//! object does not count; a value that another client writes into these annotations affects only this workload, and its
//! text is bounded.

use k8s_openapi::jiff::Timestamp;
use strum::{EnumString, IntoStaticStr};

use crate::{cluster::kinds::apps_workload::AppsWorkload, text::truncate};

/// Maximum size in bytes of the annotation that explains a failed restart.
pub const LONGEST_MESSAGE: usize = 512;

/// The key of the last restart, on the workload and not on its Pod template.
pub const HASH_ANNOTATION: &str = "config.linkerd.io/rollout-hash";
pub const STATE_ANNOTATION: &str = "config.linkerd.io/rollout-state";
pub const STARTED_ANNOTATION: &str = "config.linkerd.io/rollout-started-at";
/// Why the restart failed: a reason, a colon and a sentence.
pub const MESSAGE_ANNOTATION: &str = "config.linkerd.io/rollout-message";
/// The previous value of the template annotation; empty if there was none. Only restarts through the template set it.
pub const PREVIOUS_ANNOTATION: &str = "config.linkerd.io/rollout-previous";
/// The UID of the workload that the record is about. A copy of the workload has another UID.
pub const UID_ANNOTATION: &str = "config.linkerd.io/rollout-uid";

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
    /// Another client reverts our restarts.
    Reverted,
}

/// The annotations of a workload, parsed. All are empty if the record is about another object.
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
        let started: Option<Timestamp> = annotation(STARTED_ANNOTATION).and_then(|text| text.parse().ok());
        // The API server rejects a status with a year before 0.
        let started = started.filter(|started| *started >= Timestamp::UNIX_EPOCH);
        let is_own = match annotation(UID_ANNOTATION) {
            Some(uid) => *uid == *resource.uid,
            // Earlier versions of the operator wrote no UID. Their restart cannot have begun before the workload was
            // created, unless the record is a copy.
            None => started.is_some_and(|started| resource.created.is_none_or(|created| created <= started)),
        };
        if !is_own {
            return Self::default();
        }
        Self {
            hash: annotation(HASH_ANNOTATION).unwrap_or_default(),
            state: annotation(STATE_ANNOTATION).and_then(|text| text.parse().ok()),
            started,
            message: truncate(annotation(MESSAGE_ANNOTATION).unwrap_or_default(), LONGEST_MESSAGE),
            previous: annotation(PREVIOUS_ANNOTATION),
        }
    }

    /// Whether a restart is in progress.
    pub fn is_moving(&self) -> bool {
        matches!(self.state, Some(RolloutState::Updating | RolloutState::Retrying))
    }

    /// Whether the last restart changed the Pod template. Otherwise Pods were evicted.
    pub fn is_restart(&self) -> bool {
        self.previous.is_some()
    }
}
