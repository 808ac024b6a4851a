//! The endpoints that a client gets: zone hints, internalTrafficPolicy, families, weights.

use super::*;

fn hinted(endpoint: Value, zones: &[&str]) -> Value {
    let zones: Vec<Value> = zones.iter().map(|zone| json!({"name": zone})).collect();
    with(endpoint, json!({"hints": {"forZones": zones}}))
}

#[test]
fn hints_apply_when_every_candidate_has_one_and_one_is_for_the_client() {
    let near = || hinted(plain("192.0.2.1"), &["zone-a", "zone-c"]);
    let far = || hinted(plain("192.0.2.2"), &["zone-b"]);
    for (endpoints, token, expected) in [
        (vec![near(), far()], ON_A, vec!["192.0.2.1:8080"]),
        (vec![near(), far()], "", vec!["192.0.2.1:8080", "192.0.2.2:8080"]),
        (vec![near(), far()], r#"{"nodeName":"node-z"}"#, vec!["192.0.2.1:8080", "192.0.2.2:8080"]),
        (vec![near(), plain("192.0.2.2")], ON_A, vec!["192.0.2.1:8080", "192.0.2.2:8080"]),
        (vec![near(), hinted(plain("192.0.2.2"), &[])], ON_A, vec!["192.0.2.1:8080", "192.0.2.2:8080"]),
        (vec![far()], ON_A, vec!["192.0.2.2:8080"]),
        // Hints are counted among candidates only: endpoints that are not ready, or whose Pod does not exist, do not
        // count.
        (
            vec![near(), far(), with(plain("192.0.2.3"), json!({"conditions": {"ready": false}}))],
            ON_A,
            vec!["192.0.2.1:8080"],
        ),
        (vec![near(), far(), pod("web-9", "192.0.2.3")], ON_A, vec!["192.0.2.1:8080"]),
        // A Pod's IPv6 endpoint is a candidate, even if IPv6 is disabled.
        (vec![near(), far(), pod("web-0", "2001:db8::1")], ON_A, vec!["192.0.2.1:8080", "192.0.2.2:8080"]),
    ] {
        let mut cluster = Cluster::new();
        cluster.put_slice("web-1", &endpoints, json!({}));
        let seen: Vec<_> = cluster.endpoints(&settings(), WEB, token).keys().map(SocketAddr::to_string).collect();
        assert_eq!(seen, expected, "{endpoints:?} for {token:?}");
    }
}

#[test]
fn a_slice_without_the_port_does_not_disable_hints() {
    let mut cluster = Cluster::new();
    cluster.put_slice(
        "web-1",
        &[hinted(plain("192.0.2.1"), &["zone-a"]), hinted(plain("192.0.2.2"), &["zone-b"])],
        json!({}),
    );
    cluster.put_slice("web-2", &[plain("192.0.2.3")], json!({"ports": [{"name": "admin", "port": 9}]}));
    assert_eq!(cluster.addresses(&settings()), ["192.0.2.1:8080"]);
    cluster.edit("EndpointSlice/web-2", json!({"ports": [{"name": "http", "port": 9}]}));
    assert_eq!(cluster.addresses(&settings()), ["192.0.2.1:8080", "192.0.2.2:8080", "192.0.2.3:9"]);
}

#[test]
fn local_traffic_uses_pods_on_the_clients_node_without_a_fallback() {
    let mut cluster = Cluster::new();
    cluster.put_pod("web-1", json!({"spec": {"nodeName": "node-b"}}));
    cluster.put_workload("vm", json!({}));
    let far = hinted(pod("web-0", "10.42.0.5"), &["zone-b"]);
    cluster.put_slice(
        "web-1",
        &[far, pod("web-1", "10.42.0.6"), workload("vm", "192.0.2.1"), plain("192.0.2.2")],
        json!({}),
    );
    assert_eq!(cluster.addresses(&settings()).len(), 4);
    cluster.edit("Service/web", json!({"spec": {"internalTrafficPolicy": "Local"}}));
    assert_eq!(cluster.addresses(&settings()), ["10.42.0.5:8080"]);
    for token in ["", r#"{"nodeName":"node-z"}"#] {
        assert!(cluster.endpoints(&settings(), WEB, token).is_empty());
    }
    cluster.edit("Service/web", json!({"spec": {"internalTrafficPolicy": "Cluster"}}));
    assert_eq!(cluster.addresses(&settings()).len(), 4);
}

#[test]
fn a_pod_gets_one_family_and_other_endpoints_all_their_addresses() {
    let mut cluster = Cluster::new();
    cluster.put_pod("web-1", json!({}));
    cluster.put_workload("vm", json!({}));
    cluster.put_slice(
        "web-4",
        &[pod("web-0", "10.42.0.5"), pod("web-1", "10.42.0.6"), workload("vm", "192.0.2.1"), plain("192.0.2.2")],
        json!({}),
    );
    cluster.put_slice(
        "web-6",
        &[pod("web-0", "2001:db8::5"), workload("vm", "2001:db8::1"), plain("2001:db8::2")],
        json!({"addressType": "IPv6"}),
    );
    cluster.remove("EndpointSlice/web-1");
    let others = ["192.0.2.1:8080", "192.0.2.2:8080", "[2001:db8::1]:8080", "[2001:db8::2]:8080"];
    let expect = |ipv6: bool, pods: &[&str]| {
        let mut seen = cluster.addresses(&Settings { ipv6, ..settings() });
        seen.retain(|address| !others.contains(&address.as_str()));
        assert_eq!(seen, pods);
    };
    expect(false, &["10.42.0.5:8080", "10.42.0.6:8080"]);
    expect(true, &["10.42.0.6:8080", "[2001:db8::5]:8080"]);
    assert_eq!(cluster.addresses(&settings()).len(), 6);
}

#[test]
fn the_family_is_chosen_after_the_hints() {
    let ipv6 = Settings { ipv6: true, ..settings() };
    for (zone, expected) in [("zone-a", "[2001:db8::5]:8080"), ("zone-b", "10.42.0.5:8080")] {
        let mut cluster = Cluster::new();
        cluster.put_slice("web-1", &[hinted(pod("web-0", "10.42.0.5"), &["zone-a"])], json!({}));
        cluster.put_slice("web-6", &[hinted(pod("web-0", "2001:db8::5"), &[zone])], json!({}));
        assert_eq!(cluster.addresses(&ipv6), [expected], "hint for {zone}");
    }
}

#[test]
fn an_endpoint_in_the_clients_zone_has_more_weight_with_zone_weights() {
    let weights = Settings { zone_weights: true, ..settings() };
    for (zone, locality, weight) in [
        (json!("zone-a"), "local", 100_000),
        (json!("zone-b"), "remote", 10_000),
        (json!(null), "unknown", 10_000),
        (json!(""), "unknown", 10_000),
    ] {
        let mut cluster = Cluster::new();
        cluster.put_slice("web-1", &[with(pod("web-0", "10.42.0.5"), json!({"zone": zone}))], json!({}));
        assert_eq!((cluster.only(&weights).weight, cluster.only(&settings()).weight), (weight, 10_000));
        assert_eq!(cluster.only(&weights).metric_labels["zone_locality"], locality);
        assert_eq!(cluster.only(&weights).metric_labels["zone"], zone.as_str().unwrap_or_default());
    }
    let mut cluster = Cluster::new();
    cluster.put_slice("web-1", &[with(plain("192.0.2.1"), json!({"zone": "zone-a"}))], json!({}));
    assert_eq!(cluster.only(&weights).weight, 10_000, "the zone of a plain address is ignored");
    let mut cluster = Cluster::new();
    cluster.edit("Node/node-a", json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "zone-b"}}}));
    assert_eq!(cluster.only(&settings()).metric_labels["zone_locality"], "remote");
}
