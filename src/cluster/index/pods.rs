//! All Pods: found by name, by what selects or owns them, and by their addresses.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::{address::ByAddress, label_selector::LabelSelector, selector::ByLabel};
use crate::{
    api::NamespacedName,
    cluster::kinds::{owner::Owner, pod::Pod, proxy::AllInjected},
};

/// All Pods of a cluster.
#[derive(Default)]
pub struct Pods {
    namespaces: HashMap<Arc<str>, Namespace>,
    by_ip: ByAddress<IpAddr, Pod>,
    by_host_port: ByAddress<SocketAddr, Pod>,
    injected: AllInjected,
    count: usize,
}

#[derive(Default)]
struct Namespace {
    by_name: HashMap<Arc<str>, Arc<Pod>>,
    by_label: ByLabel,
    by_owner: HashMap<Owner, BTreeSet<Arc<str>>>,
}

// === impl Pods ===

impl Pods {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<Pod>> {
        self.namespaces.get(namespace)?.by_name.get(name)
    }

    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.namespaces.get(namespace).into_iter().flat_map(|namespace| namespace.by_name.values())
    }

    /// The Pods of a namespace that the selector matches.
    pub fn selected<'a>(&'a self, namespace: &str, selector: &'a LabelSelector) -> impl Iterator<Item = &'a Arc<Pod>> {
        let namespace = self.namespaces.get(namespace);
        let by_label = namespace.and_then(|it| Some(it.by_label.candidates(selector.equal()?)));
        let all = namespace.filter(|_| selector.equal().is_none()).map(|it| it.by_name.keys());
        by_label
            .into_iter()
            .flatten()
            .chain(all.into_iter().flatten())
            .filter_map(move |name| namespace?.by_name.get(name))
            .filter(|pod| selector.matches(&pod.labels))
    }

    /// Those of a control plane in the namespace.
    pub fn of_control_plane(&self, namespace: &str) -> impl Iterator<Item = &Arc<Pod>> {
        let pods = self.namespaces.get(namespace).into_iter().flat_map(|namespace| namespace.by_name.values());
        pods.filter(|pod| pod.is_control_plane())
    }

    /// The Pods of a namespace whose only owner this is.
    pub fn owned<'a>(&'a self, namespace: &str, owner: &Owner) -> impl Iterator<Item = &'a Arc<Pod>> + use<'a> {
        let namespace = self.namespaces.get(namespace);
        let names = namespace.and_then(|it| it.by_owner.get(owner)).into_iter().flatten();
        names.filter_map(move |name| namespace?.by_name.get(name))
    }

    /// The Pods that have the address in the network of Pods, and may be reached there.
    pub fn at(&self, address: IpAddr) -> &[Arc<Pod>] {
        self.by_ip.get(&address)
    }

    /// The Pods of which a container has the port on the node with the address, and may be reached there.
    pub fn at_host(&self, address: SocketAddr) -> &[Arc<Pod>] {
        self.by_host_port.get(&address)
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.namespaces.values().flat_map(|namespace| namespace.by_name.values())
    }

    pub(in crate::cluster) fn keys(&self) -> impl Iterator<Item = NamespacedName> {
        self.all().map(|pod| pod.key.clone())
    }

    pub(in crate::cluster) fn insert(&mut self, mut pod: Pod) {
        self.remove(&pod.key);
        self.count += 1;
        pod.injected = pod.injected.map(|injected| self.injected.share(injected));
        let pod = Arc::new(pod);
        self.by_ip.insert(pod.own_addresses().iter().copied(), &pod);
        self.by_host_port.insert(pod.host_ports(), &pod);
        let namespace = self.namespaces.entry(Arc::clone(&pod.key.namespace)).or_default();
        namespace.by_label.insert(&pod.labels, &pod.key.name);
        if let Some(owner) = &pod.owner {
            namespace.by_owner.entry(owner.clone()).or_default().insert(Arc::clone(&pod.key.name));
        }
        namespace.by_name.insert(Arc::clone(&pod.key.name), pod);
    }

    pub(in crate::cluster) fn remove(&mut self, key: &NamespacedName) -> Option<Arc<Pod>> {
        let namespace = self.namespaces.get_mut(&key.namespace)?;
        let old = namespace.by_name.remove(&key.name)?;
        self.count -= 1;
        namespace.by_label.remove(&old.labels, &key.name);
        if let Some(owner) = &old.owner
            && let Some(pods) = namespace.by_owner.get_mut(owner)
        {
            pods.remove(&key.name);
            if pods.is_empty() {
                namespace.by_owner.remove(owner);
            }
        }
        if namespace.by_name.is_empty() {
            self.namespaces.remove(&key.namespace);
        }
        if let Some(injected) = &old.injected {
            self.injected.release(injected);
        }
        self.by_ip.remove(old.own_addresses().iter().copied(), &old);
        self.by_host_port.remove(old.host_ports(), &old);
        Some(old)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::kinds::pod::tests::{pod, pod_with_status};

    #[test]
    fn pods_are_found_by_selector_and_owner_until_they_are_gone() {
        let mut pods = Pods::default();
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u"}]);
        pods.insert(pod(&json!({"labels": {"app": "web"}, "ownerReferences": owner}), &json!({})).0);
        let selector = |value: Value| LabelSelector::parse(serde_json::from_value(value).unwrap()).unwrap();
        let (all, web, db) = (
            selector(json!({})),
            selector(json!({"matchLabels": {"app": "web"}})),
            selector(json!({"matchLabels": {"app": "db"}})),
        );
        let counts = |pods: &Pods| [&all, &web, &db].map(|it| pods.selected("ns", it).count());
        let replica_set = Owner { kind: "ReplicaSet".into(), name: "web".into() };
        assert_eq!(counts(&pods), [1, 1, 0]);
        assert_eq!(pods.owned("ns", &replica_set).count(), 1);
        assert_eq!(pods.selected("other", &all).count(), 0);
        pods.insert(pod(&json!({"labels": {"app": "db"}}), &json!({})).0);
        assert_eq!(counts(&pods), [1, 0, 1]);
        assert_eq!(pods.owned("ns", &replica_set).count(), 0);
        pods.remove(&NamespacedName::new("ns", "web-1"));
        assert!(pods.is_empty() && pods.namespaces.is_empty());
    }

    #[test]
    fn pods_share_what_they_were_injected_with_even_when_somebody_keeps_one_that_is_gone() {
        let mut pods = Pods::default();
        let born = |name: &str, image: &str| {
            let spec = json!({"containers": [{"name": "linkerd-proxy", "image": image}]});
            pod(&json!({ "name": name }), &spec).0
        };
        for (name, image) in [("a", "proxy:1"), ("b", "proxy:1"), ("c", "proxy:2"), ("b", "proxy:1")] {
            pods.insert(born(name, image));
        }
        let shared = |pods: &Pods, name: &str| Arc::clone(pods.get("ns", name).unwrap().injected.as_ref().unwrap());
        assert!(Arc::ptr_eq(&shared(&pods, "a"), &shared(&pods, "b")));
        assert_eq!(pods.injected.len(), 2);
        let kept = pods.remove(&NamespacedName::new("ns", "c"));
        assert_eq!((pods.injected.len(), kept.is_some()), (1, true));
        for name in ["a", "b"] {
            pods.remove(&NamespacedName::new("ns", name));
        }
        assert_eq!(pods.injected.len(), 0);
    }

    #[test]
    fn a_pod_is_found_by_its_addresses_while_it_may_be_reached() {
        let mut pods = Pods::default();
        let spec = |host_network: bool| {
            let ports = json!([{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81, "hostPort": 8080, "protocol": "UDP"}]);
            json!({"hostNetwork": host_network, "initContainers": [{"name": "a", "ports": ports}]})
        };
        let status = |phase: &str| {
            json!({"phase": phase, "podIP": "10.0.0.1", "hostIP": "192.0.2.1",
            "podIPs": [{"ip": "10.0.0.1"}, {"ip": "2001:DB8::1"}], "hostIPs": [{"ip": "192.0.2.1"}, {"ip": "2001:db8::ff"}]})
        };
        let addresses = ["10.0.0.1", "2001:db8::1", "192.0.2.1"];
        let found = |pods: &Pods| {
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
            pods.insert(pod_with_status(&spec(host_network), &status(phase)));
            assert_eq!(found(&pods), expected, "{phase}");
        }
        pods.insert(pod_with_status(&spec(false), &status("Running")));
        pods.remove(&NamespacedName::new("ns", "web-1"));
        assert!(pods.by_ip.is_empty() && pods.by_host_port.is_empty());
    }
}
