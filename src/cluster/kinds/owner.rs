//! Owner references, and the ReplicaSets and Jobs between a Pod and its workload. Only their metadata is watched.

use std::{fmt::Debug, marker::PhantomData, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use super::inject::OwnAnnotations;
use crate::{
    api::{LONGEST_LABEL, LONGEST_NAME, LinkerdMetadataOf, NamespacedName, Uid},
    cluster::{
        Problems, Projected,
        index::{
            names::NamesBy,
            shared_values::SharedValues,
            store::{Store, Stored},
        },
    },
};

/// The only owner of an object. Several owners count as none, because they do not identify one workload. An owner with
/// a name or kind that is too long counts as none, too: the API server does not validate references, and every endpoint
/// carries them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

/// A ReplicaSet or Job, with its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntermediateOwner<K> {
    pub key: NamespacedName,
    pub uid: Option<Uid>,
    pub owner: Option<Owner>,
    /// `None` without a single owner.
    pub owner_uid: Option<Uid>,
    /// The annotations of this object. A ReplicaSet has a copy of the annotations of its Deployment.
    pub annotations: OwnAnnotations,
    kind: PhantomData<fn() -> K>,
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

    pub(super) fn share(&mut self, values: &mut SharedValues) {
        values.text(&mut self.kind);
        values.text(&mut self.name);
    }
}

/// Returns the uid of the only owner.
pub fn owner_uid(metadata: &ObjectMeta) -> Option<Uid> {
    let [owner] = metadata.owner_references.as_deref()? else { return None };
    Uid::new(&owner.uid)
}

// === impl IntermediateOwner ===

impl<K> Projected for IntermediateOwner<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    type Wire = LinkerdMetadataOf<K>;

    fn project(wire: LinkerdMetadataOf<K>, _: &mut Problems) -> Self {
        let owner = Owner::only(&wire.metadata);
        let owner_uid = owner.as_ref().and_then(|_| owner_uid(&wire.metadata));
        let uid = wire.metadata.uid.as_deref().and_then(Uid::new);
        let annotations = OwnAnnotations::of(wire.metadata.annotations.as_ref());
        Self { key: NamespacedName::of(&wire.metadata), uid, owner, owner_uid, annotations, kind: PhantomData }
    }

    fn share(&mut self, values: &mut SharedValues) {
        values.text(&mut self.key.namespace);
        if let Some(owner) = &mut self.owner {
            owner.share(values);
        }
    }
}

impl<K: PartialEq + Clone> Stored for IntermediateOwner<K> {
    type NamespaceIndex = NamesBy<Owner>;
    type ClusterIndex = ();

    fn key(&self) -> NamespacedName {
        self.key.clone()
    }

    /// Only reviews read the annotations, and no observer.
    fn is_change(&self, known: &Self) -> bool {
        (&self.uid, &self.owner, &self.owner_uid) != (&known.uid, &known.owner, &known.owner_uid)
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

impl<K: PartialEq + Clone> Store<IntermediateOwner<K>> {
    /// The only owner of the object; `None` if the object is unknown or has no single owner.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn several_owners_and_one_with_an_overlong_name_count_as_none() {
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
