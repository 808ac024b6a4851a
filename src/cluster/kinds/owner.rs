//! Who owns what: the workload a Pod belongs to, seen through the ReplicaSet or Job in between.
//!
//! Of ReplicaSets and Jobs only the metadata is watched.

use std::{fmt::Debug, marker::PhantomData, sync::Arc};

use k8s_openapi::{
    api::{apps::v1::ReplicaSet, batch::v1::Job},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;

use crate::{
    api::{LONGEST_LABEL, LONGEST_NAME, MetadataOf, NamespacedName},
    cluster::{
        Change, Diff, Kind, Problems, Projected, State,
        index::{
            names::NamesBy,
            store::{Store, Stored},
        },
    },
};

/// The only owner of an object. Several owners tell nothing about where it belongs, and count as none; so does one that no API
/// server would have let be made: the API server does not look at references, and every endpoint carries them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

/// A ReplicaSet or Job, and its owner: between a Pod and its workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntermediateOwner<K> {
    pub key: NamespacedName,
    pub owner: Option<Owner>,
    kind: PhantomData<fn() -> K>,
}

/// A kind of [`IntermediateOwner`].
pub trait IntermediateKind: Resource<DynamicType = ()> + Clone + Debug + PartialEq + Send + Sync + 'static {
    const KIND: Kind;
    const RESOURCE: &'static str;
    const CACHE_SIZE: &'static str;
    fn store(state: &State) -> &Store<IntermediateOwner<Self>>;
    fn store_mut(state: &mut State) -> &mut Store<IntermediateOwner<Self>>;
    fn change(diff: Diff<IntermediateOwner<Self>>) -> Change;
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

// === impl IntermediateOwner ===

impl<K: IntermediateKind> Projected for IntermediateOwner<K> {
    type Wire = MetadataOf<K>;
    type Object = Self;
    const KIND: Kind = K::KIND;
    const RESOURCE: &'static str = K::RESOURCE;
    const CACHE_SIZE: &'static str = K::CACHE_SIZE;

    fn project(wire: MetadataOf<K>, _: &mut Problems) -> Self {
        Self { key: NamespacedName::of(&wire.metadata), owner: Owner::only(&wire.metadata), kind: PhantomData }
    }

    fn apply(self, state: &mut State) -> Option<Change> {
        K::store_mut(state).apply(self).map(K::change)
    }

    fn remove(key: &NamespacedName, state: &mut State) -> Option<Change> {
        K::store_mut(state).delete(key).map(K::change)
    }

    fn keys(state: &State) -> Vec<NamespacedName> {
        K::store(state).keys().collect()
    }

    fn count(state: &State) -> usize {
        K::store(state).len()
    }
}

impl<K: IntermediateKind> Stored for IntermediateOwner<K> {
    type NamespaceIndex = NamesBy<Owner>;
    type ClusterIndex = ();

    fn namespace(&self) -> &Arc<str> {
        &self.key.namespace
    }

    fn name(&self) -> &Arc<str> {
        &self.key.name
    }

    fn index(self: &Arc<Self>, by_owner: &mut NamesBy<Owner>, (): &mut ()) {
        if let Some(owner) = &self.owner {
            by_owner.insert(owner.clone(), &self.key.name);
        }
    }

    fn unindex(self: &Arc<Self>, by_owner: &mut NamesBy<Owner>, (): &mut ()) {
        if let Some(owner) = &self.owner {
            by_owner.remove(owner, &self.key.name);
        }
    }
}

impl<K: IntermediateKind> Store<IntermediateOwner<K>> {
    /// The only owner of the object, if it is known and has one.
    pub fn of(&self, key: &NamespacedName) -> Option<&Owner> {
        self.get(key)?.owner.as_ref()
    }

    /// The objects of a namespace whose only owner this is.
    pub fn owned<'a>(
        &'a self,
        namespace: &str,
        owner: &Owner,
    ) -> impl Iterator<Item = &'a Arc<IntermediateOwner<K>>> + use<'a, K> {
        self.select(namespace, |index| index.get(owner))
    }
}

impl IntermediateKind for ReplicaSet {
    const KIND: Kind = Kind::ReplicaSet;
    const RESOURCE: &'static str = "replicasets.apps";
    const CACHE_SIZE: &'static str = "replicaset_cache_size";

    fn store(state: &State) -> &Store<IntermediateOwner<Self>> {
        &state.replica_sets
    }

    fn store_mut(state: &mut State) -> &mut Store<IntermediateOwner<Self>> {
        &mut state.replica_sets
    }

    fn change(diff: Diff<IntermediateOwner<Self>>) -> Change {
        Change::ReplicaSet(diff)
    }
}

impl IntermediateKind for Job {
    const KIND: Kind = Kind::Job;
    const RESOURCE: &'static str = "jobs.batch";
    const CACHE_SIZE: &'static str = "job_cache_size";

    fn store(state: &State) -> &Store<IntermediateOwner<Self>> {
        &state.jobs
    }

    fn store_mut(state: &mut State) -> &mut Store<IntermediateOwner<Self>> {
        &mut state.jobs
    }

    fn change(diff: Diff<IntermediateOwner<Self>>) -> Change {
        Change::Job(diff)
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
