//! Equal parts of objects, kept once.
//!
//! In: the parts of a new object. Out: the same parts, shared with an earlier object that has an equal one. Always
//! holds: only the parts of the most recent objects are remembered, within a number and a size, because tenants choose
//! the parts and may delete the objects. A part that was forgotten is kept twice, which is not wrong.
//!
//! The Pods of a ReplicaSet have equal labels and ports, and thousands of Pods have the same namespace and the same keys
//! of labels.

use std::{collections::HashSet, hash::Hash, sync::Arc};

use super::selector::{Labels, Pair};
use crate::{api::LONGEST_KEY, cluster::kinds::container_port::ContainerPort};

/// The number of values of a kind after which the older ones are forgotten. It is more than the largest cluster has
/// nodes, whose names occur in any order.
const RECENT: usize = 8_192;
/// The size in bytes after which the same happens: that of thousands of usual lists of labels.
const RECENT_BYTES: usize = 4 * 1024 * 1024;
/// The maximum number of labels or ports of an object that are shared.
const MANY: usize = 32;
/// The bytes of a text beside its characters: its reference, and the counts of its allocation.
const TEXT: usize = 32;

/// The values of recent objects.
#[derive(Default)]
pub struct SharedValues {
    texts: Recent<str>,
    labels: Recent<[Pair]>,
    ports: Recent<[ContainerPort]>,
}

/// Recent values: at most two times [`RECENT`], and two times [`RECENT_BYTES`].
struct Recent<T: ?Sized> {
    newer: HashSet<Arc<T>>,
    /// The size of the newer values.
    bytes: usize,
    older: HashSet<Arc<T>>,
}

/// A value whose approximate size in memory is known.
trait Measured {
    /// In bytes.
    fn size(&self) -> usize;
}

impl Measured for str {
    fn size(&self) -> usize {
        TEXT + self.len()
    }
}

impl Measured for [Pair] {
    fn size(&self) -> usize {
        self.iter().map(|(key, value)| key.size() + value.size()).sum()
    }
}

impl Measured for [ContainerPort] {
    fn size(&self) -> usize {
        self.iter().map(|port| size_of::<ContainerPort>() + port.name.size()).sum()
    }
}

// === impl SharedValues ===

impl SharedValues {
    pub(in crate::cluster) fn text(&mut self, text: &mut Arc<str>) {
        if text.len() <= LONGEST_KEY {
            self.texts.share(text);
        }
    }

    pub(in crate::cluster) fn labels(&mut self, labels: &mut Labels) {
        if labels.len() > MANY {
            return;
        }
        if !self.labels.find(labels.pairs_mut()) {
            let mut pairs = labels.iter().cloned().collect::<Vec<_>>();
            for (key, value) in &mut pairs {
                self.text(key);
                self.text(value);
            }
            *labels.pairs_mut() = pairs.into();
            self.labels.share(labels.pairs_mut());
        }
    }

    pub(in crate::cluster) fn ports(&mut self, ports: &mut Arc<[ContainerPort]>) {
        if ports.len() <= MANY {
            self.ports.share(ports);
        }
    }
}

// === impl Recent ===

impl<T: ?Sized> Default for Recent<T> {
    fn default() -> Self {
        Self { newer: HashSet::new(), bytes: 0, older: HashSet::new() }
    }
}

impl<T: Hash + Eq + Measured + ?Sized> Recent<T> {
    /// Replaces the value by a known equal value. Returns whether there was one.
    fn find(&mut self, value: &mut Arc<T>) -> bool {
        if let Some(known) = self.newer.get(&**value) {
            *value = Arc::clone(known);
            return true;
        }
        let Some(known) = self.older.take(&**value) else { return false };
        *value = Arc::clone(&known);
        self.insert(known);
        true
    }

    fn share(&mut self, value: &mut Arc<T>) {
        if !self.find(value) {
            self.insert(Arc::clone(value));
        }
    }

    fn insert(&mut self, value: Arc<T>) {
        if self.newer.len() >= RECENT || self.bytes >= RECENT_BYTES {
            (self.older, self.bytes) = (std::mem::take(&mut self.newer), 0);
        }
        self.bytes += value.size();
        self.newer.insert(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(number: usize) -> Arc<str> {
        format!("text {number}").into()
    }

    #[test]
    fn equal_labels_and_equal_texts_of_other_labels_are_kept_once() {
        let mut values = SharedValues::default();
        let mut shared = |pairs: &[(&str, &str)]| {
            let mut labels: Labels = pairs.iter().copied().collect();
            values.labels(&mut labels);
            labels
        };
        let all = [
            shared(&[("app", "web"), ("tier", "a")]),
            shared(&[("app", "web"), ("tier", "a")]),
            shared(&[("app", "db")]),
        ];
        let [first, equal, other] = all.each_ref().map(|labels| labels.iter().next().unwrap());
        assert!(std::ptr::eq(first, equal), "the whole list");
        assert!(!std::ptr::eq(first, other) && Arc::ptr_eq(&first.0, &other.0), "only the key");
        assert_eq!((&*other.0, &*other.1), ("app", "db"));
    }

    #[test]
    fn a_value_that_is_still_used_is_shared_however_many_others_there_are_and_others_are_forgotten() {
        let (mut recent, mut used) = (Recent::default(), text(0));
        recent.share(&mut used);
        for number in 1..10 * RECENT {
            recent.share(&mut text(number));
            let mut equal = text(0);
            recent.share(&mut equal);
            assert!(Arc::ptr_eq(&equal, &used), "{number}");
        }
        assert!(recent.newer.len() + recent.older.len() <= 2 * RECENT);
    }

    #[test]
    fn however_long_the_labels_of_deleted_objects_were_few_megabytes_are_remembered() {
        let mut values = SharedValues::default();
        for number in 0..5_000_usize {
            let long = |pair: usize| (format!("{pair}-{number}"), "x".repeat(1_000));
            values.labels(&mut (0..MANY).map(long).collect());
        }
        let remembered = values.labels.newer.iter().chain(&values.labels.older);
        let bytes: usize = remembered.flat_map(|pairs| pairs.iter()).map(|(key, value)| key.len() + value.len()).sum();
        assert!((RECENT_BYTES..2 * RECENT_BYTES + 40_000).contains(&bytes), "{bytes} bytes");
    }

    #[test]
    fn what_only_a_tenant_can_make_so_large_is_not_remembered() {
        let mut values = SharedValues::default();
        values.text(&mut "x".repeat(LONGEST_KEY + 1).into());
        values.labels(&mut (0..=MANY).map(|number| (text(number), "")).collect());
        values.ports(&mut vec![ContainerPort { name: "".into(), number: 1, host_port: None }; MANY + 1].into());
        assert!(values.texts.newer.is_empty() && values.labels.newer.is_empty() && values.ports.newer.is_empty());
    }
}
