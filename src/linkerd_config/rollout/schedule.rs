//! The schedule of a rollout: the state of every workload, and the next steps. Pure.
//!
//! In: one [`Assessment`] at a time, the [`RolloutLimits`], the time. Out: [`RolloutStep`]s. Always holds: no restart
//! exceeds the limits; the cost of a change is that of one workload; a write counts as done before the watch
//! shows its version.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    assess::{
        annotations::RolloutState,
        workload_state::{Assessment, Health, InProgress, WorkloadFailure, WorkloadState},
    },
    step::{RolloutStep, StepAction},
    totals::RolloutTotals,
};
use crate::{api::linkerd_config::RolloutPods, cluster::index::workload_key::WorkloadKey};

/// How long a contradiction between a workload and its Pods must last before it counts: they arrive through different
/// watches.
const SETTLED: Duration = Duration::from_secs(5);
/// Delay between the start of a Pod and the next eviction.
const EVICTION_PAUSE: Duration = Duration::from_secs(2);
/// Number of consecutive failed writes that the status reports. Fewer are normal: a write fails if its workload has
/// changed.
const REPORTED_FAILURES: u32 = 3;
/// How long to wait until the watch shows our own write.
const SENT_IS_SEEN: Duration = Duration::from_secs(30);

#[derive(Default)]
pub struct RolloutSchedule {
    workloads: HashMap<WorkloadKey, ScheduledWorkload>,
    pub totals: RolloutTotals,
    /// Workloads in progress, and those whose restart for an older target is not complete.
    in_progress: BTreeSet<WorkloadKey>,
    /// Pending workloads by namespace, so that a namespace that has reached its limit is skipped as a whole.
    pending: BTreeMap<Arc<str>, BTreeSet<WorkloadKey>>,
    pub failed: BTreeMap<WorkloadKey, WorkloadFailure>,
    /// Writes that failed, and the times of their retries.
    refused: HashMap<WorkloadKey, RefusedWrite>,
    last_start: Option<Timestamp>,
}

struct ScheduledWorkload {
    assessment: Assessment,
    /// When the health of the workload last changed.
    health_since: Timestamp,
    sent: Option<SentWrite>,
}

/// One of our writes, and the resourceVersion that it created.
#[derive(Clone, Copy)]
struct SentWrite {
    version: u64,
    at: Timestamp,
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
        let Some(assessment) = assessment.filter(of_interest) else {
            self.refused.remove(workload);
            return;
        };
        let same_health = known.as_ref().filter(|known| health(&known.assessment) == health(&assessment));
        let health_since = same_health.map_or(now, |known| known.health_since.min(now));
        if !matches!(assessment.state, WorkloadState::Pending(_) | WorkloadState::InProgress(_)) {
            self.refused.remove(workload);
        }
        self.insert(workload, ScheduledWorkload { assessment, health_since, sent: None });
    }

    /// Records a step that was written. The workload has the state after the step until the watch shows `version`.
    pub fn record_sent(&mut self, step: &RolloutStep, version: &str, now: Timestamp) {
        self.refused.remove(&step.workload);
        let Some(mut entry) = self.remove(&step.workload) else { return };
        let in_progress = |state, retry| {
            let health = Health::Progressing("the restart was just written".to_owned());
            WorkloadState::InProgress(InProgress { state, since: Some(now), health, evict: None, retry })
        };
        entry.assessment.state = match &step.action {
            StepAction::Start(start) => {
                self.last_start = Some(now);
                in_progress(RolloutState::Updating, start.value.clone())
            }
            StepAction::Retry(value) => in_progress(RolloutState::Retrying, value.clone()),
            StepAction::Revert => in_progress(RolloutState::RolledBack, String::new()),
            StepAction::Finish { .. } => WorkloadState::UpToDate,
            StepAction::Fail { reason, message } => {
                let (reason, message) = ((*reason).to_owned(), message.clone());
                WorkloadState::Failed(WorkloadFailure { reason, message, started: None })
            }
            StepAction::Evict(_) => entry.assessment.state.clone(),
        };
        if let StepAction::Finish { .. } | StepAction::Fail { .. } = &step.action {
            entry.assessment.rolling = None;
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
        let count = self.refused.get(workload).map_or(0, |refused| refused.count) + 1;
        let until = later(now, backoff(count - 1));
        self.refused.insert(workload.clone(), RefusedWrite { count, until, message, outcome_unknown });
    }

    /// Starts a term of leadership, and forgets the writes of earlier terms.
    pub fn begin_term(&mut self) {
        for entry in self.workloads.values_mut() {
            entry.sent = None;
        }
        self.refused.clear();
        self.last_start = None;
    }

    pub fn next(&self, limits: &RolloutLimits, now: Timestamp) -> NextSteps {
        let mut next = NextSteps::default();
        for workload in &self.in_progress {
            let Some(entry) = self.workloads.get(workload).filter(|entry| entry.sent.is_none()) else { continue };
            let WorkloadState::InProgress(in_progress) = &entry.assessment.state else { continue };
            if let Some(until) = self.refused.get(workload).map(|refused| refused.until).filter(|until| now < *until) {
                next.wake(until);
                continue;
            }
            let has_lasted = |for_: Duration, next: &mut NextSteps| {
                let due = later(entry.health_since, for_);
                let is_over = now >= due;
                if !is_over {
                    next.wake(due);
                }
                is_over
            };
            let action = match &in_progress.health {
                Health::Healthy => {
                    has_lasted(limits.soak, &mut next).then_some(StepAction::Finish { since: in_progress.since })
                }
                Health::Evicting => match &in_progress.evict {
                    Some(pod) if limits.may_inject && has_lasted(EVICTION_PAUSE, &mut next) => {
                        Some(StepAction::Evict(Arc::clone(pod)))
                    }
                    _ => None,
                },
                Health::Progressing(missing) => {
                    let due = later(in_progress.since.unwrap_or(entry.health_since), limits.deadline);
                    next.wake(due);
                    match (now >= due, &in_progress.evict) {
                        (true, _) => {
                            let message = missing.clone();
                            Some(StepAction::Fail { reason: "ProgressDeadlineExceeded", message })
                        }
                        (false, Some(pod)) if limits.may_inject && has_lasted(EVICTION_PAUSE, &mut next) => {
                            Some(StepAction::Evict(Arc::clone(pod)))
                        }
                        (false, _) => None,
                    }
                }
                Health::Uninjected(pod) => {
                    let message =
                        format!("Pod {pod} started without a proxy: check the proxy injector and its webhook");
                    Some(StepAction::Fail { reason: "Uninjected", message })
                }
                Health::StillOutdated | Health::Reverted if !has_lasted(SETTLED, &mut next) => None,
                Health::StillOutdated | Health::Reverted if in_progress.state == RolloutState::Updating => {
                    limits.may_inject.then(|| StepAction::Retry(in_progress.retry.clone()))
                }
                Health::StillOutdated | Health::Reverted => {
                    let message =
                        "its new Pods are out of date after two restarts: find what else creates or changes them";
                    Some(StepAction::Fail { reason: "StillOutdated", message: message.to_owned() })
                }
                Health::ToBeReverted => limits.may_inject.then_some(StepAction::Revert),
            };
            next.steps.extend(action.map(|action| RolloutStep { workload: workload.clone(), action }));
        }
        self.starts(limits, now, &mut next);
        next
    }

    fn starts(&self, limits: &RolloutLimits, now: Timestamp, next: &mut NextSteps) {
        if !limits.may_start {
            return;
        }
        let places = self.places(limits, now);
        let mut taken = places.len();
        let mut last_start = self.last_start.or_else(|| self.latest_start());
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

    /// Returns the workloads that count against the limits. A restart for an older target counts until its deadline.
    fn places(&self, limits: &RolloutLimits, now: Timestamp) -> BTreeSet<&WorkloadKey> {
        let counts = |workload: &&WorkloadKey| {
            let Some(Assessment { state, rolling, .. }) = self.workloads.get(*workload).map(|it| &it.assessment) else {
                return false;
            };
            let is_late = || rolling.is_none_or(|since| later(since, limits.deadline) <= now);
            matches!(state, WorkloadState::InProgress(_)) || !is_late()
        };
        let open = self.refused.iter().filter(|(_, refused)| refused.outcome_unknown).map(|(workload, _)| workload);
        self.in_progress.iter().filter(counts).chain(open).collect()
    }

    fn latest_start(&self) -> Option<Timestamp> {
        let since = |workload| {
            let assessment = &self.workloads.get(workload)?.assessment;
            match &assessment.state {
                WorkloadState::InProgress(in_progress) => in_progress.since,
                _ => assessment.rolling,
            }
        };
        self.in_progress.iter().filter_map(since).max()
    }

    fn insert(&mut self, workload: &WorkloadKey, entry: ScheduledWorkload) {
        self.totals.add(&entry.assessment, 1);
        match &entry.assessment.state {
            WorkloadState::Pending(_) => {
                self.pending.entry(Arc::clone(&workload.namespace)).or_default().insert(workload.clone());
            }
            WorkloadState::Failed(failure) => _ = self.failed.insert(workload.clone(), failure.clone()),
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

fn health(assessment: &Assessment) -> Option<std::mem::Discriminant<Health>> {
    match &assessment.state {
        WorkloadState::InProgress(in_progress) => Some(std::mem::discriminant(&in_progress.health)),
        _ => None,
    }
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

// === impl NextSteps ===

impl NextSteps {
    fn wake(&mut self, at: Timestamp) {
        self.look_again = Some(self.look_again.map_or(at, |known| known.min(at)));
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
