//! The observer of the cluster's state. In: changes of objects. Out: the keys whose responses may differ because of
//! them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use kube::Resource;
use tokio::time::Instant;

use crate::{
    api::NamespacedName,
    cluster::{
        Change, Diff, Kind, Observer, State,
        index::{
            address::NetworkAddress,
            label_selector::LabelSelector,
            pods::{PodGroup, PodGroupMembers},
            selector::Pair,
        },
        kinds::{
            endpoint_slice::Slice,
            node::{Node, Zone},
            owner::{IntermediateOwner, Owner},
            server::Server,
        },
    },
    queue::DirtySet,
};

/// The kinds that discovery reads.
pub(super) const KINDS: &[Kind] = &[
    Kind::Service,
    Kind::EndpointSlice,
    Kind::ExternalWorkload,
    Kind::Pod,
    Kind::Server,
    Kind::ServiceProfile,
    Kind::Node,
    Kind::ReplicaSet,
    Kind::Job,
];

/// A part of the state that responses depend on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum DirtyKey {
    /// The endpoints of a Service.
    Endpoints(NamespacedName),
    /// A Service itself.
    Service(NamespacedName),
    /// The object that clients reach at an address: a Service, a Pod or an ExternalWorkload.
    Address(NetworkAddress),
    ServiceProfile(NamespacedName),
    /// A zone that a node has left.
    Zone(Zone),
    /// All keys that depend on some objects.
    Group(GroupKey),
    /// A change in another cluster.
    Remote(Arc<str>, RemoteChange),
}

/// A part of another cluster that the endpoints of this cluster's Services depend on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RemoteChange {
    /// The endpoints of a Service.
    Endpoints(NamespacedName),
    /// All Services of a namespace.
    Namespace(Arc<str>),
    /// All Services.
    Cluster,
}

/// A group of objects, and its cluster; `None` for this cluster.
pub(super) type GroupKey = (Option<Arc<str>>, ObjectGroup);

/// Objects that have not changed, but whose endpoints depend on an object that has. They may be all objects of a
/// namespace, so they are looked up by the publisher and not under the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ObjectGroup {
    Pods(PodGroup),
    /// The ExternalWorkloads of a namespace with a label; `None` for all.
    ExternalWorkloads(Arc<str>, Option<Pair>),
}

// === impl ObjectGroup ===

impl ObjectGroup {
    pub(super) fn namespace(&self) -> &str {
        match self {
            Self::Pods(group) => &group.namespace,
            Self::ExternalWorkloads(namespace, _) => namespace,
        }
    }
}

/// Marks the keys that changes affect, for the publisher.
#[derive(Default)]
pub struct DestinationObserver {
    pub(super) dirty: DirtySet<DirtyKey>,
    subscriptions: AtomicUsize,
}

/// The keys of one batch by kind, each with the time when the first event that affected it was received.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) endpoints: HashMap<NamespacedName, Instant>,
    pub(super) services: HashMap<NamespacedName, Instant>,
    pub(super) addresses: HashMap<NetworkAddress, Instant>,
    pub(super) profiles: HashMap<NamespacedName, Instant>,
    pub(super) zones: Vec<Zone>,
    pub(super) groups: HashMap<GroupKey, Instant>,
    pub(super) remotes: HashMap<(Arc<str>, RemoteChange), Instant>,
}

// === impl DirtyKey ===

impl DirtyKey {
    /// Returns the key of the same change in another cluster; `None` if nothing here depends on it.
    pub(super) fn of_cluster(self, cluster: &Arc<str>) -> Option<Self> {
        let cluster = Arc::clone(cluster);
        match self {
            Self::Endpoints(service) => Some(Self::Remote(cluster, RemoteChange::Endpoints(service))),
            Self::Group((_, group)) => Some(Self::Group((Some(cluster), group))),
            _ => None,
        }
    }
}

// === impl DestinationObserver ===

impl DestinationObserver {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Counts a subscription. Call this before its content is read from the state.
    pub(super) fn subscribed(&self) {
        self.subscriptions.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn unsubscribed(&self) {
        self.subscriptions.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Observer for DestinationObserver {
    fn kinds(&self) -> &'static [Kind] {
        KINDS
    }

    fn blocks_readiness(&self) -> bool {
        true
    }

    fn changed(&self, state: &State, changes: &[Change], received: Instant) {
        // Nothing depends on the state yet. A subscription that begins now reads it after this change, because the
        // state is locked. The keys of the first lists of a large cluster would take a quarter of its memory.
        if self.subscriptions.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut keys = Vec::new();
        for change in changes {
            add_keys(&mut keys, state, change);
        }
        self.dirty.mark(keys, received);
    }
}

pub(super) fn add_keys(keys: &mut Vec<DirtyKey>, state: &State, change: &Change) {
    match change {
        Change::Service(diff) => {
            let key = diff.latest().key.clone();
            let addresses = diff.both().flat_map(|service| &service.cluster_ips).copied().map(NetworkAddress::Ip);
            keys.extend([DirtyKey::Endpoints(key.clone()), DirtyKey::Service(key)]);
            keys.extend(addresses.map(DirtyKey::Address));
        }
        Change::EndpointSlice(diff) => {
            let ready = |slice: Option<&Arc<Slice>>| slice.and_then(|slice| slice.ready.clone());
            if ready(diff.old()) != ready(diff.current()) {
                let services = diff.both().filter_map(|slice| slice.service().cloned());
                keys.extend(services.map(DirtyKey::Endpoints));
            }
        }
        Change::ExternalWorkload(diff) => {
            let services = state.slices.services_with_external_workload(&diff.latest().key);
            keys.extend(services.map(DirtyKey::Endpoints));
            let addresses = diff.both().flat_map(|workload| workload.network_addresses());
            keys.extend(addresses.map(DirtyKey::Address));
        }
        Change::Pod(diff) => {
            keys.extend(state.slices.services_with_pod(&diff.latest().key).map(DirtyKey::Endpoints));
            keys.extend(diff.both().flat_map(|pod| pod.network_addresses()).map(DirtyKey::Address));
        }
        Change::Server(diff) => keys.extend(diff.both().flat_map(selected)),
        Change::ServiceProfile(diff) => keys.push(DirtyKey::ServiceProfile(diff.latest().key.clone())),
        Change::Node(diff) => {
            let zone = |node: Option<&Arc<Node>>| node.and_then(|node| node.zone.clone());
            let old = zone(diff.old());
            if old != zone(diff.current()) {
                keys.push(DirtyKey::Zone(old));
            }
        }
        Change::ReplicaSet(diff) => keys.extend(owned_through(diff)),
        Change::Job(diff) => keys.extend(owned_through(diff)),
        _ => {}
    }
}

/// Returns the groups that contain all objects that the Server selects. Its selectors are not evaluated.
fn selected(server: &Arc<Server>) -> impl Iterator<Item = DirtyKey> {
    let (namespace, selectors) = (&server.key.namespace, server.opaque.as_ref());
    let pods = selectors.and_then(|selectors| selectors.pods.as_ref());
    let pods = pods.map(|selector| ObjectGroup::Pods(PodGroup::selected(namespace, selector)));
    let workloads =
        selectors.and_then(|selectors| selectors.workloads.as_ref()).map(|selector: &Arc<LabelSelector>| {
            ObjectGroup::ExternalWorkloads(Arc::clone(namespace), selector.pair().cloned())
        });
    pods.into_iter().chain(workloads).map(|group| DirtyKey::Group((None, group)))
}

/// Returns the group of the Pods that this ReplicaSet or Job owns, because their workload is found through it. The
/// deletion of a ReplicaSet or Job without an owner does not change their workload.
fn owned_through<K: Resource<DynamicType = ()>>(diff: &Diff<IntermediateOwner<K>>) -> Option<DirtyKey> {
    if matches!(diff, Diff::Deleted(it) if it.owner.is_none()) {
        return None;
    }
    let NamespacedName { namespace, name } = &diff.latest().key;
    let itself = Owner { kind: K::kind(&()).into(), name: Arc::clone(name) };
    let members = PodGroupMembers::OwnedBy(itself);
    let pods = PodGroup { namespace: Arc::clone(namespace), members };
    Some(DirtyKey::Group((None, ObjectGroup::Pods(pods))))
}

// === impl Batch ===

impl From<HashMap<DirtyKey, Instant>> for Batch {
    fn from(keys: HashMap<DirtyKey, Instant>) -> Self {
        let mut batch = Self::default();
        for (key, received) in keys {
            batch.add(key, received);
        }
        batch
    }
}

impl Batch {
    pub(super) fn add(&mut self, key: DirtyKey, received: Instant) {
        match key {
            DirtyKey::Endpoints(service) => _ = self.endpoints.entry(service).or_insert(received),
            DirtyKey::Service(service) => _ = self.services.entry(service).or_insert(received),
            DirtyKey::Address(address) => _ = self.addresses.entry(address).or_insert(received),
            DirtyKey::ServiceProfile(profile) => _ = self.profiles.entry(profile).or_insert(received),
            DirtyKey::Zone(zone) => self.zones.push(zone),
            DirtyKey::Group(group) => _ = self.groups.entry(group).or_insert(received),
            DirtyKey::Remote(cluster, change) => _ = self.remotes.entry((cluster, change)).or_insert(received),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use futures::FutureExt;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        cluster::{index::label_selector::counters::counted, testing::Feed},
        destination::object_group::GroupMembers,
    };

    struct World {
        feed: Feed,
        observer: Arc<DestinationObserver>,
    }

    impl World {
        fn new() -> Self {
            let observer = DestinationObserver::new();
            observer.subscribed();
            Self { feed: Feed::new([Arc::clone(&observer) as Arc<dyn Observer>]), observer }
        }

        /// Applies an event and returns the keys that it affects, those of groups included.
        fn affected(&mut self, kind: Kind, event: Event<Value>) -> BTreeSet<String> {
            self.feed.apply(kind, event);
            let keys = self.observer.dirty.next().now_or_never().unwrap_or_default();
            keys.keys().flat_map(|key| self.texts(key)).collect()
        }

        fn texts(&self, key: &DirtyKey) -> BTreeSet<String> {
            let text = match key {
                DirtyKey::Endpoints(service) => format!("endpoints of {}", service.name),
                DirtyKey::Service(service) => format!("service {}", service.name),
                DirtyKey::Address(NetworkAddress::Ip(ip)) => ip.to_string(),
                DirtyKey::Address(NetworkAddress::Socket(address)) => address.to_string(),
                DirtyKey::ServiceProfile(profile) => format!("profile {}", profile.name),
                DirtyKey::Zone(zone) => format!("zone {}", zone.as_deref().unwrap_or("unknown")),
                DirtyKey::Group((_, group)) => {
                    let mut members = GroupMembers::of(&self.feed.cluster, group);
                    let steps = std::iter::from_fn(|| members.next_step(&self.feed.cluster));
                    return steps.flatten().flat_map(|key| self.texts(&key)).collect();
                }
                DirtyKey::Remote(..) => panic!("this cluster is not remote"),
            };
            [text].into()
        }
    }

    fn set(keys: &[&str]) -> BTreeSet<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    fn slice(service: &str, version: &str, pods: &[(&str, bool)]) -> Event<Value> {
        let endpoints: Vec<Value> = pods
            .iter()
            .map(|(pod, ready)| {
                json!({"addresses": ["10.0.0.1"], "conditions": {"ready": ready}, "targetRef": {"kind": "Pod", "name": pod}})
            })
            .collect();
        let labels = json!({"kubernetes.io/service-name": service});
        let metadata = json!({"name": "s", "namespace": "ns", "resourceVersion": version, "labels": labels});
        Event::Apply(json!({ "metadata": metadata, "endpoints": endpoints }))
    }

    fn pod(name: &str, ip: &str, owner: Option<&str>) -> Event<Value> {
        let owners: Vec<Value> = owner
            .iter()
            .map(|owner| json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": "u"}))
            .collect();
        let metadata = json!({"name": name, "namespace": "ns", "ownerReferences": owners});
        Event::Apply(json!({"metadata": metadata, "status": {"phase": "Running", "podIP": ip}}))
    }

    #[test]
    fn nothing_is_marked_while_nothing_is_subscribed() {
        let mut world = World::new();
        let change = |world: &mut World, ip: &str| {
            let service = json!({"metadata": {"name": "web", "namespace": "ns"}, "spec": {"clusterIP": ip}});
            world.affected(Kind::Service, Event::Apply(service)).is_empty()
        };
        assert!(!change(&mut world, "10.0.0.1"));
        world.observer.unsubscribed();
        assert!(change(&mut world, "10.0.0.2"));
        world.observer.subscribed();
        assert!(!change(&mut world, "10.0.0.3"));
    }

    #[test]
    fn a_service_affects_itself_its_endpoints_and_its_old_and_new_addresses() {
        let mut world = World::new();
        let service = |ips: &[&str]| {
            let metadata = json!({"name": "web", "namespace": "ns"});
            Event::Apply(json!({"metadata": metadata, "spec": {"clusterIP": ips[0], "clusterIPs": ips}}))
        };
        let both = set(&["endpoints of web", "service web", "10.0.0.1", "2001:db8::1"]);
        assert_eq!(world.affected(Kind::Service, service(&["10.0.0.1", "2001:db8::1"])), both);
        assert_eq!(world.affected(Kind::Service, service(&["10.0.0.1"])), both, "the removed address is affected too");
        assert_eq!(world.affected(Kind::Service, service(&["10.0.0.1"])), set(&[]), "nothing changed");
    }

    #[test]
    fn a_slice_affects_its_old_and_new_service_if_its_ready_endpoints_change() {
        let mut world = World::new();
        let mut affected = |event| world.affected(Kind::EndpointSlice, event);
        assert_eq!(affected(slice("left", "1", &[("a", true)])), set(&["endpoints of left"]));
        assert_eq!(affected(slice("left", "2", &[("a", true)])), set(&[]), "the ready endpoints are unchanged");
        assert_eq!(affected(slice("joined", "3", &[("a", true)])), set(&["endpoints of joined", "endpoints of left"]));
        assert_eq!(affected(slice("joined", "4", &[("a", false)])), set(&["endpoints of joined"]));
    }

    #[test]
    fn a_pod_and_its_replica_set_affect_its_addresses_and_its_services() {
        let mut world = World::new();
        world.affected(Kind::EndpointSlice, slice("web", "1", &[("a", true)]));
        assert_eq!(world.affected(Kind::Pod, pod("a", "10.0.0.1", Some("rs"))), set(&["endpoints of web", "10.0.0.1"]));
        assert_eq!(world.affected(Kind::Pod, pod("a", "10.0.0.1", Some("rs"))), set(&[]));
        assert_eq!(world.affected(Kind::Pod, pod("b", "10.0.0.2", None)), set(&["10.0.0.2"]));
        let replica_set = |name: &str| {
            let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u"});
            Event::Apply(json!({"metadata": {"name": name, "namespace": "ns", "ownerReferences": [owner]}}))
        };
        assert_eq!(world.affected(Kind::ReplicaSet, replica_set("rs")), set(&["endpoints of web", "10.0.0.1"]));
        assert_eq!(world.affected(Kind::ReplicaSet, replica_set("old")), set(&[]), "the ReplicaSet has no Pods");
        assert_eq!(
            world.affected(Kind::Pod, pod("a", "10.0.0.3", Some("rs"))),
            set(&["endpoints of web", "10.0.0.1", "10.0.0.3"])
        );
    }

    #[test]
    fn a_workload_affects_its_old_and_new_addresses() {
        let mut world = World::new();
        let workload = |ips: &[&str], ports: &[u16]| {
            let ips: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
            let ports: Vec<Value> = ports.iter().map(|port| json!({ "port": port })).collect();
            Event::Apply(
                json!({"metadata": {"name": "vm", "namespace": "ns"}, "spec": {"workloadIPs": ips, "ports": ports}}),
            )
        };
        let mut affected = |event| world.affected(Kind::ExternalWorkload, event);
        let before = ["192.0.2.1:53", "[2001:db8::1]:53"];
        assert_eq!(affected(workload(&["192.0.2.1", "2001:DB8::1"], &[53])), set(&before));
        let moved = [&before[..], &["192.0.2.9:53"]].concat();
        assert_eq!(affected(workload(&["192.0.2.9"], &[53])), set(&moved));
    }

    fn server(protocol: &str, selectors: &Value) -> Event<Value> {
        let mut spec = json!({"port": 80, "proxyProtocol": protocol});
        spec.as_object_mut().unwrap().extend(selectors.as_object().unwrap().clone());
        Event::Apply(json!({"metadata": {"name": "s", "namespace": "ns"}, "spec": spec}))
    }

    #[test]
    fn a_server_affects_the_objects_that_it_selected_before_and_selects_now() {
        let mut world = World::new();
        for (name, ip) in [("a", "10.0.0.1"), ("b", "10.0.0.2")] {
            let Event::Apply(mut pod) = pod(name, ip, None) else { unreachable!() };
            pod["metadata"]["labels"] = json!({"app": name});
            world.affected(Kind::Pod, Event::Apply(pod));
        }
        world.affected(Kind::EndpointSlice, slice("web", "1", &[("a", true), ("b", true)]));
        let metadata = json!({"name": "vm", "namespace": "ns", "labels": {"app": "vm"}});
        let spec = json!({"workloadIPs": [{"ip": "192.0.2.1"}], "ports": [{"port": 53}]});
        world.affected(Kind::ExternalWorkload, Event::Apply(json!({"metadata": metadata, "spec": spec})));
        let app = |app: &str| json!({"podSelector": {"matchLabels": {"app": app}}});
        let mut affected = |event| world.affected(Kind::Server, event);
        let both = set(&["endpoints of web", "10.0.0.1", "10.0.0.2"]);
        assert_eq!(affected(server("HTTP/1", &app("a"))), set(&[]), "the Server makes no port opaque");
        assert_eq!(affected(server("opaque", &app("a"))), set(&["endpoints of web", "10.0.0.1"]));
        assert_eq!(affected(server("opaque", &app("b"))), both);
        assert_eq!(affected(server("opaque", &json!({"podSelector": {}}))), both);
        assert_eq!(affected(server("HTTP/1", &json!({"podSelector": {}}))), both);
        let workloads = json!({"externalWorkloadSelector": {"matchLabels": {"app": "vm"}}});
        assert_eq!(affected(server("opaque", &workloads)), set(&["192.0.2.1:53"]));
        assert_eq!(affected(server("opaque", &json!({"externalWorkloadSelector": {}}))), set(&["192.0.2.1:53"]));
    }

    #[test]
    fn a_change_of_a_server_or_a_replica_set_marks_one_key_and_evaluates_nothing_whatever_the_number_of_pods() {
        let mut world = World::new();
        let values: Vec<String> = (0..100_000).map(|number| format!("v{number}")).collect();
        let expression = json!({"key": "app", "operator": "NotIn", "values": values});
        for number in 0..1_000 {
            world.feed.apply(Kind::Pod, pod(&format!("p{number}"), "10.0.0.1", Some("rs")));
        }
        let mut marks = |kind: Kind, event: Event<Value>| {
            world.observer.dirty.next().now_or_never();
            let ((), evaluations, _) = counted(|| world.feed.apply(kind, event));
            (world.observer.dirty.next().now_or_never().unwrap_or_default().len(), evaluations)
        };
        for selector in [json!({"matchExpressions": [expression]}), json!({"matchLabels": {"app": "a"}})] {
            marks(Kind::Server, server("opaque", &json!({"podSelector": selector})));
            for port in [81, 82] {
                let change = json!({"podSelector": selector, "port": port});
                assert_eq!(marks(Kind::Server, server("opaque", &change)), (1, 0));
            }
        }
        let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u"});
        let metadata = json!({"name": "rs", "namespace": "ns", "ownerReferences": [owner]});
        assert_eq!(marks(Kind::ReplicaSet, Event::Apply(json!({ "metadata": metadata }))), (1, 0));
    }

    #[test]
    fn a_node_affects_clients_only_if_its_zone_changes() {
        let mut world = World::new();
        let node = |labels: Value| Event::Apply(json!({"metadata": {"name": "node-1", "labels": labels}}));
        let zone = |zone: &str| json!({"topology.kubernetes.io/zone": zone});
        let mut affected = |event| world.affected(Kind::Node, event);
        assert_eq!(affected(node(json!({}))), set(&[]), "the zone is unknown, as before");
        assert_eq!(affected(node(zone("a"))), set(&["zone unknown"]));
        assert_eq!(affected(node(zone("a"))), set(&[]));
        assert_eq!(affected(node(zone("b"))), set(&["zone a"]));
        let Event::Apply(deleted) = node(zone("b")) else { unreachable!() };
        assert_eq!(affected(Event::Delete(deleted)), set(&["zone b"]));
    }
}
