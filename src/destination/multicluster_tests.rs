//! Tests of federated Services, in process: random clusters against the contract, and what
//! open streams receive while clusters are late, empty, linked and unlinked.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use e2e::{
    oracle::{self, Answer, Key, Remote, answer_joined},
    world::{Change, ELSEWHERE, NAMESPACE, World},
};
use futures::FutureExt;
use kube::runtime::watcher::Event;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use tonic::Code;

use super::{
    multicluster::observer::{KINDS, RemoteObserver},
    oracle_tests::{flags, seeds},
    testing::rig::{Client, Get, Rig, kind, server_settings},
};
use crate::{
    cluster::{Kind, Observer, kinds::remote_kubeconfig::TrustDomain, testing::Feed},
    destination::testing::settings,
};

/// Another cluster, whose watches deliver events when a test says so.
struct Other {
    name: &'static str,
    namespaces: HashMap<&'static str, Namespace>,
}

struct Namespace {
    feed: Feed,
    observer: Arc<RemoteObserver>,
    pending: HashMap<Kind, VecDeque<Event<Value>>>,
    unlisted: BTreeSet<&'static str>,
}

// === impl Other ===

impl Other {
    fn new(rig: &Rig, name: &'static str) -> Self {
        let namespace = |namespace: &'static str| {
            let observer = RemoteObserver::new(&name.into(), &namespace.into(), rig.observer());
            let feed = Feed::unlisted(KINDS, Arc::clone(&observer) as Arc<dyn Observer>);
            let unlisted = KINDS.iter().map(|kind| kind.resource()).collect();
            (namespace, Namespace { feed, observer, pending: HashMap::new(), unlisted })
        };
        Self { name, namespaces: [NAMESPACE, ELSEWHERE, "ns"].map(namespace).into() }
    }

    fn link(&self, rig: &Rig) {
        let trust_domain = TrustDomain::parse(&trust_domain(self.name)).unwrap();
        let states = self.namespaces.iter().map(|(name, it)| (*name, &it.feed.cluster));
        rig.views.clusters.linked.as_ref().unwrap().link_feeds(self.name, &trust_domain, states);
    }

    fn unlink(&self, rig: &Rig) {
        rig.views.clusters.linked.as_ref().unwrap().unlink(self.name);
    }

    fn enqueue(&mut self, key: &Key, event: Event<Value>) {
        if let Some(namespace) = self.namespaces.get_mut(&*key.namespace)
            && KINDS.contains(&kind(key))
        {
            namespace.pending.entry(kind(key)).or_default().push_back(event);
        }
    }

    /// Delivers the next event of a kind in a namespace that was listed.
    fn deliver(&mut self, namespace: &str, kind: Kind) {
        let namespace = self.namespaces.get_mut(namespace).unwrap();
        if !namespace.unlisted.contains(kind.resource())
            && let Some(event) = namespace.pending.get_mut(&kind).and_then(VecDeque::pop_front)
        {
            namespace.feed.apply(kind, event);
        }
    }

    /// Lists a kind in a namespace, and drops the events that were not delivered.
    fn list(&mut self, namespace: &str, kind_of: Kind, objects: &BTreeMap<Key, Value>) {
        let listed = objects.iter().filter(|(key, _)| kind(key) == kind_of && key.namespace == namespace);
        let listed: Vec<Value> = listed.map(|(_, object)| object.clone()).collect();
        let namespace = self.namespaces.get_mut(namespace).unwrap();
        namespace.pending.remove(&kind_of);
        namespace.feed.list(kind_of, listed);
        if namespace.unlisted.remove(kind_of.resource()) && namespace.unlisted.is_empty() {
            _ = Arc::clone(&namespace.observer).announce(namespace.feed.cluster.clone()).now_or_never();
        }
    }

    /// Delivers everything.
    fn settle(&mut self, objects: &BTreeMap<Key, Value>) {
        for namespace in [NAMESPACE, ELSEWHERE, "ns"] {
            for kind in KINDS {
                if self.namespaces[namespace].unlisted.contains(kind.resource()) {
                    self.list(namespace, *kind, objects);
                }
                while self.namespaces[namespace].pending.get(kind).is_some_and(|events| !events.is_empty()) {
                    self.deliver(namespace, *kind);
                }
            }
        }
    }
}

fn trust_domain(cluster: &str) -> String {
    format!("{cluster}.trust")
}

fn event(change: Change) -> (Key, Event<Value>) {
    match change {
        Change::Applied { key, object } => (key, Event::Apply(object)),
        Change::Deleted { key, object } => (key, Event::Delete(object)),
    }
}

/// Events of three clusters arrive late and out of order; clusters are linked, unlinked and listed again. Meanwhile
/// open streams have what new streams receive; in the end, both have what the contract specifies.
#[tokio::test]
async fn for_any_order_of_events_in_several_clusters_old_and_new_streams_match_the_contract() {
    let (mut answered, mut of_remotes) = (0, 0);
    for seed in seeds() {
        let mut dice = StdRng::seed_from_u64(seed);
        let flags = flags(seed, &mut dice);
        let mut rig = Rig::with_clusters(server_settings(&flags));
        rig.views.clusters.linked.as_ref().unwrap().know();
        let mut world = World::with_joined_services(seed).unwrap();
        for (key, object) in world.json() {
            rig.pending.entry(kind(key)).or_default().push_back(Event::Apply(object.clone()));
        }
        let mut worlds = ["east", "north"].map(|name| (name, World::new(seed + 7 + name.len() as u64).unwrap()));
        let mut others: BTreeMap<&str, Other> = BTreeMap::new();
        let east = Other::new(&rig, "east");
        east.link(&rig);
        others.insert("east", east);
        let mut clients: Vec<Client<Get>> = world.requests().into_iter().map(Client::new).collect();
        for round in 0..10 {
            for _ in 0..dice.random_range(1..80) {
                let (name, elsewhere) = &mut worlds[dice.random_range(0..2)];
                let namespace = *[NAMESPACE, NAMESPACE, ELSEWHERE].choose(&mut dice).unwrap();
                match dice.random_range(0..24) {
                    0..6 => rig.enqueue(world.mutate().unwrap()),
                    6..10 => {
                        let (key, event) = event(elsewhere.mutate().unwrap());
                        if let Some(other) = others.get_mut(name) {
                            other.enqueue(&key, event);
                        }
                    }
                    10..14 => rig.deliver(*Kind::ALL.choose(&mut dice).unwrap(), dice.random_ratio(1, 10)),
                    14..18 => {
                        if let Some(other) = others.get_mut(name) {
                            other.deliver(namespace, *KINDS.choose(&mut dice).unwrap());
                        }
                    }
                    18 | 19 => {
                        if let Some(other) = others.get_mut(name) {
                            other.list(namespace, *KINDS.choose(&mut dice).unwrap(), elsewhere.json());
                        }
                    }
                    20 => match others.remove(name) {
                        Some(other) if dice.random_ratio(1, 4) => other.unlink(&rig),
                        Some(other) => drop(others.insert(name, other)),
                        None => {
                            let other = Other::new(&rig, name);
                            other.link(&rig);
                            others.insert(name, other);
                        }
                    },
                    21 => rig.publish(),
                    _ => {
                        let at = dice.random_range(0..clients.len());
                        let client = &mut clients[at];
                        if client.stream.is_none() {
                            _ = client.open(&rig.views);
                        }
                        client.read(dice.random_range(0..3));
                    }
                }
            }
            rig.publish();
            for client in &mut clients {
                if client.stream.is_none() {
                    continue;
                }
                let old = client.settle(&rig.views);
                let new = Client::<Get>::new(client.request.clone()).settle(&rig.views);
                let is_gone = matches!(&new, Answer::Refused(_, text) if text.starts_with("Service "));
                if client.stream.is_some() && !is_gone {
                    assert_eq!(old, new, "seed {seed}, round {round}, an old and a new stream of {:?}", client.request);
                }
            }
            while rig.pending.values().any(|events| !events.is_empty()) {
                rig.deliver(*Kind::ALL.choose(&mut dice).unwrap(), false);
            }
            for (name, elsewhere) in &worlds {
                if let Some(other) = others.get_mut(name) {
                    other.settle(elsewhere.json());
                }
            }
            rig.publish();
            let linked = worlds.iter().filter(|(name, _)| others.contains_key(name));
            let remotes: BTreeMap<String, Remote> = linked
                .map(|(name, world)| {
                    let objects = world.objects().clone();
                    ((*name).to_owned(), Remote { objects, trust_domain: trust_domain(name) })
                })
                .collect();
            for client in &mut clients {
                let was_open = client.stream.is_some();
                let last = client.settle(&rig.views);
                let expected = answer_joined(world.objects(), &remotes, &flags, &client.request);
                let context = || format!("seed {seed}, round {round}, {:?}, {flags:?}", client.request);
                let is_gone = matches!(&expected, Answer::Refused(_, text) if text.starts_with("Service "));
                let while_open = if is_gone { Answer::Endpoints(BTreeMap::new()) } else { expected.clone() };
                let permitted = if was_open && client.stream.is_some() { &while_open } else { &expected };
                assert_eq!(&last, permitted, "{}", context());
                let fresh = Client::<Get>::new(client.request.clone()).settle(&rig.views);
                assert_eq!(fresh, expected, "{}", context());
                if matches!(expected, Answer::Endpoints(_)) {
                    answered += 1;
                    let alone = answer_joined(world.objects(), &BTreeMap::new(), &flags, &client.request);
                    of_remotes += usize::from(expected != alone);
                }
            }
        }
        drop(clients);
        assert_eq!(rig.views.endpoints.registry.index().count(), 0, "a view is removed with its last stream");
    }
    assert!(of_remotes * 50 > answered, "too few answers have endpoints of other clusters: {of_remotes} of {answered}");
}

const PATH: &str = "web.ns.svc.mycluster.local:80";

fn object(kind: &str, name: &str, fields: &Value) -> (Key, Value) {
    static VERSION: AtomicU64 = AtomicU64::new(1);
    let version = VERSION.fetch_add(1, Ordering::Relaxed).to_string();
    let mut object = json!({"kind": kind, "metadata": {"name": name, "namespace": "ns", "resourceVersion": version}});
    e2e::mesh::merge(&mut object, fields.clone());
    (Key::of(&object).unwrap(), object)
}

/// The federated Service `web` with these members.
fn federated(remote: &str, local: &str) -> (Key, Value) {
    let annotations =
        json!({"multicluster.linkerd.io/remote-discovery": remote, "multicluster.linkerd.io/local-discovery": local});
    object("Service", "web", &json!({"metadata": {"annotations": annotations}, "spec": {"ports": [{"port": 80}]}}))
}

/// The Service `web`, which is `bb` in the cluster `east`.
fn remote_discovery() -> (Key, Value) {
    let labels =
        json!({"multicluster.linkerd.io/remote-discovery": "east", "multicluster.linkerd.io/remote-service": "bb"});
    object("Service", "web", &json!({"metadata": {"labels": labels}, "spec": {"ports": [{"port": 80}]}}))
}

/// A Service with port 80 and this target port, and its slice with these Pods, which are meshed and on node-1.
fn backends(service: &str, port: u16, pods: &[(&str, &str)]) -> Vec<(Key, Value)> {
    let endpoints: Vec<Value> =
        pods.iter().map(|(name, ip)| json!({"addresses": [ip], "targetRef": {"kind": "Pod", "name": name}})).collect();
    let labels = json!({"kubernetes.io/service-name": service});
    let slice = json!({"metadata": {"labels": labels}, "addressType": "IPv4", "ports": [{"name": "http", "port": port}], "endpoints": endpoints});
    let spec = json!({"spec": {"ports": [{"name": "http", "port": 80}]}});
    let mut objects = vec![object("Service", service, &spec), object("EndpointSlice", &format!("{service}-1"), &slice)];
    let meshed = json!({"metadata": {"labels": {"linkerd.io/control-plane-ns": "linkerd"}}, "spec": {"serviceAccountName": "default", "nodeName": "node-1"}});
    objects.extend(pods.iter().map(|(name, _)| object("Pod", name, &meshed)));
    objects
}

struct Clusters {
    rig: Rig,
    others: BTreeMap<&'static str, Other>,
}

impl Clusters {
    fn new(objects: impl IntoIterator<Item = (Key, Value)>) -> Self {
        let rig = Rig::with_clusters(settings());
        rig.views.clusters.linked.as_ref().unwrap().know();
        let mut clusters = Self { rig, others: BTreeMap::new() };
        clusters.apply(objects);
        clusters
    }

    fn apply(&mut self, objects: impl IntoIterator<Item = (Key, Value)>) {
        for (key, object) in objects {
            self.rig.feed.apply(kind(&key), Event::Apply(object));
        }
    }

    fn link(&mut self, name: &'static str) {
        let other = Other::new(&self.rig, name);
        other.link(&self.rig);
        self.others.insert(name, other);
    }

    /// Lists all kinds of another cluster.
    fn list(&mut self, name: &str, objects: &[(Key, Value)]) {
        let objects = objects.iter().cloned().collect();
        let other = self.others.get_mut(name).unwrap();
        for kind in KINDS {
            other.list("ns", *kind, &objects);
        }
    }

    fn client(&mut self) -> Client<Get> {
        self.rig.publish();
        let request = oracle::Request { path: PATH.to_owned(), token: r#"{"nodeName":"node-1"}"#.to_owned() };
        let mut client = Client::<Get>::new(request);
        client.open(&self.rig.views).unwrap();
        client.read(usize::MAX);
        client
    }

    /// Publishes, and returns the sockets of an open stream, each with the labels `service` and the identity.
    fn endpoints(&mut self, client: &mut Client<Get>) -> Vec<String> {
        self.rig.publish();
        client.read(usize::MAX);
        assert!(client.stream.is_some(), "the stream is open");
        let Answer::Endpoints(endpoints) = client.settle(&self.rig.views) else { panic!("an open stream is refused") };
        let of_one = |(address, endpoint): (&std::net::SocketAddr, &linkerd2_proxy_api::destination::WeightedAddr)| {
            let service = endpoint.metric_labels.get("service").cloned().unwrap_or_default();
            let name = endpoint.tls_identity.as_ref().and_then(|it| it.server_name.clone()).map(|it| it.name);
            let domain = name.unwrap_or_default().split(".linkerd.").nth(1).unwrap_or_default().to_owned();
            format!("{address} {service} {domain}")
        };
        endpoints.iter().map(of_one).collect()
    }
}

#[tokio::test]
async fn remote_discovery_sends_nothing_until_the_other_clusters_namespace_is_known_and_then_follows_it() {
    let mut clusters = Clusters::new([remote_discovery()]);
    clusters.link("east");
    let mut client = clusters.client();
    assert!(client.is_silent());
    let objects = backends("bb", 8080, &[("bb-1", "10.1.0.1")]);
    for kind in &KINDS[..4] {
        clusters.others.get_mut("east").unwrap().list("ns", *kind, &objects.iter().cloned().collect());
        assert!(clusters.endpoints(&mut client).is_empty() && client.is_silent(), "{kind:?}");
    }
    clusters.list("east", &objects);
    assert_eq!(clusters.endpoints(&mut client), ["10.1.0.1:8080 bb east.trust"]);
    clusters.list("east", &backends("bb", 8081, &[("bb-1", "10.1.0.1"), ("bb-2", "10.1.0.2")]));
    let both = ["10.1.0.1:8081 bb east.trust", "10.1.0.2:8081 bb east.trust"];
    assert_eq!(clusters.endpoints(&mut client), both);
    clusters.list("east", &[]);
    assert!(clusters.endpoints(&mut client).is_empty());
}

#[tokio::test]
async fn an_empty_cluster_has_no_endpoints_only_once_it_is_known() {
    for service in [remote_discovery(), federated("bb@east", "")] {
        let mut clusters = Clusters::new([service]);
        clusters.link("east");
        let mut client = clusters.client();
        assert!(client.is_silent(), "the cluster was not listed");
        clusters.list("east", &[]);
        assert!(clusters.endpoints(&mut client).is_empty());
        assert!(!client.is_silent(), "the message NoEndpoints");
    }
}

#[tokio::test]
async fn a_federated_service_has_the_members_that_are_known_and_each_member_has_its_own_ports_and_labels() {
    let objects = backends("bb", 8080, &[("bb-1", "10.0.0.1")]);
    let mut clusters = Clusters::new([federated("bb@east,cc@north", "bb")].into_iter().chain(objects));
    clusters.link("east");
    let mut client = clusters.client();
    assert_eq!(clusters.endpoints(&mut client), ["10.0.0.1:8080 bb trust.domain"]);
    clusters.list("east", &backends("bb", 9090, &[("bb-1", "10.1.0.1")]));
    let two = ["10.0.0.1:8080 bb trust.domain", "10.1.0.1:9090 bb east.trust"];
    assert_eq!(clusters.endpoints(&mut client), two);
    clusters.link("north");
    clusters.list("north", &backends("cc", 7070, &[("cc-1", "10.2.0.1")]));
    let three = [two[0], two[1], "10.2.0.1:7070 cc north.trust"];
    assert_eq!(clusters.endpoints(&mut client), three);
    clusters.apply([federated("cc@north", "bb")]);
    assert_eq!(clusters.endpoints(&mut client), [three[0], three[2]]);
    clusters.others["north"].unlink(&clusters.rig);
    assert_eq!(clusters.endpoints(&mut client), [three[0]]);
}

#[tokio::test]
async fn an_address_that_two_clusters_have_stays_until_the_last_of_them_loses_it() {
    let mut clusters = Clusters::new([federated("bb@east,bb@north", "")]);
    for name in ["east", "north"] {
        clusters.link(name);
        clusters.list(name, &backends("bb", 80, &[("bb-1", "10.1.0.1")]));
    }
    let mut client = clusters.client();
    assert_eq!(clusters.endpoints(&mut client), ["10.1.0.1:80 bb east.trust"]);
    clusters.list("east", &[]);
    assert_eq!(clusters.endpoints(&mut client), ["10.1.0.1:80 bb north.trust"]);
    clusters.list("north", &[]);
    assert!(clusters.endpoints(&mut client).is_empty());
}

#[tokio::test]
async fn a_stream_of_remote_discovery_ends_when_its_cluster_is_unlinked() {
    let mut clusters = Clusters::new([remote_discovery()]);
    clusters.link("east");
    clusters.list("east", &backends("bb", 80, &[("bb-1", "10.1.0.1")]));
    let mut client = clusters.client();
    assert_eq!(clusters.endpoints(&mut client).len(), 1);
    clusters.others["east"].unlink(&clusters.rig);
    clusters.rig.publish();
    client.read(usize::MAX);
    assert!(client.stream.is_none());
    let refused = Answer::Refused(Code::NotFound, "Remote cluster not found: east".to_owned());
    assert_eq!(client.settle(&clusters.rig.views), refused);
}

/// Otherwise a server that starts would refuse clusters that are linked, or send an incomplete set.
#[tokio::test]
async fn until_the_links_are_known_a_request_that_needs_them_is_to_be_retried() {
    let rig = Rig::with_clusters(settings());
    let mut clusters = Clusters { rig, others: BTreeMap::new() };
    for (service, expected) in
        [(remote_discovery(), true), (federated("bb@east", ""), true), (federated("", "bb"), false)]
    {
        clusters.apply([service]);
        let request = oracle::Request { path: PATH.to_owned(), token: String::new() };
        let answer = Client::<Get>::new(request).settle(&clusters.rig.views);
        assert_eq!(matches!(answer, Answer::Refused(Code::Unavailable, _)), expected, "{answer:?}");
    }
}

/// The policy is one of this cluster: other clusters have other nodes.
#[tokio::test]
async fn the_local_policy_of_a_member_does_not_apply_to_members_in_other_clusters() {
    let mut local = backends("bb", 80, &[("bb-1", "10.0.0.1")]);
    e2e::mesh::merge(&mut local[0].1, json!({"spec": {"internalTrafficPolicy": "Local"}}));
    let mut clusters = Clusters::new([federated("bb@east", "bb")].into_iter().chain(local));
    clusters.link("east");
    clusters.list("east", &backends("bb", 80, &[("bb-1", "10.1.0.1")]));
    let mut on_node = clusters.client();
    assert_eq!(clusters.endpoints(&mut on_node).len(), 2);
    let others: Vec<Client<Get>> = (0..100)
        .map(|number| {
            let token = format!(r#"{{"nodeName":"made-up-{number}"}}"#);
            let mut client = Client::<Get>::new(oracle::Request { path: PATH.to_owned(), token });
            client.open(&clusters.rig.views).unwrap();
            client
        })
        .collect();
    let mut last = others.into_iter().next_back().unwrap();
    assert_eq!(clusters.endpoints(&mut last), ["10.1.0.1:80 bb east.trust"]);
    assert_eq!(clusters.rig.views.endpoints.registry.index().count(), 2, "clients on unknown nodes share a view");
}

#[tokio::test]
async fn a_service_that_becomes_federated_and_ordinary_again_keeps_its_open_streams() {
    let own = backends("web", 80, &[("web-1", "10.0.0.9")]);
    let mut clusters = Clusters::new(own.clone());
    clusters.link("east");
    clusters.list("east", &backends("bb", 80, &[("bb-1", "10.1.0.1")]));
    let mut client = clusters.client();
    assert_eq!(clusters.endpoints(&mut client), ["10.0.0.9:80 web trust.domain"]);
    clusters.apply([federated("bb@east", "")]);
    assert_eq!(clusters.endpoints(&mut client), ["10.1.0.1:80 bb east.trust"]);
    clusters.apply(own);
    assert_eq!(clusters.endpoints(&mut client), ["10.0.0.9:80 web trust.domain"]);
}

/// For proxies, it would become a label of their metrics.
#[tokio::test]
async fn the_cluster_of_an_endpoint_is_a_label_only_for_a_client_that_asks_for_it() {
    let mut clusters =
        Clusters::new([federated("bb@east", "bb")].into_iter().chain(backends("bb", 80, &[("bb-1", "10.0.0.1")])));
    clusters.link("east");
    clusters.list("east", &backends("bb", 80, &[("bb-1", "10.1.0.1")]));
    clusters.rig.publish();
    for (token, expected) in [("", [None, None]), (r#"{"clusters":true}"#, [None, Some("east")])] {
        let request = oracle::Request { path: PATH.to_owned(), token: token.to_owned() };
        let Answer::Endpoints(endpoints) = Client::<Get>::new(request).settle(&clusters.rig.views) else {
            panic!("refused")
        };
        let labels: Vec<_> = endpoints.values().map(|it| it.metric_labels.get("cluster").map(String::as_str)).collect();
        assert_eq!(labels, expected, "{token}");
    }
}
