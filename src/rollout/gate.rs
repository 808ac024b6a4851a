//! The gates of a rollout: conditions that must hold before any restart begins.
//!
//! The controller finds the first closed gate of a LinkerdConfig. The engine adds the gates that depend on the time and
//! on the cluster.

use crate::api::linkerd_config::ConditionReason;

/// A closed gate: the reason and the message of the condition RolloutComplete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    pub reason: ConditionReason,
    pub message: String,
}

/// The gates of a target that the controller can evaluate. They do not affect the assessment of workloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    /// The gate that blocks restarts, if any.
    pub closed: Option<Gate>,
    /// Why the document in force is not the declared one, if it is another one. Workloads may be restarted for it, but
    /// that does not complete the rollout of the declared document.
    pub undeclared: Option<Gate>,
}

// === impl Gates ===

impl Gates {
    /// Returns the closed gate if the configuration disables rollouts.
    pub fn disabled(&self) -> Option<&Gate> {
        self.closed.as_ref().filter(|gate| gate.reason == ConditionReason::RolloutDisabled)
    }
}
