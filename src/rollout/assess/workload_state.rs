//! The result of an assessment: the state of one workload in a rollout.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use strum::{EnumIter, IntoStaticStr};

use super::{annotations::RolloutState, selection::NotSelected};
use crate::{
    api::linkerd_config::{RolloutMethod, RolloutPods},
    cluster::kinds::apps_workload::WorkloadPace,
    rollout::trust::TrustCounts,
};

/// A workload, compared with the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assessment {
    pub pods: RolloutPods,
    /// The number of Pods that were created while the document had changes by other writers.
    pub suspects: i64,
    /// The number of its running Pods with each set of trust anchors.
    pub trust: TrustCounts,
    pub state: WorkloadState,
    /// The start time of our restart of a selected workload that is not complete yet, for this target or another one.
    pub rolling: Option<Timestamp>,
    /// Whether it was compared with the configuration of a canary.
    pub is_canary: bool,
    pub pace: WorkloadPace,
}

/// The state of one workload in the rollout of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadState {
    /// The workload has no Pod that could be out of date.
    Unmeshed,
    Unselected(NotSelected),
    Observed,
    /// Selected and out of date, but the operator cannot restart it.
    Unsupported(SkipReason),
    /// Selected, as are the variants below.
    UpToDate,
    Pending(Start),
    InProgress(InProgress),
    Failed(WorkloadFailure),
    Skipped(SkipReason),
}

/// The parameters of a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The new value of the template annotation.
    pub value: String,
    pub method: RolloutMethod,
    /// Whether Pods have trust anchors other than those of the mesh.
    pub for_trust_roots: bool,
}

/// A restart in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InProgress {
    pub state: RolloutState,
    /// When the restart began, as recorded on the workload.
    pub since: Option<Timestamp>,
    pub health: Health,
    /// The next Pod to evict.
    pub evict: Option<Arc<str>>,
    /// The value of the template annotation for a retry.
    pub retry: String,
    /// The weight that a failure would have now.
    pub weight: FailureWeight,
    pub marks: ProgressMarks,
    /// The creation time of its newest Pod.
    pub newest_pod: Option<Timestamp>,
    /// Whether another object controls the workload. If such an owner reverts a restart, it does so every time.
    pub controlled: bool,
}

/// Counts that increase while a workload makes progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgressMarks {
    pub updated: i64,
    pub ready: i64,
    pub available: i64,
    /// Live Pods that are not out of date.
    pub current: i64,
}

/// The health of a workload during or after its restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The restart is not complete; the text describes what is missing.
    Progressing(String),
    /// All Pods are available and current.
    Healthy,
    /// All Pods are available, and some still have to be evicted.
    Evicting,
    /// Only Pods of a DaemonSet on some nodes are missing, and the others run with the configuration.
    WaitingForNodes(String),
    /// The controller has finished, but Pods are out of date.
    StillOutdated,
    /// Another client reverted our patch.
    Reverted,
    /// A Pod started without a proxy.
    Uninjected(Arc<str>),
    /// As [`Health::Uninjected`], unless the Pod is an old one whose deletion the watch has not delivered yet.
    SeemsUninjected(Arc<str>),
    /// The new Pods have no proxy or one of another shape, as the old ones.
    StillUncovered,
    /// The configuration was rolled back, and the template annotation has to be rolled back as well.
    ToBeReverted,
}

/// A failed restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadFailure {
    pub reason: String,
    pub message: String,
    pub started: Option<Timestamp>,
    pub weight: FailureWeight,
    /// Whether all Pods are available and current by now.
    pub recovered: bool,
}

/// How much a failed workload weighs against the configuration. The record of a failure alone has no weight, because
/// everyone who may change the workload can write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureWeight {
    /// The workload shows no sign of our restart: it is only reported.
    Reported,
    /// Our restart is on the workload, and the workload is not healthy: it counts towards `maxFailures`.
    Counted,
    /// In addition, a Pod has no proxy: this halts the rollout under every policy.
    LostProxies,
}

/// Why a workload that is out of date is not restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EnumIter, IntoStaticStr)]
pub enum SkipReason {
    Paused,
    ProxyInTemplate,
    OnDelete,
    Partition,
    NoController,
    StaticPod,
    Job,
    UnknownOwner,
    BlockedByPDB,
    Unhealthy,
    WaitingForNodes,
    Reverted,
    TooManyAttempts,
    NamespaceBreaksInjection,
    InjectionDisabled,
    Deleting,
}

// === impl Assessment ===

impl Assessment {
    /// Returns why the workload is out of date and not restarted, and what to do; `None` unless its owner may expect a
    /// restart.
    pub fn skipped(&self) -> Option<Cow<'static, str>> {
        match &self.state {
            WorkloadState::Skipped(skip) => Some(skip.why().into()),
            WorkloadState::Unselected(NotSelected::OptedOut(opt_out)) => {
                (opt_out.is_misspelled() && self.pods.outdated > 0).then(|| opt_out.why().into())
            }
            _ => None,
        }
    }
}

// === impl WorkloadState ===

impl WorkloadState {
    /// Whether the workload opted in and the operator can restart it.
    pub fn is_selected(&self) -> bool {
        match self {
            Self::Unmeshed | Self::Unselected(_) | Self::Observed | Self::Unsupported(_) => false,
            Self::UpToDate | Self::Pending(_) | Self::InProgress(_) | Self::Failed(_) | Self::Skipped(_) => true,
        }
    }
}

// === impl ProgressMarks ===

impl ProgressMarks {
    /// Whether any count is greater than before.
    pub fn exceed(&self, before: &Self) -> bool {
        self.higher(before) != *before
    }

    /// Returns the greater one of each count.
    pub fn higher(&self, other: &Self) -> Self {
        Self {
            updated: self.updated.max(other.updated),
            ready: self.ready.max(other.ready),
            available: self.available.max(other.available),
            current: self.current.max(other.current),
        }
    }
}

// === impl SkipReason ===

impl SkipReason {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the reason and what to do, for people.
    pub const fn why(self) -> &'static str {
        match self {
            Self::Paused => "the Deployment is paused: resume it",
            Self::ProxyInTemplate => {
                "its template contains the proxy, so new Pods have the same one: remove it from the template, or inject it again with linkerd inject"
            }
            Self::OnDelete => {
                "its update strategy is OnDelete: delete its Pods, or annotate it with config.linkerd.io/rollout-method: evict"
            }
            Self::Partition => "all outdated Pods are below the partition of its update strategy: lower the partition",
            Self::NoController => "no controller would recreate these Pods: delete and recreate them yourself",
            Self::StaticPod => "it is a static Pod: change its manifest on the node",
            Self::Job => "a restart would lose its work: the next run has the new configuration",
            Self::UnknownOwner => "the operator cannot restart Pods of this owner: restart them through the owner",
            Self::BlockedByPDB => "a PodDisruptionBudget for its Pods allows no disruption",
            Self::Unhealthy => {
                "not all of its Pods are available, and no restart by this operator is the cause: repair it; for a DaemonSet, check its nodes"
            }
            Self::WaitingForNodes => {
                "its outdated Pods run on nodes that the DaemonSet does not select anymore: check their taints, or delete these Pods"
            }
            Self::Reverted => {
                "another client reverts the restart: annotate it with config.linkerd.io/rollout-method: evict, or correct that client and retry"
            }
            Self::TooManyAttempts => {
                "its Pods are out of date again after each restart: find what else creates or changes them"
            }
            Self::NamespaceBreaksInjection => "an annotation of its namespace makes proxy injection fail: remove it",
            Self::InjectionDisabled => {
                "its Pod template does not request a proxy: a restart would remove it from the mesh"
            }
            Self::Deleting => "it is being deleted",
        }
    }
}
