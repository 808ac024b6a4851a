//! The order in which objects are reconciled.
//!
//! In: objects that are added, at once or after a delay; the start and the end of each reconcile. Out: the next object.
//! Always holds: an object waits at most once, and is not delayed while it waits; the object that has waited for
//! the longest time is next; an object that is added during its reconcile is queued behind those that wait when the
//! reconcile ends; no more objects are given out than can be reconciled at once.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use tokio::time::Instant;

use crate::api::NamespacedName;

/// The objects that wait, are delayed or are being reconciled.
#[derive(Default)]
pub(super) struct FairQueue {
    /// When each object that waits for its reconcile was added.
    waiting: HashMap<NamespacedName, Instant>,
    /// The waiting objects that the stream can yield, next first: neither yielded nor being reconciled.
    order: VecDeque<NamespacedName>,
    /// The objects that the stream has yielded and whose reconcile has not started.
    yielded: HashSet<NamespacedName>,
    /// When each reconcile in progress started.
    pub(super) working: HashMap<NamespacedName, Instant>,
    /// The objects that are added when their delay ends, soonest first. An object that waits is not among them.
    delayed: BTreeSet<(Instant, NamespacedName)>,
    due: HashMap<NamespacedName, Instant>,
}

// === impl FairQueue ===

impl FairQueue {
    /// Adds an object. Returns false if the object waits already.
    pub(super) fn add(&mut self, object: NamespacedName, since: Instant) -> bool {
        if self.waiting.contains_key(&object) {
            return false;
        }
        self.forget_delay(&object);
        if !self.working.contains_key(&object) {
            self.order.push_back(object.clone());
        }
        self.waiting.insert(object, since);
        true
    }

    /// Adds an object when the time `due` comes. The earliest time counts.
    pub(super) fn add_at(&mut self, object: NamespacedName, due: Instant) {
        if self.waiting.contains_key(&object) || self.due.get(&object).is_some_and(|earlier| *earlier <= due) {
            return;
        }
        self.forget_delay(&object);
        self.due.insert(object.clone(), due);
        self.delayed.insert((due, object));
    }

    /// Adds the objects whose delay has ended. Returns their number.
    pub(super) fn add_due(&mut self, now: Instant) -> u64 {
        let mut added = 0;
        while self.delayed.first().is_some_and(|(due, _)| *due <= now)
            && let Some((due, object)) = self.delayed.pop_first()
        {
            added += u64::from(self.add(object, due));
        }
        added
    }

    fn forget_delay(&mut self, object: &NamespacedName) {
        if let Some((object, due)) = self.due.remove_entry(object) {
            self.delayed.remove(&(due, object));
        }
    }

    /// Returns the next object, if there is room for it.
    pub(super) fn next(&mut self, concurrency: usize) -> Option<NamespacedName> {
        if self.yielded.len() + self.working.len() >= concurrency {
            return None;
        }
        let object = self.order.pop_front()?;
        self.yielded.insert(object.clone());
        Some(object)
    }

    /// Removes an object that waits or is delayed. Returns when it was added.
    pub(super) fn remove(&mut self, object: &NamespacedName) -> Option<Instant> {
        self.forget_delay(object);
        let since = self.waiting.remove(object)?;
        if !self.yielded.remove(object) && !self.working.contains_key(object) {
            // This is rare: an object is reconciled, or found to be deleted, only after it was yielded.
            self.order.retain(|waiting| waiting != object);
        }
        Some(since)
    }

    /// Starts a reconcile. Returns when the object was added, if it was waiting.
    pub(super) fn start(&mut self, object: &NamespacedName, now: Instant) -> Option<Instant> {
        let since = self.remove(object);
        self.working.insert(object.clone(), now);
        since
    }

    /// Ends a reconcile. Returns when it started.
    pub(super) fn end(&mut self, object: &NamespacedName) -> Option<Instant> {
        let started = self.working.remove(object);
        // The object was added during the reconcile. It is reconciled again after all objects that wait now.
        if self.waiting.contains_key(object) {
            self.order.push_back(object.clone());
        }
        started
    }

    /// Returns the number of objects that wait.
    pub(super) fn depth(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the objects that wait, sorted.
    #[cfg(test)]
    pub(super) fn into_waiting(self) -> Vec<NamespacedName> {
        let mut waiting: Vec<_> = self.waiting.into_keys().collect();
        waiting.sort();
        waiting
    }

    /// Returns when the next delay ends.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delayed.first().map(|(due, _)| *due)
    }
}
