//! All workloads and how they stand, and what is to be done next. Pure.
//!
//! In: one [`Assessment`] at a time, the [`Limits`], the time. Out: [`Step`]s. Always holds: no more workloads are in flight than
//! the limits allow; a change costs what its workload costs; what was sent counts as done until the watch shows more.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    assess::{Assessment, Failure, Flight, Health, Skip, Standing, Start},
    census,
    state::RolloutState,
};
use crate::{
    api::linkerd_config::{RolloutPods, RolloutWorkloads},
    cluster::index::workload_key::WorkloadKey,
};

/// What a controller says of its workload and what the Pods say arrive by different watches: a contradiction has to last.
const SETTLED: Duration = Duration::from_secs(5);
/// Between one Pod that came up and the eviction of the next.
const EVICTION_PAUSE: Duration = Duration::from_secs(2);
/// A write that failed so often in a row is told: a workload that changes while it is looked at makes one fail.
const TOLD: u32 = 3;
/// A write of ours that the watch does not show by then never will.
const SENT_IS_SEEN: Duration = Duration::from_secs(30);

#[derive(Default)]
pub struct Board {
    workloads: HashMap<WorkloadKey, Entry>,
    pub totals: Totals,
    /// And those that roll for something of old.
    in_flight: BTreeSet<WorkloadKey>,
    /// Those that wait, by namespace: one that is full is passed over as a whole.
    pending: BTreeMap<Arc<str>, BTreeSet<WorkloadKey>>,
    pub failed: BTreeMap<WorkloadKey, Failure>,
    /// What could not be written, and when it is tried again.
    refused: HashMap<WorkloadKey, Refused>,
    last_start: Option<Timestamp>,
}

struct Entry {
    assessment: Assessment,
    /// Since when its health is what it is.
    health_since: Timestamp,
    sent: Option<Sent>,
}

/// A write of ours, by the version that it made.
#[derive(Clone, Copy)]
struct Sent {
    version: u64,
    at: Timestamp,
}

struct Refused {
    count: u32,
    until: Timestamp,
    message: String,
    /// It may have been written all the same.
    is_open: bool,
}

/// Sums over all workloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub pods: RolloutPods,
    pub suspects: i64,
    pub workloads: RolloutWorkloads,
    pub skipped: BTreeMap<Skip, i64>,
    /// Of the selected ones.
    pub left_alone: i64,
    pub blocked: i64,
    pub for_trust_roots: i64,
    pub uninjected: i64,
}

/// How far it may go now.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Whether restarts may begin at all.
    pub may_start: bool,
    /// Whether injectors give Pods what is wanted.
    pub may_inject: bool,
    pub at_once: usize,
    pub at_once_in_namespace: usize,
    pub interval: Duration,
    pub soak: Duration,
    pub deadline: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub workload: WorkloadKey,
    pub action: Action,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Start(Start),
    Retry(String),
    Evict(Arc<str>),
    /// It runs with what is wanted.
    Finish {
        since: Option<Timestamp>,
    },
    Fail {
        reason: &'static str,
        message: String,
    },
    /// Its template is put back to what it was before.
    Revert,
}

/// What is to be done, and when to look again though nothing happened.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Next {
    pub steps: Vec<Step>,
    pub look_again: Option<Timestamp>,
}

// === impl Board ===

impl Board {
    pub fn knows(&self, workload: &WorkloadKey) -> bool {
        self.workloads.contains_key(workload)
    }

    pub fn workloads(&self) -> impl Iterator<Item = &WorkloadKey> {
        self.workloads.keys()
    }

    pub fn in_flight(&self) -> impl Iterator<Item = &WorkloadKey> {
        self.in_flight.iter()
    }

    /// Whether something waits that could begin.
    pub fn is_startable(&self) -> bool {
        let is_refused = |workload| self.refused.get(workload).is_some_and(|refused| refused.count >= TOLD);
        self.pending.values().flatten().any(|workload| !is_refused(workload))
    }

    /// One of the workloads that could not be written, and why.
    pub fn refused(&self) -> Option<(&WorkloadKey, &str)> {
        let mut refused = self.refused.iter().filter(|(_, refused)| refused.count >= TOLD);
        refused.next().map(|(workload, refused)| (workload, refused.message.as_str()))
    }

    /// Whether the watch has yet to show what we wrote.
    pub fn is_unseen(&self, workload: &WorkloadKey, version: &str, now: Timestamp) -> bool {
        let sent = self.workloads.get(workload).and_then(|entry| entry.sent);
        let Some(sent) = sent else { return false };
        let is_recent = age(sent.at, now) < SENT_IS_SEEN;
        is_recent && version.parse::<u64>().unwrap_or_default() < sent.version
    }

    /// Puts a workload in its place. One that is gone, or of no interest, is forgotten.
    pub fn set(&mut self, workload: &WorkloadKey, assessment: Option<Assessment>, now: Timestamp) {
        let known = self.remove(workload);
        let of_interest = |it: &Assessment| it.standing != Standing::Unmeshed || it.pods != RolloutPods::default();
        let Some(assessment) = assessment.filter(of_interest) else {
            self.refused.remove(workload);
            return;
        };
        let same_health = known.as_ref().filter(|known| health(&known.assessment) == health(&assessment));
        let health_since = same_health.map_or(now, |known| known.health_since.min(now));
        if !matches!(assessment.standing, Standing::Pending(_) | Standing::InFlight(_)) {
            self.refused.remove(workload);
        }
        self.insert(workload, Entry { assessment, health_since, sent: None });
    }

    /// Something was written: it counts as in flight, or as not any more, until the watch shows this version.
    pub fn sent(&mut self, step: &Step, version: &str, now: Timestamp) {
        self.refused.remove(&step.workload);
        let Some(mut entry) = self.remove(&step.workload) else { return };
        let in_flight = |state, retry| {
            let health = Health::Progressing("it was restarted just now".to_owned());
            Standing::InFlight(Flight { state, since: Some(now), health, evict: None, retry })
        };
        entry.assessment.standing = match &step.action {
            Action::Start(start) => {
                self.last_start = Some(now);
                in_flight(RolloutState::Updating, start.value.clone())
            }
            Action::Retry(value) => in_flight(RolloutState::Retrying, value.clone()),
            Action::Revert => in_flight(RolloutState::RolledBack, String::new()),
            Action::Finish { .. } => Standing::UpToDate,
            Action::Fail { reason, message } => {
                let (reason, message) = ((*reason).to_owned(), message.clone());
                Standing::Failed(Failure { reason, message, started: None })
            }
            Action::Evict(_) => entry.assessment.standing.clone(),
        };
        if let Action::Finish { .. } | Action::Fail { .. } = &step.action {
            entry.assessment.rolling = None;
        }
        entry.health_since = now;
        entry.sent = version.parse().ok().map(|version| Sent { version, at: now });
        self.insert(&step.workload, entry);
    }

    /// It could not be written: not again before a while. `backoff` says how long after so many in a row. `is_open`: nobody knows
    /// whether it was; trying again tells, because what was looked at would be another then.
    pub fn refuse(
        &mut self,
        workload: &WorkloadKey,
        message: String,
        is_open: bool,
        now: Timestamp,
        backoff: impl Fn(u32) -> Duration,
    ) {
        let count = self.refused.get(workload).map_or(0, |refused| refused.count) + 1;
        let until = later(now, backoff(count - 1));
        self.refused.insert(workload.clone(), Refused { count, until, message, is_open });
    }

    /// Another term: what was sent in the last one is nothing to go by.
    pub fn begin_term(&mut self) {
        for entry in self.workloads.values_mut() {
            entry.sent = None;
        }
        self.refused.clear();
        self.last_start = None;
    }

    pub fn next(&self, limits: &Limits, now: Timestamp) -> Next {
        let mut next = Next::default();
        for workload in &self.in_flight {
            let Some(entry) = self.workloads.get(workload).filter(|entry| entry.sent.is_none()) else { continue };
            let Standing::InFlight(flight) = &entry.assessment.standing else { continue };
            if let Some(until) = self.refused.get(workload).map(|refused| refused.until).filter(|until| now < *until) {
                next.wake(until);
                continue;
            }
            let held = |for_: Duration, next: &mut Next| {
                let due = later(entry.health_since, for_);
                let is_over = now >= due;
                if !is_over {
                    next.wake(due);
                }
                is_over
            };
            let action = match &flight.health {
                Health::Healthy => held(limits.soak, &mut next).then_some(Action::Finish { since: flight.since }),
                Health::Evicting => match &flight.evict {
                    Some(pod) if limits.may_inject && held(EVICTION_PAUSE, &mut next) => {
                        Some(Action::Evict(Arc::clone(pod)))
                    }
                    _ => None,
                },
                Health::Progressing(missing) => {
                    let due = later(flight.since.unwrap_or(entry.health_since), limits.deadline);
                    next.wake(due);
                    match (now >= due, &flight.evict) {
                        (true, _) => {
                            let message = missing.clone();
                            Some(Action::Fail { reason: "ProgressDeadlineExceeded", message })
                        }
                        (false, Some(pod)) if held(EVICTION_PAUSE, &mut next) => Some(Action::Evict(Arc::clone(pod))),
                        (false, _) => None,
                    }
                }
                Health::Uninjected(pod) => {
                    let message = format!("Pod {pod} came up without a proxy: see the injector and its webhook");
                    Some(Action::Fail { reason: "Uninjected", message })
                }
                Health::StillOutdated | Health::Reverted if !held(SETTLED, &mut next) => None,
                Health::StillOutdated | Health::Reverted if flight.state == RolloutState::Updating => {
                    limits.may_inject.then(|| Action::Retry(flight.retry.clone()))
                }
                Health::StillOutdated | Health::Reverted => {
                    let message = "its new Pods are out of date, twice: see what else makes or changes them";
                    Some(Action::Fail { reason: "StillOutdated", message: message.to_owned() })
                }
                Health::ToBeReverted => limits.may_inject.then_some(Action::Revert),
            };
            next.steps.extend(action.map(|action| Step { workload: workload.clone(), action }));
        }
        self.starts(limits, now, &mut next);
        next
    }

    fn starts(&self, limits: &Limits, now: Timestamp, next: &mut Next) {
        if !limits.may_start {
            return;
        }
        let places = self.places(limits, now);
        let mut taken = places.len();
        let mut last_start = self.last_start.or_else(|| self.latest_start());
        for (namespace, waiting) in &self.pending {
            let mut here = places.iter().filter(|workload| workload.namespace == *namespace).count();
            // One that rolls has its place already.
            let rolling = places.iter().copied().filter(|it| waiting.contains(*it)).map(|it| (it, false));
            let others = waiting.iter().filter(|it| !places.contains(it)).map(|it| (it, true));
            for (workload, is_new) in rolling.chain(others) {
                let more = usize::from(is_new);
                // One that was done, and is not any more, may be one too many.
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
                let Some(Standing::Pending(start)) = self.workloads.get(workload).map(|it| &it.assessment.standing)
                else {
                    continue;
                };
                next.steps.push(Step { workload: workload.clone(), action: Action::Start(start.clone()) });
                last_start = Some(now);
                taken += more;
                here += more;
            }
        }
    }

    /// Those that are in flight; one that rolls for something of old has its place only as long as it may take.
    fn places(&self, limits: &Limits, now: Timestamp) -> BTreeSet<&WorkloadKey> {
        let counts = |workload: &&WorkloadKey| {
            let Some(Assessment { standing, rolling, .. }) = self.workloads.get(*workload).map(|it| &it.assessment)
            else {
                return false;
            };
            let is_late = || rolling.is_none_or(|since| later(since, limits.deadline) <= now);
            matches!(standing, Standing::InFlight(_)) || !is_late()
        };
        let open = self.refused.iter().filter(|(_, refused)| refused.is_open).map(|(workload, _)| workload);
        self.in_flight.iter().filter(counts).chain(open).collect()
    }

    fn latest_start(&self) -> Option<Timestamp> {
        let since = |workload| {
            let assessment = &self.workloads.get(workload)?.assessment;
            match &assessment.standing {
                Standing::InFlight(flight) => flight.since,
                _ => assessment.rolling,
            }
        };
        self.in_flight.iter().filter_map(since).max()
    }

    fn insert(&mut self, workload: &WorkloadKey, entry: Entry) {
        self.totals.add(&entry.assessment, 1);
        match &entry.assessment.standing {
            Standing::Pending(_) => {
                self.pending.entry(Arc::clone(&workload.namespace)).or_default().insert(workload.clone());
            }
            Standing::Failed(failure) => _ = self.failed.insert(workload.clone(), failure.clone()),
            _ => {}
        }
        if matches!(entry.assessment.standing, Standing::InFlight(_)) || entry.assessment.rolling.is_some() {
            self.in_flight.insert(workload.clone());
        }
        self.workloads.insert(workload.clone(), entry);
    }

    fn remove(&mut self, workload: &WorkloadKey) -> Option<Entry> {
        let entry = self.workloads.remove(workload)?;
        self.totals.add(&entry.assessment, -1);
        self.failed.remove(workload);
        if let Some(waiting) = self.pending.get_mut(&workload.namespace) {
            waiting.remove(workload);
            if waiting.is_empty() {
                self.pending.remove(&workload.namespace);
            }
        }
        self.in_flight.remove(workload);
        Some(entry)
    }
}

#[cfg(test)]
#[path = "board_tests.rs"]
mod tests;

fn health(assessment: &Assessment) -> Option<std::mem::Discriminant<Health>> {
    match &assessment.standing {
        Standing::InFlight(flight) => Some(std::mem::discriminant(&flight.health)),
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

// === impl Next ===

impl Next {
    fn wake(&mut self, at: Timestamp) {
        self.look_again = Some(self.look_again.map_or(at, |known| known.min(at)));
    }
}

// === impl Totals ===

impl Totals {
    fn add(&mut self, assessment: &Assessment, sign: i64) {
        let Assessment { pods, suspects, standing, rolling: _ } = assessment;
        census::add(&mut self.pods, pods, sign);
        self.suspects += sign * suspects;
        let workloads = &mut self.workloads;
        let skipped = match standing {
            Standing::Unmeshed | Standing::Unselected(_) | Standing::Observed => return,
            Standing::Untouchable(skip) => Some(skip),
            Standing::Skipped(skip) => {
                workloads.selected += sign;
                self.left_alone += sign;
                self.blocked += sign * i64::from(*skip == Skip::BlockedByPDB);
                Some(skip)
            }
            _ => {
                workloads.selected += sign;
                None
            }
        };
        match standing {
            Standing::UpToDate => workloads.updated += sign,
            Standing::InFlight(_) => workloads.updating += sign,
            Standing::Pending(start) => {
                workloads.pending += sign;
                self.for_trust_roots += sign * i64::from(start.for_trust_roots);
            }
            Standing::Failed(failure) => {
                workloads.failed += sign;
                self.uninjected += sign * i64::from(failure.reason == "Uninjected");
            }
            _ => {}
        }
        if let Some(skip) = skipped {
            workloads.skipped += sign;
            let count = self.skipped.entry(*skip).or_default();
            *count += sign;
            if *count == 0 {
                self.skipped.remove(skip);
            }
        }
    }
}
