//! Who owns what: the workload a Pod belongs to, seen through the ReplicaSet or Job in between.
//!
//! Of ReplicaSets and Jobs only the metadata is watched.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Debug,
    marker::PhantomData,
    sync::Arc,
};

use k8s_openapi::{
    api::{apps::v1::ReplicaSet, batch::v1::Job},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;

use crate::{
    api::{LONGEST_LABEL, LONGEST_NAME, MetadataOf, NamespacedName},
    cluster::{Affected, Kind, Problems, Projected, State, index::workload_key::WorkloadKey},
};

/// The only owner of an object. Several owners tell nothing about where it belongs, and count as none; so does one that no API
/// server would have let be made: the API server does not look at references, and every endpoint carries them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

/// A ReplicaSet or Job: whose it is.
pub struct IntermediateOwner<K> {
    key: NamespacedName,
    owner: Option<Owner>,
    kind: PhantomData<fn() -> K>,
}

/// The owners of all ReplicaSets, or of all Jobs.
#[derive(Default)]
pub struct IntermediateOwners {
    by_name: HashMap<NamespacedName, Option<Owner>>,
    /// The names of what each owns.
    owned: HashMap<WorkloadKey, BTreeSet<Arc<str>>>,
}

/// What stands between Pods and their workloads.
pub trait IntermediateKind: Resource<DynamicType = ()> + Clone + Debug + 'static {
    const WATCHED: Kind;
    fn owners(state: &State) -> &IntermediateOwners;
    fn owners_mut(state: &mut State) -> &mut IntermediateOwners;
}

// === impl Owner ===

impl Owner {
    pub fn only(metadata: &ObjectMeta) -> Option<Self> {
        match metadata.owner_references.as_deref() {
            Some([owner]) if owner.kind.len() <= LONGEST_LABEL && owner.name.len() <= LONGEST_NAME => {
                Some(Self { kind: owner.kind.as_str().into(), name: owner.name.as_str().into() })
            }
            _ => None,
        }
    }

    pub fn is(&self, kind: &str) -> bool {
        &*self.kind == kind
    }
}

// === impl IntermediateOwners ===

impl IntermediateOwners {
    /// The only owner of the object, if it is known and has one.
    pub fn of(&self, key: &NamespacedName) -> Option<&Owner> {
        self.by_name.get(key)?.as_ref()
    }

    /// The names of those whose only owner this is.
    pub fn owned<'a>(&'a self, owner: &WorkloadKey) -> impl Iterator<Item = &'a Arc<str>> + use<'a> {
        self.owned.get(owner).into_iter().flatten()
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Who owned it before, if it was known.
    fn insert(&mut self, key: &NamespacedName, owner: Option<Owner>) -> Option<Option<Owner>> {
        let before = self.remove(key);
        if let Some(owner) = &owner {
            let owner = WorkloadKey::of_owner(&key.namespace, owner);
            self.owned.entry(owner).or_default().insert(Arc::clone(&key.name));
        }
        self.by_name.insert(key.clone(), owner);
        before
    }

    fn remove(&mut self, key: &NamespacedName) -> Option<Option<Owner>> {
        let before = self.by_name.remove(key)?;
        if let Some(owner) = &before {
            let owner = WorkloadKey::of_owner(&key.namespace, owner);
            if let Some(names) = self.owned.get_mut(&owner) {
                names.remove(&key.name);
                if names.is_empty() {
                    self.owned.remove(&owner);
                }
            }
        }
        Some(before)
    }
}

// === impl IntermediateOwner ===

impl<K: IntermediateKind> Projected for IntermediateOwner<K> {
    type Wire = MetadataOf<K>;
    const KIND: Kind = K::WATCHED;

    fn project(wire: MetadataOf<K>, _: &mut Problems) -> Self {
        Self { key: NamespacedName::of(&wire.metadata), owner: Owner::only(&wire.metadata), kind: PhantomData }
    }

    fn apply(self, state: &mut State) -> Affected {
        let owners = K::owners_mut(state);
        if owners.by_name.get(&self.key).is_some_and(|known| *known == self.owner) {
            return Affected::default();
        }
        let before = owners.insert(&self.key, self.owner.clone()).flatten();
        state.affected_through(&K::kind(&()), &self.key, &[before, self.owner])
    }

    fn remove(key: &NamespacedName, state: &mut State) -> Affected {
        match K::owners_mut(state).remove(key) {
            Some(Some(owner)) => state.affected_through(&K::kind(&()), key, &[Some(owner), None]),
            // Without an owner it said nothing that its absence does not.
            Some(None) | None => Affected::default(),
        }
    }

    fn keys(state: &State) -> Vec<NamespacedName> {
        K::owners(state).by_name.keys().cloned().collect()
    }
}

impl IntermediateKind for ReplicaSet {
    const WATCHED: Kind = Kind::ReplicaSet;

    fn owners(state: &State) -> &IntermediateOwners {
        &state.replica_sets
    }

    fn owners_mut(state: &mut State) -> &mut IntermediateOwners {
        &mut state.replica_sets
    }
}

impl IntermediateKind for Job {
    const WATCHED: Kind = Kind::Job;

    fn owners(state: &State) -> &IntermediateOwners {
        &state.jobs
    }

    fn owners_mut(state: &mut State) -> &mut IntermediateOwners {
        &mut state.jobs
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn several_owners_and_one_that_no_label_can_hold_count_as_none() {
        let owner = |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "u"});
        let (usual, other) = (owner("ReplicaSet", "web-5f8d"), owner("Node", "node-1"));
        let longest = owner(&"K".repeat(63), &"n".repeat(253));
        for (owners, kept) in [
            (json!(null), false),
            (json!([]), false),
            (json!([usual]), true),
            (json!([usual, other]), false),
            (json!([longest]), true),
            (json!([owner(&"K".repeat(64), "web")]), false),
            (json!([owner("ReplicaSet", &"n".repeat(254))]), false),
        ] {
            let metadata = serde_json::from_value(json!({"name": "a", "ownerReferences": owners})).unwrap();
            assert_eq!(Owner::only(&metadata).is_some(), kept, "{owners}");
        }
    }
}
