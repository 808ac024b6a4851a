//! The objects of one kind by namespace and name, with the indexes that their lookups need.
//!
//! Always holds: the indexes have exactly the objects that the store has; an empty namespace takes no memory.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::{api::NamespacedName, cluster::Diff};

/// An object that a [`Store`] holds.
pub trait Stored: PartialEq + Clone {
    /// Lookups within a namespace.
    type NamespaceIndex: Default;
    /// Lookups, or sums, over the cluster.
    type ClusterIndex: Default;

    fn key(&self) -> NamespacedName;

    /// Copies from the known object what the API server does not send, and shares what is equal in both.
    fn inherit(&mut self, _known: &Self) {}
    /// Returns `false` if the two objects differ only in fields that no observer reads, such as the resourceVersion.
    /// Such an object is stored, and observers are not notified.
    fn is_change(&self, _known: &Self) -> bool {
        true
    }
    /// Prepares an object before it is stored, for example by sharing parts of it with others.
    fn prepare(&mut self, _: &mut Self::ClusterIndex) {}
    fn index(self: &Arc<Self>, _: &mut Self::NamespaceIndex, _: &mut Self::ClusterIndex) {}
    fn unindex(self: &Arc<Self>, _: &mut Self::NamespaceIndex, _: &mut Self::ClusterIndex) {}
}

/// All objects of one kind.
pub struct Store<T: Stored> {
    namespaces: HashMap<Arc<str>, NamespaceObjects<T>>,
    cluster: T::ClusterIndex,
    count: usize,
}

struct NamespaceObjects<T: Stored> {
    by_name: HashMap<Arc<str>, Arc<T>>,
    index: T::NamespaceIndex,
}

/// See [`Store::select`].
pub struct Selected<'a, T: Stored, N> {
    namespace: Option<&'a NamespaceObjects<T>>,
    names: Option<N>,
}

impl<T: Stored> Default for Store<T> {
    fn default() -> Self {
        Self { namespaces: HashMap::new(), cluster: T::ClusterIndex::default(), count: 0 }
    }
}

impl<T: Stored> Default for NamespaceObjects<T> {
    fn default() -> Self {
        Self { by_name: HashMap::new(), index: T::NamespaceIndex::default() }
    }
}

impl<T: Stored> Store<T> {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn get(&self, key: &NamespacedName) -> Option<&Arc<T>> {
        self.find(&key.namespace, &key.name)
    }

    pub fn find(&self, namespace: &str, name: &str) -> Option<&Arc<T>> {
        self.namespaces.get(namespace)?.by_name.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.namespaces.values().flat_map(|namespace| namespace.by_name.values())
    }

    /// The namespaces that have objects.
    pub fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.namespaces.keys()
    }

    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<T>> + use<'_, T> {
        self.namespaces.get(namespace).into_iter().flat_map(|namespace| namespace.by_name.values())
    }

    pub fn keys(&self) -> impl Iterator<Item = NamespacedName> {
        self.iter().map(|object| object.key())
    }

    /// The keys of the objects whose keys are not among these, which must be keys of objects.
    pub(in crate::cluster) fn keys_except(&self, known: &HashSet<NamespacedName>) -> Vec<NamespacedName> {
        // Usually none is missing, and a scan of 150,000 keys takes 20 ms.
        if known.len() == self.count { Vec::new() } else { self.keys().filter(|key| !known.contains(key)).collect() }
    }

    /// Completes the object with the fields that the API server does not send. Returns the stored object with its key.
    pub(in crate::cluster) fn complete(&self, object: &mut Arc<T>) -> Option<&Arc<T>> {
        let known = self.get(&object.key())?;
        // It has no other reference, so it is not copied.
        Arc::make_mut(object).inherit(known);
        Some(known)
    }

    /// The objects of a namespace whose names the index yields.
    pub fn select<'a, N>(
        &'a self,
        namespace: &str,
        names: impl FnOnce(&'a T::NamespaceIndex) -> N,
    ) -> Selected<'a, T, N> {
        let namespace = self.namespaces.get(namespace);
        Selected { namespace, names: namespace.map(|it| names(&it.index)) }
    }

    /// The index of a namespace that has objects, with the namespace's name.
    pub fn namespace_index(&self, namespace: &str) -> Option<(&Arc<str>, &T::NamespaceIndex)> {
        self.namespaces.get_key_value(namespace).map(|(name, it)| (name, &it.index))
    }

    pub fn cluster_index(&self) -> &T::ClusterIndex {
        &self.cluster
    }

    /// Stores an object, replacing the one with the same key. Returns `None` if observers would see no difference.
    pub(in crate::cluster) fn apply(&mut self, object: impl Into<Arc<T>>) -> Option<Diff<T>> {
        let mut object = object.into();
        let key = object.key();
        let is_change = match self.complete(&mut object) {
            Some(known) if *known == object => return None,
            Some(known) => object.is_change(known),
            None => true,
        };
        let old = self.remove(&key);
        Arc::make_mut(&mut object).prepare(&mut self.cluster);
        self.count += 1;
        let namespace = self.namespaces.entry(key.namespace).or_default();
        object.index(&mut namespace.index, &mut self.cluster);
        namespace.by_name.insert(key.name, Arc::clone(&object));
        is_change.then(|| Diff::of(old, object))
    }

    pub(in crate::cluster) fn delete(&mut self, key: &NamespacedName) -> Option<Diff<T>> {
        self.remove(key).map(Diff::Deleted)
    }

    fn remove(&mut self, key: &NamespacedName) -> Option<Arc<T>> {
        let namespace = self.namespaces.get_mut(&key.namespace)?;
        let old = namespace.by_name.remove(&key.name)?;
        self.count -= 1;
        old.unindex(&mut namespace.index, &mut self.cluster);
        if namespace.by_name.is_empty() {
            self.namespaces.remove(&key.namespace);
        }
        Some(old)
    }
}

impl<'a, T: Stored, N: Iterator<Item = &'a Arc<str>>> Iterator for Selected<'a, T, N> {
    type Item = &'a Arc<T>;

    fn next(&mut self) -> Option<&'a Arc<T>> {
        let by_name = &self.namespace?.by_name;
        self.names.as_mut()?.find_map(|name| by_name.get(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::index::names::NamesBy;

    #[derive(Clone, Debug, PartialEq)]
    struct Thing(NamespacedName, u8);

    impl Stored for Thing {
        type NamespaceIndex = NamesBy<u8>;
        type ClusterIndex = u32;

        fn key(&self) -> NamespacedName {
            self.0.clone()
        }

        fn index(self: &Arc<Self>, namespace: &mut NamesBy<u8>, sum: &mut u32) {
            namespace.insert(self.1, &self.0.name);
            *sum += u32::from(self.1);
        }

        fn unindex(self: &Arc<Self>, namespace: &mut NamesBy<u8>, sum: &mut u32) {
            namespace.remove(&self.1, &self.0.name);
            *sum -= u32::from(self.1);
        }
    }

    fn thing(name: &str, value: u8) -> Thing {
        Thing(NamespacedName::new("ns", name), value)
    }

    #[test]
    fn objects_are_found_by_key_and_index_until_they_are_deleted() {
        let mut store = Store::default();
        assert!(matches!(store.apply(thing("a", 1)), Some(Diff::Added(_))));
        assert!(store.apply(thing("a", 1)).is_none(), "nothing changed");
        assert!(matches!(store.apply(thing("a", 2)), Some(Diff::Modified { old, new }) if (old.1, new.1) == (1, 2)));
        assert!(store.apply(thing("b", 2)).is_some());
        let found = |store: &Store<Thing>, namespace: &str, value: u8| {
            let mut names: Vec<_> =
                store.select(namespace, |index| index.get(&value)).map(|it| it.0.name.to_string()).collect();
            names.sort();
            names.join(" ")
        };
        assert_eq!([found(&store, "ns", 1), found(&store, "ns", 2), found(&store, "other", 2)], ["", "a b", ""]);
        assert_eq!((store.len(), *store.cluster_index(), store.in_namespace("ns").count()), (2, 4, 2));
        for name in ["a", "b"] {
            assert!(matches!(store.delete(&NamespacedName::new("ns", name)), Some(Diff::Deleted(_))));
            assert!(store.delete(&NamespacedName::new("ns", name)).is_none());
        }
        assert!(store.is_empty() && store.namespaces.is_empty() && *store.cluster_index() == 0);
    }
}
