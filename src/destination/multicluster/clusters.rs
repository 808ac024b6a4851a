//! This cluster and the linked ones.
//!
//! In: keys that a change marks. Out: the keys of the federated Services that have them as members; the state of a
//! namespace.

use std::sync::Arc;

use tokio::time::Instant;

use super::Multicluster;
use crate::{
    api::NamespacedName,
    cluster::Cluster,
    destination::observer::{Batch, RemoteChange},
};

pub(in crate::destination) struct Clusters {
    pub(in crate::destination) local: Cluster,
    /// `None` if the Services of other clusters are not served.
    pub(in crate::destination) linked: Option<Arc<Multicluster>>,
}

// === impl Clusters ===

impl Clusters {
    /// Adds the federated Services whose members are in the batch, here and in other clusters.
    pub(in crate::destination) fn add_federated(&self, batch: &mut Batch) {
        if self.linked.is_none() {
            return;
        }
        let remotes = std::mem::take(&mut batch.remotes);
        let state = self.local.read();
        let by_member = state.services.by_member();
        if by_member.is_empty() {
            return;
        }
        let mut federated: Vec<(NamespacedName, Instant)> = Vec::new();
        for (service, received) in &batch.endpoints {
            federated.extend(by_member.of_member(None, service).map(|it| (it, *received)));
        }
        for ((cluster, change), received) in &remotes {
            match change {
                RemoteChange::Endpoints(service) => {
                    federated.extend(by_member.of_member(Some(cluster), service).map(|it| (it, *received)));
                }
                RemoteChange::Namespace(namespace) => {
                    let services = by_member.of_cluster_members(cluster, Some(&**namespace));
                    federated.extend(services.map(|it| (it, *received)));
                }
                RemoteChange::Cluster => {
                    federated.extend(by_member.of_cluster_members(cluster, None).map(|it| (it, *received)));
                }
            }
        }
        for (service, received) in federated {
            batch.endpoints.entry(service).or_insert(received);
        }
    }

    /// Returns the state of a namespace: of this cluster, or of another one if it is watched.
    pub(in crate::destination) fn state_of(&self, cluster: Option<&str>, namespace: &str) -> Option<Cluster> {
        let Some(cluster) = cluster else { return Some(self.local.clone()) };
        Some(self.linked.as_ref()?.watched_namespace(cluster, namespace)?.cluster.clone())
    }
}
