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
    request::{GetRequest, QueryPort, ViewKey, declares},
};
use crate::cluster::kinds::service::Service;

#[derive(Debug)]
pub(super) enum Premise {
    /// The Service does not declare the ports of the requests.
    Ports(Arc<Service>),
    /// No endpoint has the hostnames of the requests or, under the local policy, none is on the nodes of the requests.
    Names { hostnames: HashSet<Arc<str>>, nodes: HashSet<Arc<str>>, local: bool },
}

// === impl Premise ===

impl Premise {
    /// Returns `None` for a view with a premise that cannot fail: its key has all that its clients request. Also returns
    /// `None` while the Service does not exist, because then its streams wait.
    pub(super) fn of(key: &ViewKey, members: &Members) -> Option<Self> {
        let service = members.service.as_ref()?;
        if key.location.is_nowhere() {
            let (hostnames, nodes) = (members.hostnames().cloned().collect(), members.nodes().cloned().collect());
            return Some(Self::Names { hostnames, nodes, local: service.local });
        }
        (key.query.port == QueryPort::Undeclared).then(|| Self::Ports(Arc::clone(service)))
    }

    /// Returns whether the request belongs to another view.
    pub(super) fn excludes(&self, request: &GetRequest) -> bool {
        match self {
            Self::Ports(service) => declares(service, request.port),
            Self::Names { hostnames, nodes, local } => {
                request.instance.as_ref().is_none_or(|hostname| hostnames.contains(hostname))
                    && (!local || nodes.contains(&request.node))
            }
        }
    }
}

impl PartialEq for Premise {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ports(one), Self::Ports(other)) => {
                let numbers =
                    |service: &Arc<Service>| -> Vec<i32> { service.ports.iter().map(|it| it.number).collect() };
                Arc::ptr_eq(one, other) || numbers(one) == numbers(other)
            }
            (
                Self::Names { hostnames, nodes, local },
                Self::Names { hostnames: other_hostnames, nodes: other_nodes, local: other_local },
            ) => local == other_local && hostnames == other_hostnames && nodes == other_nodes,
            _ => false,
        }
    }
}
