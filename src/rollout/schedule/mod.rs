//! The schedule of a rollout: the state of every workload, and the next steps. Pure.
//!
//! In: one [`Assessment`] at a time, the [`RolloutLimits`], the time. Out: [`RolloutStep`]s. Always holds: no restart
//! exceeds the limits; the cost of a change is that of one workload; a write counts as done before the watch
//! shows its version.

mod progress_clock;
mod scheduled_workload;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;

use self::{
    progress_clock::{ProgressClock, age, later},
    scheduled_workload::{ScheduledWorkload, SentWrite, health},
};
use super::{
    assess::{
        annotations::{LONGEST_MESSAGE, RolloutState},
        workload_state::{
            Assessment, FailureWeight, Health, InProgress, ProgressMarks, SkipReason, WorkloadFailure, WorkloadState,
        },
    },
    step::{RolloutStep, StepAction},
    totals::RolloutTotals,
};
use crate::{api::linkerd_config::RolloutPods, cluster::index::workload_key::WorkloadKey, text::truncated};

/// Number of consecutive failed writes that the status reports. Fewer are normal: a write fails if its workload has
/// changed.
const REPORTED_FAILURES: u32 = 3;
/// How long to wait until the watch shows our own write.
const SENT_IS_SEEN: Duration = Duration::from_secs(30);

/// The state of all assessed workloads, and the writes to them.
#[derive(Default)]
pub struct RolloutSchedule {
    workloads: HashMap<WorkloadKey, ScheduledWorkload>,
    pub totals: RolloutTotals,
    /// Workloads in progress, and those whose restart for an older target is not complete.
    in_progress: BTreeSet<WorkloadKey>,
    /// Pending workloads by namespace, so that a namespace that has reached its limit is skipped as a whole.
    pending: BTreeMap<Arc<str>, BTreeSet<WorkloadKey>>,
    pub failed: BTreeMap<WorkloadKey, WorkloadFailure>,
    /// Workloads that are skipped because they were not healthy before their restart.
    pub unhealthy: BTreeSet<WorkloadKey>,
    /// A DaemonSet that waits for nodes for longer than the deadline, and what is missing.
    pub stalled: Option<(WorkloadKey, String)>,
    /// Writes that failed, and the times of their retries.
    refused: HashMap<WorkloadKey, RefusedWrite>,
    last_start: Option<Timestamp>,
    /// When this term of leadership began.
    term_began: Option<Timestamp>,
}

struct RefusedWrite {
    count: u32,
    until: Timestamp,
    message: String,
    /// Whether the write may have succeeded nevertheless.
    outcome_unknown: bool,
}

/// The limits of the rollout at one point in time.
#[derive(Clone, Copy, Debug)]
pub struct RolloutLimits {
    /// Whether restarts may begin at all.
    pub may_start: bool,
    /// Whether injectors use the configuration of the target, and new proxies can connect to all others.
    pub may_inject: bool,
    pub at_once: usize,
    pub at_once_in_namespace: usize,
    pub interval: Duration,
    pub soak: Duration,
    pub deadline: Duration,
}

/// The steps that are due, and when to check again if nothing changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NextSteps {
    pub steps: Vec<RolloutStep>,
    pub look_again: Option<Timestamp>,
}

// === impl RolloutSchedule ===

impl RolloutSchedule {
    /// Whether the workload was assessed and is part of the mesh.
    pub fn knows(&self, workload: &WorkloadKey) -> bool {
        self.workloads.contains_key(workload)
    }

    pub fn workloads(&self) -> impl Iterator<Item = &WorkloadKey> {
        self.workloads.keys()
    }

    pub fn in_progress(&self) -> impl Iterator<Item = &WorkloadKey> {
        self.in_progress.iter()
    }

    pub fn state(&self, workload: &WorkloadKey) -> Option<&WorkloadState> {
        self.workloads.get(workload).map(|entry| &entry.assessment.state)
    }

    /// Whether a pending workload could be restarted.
    pub fn is_startable(&self) -> bool {
        let is_refused =
            |workload| self.refused.get(workload).is_some_and(|refused| refused.count >= REPORTED_FAILURES);
        self.pending.values().flatten().any(|workload| !is_refused(workload))
    }

    /// Returns by how much the longest deadline of a restart in progress exceeds that of the rollout.
    pub fn longest_extension(&self, deadline: Duration) -> Duration {
        let in_progress = self.in_progress.iter().filter_map(|workload| self.workloads.get(workload));
        in_progress.map(|entry| entry.extension(deadline)).max().unwrap_or_default()
    }

    /// Returns one of the workloads whose writes fail, and the error.
    pub fn refused(&self) -> Option<(&WorkloadKey, &str)> {
        let mut refused = self.refused.iter().filter(|(_, refused)| refused.count >= REPORTED_FAILURES);
        refused.next().map(|(workload, refused)| (workload, refused.message.as_str()))
    }

    /// Whether the watch has not shown our last write yet.
    pub fn is_unseen(&self, workload: &WorkloadKey, version: &str, now: Timestamp) -> bool {
        let sent = self.workloads.get(workload).and_then(|entry| entry.sent);
        let Some(sent) = sent else { return false };
        let is_recent = age(sent.at, now) < SENT_IS_SEEN;
        is_recent && version.parse::<u64>().unwrap_or_default() < sent.version
    }

    /// Updates the state of a workload. A workload that was deleted or has no Pods of the mesh is removed.
    pub fn set(&mut self, workload: &WorkloadKey, assessment: Option<Assessment>, now: Timestamp) {
        let known = self.remove(workload);
        let of_interest = |it: &Assessment| it.state != WorkloadState::Unmeshed || it.pods != RolloutPods::default();
        let Some(mut assessment) = assessment.filter(of_interest) else {
            self.refused.remove(workload);
            return;
        };
        let same_health = known.as_ref().filter(|known| health(&known.assessment) == health(&assessment));
        let health_since = same_health.map_or(now, |known| known.health_since.min(now));
        if health(&assessment).is_none() && !matches!(assessment.state, WorkloadState::Pending(_)) {
            self.refused.remove(workload);
        }
        // Everyone who may change the workload can write these times: one in the future is ignored, and a later one
        // does not replace one that is known.
        let known_rolling = known.as_ref().and_then(|known| known.assessment.rolling);
        let rolling = assessment.rolling.filter(|since| *since <= now);
        assessment.rolling = rolling.map(|since| known_rolling.map_or(since, |known| known.min(since)));
        let known_state = known.as_ref().map(|known| &known.assessment.state);
        if let (Some(WorkloadState::Failed(before)), WorkloadState::Failed(failure)) =
            (known_state, &mut assessment.state)
            && failure.recovered
        {
            // The failure was real, so it counts until the workload has been healthy for its soak.
            failure.weight = before.weight;
        }
        let clock = match &mut assessment.state {
            WorkloadState::InProgress(in_progress) => {
                in_progress.since = in_progress.since.filter(|since| *since <= now);
                let known = known.and_then(|known| known.clock);
                let mut clock = known.unwrap_or_else(|| ProgressClock::derive(in_progress, now));
                clock.observe(in_progress, now);
                Some(clock)
            }
            WorkloadState::Failed(failure) => {
                failure.started = failure.started.filter(|started| *started <= now);
                None
            }
            _ => None,
        };
        self.insert(workload, ScheduledWorkload { assessment, health_since, clock, sent: None });
    }

    /// Records a step that was written. The workload has the state after the step until the watch shows `version`.
    pub fn record_sent(&mut self, step: &RolloutStep, version: &str, now: Timestamp) {
        self.refused.remove(&step.workload);
        let Some(mut entry) = self.remove(&step.workload) else { return };
        let in_progress = |state, retry| {
            let health = Health::Progressing("the restart was just written".to_owned());
            WorkloadState::InProgress(InProgress {
                state,
                since: Some(now),
                health,
                evict: None,
                retry,
                weight: FailureWeight::Reported,
                marks: ProgressMarks::default(),
                newest_pod: None,
                controlled: false,
            })
        };
        entry.assessment.state = match &step.action {
            StepAction::Start(start) => {
                self.last_start = Some(now);
                in_progress(RolloutState::Updating, start.value.clone())
            }
            StepAction::Retry(value) => in_progress(RolloutState::Retrying, value.clone()),
            StepAction::Revert => in_progress(RolloutState::RolledBack, String::new()),
            StepAction::Finish { .. } => WorkloadState::UpToDate,
            StepAction::Fail { reason, message, weight } => {
                let (reason, message) = ((*reason).to_owned(), message.clone());
                WorkloadState::Failed(WorkloadFailure {
                    reason,
                    message,
                    started: None,
                    weight: *weight,
                    recovered: false,
                })
            }
            StepAction::GiveUp => WorkloadState::Skipped(SkipReason::Reverted),
            StepAction::Evict(_) => entry.assessment.state.clone(),
        };
        match &step.action {
            StepAction::Start(_) | StepAction::Retry(_) | StepAction::Revert => {
                entry.assessment.rolling = Some(now);
                entry.clock = Some(ProgressClock::start(now));
            }
            StepAction::Finish { .. } | StepAction::Fail { .. } | StepAction::GiveUp => {
                entry.assessment.rolling = None;
                entry.clock = None;
            }
            StepAction::Evict(_) => entry.attempt_eviction(now),
        }
        entry.health_since = now;
        entry.sent = version.parse().ok().map(|version| SentWrite { version, at: now });
        self.insert(&step.workload, entry);
    }

    /// Records a step that could not be written. `backoff` returns the delay after a number of consecutive failures. If
    /// `outcome_unknown`, the write may have succeeded. Then the retry fails with a conflict, because its
    /// resourceVersion is outdated.
    pub fn record_failure(
        &mut self,
        workload: &WorkloadKey,
        message: String,
        outcome_unknown: bool,
        now: Timestamp,
        backoff: impl Fn(u32) -> Duration,
    ) {
        if let Some(entry) = self.workloads.get_mut(workload) {
            entry.attempt_eviction(now);
        }
        let message = truncated(message, LONGEST_MESSAGE);
        let count = self.refused.get(workload).map_or(0, |refused| refused.count) + 1;
        let until = later(now, backoff(count - 1));
        self.refused.insert(workload.clone(), RefusedWrite { count, until, message, outcome_unknown });
    }

    /// Starts a term of leadership, and forgets the writes of earlier terms.
    pub fn begin_term(&mut self, now: Timestamp) {
        for entry in self.workloads.values_mut() {
            (entry.sent, entry.clock, entry.assessment.rolling) = (None, None, None);
        }
        self.term_began = Some(now);
        self.refused.clear();
        self.last_start = None;
    }

    /// Returns the steps that are due within the limits.
    pub fn next(&mut self, limits: &RolloutLimits, now: Timestamp) -> NextSteps {
        // A start in the future was recorded by a clock that was ahead.
        self.last_start = self.last_start.map(|last| last.min(now));
        self.stalled = self.stalled(limits, now);
        let mut next = NextSteps::default();
        let recovered = self.failed.iter().filter(|(_, failure)| failure.recovered).map(|(workload, _)| workload);
        for workload in self.in_progress.iter().chain(recovered) {
            let Some(entry) = self.workloads.get(workload).filter(|entry| entry.sent.is_none()) else { continue };
            if let Some(until) = self.refused.get(workload).map(|refused| refused.until).filter(|until| now < *until) {
                next.wake(until);
                continue;
            }
            let refusal = self.refused.get(workload).map(|refused| refused.message.as_str());
            let action = entry.step(refusal, limits, now, &mut next);
            next.steps.extend(action.map(|action| RolloutStep { workload: workload.clone(), action }));
        }
        self.starts(limits, now, &mut next);
        next
    }

    /// Returns a DaemonSet that waits for nodes for longer than the deadline, and what is missing.
    fn stalled(&self, limits: &RolloutLimits, now: Timestamp) -> Option<(WorkloadKey, String)> {
        self.in_progress.iter().find_map(|workload| {
            let entry = self.workloads.get(workload)?;
            match &entry.assessment.state {
                WorkloadState::InProgress(InProgress { health: Health::WaitingForNodes(missing), .. })
                    if entry.due(limits) <= now =>
                {
                    Some((workload.clone(), missing.clone()))
                }
                _ => None,
            }
        })
    }

    fn starts(&self, limits: &RolloutLimits, now: Timestamp, next: &mut NextSteps) {
        if !limits.may_start {
            return;
        }
        let places = self.places(limits, now);
        let mut taken = places.len();
        let mut last_start = self.last_start.or_else(|| self.latest_start(now));
        for (namespace, waiting) in &self.pending {
            let mut here = places.iter().filter(|workload| workload.namespace == *namespace).count();
            // A workload whose previous restart is not complete counts against the limits already.
            let rolling = places.iter().copied().filter(|it| waiting.contains(*it)).map(|it| (it, false));
            let others = waiting.iter().filter(|it| !places.contains(it)).map(|it| (it, true));
            for (workload, is_new) in rolling.chain(others) {
                let more = usize::from(is_new);
                // A workload that was complete and is incomplete again may exceed the limit.
                if taken + more > limits.at_once || here + more > limits.at_once_in_namespace {
                    break;
                }
                if let Some(refused) = self.refused.get(workload).filter(|refused| now < refused.until) {
                    next.wake(refused.until);
                    continue;
                }
                if let Some(due) = last_start.map(|last| later(last, limits.interval)).filter(|due| now < *due) {
                    next.wake(due);
                    return;
                }
                let Some(WorkloadState::Pending(start)) = self.workloads.get(workload).map(|it| &it.assessment.state)
                else {
                    continue;
                };
                next.steps.push(RolloutStep { workload: workload.clone(), action: StepAction::Start(start.clone()) });
                last_start = Some(now);
                taken += more;
                here += more;
            }
        }
    }

    /// Returns the workloads that count against the limits. A restart for an older target counts until its deadline,
    /// and so does a DaemonSet that waits for nodes.
    fn places(&self, limits: &RolloutLimits, now: Timestamp) -> BTreeSet<&WorkloadKey> {
        let counts = |workload: &&WorkloadKey| {
            let Some(entry) = self.workloads.get(*workload) else { return false };
            match &entry.assessment.state {
                WorkloadState::InProgress(InProgress { health: Health::WaitingForNodes(_), .. }) => {
                    now < entry.due(limits)
                }
                WorkloadState::InProgress(_) => true,
                _ => entry.assessment.rolling.is_some_and(|since| now < later(since, entry.deadline(limits))),
            }
        };
        let open = self.refused.iter().filter(|(_, refused)| refused.outcome_unknown).map(|(workload, _)| workload);
        self.in_progress.iter().filter(counts).chain(open).collect()
    }

    /// Returns the last start of earlier terms of leadership. It is not later than the beginning of this term.
    fn latest_start(&self, now: Timestamp) -> Option<Timestamp> {
        let latest = self.term_began.unwrap_or(now);
        let since = |workload| {
            let assessment = &self.workloads.get(workload)?.assessment;
            match &assessment.state {
                WorkloadState::InProgress(in_progress) => in_progress.since,
                _ => assessment.rolling,
            }
        };
        self.in_progress.iter().filter_map(since).filter(|since| *since <= latest).max()
    }

    fn insert(&mut self, workload: &WorkloadKey, entry: ScheduledWorkload) {
        self.totals.add(&entry.assessment, 1);
        match &entry.assessment.state {
            WorkloadState::Pending(_) => {
                self.pending.entry(Arc::clone(&workload.namespace)).or_default().insert(workload.clone());
            }
            WorkloadState::Failed(failure) => _ = self.failed.insert(workload.clone(), failure.clone()),
            WorkloadState::Skipped(SkipReason::Unhealthy) => _ = self.unhealthy.insert(workload.clone()),
            _ => {}
        }
        if matches!(entry.assessment.state, WorkloadState::InProgress(_)) || entry.assessment.rolling.is_some() {
            self.in_progress.insert(workload.clone());
        }
        self.workloads.insert(workload.clone(), entry);
    }

    fn remove(&mut self, workload: &WorkloadKey) -> Option<ScheduledWorkload> {
        let entry = self.workloads.remove(workload)?;
        self.totals.add(&entry.assessment, -1);
        self.failed.remove(workload);
        self.unhealthy.remove(workload);
        if let Some(waiting) = self.pending.get_mut(&workload.namespace) {
            waiting.remove(workload);
            if waiting.is_empty() {
                self.pending.remove(&workload.namespace);
            }
        }
        self.in_progress.remove(workload);
        Some(entry)
    }
}

// === impl NextSteps ===

impl NextSteps {
    pub(super) fn wake_later(&mut self, at: Timestamp, now: Timestamp) {
        if now < at {
            self.wake(at);
        }
    }

    fn wake(&mut self, at: Timestamp) {
        self.look_again = Some(self.look_again.map_or(at, |known| known.min(at)));
    }
}

#[cfg(test)]
mod tests;
