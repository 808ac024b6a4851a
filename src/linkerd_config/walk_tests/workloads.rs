//! The workloads of the walk, as the engine would assess them.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::{
    api::linkerd_config::{RolloutMethod, RolloutPods},
    cluster::{index::workload_key::WorkloadKey, kinds::apps_workload::WorkloadPace},
    rollout::{
        assess::workload_state::{Assessment, FailureWeight, Start, WorkloadFailure, WorkloadState},
        schedule::RolloutSchedule,
        trust::TrustCounts,
    },
};

const WORKLOADS: usize = 4;

/// The state of the workloads for one configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Workloads {
    #[default]
    Pending,
    Updated,
    OneFailed,
    Failed,
    LostProxy,
}

/// The schedule of the workloads in this state; the first one is that of the canary namespaces, if any.
pub(super) fn schedule(states: Workloads, canary: Option<Workloads>) -> RolloutSchedule {
    let failure = |weight| {
        let (reason, message) = ("ProgressDeadlineExceeded".to_owned(), "late".to_owned());
        WorkloadState::Failed(WorkloadFailure { reason, message, started: None, weight, recovered: false })
    };
    let start = || Start { value: "key".to_owned(), method: RolloutMethod::Restart, for_trust_roots: false };
    let mut schedule = RolloutSchedule::default();
    for number in 0..WORKLOADS {
        let is_canary = number < 2 && canary.is_some();
        let state = match (canary.filter(|_| is_canary).unwrap_or(states), number) {
            (Workloads::Pending, _) => WorkloadState::Pending(start()),
            (Workloads::Failed, 0 | 1) | (Workloads::OneFailed, 0) => failure(FailureWeight::Counted),
            (Workloads::LostProxy, 0) => failure(FailureWeight::LostProxies),
            _ => WorkloadState::UpToDate,
        };
        let pods = RolloutPods { meshed: 1, ..RolloutPods::default() };
        let (trust, pace) = (TrustCounts::new(), WorkloadPace::default());
        let assessment = Assessment { pods, suspects: 0, trust, state, rolling: None, is_canary, pace };
        let name = Arc::<str>::from(number.to_string());
        schedule.set(&WorkloadKey::new("first", "Deployment", name), Some(assessment), Timestamp::UNIX_EPOCH);
    }
    schedule
}
