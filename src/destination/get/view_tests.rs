//! Tests of the endpoints that clients receive.

use std::collections::BTreeMap;

use prost::Message as _;
use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::Kind,
    destination::testing::{endpoint, members_of, settings, slice},
    proto::destination::WeightedAddr,
};

fn anywhere() -> Location {
    Location { zone: None, node: None, hinted_node: None }
}

fn in_zone(zone: &str) -> Location {
    Location { zone: Some(zone.into()), ..anywhere() }
}

/// The query of port 80 without a hostname.
fn query(members: &Members) -> Query {
    let port = members.service.as_ref().map_or(QueryPort::Undeclared, |service| QueryPort::of(service, 80));
    Query { port, instance: None, with_clusters: false }
}

fn declaring_80() -> (Kind, Value) {
    (Kind::Service, json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}))
}

fn pod(name: &str) -> (Kind, Value) {
    (Kind::Pod, json!({"metadata": {"name": name}}))
}

fn with(mut endpoint: Value, fields: &Value) -> Value {
    endpoint.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    endpoint
}

#[test]
fn an_endpoint_with_an_unchanged_encoding_is_the_same_object() {
    let slices = |zone: &str| {
        let moved = with(endpoint("10.0.0.2", "Pod", "web-2"), &json!({ "zone": zone }));
        members_of([
            declaring_80(),
            pod("web-1"),
            pod("web-2"),
            slice("a", &json!([{"port": 80}]), &[endpoint("10.0.0.1", "Pod", "web-1"), moved]),
        ])
    };
    let location = anywhere();
    let before =
        endpoints(&slices("a"), &query(&slices("a")), &location, &settings().into(), &EndpointSet::empty(), &[]);
    let after = endpoints(&slices("b"), &query(&slices("b")), &location, &settings().into(), &before, &[]);
    let same: Vec<bool> = before.iter().zip(after.iter()).map(|(one, other)| Arc::ptr_eq(one, other)).collect();
    assert_eq!(same, [true, false]);
}

/// Three zones have three views, but an endpoint has only two encodings: in the zone of the client, or outside of it.
#[test]
fn an_endpoint_with_the_same_encoding_at_another_location_is_shared_with_it() {
    let placed = |name: &str, ip: &str, zone: &str| with(endpoint(ip, "Pod", name), &json!({ "zone": zone }));
    let placed = [placed("web-1", "10.0.0.1", "a"), placed("web-2", "10.0.0.2", "b"), placed("web-3", "10.0.0.3", "c")];
    let members = members_of([
        declaring_80(),
        pod("web-1"),
        pod("web-2"),
        pod("web-3"),
        slice("a", &json!([{"port": 80}]), &placed),
    ]);
    let snapshot = |zone: &str, siblings: &[Arc<Snapshot>]| {
        let empty = EndpointSet::empty();
        let endpoints = endpoints(&members, &query(&members), &in_zone(zone), &settings().into(), &empty, siblings);
        Arc::new(Snapshot::new(BTreeMap::new(), endpoints, tokio::time::Instant::now()))
    };
    let (a, b) = (snapshot("a", &[]), snapshot("b", &[]));
    let c = snapshot("c", &[Arc::clone(&a), Arc::clone(&b)]);
    let shared = |other: &Snapshot| -> Vec<bool> {
        c.endpoints().iter().zip(other.endpoints().iter()).map(|(one, other)| Arc::ptr_eq(one, other)).collect()
    };
    assert_eq!((shared(&a), shared(&b)), (vec![false, true, false], vec![true, false, false]));
}

#[test]
fn the_encoding_is_the_weighted_address_of_the_endpoint() {
    let members = members_of([
        declaring_80(),
        pod("web-1"),
        slice("a", &json!([{"port": 80}]), &[endpoint("10.0.0.1", "Pod", "web-1")]),
    ]);
    let endpoints = endpoints(&members, &query(&members), &anywhere(), &settings().into(), &EndpointSet::empty(), &[]);
    let client = ClientContext { zone: None, port: 80 };
    let (address, slice) = (([10, 0, 0, 1], 80).into(), SliceContext::default());
    let expected: WeightedAddr = weighted_addr(&members.members[0].target, address, slice, &client, &settings());
    assert!(endpoints.iter().next().unwrap().is_encoded_as(&expected.encode_to_vec()));
}
