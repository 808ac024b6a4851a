//! Linkerd's Servers, reduced to the ports that they make opaque.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use parking_lot::Mutex;

use crate::api;
use crate::{
    api::{LabelSelectorObject, NamespacedName},
    cluster::{
        Problems, Projected,
        index::{
            label_selector::LabelSelector,
            selector::{Labels, Pair},
            store::{Store, Stored},
            text_set::TextSet,
        },
    },
};

/// The maximum number of labels and ports in the remembered results of a namespace. When it is reached, all are
/// forgotten.
const REMEMBERED: usize = 20_000;

/// A Server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub key: NamespacedName,
    pub port: ServerPort,
    /// The workloads whose port it makes opaque; `None` for a Server with another protocol.
    pub opaque: Option<Selectors>,
}

/// The selectors of a Server. An absent one selects no workloads, an empty one selects all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selectors {
    pub pods: Option<Arc<LabelSelector>>,
    pub workloads: Option<Arc<LabelSelector>>,
}

/// `spec.port`: a string is a name, even if it is all digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerPort {
    Number(u16),
    Name(Box<str>),
    /// A number that is not a port.
    Invalid,
}

/// The ports that Servers make opaque for every object with the same labels. Sorted, because the ports of each endpoint
/// are compared with its previous ports, and there may be thousands.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServerPorts {
    numbers: Box<[u16]>,
    names: TextSet,
}

/// The Servers of a namespace that make ports opaque.
#[derive(Default)]
pub struct ServersOfNamespace {
    by_name: HashMap<Arc<str>, Arc<Server>>,
    /// Created when it is read for the first time after a change.
    snapshot: OnceLock<Arc<OpaqueServers>>,
}

/// The Servers that make ports opaque in a namespace, until one of them changes.
///
/// The holder needs no lock of the state: selectors are evaluated after the lock was released, and once for all objects
/// whose labels the selectors cannot tell apart.
#[derive(Debug)]
pub struct OpaqueServers {
    servers: Box<[Arc<Server>]>,
    pods: OnceLock<PortsBySelector>,
    workloads: OnceLock<PortsBySelector>,
}

/// The ports of Servers, by the selectors of the Servers.
#[derive(Debug, Default)]
struct PortsBySelector {
    /// The ports of empty selectors.
    always: CollectedPorts,
    /// The same ports, for objects that no other selector matches.
    only_always: Arc<ServerPorts>,
    /// The other selectors, each once, by a pair of their `matchLabels`; `None` if these are empty.
    by_pair: HashMap<Option<Pair>, Vec<(Arc<LabelSelector>, CollectedPorts)>>,
    /// The keys that decide whether the selectors match.
    keys: HashSet<Box<str>>,
    known: Mutex<KnownPorts>,
}

/// Ports in any order, maybe twice.
#[derive(Clone, Debug, Default)]
struct CollectedPorts {
    numbers: Vec<u16>,
    names: Vec<Box<str>>,
}

/// The results for labels. The labels have only keys that the selectors look at: the Pods of a StatefulSet differ in
/// other labels.
#[derive(Debug, Default)]
struct KnownPorts {
    by_labels: HashMap<Labels, Arc<ServerPorts>>,
    /// The number of labels and ports in the results.
    size: usize,
}

// === impl Server ===

impl Projected for Server {
    type Wire = api::Server;
    const INFORMER_LAG: Option<&'static str> = Some("servers_informer_lag_seconds");
    const IS_OPTIONAL: bool = true;

    fn project(wire: api::Server, problems: &mut Problems) -> Self {
        let spec = wire.spec.unwrap_or_default();
        let mut parse = |field: &str, selector: Option<LabelSelectorObject>| {
            let parsed = LabelSelector::parse(selector?);
            parsed
                .map(Arc::new)
                .map_err(|error| problems.add(format_args!("{field} is invalid and selects no workloads: {error}")))
                .ok()
        };
        let (pods, workloads) = (
            parse("podSelector", spec.pod_selector),
            parse("externalWorkloadSelector", spec.external_workload_selector),
        );
        let opaque = spec.proxy_protocol.as_deref() == Some("opaque");
        Self {
            key: NamespacedName::of(&wire.metadata),
            port: match spec.port {
                Some(IntOrString::String(name)) => ServerPort::Name(name.into()),
                Some(IntOrString::Int(number)) => u16::try_from(number).map_or(ServerPort::Invalid, ServerPort::Number),
                None => ServerPort::Invalid,
            },
            opaque: opaque.then_some(Selectors { pods, workloads }),
        }
    }
}

impl Stored for Server {
    type NamespaceIndex = ServersOfNamespace;
    type ClusterIndex = ();

    fn key(&self) -> NamespacedName {
        self.key.clone()
    }

    fn index(self: &Arc<Self>, servers: &mut ServersOfNamespace, (): &mut ()) {
        if self.opaque.is_some() {
            servers.by_name.insert(Arc::clone(&self.key.name), Arc::clone(self));
            servers.snapshot.take();
        }
    }

    fn unindex(self: &Arc<Self>, servers: &mut ServersOfNamespace, (): &mut ()) {
        if self.opaque.is_some() {
            servers.by_name.remove(&self.key.name);
            servers.snapshot.take();
        }
    }
}

impl Store<Server> {
    /// Returns the Servers of a namespace that make ports opaque; `None` if there are none.
    pub fn opaque_in(&self, namespace: &str) -> Option<Arc<OpaqueServers>> {
        let (_, index) = self.namespace_index(namespace).filter(|(_, index)| !index.by_name.is_empty())?;
        let create = || Arc::new(OpaqueServers::new(index.by_name.values().cloned().collect()));
        Some(Arc::clone(index.snapshot.get_or_init(create)))
    }
}

// === impl OpaqueServers ===

impl OpaqueServers {
    fn new(servers: Box<[Arc<Server>]>) -> Self {
        Self { servers, pods: OnceLock::new(), workloads: OnceLock::new() }
    }

    /// Returns the ports that are opaque for Pods with these labels.
    pub fn for_pod(&self, labels: &Labels) -> Arc<ServerPorts> {
        self.pods.get_or_init(|| self.by(|selectors| selectors.pods.as_ref())).of(labels)
    }

    /// Returns the ports that are opaque for ExternalWorkloads with these labels.
    pub fn for_workload(&self, labels: &Labels) -> Arc<ServerPorts> {
        self.workloads.get_or_init(|| self.by(|selectors| selectors.workloads.as_ref())).of(labels)
    }

    fn by(&self, selector: impl Fn(&Selectors) -> Option<&Arc<LabelSelector>>) -> PortsBySelector {
        let mut always = CollectedPorts::default();
        let mut by_selector: HashMap<&Arc<LabelSelector>, CollectedPorts> = HashMap::new();
        for server in &self.servers {
            match server.opaque.as_ref().and_then(&selector) {
                Some(selector) if selector.is_empty() => always.insert(&server.port),
                Some(selector) => by_selector.entry(selector).or_default().insert(&server.port),
                None => {}
            }
        }
        let only_always = Arc::new(ServerPorts::from(&always));
        let mut all = PortsBySelector { always, only_always, ..PortsBySelector::default() };
        for (selector, ports) in by_selector {
            all.keys.extend(selector.keys().map(Box::from));
            all.by_pair.entry(selector.pair().cloned()).or_default().push((Arc::clone(selector), ports));
        }
        all
    }
}

// === impl PortsBySelector ===

impl PortsBySelector {
    fn of(&self, labels: &Labels) -> Arc<ServerPorts> {
        let labels = labels.only(|key| self.keys.contains(key));
        let known = self.known.lock().by_labels.get(&labels).cloned();
        known.unwrap_or_else(|| {
            let ports = self.evaluate(&labels);
            self.known.lock().insert(labels, &ports);
            ports
        })
    }

    fn evaluate(&self, labels: &Labels) -> Arc<ServerPorts> {
        let buckets = labels.iter().cloned().map(Some).chain([None]);
        let candidates = buckets.flat_map(|pair| self.by_pair.get(&pair).into_iter().flatten());
        let mut matching =
            candidates.filter(|(selector, _)| selector.matches(labels)).map(|(_, ports)| ports).peekable();
        if matching.peek().is_none() {
            return Arc::clone(&self.only_always);
        }
        let mut ports = self.always.clone();
        for other in matching {
            ports.numbers.extend(&other.numbers);
            ports.names.extend(other.names.iter().cloned());
        }
        Arc::new(ServerPorts::from(&ports))
    }
}

impl KnownPorts {
    fn insert(&mut self, labels: Labels, ports: &Arc<ServerPorts>) {
        let size = 1 + labels.iter().count() + ports.numbers.len() + ports.names.len();
        if self.size + size > REMEMBERED {
            *self = Self::default();
        }
        self.size += size;
        self.by_labels.insert(labels, Arc::clone(ports));
    }
}

// === impl CollectedPorts ===

impl CollectedPorts {
    fn insert(&mut self, port: &ServerPort) {
        match port {
            ServerPort::Number(number) => self.numbers.push(*number),
            ServerPort::Name(name) => self.names.push(name.clone()),
            ServerPort::Invalid => {}
        }
    }
}

// === impl ServerPorts ===

impl From<&CollectedPorts> for ServerPorts {
    fn from(ports: &CollectedPorts) -> Self {
        let numbers: BTreeSet<u16> = ports.numbers.iter().copied().collect();
        let names: BTreeSet<String> = ports.names.iter().map(ToString::to_string).collect();
        Self { numbers: numbers.into_iter().collect(), names: TextSet::from(&names) }
    }
}

impl ServerPorts {
    /// Returns whether the Servers name the port by its number, or by one of its names.
    pub fn has<'a>(&self, port: u16, mut names: impl Iterator<Item = &'a str>) -> bool {
        self.numbers.binary_search(&port).is_ok() || names.any(|name| self.names.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::{State, Watched, index::label_selector::counters::counted};

    /// Returns a Server with the given `spec`, and the number of problems.
    fn server(name: &str, spec: &Value) -> (Server, usize) {
        let object = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec});
        let mut problems = Problems::default();
        let server = Server::project(serde_json::from_value(object).unwrap(), &mut problems);
        (server, problems.len())
    }

    fn state(servers: &[(&str, Value)]) -> State {
        let mut state = State::default();
        for (name, spec) in servers {
            server(name, spec).0.apply(&mut state);
        }
        state
    }

    fn opaque(spec: Value) -> Value {
        let mut spec = spec;
        spec["proxyProtocol"] = "opaque".into();
        spec
    }

    fn ports(ports: &ServerPorts) -> Vec<u16> {
        (0..u16::MAX).filter(|port| ports.has(*port, std::iter::empty())).collect()
    }

    #[test]
    fn only_servers_that_are_opaque_and_select_the_pod_count() {
        let mut state = state(&[
            ("all", opaque(json!({"podSelector": {}, "port": 80}))),
            ("web", opaque(json!({"podSelector": {"matchLabels": {"app": "web"}}, "port": "http"}))),
            ("db", opaque(json!({"podSelector": {"matchLabels": {"app": "db"}}, "port": 81}))),
            ("http", json!({"podSelector": {}, "port": 82, "proxyProtocol": "HTTP/1"})),
            ("case", json!({"podSelector": {}, "port": 83, "proxyProtocol": "Opaque"})),
            ("vms", opaque(json!({"externalWorkloadSelector": {}, "port": 84}))),
        ]);
        let labels: Labels = [("app", "web")].into_iter().collect();
        let servers = state.servers.opaque_in("ns").unwrap();
        let of_pod = servers.for_pod(&labels);
        assert_eq!((ports(&of_pod), of_pod.has(8080, ["http"].into_iter())), (vec![80], true));
        assert_eq!(ports(&servers.for_pod(&Labels::default())), [80]);
        assert_eq!(ports(&servers.for_workload(&labels)), [84]);
        assert!(state.servers.opaque_in("other").is_none());
        for key in state.servers.keys().collect::<Vec<_>>() {
            Server::remove(&key, &mut state);
        }
        assert!(state.servers.is_empty() && state.servers.opaque_in("ns").is_none());
    }

    #[test]
    fn a_changed_server_counts_from_the_next_look_on_and_earlier_looks_are_unchanged() {
        let spec = |port: u16| opaque(json!({"podSelector": {}, "port": port}));
        let mut state = state(&[("a", spec(80)), ("b", spec(90))]);
        let before = state.servers.opaque_in("ns").unwrap();
        server("a", &spec(81)).0.apply(&mut state);
        let after = state.servers.opaque_in("ns").unwrap();
        let of = |servers: &OpaqueServers| ports(&servers.for_pod(&Labels::default()));
        assert_eq!((of(&before), of(&after)), (vec![80, 90], vec![81, 90]));
        assert!(Arc::ptr_eq(&after, &state.servers.opaque_in("ns").unwrap()), "no Server has changed");
    }

    fn stateful_set_pod(number: usize) -> Labels {
        let pairs = [("app", "db".to_owned()), ("statefulset.kubernetes.io/pod-name", format!("db-{number}"))];
        pairs.into_iter().collect()
    }

    #[test]
    fn servers_are_evaluated_once_for_pods_that_differ_in_labels_that_no_server_looks_at() {
        let values: Vec<String> = (0..1_000).map(|number| format!("v{number}")).collect();
        let servers: Vec<(String, Value)> = (0..20)
            .map(|number| {
                let expression = json!({"key": "app", "operator": "NotIn", "values": &values[number..]});
                (
                    format!("s{number}"),
                    opaque(json!({"podSelector": {"matchExpressions": [expression]}, "port": number + 1})),
                )
            })
            .collect();
        let servers: Vec<_> = servers.iter().map(|(name, spec)| (name.as_str(), spec.clone())).collect();
        let servers = state(&servers).servers.opaque_in("ns").unwrap();
        let all = || (0..1_000).map(|number| servers.for_pod(&stateful_set_pod(number))).collect::<Vec<_>>();
        let (found, evaluations, _) = counted(all);
        assert_eq!(evaluations, 20);
        assert!(found.iter().all(|it| Arc::ptr_eq(it, &found[0])));
        assert_eq!(ports(&found[0]), (1..=20).collect::<Vec<_>>());
        assert_eq!(counted(all).1, 0, "the results are remembered while no Server changes");
    }

    #[test]
    fn thousands_of_servers_with_an_empty_or_the_same_selector_cost_at_most_one_evaluation() {
        let port = |number: usize| json!(number % 4_000 + 1);
        let web = json!({"matchLabels": {"app": "db"}});
        for (selector, expected) in [(json!({}), 0), (web, 1)] {
            let servers: Vec<(String, Value)> = (0..5_000)
                .map(|number| (format!("s{number}"), opaque(json!({"podSelector": selector, "port": port(number)}))))
                .collect();
            let servers: Vec<_> = servers.iter().map(|(name, spec)| (name.as_str(), spec.clone())).collect();
            let servers = state(&servers).servers.opaque_in("ns").unwrap();
            let (found, evaluations, _) =
                counted(|| (0..200).map(|number| servers.for_pod(&stateful_set_pod(number))).collect::<Vec<_>>());
            assert_eq!(evaluations, expected);
            assert!(found.iter().all(|it| Arc::ptr_eq(it, &found[0])), "all Pods share one set of ports");
            assert_eq!(ports(&found[0]).len(), 4_000);
        }
    }

    #[test]
    fn the_remembered_results_of_a_namespace_are_bounded() {
        let by_name =
            json!({"matchExpressions": [{"key": "statefulset.kubernetes.io/pod-name", "operator": "Exists"}]});
        let servers = state(&[("a", opaque(json!({"podSelector": by_name, "port": 80})))]).servers;
        let servers = servers.opaque_in("ns").unwrap();
        for number in 0..20_000 {
            assert!(servers.for_pod(&stateful_set_pod(number)).has(80, std::iter::empty()));
        }
        // Each result has one label and one port.
        assert!(servers.pods.get().unwrap().known.lock().by_labels.len() <= 20_000 / 2);
    }

    proptest! {
        #[test]
        fn the_opaque_ports_are_those_of_all_servers_that_select_the_labels(
            servers in prop::collection::vec(
                (prop::collection::btree_map("[a-c]", "[xyz]", 0..3), "[a-c]", 0..5usize, 1..6u16), 0..8),
            objects in prop::collection::vec(prop::collection::btree_map("[a-d]", "[xyz]", 0..4), 1..6),
        ) {
            let expressions = |key: &str, operator: usize| match operator {
                0 => json!([{"key": key, "operator": "In", "values": ["x", "y"]}]),
                1 => json!([{"key": key, "operator": "NotIn", "values": ["x"]}]),
                2 => json!([{"key": key, "operator": "Exists"}]),
                3 => json!([{"key": key, "operator": "DoesNotExist"}]),
                _ => json!([]),
            };
            let all: Vec<(String, Value, u16)> = servers.iter().enumerate().map(|(number, (equal, key, operator, port))| {
                let selector = json!({"matchLabels": equal, "matchExpressions": expressions(key, *operator)});
                (format!("s{number}"), selector, *port)
            }).collect();
            let spec = |(name, selector, port): &(String, Value, u16)| {
                server(name, &opaque(json!({"podSelector": selector, "externalWorkloadSelector": null, "port": port}))).0
            };
            let mut state = State::default();
            all.iter().for_each(|it| _ = spec(it).apply(&mut state));
            for labels in objects.iter().chain(&objects) {
                let labels: Labels = labels.iter().collect();
                let selects = |selector: &Value| {
                    LabelSelector::parse(serde_json::from_value(selector.clone()).unwrap()).unwrap().matches(&labels)
                };
                let expected: BTreeSet<u16> =
                    all.iter().filter(|(_, selector, _)| selects(selector)).map(|(_, _, port)| *port).collect();
                let found = state.servers.opaque_in("ns").map(|servers| ports(&servers.for_pod(&labels)));
                prop_assert_eq!(found.unwrap_or_default(), expected.into_iter().collect::<Vec<_>>());
                let workloads = state.servers.opaque_in("ns").map(|servers| ports(&servers.for_workload(&labels)));
                prop_assert_eq!(workloads.unwrap_or_default(), Vec::<u16>::new());
            }
        }
    }

    #[test]
    fn an_invalid_selector_selects_no_workloads_and_is_a_problem() {
        let selector = json!({"matchExpressions": [{"key": "app", "operator": "In"}]});
        let (server, problems) =
            server("bad", &json!({"podSelector": selector, "port": 80, "proxyProtocol": "opaque"}));
        assert_eq!(problems, 1);
        assert!(server.opaque.unwrap().pods.is_none());
    }

    #[test]
    fn a_port_in_quotes_is_a_name_and_a_number_out_of_range_is_invalid() {
        for (port, expected) in [
            (json!(80), ServerPort::Number(80)),
            (json!("80"), ServerPort::Name("80".into())),
            (json!(70000), ServerPort::Invalid),
            (json!(-1), ServerPort::Invalid),
            (json!(null), ServerPort::Invalid),
        ] {
            assert_eq!(server("s", &json!({"port": port})).0.port, expected, "{port}");
        }
    }
}
