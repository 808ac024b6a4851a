//! One workload in the schedule, and its next step. Pure.

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;

use super::{
    NextSteps, RolloutLimits,
    progress_clock::{ProgressClock, later},
};
use crate::{
    cluster::kinds::apps_workload::WorkloadPace,
    rollout::{
        assess::{
            annotations::{LONGEST_MESSAGE, RolloutState},
            workload_state::{Assessment, Health, InProgress, WorkloadFailure, WorkloadState},
        },
        step::StepAction,
    },
    text::truncated,
};

/// How long a contradiction between a workload and its Pods must last before it counts: they arrive through different
/// watches.
const SETTLED: Duration = Duration::from_secs(5);
/// Delay between the start of a Pod and the next eviction.
const EVICTION_PAUSE: Duration = Duration::from_secs(2);

/// The longest time that a workload may ask for in addition to the deadline of the rollout. Everyone who may change the
/// workload can write what it asks for, and all others wait meanwhile.
const LONGEST_EXTENSION: Duration = Duration::from_secs(3600);

pub(super) struct ScheduledWorkload {
    pub(super) assessment: Assessment,
    /// When the health of the workload last changed.
    pub(super) health_since: Timestamp,
    /// The clock of a restart in progress.
    pub(super) clock: Option<ProgressClock>,
    pub(super) sent: Option<SentWrite>,
}

/// One of our writes, and the resourceVersion that it created.
#[derive(Clone, Copy)]
pub(super) struct SentWrite {
    pub(super) version: u64,
    pub(super) at: Timestamp,
}

// === impl ScheduledWorkload ===

impl ScheduledWorkload {
    /// Returns the step that is due for a restart in progress or a failure. `refusal` is the error of the last write.
    pub(super) fn step(
        &self,
        refusal: Option<&str>,
        limits: &RolloutLimits,
        now: Timestamp,
        next: &mut NextSteps,
    ) -> Option<StepAction> {
        let in_progress = match &self.assessment.state {
            WorkloadState::InProgress(in_progress) => in_progress,
            WorkloadState::Failed(WorkloadFailure { recovered: true, started, .. }) => {
                return self.has_lasted(limits.soak, now, next).then_some(StepAction::Finish { since: *started });
            }
            _ => return None,
        };
        let weight = in_progress.weight;
        let fail = |reason, message: String| {
            Some(StepAction::Fail { reason, message: truncated(message, LONGEST_MESSAGE), weight })
        };
        match &in_progress.health {
            Health::Healthy => {
                self.has_lasted(limits.soak, now, next).then_some(StepAction::Finish { since: in_progress.since })
            }
            Health::Evicting => {
                let pod = in_progress.evict.as_ref().filter(|_| limits.may_inject)?;
                if !self.has_lasted(EVICTION_PAUSE, now, next) {
                    return None;
                }
                if self.clock.as_ref().is_some_and(|clock| clock.is_eviction_overdue(limits.deadline)) {
                    let why = refusal.unwrap_or("the Pod stays");
                    return fail("EvictionBlocked", format!("could not evict Pod {pod}: {why}"));
                }
                Some(StepAction::Evict(Arc::clone(pod)))
            }
            Health::WaitingForNodes(_) => {
                // At the deadline it loses its place, but does not fail.
                next.wake_later(self.due(limits), now);
                None
            }
            Health::Progressing(missing) => {
                let due = self.due(limits);
                next.wake_later(due, now);
                match &in_progress.evict {
                    _ if now >= due => fail("ProgressDeadlineExceeded", missing.clone()),
                    Some(pod) if limits.may_inject && self.has_lasted(EVICTION_PAUSE, now, next) => {
                        Some(StepAction::Evict(Arc::clone(pod)))
                    }
                    _ => None,
                }
            }
            Health::SeemsUninjected(_) | Health::StillUncovered if !self.has_lasted(SETTLED, now, next) => None,
            Health::StillUncovered => {
                let message = "its new Pods still have no proxy, or one of another shape than configured: find what else \
                               injects or changes them";
                fail("StillOutdated", message.to_owned())
            }
            Health::Uninjected(pod) | Health::SeemsUninjected(pod) => {
                let message = format!("Pod {pod} started without a proxy: check the proxy injector and its webhook");
                fail("Uninjected", message)
            }
            Health::StillOutdated | Health::Reverted if !self.has_lasted(SETTLED, now, next) => None,
            Health::Reverted if in_progress.controlled || in_progress.state != RolloutState::Updating => {
                Some(StepAction::GiveUp)
            }
            Health::StillOutdated | Health::Reverted if in_progress.state == RolloutState::Updating => {
                limits.may_inject.then(|| StepAction::Retry(in_progress.retry.clone()))
            }
            Health::StillOutdated | Health::Reverted => {
                let message = "its new Pods are out of date after two restarts: find what else creates or changes them";
                fail("StillOutdated", message.to_owned())
            }
            Health::ToBeReverted => limits.may_inject.then_some(StepAction::Revert),
        }
    }

    /// Returns when the progress deadline of its restart is over.
    pub(super) fn due(&self, limits: &RolloutLimits) -> Timestamp {
        match &self.clock {
            Some(clock) => clock.due(self.deadline(limits)),
            None => later(self.health_since, self.deadline(limits)),
        }
    }

    /// Returns the time without progress after which its restart has failed.
    pub(super) fn deadline(&self, limits: &RolloutLimits) -> Duration {
        limits.deadline + self.extension(limits.deadline)
    }

    /// Returns the part of its deadline that the workload asks for: its own deadline, if that is longer, and the time
    /// that its Pods are ready but not available yet, which no count shows as progress.
    pub(super) fn extension(&self, deadline: Duration) -> Duration {
        let WorkloadPace { min_ready, progress_deadline } = self.assessment.pace;
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let longer = progress_deadline.map(seconds).unwrap_or_default().saturating_sub(deadline);
        (longer + seconds(min_ready)).min(LONGEST_EXTENSION)
    }

    pub(super) fn attempt_eviction(&mut self, now: Timestamp) {
        if let (WorkloadState::InProgress(InProgress { health: Health::Evicting, .. }), Some(clock)) =
            (&self.assessment.state, &mut self.clock)
        {
            clock.attempt_eviction(now);
        }
    }

    /// Whether the workload has had its health for this time.
    fn has_lasted(&self, for_: Duration, now: Timestamp, next: &mut NextSteps) -> bool {
        let due = later(self.health_since, for_);
        next.wake_later(due, now);
        now >= due
    }
}

/// Returns the kind of health of a workload, if its next step depends on how long that health lasts.
pub(super) fn health(assessment: &Assessment) -> Option<std::mem::Discriminant<Health>> {
    match &assessment.state {
        WorkloadState::InProgress(in_progress) => Some(std::mem::discriminant(&in_progress.health)),
        WorkloadState::Failed(WorkloadFailure { recovered: true, .. }) => {
            Some(std::mem::discriminant(&Health::Healthy))
        }
        _ => None,
    }
}
