//! Federated Services: the views of their clients, and their endpoints.
//!
//! In: the states of this cluster and of the other clusters' namespaces. Out: view keys and [`Members`]. Always holds:
//! members are read from all states one after the other, and no two threads do that at the same time, so that of two
//! values the one with the higher generation is newer in every state; a cluster whose namespace is not known yet adds
//! nothing, and is never taken for one without endpoints.

use std::sync::Arc;

use super::{
    members::Members,
    request::{GetRefusal, GetRequest, Location, Query, QueryPort, ViewKey, declares},
};
use crate::{
    api::NamespacedName,
    cluster::{
        Cluster, State,
        kinds::{
            federated_service::{FederatedService, FederationKind, ServiceMember},
            service::Service,
        },
    },
    destination::{
        multicluster::{Multicluster, clusters::Clusters, remote::RemoteNamespace},
        registry::Generation,
    },
};

/// A member of a federated Service, and where its state is.
struct FederatedMember {
    cluster: Cluster,
    key: NamespacedName,
    remote: Option<Arc<RemoteNamespace>>,
}

// === impl Clusters ===

impl Clusters {
    /// Returns the key of the view that a request resolves to now.
    ///
    /// # Errors
    /// When the request is refused.
    pub(super) fn resolve(&self, request: &GetRequest) -> Result<ViewKey, GetRefusal> {
        let state = self.local.read();
        let service = state.services.get(&request.service);
        let Some((multicluster, service)) = self.linked.as_deref().zip(service.filter(|it| it.federated.is_some()))
        else {
            return request.resolve(&state);
        };
        let (service, zone) = (Arc::clone(service), state.nodes.zone(&request.node));
        drop(state);
        let Some(federated) = &service.federated else { return Err(GetRefusal::NoService) };
        let has_remotes = federated.members.iter().any(|member| member.cluster.is_some());
        if has_remotes && !multicluster.is_known() {
            return Err(GetRefusal::ClustersUnknown);
        }
        if federated.kind == FederationKind::RemoteDiscovery {
            let member = federated.members.first().ok_or(GetRefusal::NoRemoteService)?;
            if !member.cluster.as_ref().is_some_and(|cluster| multicluster.has(cluster)) {
                return Err(GetRefusal::no_cluster(member));
            }
        }
        let (mut has_port, mut has_hostname, mut node) = (false, request.instance.is_none(), None);
        let mut local = None;
        for FederatedMember { cluster, key, remote } in self.federated_members(&service, federated, multicluster) {
            if remote.as_ref().is_some_and(|remote| !remote.is_known()) {
                continue;
            }
            let state = cluster.read();
            let Some(service) = state.services.get(&key) else { continue };
            has_port |= declares(service, request.port);
            has_hostname |= request.instance.as_ref().is_some_and(|it| state.slices.instance(&key, it).is_some());
            if remote.is_none() {
                if service.local {
                    let is_on_node = state.pods.have_any_on(&request.node);
                    node = Some(if is_on_node { Arc::clone(&request.node) } else { Location::NO_NODE.into() });
                }
                local = Some(key);
            }
        }
        let (query, location) = if has_hostname {
            let port = if has_port { QueryPort::Declared(request.port) } else { QueryPort::Undeclared };
            let (instance, with_clusters) = (request.instance.clone(), request.with_clusters);
            let hinted_node = local.and_then(|key| {
                let state = self.local.read();
                let service = state.services.get(&key)?;
                request.hinted_node(&state, (&key, service), port)
            });
            (Query { port, instance, with_clusters }, Location { zone, node, hinted_node })
        } else {
            (Query::nothing(), Location::nowhere())
        };
        Ok(ViewKey { service: request.service.clone(), query, location })
    }

    /// Returns the endpoints of a Service in all its clusters.
    pub(super) fn members(&self, key: &NamespacedName) -> Members {
        let is_federated = |state: &State| state.services.get(key).is_some_and(|it| it.federated.is_some());
        let Some(multicluster) = &self.linked else { return Members::of(&self.local.read(), key) };
        let state = self.local.read();
        if !is_federated(&state) {
            return Members::of(&state, key);
        }
        drop(state);
        let mut federated_reads = multicluster.federated_reads.lock();
        // Read again: since then, another thread may have read newer members.
        let state = self.local.read();
        let Some(service) = state.services.get(key).cloned() else { return Members::of(&state, key) };
        let Some(federated) = &service.federated else { return Members::of(&state, key) };
        *federated_reads += 1;
        let generation = Generation { local: state.generation, federated: *federated_reads };
        drop(state);
        let mut members = Members::federated(&service, generation);
        members.is_complete = multicluster.is_known();
        for FederatedMember { cluster, key, remote } in self.federated_members(&service, federated, multicluster) {
            if remote.as_ref().is_some_and(|remote| !remote.is_known()) {
                members.is_complete = false;
                members.add(&State::default(), key, remote);
            } else {
                members.add(&cluster.read(), key, remote);
            }
        }
        members
    }

    /// Returns the members of a federated Service. Those in clusters that do not exist are left out.
    fn federated_members<'a>(
        &'a self,
        service: &'a Service,
        federated: &'a FederatedService,
        multicluster: &'a Multicluster,
    ) -> impl Iterator<Item = FederatedMember> + use<'a> {
        federated.members.iter().filter_map(move |ServiceMember { cluster, service: name }| {
            let namespace = Arc::clone(&service.key.namespace);
            let key = NamespacedName { namespace, name: Arc::clone(name) };
            let Some(cluster) = cluster else {
                return Some(FederatedMember { cluster: self.local.clone(), key, remote: None });
            };
            let remote = multicluster.namespace(cluster, &key.namespace)?;
            Some(FederatedMember { cluster: remote.cluster.clone(), key, remote: Some(remote) })
        })
    }
}
