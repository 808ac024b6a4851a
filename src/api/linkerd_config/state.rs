//! The state of a LinkerdConfig: one word for what all its conditions say together. Pure.
//!
//! In: a status. Out: a [`ConfigState`]. Always holds: every status has exactly one state, whichever version of the
//! operator wrote it. docs/internals/src/states.md has the states and what leads from one to another.

use strum::{EnumIter, EnumString, IntoStaticStr};

use super::{
    ConditionReason as Reason,
    ConditionType::{Accepted, ConfigMapSynced, InjectorSynced, Ready, RolloutComplete, Stalled},
    LinkerdConfigStatus,
};

/// The state of a LinkerdConfig.
#[derive(Clone, Copy, Debug, EnumIter, EnumString, IntoStaticStr, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConfigState {
    /// No operator has written its status.
    New,
    /// Another resource is in effect for the ConfigMap.
    Reserve,
    /// The resource, or the Linkerd that it is for, cannot be used.
    NotAccepted,
    Suspended,
    /// It is compared with the ConfigMap, and nothing is written.
    Observing,
    /// The ConfigMap was not written, and keeps the document that it has.
    Blocked,
    /// Another writer keeps undoing the writes of the operator.
    Contested,
    /// The changes of another writer stay, because `drift.action` is `Report`.
    Drifted,
    /// Only the canary namespaces get the declared document.
    Canary,
    /// The canary was taken back, or could not begin.
    CanaryStopped,
    /// The declared document failed, and the ConfigMap has the one from before it.
    RolledBack,
    /// The injectors deny Pods, and nothing is rolled back.
    Denied,
    /// The ConfigMap has the declared document, and the injectors do not use it yet.
    Propagating,
    /// The declared document is in effect for new Pods, and no workload is restarted for it.
    InEffect,
    /// Workloads are restarted.
    RollingOut,
    /// The rollout waits for a person, a time, or another program.
    Waiting,
    /// Too many workloads failed.
    Halted,
    /// Every selected workload runs with the declared document.
    Complete,
}

// === impl ConfigState ===

impl ConfigState {
    /// Returns the state that a status describes. The conditions are checked in a fixed order, and the first deviation
    /// decides.
    pub fn of(status: &LinkerdConfigStatus) -> Self {
        let rollout = status.reason(RolloutComplete);
        match (status.reason(Accepted), status.reason(Stalled), status.reason(ConfigMapSynced)) {
            _ if status.conditions.is_empty() => Self::New,
            (Some(Reason::Conflicted), ..) => Self::Reserve,
            (Some(Reason::Suspended), ..) => Self::Suspended,
            _ if status.fails(Accepted) => Self::NotAccepted,
            (_, Some(Reason::RepeatedDrift | Reason::InstallerReverts), _) => Self::Contested,
            (_, Some(Reason::CanaryFailed | Reason::CanaryUnsupported), _) => Self::CanaryStopped,
            (_, _, Some(Reason::Restored)) => Self::RolledBack,
            (_, Some(Reason::Denied), _) => Self::Denied,
            (_, _, Some(Reason::Canary)) => Self::Canary,
            (_, _, Some(Reason::Drifted)) => Self::Drifted,
            (_, _, Some(Reason::Observing)) => Self::Observing,
            _ if status.fails(ConfigMapSynced) => Self::Blocked,
            _ if status.reason(InjectorSynced) == Some(Reason::Denied) => Self::Denied,
            // The injectors are not asked about a document that the operator does not write.
            _ if rollout == Some(Reason::RolloutDisabled) && status.condition(InjectorSynced).is_none() => {
                Self::Observing
            }
            // Rollouts may proceed although some injectors are late.
            _ if status.fails(InjectorSynced) && !status.holds(Ready) => Self::Propagating,
            _ => Self::of_rollout(status),
        }
    }

    /// Returns the state of a resource whose document is in effect for new Pods.
    fn of_rollout(status: &LinkerdConfigStatus) -> Self {
        match status.reason(RolloutComplete) {
            _ if status.holds(RolloutComplete) => Self::Complete,
            Some(Reason::Halted) => Self::Halted,
            Some(Reason::RolloutDisabled) | None => Self::InEffect,
            Some(
                Reason::Progressing
                | Reason::WaitingForConfigMap
                | Reason::WaitingForInjector
                | Reason::Canary
                | Reason::RolledBack,
            ) => Self::RollingOut,
            Some(_) => Self::Waiting,
        }
    }

    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
