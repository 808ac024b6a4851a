//! Tests of open streams whose target changes. The table of cases has the answers to new requests.

use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{Kind, testing::Feed},
    destination::{
        authority::ProfileAuthority,
        profile::{encoded::EncodedProfile, request::ProfileRequest},
        testing::settings,
    },
};

/// A cluster with these objects in namespace `ns`.
fn cluster(objects: impl IntoIterator<Item = (Kind, Value)>) -> Feed {
    let mut feed = Feed::default();
    for (kind, object) in objects {
        put(&mut feed, kind, object);
    }
    feed
}

fn put(feed: &mut Feed, kind: Kind, mut object: Value) {
    object["metadata"]["namespace"] = json!("ns");
    feed.apply(kind, Event::Apply(object));
}

fn target(feed: &Feed, path: &str) -> ProfileTarget {
    let authority = ProfileAuthority::parse(path, "mycluster.local").unwrap();
    ProfileRequest::new(authority, "").resolve(&feed.cluster.read()).unwrap()
}

/// The current profile of an open stream.
fn open_stream(feed: &Feed, target: &ProfileTarget) -> Result<DestinationProfile, ProfileRefusal> {
    let inputs = ProfileInputs::of(&feed.cluster.read(), target, &settings())?;
    Ok(EncodedProfile::of(&inputs, &settings()).decoded())
}

fn web(address: &str) -> Value {
    json!({"metadata": {"name": "web", "annotations": {"config.linkerd.io/opaque-ports": "80"}},
        "spec": {"clusterIP": address, "ports": [{"port": 80}]}})
}

fn pod(address: &str) -> Value {
    json!({"metadata": {"name": "web-1"}, "spec": {}, "status": {"phase": "Running", "podIP": address}})
}

/// A slice of Service `db` with an endpoint that has a hostname and is not a Pod.
fn instance_at(address: &str) -> Value {
    let labels = json!({"kubernetes.io/service-name": "db"});
    json!({"metadata": {"name": "db", "resourceVersion": address, "labels": labels}, "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "hostname": "db-0"}]})
}

#[test]
fn a_stream_of_a_deleted_service_falls_back_to_the_defaults_and_keeps_the_service_profile() {
    let routes = json!({"routes": [{"name": "route", "condition": {"method": "GET"}}]});
    let profile = json!({"metadata": {"name": "web.ns.svc.mycluster.local"}, "spec": routes});
    let mut feed = cluster([(Kind::Service, web("10.96.0.1")), (Kind::ServiceProfile, profile)]);
    let targets = ["web.ns.svc.mycluster.local:80", "10.96.0.1:80"].map(|path| target(&feed, path));
    let answers = |feed: &Feed| {
        targets.each_ref().map(|target| open_stream(feed, target).map(|it| (it.opaque_protocol, it.routes.len())))
    };
    assert_eq!(answers(&feed), [Ok((true, 1)), Ok((true, 1))]);
    feed.apply(Kind::Service, Event::Delete(json!({"metadata": {"name": "web", "namespace": "ns"}})));
    assert_eq!(answers(&feed), [Ok((false, 1)), Ok((false, 1))]);
    put(&mut feed, Kind::Pod, pod("10.96.0.1"));
    assert_eq!(answers(&feed), [Ok((false, 1)), Err(ProfileRefusal::Moved)], "the address belongs to a Pod now");
    put(&mut feed, Kind::Service, web("10.96.0.9"));
    assert_eq!(answers(&feed), [Ok((true, 1)), Err(ProfileRefusal::Moved)], "the name belongs to the new Service");
}

#[test]
fn a_stream_of_an_address_ends_when_its_service_has_another_address() {
    let mut feed = cluster([(Kind::Service, web("10.96.0.1"))]);
    let target = target(&feed, "10.96.0.1:80");
    assert!(open_stream(&feed, &target).unwrap().opaque_protocol);
    put(&mut feed, Kind::Service, web("10.96.0.9"));
    assert_eq!(open_stream(&feed, &target), Err(ProfileRefusal::Moved));
}

#[test]
fn a_stream_of_an_address_ends_when_a_service_has_the_address() {
    let mut feed = cluster([(Kind::Pod, pod("10.96.0.1"))]);
    let target = target(&feed, "10.96.0.1:80");
    assert!(open_stream(&feed, &target).unwrap().endpoint.is_some());
    put(&mut feed, Kind::Service, web("10.96.0.1"));
    assert_eq!(open_stream(&feed, &target), Err(ProfileRefusal::Moved));
}

#[test]
fn a_stream_of_a_hostname_ends_when_its_endpoint_has_another_address() {
    let mut feed = cluster([(Kind::EndpointSlice, instance_at("192.0.2.1"))]);
    let target = target(&feed, "db-0.db.ns.svc.mycluster.local:80");
    assert!(open_stream(&feed, &target).unwrap().endpoint.is_some());
    put(&mut feed, Kind::EndpointSlice, instance_at("192.0.2.2"));
    assert_eq!(open_stream(&feed, &target), Err(ProfileRefusal::Moved));
}
