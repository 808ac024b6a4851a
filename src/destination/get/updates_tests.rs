//! A model of one stream, the watches and the publisher, which runs every order of their steps.
//!
//! The stream is the real one. Wherever it may be interrupted, any number of the next steps of the script run: an event
//! is applied to the state, or the publisher publishes all marked keys, or the process stops.

use std::{cell::RefCell, collections::VecDeque, rc::Rc};

use futures::FutureExt;
use kube::runtime::watcher::Event;
use prometheus::Registry as Prometheus;
use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{Kind, Observer, testing::Feed},
    destination::{
        DestinationObserver,
        authority::ServiceAuthority,
        metrics::DiscoveryMetrics,
        settings::DestinationSettings,
        testing::{interleaved, settings},
        views::Views,
    },
    memory::MemoryBudget,
};

#[derive(Clone)]
enum Step {
    Apply(Kind, Value),
    Delete(Kind, Value),
    Publish,
    Close,
}
use Step::{Apply, Close, Delete, Publish};

struct Rig {
    feed: Feed,
    observer: Arc<DestinationObserver>,
    views: Arc<Views>,
    script: VecDeque<Step>,
    /// How many steps run at each interruption.
    schedule: VecDeque<usize>,
}

impl Rig {
    fn new(script: &[Step], schedule: &[usize]) -> Self {
        Self::with(script, schedule, settings())
    }

    fn with(script: &[Step], schedule: &[usize], settings: DestinationSettings) -> Self {
        let observer = DestinationObserver::new();
        let feed = Feed::new([Arc::clone(&observer) as Arc<dyn Observer>]);
        let metrics = DiscoveryMetrics::register(&Prometheus::new()).unwrap();
        let views = Views::new(feed.cluster.clone(), &observer, settings.into(), metrics, None);
        let (script, schedule) = (script.iter().cloned().collect(), schedule.iter().copied().collect());
        let mut rig = Self { feed, observer, views, script, schedule };
        for step in [web(false), slice(81), pod("a", "node-1"), pod("b", "node-2"), node("zone-1"), Publish] {
            rig.run(step);
        }
        rig
    }

    fn run(&mut self, step: Step) {
        match step {
            Apply(kind, object) => self.feed.apply(kind, Event::Apply(object)),
            Delete(kind, object) => self.feed.apply(kind, Event::Delete(object)),
            Close => self.views.close(),
            Publish => {
                while let Some(batch) = self.observer.dirty.next().now_or_never() {
                    self.views.publisher().publish(batch.into());
                }
            }
        }
    }

    fn run_next(&mut self) -> bool {
        let step = self.script.pop_front();
        step.map(|step| self.run(step)).is_some()
    }

    fn interrupt(&mut self) {
        for _ in 0..self.schedule.pop_front().unwrap_or_default() {
            self.run_next();
        }
    }
}

/// The Service, with or without `internalTrafficPolicy: Local`.
fn web(local: bool) -> Step {
    let policy = if local { "Local" } else { "Cluster" };
    let metadata = json!({"name": "web", "namespace": "ns"});
    Apply(Kind::Service, json!({"metadata": metadata, "spec": {"internalTrafficPolicy": policy}}))
}

fn deleted(step: Step) -> Step {
    let Apply(kind, object) = step else { panic!("only an applied object can be deleted") };
    Delete(kind, object)
}

/// The slice: Pod a is for clients in zone-1, Pod b for clients in zone-2.
fn slice(port: u16) -> Step {
    slice_with(port, ["", ""])
}

/// The slice, with these hostnames of Pods a and b.
fn slice_with(port: u16, hostnames: [&str; 2]) -> Step {
    let endpoint = |address: &str, pod: &str, zone: &str| {
        let hostname = hostnames[usize::from(pod == "b")];
        json!({"addresses": [address], "hostname": hostname, "hints": {"forZones": [{"name": zone}]},
            "targetRef": {"kind": "Pod", "name": pod}})
    };
    let endpoints = [endpoint("10.0.0.1", "a", "zone-1"), endpoint("10.0.0.2", "b", "zone-2")];
    let labels = json!({"kubernetes.io/service-name": "web"});
    let metadata = json!({"name": "web-1", "namespace": "ns", "labels": labels, "resourceVersion": port.to_string()});
    Apply(Kind::EndpointSlice, json!({"metadata": metadata, "ports": [{"port": port}], "endpoints": endpoints}))
}

/// The slice, with a hint for these nodes: Pod a is for clients in zone-1, and Pod b for clients in zone-2.
fn slice_for(version: u16, nodes: [&[&str]; 2]) -> Step {
    let endpoint = |address: &str, pod: &str, zone: &str, nodes: &[&str]| {
        let nodes: Vec<Value> = nodes.iter().map(|node| json!({ "name": node })).collect();
        let hints = json!({"forZones": [{"name": zone}], "forNodes": nodes});
        json!({"addresses": [address], "hints": hints, "targetRef": {"kind": "Pod", "name": pod}})
    };
    let [a, b] = nodes;
    let endpoints = [endpoint("10.0.0.1", "a", "zone-1", a), endpoint("10.0.0.2", "b", "zone-2", b)];
    let labels = json!({"kubernetes.io/service-name": "web"});
    let metadata =
        json!({"name": "web-1", "namespace": "ns", "labels": labels, "resourceVersion": version.to_string()});
    Apply(Kind::EndpointSlice, json!({"metadata": metadata, "ports": [{"port": 80}], "endpoints": endpoints}))
}

fn pod(name: &str, node: &str) -> Step {
    Apply(Kind::Pod, json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"nodeName": node}}))
}

/// The client's node.
fn node(zone: &str) -> Step {
    Apply(Kind::Node, json!({"metadata": {"name": "node-1", "labels": {"topology.kubernetes.io/zone": zone}}}))
}

/// Returns the endpoints that a stream has after all steps, or the reason of its end.
fn stream(rig: &Rc<RefCell<Rig>>, request: GetRequest) -> String {
    let views = Arc::clone(&rig.borrow().views);
    let subscription = match views.endpoints.subscribe(&request) {
        Ok(subscription) => subscription,
        Err(refusal) => return format!("{refusal:?}"),
    };
    let mut updates = EndpointUpdates::new(request, subscription);
    let mut end = updates.refresh();
    while end.is_none() {
        while updates.next().is_some() {}
        if updates.changed().now_or_never().is_some() {
            end = updates.refresh();
        } else if !rig.borrow_mut().run_next() {
            break;
        }
    }
    match (end, &updates.sent) {
        (Some(end), _) => format!("{end:?}"),
        (None, None) => "no message".to_owned(),
        (None, Some(sent)) => {
            let addresses: Vec<_> = sent.endpoints().iter().map(|it| it.address.ip().to_string()).collect();
            if addresses.is_empty() { "none".to_owned() } else { addresses.join(" ") }
        }
    }
}

/// Returns every way to distribute up to `steps` steps over `places` interruptions.
fn schedules(places: usize, steps: usize) -> Vec<Vec<usize>> {
    if places == 0 {
        return vec![Vec::new()];
    }
    let first = (0..=steps).map(|now| (now, schedules(places - 1, steps - now)));
    first.flat_map(|(now, rest)| rest.into_iter().map(move |rest| [vec![now], rest].concat())).collect()
}

/// A request of a client on node-1.
fn request(authority: &str) -> GetRequest {
    let path = format!("{authority}.ns.svc.mycluster.local:80");
    GetRequest::new(ServiceAuthority::parse(&path, &settings().cluster_domain).unwrap(), "node-1")
}

/// Checks the last state of a stream for every order of the script's steps and the stream's.
fn always_ends_with(script: &[Step], expected: &[&str]) {
    always_ends_for(&request("web"), script, expected);
}

fn always_ends_for(request: &GetRequest, script: &[Step], expected: &[&str]) {
    for schedule in schedules(5, script.len()) {
        let rig = Rc::new(RefCell::new(Rig::new(script, &schedule)));
        let interrupted = Rc::clone(&rig);
        let last = interleaved(move || interrupted.borrow_mut().interrupt(), || stream(&rig, request.clone()));
        assert!(expected.contains(&last.as_str()), "the stream has {last}, not {expected:?}, after {schedule:?}");
    }
}

#[test]
fn a_stream_that_has_to_move_while_its_service_is_deleted_loses_its_endpoints() {
    let script = [node("zone-2"), Publish, deleted(web(false)), Publish];
    always_ends_with(&script, &["none", "NoService"]);
}

#[test]
fn a_stream_whose_service_changes_its_traffic_policy_twice_has_the_endpoints_of_the_last_policy() {
    always_ends_with(&[web(true), Publish, web(false), Publish], &["10.0.0.1"]);
    let away = node("zone-3");
    always_ends_with(&[away, Publish, web(true), Publish, web(false), Publish], &["10.0.0.1 10.0.0.2"]);
}

#[test]
fn a_stream_whose_node_changes_its_zone_twice_has_the_endpoints_of_the_last_zone() {
    always_ends_with(&[node("zone-2"), Publish, node("zone-1"), Publish], &["10.0.0.1"]);
    always_ends_with(&[node("zone-1"), Publish, node("zone-2"), Publish], &["10.0.0.2"]);
    always_ends_with(&[node("zone-2"), Publish, node("zone-3"), Publish], &["10.0.0.1 10.0.0.2"]);
}

#[test]
fn a_stream_that_has_to_move_follows_a_service_that_is_deleted_and_created_between_two_publications() {
    let again = [deleted(web(false)), web(false), Publish];
    always_ends_with(
        &[&[node("zone-2"), Publish, slice(82), Publish][..], &again].concat(),
        &["10.0.0.2", "NoService"],
    );
}

#[test]
fn a_stream_that_moves_while_the_process_stops_ends() {
    always_ends_with(&[web(true), Publish, Close], &["Shutdown", "Stopping"]);
    always_ends_with(&[node("zone-2"), Publish, deleted(web(false)), Close], &["Shutdown", "Stopping", "NoService"]);
}

/// The Service, declaring these ports.
fn declaring(ports: &[u16]) -> Step {
    let ports: Vec<Value> = ports.iter().map(|port| json!({ "port": port })).collect();
    Apply(Kind::Service, json!({"metadata": {"name": "web", "namespace": "ns"}, "spec": {"ports": ports}}))
}

/// The slice has no port with the name that the Service declares for port 80.
#[test]
fn a_stream_whose_port_is_declared_and_undeclared_again_has_the_endpoints_of_the_last_service() {
    let named = |name: &str| {
        let spec = json!({"ports": [{"name": name, "port": 80}]});
        Apply(Kind::Service, json!({"metadata": {"name": "web", "namespace": "ns"}, "spec": spec}))
    };
    always_ends_with(&[named("none"), Publish], &["none", "no message"]);
    always_ends_with(&[named("none"), Publish, declaring(&[443]), Publish], &["10.0.0.1"]);
    always_ends_with(&[named("none"), declaring(&[443]), named("none"), Publish], &["none", "no message"]);
}

#[test]
fn a_stream_whose_hostname_is_given_to_an_endpoint_and_taken_away_has_the_last_endpoints() {
    let named = |port, hostnames| slice_with(port, hostnames);
    let ends = |script: &[Step], expected: &[&str]| always_ends_for(&request("db-0.web"), script, expected);
    ends(&[slice(82), Publish], &["none"]);
    ends(&[named(82, ["db-0", ""]), Publish], &["10.0.0.1"]);
    ends(&[named(82, ["", "other"]), named(83, ["other", "db-0"]), Publish], &["10.0.0.2"]);
    ends(&[named(82, ["db-0", ""]), Publish, slice(83), Publish], &["none"]);
    // Between two publications, the name is away for a moment.
    ends(&[named(82, ["db-0", ""]), Publish, slice(83), named(84, ["", "db-0"]), Publish], &["10.0.0.2"]);
}

#[test]
fn a_stream_on_a_node_without_pods_has_local_endpoints_once_the_node_has_a_pod() {
    let local = [web(true), pod("a", "node-3"), Publish];
    let ends = |script: &[Step], expected: &[&str]| always_ends_with(&[&local[..], script].concat(), expected);
    ends(&[pod("b", "node-2"), Publish], &["none"]);
    ends(&[pod("a", "node-1"), Publish], &["10.0.0.1"]);
    ends(&[pod("b", "node-1"), Publish, pod("b", "node-2"), Publish], &["none"]);
    ends(&[pod("b", "node-1"), Publish, pod("b", "node-2"), pod("b", "node-1"), Publish], &["10.0.0.2"]);
    ends(&[web(false), Publish], &["10.0.0.1"]);
}

/// The client is on node-1, in the zone of Pod a.
#[test]
fn a_stream_whose_node_gets_and_loses_hints_has_the_endpoints_of_the_last_hints() {
    let own = || slice_for(82, [&["node-2"], &["node-1"]]);
    let service = [declaring(&[80]), Publish];
    for before in [&[][..], &service] {
        let ends = |script: &[Step], expected: &[&str]| always_ends_with(&[before, script].concat(), expected);
        ends(&[own(), Publish], &["10.0.0.2"]);
        ends(&[own(), Publish, slice_for(83, [&["node-1"], &["node-1", "node-2"]]), Publish], &["10.0.0.1 10.0.0.2"]);
        // No hint for the node, and an endpoint without a hint.
        ends(&[own(), Publish, slice_for(83, [&["node-2"], &["node-3"]]), Publish], &["10.0.0.1"]);
        ends(&[own(), Publish, slice_for(83, [&[], &["node-1"]]), Publish], &["10.0.0.1"]);
        ends(&[slice_for(82, [&[], &["node-1"]]), Publish, own_again(), Publish], &["10.0.0.2"]);
        // Between two publications, the hint is away for a moment.
        ends(&[own(), Publish, slice(83), own_again(), Publish], &["10.0.0.2"]);
    }
}

fn own_again() -> Step {
    slice_for(84, [&["node-2"], &["node-1"]])
}

#[test]
fn a_stream_with_endpoints_of_its_node_follows_their_pods_and_the_policy() {
    let own = [slice_for(82, [&["node-2"], &["node-1"]]), Publish];
    let ends = |script: &[Step], expected: &[&str]| always_ends_with(&[&own[..], script].concat(), expected);
    let gone = || deleted(pod("b", "node-2"));
    ends(&[gone(), Publish], &["10.0.0.1"]);
    ends(&[gone(), Publish, pod("b", "node-2"), Publish], &["10.0.0.2"]);
    ends(&[web(true), Publish], &["10.0.0.1"]);
    ends(&[web(true), Publish, web(false), Publish], &["10.0.0.2"]);
    ends(&[deleted(web(false)), Publish, web(false), Publish], &["10.0.0.2", "NoService"]);
}

/// Clients choose the names of their nodes. Only nodes that endpoints have hints for have views.
#[test]
fn streams_on_nodes_without_hints_share_one_view_and_the_others_have_only_their_endpoints() {
    let mut rig = Rig::new(&[slice_for(82, [&["node-2", "node-3"], &["node-1"]])], &[]);
    rig.run_next();
    rig.run(Publish);
    let subscribe = |number: usize| {
        rig.views
            .endpoints
            .subscribe(&GetRequest { node: format!("node-{number}").into(), ..request("web") })
            .unwrap()
            .0
    };
    let streams: Vec<_> = (1..1_000).map(subscribe).collect();
    let lengths: Vec<usize> = streams.iter().map(|it| it.view().sender.borrow().content.snapshot.len()).collect();
    assert_eq!((&lengths[..5], rig.views.endpoints.registry.index().count()), (&[1, 1, 1, 2, 2][..], 4));
}

#[test]
fn streams_of_unknown_hostnames_and_unknown_nodes_share_one_view_without_series() {
    let mut rig = Rig::new(&[web(true)], &[]);
    rig.run_next();
    rig.run(Publish);
    let made_up = (0..1_000).flat_map(|number| {
        let on_node = |authority: &str, node: &str| GetRequest { node: node.into(), ..request(authority) };
        [on_node(&format!("db-{number}.web"), "node-1"), on_node("web", &format!("node-{}", number + 10))]
    });
    let streams: Vec<_> = made_up.map(|request| rig.views.endpoints.subscribe(&request).unwrap()).collect();
    let index = rig.views.endpoints.registry.index();
    assert_eq!((index.count(), index.series().len(), streams.len()), (1, 0, 2_000));
}

#[test]
fn a_view_is_refused_if_its_endpoints_exceed_the_memory_budget_and_removed() {
    let mut settings = settings();
    settings.limits.memory = MemoryBudget::EXHAUSTED;
    let rig = Rig::with(&[], &[], settings);
    assert_eq!(rig.views.endpoints.subscribe(&request("web")).err(), Some(GetRefusal::NoMemory));
    assert_eq!(rig.views.endpoints.registry.index().count(), 0);
}

#[test]
fn streams_of_undeclared_ports_share_one_view_and_have_no_series() {
    let mut rig = Rig::new(&[declaring(&[80])], &[]);
    rig.run_next();
    rig.run(Publish);
    let streams: Vec<_> = (10_000..13_000)
        .map(|port| {
            let path = format!("web.ns.svc.mycluster.local:{port}");
            let request = GetRequest::new(ServiceAuthority::parse(&path, "mycluster.local").unwrap(), "");
            let mut updates = EndpointUpdates::new(request.clone(), rig.views.endpoints.subscribe(&request).unwrap());
            updates.refresh();
            let first = updates.next().unwrap();
            assert_eq!(first.messages.add, 1);
            updates
        })
        .collect();
    let index = rig.views.endpoints.registry.index();
    assert_eq!((index.count(), index.series().len(), streams.len()), (1, 0, 3_000));
}
