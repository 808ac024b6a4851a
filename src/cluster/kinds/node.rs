//! Nodes: their zones, which are the zones of the clients on them.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use crate::{
    api::{BareMetadataOf, NamespacedName, ZONE_LABEL},
    cluster::{
        Problems, Projected,
        index::store::{Store, Stored},
    },
};

/// A zone; `None` if it is unknown.
pub type Zone = Option<Arc<str>>;

/// A Node, of which only the metadata is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    name: Arc<str>,
    pub zone: Zone,
}

impl Store<Node> {
    pub fn zone(&self, node: &str) -> Zone {
        self.find("", node)?.zone.clone()
    }
}

impl Stored for Node {
    type NamespaceIndex = ();
    type ClusterIndex = ();

    fn key(&self) -> NamespacedName {
        NamespacedName::cluster_scoped(&self.name)
    }
}

// === impl Node ===

impl Projected for Node {
    type Wire = BareMetadataOf<core::Node>;

    fn project(wire: Self::Wire, _: &mut Problems) -> Self {
        let mut labels = wire.metadata.labels.unwrap_or_default();
        let zone = labels.remove(ZONE_LABEL).filter(|zone| !zone.is_empty());
        Self { name: wire.metadata.name.unwrap_or_default().into(), zone: zone.map(Arc::from) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::{State, Watched};

    fn node(labels: &serde_json::Value) -> Node {
        let object = json!({"metadata": {"name": "node-1", "labels": labels}});
        Node::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
    }

    #[test]
    fn the_zone_of_a_node_is_that_of_its_latest_labels() {
        let mut state = State::default();
        let (a, b) = (json!({ ZONE_LABEL: "a" }), json!({ ZONE_LABEL: "b", "other": "label" }));
        let mut apply = |labels: &serde_json::Value| {
            let is_change = node(labels).apply(&mut state).is_some();
            (is_change, state.nodes.zone("node-1"))
        };
        assert_eq!(apply(&json!({})), (true, None));
        assert_eq!(apply(&a), (true, Some("a".into())));
        assert_eq!(apply(&a), (false, Some("a".into())));
        assert_eq!(apply(&b), (true, Some("b".into())));
        assert!(Node::remove(&NamespacedName::new("", "node-1"), &mut state).is_some());
        assert_eq!(state.nodes.zone("node-1"), None);
    }
}
