//! An index of object names by a value of the objects.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::Arc,
};

/// The names of the objects of one namespace, by a value of the objects. A value that no object has uses no memory.
#[derive(Debug)]
pub struct NamesBy<K>(HashMap<K, BTreeSet<Arc<str>>>);

impl<K> Default for NamesBy<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq> NamesBy<K> {
    pub fn insert(&mut self, value: K, name: &Arc<str>) {
        self.0.entry(value).or_default().insert(Arc::clone(name));
    }

    pub fn remove(&mut self, value: &K, name: &str) {
        if let Some(names) = self.0.get_mut(value) {
            names.remove(name);
            if names.is_empty() {
                self.0.remove(value);
            }
        }
    }

    /// Returns the names of the objects that have the value, sorted.
    pub fn get<'a>(&'a self, value: &K) -> impl Iterator<Item = &'a Arc<str>> + use<'a, K> {
        self.0.get(value).into_iter().flatten()
    }

    /// Returns the number of objects that have the value.
    pub fn count(&self, value: &K) -> usize {
        self.0.get(value).map_or(0, BTreeSet::len)
    }

    pub fn values(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
