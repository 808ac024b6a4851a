//! The store of Pods, with lookups by name, selector, owner and address.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::{
    address::ByAddress,
    label_selector::LabelSelector,
    names::NamesBy,
    selector::{ByLabel, Pair},
    store::{Store, Stored},
};
use crate::{
    api::NamespacedName,
    cluster::kinds::{owner::Owner, pod::Pod, proxy::AllInjected},
};

/// The Pods of a namespace, by label and by owner.
#[derive(Default)]
pub struct PodsOfNamespace {
    by_label: ByLabel,
    by_owner: NamesBy<Owner>,
}

/// Pods of a namespace that a change of another object may concern. An observer marks the group under the lock of the
/// state, and its consumer looks the Pods up in steps, because there may be ten thousand.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodGroup {
    pub namespace: Arc<str>,
    pub members: PodGroupMembers,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PodGroupMembers {
    All,
    /// The Pods with this label.
    Labeled(Pair),
    /// The Pods that have this owner and no other.
    OwnedBy(Owner),
}

/// All Pods by address, the number of Pods by node, and the injected configurations that Pods share.
#[derive(Default)]
pub struct PodsOfCluster {
    by_ip: ByAddress<IpAddr, Pod>,
    by_host_port: ByAddress<SocketAddr, Pod>,
    by_node: HashMap<Arc<str>, usize>,
    injected: AllInjected,
}

impl Stored for Pod {
    type NamespaceIndex = PodsOfNamespace;
    type ClusterIndex = PodsOfCluster;

    fn key(&self) -> NamespacedName {
        self.key.clone()
    }

    fn inherit(&mut self, known: &Self) {
        // Whenever a Pod changes, its labels and ports are usually those that it had, and may be forgotten elsewhere.
        if self.labels == known.labels {
            self.labels = known.labels.clone();
        }
        if self.ports == known.ports {
            self.ports = Arc::clone(&known.ports);
        }
    }

    fn prepare(&mut self, cluster: &mut PodsOfCluster) {
        self.injected = self.injected.take().map(|injected| cluster.injected.share(injected));
    }

    fn index(self: &Arc<Self>, namespace: &mut PodsOfNamespace, cluster: &mut PodsOfCluster) {
        cluster.by_ip.insert(self.own_addresses().iter().copied(), self);
        cluster.by_host_port.insert(self.host_ports(), self);
        *cluster.by_node.entry(Arc::clone(&self.node)).or_default() += 1;
        namespace.by_label.insert(&self.labels, &self.key.name);
        if let Some(owner) = &self.owner {
            namespace.by_owner.insert(owner.clone(), &self.key.name);
        }
    }

    fn unindex(self: &Arc<Self>, namespace: &mut PodsOfNamespace, cluster: &mut PodsOfCluster) {
        namespace.by_label.remove(&self.labels, &self.key.name);
        if let Some(owner) = &self.owner {
            namespace.by_owner.remove(owner, &self.key.name);
        }
        if let Some(injected) = &self.injected {
            cluster.injected.release(injected);
        }
        cluster.by_ip.remove(self.own_addresses().iter().copied(), self);
        cluster.by_host_port.remove(self.host_ports(), self);
        if let Entry::Occupied(mut count) = cluster.by_node.entry(Arc::clone(&self.node)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

// === impl PodGroup ===

impl PodGroup {
    /// Returns a group with all Pods that the selector matches, and maybe others.
    pub fn selected(namespace: &Arc<str>, selector: &LabelSelector) -> Self {
        let members = selector.pair().map_or(PodGroupMembers::All, |pair| PodGroupMembers::Labeled(pair.clone()));
        Self { namespace: Arc::clone(namespace), members }
    }
}

impl Store<Pod> {
    /// Returns the Pods of the group. Their number is that of a namespace at most, so the caller must only copy them
    /// under the lock.
    pub fn in_group(&self, PodGroup { namespace, members }: &PodGroup) -> Vec<Arc<Pod>> {
        match members {
            PodGroupMembers::All => self.in_namespace(namespace).cloned().collect(),
            PodGroupMembers::Labeled(pair) => {
                self.select(namespace, |index| index.by_label.with(pair)).cloned().collect()
            }
            PodGroupMembers::OwnedBy(owner) => self.owned(namespace, owner).cloned().collect(),
        }
    }

    /// Returns the Pods of a control plane in the namespace.
    pub fn of_control_plane(&self, namespace: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.in_namespace(namespace).filter(|pod| pod.is_control_plane())
    }

    /// Returns the Pods of the namespace that have this owner and no other.
    pub fn owned<'a>(&'a self, namespace: &str, owner: &Owner) -> impl Iterator<Item = &'a Arc<Pod>> + use<'a> {
        self.select(namespace, |index| index.by_owner.get(owner))
    }

    /// Returns the Pods that are reachable at the address in the Pod network.
    pub fn at(&self, address: IpAddr) -> &[Arc<Pod>] {
        self.cluster_index().by_ip.get(&address)
    }

    /// Returns whether a node has Pods. Pods that have ended count as well.
    pub fn have_any_on(&self, node: &str) -> bool {
        !node.is_empty() && self.cluster_index().by_node.contains_key(node)
    }

    /// Returns the Pods that are reachable at the address of their node, through a host port of a container.
    pub fn at_host(&self, address: SocketAddr) -> &[Arc<Pod>] {
        self.cluster_index().by_host_port.get(&address)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        api::NamespacedName,
        cluster::testing::{pod, pod_with_status},
    };

    #[test]
    fn pods_are_found_by_selector_and_owner_until_they_are_deleted() {
        let mut pods = Store::<Pod>::default();
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u"}]);
        pods.apply(pod(&json!({"labels": {"app": "web"}, "ownerReferences": owner}), &json!({})).0);
        let namespace: Arc<str> = "ns".into();
        let selected = |value: Value| {
            let selector = LabelSelector::parse(serde_json::from_value(value).unwrap()).unwrap();
            PodGroup::selected(&namespace, &selector)
        };
        let replica_set = Owner { kind: "ReplicaSet".into(), name: "web".into() };
        let groups = [
            selected(json!({})),
            selected(json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]})),
            selected(json!({"matchLabels": {"app": "web"}})),
            selected(json!({"matchLabels": {"app": "db"}})),
            PodGroup { namespace: Arc::clone(&namespace), members: PodGroupMembers::OwnedBy(replica_set) },
            PodGroup { namespace: "other".into(), members: PodGroupMembers::All },
        ];
        let counts = |pods: &Store<Pod>| groups.each_ref().map(|group| pods.in_group(group).len());
        assert_eq!(counts(&pods), [1, 1, 1, 0, 1, 0]);
        pods.apply(pod(&json!({"labels": {"app": "db"}}), &json!({})).0);
        assert_eq!(counts(&pods), [1, 1, 0, 1, 0, 0]);
        pods.delete(&NamespacedName::new("ns", "web-1"));
        assert!(pods.is_empty());
    }

    #[test]
    fn pods_share_their_injected_configuration_until_deleted_even_if_a_deleted_pod_is_still_referenced() {
        let mut pods = Store::<Pod>::default();
        let injected_pod = |name: &str, image: &str| {
            let spec = json!({"containers": [{"name": "linkerd-proxy", "image": image}]});
            pod(&json!({ "name": name }), &spec).0
        };
        for (name, image) in [("a", "proxy:1"), ("b", "proxy:1"), ("c", "proxy:2"), ("b", "proxy:1")] {
            pods.apply(injected_pod(name, image));
        }
        let shared =
            |pods: &Store<Pod>, name: &str| Arc::clone(pods.find("ns", name).unwrap().injected.as_ref().unwrap());
        assert!(Arc::ptr_eq(&shared(&pods, "a"), &shared(&pods, "b")));
        assert_eq!(pods.cluster_index().injected.len(), 2);
        let kept = pods.delete(&NamespacedName::new("ns", "c"));
        assert_eq!((pods.cluster_index().injected.len(), kept.is_some()), (1, true));
        for name in ["a", "b"] {
            pods.delete(&NamespacedName::new("ns", name));
        }
        assert_eq!(pods.cluster_index().injected.len(), 0);
    }

    #[test]
    fn a_pod_that_changes_keeps_the_allocations_of_its_labels_and_ports() {
        let mut pods = Store::<Pod>::default();
        let on = |node: &str| {
            let spec = json!({"nodeName": node, "containers": [{"name": "web", "ports": [{"containerPort": 80}]}]});
            pod(&json!({"labels": {"app": "web"}}), &spec).0
        };
        pods.apply(on("node-1"));
        let before = Arc::clone(pods.find("ns", "web-1").unwrap());
        pods.apply(on("node-2"));
        let after = pods.find("ns", "web-1").unwrap();
        let first = |pod: &Pod| std::ptr::from_ref(pod.labels.iter().next().unwrap());
        assert_eq!((&*after.node, first(&before)), ("node-2", first(after)));
        assert!(Arc::ptr_eq(&before.ports, &after.ports));
    }

    #[test]
    fn a_pod_is_found_by_its_addresses_while_it_is_reachable() {
        let mut pods = Store::<Pod>::default();
        let spec = |host_network: bool| {
            let ports = json!([{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81, "hostPort": 8080, "protocol": "UDP"}]);
            json!({"hostNetwork": host_network, "initContainers": [{"name": "a", "ports": ports}]})
        };
        let status = |phase: &str| {
            json!({"phase": phase, "podIP": "10.0.0.1", "hostIP": "192.0.2.1",
            "podIPs": [{"ip": "10.0.0.1"}, {"ip": "2001:DB8::1"}], "hostIPs": [{"ip": "192.0.2.1"}, {"ip": "2001:db8::ff"}]})
        };
        let addresses = ["10.0.0.1", "2001:db8::1", "192.0.2.1"];
        let found = |pods: &Store<Pod>| {
            let own = addresses.map(|address| pods.at(address.parse().unwrap()).len());
            let host = ["192.0.2.1:8080", "[2001:db8::ff]:8080", "192.0.2.1:80"];
            (own, host.map(|address| pods.at_host(address.parse().unwrap()).len()))
        };
        for (phase, host_network, expected) in [
            ("Running", false, ([1, 1, 0], [1, 1, 0])),
            ("Pending", false, ([1, 1, 0], [1, 1, 0])),
            ("Unknown", true, ([0, 0, 0], [1, 1, 0])),
            ("Succeeded", false, ([0, 0, 0], [0, 0, 0])),
            ("Failed", true, ([0, 0, 0], [0, 0, 0])),
        ] {
            pods.apply(pod_with_status(&spec(host_network), &status(phase)));
            assert_eq!(found(&pods), expected, "{phase}");
        }
        pods.apply(pod_with_status(&spec(false), &status("Running")));
        pods.delete(&NamespacedName::new("ns", "web-1"));
        assert!(pods.cluster_index().by_ip.is_empty() && pods.cluster_index().by_host_port.is_empty());
    }

    #[test]
    fn a_node_has_pods_until_its_last_pod_is_deleted_or_replaced_by_one_on_another_node() {
        let mut pods = Store::<Pod>::default();
        let on = |name: &str, node: &str| pod(&json!({ "name": name }), &json!({ "nodeName": node })).0;
        pods.apply(on("a", "node-1"));
        pods.apply(on("b", "node-1"));
        pods.apply(on("unscheduled", ""));
        let known = |pods: &Store<Pod>| ["node-1", "node-2", ""].map(|node| pods.have_any_on(node));
        assert_eq!(known(&pods), [true, false, false]);
        pods.apply(on("a", "node-2"));
        assert_eq!(known(&pods), [true, true, false]);
        pods.delete(&NamespacedName::new("ns", "b"));
        assert_eq!(known(&pods), [false, true, false]);
        for name in ["a", "unscheduled"] {
            pods.delete(&NamespacedName::new("ns", name));
        }
        assert!(pods.cluster_index().by_node.is_empty());
    }
}
