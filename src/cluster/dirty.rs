//! The Services whose clients may have to be told something, waiting for the publisher.
//!
//! In: marks from the watches. Out: all that was marked, at once. Always holds: a Service waits at most once, so there are
//! never more entries than Services that ever were between two looks; a mark made after [`Dirty::next`] returned is in the
//! next batch.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{node::Zone, object::NamespacedName};

#[derive(Default)]
pub struct Dirty {
    batch: Mutex<Batch>,
    marked: Notify,
}

/// What was marked since the last look.
#[derive(Debug, Default)]
pub struct Batch {
    /// Each with the time when the first event that concerned it was received.
    pub services: HashMap<NamespacedName, Instant>,
    /// Zones that nodes have left.
    pub zones: HashSet<Zone>,
}

// === impl Dirty ===

impl Dirty {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn mark(&self, services: BTreeSet<NamespacedName>, zones: BTreeSet<Zone>, received: Instant) {
        if services.is_empty() && zones.is_empty() {
            return;
        }
        let mut batch = self.batch.lock();
        for service in services {
            batch.services.entry(service).or_insert(received);
        }
        batch.zones.extend(zones);
        drop(batch);
        self.marked.notify_one();
    }

    /// Waits until something is marked.
    pub async fn next(&self) -> Batch {
        loop {
            let batch = std::mem::take(&mut *self.batch.lock());
            if !batch.services.is_empty() || !batch.zones.is_empty() {
                return batch;
            }
            // `notify_one` keeps its permit, so a mark between the look and the wait is not missed.
            self.marked.notified().await;
        }
    }
}
