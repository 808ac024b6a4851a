//! The hints for nodes in one EndpointSlice: Kubernetes writes them for `trafficDistribution: PreferSameNode`.

use std::sync::Arc;

use crate::cluster::index::shared_values::SharedValues;

/// The nodes whose clients should use the endpoints of a slice. A slice without such hints has none of these, so a cluster
/// that does not use them keeps nothing for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHints {
    /// Each node with the index of an endpoint that has a hint for it, sorted.
    by_node: Box<[(Arc<str>, usize)]>,
    /// Whether every endpoint has a hint.
    is_complete: bool,
}

// === impl NodeHints ===

impl NodeHints {
    /// Returns `None` if no endpoint has a hint. The endpoints are given by the nodes that they have hints for.
    pub(super) fn new<'a>(endpoints: impl Iterator<Item = Vec<&'a str>>) -> Option<Self> {
        let (mut by_node, mut is_complete) = (Vec::new(), true);
        for (endpoint, nodes) in endpoints.enumerate() {
            is_complete &= !nodes.is_empty();
            by_node.extend(nodes.into_iter().map(|node| (Arc::from(node), endpoint)));
        }
        by_node.sort_unstable();
        by_node.dedup();
        (!by_node.is_empty()).then(|| Self { by_node: by_node.into(), is_complete })
    }

    pub(super) fn share(&mut self, values: &mut SharedValues) {
        for (node, _) in &mut self.by_node {
            values.text(node);
        }
    }

    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the nodes, each with the index of an endpoint that has a hint for it.
    pub fn all(&self) -> &[(Arc<str>, usize)] {
        &self.by_node
    }

    /// Returns the part of [`all`](Self::all) with this node.
    pub fn of(&self, node: &str) -> &[(Arc<str>, usize)] {
        let start = self.by_node.partition_point(|(it, _)| **it < *node);
        let rest = self.by_node.get(start..).unwrap_or_default();
        rest.get(..rest.partition_point(|(it, _)| **it == *node)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hints(endpoints: &[&[&'static str]]) -> Option<NodeHints> {
        NodeHints::new(endpoints.iter().map(|nodes| nodes.to_vec()))
    }

    #[test]
    fn the_endpoints_of_a_node_are_those_with_a_hint_for_exactly_this_node() {
        let hints = hints(&[&["b"], &["a", "b"], &["a"], &["ab", "ab"]]).unwrap();
        let of = |node: &str| hints.of(node).iter().map(|(_, endpoint)| *endpoint).collect::<Vec<_>>();
        assert_eq!([of("a"), of("b"), of("ab")], [vec![1, 2], vec![0, 1], vec![3]]);
        assert_eq!([of(""), of("aa"), of("c")], [const { Vec::<usize>::new() }; 3]);
        assert_eq!((hints.all().len(), hints.is_complete()), (5, true));
    }

    #[test]
    fn hints_are_complete_if_every_endpoint_has_one() {
        assert_eq!(hints(&[&["a"], &[]]).map(|hints| hints.is_complete()), Some(false));
        assert_eq!([hints(&[&[], &[]]), hints(&[])], [None, None]);
    }
}
