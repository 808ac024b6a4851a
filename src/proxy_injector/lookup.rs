//! The namespace and the workload of an object.
//!
//! In: the watched namespaces, ReplicaSets and Jobs. Out: the annotations and labels of a namespace, the workload of a Pod.
//! Always holds: a namespace that the cache lacks is read from the API server, because it may be new.

use std::{fmt::Debug, time::Duration};

use anyhow::Context as _;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{apps::v1::ReplicaSet, batch::v1::Job, core::v1::Namespace},
};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{annotations::AnnotationMap, owner, reviewed::ReviewedOwner};
use crate::{
    api::{NamespacedName, Uid},
    cluster::{
        Cluster,
        index::selector::Labels,
        kinds::owner::{Owner, owner_uid},
    },
};

/// The deadline of a request to the API server. It is shorter than the timeout of the webhook.
const DEADLINE: Duration = Duration::from_secs(3);

pub(super) struct ObjectLookup {
    pub(super) cluster: Cluster,
    pub(super) client: Client,
}

/// The metadata of a namespace.
#[derive(Debug, Default)]
pub(super) struct NamespaceMetadata {
    /// The annotations that concern injection.
    pub(super) annotations: AnnotationMap,
    pub(super) labels: Labels,
}

// === impl ObjectLookup ===

impl ObjectLookup {
    /// Returns the metadata of a namespace.
    ///
    /// # Errors
    /// When the namespace does not exist, or cannot be read.
    pub(super) async fn namespace(&self, name: &str) -> anyhow::Result<NamespaceMetadata> {
        if let Some(namespace) = self.cluster.read().namespaces.get(&NamespacedName::cluster_scoped(&name.into())) {
            let annotations = namespace.inherited_annotations.iter();
            return Ok(NamespaceMetadata {
                annotations: annotations.map(|(key, value)| (key.to_string(), value.to_string())).collect(),
                labels: namespace.labels.clone(),
            });
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        let found = timeout(DEADLINE, api.get_metadata(name)).await;
        let found = found.context("the API server did not answer in time").and_then(|found| Ok(found?));
        let found = found.with_context(|| format!("could not read the namespace {name}"))?;
        Ok(NamespaceMetadata {
            annotations: found.metadata.annotations.unwrap_or_default(),
            labels: found.metadata.labels.iter().flatten().collect(),
        })
    }

    /// Returns the workload of a Pod. An owner that cannot be read is itself the workload.
    pub(super) async fn workload(&self, namespace: &str, pod: &str, owners: &[ReviewedOwner]) -> owner::Workload {
        let above = match owner::intermediate(owners) {
            None => None,
            Some(owner) => self.owner_of(namespace, owner).await,
        };
        owner::workload(pod, owners, above.as_ref())
    }

    async fn owner_of(&self, namespace: &str, owner: &ReviewedOwner) -> Option<ReviewedOwner> {
        let key = NamespacedName::new(namespace, owner.name.as_str());
        let known = {
            let state = self.cluster.read();
            match owner.kind.as_str() {
                "ReplicaSet" => {
                    state.replica_sets.get(&key).map(|found| (found.owner.clone(), found.owner_uid.clone()))
                }
                _ => state.jobs.get(&key).map(|found| (found.owner.clone(), found.owner_uid.clone())),
            }
        };
        let found = match (known, owner.kind.as_str()) {
            (Some(known), _) => known,
            (None, "ReplicaSet") => self.live_owner::<ReplicaSet>(&key).await,
            (None, _) => self.live_owner::<Job>(&key).await,
        };
        let (owner, uid) = (found.0?, found.1);
        Some(ReviewedOwner {
            // The cache keeps no API versions. The kinds that matter have one each.
            api_version: owner::api_version(&owner.kind).unwrap_or_default().to_owned(),
            kind: owner.kind.to_string(),
            name: owner.name.to_string(),
            uid: uid.as_ref().map(Uid::to_string).unwrap_or_default(),
        })
    }

    async fn live_owner<K>(&self, key: &NamespacedName) -> (Option<Owner>, Option<Uid>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &key.namespace);
        match timeout(DEADLINE, api.get_metadata(&key.name)).await {
            Ok(Ok(found)) => (Owner::only(&found.metadata), owner_uid(&found.metadata)),
            _ => (None, None),
        }
    }
}
