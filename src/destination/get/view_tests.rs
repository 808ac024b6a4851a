//! Tests of the endpoints that clients receive.

use prost::Message as _;
use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::Kind,
    destination::testing::{endpoint, members, members_of, settings, slice},
    proto::destination::WeightedAddr,
};

fn anywhere() -> Location {
    Location { zone: None, node: None }
}

fn in_zone(zone: &str) -> Location {
    Location { zone: Some(zone.into()), node: None }
}

fn on_node(node: &str) -> Location {
    Location { zone: Some("a".into()), node: Some(node.into()) }
}

struct Query {
    port: u16,
    instance: Option<Arc<str>>,
}

impl Query {
    fn of(&self, members: &Members) -> super::Query {
        let port = members.service.as_ref().map_or(QueryPort::Undeclared, |it| QueryPort::of(it, self.port));
        super::Query { port, instance: self.instance.clone() }
    }
}

fn query(port: u16) -> Query {
    Query { port, instance: None }
}

fn addresses(members: &Members, query: &Query, location: &Location, settings: &DestinationSettings) -> Vec<String> {
    let settings = Arc::new(settings.clone());
    let endpoints = endpoints(members, &query.of(members), location, &settings, &EndpointSet::empty(), &[]);
    endpoints.iter().map(|endpoint| endpoint.address_at(query.port).to_string()).collect()
}

/// The endpoints at a port for clients without a location.
fn at(members: &Members, port: u16) -> Vec<String> {
    addresses(members, &query(port), &anywhere(), &settings())
}

fn declaring_80() -> (Kind, Value) {
    (Kind::Service, json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}))
}

fn pod(name: &str) -> (Kind, Value) {
    (Kind::Pod, json!({"metadata": {"name": name}}))
}

fn address(address: &str) -> Value {
    json!({ "addresses": [address] })
}

fn with(mut endpoint: Value, fields: &Value) -> Value {
    endpoint.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    endpoint
}

fn hinted(endpoint: Value, zones: &[&str]) -> Value {
    let zones: Vec<Value> = zones.iter().map(|zone| json!({ "name": zone })).collect();
    with(endpoint, &json!({"hints": {"forZones": zones}}))
}

#[test]
fn a_port_of_the_service_is_found_in_slices_by_name_and_any_other_port_is_used_unchanged() {
    let endpoints = [address("10.0.0.1")];
    let http = json!([{"name": "http", "port": 8080}, {"name": "admin", "port": 9000}]);
    let declared = json!([{"name": "http", "port": 80, "targetPort": 1}, {"name": "dns", "port": 53, "protocol": "TCP"},
        {"name": "dns-udp", "port": 53, "protocol": "UDP"}]);
    let unnamed = json!([{"port": 80, "targetPort": "web"}]);
    for (service, ports, requested, expected) in [
        (&declared, http.clone(), 80, Some(8080)),
        (&declared, http.clone(), 8080, Some(8080)),
        (&declared, http.clone(), 81, Some(81)),
        (&declared, json!([{"name": "admin", "port": 9000}]), 80, None),
        (&declared, json!([{"port": 8080}]), 80, None),
        (&declared, json!([{"name": "HTTP", "port": 8080}]), 80, None),
        (&declared, json!([{"name": "http", "port": null}]), 80, None),
        (&declared, json!([{"name": "http"}]), 80, None),
        (&declared, json!([{"name": "http", "port": 0}]), 80, None),
        (&declared, json!([{"name": "http", "port": 65536}]), 80, None),
        (&declared, json!([{"name": "http", "port": null}]), 81, Some(81)),
        // The first port with that number, for any protocol.
        (&declared, json!([{"name": "dns", "port": 5353}, {"name": "dns-udp", "port": 5454}]), 53, Some(5353)),
        (&declared, json!([{"name": "dns-udp", "port": 5454}]), 53, None),
        // Without a name, and with the empty name that the API server sets.
        (&unnamed, json!([{"port": 8080}]), 80, Some(8080)),
        (&unnamed, json!([{"name": "", "port": 8080}]), 80, Some(8080)),
        (&unnamed, json!([{"name": null, "port": 8080}]), 80, Some(8080)),
        (&unnamed, http.clone(), 80, None),
        // Without a list of ports, and with an empty list.
        (&declared, json!(null), 80, None),
        (&declared, json!(null), 81, None),
        (&declared, json!([]), 80, None),
        (&declared, json!([]), 81, Some(81)),
        (&json!(null), http, 80, Some(80)),
    ] {
        let service = (Kind::Service, json!({"metadata": {"name": "web"}, "spec": {"ports": service}}));
        let members = members_of([service, slice("a", &ports, &endpoints)]);
        let expected: Vec<String> = expected.map(|port| format!("10.0.0.1:{port}")).into_iter().collect();
        assert_eq!(at(&members, requested), expected, "{ports}, requested port {requested}");
    }
}

#[test]
fn each_slice_has_its_own_numbers_for_a_port() {
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"name": "http", "port": 80}]}});
    let http = |port: u16| json!([{"name": "http", "port": port}]);
    let members = members_of([
        (Kind::Service, service),
        slice("a", &http(8080), &[address("10.0.0.1")]),
        slice("b", &http(8081), &[address("10.0.0.2"), address("10.0.0.1")]),
        slice("c", &json!([{"name": "admin", "port": 1}]), &[address("10.0.0.3")]),
    ]);
    assert_eq!(at(&members, 80), ["10.0.0.1:8080", "10.0.0.1:8081", "10.0.0.2:8081"]);
}

#[test]
fn an_instance_selects_the_endpoints_with_its_hostname() {
    let named = |ip: &str, hostname: Value| with(address(ip), &json!({ "hostname": hostname }));
    let endpoints = [
        named("10.0.0.1", json!("web-0")),
        named("10.0.0.2", json!("web-1")),
        named("10.0.0.3", json!(null)),
        named("10.0.0.4", json!("")),
        address("10.0.0.5"),
        named("10.0.0.6", json!("web-0")),
        named("10.0.0.7", json!("WEB-0")),
    ];
    let members = members([slice("a", &json!([]), &endpoints)]);
    for (instance, expected) in [
        (Some("web-0"), &["10.0.0.1:80", "10.0.0.6:80"][..]),
        (Some("web-1"), &["10.0.0.2:80"]),
        (Some("web-2"), &[]),
        (Some("web"), &[]),
    ] {
        let query = Query { port: 80, instance: instance.map(Arc::from) };
        assert_eq!(addresses(&members, &query, &anywhere(), &settings()), expected, "{instance:?}");
    }
    assert_eq!(at(&members, 80).len(), endpoints.len());
}

#[test]
fn under_the_local_policy_only_pods_on_the_clients_node_are_sent() {
    let on = |name: &str, node: Value| (Kind::Pod, json!({"metadata": {"name": name}, "spec": {"nodeName": node}}));
    let endpoints = [
        hinted(endpoint("10.0.0.1", "Pod", "here"), &["b"]),
        hinted(endpoint("10.0.0.2", "Pod", "there"), &["a"]),
        endpoint("10.0.0.3", "Pod", "nowhere"),
        // The node in the slice is ignored.
        with(endpoint("10.0.0.4", "Pod", "there"), &json!({"nodeName": "node-1"})),
        with(endpoint("10.0.0.5", "ExternalWorkload", "vm"), &json!({"nodeName": "node-1"})),
        with(address("10.0.0.6"), &json!({"nodeName": "node-1"})),
    ];
    let members = members([
        on("here", json!("node-1")),
        on("there", json!("node-2")),
        on("nowhere", json!(null)),
        (Kind::ExternalWorkload, json!({"metadata": {"name": "vm"}})),
        slice("a", &json!([]), &endpoints),
    ]);
    for (node, expected) in [
        ("node-1", &["10.0.0.1:80"][..]),
        ("node-2", &["10.0.0.2:80", "10.0.0.4:80"]),
        ("node-3", &[]),
        // A Pod without a node does not match a client that sends no node.
        ("", &[]),
    ] {
        assert_eq!(addresses(&members, &query(80), &on_node(node), &settings()), expected, "{node:?}");
    }
}

#[test]
fn zone_hints_apply_if_all_endpoints_have_them_and_some_are_for_the_client() {
    let (one, two) = (address("10.0.0.1"), address("10.0.0.2"));
    let all = &["10.0.0.1:80", "10.0.0.2:80"][..];
    for (endpoints, location, expected) in [
        ([hinted(one.clone(), &["a"]), hinted(two.clone(), &["b"])], in_zone("a"), &["10.0.0.1:80"][..]),
        ([hinted(one.clone(), &["a"]), hinted(two.clone(), &["b"])], in_zone("b"), &["10.0.0.2:80"]),
        ([hinted(one.clone(), &["a"]), hinted(two.clone(), &["a", "b"])], in_zone("b"), &["10.0.0.2:80"]),
        ([hinted(one.clone(), &["a"]), hinted(two.clone(), &["b"])], in_zone("c"), all),
        ([hinted(one.clone(), &["a"]), hinted(two.clone(), &["b"])], anywhere(), all),
        ([hinted(one.clone(), &["a"]), hinted(two.clone(), &[])], in_zone("a"), all),
        ([hinted(one.clone(), &["a"]), two.clone()], in_zone("a"), all),
        (
            [hinted(one.clone(), &["a"]), with(two.clone(), &json!({"hints": {"forNodes": [{"name": "a"}]}}))],
            in_zone("a"),
            all,
        ),
        // The zone of an endpoint is not a hint.
        ([with(one, &json!({"zone": "a"})), with(two, &json!({"zone": "b"}))], in_zone("a"), all),
    ] {
        let members = members([slice("a", &json!([]), &endpoints)]);
        assert_eq!(
            addresses(&members, &query(80), &location, &settings()),
            expected,
            "{endpoints:?} from {location:?}"
        );
    }
}

#[test]
fn only_endpoints_that_pass_the_other_filters_need_hints() {
    let deleted = endpoint("10.0.0.3", "Pod", "deleted");
    let other_instance = with(address("10.0.0.4"), &json!({"hostname": "other"}));
    let named = |endpoint: Value| with(endpoint, &json!({"hostname": "web-0"}));
    let mut unready = address("10.0.0.5");
    unready["conditions"] = json!({"ready": false});
    let (near, far) = (hinted(named(address("10.0.0.1")), &["a"]), hinted(named(address("10.0.0.2")), &["b"]));
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"name": "http", "port": 80}]}});
    let members = members_of([
        (Kind::Service, service),
        slice("a", &json!([{"name": "http", "port": 80}]), &[near, far, deleted, other_instance, unready]),
        slice("b", &json!([{"name": "admin", "port": 80}]), &[named(address("10.0.0.6"))]),
    ]);
    let query = Query { port: 80, instance: Some("web-0".into()) };
    assert_eq!(addresses(&members, &query, &in_zone("a"), &settings()), ["10.0.0.1:80"]);
}

#[test]
fn a_pod_has_one_ip_family_and_other_endpoints_have_all_their_addresses() {
    let both = || {
        vec![
            pod("web-1"),
            pod("web-2"),
            pod("web-3"),
            (Kind::ExternalWorkload, json!({"metadata": {"name": "vm"}})),
            slice(
                "a",
                &json!([]),
                &[
                    endpoint("10.0.0.1", "Pod", "web-1"),
                    endpoint("10.0.0.2", "Pod", "web-2"),
                    endpoint("192.0.2.1", "ExternalWorkload", "vm"),
                    address("203.0.113.1"),
                ],
            ),
            slice(
                "b",
                &json!([]),
                &[
                    endpoint("2001:db8::1", "Pod", "web-1"),
                    endpoint("2001:db8::3", "Pod", "web-3"),
                    endpoint("2001:db8::4", "ExternalWorkload", "vm"),
                    address("2001:db8::5"),
                ],
            ),
        ]
    };
    let others = ["192.0.2.1:80", "203.0.113.1:80", "[2001:db8::4]:80", "[2001:db8::5]:80"];
    for (enable_ipv6, pods) in [
        (true, ["10.0.0.2:80", "[2001:db8::1]:80", "[2001:db8::3]:80"].as_slice()),
        (false, &["10.0.0.1:80", "10.0.0.2:80"]),
    ] {
        let members = members(both());
        let settings = DestinationSettings { enable_ipv6, ..settings() };
        let mut expected: Vec<SocketAddr> = pods.iter().chain(&others).map(|it| it.parse().unwrap()).collect();
        expected.sort();
        let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
        assert_eq!(addresses(&members, &query(80), &anywhere(), &settings), expected, "IPv6 {enable_ipv6}");
    }
}

#[test]
fn the_family_is_chosen_after_the_zone() {
    let two = |v4: &str, v6: &str| {
        members([
            pod("web-1"),
            slice("a", &json!([]), &[hinted(endpoint("10.0.0.1", "Pod", "web-1"), &[v4])]),
            slice("b", &json!([]), &[hinted(endpoint("2001:db8::1", "Pod", "web-1"), &[v6])]),
        ])
    };
    for (members, expected) in [(two("a", "a"), "[2001:db8::1]:80"), (two("a", "b"), "10.0.0.1:80")] {
        assert_eq!(addresses(&members, &query(80), &in_zone("a"), &settings()), [expected]);
    }
}

#[test]
fn the_first_claimant_in_precedence_has_the_address() {
    let pod = |name: &str, created: &str, deleted: Option<&str>| {
        let metadata = json!({"name": name, "creationTimestamp": created, "deletionTimestamp": deleted});
        (Kind::Pod, json!({ "metadata": metadata }))
    };
    let vm = |name: &str| (Kind::ExternalWorkload, json!({"metadata": {"name": name}}));
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let claims = |claimants: &[(&str, &str)]| -> Vec<Value> {
        claimants
            .iter()
            .map(|(kind, name)| if kind.is_empty() { address("10.0.0.1") } else { endpoint("10.0.0.1", kind, name) })
            .collect()
    };
    let (a, b, workload, bare) = (("Pod", "a"), ("Pod", "b"), ("ExternalWorkload", "vm"), ("", ""));
    for (objects, claimants, expected) in [
        (vec![pod("a", early, None), vm("vm")], vec![bare, workload, a], "a"),
        (vec![vm("vm")], vec![bare, workload], "vm"),
        (vec![vm("vm"), vm("um")], vec![workload, ("ExternalWorkload", "um")], "um"),
        (vec![pod("a", early, None), pod("b", late, None)], vec![a, b], "b"),
        (vec![pod("a", early, None), pod("b", early, None)], vec![b, a], "a"),
        (vec![pod("a", early, None), pod("b", late, Some(late))], vec![b, a], "a"),
        (vec![pod("a", early, Some(late)), pod("b", late, Some(late))], vec![a, b], "b"),
        (vec![pod("a", early, Some(late)), vm("vm")], vec![workload, a], "a"),
    ] {
        for reversed in [false, true] {
            let mut endpoints = claims(&claimants);
            if reversed {
                endpoints.reverse();
            }
            // In two slices, and in one.
            let two = [slice("a", &json!([]), &endpoints[..1]), slice("b", &json!([]), &endpoints[1..])];
            for slices in [two.to_vec(), vec![slice("a", &json!([]), &endpoints)]] {
                let members = members(objects.clone().into_iter().chain(slices));
                let chosen = choose(&members, &query(80).of(&members), &anywhere(), true);
                let [(_, candidate)] = &chosen[..] else { panic!("one address") };
                let name = match &candidate.member.target {
                    EndpointTarget::Pod(it) => &*it.pod.key.name,
                    EndpointTarget::Workload(it) => &*it.workload.key.name,
                    EndpointTarget::Address => "",
                };
                assert_eq!(name, expected, "{claimants:?}");
            }
        }
    }
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
    let (query, location) = (query(80), anywhere());
    let before =
        endpoints(&slices("a"), &query.of(&slices("a")), &location, &settings().into(), &EndpointSet::empty(), &[]);
    let after = endpoints(&slices("b"), &query.of(&slices("b")), &location, &settings().into(), &before, &[]);
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
        let (query, empty) = (query(80), EndpointSet::empty());
        let endpoints = endpoints(&members, &query.of(&members), &in_zone(zone), &settings().into(), &empty, siblings);
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
fn the_set_has_labels_for_its_service_and_for_the_mirrored_service() {
    for (labels, name, expected) in [
        (json!({}), None, &[][..]),
        (json!({}), Some("web.prod.svc.east"), &[]),
        (json!({"mirror.linkerd.io/cluster-name": "east"}), None, &[("target_cluster", "east")]),
        (json!({"mirror.linkerd.io/cluster-name": "east"}), Some("web"), &[("target_cluster", "east")]),
        (
            json!({"mirror.linkerd.io/cluster-name": "east"}),
            Some("web.prod.svc.east"),
            &[("target_cluster", "east"), ("target_service", "web"), ("target_service_namespace", "prod")],
        ),
    ] {
        let (kind, mut slice) = slice("a", &json!([]), &[]);
        slice["metadata"]["labels"].as_object_mut().unwrap().extend(labels.as_object().unwrap().clone());
        slice["metadata"]["annotations"] =
            name.map(|name| json!({"mirror.linkerd.io/remote-svc-fq-name": name})).into();
        let actual = set_labels(&members([(kind, slice)]), "web", "ns");
        let usual = [("service", "web"), ("namespace", "ns")];
        let expected: BTreeMap<String, String> =
            usual.iter().chain(expected).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        assert_eq!(actual, expected, "{labels} {name:?}");
    }
}

#[test]
fn the_encoding_is_the_weighted_address_of_the_endpoint() {
    let members = members_of([
        declaring_80(),
        pod("web-1"),
        slice("a", &json!([{"port": 80}]), &[endpoint("10.0.0.1", "Pod", "web-1")]),
    ]);
    let endpoints =
        endpoints(&members, &query(80).of(&members), &anywhere(), &settings().into(), &EndpointSet::empty(), &[]);
    let client = ClientContext { zone: None, port: 80 };
    let (address, slice) = (([10, 0, 0, 1], 80).into(), SliceContext::default());
    let expected: WeightedAddr = weighted_addr(&members.members[0].target, address, slice, &client, &settings());
    assert!(endpoints.iter().next().unwrap().is_encoded_as(&expected.encode_to_vec()));
}
