//! Why the requests of a shared view belong to it. Pure.
//!
//! Clients choose the ports, hostnames and nodes that they request. Requests for ports that the Service does not declare
//! share one view; requests for a hostname or a node that no endpoint has share another, without endpoints.
//!
//! In: the members of a Service. Out: what a publication of such a view takes for granted. Always holds: while the
//! premise of a view is the same, its requests belong to it.

use std::{collections::HashSet, sync::Arc};

use super::{
    members::Members,
    request::{GetRequest, Location, QueryPort, ViewKey, declares},
};
use crate::cluster::kinds::service::Service;

#[derive(Debug)]
pub(super) enum Premise {
    /// The Service, or each of the Services that it is joined from, does not declare the ports of the requests.
    Ports(Vec<Arc<Service>>),
    /// No endpoint has the hostnames of the requests or, under the local policy, none is on the nodes of the requests.
    Names { hostnames: HashSet<Arc<str>>, nodes: HashSet<Arc<str>>, local: bool },
    /// The endpoints in this cluster, of a Service that is joined, are on none of the nodes of the requests. Maybe its
    /// members do not declare the ports of the requests either.
    Nodes { nodes: HashSet<Arc<str>>, ports: Vec<Arc<Service>> },
}

// === impl Premise ===

impl Premise {
    /// Returns `None` for a view with a premise that cannot fail: its key has all that its clients request. Also returns
    /// `None` while the Service does not exist, because then its streams wait.
    pub(super) fn of(key: &ViewKey, members: &Members) -> Option<Self> {
        members.service.as_ref()?;
        let nodes = || members.nodes().cloned().collect();
        if key.location.is_nowhere() {
            // The clients of a Service that is joined receive the endpoints of other clusters on every node.
            let local = members.is_local_only() && !members.is_joined;
            return Some(Self::Names { hostnames: members.hostnames().cloned().collect(), nodes: nodes(), local });
        }
        let is_undeclared = key.query.port == QueryPort::Undeclared;
        let ports = if is_undeclared { members.services().cloned().collect() } else { Vec::new() };
        if key.location.node.as_deref() == Some(Location::NO_NODE) {
            return Some(Self::Nodes { nodes: nodes(), ports });
        }
        is_undeclared.then_some(Self::Ports(ports))
    }

    /// Returns whether the request belongs to another view.
    pub(super) fn excludes(&self, request: &GetRequest) -> bool {
        match self {
            Self::Ports(services) => declare(services, request.port),
            Self::Names { hostnames, nodes, local } => {
                request.instance.as_ref().is_none_or(|hostname| hostnames.contains(hostname))
                    && (!local || nodes.contains(&request.node))
            }
            Self::Nodes { nodes, ports } => nodes.contains(&request.node) || declare(ports, request.port),
        }
    }
}

fn declare(services: &[Arc<Service>], port: u16) -> bool {
    services.iter().any(|service| declares(service, port))
}

fn numbers(services: &[Arc<Service>]) -> Vec<i32> {
    services.iter().flat_map(|service| &service.ports).map(|it| it.number).collect()
}

impl PartialEq for Premise {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ports(one), Self::Ports(other)) => numbers(one) == numbers(other),
            (Self::Nodes { nodes, ports }, Self::Nodes { nodes: other_nodes, ports: other_ports }) => {
                nodes == other_nodes && numbers(ports) == numbers(other_ports)
            }
            (
                Self::Names { hostnames, nodes, local },
                Self::Names { hostnames: other_hostnames, nodes: other_nodes, local: other_local },
            ) => local == other_local && hostnames == other_hostnames && nodes == other_nodes,
            _ => false,
        }
    }
}
