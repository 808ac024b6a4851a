//! The requests that do not belong to a shared view. Pure.
//!
//! Clients choose the ports, hostnames and nodes that they request. Requests for ports that the Service does not
//! declare share one view; requests for a hostname or a node that no endpoint has share another, without endpoints.
//!
//! In: the members of a Service. Out: the exclusions, which are computed with each publication of such a view. Always
//! holds: while the exclusions of a view are the same, its requests belong to it.

use std::{collections::HashSet, sync::Arc};

use super::{
    members::Members,
    request::{GetRequest, Location, QueryPort, ViewKey, declares},
};
use crate::cluster::kinds::service::Service;

#[derive(Debug)]
pub(super) enum Exclusions {
    /// The requests for a hostname that an endpoint has and, under the local policy, on a node with an endpoint.
    Names { hostnames: HashSet<Arc<str>>, nodes: HashSet<Arc<str>>, local: bool },
    /// The requests on one of these nodes, or for a port that one of these Services declares. The nodes are those that
    /// have endpoints of their own: because of hints or, under the local policy, if the Service is federated.
    Elsewhere { nodes: HashSet<Arc<str>>, services: Vec<Arc<Service>> },
}

// === impl Exclusions ===

impl Exclusions {
    /// Returns `None` for a view without exclusions: its key has all that its clients request. Also returns
    /// `None` while the Service does not exist, because then its streams wait.
    pub(super) fn of(key: &ViewKey, members: &Members) -> Option<Self> {
        members.service.as_ref()?;
        let ViewKey { query, location, .. } = key;
        let nodes = || members.nodes().cloned().collect();
        if location.is_nowhere() {
            // The clients of a federated Service receive the endpoints of other clusters on every node.
            let local = members.is_local_only() && !members.is_federated;
            return Some(Self::Names { hostnames: members.hostnames().cloned().collect(), nodes: nodes(), local });
        }
        let nodes = match (&location.node, &location.hinted_node) {
            (Some(node), _) if **node == *Location::NO_NODE => nodes(),
            (None, None) if query.instance.is_none() => members.hinted_nodes(query.port),
            _ => HashSet::new(),
        };
        let is_undeclared = query.port == QueryPort::Undeclared;
        let services = if is_undeclared { members.services().cloned().collect() } else { Vec::new() };
        (is_undeclared || !nodes.is_empty()).then_some(Self::Elsewhere { nodes, services })
    }

    /// Returns whether the request belongs to another view.
    pub(super) fn contain(&self, request: &GetRequest) -> bool {
        match self {
            Self::Names { hostnames, nodes, local } => {
                request.instance.as_ref().is_none_or(|hostname| hostnames.contains(hostname))
                    && (!local || nodes.contains(&request.node))
            }
            Self::Elsewhere { nodes, services } => {
                nodes.contains(&request.node) || services.iter().any(|service| declares(service, request.port))
            }
        }
    }
}

fn numbers(services: &[Arc<Service>]) -> Vec<i32> {
    services.iter().flat_map(|service| service.tcp_ports()).map(|it| it.number).collect()
}

impl PartialEq for Exclusions {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Elsewhere { nodes, services }, Self::Elsewhere { nodes: other_nodes, services: other_services }) => {
                nodes == other_nodes && numbers(services) == numbers(other_services)
            }
            (
                Self::Names { hostnames, nodes, local },
                Self::Names { hostnames: other_hostnames, nodes: other_nodes, local: other_local },
            ) => local == other_local && hostnames == other_hostnames && nodes == other_nodes,
            _ => false,
        }
    }
}
