//! Whether a rollout that could continue makes no progress. Pure.
//!
//! In: the progress at one time, the number of steps so far. Out: the progress with the reason NoProgress, once nothing
//! has advanced for too long. Always holds: a rollout that waits for a decision of a person is not without progress;
//! changes that can recur forever, such as the scale of a workload, do not count as progress.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    assess::workload_state::{Health, WorkloadState},
    key::RolloutKey,
    progress::{RolloutPhase, RolloutProgress},
    schedule::RolloutSchedule,
};
use crate::{
    api::linkerd_config::{ConditionReason, RolloutSpec},
    text::and_more,
};

/// Maximum number of workloads that the message names.
const NAMED: usize = 3;
/// The reasons of RolloutComplete that only a person can resolve, or that have an alert already.
const DECIDED: [ConditionReason; 6] = [
    ConditionReason::OutsideWindow,
    ConditionReason::AwaitingApproval,
    ConditionReason::WaitingForConfigMap,
    ConditionReason::WaitingForInjector,
    ConditionReason::WorkloadsFailed,
    ConditionReason::WorkloadsSkipped,
];

/// Measures how long a rollout has not advanced.
#[derive(Default)]
pub(super) struct NoProgressTimer {
    steps: u64,
    seen: Option<Seen>,
}

/// The most advanced state so far, and when it was reached.
struct Seen {
    key: RolloutKey,
    steps: u64,
    updated: i64,
    outdated: i64,
    since: Timestamp,
}

// === impl NoProgressTimer ===

impl NoProgressTimer {
    /// Counts a step that was written.
    pub(super) fn note_step(&mut self) {
        self.steps += 1;
    }

    /// Sets `no_progress`, and the reason NoProgress of a rollout that claims to progress. Returns when to check again.
    pub(super) fn check(
        &mut self,
        progress: &mut RolloutProgress,
        schedule: &RolloutSchedule,
        now: Timestamp,
    ) -> Option<Timestamp> {
        if !could_continue(progress) {
            self.seen = None;
            return None;
        }
        let since = self.advance(progress, now);
        let rollout = &progress.target.rollout;
        let limit = limit(rollout, schedule.longest_extension(rollout.progress_deadline()));
        let due = since.checked_add(limit).unwrap_or(Timestamp::MAX);
        if now < due {
            return Some(due);
        }
        progress.no_progress = true;
        if progress.complete.reason == ConditionReason::Progressing {
            let so_far = &progress.complete.message;
            let message = format!("nothing has advanced since {since:.0}: {}; {so_far}", what_blocks(schedule));
            progress.complete.reason = ConditionReason::NoProgress;
            progress.complete.message = message;
        }
        None
    }

    /// Returns since when the rollout has not advanced.
    fn advance(&mut self, progress: &RolloutProgress, now: Timestamp) -> Timestamp {
        let (updated, outdated) = (progress.workloads.updated, progress.pods.outdated);
        let key = &progress.target.key;
        let seen = self.seen.take().filter(|seen| seen.key == *key && seen.steps == self.steps);
        let next = match seen {
            Some(seen) if updated <= seen.updated && outdated >= seen.outdated => seen,
            Some(seen) => {
                Seen { updated: updated.max(seen.updated), outdated: outdated.min(seen.outdated), since: now, ..seen }
            }
            None => Seen { key: key.clone(), steps: self.steps, updated, outdated, since: now },
        };
        self.seen.insert(next).since
    }
}

/// Whether the rollout is not complete, and does not wait for a decision.
fn could_continue(progress: &RolloutProgress) -> bool {
    let is_open = matches!(progress.phase, RolloutPhase::Waiting | RolloutPhase::Progressing);
    is_open && !progress.complete.holds && !DECIDED.contains(&progress.complete.reason)
}

/// How long a rollout may take for its slowest step: a restart up to its deadline, its soak, the pause before the next.
/// `extension` is that of the deadline of the slowest restart in progress.
fn limit(rollout: &RolloutSpec, extension: Duration) -> SignedDuration {
    let limit = rollout.progress_deadline() * 2 + extension + rollout.soak() + rollout.interval();
    SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX)
}

fn what_blocks(schedule: &RolloutSchedule) -> String {
    let all: Vec<_> = schedule.in_progress().collect();
    let named = all.iter().take(NAMED).map(|workload| match schedule.state(workload) {
        Some(WorkloadState::InProgress(in_progress)) => format!("{workload}: {}", describe(&in_progress.health)),
        _ => format!("{workload}: a restart for another configuration is not complete"),
    });
    match all.len() {
        0 => "no workload is being restarted, and none can start".to_owned(),
        total => and_more(named, total, "; "),
    }
}

fn describe(health: &Health) -> &str {
    match health {
        Health::Progressing(missing) | Health::WaitingForNodes(missing) => missing,
        Health::Healthy => "its Pods are available",
        Health::Evicting => "its Pods have to be evicted",
        Health::StillOutdated => "its new Pods are out of date",
        Health::Reverted => "another client reverts its restart",
        Health::Uninjected(_) | Health::SeemsUninjected(_) => "a Pod has no proxy",
        Health::StillUncovered => "its new Pods have no proxy, or one of another shape",
        Health::ToBeReverted => "its restart has to be reverted",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::{
        api::linkerd_config::{RolloutMethod, RolloutPods},
        cluster::{index::workload_key::WorkloadKey, kinds::apps_workload::WorkloadPace},
        rollout::{
            assess::{
                annotations::RolloutState,
                workload_state::{Assessment, Start},
            },
            gate::Gate,
            progress::rollout_progress,
            testing::{self, rollout_target, time},
            trust::TrustCounts,
        },
    };

    /// A deadline of 10 minutes, and no pauses: the limit is 20 minutes.
    fn rollout() -> serde_json::Value {
        json!({"interval": "0s", "soak": "0s"})
    }

    fn in_progress() -> WorkloadState {
        let health = Health::Progressing("1 of 2 Pods are updated, 1 are available".to_owned());
        WorkloadState::InProgress(testing::in_progress(RolloutState::Updating, health))
    }

    fn pending() -> WorkloadState {
        let (value, method) = ("key".to_owned(), RolloutMethod::Restart);
        WorkloadState::Pending(Start { value, method, for_trust_roots: false })
    }

    /// The reason, whether there is no progress, and the message, for one workload with this number of outdated Pods.
    fn check(
        clock: &mut NoProgressTimer,
        state: WorkloadState,
        outdated: i64,
        gate: Option<&Gate>,
        now: &str,
    ) -> (&'static str, bool, String) {
        let mut schedule = RolloutSchedule::default();
        let pods = RolloutPods { meshed: 2, outdated, ..RolloutPods::default() };
        let pace = WorkloadPace::default();
        let assessment =
            Assessment { pods, suspects: 0, trust: TrustCounts::new(), state, rolling: None, is_canary: false, pace };
        schedule.set(&WorkloadKey::new("ns", "Deployment", "web"), Some(assessment), time("12:00:00"));
        let mut progress = rollout_progress(&schedule, &Arc::new(rollout_target(&rollout())), gate, None);
        clock.check(&mut progress, &schedule, time(now));
        (progress.complete.reason.as_str(), progress.no_progress, progress.complete.message)
    }

    #[test]
    fn a_rollout_that_does_not_advance_until_the_limit_says_so_and_names_what_blocks_it() {
        let mut clock = NoProgressTimer::default();
        let mut at = |outdated, now| check(&mut clock, in_progress(), outdated, None, now);
        assert_eq!(at(2, "12:00:00").0, "Progressing");
        assert_eq!(at(2, "12:19:59").0, "Progressing");
        assert_eq!(at(1, "12:19:59").0, "Progressing", "one Pod fewer is outdated");
        assert_eq!(at(1, "12:39:58").0, "Progressing");
        let (reason, no_progress, message) = at(1, "12:39:59");
        assert_eq!((reason, no_progress), ("NoProgress", true));
        assert_eq!(
            message,
            "nothing has advanced since 2026-01-01T12:19:59Z: ns/Deployment/web: 1 of 2 Pods are updated, 1 are available; \
             0 of 1 workloads run with the configuration"
        );
        assert_eq!(at(2, "12:40:00").0, "NoProgress", "one Pod more is not progress");
        assert_eq!(at(1, "12:41:00").0, "NoProgress", "the same number as before is not progress");
        assert_eq!(at(0, "12:42:00").0, "Progressing");
    }

    #[test]
    fn a_workload_that_asks_for_more_time_is_waited_for() {
        let workload = WorkloadKey::new("ns", "Deployment", "web");
        let pace = WorkloadPace { min_ready: 900, progress_deadline: None };
        for (state, no_progress) in [(in_progress(), false), (WorkloadState::UpToDate, true)] {
            let (mut clock, mut schedule) = (NoProgressTimer::default(), RolloutSchedule::default());
            let (pods, trust) = (RolloutPods { outdated: 1, ..RolloutPods::default() }, TrustCounts::new());
            let assessment = Assessment { pods, suspects: 0, trust, state, rolling: None, is_canary: false, pace };
            schedule.set(&workload, Some(assessment.clone()), time("12:00:00"));
            let pending = Assessment { state: pending(), pace: WorkloadPace::default(), ..assessment };
            schedule.set(&WorkloadKey::new("ns", "Deployment", "next"), Some(pending), time("12:00:00"));
            let mut check = |now| {
                let mut progress = rollout_progress(&schedule, &Arc::new(rollout_target(&rollout())), None, None);
                clock.check(&mut progress, &schedule, time(now));
                progress.no_progress
            };
            assert!(!check("12:00:00"));
            assert_eq!((check("12:34:59"), check("12:35:00")), (no_progress, true));
        }
    }

    #[test]
    fn a_step_is_progress() {
        let mut clock = NoProgressTimer::default();
        check(&mut clock, in_progress(), 2, None, "12:00:00");
        clock.note_step();
        assert_eq!(check(&mut clock, in_progress(), 2, None, "12:30:00").0, "Progressing");
        assert_eq!(check(&mut clock, in_progress(), 2, None, "12:50:00").0, "NoProgress");
    }

    #[test]
    fn a_reason_that_names_the_cause_stays_and_a_decision_of_a_person_is_waited_for() {
        for (reason, no_progress) in [("WaitingForControlPlane", true), ("OutsideWindow", false), ("Paused", false)] {
            let mut clock = NoProgressTimer::default();
            let gate = Gate { reason: reason.parse().unwrap(), message: "why".to_owned() };
            check(&mut clock, pending(), 2, Some(&gate), "12:00:00");
            let (found, is_stuck, _) = check(&mut clock, pending(), 2, Some(&gate), "13:00:00");
            assert_eq!((found, is_stuck), (reason, no_progress));
            let (found, is_stuck, _) = check(&mut clock, pending(), 2, None, "13:00:01");
            let expected = if no_progress { "NoProgress" } else { "Progressing" };
            assert_eq!((found, is_stuck), (expected, no_progress), "after {reason}");
        }
    }
}
