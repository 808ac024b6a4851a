//! Publishes the progress of the rollout to the controller, which writes it into the status, and to the metrics.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::progress::RolloutProgress;
use crate::{api::NamespacedName, queue::WorkQueue};

/// Minimum interval between two updates of only the counts in the status.
const COUNTS_INTERVAL: Duration = Duration::from_secs(1);

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

    fn set(&self, progress: Option<Arc<RolloutProgress>>) {
        *self.0.lock() = progress;
    }
}

// === impl ProgressPublisher ===

impl ProgressPublisher {
    /// `queue` is the controller's queue of LinkerdConfigs.
    pub(super) fn new(queue: &Arc<WorkQueue>, latest: Arc<LatestProgress>) -> Self {
        Self { queue: Arc::clone(queue), latest, published: None }
    }

    /// Publishes a progress. Changes of only the counts are published at most once per [`COUNTS_INTERVAL`]. Returns
    /// when a deferred change is due.
    pub(super) fn publish(&mut self, progress: RolloutProgress) -> Option<Instant> {
        let now = Instant::now();
        if let Some((last, at)) = &self.published {
            if **last == progress {
                return None;
            }
            let urgent = |it: &RolloutProgress| {
                (it.phase, it.complete.reason, it.workloads.failed, it.suspects, it.requires_rollback, it.next_window)
            };
            let due = *at + COUNTS_INTERVAL;
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
