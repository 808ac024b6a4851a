//! The endpoint at an address: Pods, host ports, ExternalWorkloads, unknown addresses; and conflicts.

use std::collections::HashMap;

use linkerd2_proxy_api::{
    destination::{
        ProtocolHint, TlsIdentity,
        protocol_hint::{H2, Opaque, OpaqueTransport, Protocol},
        tls_identity::{DnsLikeIdentity, Strategy, UriLikeIdentity},
    },
    net::{IPv6, IpAddress, TcpAddress, ip_address::Ip},
};

use super::*;

fn ipv4(bytes: [u8; 4], port: u32) -> Option<TcpAddress> {
    Some(TcpAddress { ip: Some(IpAddress { ip: Some(Ip::Ipv4(u32::from_be_bytes(bytes))) }), port })
}

fn labels(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn bare(bytes: [u8; 4], port: u32) -> WeightedAddr {
    WeightedAddr { addr: ipv4(bytes, port), weight: 10_000, ..WeightedAddr::default() }
}

fn meshed(opaque: bool) -> WeightedAddr {
    let identity = DnsLikeIdentity { name: "default.ns.serviceaccount.identity.linkerd.trust.domain".to_owned() };
    let hint = match opaque {
        false => ProtocolHint { protocol: Some(Protocol::H2(H2 {})), opaque_transport: None },
        true => ProtocolHint {
            protocol: Some(Protocol::Opaque(Opaque {})),
            opaque_transport: Some(OpaqueTransport { inbound_port: 4143 }),
        },
    };
    WeightedAddr {
        weight: 10_000,
        metric_labels: labels(&[
            ("pod", "name1-1"),
            ("serviceaccount", "default"),
            ("control_plane_ns", "linkerd"),
            ("zone", ""),
            ("namespace", "ns"),
        ]),
        tls_identity: Some(TlsIdentity {
            strategy: Some(Strategy::DnsLikeIdentity(identity.clone())),
            server_name: Some(identity),
        }),
        protocol_hint: Some(hint),
        ..WeightedAddr::default()
    }
}

/// The name of the Pod or ExternalWorkload at an address, or `unknown`; or the refusal.
fn name_at(cluster: &Cluster, path: &str) -> String {
    match cluster.get(path) {
        ProfileAnswer::Refused(code, text) => format!("{code:?} {text}"),
        ProfileAnswer::Profile(profile) => {
            let labels = profile.endpoint.unwrap().metric_labels;
            let name = ["pod", "external_workload"].into_iter().find_map(|key| labels.get(key).cloned());
            name.unwrap_or_else(|| "unknown".to_owned())
        }
    }
}

fn workload(name: &str, addresses: &[&str], patch: Value) -> Value {
    let addresses: Vec<Value> = addresses.iter().map(|address| json!({ "ip": address })).collect();
    let mut workload = json!({"apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
        "metadata": {"name": name, "namespace": "ns", "labels": {"app": "cool"},
            "annotations": {"config.linkerd.io/opaque-ports": "4242"}},
        "spec": {"meshTLS": {"identity": "spiffe://some-domain/cool", "serverName": "server.local"},
            "ports": [{"port": 8989}, {"port": 4242}, {"name": "linkerd-proxy", "port": 4143}],
            "workloadIPs": addresses}});
    merge(&mut workload, patch);
    workload
}

#[test]
fn the_examples_of_the_contract_are_answered_exactly() {
    let mut cluster = Cluster::new(&[
        pod("name1-1", "172.17.0.12", json!({})),
        pod("name2", "172.17.0.13", json!({"metadata": {"labels": {"linkerd.io/control-plane-ns": ""}}})),
    ]);
    let profile = |endpoint, opaque_protocol| DestinationProfile {
        retry_budget: budget(),
        endpoint: Some(endpoint),
        opaque_protocol,
        ..DestinationProfile::default()
    };
    let addressed = |endpoint, addr| WeightedAddr { addr, ..endpoint };
    let expected = profile(addressed(meshed(false), ipv4([172, 17, 0, 12], 8989)), false);
    assert_eq!(cluster.profile("172.17.0.12:8989"), expected);
    cluster.edit("Pod/ns/name1-1", json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "4242"}}}));
    assert_eq!(cluster.profile("172.17.0.12:8989"), expected);
    let expected = profile(addressed(meshed(true), ipv4([172, 17, 0, 12], 4242)), true);
    assert_eq!(cluster.profile("172.17.0.12:4242"), expected);
    let mut unmeshed = bare([172, 17, 0, 13], 3306);
    unmeshed.metric_labels =
        labels(&[("pod", "name2"), ("serviceaccount", "default"), ("zone", ""), ("namespace", "ns")]);
    assert_eq!(cluster.profile("172.17.0.13:3306"), profile(unmeshed, true));
    assert_eq!(cluster.profile("172.0.0.0:1234"), profile(bare([172, 0, 0, 0], 1234), false));
    assert_eq!(cluster.profile("172.0.0.0:3306"), profile(bare([172, 0, 0, 0], 3306), true));
    let ipv6 = Some(IpAddress { ip: Some(Ip::Ipv6(IPv6 { first: 0x2001_0db8_0000_0000, last: 0x94 })) });
    let unknown = cluster.endpoint("[2001:db8::94]:80");
    assert_eq!(unknown.addr, Some(TcpAddress { ip: ipv6, port: 80 }));
}

#[test]
fn a_pod_is_found_by_exactly_its_addresses() {
    let mut cluster = Cluster::new(&[pod("a", "10.0.0.1", json!({"status": {"hostIP": "10.9.0.1"}}))]);
    assert_eq!(name_at(&cluster, "10.0.0.1:1"), "a");
    assert_eq!(name_at(&cluster, "[::ffff:10.0.0.1]:1"), "a");
    assert_eq!(cluster.endpoint("[::ffff:10.0.0.1]:1").addr, ipv4([10, 0, 0, 1], 1));
    assert_eq!(name_at(&cluster, "10.9.0.1:1"), "unknown");
    let ips = json!([{"ip": "10.0.0.2"}, {"ip": "2001:DB8:0::1"}, {"ip": "10.0.0.2"}]);
    cluster.edit("Pod/ns/a", json!({"status": {"podIPs": ips}}));
    assert_eq!(
        ["10.0.0.1:1", "10.0.0.2:1", "[2001:db8::1]:1"].map(|path| name_at(&cluster, path)),
        ["unknown", "a", "a"]
    );
    cluster.edit("Pod/ns/a", json!({"spec": {"hostNetwork": true}}));
    assert_eq!(name_at(&cluster, "10.0.0.2:1"), "unknown");
}

#[test]
fn a_host_port_belongs_to_the_container_that_declares_it() {
    let hosted = |name: &str, patch: Value| {
        let mut pod = pod(name, "10.0.0.1", json!({"status": {"podIP": null, "hostIP": "192.168.1.20"}}));
        merge(
            &mut pod,
            json!({"spec": {
            "initContainers": [{"name": "init", "ports": [{"containerPort": 1, "hostPort": 22344, "protocol": "UDP"}]}],
            "containers": [{"name": "nginx", "ports": [{"name": "nginx-7777", "containerPort": 80, "hostPort": 7777}]}]}}),
        );
        merge(&mut pod, patch);
        pod
    };
    let mut cluster = Cluster::new(&[hosted("a", json!({}))]);
    assert_eq!(name_at(&cluster, "192.168.1.20:7777"), "a");
    assert_eq!(name_at(&cluster, "192.168.1.20:22344"), "a");
    assert_eq!(name_at(&cluster, "192.168.1.20:80"), "unknown");
    assert!(cluster.profile("192.168.1.20:3306").opaque_protocol);
    assert!(!cluster.profile("192.168.1.20:7777").opaque_protocol);
    // The Pod's proxy receives the connections at the container port, which a name in an annotation means; in a Server
    // it means either port.
    for (list, expected) in [("nginx-7777", true), ("80", true), ("7777", true), ("81", false)] {
        cluster.edit("Pod/ns/a", json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": list}}}));
        assert_eq!(cluster.profile("192.168.1.20:7777").opaque_protocol, expected, "{list}");
    }
    cluster.put(json!({"kind": "Server", "metadata": {"name": "all", "namespace": "ns"},
        "spec": {"podSelector": {}, "port": "nginx-7777", "proxyProtocol": "opaque"}}));
    assert!(cluster.profile("192.168.1.20:7777").opaque_protocol);
    cluster.put(hosted("b", json!({"spec": {"hostNetwork": true}})));
    assert_eq!(
        name_at(&cluster, "192.168.1.20:7777"),
        "FailedPrecondition found 2 pods with a conflicting host network endpoint 192.168.1.20:7777"
    );
    cluster.edit("Pod/ns/b", json!({"status": {"hostIPs": [{"ip": "192.168.1.21"}]}}));
    assert_eq!(name_at(&cluster, "192.168.1.20:7777"), "a");
    assert_eq!(name_at(&cluster, "192.168.1.21:7777"), "b");
}

#[test]
fn a_pod_that_is_not_terminating_keeps_a_shared_address() {
    let ending = json!({"metadata": {"deletionTimestamp": "2026-01-02T00:00:00Z"}});
    let newer = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:01Z"}});
    let phase = |phase: Value| json!({"status": { "phase": phase }});
    let with = |parts: &[&Value]| {
        let mut whole = json!({});
        parts.iter().for_each(|part| merge(&mut whole, (*part).clone()));
        whole
    };
    let conflict = "FailedPrecondition found 2 pods with a conflicting pod network IP 10.0.0.1";
    for (patches, expected) in [
        (vec![json!({})], "a"),
        (vec![phase(json!("Pending"))], "unknown"),
        (vec![phase(json!("Unknown"))], "unknown"),
        (vec![phase(json!(null))], "unknown"),
        (vec![phase(json!("Succeeded"))], "unknown"),
        (vec![phase(json!("Succeeded")), phase(json!("Failed")), json!({})], "c"),
        (vec![json!({}), json!({})], conflict),
        (vec![json!({}), phase(json!("Pending"))], conflict),
        (vec![ending.clone()], "a"),
        (vec![ending.clone(), json!({})], "b"),
        (vec![ending.clone(), phase(json!("Pending"))], "unknown"),
        (vec![ending.clone(), ending.clone()], "a"),
        (vec![ending.clone(), with(&[&ending, &newer])], "b"),
        (vec![ending.clone(), with(&[&ending, &newer, &phase(json!("Pending"))])], "a"),
        (vec![ending.clone(), json!({}), json!({})], conflict),
        (vec![with(&[&ending, &phase(json!("Pending"))])], "unknown"),
        (vec![with(&[&ending, &phase(json!("Failed"))])], "unknown"),
    ] {
        let pods: Vec<Value> =
            ["a", "b", "c"].iter().zip(&patches).map(|(name, patch)| pod(name, "10.0.0.1", patch.clone())).collect();
        assert_eq!(name_at(&Cluster::new(&pods), "10.0.0.1:80"), expected, "{patches:?}");
    }
}

#[test]
fn cluster_ips_take_precedence_over_pod_ips_then_host_ports_then_workloads() {
    let ports = json!({"containers": [{"name": "app", "ports": [{"containerPort": 80, "hostPort": 80}]}]});
    let mut cluster = Cluster::new(&[
        service("web", &json!({"clusterIP": "10.0.0.1", "ports": [{"port": 80}]})),
        pod("a", "10.0.0.1", json!({})),
        pod("b", "10.0.0.2", json!({"spec": ports, "status": {"hostIP": "10.0.0.1"}})),
        workload("vm", &["10.0.0.1"], json!({"spec": {"ports": [{"port": 80}]}})),
    ]);
    assert_eq!(cluster.profile("10.0.0.1:80").fully_qualified_name, "web.ns.svc.mycluster.local");
    cluster.remove("Service/ns/web");
    assert_eq!(name_at(&cluster, "10.0.0.1:80"), "a");
    // A Pod that is not running stops the search, terminating or not; a Pod that has ended does not.
    cluster.edit("Pod/ns/a", json!({"status": {"phase": "Pending"}}));
    assert_eq!(name_at(&cluster, "10.0.0.1:80"), "unknown");
    cluster.edit("Pod/ns/a", json!({"metadata": {"deletionTimestamp": "2026-01-02T00:00:00Z"}}));
    assert_eq!(name_at(&cluster, "10.0.0.1:80"), "unknown");
    cluster.edit("Pod/ns/a", json!({"status": {"phase": "Failed"}}));
    assert_eq!(name_at(&cluster, "10.0.0.1:80"), "b");
    cluster.edit("Pod/ns/b", json!({"status": {"phase": "Unknown"}}));
    assert_eq!(name_at(&cluster, "10.0.0.1:80"), "unknown");
    cluster.remove("Pod/ns/b");
    assert_eq!(name_at(&cluster, "10.0.0.1:80"), "vm");
    assert_eq!(name_at(&cluster, "10.0.0.1:81"), "unknown");
}

#[test]
fn a_workload_is_found_by_address_and_declared_port_and_is_meshed_with_any_flags() {
    let owners = json!([{"apiVersion": "v1", "kind": "ExternalGroup", "name": "group", "uid": "1"}]);
    let mut cluster = Cluster::new(&[workload(
        "my-cool-workload",
        &["200.1.1.1", "2001:DB8::1", "odd"],
        json!({
        "metadata": {"ownerReferences": owners}}),
    )]);
    let settings = Settings { h2_upgrade: false, trust_domain: String::new(), ..settings() };
    let server_name = Some(DnsLikeIdentity { name: "server.local".to_owned() });
    let identity = UriLikeIdentity { uri: "spiffe://some-domain/cool".to_owned() };
    let expected = WeightedAddr {
        metric_labels: labels(&[
            ("external_workload", "my-cool-workload"),
            ("externalgroup", "group"),
            ("zone", ""),
            ("namespace", "ns"),
        ]),
        tls_identity: Some(TlsIdentity { strategy: Some(Strategy::UriLikeIdentity(identity)), server_name }),
        protocol_hint: Some(ProtocolHint { protocol: Some(Protocol::H2(H2 {})), opaque_transport: None }),
        ..bare([200, 1, 1, 1], 8989)
    };
    let ProfileAnswer::Profile(profile) = cluster.get_as(&settings, "200.1.1.1:8989", "") else { panic!("refused") };
    assert_eq!((profile.endpoint, profile.opaque_protocol), (Some(expected), false));
    let opaque = cluster.profile("200.1.1.1:4242");
    assert!(opaque.opaque_protocol);
    assert_eq!(opaque.endpoint.unwrap().protocol_hint, meshed(true).protocol_hint);
    assert_eq!(name_at(&cluster, "[2001:db8::1]:8989"), "my-cool-workload");
    assert_eq!(name_at(&cluster, "200.1.1.1:8990"), "unknown");
    cluster.put(workload(
        "other",
        &["::ffff:200.1.1.1", "200.1.1.1"],
        json!({"spec": {"ports": [{"port": 8989}, {"port": 8989}]}}),
    ));
    assert_eq!(
        name_at(&cluster, "200.1.1.1:8989"),
        "FailedPrecondition found 2 externalworkloads with a conflicting ip 200.1.1.1:8989"
    );
    assert_eq!(name_at(&cluster, "200.1.1.1:4242"), "my-cool-workload");
    cluster.remove("ExternalWorkload/ns/my-cool-workload");
    assert_eq!(name_at(&cluster, "200.1.1.1:8989"), "other");
    cluster.put(json!({"kind": "Server", "metadata": {"name": "all", "namespace": "ns"},
        "spec": {"externalWorkloadSelector": {}, "port": 8989, "proxyProtocol": "opaque"}}));
    assert!(cluster.profile("200.1.1.1:8989").opaque_protocol);
}

#[test]
fn a_skipped_port_has_no_hint_or_identity_and_a_pod_without_proxy_no_transport() {
    let mut cluster = Cluster::new(&[pod(
        "name5",
        "172.17.0.15",
        json!({"metadata": {"annotations": {
        "config.linkerd.io/skip-inbound-ports": "24224", "config.linkerd.io/opaque-ports": "24224"}}}),
    )]);
    let skipped = cluster.profile("172.17.0.15:24224");
    assert!(skipped.opaque_protocol, "a skipped port can still be opaque");
    let endpoint = skipped.endpoint.unwrap();
    assert_eq!((endpoint.protocol_hint, endpoint.tls_identity), (None, None));
    cluster.edit("Pod/ns/name5", json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "80"}}}));
    assert_eq!(cluster.endpoint("172.17.0.15:80").protocol_hint, meshed(true).protocol_hint);
    cluster.edit("Pod/ns/name5", json!({"spec": {"containers": [{"name": "app"}]}}));
    let hint = ProtocolHint { protocol: Some(Protocol::Opaque(Opaque {})), opaque_transport: None };
    let endpoint = cluster.endpoint("172.17.0.15:80");
    assert_eq!((endpoint.protocol_hint, endpoint.tls_identity), (Some(hint), meshed(true).tls_identity));
}

#[test]
fn a_meshed_pod_at_its_host_port_has_no_opaque_transport_unless_it_is_in_the_hosts_network() {
    let patch = json!({"status": {"hostIP": "192.168.1.20"}});
    let mut pod = pod("a", "10.0.0.1", patch);
    pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 3306}]);
    let mut cluster = Cluster::new(&[pod]);
    let hint = |cluster: &Cluster, path: &str| cluster.endpoint(path).protocol_hint.unwrap();
    let opaque = |inbound_port: Option<u32>| ProtocolHint {
        protocol: Some(Protocol::Opaque(Opaque {})),
        opaque_transport: inbound_port.map(|inbound_port| OpaqueTransport { inbound_port }),
    };
    assert_eq!(hint(&cluster, "10.0.0.1:3306"), opaque(Some(4143)));
    assert_eq!(hint(&cluster, "192.168.1.20:3306"), opaque(None));
    cluster.edit("Pod/ns/a", json!({"spec": {"hostNetwork": true}}));
    assert_eq!(hint(&cluster, "192.168.1.20:3306"), opaque(Some(4143)));
}
