//! Tests of views, from their first client to their last.

use futures::FutureExt;
use kube::runtime::watcher::Event;
use prometheus::Registry as Prometheus;
use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{Kind, Observer, testing::Feed},
    contain,
    destination::{
        DestinationObserver, authority::ProfileAuthority, metrics::DiscoveryMetrics, object_group::GroupMembers,
        testing::settings, views::Views,
    },
    memory,
    proto::destination::DestinationProfile,
};

struct Rig {
    feed: Feed,
    observer: Arc<DestinationObserver>,
    views: Arc<Views>,
}

impl Rig {
    fn new(objects: impl IntoIterator<Item = (Kind, Value)>) -> Self {
        let observer = DestinationObserver::new();
        let feed = Feed::new([Arc::clone(&observer) as Arc<dyn Observer>]);
        let metrics = DiscoveryMetrics::register(&Prometheus::new()).unwrap();
        let views = Views::new(feed.cluster.clone(), &observer, settings().into(), metrics, None);
        let mut rig = Self { feed, observer, views };
        for (kind, object) in objects {
            rig.apply(kind, object);
        }
        rig
    }

    fn apply(&mut self, kind: Kind, mut object: Value) {
        object["metadata"]["namespace"] = "ns".into();
        self.feed.apply(kind, Event::Apply(object));
    }

    fn publish(&self) {
        while let Some(batch) = self.observer.dirty.next().now_or_never() {
            self.views.publisher().publish(batch.into());
        }
    }

    fn subscribe(&self, path: &str, client_namespace: &str) -> Result<Subscription<ProfileViews>, ProfileRefusal> {
        let authority = ProfileAuthority::parse(path, &settings().cluster_domain).unwrap();
        self.views.profiles.subscribe(&ProfileRequest::new(authority, client_namespace))
    }

    fn published(&self) -> u64 {
        self.views.metrics.published.get()
    }
}

fn web(opaque_ports: &str) -> (Kind, Value) {
    let annotations = json!({ "config.linkerd.io/opaque-ports": opaque_ports });
    let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}]});
    (Kind::Service, json!({"metadata": {"name": "web", "annotations": annotations}, "spec": spec}))
}

fn pod(name: &str, labels: &Value) -> (Kind, Value) {
    let status = json!({"phase": "Running", "podIP": "10.0.0.1"});
    (Kind::Pod, json!({"metadata": {"name": name, "labels": labels}, "status": status}))
}

#[tokio::test]
async fn a_profile_that_cannot_be_published_is_reset_and_a_new_client_receives_it() {
    let mut rig = Rig::new([web("80")]);
    let mut old = rig.subscribe(WEB, "").unwrap();
    let (kind, object) = web("81");
    rig.apply(kind, object);
    contain::testing::panic_in_next(Work::Publishing);
    rig.publish();
    assert_eq!(old.latest().end, Some(EndReason::Panicked));
    let mut new = rig.subscribe(WEB, "").unwrap();
    assert!(!profile(&mut new).opaque_protocol && new.latest().end.is_none());
}

const WEB: &str = "web.ns.svc.mycluster.local:80";

fn profile(subscription: &mut Subscription<ProfileViews>) -> DestinationProfile {
    subscription.latest().content.unwrap().profile.decoded()
}

#[tokio::test]
async fn a_client_that_subscribes_after_the_last_client_left_receives_the_current_profile() {
    let rig = Rig::new([web("80")]);
    for _ in 0..3 {
        let mut subscription = rig.subscribe(WEB, "").unwrap();
        assert!(profile(&mut subscription).opaque_protocol);
        drop(subscription);
        assert!(rig.views.profiles.registry.index().is_empty());
    }
}

#[tokio::test]
async fn a_client_first_receives_the_latest_profile_even_before_it_is_published() {
    let mut rig = Rig::new([web("80")]);
    let mut old = rig.subscribe(WEB, "").unwrap();
    assert!(profile(&mut old).opaque_protocol);
    rig.apply(web("81").0, web("81").1);
    let mut new = rig.subscribe(WEB, "").unwrap();
    assert!(!profile(&mut new).opaque_protocol);
    assert!(old.changed().now_or_never().is_some() && !profile(&mut old).opaque_protocol);
    rig.publish();
    assert!(new.changed().now_or_never().is_none(), "the new client has this profile already");
}

/// The routes are a regular expression of a megabyte.
fn large_profile(letter: &str) -> (Kind, Value) {
    let route = json!({"name": "r", "condition": {"pathRegex": letter.repeat(1_000_000)}});
    (Kind::ServiceProfile, json!({"metadata": {"name": "web.ns.svc.mycluster.local"}, "spec": {"routes": [route]}}))
}

#[tokio::test]
async fn the_ports_of_a_service_and_its_clients_share_the_routes_of_a_large_service_profile() {
    const PORTS: u16 = 250;
    let ports: Vec<Value> = (1..=PORTS).map(|port| json!({ "port": port })).collect();
    let service = (Kind::Service, json!({"metadata": {"name": "web"}, "spec": {"ports": ports}}));
    let mut rig = Rig::new([service, large_profile("x")]);
    let path = |port: u16| format!("web.ns.svc.mycluster.local:{port}");
    // The first client makes the routes be encoded. The other tests allocate at the same time, but far less.
    let mut clients = vec![rig.subscribe(&path(1), "").unwrap()];
    let before = memory::allocated();
    clients.extend((2..=PORTS).map(|port| rig.subscribe(&path(port), "").unwrap()));
    clients.extend((0..PORTS).map(|client| rig.subscribe(&path(1), &format!("client-{client}")).unwrap()));
    let first: Vec<_> = clients.iter_mut().map(|client| client.latest().content).collect();
    let added = memory::allocated().saturating_sub(before);
    assert!(added < 100_000_000, "{added} bytes for {} clients of a message of a megabyte", clients.len());

    // None of the clients has read the first profile yet.
    let (kind, object) = large_profile("y");
    rig.apply(kind, object);
    rig.publish();
    let second: Vec<_> = clients.iter_mut().map(|client| client.latest().content).collect();
    let added = memory::allocated().saturating_sub(before);
    assert!(added < 100_000_000, "{added} bytes after the ServiceProfile was replaced");
    assert!(first.into_iter().zip(second).all(|(first, second)| first.unwrap().profile != second.unwrap().profile));
}

#[tokio::test]
async fn a_service_profile_that_is_applied_again_sends_nothing() {
    let mut rig = Rig::new([web("80"), large_profile("x")]);
    let mut client = rig.subscribe(WEB, "").unwrap();
    client.latest();
    let (kind, mut object) = large_profile("x");
    object["metadata"]["annotations"] = json!({"touched": "yes"});
    rig.apply(kind, object);
    rig.publish();
    // The Service changes too, but not in what its profile has.
    let (kind, mut object) = web("80");
    object["metadata"]["annotations"]["touched"] = "yes".into();
    rig.apply(kind, object);
    rig.publish();
    assert!(client.changed().now_or_never().is_none());
    let (kind, object) = large_profile("y");
    rig.apply(kind, object);
    rig.publish();
    assert!(client.changed().now_or_never().is_some());
}

#[tokio::test]
async fn only_affected_views_are_checked_and_no_client_receives_the_same_profile_again() {
    let mut rig = Rig::new([web("80"), pod("web-1", &json!({"app": "web"}))]);
    let mut service = rig.subscribe(WEB, "").unwrap();
    let mut endpoint = rig.subscribe("10.0.0.1:80", "").unwrap();
    let mut elsewhere = rig.subscribe("10.0.0.2:80", "").unwrap();
    for subscription in [&mut service, &mut endpoint, &mut elsewhere] {
        subscription.latest();
    }
    rig.publish();
    let before = rig.published();
    let server = |port: u16| json!({"metadata": {"name": "server"}, "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "port": port, "proxyProtocol": "opaque"}});
    rig.apply(Kind::Server, server(80));
    let batch: Batch = rig.observer.dirty.next().now_or_never().unwrap().into();
    let mut members = batch.groups.keys().map(|(_, group)| GroupMembers::of(&rig.feed.cluster, group));
    let mut members = members.next().unwrap();
    let mut batch = Batch::default();
    for key in std::iter::from_fn(|| members.next_step(&rig.feed.cluster)).flatten() {
        batch.add(key, Instant::now());
    }
    let affected = rig.views.profiles.affected_by(&batch);
    assert_eq!(affected.len(), 1, "only the view of the Pod is affected");
    rig.views.publisher().publish(batch);
    assert!(endpoint.changed().now_or_never().is_some() && profile(&mut endpoint).opaque_protocol);
    rig.apply(Kind::Server, server(80));
    rig.apply(Kind::Server, server(81));
    rig.apply(Kind::Server, server(80));
    rig.publish();
    let others = [service, endpoint, elsewhere];
    assert!(others.into_iter().all(|mut it| it.changed().now_or_never().is_none()));
    assert_eq!(rig.published() - before, 1);
}

#[tokio::test]
async fn a_change_at_one_port_of_a_node_does_not_affect_the_other_ports() {
    let workload = |port: u16, name: &str| {
        let spec = json!({"workloadIPs": [{"ip": "192.0.2.1"}], "ports": [{"port": port}]});
        (Kind::ExternalWorkload, json!({"metadata": {"name": name}, "spec": spec}))
    };
    let mut rig = Rig::new([workload(80, "vm")]);
    let _clients: Vec<_> = (80..90).map(|port| rig.subscribe(&format!("192.0.2.1:{port}"), "").unwrap()).collect();
    rig.publish();
    let (kind, object) = workload(81, "other");
    rig.apply(kind, object);
    let batch = rig.observer.dirty.next().now_or_never().unwrap().into();
    assert_eq!(rig.views.profiles.affected_by(&batch).len(), 1);
}

#[tokio::test]
async fn a_view_whose_target_changes_ends_and_no_new_client_joins_it() {
    let mut rig = Rig::new([pod("web-1", &json!({}))]);
    let mut old = rig.subscribe("10.0.0.1:80", "").unwrap();
    old.latest();
    let (kind, other) = pod("web-2", &json!({}));
    rig.apply(kind, other.clone());
    rig.publish();
    assert_eq!(old.latest().end, Some(EndReason::Rerouted));
    let conflict = ProfileRefusal::Pods(2, "10.0.0.1".parse().unwrap());
    assert_eq!(rig.subscribe("10.0.0.1:80", "").map(|_| ()), Err(conflict));
    let mut deleted = other;
    deleted["metadata"]["namespace"] = "ns".into();
    rig.feed.apply(kind, Event::Delete(deleted));
    // The first client still holds the ended view, because it has not read yet.
    let mut new = rig.subscribe("10.0.0.1:80", "").unwrap();
    assert_eq!((new.latest().end, profile(&mut new).endpoint.unwrap().metric_labels["pod"].as_str()), (None, "web-1"));
    drop(old);
    rig.publish();
    assert_eq!(
        rig.views.profiles.registry.index().clients().len(),
        1,
        "dropping the ended view does not remove the new view"
    );
    drop(new);
    assert!(rig.views.profiles.registry.index().is_empty());
}

#[tokio::test]
async fn when_the_process_stops_all_streams_end_even_empty_ones_and_no_stream_begins() {
    let rig = Rig::new([web("80"), pod("web-1", &json!({}))]);
    let paths = [WEB, "web.ns.svc.mycluster.local:81", "10.96.0.1:80", "10.0.0.1:80", "203.0.113.1:80"];
    let mut streams = paths.map(|path| rig.subscribe(path, "").unwrap());
    rig.views.close();
    for stream in &mut streams {
        assert_eq!(stream.latest().end, Some(EndReason::Shutdown));
    }
    assert_eq!(rig.subscribe(WEB, "").map(|_| ()), Err(ProfileRefusal::Stopping));
}
