//! The endpoints of a Service, their ports, and the winner of a shared address.

use super::*;

/// The addresses for port 80 of `web` after an edit.
fn after(edit: impl FnOnce(&mut Cluster)) -> Vec<String> {
    let mut cluster = Cluster::new();
    edit(&mut cluster);
    cluster.addresses(&settings())
}

#[test]
fn a_slice_belongs_to_the_service_of_its_label_and_namespace() {
    assert_eq!(after(|_| {}), ["10.42.0.5:8080"]);
    assert!(
        after(|cluster| cluster
            .edit("EndpointSlice/web-1", json!({"metadata": {"labels": {"kubernetes.io/service-name": "api"}}})))
        .is_empty()
    );
    let owned = json!({"metadata": {"labels": null, "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "1"}]}});
    assert!(after(|cluster| cluster.edit("EndpointSlice/web-1", owned)).is_empty());
    let elsewhere = json!({"metadata": {"namespace": "test"}});
    assert_eq!(after(|cluster| cluster.put_slice("other", &[plain("192.0.2.9")], elsewhere)), ["10.42.0.5:8080"]);
    assert_eq!(
        after(|cluster| cluster.put_slice("web-2", &[plain("192.0.2.9")], json!({}))),
        ["10.42.0.5:8080", "192.0.2.9:8080"]
    );
}

#[test]
fn an_endpoint_counts_when_it_is_ready_and_its_target_exists() {
    for (endpoint, expected) in [
        (plain("192.0.2.1"), vec!["192.0.2.1:8080"]),
        (pod("web-0", "192.0.2.1"), vec!["192.0.2.1:8080"]),
        (workload("vm", "192.0.2.1"), vec!["192.0.2.1:8080"]),
        (pod("web-9", "192.0.2.1"), vec![]),
        (workload("vm-9", "192.0.2.1"), vec![]),
        (with(plain("192.0.2.1"), json!({"conditions": {"ready": true}})), vec!["192.0.2.1:8080"]),
        (
            with(plain("192.0.2.1"), json!({"conditions": {"serving": false, "terminating": true}})),
            vec!["192.0.2.1:8080"],
        ),
        (with(plain("192.0.2.1"), json!({"conditions": {"ready": false, "serving": true}})), vec![]),
        (with(pod("web-0", "192.0.2.1"), json!({"targetRef": {"namespace": null}})), vec!["192.0.2.1:8080"]),
        (with(pod("web-0", "192.0.2.1"), json!({"targetRef": {"namespace": "test"}})), vec![]),
        (with(workload("vm", "192.0.2.1"), json!({"targetRef": {"namespace": "test"}})), vec![]),
        (with(pod("web-0", "192.0.2.1"), json!({"targetRef": {"kind": "Node"}})), vec![]),
        (with(pod("web-0", "192.0.2.1"), json!({"targetRef": {"kind": ""}})), vec![]),
        (with(pod("web-0", "192.0.2.1"), json!({"targetRef": {"kind": null}})), vec![]),
        (with(pod("web-0", "192.0.2.1"), json!({"targetRef": {"name": null}})), vec![]),
        (
            with(pod("web-0", ""), json!({"addresses": ["192.0.2.1", "192.0.2.2"]})),
            vec!["192.0.2.1:8080", "192.0.2.2:8080"],
        ),
        (with(plain(""), json!({"addresses": ["example.com", "192.0.2.2", "192.0.2.02"]})), vec!["192.0.2.2:8080"]),
        (plain("2001:db8::1"), vec!["[2001:db8::1]:8080"]),
        (workload("vm", "2001:db8::1"), vec!["[2001:db8::1]:8080"]),
        (pod("web-0", "2001:db8::1"), vec![]),
    ] {
        let seen = after(|cluster| {
            cluster.put_workload("vm", json!({}));
            cluster.put_slice("web-1", std::slice::from_ref(&endpoint), json!({}));
        });
        assert_eq!(seen, expected, "{endpoint}");
    }
}

#[test]
fn an_endpoint_does_not_count_while_its_target_is_another_object_of_the_same_name() {
    for (referenced, own, counts) in [
        (json!("1"), json!("1"), true),
        (json!("1"), json!("2"), false),
        (json!("1"), Value::Null, true),
        (Value::Null, json!("2"), true),
        (json!(""), json!("2"), true),
    ] {
        for endpoint in [pod("web-0", "192.0.2.1"), workload("vm", "192.0.2.1")] {
            let endpoint = with(endpoint, json!({"targetRef": { "uid": referenced }}));
            let seen = after(|cluster| {
                cluster.put_workload("vm", json!({"metadata": { "uid": own }}));
                cluster.edit("Pod/web-0", json!({"metadata": { "uid": own }}));
                cluster.put_slice("web-1", std::slice::from_ref(&endpoint), json!({}));
            });
            assert_eq!(seen.len(), usize::from(counts), "{endpoint} {own}");
        }
    }
}

#[test]
fn a_pod_counts_in_any_phase_and_while_it_terminates() {
    let ending = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Succeeded"}});
    assert_eq!(after(|cluster| cluster.edit("Pod/web-0", ending)), ["10.42.0.5:8080"]);
}

#[test]
fn a_port_is_found_by_its_name_in_the_service() {
    let of = |service_ports: Value, slice_ports: Value, port: u16| {
        let mut cluster = Cluster::new();
        cluster.edit("Service/web", json!({"spec": {"ports": service_ports}}));
        cluster.edit("EndpointSlice/web-1", json!({"ports": slice_ports}));
        let path = format!("web.prod.svc.cluster.local:{port}");
        let ports = cluster.endpoints(&settings(), &path, "").keys().map(SocketAddr::port).collect::<Vec<_>>();
        ports.first().copied()
    };
    let http = json!([{"name": "http", "port": 80, "targetPort": 1}]);
    assert_eq!(of(http.clone(), json!([{"name": "admin", "port": 9}, {"name": "http", "port": 8080}]), 80), Some(8080));
    assert_eq!(of(http.clone(), json!([{"name": "admin", "port": 9}]), 80), None);
    assert_eq!(of(http.clone(), json!([{"port": 9}]), 80), None);
    assert_eq!(of(http.clone(), json!([{"name": "http"}]), 80), None);
    assert_eq!(of(http.clone(), json!([]), 80), None);
    assert_eq!(of(http.clone(), json!(null), 80), None);
    // Undeclared ports are used unchanged, if the slice has a list of ports.
    assert_eq!(of(http.clone(), json!([{"name": "http", "port": 8080}]), 81), Some(81));
    assert_eq!(of(http.clone(), json!([]), 81), Some(81));
    assert_eq!(of(http, json!(null), 81), None);
    assert_eq!(of(json!([]), json!([{"name": "http", "port": 8080}]), 80), Some(80));
    // Ports without a name.
    assert_eq!(of(json!([{"port": 80}]), json!([{"name": "http", "port": 1}, {"port": 8080}]), 80), Some(8080));
    assert_eq!(of(json!([{"port": 80}]), json!([{"name": "", "port": 8080}]), 80), Some(8080));
    // The first port with the number counts, for any protocol.
    let dns = json!([{"name": "udp", "port": 53, "protocol": "UDP"}, {"name": "tcp", "port": 53}]);
    assert_eq!(
        of(dns, json!([{"name": "tcp", "port": 1}, {"name": "udp", "port": 2, "protocol": "UDP"}]), 53),
        Some(2)
    );
}

#[test]
fn an_instance_is_the_hostname_in_the_slice() {
    let mut cluster = Cluster::new();
    let named = with(pod("web-0", "10.42.0.5"), json!({"hostname": "first"}));
    cluster.put_slice(
        "web-1",
        &[named, with(plain("192.0.2.1"), json!({"hostname": "second"})), plain("192.0.2.2")],
        json!({}),
    );
    let of = |instance: &str| {
        let path = format!("{instance}.web.prod.svc.cluster.local:80");
        cluster.endpoints(&settings(), &path, "").keys().map(SocketAddr::to_string).collect::<Vec<_>>()
    };
    assert_eq!(of("first"), ["10.42.0.5:8080"]);
    assert_eq!(of("second"), ["192.0.2.1:8080"]);
    assert!(of("web-0").is_empty());
    assert_eq!(of("").len(), 3);
}

#[test]
fn a_shared_address_goes_to_the_newest_pod_that_is_not_terminating() {
    let at = "192.0.2.1";
    let created = |time: &str| json!({"metadata": {"creationTimestamp": time}});
    let all = [
        plain(at),
        workload("vm-2", at),
        workload("vm-1", at),
        pod("web-0", at),
        pod("web-2", at),
        pod("web-1", at),
        pod("web-3", at),
    ];
    let mut cluster = Cluster::new();
    cluster.put_workload("vm-1", json!({}));
    cluster.put_workload("vm-2", json!({}));
    cluster.put_pod("web-1", created("2026-01-02T00:00:00Z"));
    cluster.put_pod("web-2", created("2026-01-02T00:00:00Z"));
    cluster.put_pod(
        "web-3",
        json!({"metadata": {"creationTimestamp": "2026-01-03T00:00:00Z", "deletionTimestamp": "2026-01-04T00:00:00Z"}}),
    );
    cluster.put_slice("web-1", &all, json!({}));
    for (winner, label) in [
        ("web-1", "pod"),
        ("web-2", "pod"),
        ("web-0", "pod"),
        ("web-3", "pod"),
        ("vm-1", "external_workload"),
        ("vm-2", "external_workload"),
    ] {
        assert_eq!(cluster.only(&settings()).metric_labels[label], winner);
        cluster.remove(&format!("{}/{winner}", if label == "pod" { "Pod" } else { "ExternalWorkload" }));
    }
    assert!(!cluster.only(&settings()).metric_labels.contains_key("zone"), "the plain address remains");
}

#[test]
fn the_zone_comes_from_the_first_slice_by_name_with_the_endpoint() {
    let zone = |zone: &str| with(pod("web-0", "10.42.0.5"), json!({"zone": zone}));
    let mut cluster = Cluster::new();
    cluster.put_slice("web-1", &[zone("zone-c"), zone("zone-d")], json!({}));
    cluster.put_slice("web-0", &[zone("zone-b")], json!({}));
    assert_eq!(cluster.only(&settings()).metric_labels["zone"], "zone-b");
    cluster.remove("EndpointSlice/web-0");
    assert_eq!(cluster.only(&settings()).metric_labels["zone"], "zone-c");
}
