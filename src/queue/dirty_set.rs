//! Workloads that rollouts have to look at, waiting for them.
//!
//! In: marks from the watches, from anybody who wants one looked at. Out: all that were marked, at once. Always holds: a workload
//! waits at most once, so there are never more entries than workloads that ever were between two looks; a mark made after
//! [`DirtyWorkloads::next`] returned is in the next batch.

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::cluster::index::workload_key::WorkloadRef;

#[derive(Default)]
pub struct DirtyWorkloads {
    waiting: Mutex<HashSet<WorkloadRef>>,
    marked: Notify,
}

// === impl DirtyWorkloads ===

impl DirtyWorkloads {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn mark(&self, workloads: impl IntoIterator<Item = WorkloadRef>) {
        let mut waiting = self.waiting.lock();
        waiting.extend(workloads);
        let any = !waiting.is_empty();
        drop(waiting);
        if any {
            self.marked.notify_one();
        }
    }

    /// Waits until a workload is marked.
    pub async fn next(&self) -> HashSet<WorkloadRef> {
        loop {
            let batch = std::mem::take(&mut *self.waiting.lock());
            if !batch.is_empty() {
                return batch;
            }
            // `notify_one` keeps its permit, so a mark between the look and the wait is not missed.
            self.marked.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn workload(name: &str) -> WorkloadRef {
        WorkloadRef::new("ns", "Deployment", name)
    }

    #[tokio::test]
    async fn a_workload_marked_many_times_is_in_one_batch_once() {
        let dirty = DirtyWorkloads::new();
        dirty.mark([]);
        assert!(dirty.next().now_or_never().is_none());
        dirty.mark([workload("a"), workload("a"), workload("b")]);
        dirty.mark([workload("a")]);
        assert_eq!(dirty.next().await, HashSet::from([workload("a"), workload("b")]));
        assert!(dirty.next().now_or_never().is_none());
        dirty.mark([workload("a")]);
        assert_eq!(dirty.next().await, HashSet::from([workload("a")]));
    }

    #[tokio::test]
    async fn a_mark_wakes_who_waits() {
        let dirty = DirtyWorkloads::new();
        let (batch, ()) = tokio::join!(dirty.next(), async {
            tokio::task::yield_now().await;
            dirty.mark([workload("a")]);
        });
        assert_eq!(batch.len(), 1);
    }
}
