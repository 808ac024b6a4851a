//! Steps: the writes of the engine.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use super::assess::workload_state::{FailureWeight, Start};
use crate::cluster::index::workload_key::WorkloadKey;

/// One write to one workload, or to one of its Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutStep {
    pub workload: WorkloadKey,
    pub action: StepAction,
}

/// The action of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepAction {
    Start(Start),
    Retry(String),
    Evict(Arc<str>),
    /// All Pods of the workload run with the target.
    Finish {
        since: Option<Timestamp>,
    },
    Fail {
        reason: &'static str,
        message: String,
        weight: FailureWeight,
    },
    /// Another client reverts the restart: the workload is skipped, also for later configurations.
    GiveUp,
    /// Restores the previous value of the template annotation.
    Revert,
}
