//! The keys that the publisher of discovery or the rollout engine has to process again.
//!
//! In: keys, from cluster observers and other components. Out: all marked keys, in batches. Always holds: a key waits
//! at most once, so the set never has more entries than distinct keys; a key that is marked after [`DirtySet::next`]
//! returned is in the next batch.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// A set of keys, each with the time of its first event since the last batch.
pub struct DirtySet<K> {
    waiting: Mutex<HashMap<K, Instant>>,
    marked: Notify,
}

// === impl DirtySet ===

impl<K> Default for DirtySet<K> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), marked: Notify::new() }
    }
}

impl<K: Hash + Eq> DirtySet<K> {
    /// Marks keys for the next batch. `received` is when the event that affects them was received.
    pub fn mark(&self, keys: impl IntoIterator<Item = K>, received: Instant) {
        let mut waiting = self.waiting.lock();
        let mut any = false;
        for key in keys {
            if let Entry::Vacant(entry) = waiting.entry(key) {
                entry.insert(received);
                any = true;
            }
        }
        drop(waiting);
        if any {
            self.marked.notify_one();
        }
    }

    /// Waits until a key is marked, then returns all marked keys.
    pub async fn next(&self) -> HashMap<K, Instant> {
        loop {
            let batch = std::mem::take(&mut *self.waiting.lock());
            if !batch.is_empty() {
                return batch;
            }
            // `notify_one` keeps its permit, so a mark between the check and the wait is not missed.
            self.marked.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_key_marked_many_times_is_in_one_batch_once_with_the_time_of_its_first_event() {
        let dirty = DirtySet::default();
        let first = Instant::now();
        let later = first + Duration::from_secs(1);
        dirty.mark([], first);
        assert!(dirty.next().now_or_never().is_none());
        dirty.mark(["a", "a", "b"], first);
        dirty.mark(["a"], later);
        assert_eq!(dirty.next().await, HashMap::from([("a", first), ("b", first)]));
        assert!(dirty.next().now_or_never().is_none());
        dirty.mark(["a"], later);
        assert_eq!(dirty.next().await, HashMap::from([("a", later)]));
    }

    #[tokio::test]
    async fn a_mark_wakes_a_waiting_task() {
        let dirty = DirtySet::default();
        let (batch, ()) = tokio::join!(dirty.next(), async {
            tokio::task::yield_now().await;
            dirty.mark(["a"], Instant::now());
        });
        assert_eq!(batch.len(), 1);
    }
}
