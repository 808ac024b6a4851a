//! The request of a `Get` stream, and its result: a view or a status. Pure.
//!
//! In: the cluster's state, and a parsed request. Out: the key of the request's view, or the status with which
//! Linkerd's destination refuses the request. The status code decides whether a proxy retries forever or never.

use std::sync::Arc;

use tonic::Status;

use super::{hinted_node::hinted_node, members::Members};
use crate::{
    api::NamespacedName,
    cluster::{
        State,
        kinds::{
            federated_service::{FederationKind, ServiceMember},
            node::Zone,
            service::Service,
        },
    },
    destination::{authority::ServiceAuthority, registry::Stopping},
};

/// The part of a Service that the clients of a view request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::destination) struct Query {
    pub(in crate::destination) port: QueryPort,
    pub(in crate::destination) instance: Option<Arc<str>>,
    /// Whether the endpoints of other clusters are labelled with their cluster.
    pub(in crate::destination) with_clusters: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::destination) enum QueryPort {
    /// A number of a port of the Service.
    Declared(u16),
    /// Any other number, which the clients use unchanged. They share one view, because they choose the number.
    Undeclared,
}

/// The part of a client's location that affects its endpoints.
///
/// A client without endpoints is [nowhere](Location::nowhere): it requests a hostname that no endpoint has, or it is on
/// a node without Pods and the Service has local endpoints only. Clients choose these names, so all such clients of a
/// Service share one view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::destination) struct Location {
    pub(in crate::destination) zone: Zone,
    /// The client's node, or [`NO_NODE`](Location::NO_NODE), only for `internalTrafficPolicy: Local`. It is empty only
    /// for a client that is [nowhere](Location::nowhere), such as one that sends no node.
    pub(in crate::destination) node: Option<Arc<str>>,
    /// The client's node, only if the clients on it receive only the endpoints with a hint for it.
    pub(in crate::destination) hinted_node: Option<Arc<str>>,
}

/// The key of a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::destination) struct ViewKey {
    pub(in crate::destination) service: NamespacedName,
    pub(in crate::destination) query: Query,
    pub(in crate::destination) location: Location,
}

/// The target of a request, and the node of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::destination) struct GetRequest {
    pub(in crate::destination) service: NamespacedName,
    pub(in crate::destination) port: u16,
    pub(in crate::destination) instance: Option<Arc<str>>,
    /// The client's node; empty if unknown.
    pub(in crate::destination) node: Arc<str>,
    /// See [`Query::with_clusters`].
    pub(in crate::destination) with_clusters: bool,
}

/// The reason why a well-formed request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::destination) enum GetRefusal {
    NoService,
    NotFederated,
    NoRemoteService,
    NoCluster(Box<str>),
    /// The other clusters are not known yet.
    ClustersUnknown,
    ExternalName,
    /// The view of the request is new, and the memory budget has no room for it.
    NoMemory,
    Stopping,
}

impl GetRequest {
    pub(in crate::destination) fn new(authority: ServiceAuthority, node: &str) -> Self {
        let ServiceAuthority { service, port, instance } = authority;
        Self { service, port, instance, node: node.into(), with_clusters: false }
    }

    /// Returns the key of the view that the request resolves to now, without other clusters.
    ///
    /// # Errors
    /// When the Service does not exist, or its endpoints are not in the slices of this cluster.
    pub(in crate::destination) fn resolve(&self, state: &State) -> Result<ViewKey, GetRefusal> {
        let service = state.services.get(&self.service).ok_or(GetRefusal::NoService)?;
        match &service.federated {
            // Upstream returns this status for a federated Service that it does not watch.
            Some(federated) if federated.kind == FederationKind::Federated => Err(GetRefusal::NotFederated),
            Some(federated) => {
                Err(federated.members.first().map_or(GetRefusal::NoRemoteService, GetRefusal::no_cluster))
            }
            None if service.external_name => Err(GetRefusal::ExternalName),
            None => Ok(self.view(service, state)),
        }
    }

    /// Returns the status of a refusal, with upstream's message. `path` is the target as the client wrote it.
    pub(in crate::destination) fn refused(&self, refusal: &GetRefusal, path: &str) -> Status {
        let NamespacedName { namespace, name } = &self.service;
        match refusal {
            GetRefusal::NoService => Status::not_found(format!("Service {name}.{namespace} not found")),
            GetRefusal::NotFederated => {
                Status::unknown(format!("service {namespace}/{name} is not a federated service"))
            }
            GetRefusal::NoRemoteService => {
                Status::failed_precondition(format!("Remote discovery service missing remote service name {path}"))
            }
            GetRefusal::ClustersUnknown => Status::unavailable(
                "the Secrets of other clusters have not been listed yet: retry, preferably with another replica",
            ),
            GetRefusal::NoCluster(cluster) => Status::not_found(format!("Remote cluster not found: {cluster}")),
            GetRefusal::ExternalName => Status::invalid_argument(format!("Invalid authority: {path}")),
            GetRefusal::NoMemory => Status::unavailable(
                "this destination server has no memory for these endpoints: retry with another replica",
            ),
            GetRefusal::Stopping => {
                Status::unavailable("this destination server is stopping: retry with another replica")
            }
        }
    }

    /// Replaces the names in the request with the shared names of its view, to save memory.
    pub(super) fn share_names(&mut self, ViewKey { service, query, .. }: &ViewKey) {
        self.service = service.clone();
        if query.instance.is_some() {
            self.instance.clone_from(&query.instance);
        }
    }

    fn view(&self, service: &Service, state: &State) -> ViewKey {
        let hostname = self.instance.as_deref();
        let has_none = hostname.is_some_and(|hostname| state.slices.instance(&self.service, hostname).is_none())
            || service.local && !state.pods.have_any_on(&self.node);
        let (query, location) = if has_none {
            (Query::nothing(), Location::nowhere())
        } else {
            let node = service.local.then(|| Arc::clone(&self.node));
            let port = QueryPort::of(service, self.port);
            let hinted_node = self.hinted_node(state, (&self.service, service), port);
            let location = Location { zone: state.nodes.zone(&self.node), node, hinted_node };
            (Query { port, instance: self.instance.clone(), with_clusters: false }, location)
        };
        ViewKey { service: self.service.clone(), query, location }
    }

    /// Returns [`Location::hinted_node`] for the endpoints of a Service in this cluster. A hostname is that of one Pod,
    /// so no hint is needed to choose.
    pub(super) fn hinted_node(
        &self,
        state: &State,
        service: (&NamespacedName, &Service),
        port: QueryPort,
    ) -> Option<Arc<str>> {
        let may_choose = self.instance.is_none() && !service.1.local;
        may_choose.then(|| hinted_node(state, service, port, &self.node)).flatten()
    }
}

impl Query {
    /// The query of clients that are [nowhere](Location::nowhere).
    pub(super) fn nothing() -> Self {
        Self { port: QueryPort::Undeclared, instance: None, with_clusters: false }
    }
}

impl ViewKey {
    /// Returns whether this is still the kind of view for the Service. A deleted Service needs no other kind.
    pub(in crate::destination) fn is_for(&self, members: &Members) -> bool {
        members.service.as_ref().is_none_or(|service| {
            let is_of_kind = match &service.federated {
                // A federated Service may have no members.
                Some(federated) => {
                    members.is_federated && (federated.kind == FederationKind::Federated || members.has_sources())
                }
                None => !service.external_name,
            };
            is_of_kind
                && (self.location.is_nowhere() || members.is_local_only() == self.location.node.is_some())
                && self
                    .location
                    .hinted_node
                    .as_ref()
                    .is_none_or(|node| !members.hinted_for(self.query.port, node).is_empty())
                && match self.query.port {
                    QueryPort::Declared(port) => members.declare(port),
                    QueryPort::Undeclared => true,
                }
        })
    }
}

impl Location {
    /// The node of a client that is on no node with endpoints of this cluster, if the Service is federated: such a
    /// client still receives the endpoints of other clusters. No node has this name.
    pub(in crate::destination) const NO_NODE: &str = "/";

    pub(in crate::destination) fn nowhere() -> Self {
        Self { zone: None, node: Some(Arc::default()), hinted_node: None }
    }

    pub(in crate::destination) fn is_nowhere(&self) -> bool {
        self.node.as_deref() == Some("")
    }
}

impl QueryPort {
    pub(in crate::destination) fn of(service: &Service, port: u16) -> Self {
        if declares(service, port) { Self::Declared(port) } else { Self::Undeclared }
    }
}

pub(in crate::destination) fn declares(service: &Service, port: u16) -> bool {
    service.tcp_ports().any(|it| it.number == i32::from(port))
}

// === impl GetRefusal ===

impl GetRefusal {
    /// The refusal for a Service whose endpoints are in a cluster that is not known.
    pub(super) fn no_cluster(member: &ServiceMember) -> Self {
        Self::NoCluster(member.cluster.as_deref().unwrap_or_default().into())
    }
}

impl From<Stopping> for GetRefusal {
    fn from(Stopping: Stopping) -> Self {
        Self::Stopping
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
