//! Tests of the fields of an endpoint.

use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::Kind,
    destination::{
        settings::Http2Params,
        testing::{endpoint, members, settings, slice},
    },
    proto::destination::Http2ClientParams,
};

/// The settings of an installation with Linkerd's charts.
fn transport_header() -> DestinationSettings {
    DestinationSettings {
        outbound_transport_mode: TransportMode::TransportHeader,
        meshed_http2_client_params: http2(),
        ..settings()
    }
}

fn http2() -> Http2Params {
    Http2Params(Some(Http2ClientParams::default()))
}

/// A meshed Pod of a Deployment, with changes to its metadata and spec.
fn meshed(metadata: &Value, spec: &Value) -> Vec<(Kind, Value)> {
    let variable = |name: &str, port: u16| json!({"name": format!("LINKERD2_PROXY_{name}_LISTEN_ADDR"), "value": format!("0.0.0.0:{port}")});
    let env = [variable("INBOUND", 4143), variable("ADMIN", 4191), variable("CONTROL", 4190)];
    let owner = |kind: &str, name: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u"}]);
    let mut pod = json!({
        "metadata": {"name": "web-1", "ownerReferences": owner("ReplicaSet", "web-5f79"),
            "labels": {"linkerd.io/control-plane-ns": "linkerd", "pod-template-hash": "5f79"}},
        "spec": {"serviceAccountName": "web-sa", "initContainers": [{"name": "linkerd-proxy", "env": env}]}});
    pod["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let replica_set = json!({"metadata": {"name": "web-5f79", "ownerReferences": owner("Deployment", "web")}});
    let endpoints = [endpoint("10.0.0.1", "Pod", "web-1")];
    vec![(Kind::Pod, pod), (Kind::ReplicaSet, replica_set), slice("a", &json!([]), &endpoints)]
}

fn external_workload(metadata: &Value, spec: &Value) -> Vec<(Kind, Value)> {
    let mut workload = json!({"metadata": {"name": "vm"},
        "spec": {"meshTLS": {"identity": "spiffe://mesh.example/vm", "serverName": "vm.local"}}});
    workload["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    workload["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let endpoints = [endpoint("192.0.2.1", "ExternalWorkload", "vm")];
    vec![(Kind::ExternalWorkload, workload), slice("a", &json!([]), &endpoints)]
}

/// The only endpoint of a cluster at a port, for a client in zone `a` that requests port 80.
fn encoded(objects: Vec<(Kind, Value)>, port: u16, zone: Option<&str>, settings: &DestinationSettings) -> WeightedAddr {
    let members = members(objects);
    let [member] = &members.members[..] else { panic!("{members:?}") };
    let ip = members.endpoint(member).unwrap().addresses[0];
    let slice = SliceContext { zone, mirror: members.slice(member).and_then(|slice| slice.mirror.as_deref()) };
    let client = ClientContext { zone: Some("a"), port: 80 };
    weighted_addr(&member.target, SocketAddr::new(ip, port), slice, &client, settings)
}

fn labels<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// Summarizes an endpoint: the protocol (`h2`, `opaque` or absent), the port of opaque transport, `identity` and
/// `http2` if they are set. `none` means that the endpoint has no protocol hint.
fn traits(endpoint: &WeightedAddr) -> String {
    let mut words = Vec::new();
    match &endpoint.protocol_hint {
        None => words.push("none".to_owned()),
        Some(hint) => {
            words.extend(hint.protocol.map(|protocol| match protocol {
                Protocol::H2(_) => "h2".to_owned(),
                Protocol::Opaque(_) => "opaque".to_owned(),
            }));
            words.extend(hint.opaque_transport.map(|transport| transport.inbound_port.to_string()));
        }
    }
    words.extend(endpoint.tls_identity.is_some().then(|| "identity".to_owned()));
    words.extend(endpoint.http2.is_some().then(|| "http2".to_owned()));
    words.join(" ")
}

#[test]
fn a_typical_meshed_pod_has_all_fields() {
    let identity = "web-sa.ns.serviceaccount.identity.linkerd.trust.domain".to_owned();
    let expected = WeightedAddr {
        addr: Some(TcpAddress { ip: Some(IpAddress { ip: Some(ip_address::Ip::Ipv4(0x0a00_0001)) }), port: 8080 }),
        weight: 10_000,
        metric_labels: labels([
            ("pod", "web-1"),
            ("deployment", "web"),
            ("serviceaccount", "web-sa"),
            ("control_plane_ns", "linkerd"),
            ("pod_template_hash", "5f79"),
            ("zone", "b"),
            ("zone_locality", "remote"),
        ]),
        tls_identity: Some(TlsIdentity {
            strategy: Some(Strategy::DnsLikeIdentity(DnsLikeIdentity { name: identity.clone() })),
            server_name: Some(DnsLikeIdentity { name: identity }),
        }),
        protocol_hint: Some(ProtocolHint {
            protocol: Some(Protocol::H2(protocol_hint::H2 {})),
            opaque_transport: Some(OpaqueTransport { inbound_port: 4143 }),
        }),
        http2: http2().0,
        ..WeightedAddr::default()
    };
    assert_eq!(encoded(meshed(&json!({}), &json!({})), 8080, Some("b"), &transport_header()), expected);
}

#[test]
fn an_ipv6_address_is_sent_in_two_halves() {
    let ip = tcp_address("[2001:db8::94]:8989".parse().unwrap());
    let halves = IPv6 { first: 0x2001_0db8_0000_0000, last: 0x94 };
    assert_eq!(ip, TcpAddress { ip: Some(IpAddress { ip: Some(ip_address::Ip::Ipv6(halves)) }), port: 8989 });
    let mapped = tcp_address("[::ffff:10.0.0.1]:80".parse().unwrap());
    let halves = IPv6 { first: 0, last: 0xffff_0a00_0001 };
    assert_eq!(
        mapped.ip,
        Some(IpAddress { ip: Some(ip_address::Ip::Ipv6(halves)) }),
        "an IPv4-mapped address stays an IPv6 address"
    );
}

#[test]
fn how_a_pod_is_reached_depends_on_its_mesh_its_annotations_the_port_and_the_flags() {
    let plain = json!({});
    let annotated = |key: &str, value: &str| json!({"annotations": {format!("config.linkerd.io/{key}"): value}});
    let in_mesh = |namespace: &str| json!({"labels": {"linkerd.io/control-plane-ns": namespace}});
    let (skipped, opaque) = (annotated("skip-inbound-ports", "8080,9000-9010"), annotated("opaque-ports", "8080,4191"));
    let header = transport_header();
    let transparent = DestinationSettings { outbound_transport_mode: TransportMode::Transparent, ..header.clone() };
    let no_h2 = DestinationSettings { enable_h2_upgrade: false, ..header.clone() };
    let no_domain = DestinationSettings { identity_trust_domain: String::new(), ..header.clone() };
    let no_params = DestinationSettings { meshed_http2_client_params: Http2Params::default(), ..header.clone() };
    for (metadata, port, settings, expected) in [
        (&plain, 8080, &header, "h2 4143 identity http2"),
        (&plain, 8080, &transparent, "h2 identity http2"),
        (&plain, 8080, &no_h2, "4143 identity http2"),
        (&plain, 8080, &DestinationSettings { enable_h2_upgrade: false, ..transparent.clone() }, "identity http2"),
        (&plain, 8080, &no_params, "h2 4143 identity"),
        (&plain, 8080, &no_domain, "h2 4143 http2"),
        // The proxy's own ports.
        (&plain, 4191, &header, "h2 identity http2"),
        (&plain, 4190, &header, "h2 identity http2"),
        (&plain, 4143, &header, "h2 4143 identity http2"),
        (&opaque, 4191, &header, "opaque identity http2"),
        // Opaque by default, opaque by annotation, and not opaque if an annotation replaces the default.
        (&plain, 3306, &header, "opaque 4143 identity http2"),
        (&plain, 3306, &transparent, "opaque 4143 identity http2"),
        (&plain, 3306, &no_h2, "opaque 4143 identity http2"),
        (&opaque, 8080, &transparent, "opaque 4143 identity http2"),
        (&opaque, 3306, &transparent, "h2 identity http2"),
        (&annotated("opaque-ports", ""), 3306, &header, "h2 4143 identity http2"),
        // Skipped.
        (&skipped, 8080, &header, "none"),
        (&skipped, 9010, &header, "none"),
        (&skipped, 9011, &header, "h2 4143 identity http2"),
        (&annotated("skip-inbound-ports", "3306"), 3306, &header, "none"),
        // A Pod of another mesh, and a Pod outside of any mesh.
        (&in_mesh("linkerd-2"), 8080, &header, "h2 4143 http2"),
        (&in_mesh(""), 8080, &header, "none"),
        (&json!({"labels": {}}), 8080, &header, "none"),
        (&json!({"labels": {}}), 3306, &header, "none"),
    ] {
        let endpoint = encoded(meshed(metadata, &plain), port, None, settings);
        assert_eq!(traits(&endpoint), expected, "{metadata} at {port}: {settings:?}");
    }
}

#[test]
fn a_pod_with_an_unreadable_proxy_has_no_opaque_transport_but_has_its_identity() {
    for containers in [json!([]), json!([{"name": "linkerd-proxy"}])] {
        let endpoint =
            encoded(meshed(&json!({}), &json!({"initContainers": containers})), 3306, None, &transport_header());
        assert_eq!(traits(&endpoint), "opaque identity http2", "{containers}");
    }
}

#[test]
fn the_labels_of_a_pod() {
    let owner = |kind: &str| json!({"ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": "it", "uid": "u"}]});
    let bare = json!({"ownerReferences": [], "labels": {}});
    let unhashed =
        json!({"ownerReferences": [], "labels": {"pod-template-hash": "", "linkerd.io/control-plane-ns": ""}});
    let skipped = json!({"ownerReferences": [], "annotations": {"config.linkerd.io/skip-inbound-ports": "80"},
        "labels": {"linkerd.io/control-plane-ns": "linkerd"}});
    let usual = labels([("pod", "web-1"), ("serviceaccount", "web-sa"), ("zone", ""), ("zone_locality", "unknown")]);
    let with = |key: &str, value: &str| {
        let mut labels = usual.clone();
        labels.insert(key.to_owned(), value.to_owned());
        labels
    };
    let hashed = |key: &str| {
        let mut labels = with(key, "it");
        labels.extend(
            [("control_plane_ns", "linkerd"), ("pod_template_hash", "5f79")].map(|(k, v)| (k.into(), v.into())),
        );
        labels
    };
    for (metadata, expected) in [
        (bare, usual.clone()),
        (unhashed, usual.clone()),
        (skipped, with("control_plane_ns", "linkerd")),
        (owner("Job"), hashed("k8s_job")),
        (owner("StatefulSet"), hashed("statefulset")),
        (owner("ReplicationController"), hashed("replicationcontroller")),
    ] {
        let endpoint = encoded(meshed(&metadata, &json!({})), 80, None, &transport_header());
        assert_eq!(endpoint.metric_labels, expected, "{metadata}");
    }
    for account in [json!(null), json!("")] {
        let spec = json!({ "serviceAccountName": account });
        let endpoint = encoded(meshed(&json!({}), &spec), 80, None, &transport_header());
        assert_eq!(endpoint.metric_labels["serviceaccount"], "default");
        let Some(Strategy::DnsLikeIdentity(identity)) = endpoint.tls_identity.unwrap().strategy else { panic!("DNS") };
        assert!(identity.name.starts_with("default.ns.serviceaccount."), "{}", identity.name);
    }
}

#[test]
fn an_endpoint_in_the_clients_zone_is_local_and_weighs_more_if_zone_weights_are_enabled() {
    let weighted = DestinationSettings { ext_endpoint_zone_weights: true, ..settings() };
    let mirrored = || vec![slice("a", &json!([]), &[json!({"addresses": ["203.0.113.1"]})])];
    for (objects, zone, settings, expected) in [
        (meshed(&json!({}), &json!({})), Some("a"), &settings(), (10_000, "local", Some("a"))),
        (meshed(&json!({}), &json!({})), Some("a"), &weighted, (100_000, "local", Some("a"))),
        (meshed(&json!({}), &json!({})), Some("b"), &weighted, (10_000, "remote", Some("b"))),
        (meshed(&json!({}), &json!({})), None, &weighted, (10_000, "unknown", Some(""))),
        (external_workload(&json!({}), &json!({})), Some("a"), &weighted, (100_000, "local", Some("a"))),
        (external_workload(&json!({}), &json!({})), None, &weighted, (10_000, "unknown", Some(""))),
        // The zone of a bare address is ignored.
        (mirrored(), Some("a"), &weighted, (10_000, "unknown", None)),
    ] {
        let WeightedAddr { weight, metric_labels, .. } = encoded(objects, 80, zone, settings);
        let zone = metric_labels.get("zone").map(String::as_str);
        assert_eq!((weight, metric_labels["zone_locality"].as_str(), zone), expected);
    }
}

#[test]
fn the_locality_is_unknown_unless_both_zones_are_known() {
    for (client, endpoint, expected) in [
        (None, Some("a"), "unknown"),
        (None, None, "unknown"),
        (Some("a"), None, "unknown"),
        (Some("A"), Some("a"), "remote"),
    ] {
        assert_eq!(Locality::between(client, endpoint).into_str(), expected);
    }
}

#[test]
fn an_external_workload_is_meshed_for_any_flags() {
    let header = transport_header();
    let transparent = DestinationSettings { outbound_transport_mode: TransportMode::Transparent, ..header.clone() };
    let bare = DestinationSettings {
        enable_h2_upgrade: false,
        controller_namespace: "other".into(),
        identity_trust_domain: String::new(),
        meshed_http2_client_params: Http2Params::default(),
        ..header.clone()
    };
    let (plain, opaque) = (json!({}), json!({"annotations": {"config.linkerd.io/opaque-ports": "8080"}}));
    let skipped = json!({"annotations": {"config.linkerd.io/skip-inbound-ports": "8080"}});
    let proxy = |port: u32| json!({"ports": [{"name": "http", "port": 8080}, {"name": "linkerd-proxy", "port": port}]});
    for (metadata, spec, port, settings, expected) in [
        (&plain, &plain, 8080, &header, "h2 4143 identity http2"),
        (&plain, &plain, 8080, &transparent, "h2 identity http2"),
        (&plain, &plain, 8080, &bare, "h2 4143 identity"),
        (&plain, &proxy(1111), 8080, &header, "h2 1111 identity http2"),
        (&plain, &proxy(65534), 8080, &header, "h2 65534 identity http2"),
        (&plain, &proxy(65535), 8080, &header, "h2 identity http2"),
        (&opaque, &plain, 8080, &transparent, "opaque 4143 identity http2"),
        (&opaque, &proxy(1111), 8080, &transparent, "opaque 1111 identity http2"),
        (&plain, &plain, 3306, &transparent, "opaque 4143 identity http2"),
        (&skipped, &plain, 8080, &header, "h2 4143 identity http2"),
        (&plain, &plain, 4191, &header, "h2 4143 identity http2"),
    ] {
        let endpoint = encoded(external_workload(metadata, spec), port, None, settings);
        assert_eq!(traits(&endpoint), expected, "{metadata} {spec} at {port}: {settings:?}");
    }
}

#[test]
fn the_labels_and_the_identity_of_an_external_workload() {
    let owner = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "name": "it", "uid": "u"});
    let usual = [("external_workload", "vm"), ("zone", "b"), ("zone_locality", "remote")];
    for (owners, expected) in [
        (json!([]), labels(usual)),
        (json!([owner("WorkloadGroup")]), labels([usual[0], usual[1], usual[2], ("workloadgroup", "it")])),
        (json!([owner("Job")]), labels([usual[0], usual[1], usual[2], ("job", "it")])),
        (json!([owner("Job"), owner("WorkloadGroup")]), labels(usual)),
    ] {
        let endpoint =
            encoded(external_workload(&json!({ "ownerReferences": owners }), &json!({})), 80, Some("b"), &settings());
        assert_eq!(endpoint.metric_labels, expected, "{owners}");
        let expected = TlsIdentity {
            strategy: Some(Strategy::UriLikeIdentity(UriLikeIdentity { uri: "spiffe://mesh.example/vm".to_owned() })),
            server_name: Some(DnsLikeIdentity { name: "vm.local".to_owned() }),
        };
        assert_eq!(endpoint.tls_identity, Some(expected));
    }
}

#[test]
fn a_bare_address_is_plain_unless_its_slice_names_a_gateway() {
    let identity = "mirror.linkerd.io/remote-gateway-identity";
    let name = "mirror.linkerd.io/remote-svc-fq-name";
    let (gateway, service) = ("gateway.linkerd-multicluster.serviceaccount.identity.east", "web.prod.svc.east");
    let h2 = DestinationSettings { meshed_http2_client_params: http2(), ..settings() };
    let no_h2 = DestinationSettings { enable_h2_upgrade: false, ..h2.clone() };
    let header = transport_header();
    let requested = Some("web.prod.svc.east:80");
    for (annotations, port, settings, traits_expected, authority) in [
        (json!({}), 4143, &h2, "none", None),
        (json!({}), 3306, &header, "none", None),
        (json!({identity: gateway}), 4143, &h2, "h2 identity http2", None),
        (json!({identity: gateway}), 4143, &header, "h2 identity http2", None),
        (json!({identity: gateway}), 3306, &header, "h2 identity http2", None),
        (json!({identity: gateway}), 4143, &no_h2, "none identity http2", None),
        (json!({identity: gateway, name: service}), 4143, &h2, "h2 identity http2", requested),
        (json!({identity: "", name: service}), 4143, &h2, "none", requested),
        (json!({name: service}), 9999, &h2, "none", requested),
    ] {
        let (kind, mut slice) = slice("a", &json!([]), &[json!({"addresses": ["203.0.113.1"]})]);
        slice["metadata"]["annotations"] = annotations.clone();
        let endpoint = encoded(vec![(kind, slice)], port, None, settings);
        let actual = endpoint.authority_override.as_ref().map(|it| it.authority_override.as_str());
        assert_eq!((traits(&endpoint).as_str(), actual), (traits_expected, authority), "{annotations} at {port}");
        assert_eq!(endpoint.metric_labels, labels([("zone_locality", "unknown")]));
        if let Some(actual) = endpoint.tls_identity {
            let strategy = Some(Strategy::DnsLikeIdentity(DnsLikeIdentity { name: gateway.to_owned() }));
            assert_eq!(actual, TlsIdentity { strategy, server_name: None });
        }
    }
}

#[test]
fn a_gateway_does_not_affect_pods_and_workloads_in_its_slice() {
    for mut objects in [meshed(&json!({}), &json!({})), external_workload(&json!({}), &json!({}))] {
        let before = encoded(objects.clone(), 80, None, &settings());
        let (_, slice) = objects.last_mut().unwrap();
        slice["metadata"]["annotations"] = json!({"mirror.linkerd.io/remote-gateway-identity": "gateway",
            "mirror.linkerd.io/remote-svc-fq-name": "web.prod.svc.east"});
        assert_eq!(encoded(objects, 80, None, &settings()), before);
    }
}
