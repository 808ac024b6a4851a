//! The conditions of a LinkerdConfig: their types and reasons, and the only code that reads their text.
//!
//! In: a status. Out: the condition of a type; its reason as a [`ConditionReason`]. Always holds: the names are part of
//! the API and keep their meaning; a reason that only another version knows is read as no reason, so a status of
//! another version never decides anything.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use strum::{EnumIter, EnumString, IntoStaticStr};

use super::LinkerdConfigStatus;

/// The type of a condition.
#[derive(Clone, Copy, Debug, EnumIter, IntoStaticStr, PartialEq, Eq)]
#[strum(const_into_str)]
pub enum ConditionType {
    Accepted,
    ConfigMapSynced,
    ControlPlaneMismatch,
    IneffectiveValues,
    InjectorSynced,
    Ready,
    RolloutComplete,
    Stalled,
    SuspectBase,
    VersionSkew,
}

/// The reason of a condition. `src/reasons` has the meaning and the remedy of each.
#[derive(Clone, Copy, Debug, EnumIter, EnumString, IntoStaticStr, PartialEq, Eq)]
#[strum(const_into_str)]
pub enum ConditionReason {
    Accepted,
    AllReplicasCurrent,
    AwaitingApproval,
    BlockedByPDB,
    Canary,
    CanaryFailed,
    CanaryUnsupported,
    Conflicted,
    Denied,
    Drifted,
    Halted,
    Immutable,
    InstallerReverts,
    Invalid,
    InvalidBase,
    NoEffect,
    NoProgress,
    NoReadyReplicas,
    NothingSelected,
    Observing,
    OutsideWindow,
    Paused,
    ProbeDisabled,
    ProbeFailed,
    Progressing,
    Propagating,
    ProxyNewer,
    ProxyOlder,
    Reconciled,
    RepeatedDrift,
    Restored,
    RolledBack,
    RolloutDisabled,
    RolloutHalted,
    Suspended,
    Synced,
    TargetNotFound,
    Timeout,
    UnexpectedValues,
    UnsupportedLayout,
    UnsupportedVersion,
    UpToDate,
    ValidationFailed,
    ValuesDiffer,
    VersionOverridden,
    WaitingForConfigMap,
    WaitingForControlPlane,
    WaitingForInjector,
    WaitingForWatches,
    WorkloadsFailed,
    WorkloadsSkipped,
    WriteConflict,
    WriteFailed,
    WriteForbidden,
}

// === impl ConditionType ===

impl ConditionType {
    /// Returns the name in the API.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

// === impl ConditionReason ===

impl ConditionReason {
    /// The reasons of Stalled while another writer keeps undoing the operator's writes.
    pub const CONTESTED: [Self; 2] = [Self::RepeatedDrift, Self::InstallerReverts];

    /// Returns the name in the API.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// Returns the reason of a condition; `None` if only another version of the operator knows it.
    pub fn of(condition: &Condition) -> Option<Self> {
        condition.reason.parse().ok()
    }

    /// Whether this reason of RolloutComplete says that the document in force is not the declared one.
    pub fn is_undeclared(self) -> bool {
        matches!(self, Self::Canary | Self::RolledBack | Self::WaitingForConfigMap)
    }

    /// Whether this is a reason of Stalled while another writer keeps undoing the operator's writes.
    pub fn is_contested(self) -> bool {
        Self::CONTESTED.contains(&self)
    }
}

// === impl LinkerdConfigStatus ===

impl LinkerdConfigStatus {
    pub fn condition(&self, type_: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == type_.as_str())
    }

    /// Returns the reason of a condition; `None` without the condition, or if only another version knows its reason.
    pub fn reason(&self, type_: ConditionType) -> Option<ConditionReason> {
        self.condition(type_).and_then(ConditionReason::of)
    }

    /// Whether the condition is True.
    pub fn holds(&self, type_: ConditionType) -> bool {
        self.condition(type_).is_some_and(|condition| condition.status == "True")
    }

    /// Whether the condition is False. A condition can also be Unknown, or absent.
    pub fn fails(&self, type_: ConditionType) -> bool {
        self.condition(type_).is_some_and(|condition| condition.status == "False")
    }

    /// Returns the message of a condition; empty without the condition.
    pub fn message(&self, type_: ConditionType) -> &str {
        self.condition(type_).map(|condition| condition.message.as_str()).unwrap_or_default()
    }
}
