//! The content of one endpoint: labels, identity, hints, transport.

use linkerd2_proxy_api::{
    destination::{
        AuthorityOverride, ProtocolHint, TlsIdentity,
        protocol_hint::{H2, Opaque, OpaqueTransport, Protocol},
        tls_identity::{DnsLikeIdentity, Strategy, UriLikeIdentity},
    },
    net::{IPv6, IpAddress, TcpAddress, ip_address::Ip},
};

use super::*;

fn labels(pairs: &[(&str, &str)]) -> std::collections::HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn dns(name: &str) -> DnsLikeIdentity {
    DnsLikeIdentity { name: name.to_owned() }
}

/// The protocol hint and the transport port as short text: `h2+4143`, `opaque`, `empty`, `none`.
fn hint(endpoint: &WeightedAddr) -> String {
    let Some(hint) = endpoint.protocol_hint else { return "none".to_owned() };
    let protocol = match hint.protocol {
        Some(Protocol::H2(H2 {})) => "h2",
        Some(Protocol::Opaque(Opaque {})) => "opaque",
        None => "empty",
    };
    hint.opaque_transport.map_or(protocol.to_owned(), |transport| format!("{protocol}+{}", transport.inbound_port))
}

/// The hint for `web-0` after an edit.
fn hint_after(edit: impl FnOnce(&mut Cluster)) -> String {
    let mut cluster = Cluster::new();
    edit(&mut cluster);
    hint(&cluster.only(&settings()))
}

#[test]
fn a_meshed_pod_of_a_deployment_is_sent_with_identity_hint_and_labels() {
    let name = "web-sa.prod.serviceaccount.identity.linkerd.cluster.local";
    let expected = WeightedAddr {
        addr: Some(TcpAddress { ip: Some(IpAddress { ip: Some(Ip::Ipv4(0x0A2A_0005)) }), port: 8080 }),
        weight: 10_000,
        metric_labels: labels(&[
            ("service", "web"),
            ("namespace", "prod"),
            ("pod", "web-0"),
            ("deployment", "web"),
            ("serviceaccount", "web-sa"),
            ("control_plane_ns", "linkerd"),
            ("pod_template_hash", "5d4"),
            ("zone", "zone-a"),
            ("zone_locality", "local"),
        ]),
        tls_identity: Some(TlsIdentity {
            strategy: Some(Strategy::DnsLikeIdentity(dns(name))),
            server_name: Some(dns(name)),
        }),
        protocol_hint: Some(ProtocolHint {
            protocol: Some(Protocol::H2(H2 {})),
            opaque_transport: Some(OpaqueTransport { inbound_port: 4143 }),
        }),
        http2: Some(http2()),
        ..WeightedAddr::default()
    };
    assert_eq!(Cluster::new().only(&settings()), expected);
}

#[test]
fn a_workload_has_its_own_identity_and_is_meshed_with_any_flags() {
    let mut cluster = Cluster::new();
    cluster.put_workload(
        "vm",
        json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Job", "name": "group", "uid": "1"}]}}),
    );
    cluster.put_slice("web-1", &[workload("vm", "2001:db8::1")], json!({}));
    let expected = WeightedAddr {
        addr: Some(TcpAddress {
            ip: Some(IpAddress { ip: Some(Ip::Ipv6(IPv6 { first: 0x2001_0db8_0000_0000, last: 1 })) }),
            port: 8080,
        }),
        weight: 10_000,
        metric_labels: labels(&[
            ("service", "web"),
            ("namespace", "prod"),
            ("external_workload", "vm"),
            ("job", "group"),
            ("zone", "zone-a"),
            ("zone_locality", "local"),
        ]),
        tls_identity: Some(TlsIdentity {
            strategy: Some(Strategy::UriLikeIdentity(UriLikeIdentity {
                uri: "spiffe://root.linkerd.cluster.local/vm".to_owned(),
            })),
            server_name: Some(dns("vm.example")),
        }),
        protocol_hint: Some(ProtocolHint { protocol: Some(Protocol::H2(H2 {})), opaque_transport: None }),
        http2: Some(http2()),
        ..WeightedAddr::default()
    };
    let bare =
        Settings { h2_upgrade: false, transport_header: false, controller_namespace: "x".to_owned(), ..settings() };
    assert_eq!(cluster.only(&bare), expected);
    assert_eq!(hint(&cluster.only(&settings())), "h2+4143");
    cluster.edit("ExternalWorkload/vm", json!({"spec": {"ports": [{"name": "linkerd-proxy", "port": 1111}]}}));
    assert_eq!(hint(&cluster.only(&settings())), "h2+1111");
    cluster.edit(
        "ExternalWorkload/vm",
        json!({"metadata": {"annotations": {"config.linkerd.io/skip-inbound-ports": "8080"}}}),
    );
    assert_eq!(hint(&cluster.only(&settings())), "h2+1111");
    cluster
        .edit("ExternalWorkload/vm", json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "8080"}}}));
    assert_eq!(hint(&cluster.only(&bare)), "opaque+1111");
}

#[test]
fn a_plain_address_has_no_identity_and_a_mirrored_gateway_has_one() {
    let mut cluster = Cluster::new();
    cluster.put_slice("web-1", &[with(plain("192.0.2.1"), json!({"zone": "zone-a"}))], json!({}));
    let bare = WeightedAddr {
        addr: Some(TcpAddress { ip: Some(IpAddress { ip: Some(Ip::Ipv4(0xC000_0201)) }), port: 8080 }),
        weight: 10_000,
        metric_labels: labels(&[("service", "web"), ("namespace", "prod"), ("zone_locality", "unknown")]),
        ..WeightedAddr::default()
    };
    assert_eq!(cluster.only(&settings()), bare);
    cluster.edit("EndpointSlice/web-1", json!({"metadata": {"annotations": {
        "mirror.linkerd.io/remote-gateway-identity": "", "mirror.linkerd.io/remote-svc-fq-name": "far.test.svc.cluster.local"}}}));
    let authority_override = Some(AuthorityOverride { authority_override: "far.test.svc.cluster.local:80".to_owned() });
    assert_eq!(
        cluster.only(&settings()),
        WeightedAddr { authority_override: authority_override.clone(), ..bare.clone() }
    );
    cluster.edit(
        "EndpointSlice/web-1",
        json!({"metadata": {"annotations": {"mirror.linkerd.io/remote-gateway-identity": "gateway"},
        "labels": {"mirror.linkerd.io/cluster-name": "east"}}}),
    );
    let gateway = WeightedAddr {
        tls_identity: Some(TlsIdentity {
            strategy: Some(Strategy::DnsLikeIdentity(dns("gateway"))),
            server_name: None,
        }),
        protocol_hint: Some(ProtocolHint { protocol: Some(Protocol::H2(H2 {})), opaque_transport: None }),
        http2: Some(http2()),
        authority_override,
        metric_labels: labels(&[
            ("service", "web"),
            ("namespace", "prod"),
            ("zone_locality", "unknown"),
            ("target_cluster", "east"),
            ("target_service", "far"),
            ("target_service_namespace", "test"),
        ]),
        ..bare
    };
    assert_eq!(cluster.only(&settings()), gateway);
    let without = cluster.only(&Settings { h2_upgrade: false, ..settings() });
    assert_eq!(without, WeightedAddr { protocol_hint: None, ..gateway });
}

#[test]
fn labels_of_the_set_come_from_the_first_mirrored_slice() {
    let mirrored = |cluster: &str, name: &str| {
        json!({"metadata": {"labels": {"mirror.linkerd.io/cluster-name": cluster},
        "annotations": {"mirror.linkerd.io/remote-svc-fq-name": name}}})
    };
    let mut cluster = Cluster::new();
    cluster.put_slice("web-3", &[], mirrored("east", "far.test.svc.cluster.local"));
    cluster.put_slice("web-2", &[], mirrored("west", "far"));
    cluster.edit(
        "EndpointSlice/web-1",
        json!({"metadata": {"annotations": {"mirror.linkerd.io/remote-svc-fq-name": "a.b"}}}),
    );
    let target = |cluster: &Cluster| {
        let labels = cluster.only(&settings()).metric_labels;
        ["target_cluster", "target_service", "target_service_namespace"]
            .map(|key| labels.get(key).cloned().unwrap_or_default())
    };
    assert_eq!(target(&cluster), ["west", "", ""]);
    cluster.remove("EndpointSlice/web-2");
    assert_eq!(target(&cluster), ["east", "far", "test"]);
    cluster.remove("EndpointSlice/web-3");
    assert_eq!(target(&cluster), ["", "", ""]);
}

#[test]
fn the_owner_label_is_the_top_owner() {
    let owned = |kind: &str, name: &str| json!({"apiVersion": "x/v1", "kind": kind, "name": name, "uid": "1"});
    for (owners, set_owners, job_owners, key, owner) in [
        (json!([]), json!([]), json!([]), "pod", "web-0"),
        (json!([owned("ReplicaSet", "set"), owned("Job", "job")]), json!([]), json!([]), "pod", "web-0"),
        (json!([owned("ReplicationController", "rc")]), json!([]), json!([]), "replicationcontroller", "rc"),
        (json!([owned("ReplicaSet", "unknown")]), json!([]), json!([]), "replicaset", "unknown"),
        (json!([owned("ReplicaSet", "set")]), json!([]), json!([]), "replicaset", "set"),
        (json!([owned("ReplicaSet", "set")]), json!([owned("Deployment", "web")]), json!([]), "deployment", "web"),
        (
            json!([owned("ReplicaSet", "set")]),
            json!([owned("deployment", "web"), owned("Job", "x")]),
            json!([]),
            "replicaset",
            "set",
        ),
        (json!([owned("ReplicaSet", "set")]), json!([owned("Rollout", "web")]), json!([]), "replicaset", "set"),
        (json!([owned("ReplicaSet", "set")]), json!([owned("Job", "x")]), json!([]), "k8s_job", "x"),
        (json!([owned("Job", "unknown")]), json!([]), json!([]), "k8s_job", "unknown"),
        (json!([owned("Job", "job")]), json!([]), json!([]), "k8s_job", "job"),
        (json!([owned("Job", "job")]), json!([]), json!([owned("CronJob", "cron")]), "cronjob", "cron"),
        // The label `zone` is set after the owner's label.
        (json!([owned("Zone", "east")]), json!([]), json!([]), "zone", "zone-a"),
        (json!([owned("Pod", "other")]), json!([]), json!([]), "pod", "other"),
    ] {
        let mut cluster = Cluster::new();
        cluster.put(json!({"kind": "ReplicaSet", "metadata": {"name": "set", "namespace": "prod", "ownerReferences": set_owners}}));
        cluster.put(
            json!({"kind": "Job", "metadata": {"name": "job", "namespace": "prod", "ownerReferences": job_owners}}),
        );
        cluster.edit("Pod/web-0", json!({"metadata": {"ownerReferences": owners}}));
        assert_eq!(cluster.only(&settings()).metric_labels.get(key).map(String::as_str), Some(owner), "{owners}");
    }
}

#[test]
fn a_pod_is_meshed_by_its_label_and_has_an_identity_only_in_its_own_mesh() {
    let control_plane = |name: &str| json!({"metadata": {"labels": {"linkerd.io/control-plane-ns": name}}});
    let skip = |ports: &str| json!({"metadata": {"annotations": {"config.linkerd.io/skip-inbound-ports": ports}}});
    for (patch, expected, identity) in [
        (json!({}), "h2+4143", true),
        (control_plane(""), "none", false),
        (control_plane("other"), "h2+4143", false),
        (json!({"metadata": {"labels": null}}), "none", false),
        (skip("8080"), "none", false),
        (skip("1, 8000-8100 ,"), "none", false),
        (skip("http,8081"), "h2+4143", true),
    ] {
        let mut cluster = Cluster::new();
        cluster.edit("Pod/web-0", patch.clone());
        let endpoint = cluster.only(&settings());
        assert_eq!((hint(&endpoint).as_str(), endpoint.tls_identity.is_some()), (expected, identity), "{patch}");
        assert_eq!(endpoint.http2.is_some(), expected != "none", "{patch}");
    }
    let mut cluster = Cluster::new();
    assert!(cluster.only(&Settings { trust_domain: String::new(), ..settings() }).tls_identity.is_none());
    cluster.edit(
        "Pod/web-0",
        json!({"spec": {"serviceAccountName": null}, "metadata": {"labels": {"pod-template-hash": ""}}}),
    );
    let labels = cluster.only(&settings()).metric_labels;
    assert_eq!((labels["serviceaccount"].as_str(), labels.get("pod_template_hash")), ("default", None));
    cluster.edit("Pod/web-0", skip("8080"));
    assert_eq!(cluster.only(&settings()).metric_labels["control_plane_ns"], "linkerd");
}

#[test]
fn the_transport_mode_and_the_h2_upgrade_determine_the_hint_of_a_pod() {
    for (transport_header, h2_upgrade, opaque, expected) in [
        (true, true, false, "h2+4143"),
        (true, false, false, "empty+4143"),
        (false, true, false, "h2"),
        (false, false, false, "empty"),
        (true, true, true, "opaque+4143"),
        (false, false, true, "opaque+4143"),
    ] {
        let mut cluster = Cluster::new();
        let ports = if opaque { "8080" } else { "" };
        cluster.edit("Pod/web-0", json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": ports}}}));
        let settings = Settings { transport_header, h2_upgrade, ..settings() };
        assert_eq!(hint(&cluster.only(&settings)), expected);
        assert!(cluster.only(&Settings { http2: None, ..settings }).http2.is_none());
    }
}

#[test]
fn an_invalid_proxy_address_removes_only_the_transport() {
    let set = |variable: &str, value: Value| {
        let mut proxy = proxy();
        let env = proxy["env"].as_array_mut().unwrap();
        let name = format!("LINKERD2_PROXY_{variable}_LISTEN_ADDR");
        env.retain(|set| set["name"] != *name);
        if !value.is_null() {
            env.push(json!({"name": name, "value": value}));
        }
        json!({"spec": {"initContainers": [proxy]}})
    };
    for (patch, expected) in [
        (set("INBOUND", json!("[2001:db8::94]:4444")), "h2+4444"),
        (set("INBOUND", json!("localhost:4143")), "h2"),
        (set("INBOUND", json!(":4143")), "h2"),
        (set("INBOUND", json!("0.0.0.0:4143,[::]:4143")), "h2"),
        (set("INBOUND", json!("0.0.0.0:0")), "h2"),
        (set("INBOUND", json!("0.0.0.0:65535")), "h2"),
        (set("INBOUND", json!(null)), "h2"),
        (set("ADMIN", json!(null)), "h2"),
        (set("CONTROL", json!("x")), "h2"),
        // The proxy's own ports accept no transport header.
        (set("ADMIN", json!("0.0.0.0:8080")), "h2"),
        (set("CONTROL", json!("0.0.0.0:8080")), "h2"),
        (json!({"spec": {"initContainers": null}}), "h2"),
        (json!({"spec": {"initContainers": null, "containers": [{"name": "app"}, proxy()]}}), "h2+4143"),
        (json!({"spec": {"initContainers": [proxy()], "containers": [{"name": "linkerd-proxy"}]}}), "h2+4143"),
    ] {
        let mut cluster = Cluster::new();
        cluster.edit("Pod/web-0", patch.clone());
        let endpoint = cluster.only(&settings());
        assert_eq!(hint(&endpoint), expected, "{patch}");
        assert!(endpoint.tls_identity.is_some() && endpoint.http2.is_some(), "{patch}");
    }
}

#[test]
fn a_list_of_opaque_ports_replaces_the_default_and_invalid_items_are_ignored() {
    let ports = |list: &str| {
        let patch = json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": list}}});
        hint_after(|cluster| cluster.edit("Pod/web-0", patch))
    };
    for list in ["8080", " 8080 ,", "1-8080", "http", "x,-,1-,8080", "8080-8080,9-1"] {
        assert_eq!(ports(list), "opaque+4143", "{list:?}");
    }
    for list in ["", ",", "80 80", "8000 - 9000", "9000-8000", "HTTP", "808", "0x1f90", "8080-", "8080-70000"] {
        assert_eq!(ports(list), "h2+4143", "{list:?}");
    }
    let default = Settings { default_opaque_ports: "1,8000-8090".to_owned(), ..settings() };
    let mut cluster = Cluster::new();
    assert_eq!(hint(&cluster.only(&default)), "opaque+4143");
    cluster.edit("Pod/web-0", json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": ""}}}));
    assert_eq!(hint(&cluster.only(&default)), "h2+4143");
    // If two ports have the same name, the later one counts.
    let twice = json!({"spec": {"containers": [{"name": "app", "ports": [{"name": "http", "containerPort": 8080}]},
        {"name": "side", "ports": [{"name": "http", "containerPort": 9090}]}]},
        "metadata": {"annotations": {"config.linkerd.io/opaque-ports": "http"}}});
    assert_eq!(hint_after(|cluster| cluster.edit("Pod/web-0", twice)), "h2+4143");
}

#[test]
fn a_server_makes_a_port_opaque_for_the_objects_it_selects() {
    let selector = |selector: Value| json!({"spec": {"podSelector": selector}});
    let expression = |operator: &str, values: Value| {
        selector(json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}))
    };
    let everything = |port: Value| json!({"spec": {"podSelector": {}, "port": port}});
    for (patch, opaque) in [
        (json!({}), false),
        (json!({"spec": {"externalWorkloadSelector": {}}}), false),
        (selector(json!({})), true),
        (selector(json!({"matchLabels": {"app": "web"}})), true),
        (selector(json!({"matchLabels": {"app": "api"}})), false),
        (expression("In", json!(["api", "web"])), true),
        (expression("NotIn", json!(["web"])), false),
        (expression("NotIn", json!(["api"])), true),
        (expression("Exists", json!([])), true),
        (expression("DoesNotExist", json!([])), false),
        (expression("In", json!([])), false),
        (expression("NotIn", json!([])), false),
        (expression("Exists", json!(["web"])), false),
        (expression("Equals", json!(["web"])), false),
        (everything(json!(8081)), false),
        (everything(json!("http")), true),
        (everything(json!("host")), true),
        (everything(json!("other")), false),
        (everything(json!("8080")), false),
        (json!({"spec": {"podSelector": {}, "proxyProtocol": "Opaque"}}), false),
        (json!({"spec": {"podSelector": {}, "proxyProtocol": "HTTP/1"}}), false),
        (json!({"metadata": {"namespace": "test"}, "spec": {"podSelector": {}}}), false),
    ] {
        let hint = hint_after(|cluster| {
            let ports = json!([{"name": "http", "containerPort": 8080}, {"name": "host", "containerPort": 1, "hostPort": 8080}]);
            cluster.edit("Pod/web-0", json!({"spec": {"containers": [{"name": "app", "ports": ports}]}}));
            cluster.put_server("no", json!({"spec": {"podSelector": {}, "proxyProtocol": "HTTP/2"}}));
            cluster.put_server("server", patch.clone());
        });
        assert_eq!(hint, if opaque { "opaque+4143" } else { "h2+4143" }, "{patch}");
    }
    for (patch, opaque) in [
        (json!({"spec": {"externalWorkloadSelector": {"matchLabels": {"app": "web"}}}}), true),
        (json!({"spec": {"externalWorkloadSelector": {}, "port": "http"}}), true),
        (json!({"spec": {"externalWorkloadSelector": {}, "port": "other"}}), false),
        (
            json!({"spec": {"externalWorkloadSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": []}]}}}),
            false,
        ),
        (json!({"spec": {"podSelector": {}}}), false),
    ] {
        let hint = hint_after(|cluster| {
            cluster.put_workload("vm", json!({}));
            cluster.put_slice("web-1", &[workload("vm", "192.0.2.1")], json!({}));
            cluster.put_server("server", patch.clone());
        });
        assert_eq!(hint, if opaque { "opaque+4143" } else { "h2+4143" }, "{patch}");
    }
}

#[test]
fn neither_the_service_nor_an_unmeshed_pod_makes_a_port_opaque() {
    let annotation = json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "8080"}}});
    assert_eq!(hint_after(|cluster| cluster.edit("Service/web", annotation.clone())), "h2+4143");
    let unmeshed = hint_after(|cluster| {
        cluster.edit("Pod/web-0", annotation);
        cluster.edit("Pod/web-0", json!({"metadata": {"labels": null}}));
    });
    assert_eq!(unmeshed, "none");
}
