//! Tests of views, from their first client to their last.

use futures::FutureExt;
use kube::runtime::watcher::Event;
use prometheus::Registry as Prometheus;
use prost::Message;
use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{Kind, Observer, testing::Feed},
    destination::{DestinationObserver, authority::ProfileAuthority, metrics::DiscoveryMetrics, testing::settings},
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
        let views = Views::new(feed.cluster.clone(), settings(), metrics);
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

    async fn publish(&self) {
        while let Some(batch) = self.observer.dirty.next().now_or_never() {
            self.views.publish_batch(batch.into()).await;
        }
    }

    fn subscribe(&self, path: &str, client_namespace: &str) -> Result<Subscription<Profiles>, ProfileRefusal> {
        let authority = ProfileAuthority::parse(path, &settings().cluster_domain).unwrap();
        self.views.subscribe_to_profile(&ProfileRequest::new(authority, client_namespace))
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

const WEB: &str = "web.ns.svc.mycluster.local:80";

fn profile(subscription: &mut Subscription<Profiles>) -> DestinationProfile {
    let frame = subscription.latest().content.unwrap().frame;
    DestinationProfile::decode(frame.slice(5..)).unwrap()
}

fn frame(subscription: &mut Subscription<Profiles>) -> Bytes {
    subscription.latest().content.unwrap().frame
}

#[tokio::test]
async fn a_client_that_subscribes_after_the_last_client_left_receives_the_current_profile() {
    let rig = Rig::new([web("80")]);
    for _ in 0..3 {
        let mut subscription = rig.subscribe(WEB, "").unwrap();
        assert!(profile(&mut subscription).opaque_protocol);
        drop(subscription);
        assert!(rig.views.profiles.index().is_empty());
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
    rig.publish().await;
    assert!(new.changed().now_or_never().is_none(), "the new client has this profile already");
}

#[tokio::test]
async fn clients_of_many_namespaces_share_one_message_before_and_after_a_change() {
    let mut rig = Rig::new([web("80")]);
    let mut clients: Vec<_> = (0..50).map(|n| rig.subscribe(WEB, &format!("client-{n}")).unwrap()).collect();
    for annotation in ["80", "81"] {
        rig.apply(web(annotation).0, web(annotation).1);
        rig.publish().await;
        let frames: Vec<Bytes> = clients.iter_mut().map(frame).collect();
        assert!(frames.iter().all(|frame| std::ptr::eq(&**frame, &*frames[0])));
    }
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
    rig.publish().await;
    let before = rig.published();
    let server = |port: u16| json!({"metadata": {"name": "server"}, "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "port": port, "proxyProtocol": "opaque"}});
    rig.apply(Kind::Server, server(80));
    let batch = rig.observer.dirty.next().now_or_never().unwrap().into();
    let affected = rig.views.profiles_of(&batch);
    assert_eq!(affected.len(), 1, "only the view of the Pod is affected");
    rig.views.publish_batch(batch).await;
    assert!(endpoint.changed().now_or_never().is_some() && profile(&mut endpoint).opaque_protocol);
    rig.apply(Kind::Server, server(80));
    rig.apply(Kind::Server, server(81));
    rig.apply(Kind::Server, server(80));
    rig.publish().await;
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
    rig.publish().await;
    let (kind, object) = workload(81, "other");
    rig.apply(kind, object);
    let batch = rig.observer.dirty.next().now_or_never().unwrap().into();
    assert_eq!(rig.views.profiles_of(&batch).len(), 1);
}

#[tokio::test]
async fn a_view_whose_target_changes_ends_and_no_new_client_joins_it() {
    let mut rig = Rig::new([pod("web-1", &json!({}))]);
    let mut old = rig.subscribe("10.0.0.1:80", "").unwrap();
    old.latest();
    let (kind, other) = pod("web-2", &json!({}));
    rig.apply(kind, other.clone());
    rig.publish().await;
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
    rig.publish().await;
    assert_eq!(rig.views.profiles.index().clients().len(), 1, "dropping the ended view does not remove the new view");
    drop(new);
    assert!(rig.views.profiles.index().is_empty());
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
