//! An index of object names by a value of the objects.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    hash::Hash,
    sync::Arc,
};

/// The names of the objects of one namespace, by a value of the objects. A value that no object has uses no memory.
#[derive(Debug)]
pub struct NamesBy<K>(HashMap<K, Names>);

/// At least one name, sorted. Most values of most indexes have one, and a set would take 200 bytes for it.
#[derive(Debug)]
enum Names {
    One(Arc<str>),
    /// In a box, so that an entry with one name is smaller.
    #[allow(clippy::box_collection, reason = "the size of the other variant")]
    Many(Box<BTreeSet<Arc<str>>>),
}

impl<K> Default for NamesBy<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq> NamesBy<K> {
    pub fn insert(&mut self, value: K, name: &Arc<str>) {
        match self.0.entry(value) {
            Entry::Occupied(mut names) => names.get_mut().insert(name),
            Entry::Vacant(new) => _ = new.insert(Names::One(Arc::clone(name))),
        }
    }

    pub fn remove(&mut self, value: &K, name: &str) {
        if let Some(names) = self.0.get_mut(value)
            && !names.remove(name)
        {
            self.0.remove(value);
        }
    }

    /// Returns the names of the objects that have the value, sorted.
    pub fn get<'a>(&'a self, value: &K) -> impl Iterator<Item = &'a Arc<str>> + use<'a, K> {
        self.0.get(value).into_iter().flat_map(Names::iter)
    }

    /// Returns the number of objects that have the value.
    pub fn count(&self, value: &K) -> usize {
        self.0.get(value).map_or(0, Names::len)
    }

    pub fn values(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

// === impl Names ===

impl Names {
    fn insert(&mut self, name: &Arc<str>) {
        match self {
            Self::One(known) if known == name => {}
            Self::One(known) => *self = Self::Many(Box::new(BTreeSet::from([Arc::clone(known), Arc::clone(name)]))),
            Self::Many(names) => _ = names.insert(Arc::clone(name)),
        }
    }

    /// Returns false if no name is left; the value is then removed.
    fn remove(&mut self, name: &str) -> bool {
        match self {
            Self::One(known) => **known != *name,
            Self::Many(names) => {
                names.remove(name);
                !names.is_empty()
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        let (one, many) = match self {
            Self::One(name) => (Some(name), None),
            Self::Many(names) => (None, Some(names)),
        };
        one.into_iter().chain(many.into_iter().flat_map(|names| names.iter()))
    }

    fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(names) => names.len(),
        }
    }
}
