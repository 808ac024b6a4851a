//! Nodes: the zone each is in, which is where the clients on it are.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::core::v1 as core;

use crate::api::MetadataOf;
use crate::api::ZONE_LABEL;
use crate::{
    api::NamespacedName,
    cluster::{Affected, Kind, Problems, Projected, State},
};

/// A zone; `None` where it is not known.
pub type Zone = Option<Arc<str>>;

/// A Node, of which only the metadata is watched.
pub struct Node {
    name: Arc<str>,
    zone: Zone,
}

/// The zones of all Nodes.
#[derive(Default)]
pub struct Nodes(HashMap<Arc<str>, Zone>);

// === impl Nodes ===

impl Nodes {
    pub fn zone(&self, node: &str) -> Zone {
        self.0.get(node).cloned().flatten()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

// === impl Node ===

impl Projected for Node {
    type Wire = MetadataOf<core::Node>;
    const KIND: Kind = Kind::Node;

    fn project(wire: Self::Wire, _: &mut Problems) -> Self {
        let mut labels = wire.metadata.labels.unwrap_or_default();
        let zone = labels.remove(ZONE_LABEL).filter(|zone| !zone.is_empty());
        Self { name: wire.metadata.name.unwrap_or_default().into(), zone: zone.map(Arc::from) }
    }

    fn apply(self, state: &mut State) -> Affected {
        let was = state.nodes.zone(&self.name);
        let changed = was != self.zone;
        state.nodes.0.insert(self.name, self.zone);
        if changed { Affected::moved_from(was) } else { Affected::default() }
    }

    fn remove(key: &NamespacedName, state: &mut State) -> Affected {
        match state.nodes.0.remove(&key.name).flatten() {
            Some(zone) => Affected::moved_from(Some(zone)),
            None => Affected::default(),
        }
    }

    fn keys(state: &State) -> Vec<NamespacedName> {
        state.nodes.0.keys().map(|name| NamespacedName::new("", Arc::clone(name))).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(labels: &serde_json::Value) -> Node {
        let object = json!({"metadata": {"name": "node-1", "labels": labels}});
        Node::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
    }

    #[test]
    fn only_a_change_of_its_zone_moves_the_clients_of_a_node() {
        let mut state = State::default();
        let (a, b) = (json!({ ZONE_LABEL: "a" }), json!({ ZONE_LABEL: "b", "other": "label" }));
        assert_eq!(node(&json!({})).apply(&mut state), Affected::default(), "unknown, as before");
        assert_eq!(node(&a).apply(&mut state), Affected::moved_from(None));
        assert_eq!(node(&a).apply(&mut state), Affected::default());
        assert_eq!(node(&b).apply(&mut state), Affected::moved_from(Some("a".into())));
        assert_eq!(state.nodes.zone("node-1").as_deref(), Some("b"));
        let removed = Node::remove(&NamespacedName::new("", "node-1"), &mut state);
        assert_eq!(removed, Affected::moved_from(Some("b".into())));
        assert_eq!(state.nodes.zone("node-1"), None);
    }
}
