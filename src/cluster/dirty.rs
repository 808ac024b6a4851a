//! What clients may have to be told something of, waiting for the publisher.
//!
//! In: marks from the watches. Out: all that was marked, at once. Always holds: what is marked waits at most once, so there are
//! never more entries than Services, addresses and profiles that ever were between two looks; a mark made after
//! [`Dirty::next`] returned is in the next batch.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{Affected, index::address::NetworkAddress, kinds::node::Zone};
use crate::api::NamespacedName;

#[derive(Default)]
pub struct Dirty {
    batch: Mutex<Batch>,
    marked: Notify,
}

/// What was marked since the last look, with the time when the first event that concerned it was received.
#[derive(Debug, Default)]
pub struct Batch {
    /// Services by their endpoints.
    pub discovered: HashMap<NamespacedName, Instant>,
    /// Services themselves.
    pub services: HashMap<NamespacedName, Instant>,
    pub addresses: HashMap<NetworkAddress, Instant>,
    pub profiles: HashMap<NamespacedName, Instant>,
    /// Zones that nodes have left.
    pub zones: HashSet<Zone>,
}

// === impl Dirty ===

impl Dirty {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Marks what clients can see of a change.
    pub fn mark(&self, affected: Affected, received: Instant) {
        let Affected { written: _, configured: _, rolled: _, .. } = affected;
        let Affected { discovered, services, addresses, profiles, moved_from, .. } = affected;
        let mut batch = self.batch.lock();
        wait(&mut batch.discovered, discovered, received);
        wait(&mut batch.services, services, received);
        wait(&mut batch.addresses, addresses, received);
        wait(&mut batch.profiles, profiles, received);
        batch.zones.extend(moved_from);
        let any = !batch.is_empty();
        drop(batch);
        if any {
            self.marked.notify_one();
        }
    }

    /// Waits until something is marked.
    pub async fn next(&self) -> Batch {
        loop {
            let batch = std::mem::take(&mut *self.batch.lock());
            if !batch.is_empty() {
                return batch;
            }
            // `notify_one` keeps its permit, so a mark between the look and the wait is not missed.
            self.marked.notified().await;
        }
    }
}

fn wait<K: Hash + Eq>(waiting: &mut HashMap<K, Instant>, marked: impl IntoIterator<Item = K>, received: Instant) {
    for key in marked {
        waiting.entry(key).or_insert(received);
    }
}

// === impl Batch ===

impl Batch {
    fn is_empty(&self) -> bool {
        let Self { discovered, services, addresses, profiles, zones } = self;
        let any = !discovered.is_empty() || !services.is_empty() || !addresses.is_empty();
        !any && profiles.is_empty() && zones.is_empty()
    }
}
