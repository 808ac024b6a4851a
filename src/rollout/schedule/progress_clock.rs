//! The time of one restart without progress. Pure.
//!
//! Always holds: only our own writes and higher counts of the workload restart the clock; times that others can write
//! do not extend it; it does not run while the workload is healthy.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::rollout::assess::workload_state::{Health, InProgress, ProgressMarks};

/// A longer pause between two evictions means that evictions were not allowed meanwhile. It exceeds the longest backoff
/// of a write.
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProgressClock {
    /// The highest counts; `None` before the workload is assessed.
    highest: Option<ProgressMarks>,
    /// The time without progress before `from`.
    spent: Duration,
    from: Timestamp,
    is_running: bool,
    was_healthy: bool,
    /// The first and the last attempt to evict a Pod since the last progress.
    evictions: Option<(Timestamp, Timestamp)>,
}

// === impl ProgressClock ===

impl ProgressClock {
    /// Starts the clock for a restart that is written now.
    pub(super) fn start(now: Timestamp) -> Self {
        Self { highest: None, spent: Duration::ZERO, from: now, is_running: true, was_healthy: false, evictions: None }
    }

    /// Derives the clock of a restart that another leader began, from its start and its newest Pod.
    pub(super) fn derive(in_progress: &InProgress, now: Timestamp) -> Self {
        let past = [in_progress.since, in_progress.newest_pod].into_iter().flatten().filter(|time| *time <= now);
        Self::start(past.max().unwrap_or(now))
    }

    pub(super) fn observe(&mut self, in_progress: &InProgress, now: Timestamp) {
        let is_first = self.highest.is_none();
        let highest = self.highest.unwrap_or(in_progress.marks);
        let advanced = in_progress.marks.exceed(&highest);
        self.highest = Some(in_progress.marks.higher(&highest));
        let is_running = matches!(in_progress.health, Health::Progressing(_) | Health::WaitingForNodes(_));
        let is_healthy = in_progress.health == Health::Healthy;
        if advanced || is_healthy && !self.was_healthy {
            (self.spent, self.from, self.evictions) = (Duration::ZERO, now, None);
        } else if is_running && !self.is_running {
            self.from = now;
        } else if !is_running && self.is_running && !is_first {
            self.spent = self.spent.saturating_add(age(self.from, now));
        }
        self.is_running = is_running;
        self.was_healthy |= is_healthy;
    }

    /// Records an attempt to evict a Pod.
    pub(super) fn attempt_eviction(&mut self, now: Timestamp) {
        let first = match self.evictions {
            Some((first, last)) if age(last, now) <= LONGEST_PAUSE => first,
            _ => now,
        };
        self.evictions = Some((first, now));
    }

    /// Returns when the deadline is over unless the workload makes progress.
    pub(super) fn due(&self, deadline: Duration) -> Timestamp {
        later(self.from, deadline.saturating_sub(self.spent))
    }

    /// Whether attempts to evict a Pod had no effect for the whole deadline.
    pub(super) fn is_eviction_overdue(&self, deadline: Duration) -> bool {
        self.evictions.is_some_and(|(first, last)| age(first, last) >= deadline)
    }
}

pub(super) fn later(time: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

pub(super) fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}
