//! The namespace and the workload of an object.
//!
//! In: the watched namespaces and owners. Out: the annotations and labels of a namespace, the workload of a Pod. Always
//! holds: a namespace or an owner that the cache lacks is read from the API server, because it may be new; clients,
//! which may invent names, cause a bounded number of such reads.

mod live;
pub(super) mod pace;

use std::{fmt::Debug, sync::Arc, time::Duration};

use anyhow::Context as _;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::{DaemonSet, ReplicaSet, StatefulSet},
        batch::v1::Job,
        core::v1::{Namespace, ReplicationController},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use self::live::{LiveObjects, ReadLimits};
use super::{
    annotations::AnnotationMap,
    owner::{self, FoundOwner},
    reviewed::ReviewedOwner,
};
use crate::{
    api::{NamespacedName, Uid},
    cluster::{
        Cluster,
        index::selector::Labels,
        kinds::{
            apps_workload::AppsWorkload,
            inject::OwnAnnotations,
            owner::{IntermediateOwner, Owner, owner_uid},
        },
    },
};

/// The deadlines for a namespace, and for an owner, which the injection does not depend on. They are shorter than the
/// timeout of the webhook.
const NAMESPACE_DEADLINE: Duration = Duration::from_secs(3);
const OWNER_DEADLINE: Duration = Duration::from_secs(1);
/// How often the cache is read again while a read waits.
const RECHECK: Duration = Duration::from_millis(50);

pub(super) struct ObjectLookup {
    cluster: Cluster,
    client: Client,
    limits: ReadLimits,
    namespaces: LiveObjects<NamespaceMetadata>,
    owners: LiveObjects<FoundOwner>,
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
    pub(super) fn new(cluster: Cluster, client: Client) -> Self {
        let (namespaces, owners) = (LiveObjects::new(false), LiveObjects::new(true));
        Self { cluster, client, limits: ReadLimits::default(), namespaces, owners }
    }

    /// Returns the metadata of a namespace.
    ///
    /// # Errors
    /// When the namespace does not exist, or cannot be read.
    pub(super) async fn namespace(&self, name: &str) -> anyhow::Result<Arc<NamespaceMetadata>> {
        let key = NamespacedName::cluster_scoped(&name.into());
        let known = || {
            let state = self.cluster.read();
            let namespace = state.namespaces.get(&key)?;
            let annotations = namespace.inherited_annotations.iter();
            Some(Arc::new(NamespaceMetadata {
                annotations: annotations.map(|(key, value)| (key.to_string(), value.to_string())).collect(),
                labels: namespace.labels.clone(),
            }))
        };
        if let Some(known) = known() {
            return Ok(known);
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        let convert = |found: ObjectMeta| NamespaceMetadata {
            annotations: found.annotations.unwrap_or_default(),
            labels: found.labels.iter().flatten().collect(),
        };
        let read = async {
            let found = self.namespaces.read(api, key.clone(), &self.limits, true, convert).await?;
            found.context("it does not exist")
        };
        let found = unless_known(timeout(NAMESPACE_DEADLINE, read), || Some(Ok(Ok(known()?)))).await;
        let found = found.context("the API server did not answer in time").and_then(|found| found);
        found.with_context(|| format!("could not read the namespace {name}"))
    }

    /// Returns the workload of a Pod. An owner that cannot be read is itself the workload.
    pub(super) async fn workload(&self, namespace: &str, pod: &str, owners: &[ReviewedOwner]) -> owner::Workload {
        let found = match owners {
            [owner] if owner::is_readable(owner) => self.owner(namespace, owner).await,
            _ => None,
        };
        owner::workload(pod, owners, found.as_deref())
    }

    async fn owner(&self, namespace: &str, owner: &ReviewedOwner) -> Option<Arc<FoundOwner>> {
        let key = NamespacedName::new(namespace, owner.name.as_str());
        let known = || self.known_owner(&owner.kind, &key).map(Arc::new);
        if let Some(known) = known() {
            return Some(known);
        }
        let read = async {
            match owner.kind.as_str() {
                // The label of the Pod depends on these two.
                "ReplicaSet" => self.live_owner::<ReplicaSet>(&key, true).await,
                "Job" => self.live_owner::<Job>(&key, true).await,
                // Only Events depend on the others.
                _ if !owner::may_have_events(owner) => None,
                "StatefulSet" => self.live_owner::<StatefulSet>(&key, false).await,
                "DaemonSet" => self.live_owner::<DaemonSet>(&key, false).await,
                "ReplicationController" => self.live_owner::<ReplicationController>(&key, false).await,
                // A Pod has no other owner that may have Events.
                _ => None,
            }
        };
        unless_known(timeout(OWNER_DEADLINE, read), || Some(Ok(Some(known()?)))).await.unwrap_or_default()
    }

    fn known_owner(&self, kind: &str, key: &NamespacedName) -> Option<FoundOwner> {
        fn of<K>(found: &IntermediateOwner<K>) -> FoundOwner {
            FoundOwner {
                uid: found.uid.clone(),
                above: found.owner.clone(),
                above_uid: found.owner_uid.clone(),
                annotations: found.annotations.clone(),
            }
        }
        let state = self.cluster.read();
        let alone = |found: &AppsWorkload| FoundOwner {
            uid: Uid::new(&found.uid),
            annotations: found.own_annotations.clone(),
            ..FoundOwner::default()
        };
        match kind {
            "ReplicaSet" => state.replica_sets.get(key).map(|found| of(found)),
            "Job" => state.jobs.get(key).map(|found| of(found)),
            // These two are watched for other jobs of the process, if at all.
            "StatefulSet" => state.stateful_sets.get(key).map(|found| alone(&found.resource)),
            "DaemonSet" => state.daemon_sets.get(key).map(|found| alone(&found.resource)),
            _ => None,
        }
    }

    async fn live_owner<K>(&self, key: &NamespacedName, waits: bool) -> Option<Arc<FoundOwner>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + 'static,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &key.namespace);
        let convert = |found: ObjectMeta| FoundOwner {
            uid: found.uid.as_deref().and_then(Uid::new),
            above: Owner::only(&found),
            above_uid: owner_uid(&found),
            annotations: OwnAnnotations::of(found.annotations.as_ref()),
        };
        self.owners.read(api, key.clone(), &self.limits, waits, convert).await.ok().flatten()
    }
}

/// Returns the result of a read, or what becomes known while it waits.
async fn unless_known<T>(read: impl Future<Output = T>, known: impl Fn() -> Option<T>) -> T {
    let mut read = std::pin::pin!(read);
    loop {
        tokio::select! {
            result = &mut read => return result,
            () = sleep(RECHECK) => if let Some(known) = known() {
                return known;
            },
        }
    }
}
