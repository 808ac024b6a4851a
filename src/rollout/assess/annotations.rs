//! The annotations that record the rollout of a workload on the workload itself. Pure.
//!
//! Always holds: every leader reads the same record, so no step is repeated; a record that was copied from another
//! object does not count; a value that another client writes into these annotations affects only this workload, and its
//! text is bounded.

use k8s_openapi::jiff::Timestamp;
use strum::{EnumString, IntoStaticStr};

use crate::{
    api::linkerd_config::annotations::{
        ROLLOUT_HASH_ANNOTATION, ROLLOUT_MESSAGE_ANNOTATION, ROLLOUT_PREVIOUS_ANNOTATION, ROLLOUT_STARTED_ANNOTATION,
        ROLLOUT_STATE_ANNOTATION, ROLLOUT_UID_ANNOTATION,
    },
    cluster::kinds::apps_workload::AppsWorkload,
    text::truncate,
};

/// Maximum size in bytes of the annotation that explains a failed restart.
pub const LONGEST_MESSAGE: usize = 512;

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
        let started: Option<Timestamp> = annotation(ROLLOUT_STARTED_ANNOTATION).and_then(|text| text.parse().ok());
        // The API server rejects a status with a year before 0.
        let started = started.filter(|started| *started >= Timestamp::UNIX_EPOCH);
        let is_own = match annotation(ROLLOUT_UID_ANNOTATION) {
            Some(uid) => *uid == *resource.uid,
            // Earlier versions of the operator wrote no UID. Their restart cannot have begun before the workload was
            // created, unless the record is a copy.
            None => started.is_some_and(|started| resource.created.is_none_or(|created| created <= started)),
        };
        if !is_own {
            return Self::default();
        }
        Self {
            hash: annotation(ROLLOUT_HASH_ANNOTATION).unwrap_or_default(),
            state: annotation(ROLLOUT_STATE_ANNOTATION).and_then(|text| text.parse().ok()),
            started,
            message: truncate(annotation(ROLLOUT_MESSAGE_ANNOTATION).unwrap_or_default(), LONGEST_MESSAGE),
            previous: annotation(ROLLOUT_PREVIOUS_ANNOTATION),
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
