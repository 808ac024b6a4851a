//! The workloads and limits of these tests.

mod deadlines;
mod failures;
mod starts;
mod writes;

use super::*;
use crate::{
    api::linkerd_config::RolloutMethod,
    cluster::kinds::apps_workload::WorkloadPace,
    rollout::{
        assess::workload_state::{SkipReason, Start},
        testing,
        trust::TrustCounts,
    },
};

fn workload(namespace: &str, name: &str) -> WorkloadKey {
    WorkloadKey { namespace: namespace.into(), kind: "Deployment".into(), name: name.into() }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn of(state: WorkloadState) -> Option<Assessment> {
    let pods = RolloutPods { meshed: 1, ..RolloutPods::default() };
    let (trust, pace) = (TrustCounts::new(), WorkloadPace::default());
    Some(Assessment { pods, suspects: 0, trust, state, rolling: None, is_canary: false, pace })
}

fn pending() -> Option<Assessment> {
    let method = RolloutMethod::Restart;
    of(WorkloadState::Pending(Start { value: "key".to_owned(), method, for_trust_roots: false }))
}

fn in_progress(state: RolloutState, health: Health) -> Option<Assessment> {
    of(WorkloadState::InProgress(InProgress {
        since: Some(at(100)),
        retry: "key.2".to_owned(),
        ..testing::in_progress(state, health)
    }))
}

/// Changes a restart in progress.
fn but(assessment: Option<Assessment>, change: impl FnOnce(&mut InProgress)) -> Option<Assessment> {
    let mut assessment = assessment.unwrap();
    let WorkloadState::InProgress(in_progress) = &mut assessment.state else { panic!("{assessment:?}") };
    change(in_progress);
    Some(assessment)
}

fn progressing() -> Option<Assessment> {
    in_progress(RolloutState::Updating, Health::Progressing("1 of 3".to_owned()))
}

fn updated(number: i64) -> Option<Assessment> {
    but(progressing(), |it| it.marks.updated = number)
}

/// Returns the reason of the failure that is due.
fn failure(schedule: &mut RolloutSchedule, now: i64) -> Option<&'static str> {
    match &schedule.next(&LIMITS, at(now)).steps.first()?.action {
        StepAction::Fail { reason, .. } => Some(*reason),
        other => panic!("{other:?}"),
    }
}

const LIMITS: RolloutLimits = RolloutLimits {
    may_start: true,
    may_inject: true,
    at_once: 1,
    at_once_in_namespace: 10,
    interval: Duration::ZERO,
    soak: Duration::from_secs(30),
    deadline: Duration::from_secs(600),
};

fn names(next: &NextSteps) -> Vec<String> {
    next.steps.iter().map(|step| format!("{}/{}", step.workload.namespace, step.workload.name)).collect()
}

fn waiting(all: &[(&str, &str)]) -> RolloutSchedule {
    let mut schedule = RolloutSchedule::default();
    for (namespace, name) in all {
        schedule.set(&workload(namespace, name), pending(), at(0));
    }
    schedule
}

/// The seconds of the workload's own `minReadySeconds` and `progressDeadlineSeconds`.
fn at_its_pace(min_ready: u32, progress_deadline: Option<u32>, assessment: Option<Assessment>) -> Option<Assessment> {
    Some(Assessment { pace: WorkloadPace { min_ready, progress_deadline }, ..assessment? })
}
