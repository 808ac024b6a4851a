//! The list with which a watch begins, while it is received.
//!
//! In: listed objects. Out: the objects that the state does not have in this version, and the keys that it has and the
//! list has, too.

use std::{collections::HashSet, sync::Arc};

use crate::{
    api::NamespacedName,
    cluster::index::store::{Store, Stored},
};

/// A list in progress. Its objects are applied only when it is complete: a partial list would be a state that the API
/// server never had, in which an endpoint that moved between two slices is in neither. If the API server fails before
/// the list is complete, new clients would also receive other endpoints than existing clients for a long time.
///
/// Until then only this list can change the objects of its kind, so an object that the state has is dropped at once: the
/// state is locked only for differences, and a list of everything takes little memory.
pub(in crate::cluster) struct Relist<T> {
    pub(super) under_way: bool,
    /// The listed objects that the state has, in whatever version.
    pub(super) known: HashSet<NamespacedName>,
    /// The listed objects that the state does not have in this version, as the state will keep them: to copy them then
    /// would take twice the memory.
    pub(super) changed: Vec<Arc<T>>,
}

impl<T> Default for Relist<T> {
    fn default() -> Self {
        Self { under_way: false, known: HashSet::new(), changed: Vec::new() }
    }
}

impl<T: Stored> Relist<T> {
    /// Adds a listed object; `None` if it cannot be read.
    pub(super) fn add(&mut self, key: &NamespacedName, object: Option<T>, store: &Store<T>) {
        if let Some(known) = store.get(key) {
            self.known.insert(known.key());
        }
        if let Some(mut object) = object.map(Arc::new)
            && store.complete(&mut object).is_none_or(|known| *known != object)
        {
            self.changed.push(object);
        }
    }
}
