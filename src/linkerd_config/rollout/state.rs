//! What was done about a workload, as its own annotations say it. Pure.
//!
//! Always holds: whoever leads next reads the same, so nothing is done twice; what others write into these annotations costs at
//! most a restart.

use k8s_openapi::jiff::Timestamp;

use crate::cluster::kinds::apps_workload::AppsWorkload;

/// On a workload, and not on its template: what it was restarted for last.
pub const HASH_ANNOTATION: &str = "config.linkerd.io/rollout-hash";
pub const STATE_ANNOTATION: &str = "config.linkerd.io/rollout-state";
pub const STARTED_ANNOTATION: &str = "config.linkerd.io/rollout-started-at";
/// Why it failed: a reason, a colon and a sentence.
pub const MESSAGE_ANNOTATION: &str = "config.linkerd.io/rollout-message";
/// What its template had before; empty where it had nothing. Only of restarts by template.
pub const PREVIOUS_ANNOTATION: &str = "config.linkerd.io/rollout-previous";

/// How far a restart is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutState {
    Updating,
    /// For the second time, because the first one was to no avail.
    Retrying,
    Updated,
    Failed,
    /// Put back to what it was before.
    RolledBack,
}

/// What a workload's annotations say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotated<'a> {
    pub hash: &'a str,
    pub state: Option<RolloutState>,
    pub started: Option<Timestamp>,
    pub message: &'a str,
    /// `None` for one that was evicted.
    pub previous: Option<&'a str>,
}

// === impl RolloutState ===

impl RolloutState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Updating => "updating",
            Self::Retrying => "retrying",
            Self::Updated => "updated",
            Self::Failed => "failed",
            Self::RolledBack => "rolled-back",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let all = [Self::Updating, Self::Retrying, Self::Updated, Self::Failed, Self::RolledBack];
        all.into_iter().find(|state| state.as_str() == text)
    }
}

// === impl Annotated ===

impl<'a> Annotated<'a> {
    pub fn of(resource: &'a AppsWorkload) -> Self {
        let annotation = |key: &str| resource.annotations.get(key).map(|value| &**value);
        Self {
            hash: annotation(HASH_ANNOTATION).unwrap_or_default(),
            state: annotation(STATE_ANNOTATION).and_then(RolloutState::parse),
            started: annotation(STARTED_ANNOTATION).and_then(|text| text.parse().ok()),
            message: annotation(MESSAGE_ANNOTATION).unwrap_or_default(),
            previous: annotation(PREVIOUS_ANNOTATION),
        }
    }
}
