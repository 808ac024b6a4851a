//! Hints for nodes. Pure.
//!
//! As with kube-proxy, a client receives only the endpoints with a hint for its node if every endpoint has a hint for
//! some node, and one for this node. Only the slices with the requested port count. Otherwise the hints for zones
//! decide.
//!
//! In: the state of the cluster, for a request; the members of a Service, for its views. Out: whether a client's node
//! has endpoints of its own. Both must be decided by the same rule: a stream looks for another view until its request
//! belongs to one. Always holds: only nodes of existing endpoints have views, because clients can choose any name; and
//! such a view has only the endpoints of its node.

use std::{collections::HashSet, sync::Arc};

use super::{members::Members, port_selector::PortSelector, request::QueryPort};
use crate::{
    api::NamespacedName,
    cluster::{
        State,
        kinds::{
            endpoint_slice::{node_hints::NodeHints, ready::ReadySlice},
            service::Service,
        },
    },
    destination::endpoint::target::EndpointTarget,
};

/// Returns the name of the node if its clients receive only the endpoints with a hint for it.
pub(super) fn hinted_node(
    state: &State,
    (key, service): (&NamespacedName, &Service),
    port: QueryPort,
    node: &str,
) -> Option<Arc<str>> {
    if !state.slices.have_node_hints(key) {
        return None;
    }
    let port = PortSelector::new(Some(service), port);
    let mut found = None;
    for slice in state.slices.ready_of_service(key).filter(|slice| port.in_slice(slice).is_some()) {
        if slice.lacks_node_hints() {
            return None;
        }
        let exists = |endpoint| EndpointTarget::of(state, &key.namespace, endpoint).is_some();
        let mut hints = slice.node_hints.iter().flat_map(|hints| hints.of(node));
        if found.is_none() {
            found = hints.find(|(_, endpoint)| slice.endpoints.get(*endpoint).is_some_and(exists));
        }
    }
    found.map(|(node, _)| Arc::clone(node))
}

// === impl Members ===

impl Members {
    /// Returns the indices of the members that the clients on a node receive because of hints, in order. It is empty if
    /// the hints do not decide for this node.
    pub(super) fn hinted_for(&self, port: QueryPort, node: &str) -> Vec<usize> {
        let slices = self.deciding(port);
        let hinted = slices.iter().flat_map(|(slice, hints)| hints.of(node).iter().map(|(_, it)| (*slice, *it)));
        let mut members: Vec<usize> = hinted.filter_map(|(slice, endpoint)| self.position(slice, endpoint)).collect();
        members.sort_unstable();
        members
    }

    /// Returns the nodes whose clients receive only the endpoints with a hint for their node.
    pub(super) fn hinted_nodes(&self, port: QueryPort) -> HashSet<Arc<str>> {
        let mut nodes = HashSet::new();
        for (slice, hints) in self.deciding(port) {
            for (node, endpoint) in hints.all() {
                if !nodes.contains(node) && self.position(slice, *endpoint).is_some() {
                    nodes.insert(Arc::clone(node));
                }
            }
        }
        nodes
    }

    /// Returns the hints of the slices of this cluster, with the index of each slice. It is empty if an endpoint with
    /// the port has no hint.
    fn deciding(&self, port: QueryPort) -> Vec<(usize, &NodeHints)> {
        let slices = || self.slices.iter().enumerate();
        if slices().all(|(_, slice)| slice.content.node_hints.is_none()) {
            return Vec::new();
        }
        let ports: Vec<Option<PortSelector<'_>>> = self
            .sources
            .iter()
            .map(|source| source.remote.is_none().then(|| PortSelector::new(source.service.as_deref(), port)))
            .collect();
        let has_port = |source: usize, slice: &ReadySlice| {
            ports.get(source).and_then(Option::as_ref).is_some_and(|port| port.in_slice(slice).is_some())
        };
        let slices = || slices().filter(|(_, slice)| has_port(slice.source, &slice.content));
        if slices().any(|(_, slice)| slice.content.lacks_node_hints()) {
            return Vec::new();
        }
        slices().filter_map(|(index, slice)| Some((index, slice.content.node_hints.as_deref()?))).collect()
    }

    /// Returns the index of the member; `None` if the target of the endpoint does not exist.
    fn position(&self, slice: usize, endpoint: usize) -> Option<usize> {
        self.members.binary_search_by_key(&(slice, endpoint), |member| (member.slice, member.endpoint)).ok()
    }
}
