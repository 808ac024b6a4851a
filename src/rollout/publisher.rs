//! Publishes the progress of the rollout to the controller, which writes it into the status, and to the metrics.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::progress::{RolloutPhase, RolloutProgress};
use crate::{api::NamespacedName, queue::WorkQueue};

/// Minimum interval between two updates of only the counts in the status, while workloads are restarted.
const COUNTS_INTERVAL: Duration = Duration::from_secs(1);
/// The same at rest: Pods that come and go in a busy cluster must not write the status all the time.
const COUNTS_INTERVAL_AT_REST: Duration = Duration::from_secs(10);

/// The latest published progress; `None` while this process does not act.
#[derive(Default)]
pub(super) struct LatestProgress(Mutex<Option<Arc<RolloutProgress>>>);

pub(super) struct ProgressPublisher {
    queue: Arc<WorkQueue>,
    latest: Arc<LatestProgress>,
    /// The progress that was published last, and when.
    published: Option<(Arc<RolloutProgress>, Instant)>,
}

// === impl LatestProgress ===

impl LatestProgress {
    pub(super) fn get(&self) -> Option<Arc<RolloutProgress>> {
        self.0.lock().clone()
    }

    pub(super) fn set(&self, progress: Option<Arc<RolloutProgress>>) {
        *self.0.lock() = progress;
    }
}

// === impl ProgressPublisher ===

impl ProgressPublisher {
    /// `queue` is the controller's queue of LinkerdConfigs.
    pub(super) fn new(queue: &Arc<WorkQueue>, latest: Arc<LatestProgress>) -> Self {
        Self { queue: Arc::clone(queue), latest, published: None }
    }

    /// Publishes a progress. Changes of only the counts are published at most once per [`COUNTS_INTERVAL`], at rest at
    /// most once per [`COUNTS_INTERVAL_AT_REST`]. Returns when a deferred change is due.
    pub(super) fn publish(&mut self, progress: RolloutProgress) -> Option<Instant> {
        let now = Instant::now();
        if let Some((last, at)) = &self.published {
            if **last == progress {
                return None;
            }
            let urgent = |it: &RolloutProgress| {
                let reasons = (it.phase, it.complete.reason, it.no_progress);
                let replaced = it.replaced.clone();
                (reasons, it.workloads.failed, it.suspects, it.requires_rollback, it.next_window, replaced, it.canary)
            };
            let restarts = progress.phase == RolloutPhase::Progressing || progress.workloads.updating > 0;
            let due = *at + if restarts { COUNTS_INTERVAL } else { COUNTS_INTERVAL_AT_REST };
            if last.target == progress.target && urgent(last) == urgent(&progress) && now < due {
                return Some(due);
            }
        }
        let progress = Arc::new(progress);
        let config = NamespacedName::new("", Arc::clone(&progress.target.config.name));
        self.latest.set(Some(Arc::clone(&progress)));
        self.published = Some((progress, now));
        self.queue.add([config]);
        None
    }

    /// Withdraws the progress, because this process does not act anymore.
    pub(super) fn clear(&mut self) {
        self.latest.set(None);
        self.published = None;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::{
        api::linkerd_config::{RolloutPods, RolloutWorkloads},
        rollout::{progress::rollout_progress, schedule::RolloutSchedule, testing::rollout_target},
    };

    fn progress(phase: RolloutPhase, current: i64, failed: i64) -> RolloutProgress {
        let target = Arc::new(rollout_target(&json!({})));
        RolloutProgress {
            phase,
            pods: RolloutPods { meshed: current, current, ..RolloutPods::default() },
            workloads: RolloutWorkloads { selected: 9, failed, ..RolloutWorkloads::default() },
            ..rollout_progress(&RolloutSchedule::default(), &target, None, None)
        }
    }

    /// Publishes another number of Pods every 100 ms for a minute, and returns the number of updates of the status.
    async fn updates_in_a_minute(phase: RolloutPhase) -> usize {
        let queue = WorkQueue::new("test", &prometheus::Registry::new()).unwrap();
        let mut publisher = ProgressPublisher::new(&queue, Arc::default());
        let mut counts = BTreeSet::new();
        for current in 0..600 {
            publisher.publish(progress(phase, current, 0));
            counts.insert(publisher.latest.get().unwrap().pods.current);
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        counts.len()
    }

    #[tokio::test(start_paused = true)]
    async fn at_rest_counts_alone_update_the_status_every_ten_seconds() {
        assert_eq!(updates_in_a_minute(RolloutPhase::Complete).await, 6);
        assert_eq!(updates_in_a_minute(RolloutPhase::Progressing).await, 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deferred_count_has_a_time_and_a_failure_is_published_at_once() {
        let queue = WorkQueue::new("test", &prometheus::Registry::new()).unwrap();
        let mut publisher = ProgressPublisher::new(&queue, Arc::default());
        let start = Instant::now();
        assert_eq!(publisher.publish(progress(RolloutPhase::Complete, 1, 0)), None);
        let due = publisher.publish(progress(RolloutPhase::Complete, 2, 0));
        assert_eq!(due, Some(start + Duration::from_secs(10)));
        assert_eq!(publisher.latest.get().unwrap().pods.current, 1);
        assert_eq!(publisher.publish(progress(RolloutPhase::Complete, 3, 1)), None);
        assert_eq!(publisher.latest.get().unwrap().pods.current, 3);
    }
}
