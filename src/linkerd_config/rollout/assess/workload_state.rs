//! The state of one workload in a rollout, as an assessment finds it.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use strum::{EnumIter, IntoStaticStr};

use super::{annotations::RolloutState, selection::NotSelected};
use crate::api::linkerd_config::{RolloutMethod, RolloutPods};

/// A workload, compared with the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assessment {
    pub pods: RolloutPods,
    /// How many of the Pods were created while others had edited the document.
    pub suspects: i64,
    pub state: WorkloadState,
    /// When a restart of ours that still rolls began, for this target or for another.
    pub rolling: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadState {
    /// It has no Pod that could be out of date.
    Unmeshed,
    Unselected(NotSelected),
    Observed,
    /// Selected and out of date, but the operator cannot restart it.
    Unsupported(SkipReason),
    /// Selected, as in the variants below.
    UpToDate,
    Pending(Start),
    InProgress(InProgress),
    Failed(WorkloadFailure),
    Skipped(SkipReason),
}

/// How a restart is to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The value of the annotation of its template.
    pub value: String,
    pub method: RolloutMethod,
    /// Pods have other trust anchors than the mesh.
    pub for_trust_roots: bool,
}

/// A restart under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InProgress {
    pub state: RolloutState,
    /// When it began. Where Pods are evicted one after the other: when the last one came up.
    pub since: Option<Timestamp>,
    pub health: Health,
    /// The Pod that has to be evicted next.
    pub evict: Option<Arc<str>>,
    /// The value of the annotation of its template if the restart has to be retried.
    pub retry: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Not finished; the sentence says what is missing.
    Progressing(String),
    /// All Pods are there, and all are current.
    Healthy,
    /// All Pods are there, and some have to be evicted.
    Evicting,
    /// Its controller has finished, and Pods are out of date.
    StillOutdated,
    /// Another client undid our patch.
    Reverted,
    /// A Pod came up without a proxy.
    Uninjected(Arc<str>),
    /// The configuration was rolled back, and its template has to be, too.
    ToBeReverted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadFailure {
    pub reason: String,
    pub message: String,
    pub started: Option<Timestamp>,
}

/// Why a workload that is out of date is not restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EnumIter, IntoStaticStr)]
pub enum SkipReason {
    Paused,
    OnDelete,
    Partition,
    NoController,
    Job,
    UnknownOwner,
    BlockedByPDB,
    Reverted,
    TooManyAttempts,
    NamespaceBreaksInjection,
    InjectionDisabled,
    Deleting,
}

// === impl SkipReason ===

impl SkipReason {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the reason and what to do, for a person.
    pub const fn why(self) -> &'static str {
        match self {
            Self::Paused => "the Deployment is paused: resume it",
            Self::OnDelete => {
                "its update strategy is OnDelete: delete its Pods, or annotate it with config.linkerd.io/rollout-method: evict"
            }
            Self::Partition => "all that are out of date are below its partition",
            Self::NoController => "nothing would make these Pods anew: delete them yourself",
            Self::Job => "a restart would lose its work: the next run has the new configuration",
            Self::UnknownOwner => "nothing is known of how its owner restarts it: restart it there",
            Self::BlockedByPDB => "a PodDisruptionBudget over its Pods allows no disruption",
            Self::Reverted => "somebody undoes the restart: annotate it with config.linkerd.io/rollout-method: evict",
            Self::TooManyAttempts => "its Pods are out of date again after each restart: see what makes them",
            Self::NamespaceBreaksInjection => "an annotation of its namespace keeps the injector from working",
            Self::InjectionDisabled => "its template asks for no proxy: a restart would take it out of the mesh",
            Self::Deleting => "it is being deleted",
        }
    }
}
