//! What a request is answered with: a view, or a refusal. Pure.
//!
//! In: the cluster's state, a request that was read. Out: which view answers it, or the status that Linkerd's destination
//! would answer with; proxies ask for ever, or never again, depending on its code.

use std::sync::Arc;

use tonic::Status;

use super::view::{Location, Query};
use crate::destination::authority::ServiceAuthority;
use crate::{
    api::{NamespacedName, REMOTE_DISCOVERY, REMOTE_SERVICE_LABEL},
    cluster::{State, kinds::service::Service},
};

/// The key of a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::destination) struct ViewKey {
    pub(in crate::destination) service: NamespacedName,
    pub(in crate::destination) query: Query,
    pub(in crate::destination) location: Location,
}

/// Who asks for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::destination) struct Request {
    pub(in crate::destination) service: NamespacedName,
    pub(in crate::destination) query: Query,
    /// The client's node; empty when it is not known.
    pub(in crate::destination) node: Arc<str>,
}

/// Why a request that could be read is answered with a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::destination) enum Refusal {
    NoService,
    NotFederated,
    NoRemoteService,
    NoCluster(Box<str>),
    ExternalName,
    Stopping,
}

impl Request {
    pub(in crate::destination) fn new(authority: ServiceAuthority, node: &str) -> Self {
        let ServiceAuthority { service, port, instance } = authority;
        Self { service, query: Query { port, instance }, node: node.into() }
    }

    /// # Errors
    /// When the Service is not there, or is none that has endpoints of its own in this cluster.
    pub(in crate::destination) fn resolve(&self, state: &State) -> Result<ViewKey, Refusal> {
        let service = state.services.get(&self.service).ok_or(Refusal::NoService)?;
        match kind(service) {
            Kind::Endpoints => Ok(self.view(service, state)),
            // Until federated Services are watched none is known as such.
            Kind::Federated => Err(Refusal::NotFederated),
            Kind::Remote { service: None, .. } => Err(Refusal::NoRemoteService),
            Kind::Remote { cluster, .. } => Err(Refusal::NoCluster(cluster.into())),
            Kind::ExternalName => Err(Refusal::ExternalName),
        }
    }

    /// The refusal as the client reads it, in upstream's words; `path` is the target as the client wrote it.
    pub(in crate::destination) fn refused(&self, refusal: &Refusal, path: &str) -> Status {
        let NamespacedName { namespace, name } = &self.service;
        match refusal {
            Refusal::NoService => Status::not_found(format!("Service {name}.{namespace} not found")),
            Refusal::NotFederated => Status::unknown(format!("service {namespace}/{name} is not a federated service")),
            Refusal::NoRemoteService => {
                Status::failed_precondition(format!("Remote discovery service missing remote service name {path}"))
            }
            Refusal::NoCluster(cluster) => Status::not_found(format!("Remote cluster not found: {cluster}")),
            Refusal::ExternalName => Status::invalid_argument(format!("Invalid authority: {path}")),
            Refusal::Stopping => Status::unavailable("this destination is stopping: ask another"),
        }
    }

    fn view(&self, service: &Service, state: &State) -> ViewKey {
        let location =
            Location { zone: state.nodes.zone(&self.node), node: service.local.then(|| Arc::clone(&self.node)) };
        ViewKey { service: self.service.clone(), query: self.query.clone(), location }
    }
}

impl ViewKey {
    /// Whether the Service, as it is now, is answered with this kind of view. One that is gone has no other.
    pub(in crate::destination) fn is_for(&self, service: Option<&Service>) -> bool {
        service.is_none_or(|service| {
            matches!(kind(service), Kind::Endpoints) && service.local == self.location.node.is_some()
        })
    }
}

/// Where the endpoints of a Service come from.
enum Kind<'a> {
    Endpoints,
    Federated,
    Remote { cluster: &'a str, service: Option<&'a str> },
    ExternalName,
}

/// Services whose endpoints are in other clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::destination) enum Elsewhere {
    Remote,
    Federated,
}

pub(in crate::destination) fn elsewhere(service: &Service) -> Option<Elsewhere> {
    match kind(service) {
        Kind::Federated => Some(Elsewhere::Federated),
        Kind::Remote { .. } => Some(Elsewhere::Remote),
        Kind::Endpoints | Kind::ExternalName => None,
    }
}

fn kind(service: &Service) -> Kind<'_> {
    let label = |key| service.labels.get(key).map(String::as_str);
    match label(REMOTE_DISCOVERY) {
        _ if service.federated => Kind::Federated,
        Some(cluster) => Kind::Remote { cluster, service: label(REMOTE_SERVICE_LABEL) },
        None if service.external_name => Kind::ExternalName,
        None => Kind::Endpoints,
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
