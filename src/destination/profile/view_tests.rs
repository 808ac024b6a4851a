//! Tests of the targets of names and addresses, and of their profiles.

use kube::runtime::watcher::Event;
use prost::Message;
use serde_json::{Value, json};

use super::*;
use crate::destination::profile::{encoded::EncodedProfile, request::ProfileRequest};
use crate::{
    cluster::{Kind, testing::Feed},
    destination::{authority::ProfileAuthority, testing::settings},
    proto::{destination::WeightedAddr, net::ip_address::Ip},
};

/// A cluster with these objects, in namespace `ns` unless they set another.
fn cluster(objects: impl IntoIterator<Item = (Kind, Value)>) -> Feed {
    let mut feed = Feed::default();
    for (kind, mut object) in objects {
        object["metadata"].as_object_mut().unwrap().entry("namespace").or_insert("ns".into());
        feed.apply(kind, Event::Apply(object));
    }
    feed
}

/// The first profile of a new stream, for a client in a namespace.
fn new_stream(feed: &Feed, path: &str, client_namespace: &str) -> Result<DestinationProfile, ProfileRefusal> {
    let domain = &settings().cluster_domain;
    let request = ProfileRequest::new(ProfileAuthority::parse(path, domain).unwrap(), client_namespace);
    let target = request.resolve(&feed.cluster.read())?;
    open_stream(feed, &target)
}

/// The current profile of an open stream.
fn open_stream(feed: &Feed, target: &ProfileTarget) -> Result<DestinationProfile, ProfileRefusal> {
    let inputs = ProfileInputs::of(&feed.cluster.read(), target, &settings())?;
    Ok(EncodedProfile::of(&inputs, &settings()).decoded())
}

fn service(name: &str, annotations: &Value, spec: &Value) -> (Kind, Value) {
    (Kind::Service, json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec}))
}

/// A Service with port 80, and with port 3306, which is opaque by default.
fn web(annotations: &Value) -> (Kind, Value) {
    let ports = json!([{"name": "http", "port": 80}, {"name": "mysql", "port": 3306}]);
    service("web", annotations, &json!({"clusterIP": "10.96.0.1", "ports": ports}))
}

/// A profile of `ns/web` with one route of this name.
fn profile(namespace: &str, route: &str) -> (Kind, Value) {
    let spec = json!({"routes": [{"name": route, "condition": {"method": "GET"}}]});
    (
        Kind::ServiceProfile,
        json!({"metadata": {"name": "web.ns.svc.mycluster.local", "namespace": namespace}, "spec": spec}),
    )
}

fn invalid(namespace: &str) -> (Kind, Value) {
    let mut profile = profile(namespace, "invalid");
    profile.1["spec"]["routes"][0]["condition"] = json!(null);
    profile
}

/// A running Pod with this address.
fn pod(name: &str, address: &str, changes: &Value) -> (Kind, Value) {
    let mut pod = json!({"metadata": {"name": name}, "spec": {}, "status": {"phase": "Running", "podIP": address}});
    for (key, change) in changes.as_object().unwrap() {
        pod[key].as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    }
    (Kind::Pod, pod)
}

fn workload(name: &str, address: &str, port: u16) -> (Kind, Value) {
    let mesh = json!({"identity": "spiffe://mesh.example/vm", "serverName": "vm.local"});
    let spec = json!({"workloadIPs": [{"ip": address}], "ports": [{"port": port}], "meshTLS": mesh});
    (Kind::ExternalWorkload, json!({"metadata": {"name": name}, "spec": spec}))
}

fn opaque_server(selector: &str, port: &Value) -> (Kind, Value) {
    let spec = json!({selector: {}, "port": port, "proxyProtocol": "opaque"});
    (Kind::Server, json!({"metadata": {"name": "server"}, "spec": spec}))
}

fn terminating() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
}

/// The name of a profile's only route, and the namespace of its ServiceProfile.
fn route_of(profile_or_refusal: Result<DestinationProfile, ProfileRefusal>) -> String {
    let profile = profile_or_refusal.unwrap();
    let Some(metadata::Kind::Resource(reference)) = profile.profile_ref.unwrap().kind else { panic!() };
    let route = profile.routes.first().map_or("default", |route| &route.metrics_labels["route"]);
    format!("{route} {}", reference.namespace).trim().to_owned()
}

/// The name of an endpoint's Pod or ExternalWorkload, or `unknown`; with `!` if the port is opaque.
fn endpoint_name(profile_or_refusal: Result<DestinationProfile, ProfileRefusal>) -> String {
    let profile = match profile_or_refusal {
        Ok(profile) => profile,
        Err(refusal) => return format!("{refusal:?}"),
    };
    let labels = profile.endpoint.unwrap().metric_labels;
    let name = ["pod", "external_workload"].into_iter().find_map(|label| labels.get(label)).cloned();
    format!("{}{}", name.unwrap_or("unknown".to_owned()), if profile.opaque_protocol { "!" } else { "" })
}

fn address(endpoint: &WeightedAddr) -> String {
    let address = endpoint.addr.unwrap();
    match address.ip.unwrap().ip.unwrap() {
        Ip::Ipv4(bits) => format!("{}:{}", std::net::Ipv4Addr::from_bits(bits), address.port),
        Ip::Ipv6(it) => {
            let bits = u128::from(it.first) << 64 | u128::from(it.last);
            format!("[{}]:{}", std::net::Ipv6Addr::from_bits(bits), address.port)
        }
    }
}

#[test]
fn a_service_without_a_service_profile_has_the_default_profile() {
    let expected = DestinationProfile {
        fully_qualified_name: "web.ns.svc.mycluster.local".to_owned(),
        opaque_protocol: false,
        routes: Vec::new(),
        retry_budget: Some(RetryBudget {
            retry_ratio: 0.2,
            min_retries_per_second: 10,
            ttl: Some(Duration { seconds: 10, nanos: 0 }),
        }),
        dst_overrides: Vec::new(),
        endpoint: None,
        parent_ref: Some(Metadata {
            kind: Some(metadata::Kind::Resource(Resource {
                group: "core".to_owned(),
                kind: "Service".to_owned(),
                name: "web".to_owned(),
                namespace: "ns".to_owned(),
                section: String::new(),
                port: 80,
            })),
        }),
        profile_ref: Some(Metadata {
            kind: Some(metadata::Kind::Resource(Resource { group: "linkerd.io".to_owned(), ..Resource::default() })),
        }),
    };
    let feed = cluster([web(&json!({}))]);
    for path in ["web.ns.svc.mycluster.local", "10.96.0.1", "[::ffff:10.96.0.1]:80"] {
        assert_eq!(new_stream(&feed, path, ""), Ok(expected.clone()), "{path}");
    }
    let dotted = new_stream(&feed, ".web.ns.svc.mycluster.local", "").unwrap();
    assert_eq!(dotted.fully_qualified_name, ".web.ns.svc.mycluster.local");
}

#[test]
fn the_clients_own_profile_wins_over_the_services_profile_and_an_invalid_profile_is_ignored() {
    let (own, theirs) = (profile("client", "own"), profile("ns", "theirs"));
    for (profiles, client, expected) in [
        (vec![], "client", "default"),
        (vec![own.clone()], "client", "own client"),
        (vec![own.clone()], "", "default"),
        (vec![own.clone()], "other", "default"),
        (vec![theirs.clone()], "client", "theirs ns"),
        (vec![theirs.clone()], "", "theirs ns"),
        (vec![own.clone(), theirs.clone()], "client", "own client"),
        (vec![own.clone(), theirs.clone()], "ns", "theirs ns"),
        (vec![own.clone(), theirs.clone()], "", "theirs ns"),
        (vec![invalid("client"), theirs], "client", "theirs ns"),
        (vec![invalid("client"), invalid("ns")], "client", "default"),
        (vec![own, invalid("ns")], "client", "own client"),
        (vec![profile("linkerd", "control-plane")], "client", "default"),
    ] {
        let feed = cluster([web(&json!({}))].into_iter().chain(profiles.clone()));
        assert_eq!(
            route_of(new_stream(&feed, "web.ns.svc.mycluster.local", client)),
            expected,
            "{profiles:?} {client}"
        );
    }
}

#[test]
fn a_profile_has_its_retry_budget_and_its_overrides_for_the_requested_port() {
    let (kind, mut object) = profile("ns", "route");
    let authorities = ["foo", "foo:8080", "foo:bar", "foo:", ":81", "", "::1", "a:b:c", "[::1]", "[::1]:81"];
    let overrides: Vec<_> =
        authorities.iter().map(|authority| json!({"authority": authority, "weight": "900m"})).collect();
    object["spec"]["dstOverrides"] = overrides.into();
    object["spec"]["retryBudget"] = json!({"retryRatio": 0.5, "minRetriesPerSecond": 0, "ttl": "1s"});
    let profile = new_stream(&cluster([web(&json!({})), (kind, object)]), "web.ns.svc.mycluster.local", "").unwrap();
    let actual: Vec<_> = profile.dst_overrides.iter().map(|it| it.authority.as_str()).collect();
    assert_eq!(
        actual,
        ["foo:80", "foo:8080", "foo:bar", "foo:", ":81", ":80", "[::1]:80", "[a:b:c]:80", "[[::1]]:80", "[::1]:81"]
    );
    assert!(profile.dst_overrides.iter().all(|it| it.weight == 9_000 && it.backend_ref.is_none()));
    let budget = profile.retry_budget.unwrap();
    assert_eq!((budget.retry_ratio, budget.min_retries_per_second), (0.5, 0));
    let Some(metadata::Kind::Resource(reference)) = profile.profile_ref.unwrap().kind else { panic!() };
    assert_eq!((&*reference.kind, &*reference.name), ("ServiceProfile", "web.ns.svc.mycluster.local"));
}

#[test]
fn only_the_services_own_annotation_makes_its_port_opaque() {
    for (annotations, opaque) in [
        (json!({}), [false, true]),
        (json!({"config.linkerd.io/opaque-ports": "80"}), [true, false]),
        (json!({"config.linkerd.io/opaque-ports": "http"}), [true, false]),
        (json!({"config.linkerd.io/opaque-ports": "79-81,mysql"}), [true, true]),
        (json!({"config.linkerd.io/opaque-ports": ""}), [false, false]),
        (json!({"config.linkerd.io/opaque-ports": " ,,"}), [false, false]),
    ] {
        let pod =
            pod("web-1", "10.0.0.1", &json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "80"}}}));
        let feed = cluster([web(&annotations), pod, opaque_server("podSelector", &json!(80))]);
        let found = [80, 3306].map(|port| new_stream(&feed, &format!("10.96.0.1:{port}"), "").unwrap().opaque_protocol);
        assert_eq!(found, opaque, "{annotations}");
    }
}

#[test]
fn a_port_that_the_service_does_not_have_gets_an_empty_profile() {
    let external = |ports: Value| service("external", &json!({}), &json!({"type": "ExternalName", "ports": ports}));
    let feed = cluster([web(&json!({})), profile("ns", "route"), external(json!(null))]);
    for path in ["web.ns.svc.mycluster.local:81", "10.96.0.1:81", "external.ns.svc.mycluster.local:80"] {
        assert_eq!(new_stream(&feed, path, "").map(|it| it.encode_to_vec()), Ok(Vec::new()), "{path}");
    }
    let feed = cluster([external(json!([{"port": 80}]))]);
    assert_eq!(new_stream(&feed, "external.ns.svc.mycluster.local:80", ""), Err(ProfileRefusal::ExternalName));
}

#[test]
fn a_stream_of_a_deleted_service_falls_back_to_the_defaults_and_keeps_the_service_profile() {
    let mut feed = cluster([web(&json!({"config.linkerd.io/opaque-ports": "80"})), profile("ns", "route")]);
    let targets = ["web.ns.svc.mycluster.local:80", "10.96.0.1:80"].map(|path| {
        let authority = ProfileAuthority::parse(path, "mycluster.local").unwrap();
        ProfileRequest::new(authority, "").resolve(&feed.cluster.read()).unwrap()
    });
    let answers = |feed: &Feed| {
        targets.each_ref().map(|target| open_stream(feed, target).map(|it| (it.opaque_protocol, it.routes.len())))
    };
    assert_eq!(answers(&feed), [Ok((true, 1)), Ok((true, 1))]);
    feed.apply(Kind::Service, Event::Delete(json!({"metadata": {"name": "web", "namespace": "ns"}})));
    assert_eq!(answers(&feed), [Ok((false, 1)), Ok((false, 1))]);
    feed.apply(Kind::Pod, Event::Apply(pod("taker", "10.96.0.1", &json!({"metadata": {"namespace": "ns"}})).1));
    assert_eq!(answers(&feed), [Ok((false, 1)), Err(ProfileRefusal::Moved)], "the address belongs to a Pod now");
    let moved = json!({"metadata": {"name": "web", "namespace": "ns"}, "spec": {"clusterIP": "10.96.0.9", "ports": [{"port": 80}]}});
    feed.apply(Kind::Service, Event::Apply(moved));
    assert_eq!(answers(&feed), [Ok((false, 1)), Err(ProfileRefusal::Moved)], "the name belongs to the new Service");
}

#[test]
fn an_address_belongs_to_a_service_else_a_pod_else_a_host_port_else_an_external_workload() {
    let host = json!({"spec": {"hostNetwork": true, "containers": [{"name": "a", "ports": [{"containerPort": 81, "hostPort": 81}]}]},
        "status": {"hostIP": "192.0.2.1"}});
    let objects = [
        web(&json!({})),
        pod("at-service", "10.96.0.1", &json!({})),
        pod("own", "10.0.0.1", &json!({})),
        workload("at-pod", "10.0.0.1", 80),
        pod("host", "192.0.2.1", &host),
        workload("at-node", "192.0.2.1", 81),
        workload("other-port", "192.0.2.1", 82),
    ];
    let feed = cluster(objects);
    for (path, expected) in [
        ("10.0.0.1:80", "own"),
        ("10.0.0.1:9", "own"),
        ("[::ffff:10.0.0.1]:80", "own"),
        ("192.0.2.1:81", "host"),
        ("192.0.2.1:82", "other-port"),
        ("192.0.2.1:80", "unknown"),
        ("203.0.113.7:80", "unknown"),
        ("203.0.113.7:3306", "unknown!"),
    ] {
        assert_eq!(endpoint_name(new_stream(&feed, path, "")), expected, "{path}");
    }
    assert!(new_stream(&feed, "10.96.0.1:80", "").unwrap().endpoint.is_none());
    assert_eq!(
        open_stream(&feed, &ProfileTarget::Endpoint("10.96.0.1:80".parse().unwrap())),
        Err(ProfileRefusal::Moved)
    );
}

#[test]
fn the_endpoint_of_a_pod_has_the_pods_namespace_and_no_locality() {
    let labels = json!({"metadata": {"labels": {"linkerd.io/control-plane-ns": "linkerd"}}});
    let profile = new_stream(&cluster([pod("web-1", "172.17.0.12", &labels)]), "172.17.0.12:8989", "").unwrap();
    let expected = [
        ("control_plane_ns", "linkerd"),
        ("namespace", "ns"),
        ("pod", "web-1"),
        ("serviceaccount", "default"),
        ("zone", ""),
    ];
    let endpoint = profile.endpoint.unwrap();
    assert!(endpoint.metric_labels.iter().map(|(key, value)| (&**key, &**value)).eq(expected));
    assert_eq!((address(&endpoint), endpoint.weight), ("172.17.0.12:8989".to_owned(), 10_000));
    assert!(endpoint.tls_identity.is_some() && endpoint.protocol_hint.is_some());
    let DestinationProfile { fully_qualified_name, routes, retry_budget, parent_ref, profile_ref, .. } = profile;
    assert_eq!((fully_qualified_name.as_str(), routes.len(), parent_ref, profile_ref), ("", 0, None, None));
    assert_eq!(retry_budget, Some(RETRY_BUDGET));
}

#[test]
fn an_unknown_endpoint_has_only_its_address() {
    let endpoint = new_stream(&cluster([]), "[2001:DB8::1]:80", "").unwrap().endpoint.unwrap();
    assert_eq!(address(&endpoint), "[2001:db8::1]:80");
    assert_eq!(endpoint, WeightedAddr { addr: endpoint.addr, weight: 10_000, ..WeightedAddr::default() });
}

#[test]
fn a_host_port_is_skipped_if_the_pods_proxy_skips_it_or_the_container_port_behind_it() {
    let skips = |skipped: &str, path: &str| {
        let ports = json!([{"containerPort": 80, "hostPort": 8080}]);
        let meshed = pod(
            "web-1",
            "10.0.0.1",
            &json!({"metadata": {"labels": {"linkerd.io/control-plane-ns": "linkerd"},
                "annotations": {"config.linkerd.io/skip-inbound-ports": skipped}},
            "spec": {"containers": [{"name": "app", "ports": ports}]}, "status": {"hostIP": "192.0.2.1"}}),
        );
        new_stream(&cluster([meshed]), path, "").unwrap().endpoint.unwrap().tls_identity.is_none()
    };
    let addresses = ["10.0.0.1:80", "10.0.0.1:8080", "192.0.2.1:8080"];
    for (skipped, expected) in
        [("80", [true, false, true]), ("8080", [false, true, true]), ("81", [false, false, false])]
    {
        assert_eq!(addresses.map(|path| skips(skipped, path)), expected, "{skipped}");
    }
}

#[test]
fn a_port_is_opaque_by_annotation_by_default_or_by_server_and_servers_never_remove_opacity() {
    let annotated = |text: &str| json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": text}}});
    let ports = json!([{"name": "http", "containerPort": 80, "hostPort": 8080}]);
    for (server, annotations, expected) in [
        (None, json!({}), [false, true, false]),
        (None, annotated("80"), [true, false, true]),
        (None, annotated("http"), [true, false, true]),
        (None, annotated(""), [false, false, false]),
        (None, annotated("8080"), [false, false, true]),
        (Some(json!(80)), json!({}), [true, true, true]),
        (Some(json!(80)), annotated(""), [true, false, true]),
        (Some(json!("http")), json!({}), [true, true, true]),
        (Some(json!("80")), json!({}), [false, true, false]),
        (Some(json!(8080)), json!({}), [false, true, true]),
    ] {
        let mut web = pod("web-1", "10.0.0.1", &annotations);
        web.1["spec"] = json!({"containers": [{"name": "a", "ports": ports}]});
        web.1["status"]["hostIP"] = json!("192.0.2.1");
        let server_of = server.as_ref().map(|port| opaque_server("podSelector", port));
        let feed = cluster([web].into_iter().chain(server_of));
        let found = ["10.0.0.1:80", "10.0.0.1:3306", "192.0.2.1:8080"]
            .map(|path| new_stream(&feed, path, "").unwrap().opaque_protocol);
        assert_eq!(found, expected, "{server:?} {annotations}");
    }
    let workloads = |server| cluster([workload("vm", "192.0.2.1", 80), server]);
    let found = [
        workloads(opaque_server("podSelector", &json!(80))),
        workloads(opaque_server("externalWorkloadSelector", &json!(80))),
    ];
    assert_eq!(found.map(|feed| endpoint_name(new_stream(&feed, "192.0.2.1:80", ""))), ["vm", "vm!"]);
}

#[test]
fn an_instance_is_found_by_its_hostname_whether_it_is_ready_or_not() {
    let slice = |endpoints: Value| {
        let metadata = json!({"name": "db", "labels": {"kubernetes.io/service-name": "db"}});
        (Kind::EndpointSlice, json!({"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints}))
    };
    let target = |name: &str| json!({"kind": "Pod", "name": name});
    let not_ready = json!({"ready": false});
    let feed = cluster([
        slice(json!([
            {"addresses": ["10.0.0.1"], "hostname": "db-0", "targetRef": target("db-0"), "conditions": not_ready},
            {"addresses": ["10.0.0.2"], "hostname": "db-1", "targetRef": target("db-1")},
            {"addresses": ["10.0.0.3"], "hostname": "db-2", "targetRef": target("db-2")},
            {"addresses": ["10.0.0.4"], "hostname": "deleted", "targetRef": target("deleted")},
            {"addresses": ["10.0.0.5"], "hostname": "plain"},
            {"addresses": ["192.0.2.1"], "hostname": "vm", "targetRef": {"kind": "ExternalWorkload", "name": "vm"}},
        ])),
        pod("db-0", "10.0.0.11", &terminating()),
        pod("db-1", "10.0.0.12", &json!({"status": {"phase": "Pending"}})),
        pod("db-2", "", &json!({})),
        workload("vm", "192.0.2.1", 80),
    ]);
    let found = |hostname: &str| {
        let profile = new_stream(&feed, &format!("{hostname}.db.ns.svc.mycluster.local:80"), "")?;
        assert!(profile.fully_qualified_name.is_empty() && profile.parent_ref.is_none());
        let at = address(profile.endpoint.as_ref().unwrap());
        Ok(format!("{} at {at}", endpoint_name(Ok(profile))))
    };
    assert_eq!(found("db-0"), Ok("db-0 at 10.0.0.11:80".to_owned()));
    assert_eq!(found("db-1"), Ok("unknown at 10.0.0.12:80".to_owned()));
    assert_eq!(found("db-2"), Ok("db-2 at 10.0.0.3:80".to_owned()), "the Pod's status has no address yet");
    assert_eq!(found("plain"), Ok("unknown at 10.0.0.5:80".to_owned()));
    assert_eq!(found("vm"), Ok("vm at 192.0.2.1:80".to_owned()));
    assert_eq!(found("deleted"), Err(ProfileRefusal::NoPod("deleted".into())));
    assert_eq!(found("none"), Err(ProfileRefusal::NoInstance(NamespacedName::new("ns", "db"), "none".into())));
}

#[test]
fn an_instance_is_not_another_pod_of_the_same_name() {
    let with_uid = |uid: &str| {
        let target = json!({"kind": "Pod", "name": "db-0", "uid": uid});
        let endpoints = json!([{"addresses": ["10.0.0.1"], "hostname": "db-0", "targetRef": target}]);
        let metadata = json!({"name": "db", "labels": {"kubernetes.io/service-name": "db"}});
        let slice = json!({"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints});
        let pod = pod("db-0", "10.0.0.2", &json!({"metadata": {"uid": "new"}}));
        let feed = cluster([(Kind::EndpointSlice, slice), pod]);
        new_stream(&feed, "db-0.db.ns.svc.mycluster.local:80", "").map(|profile| endpoint_name(Ok(profile)))
    };
    assert_eq!(with_uid("old"), Err(ProfileRefusal::NoPod("db-0".into())));
    assert_eq!(with_uid("new"), Ok("db-0".to_owned()));
}

#[test]
fn a_meshed_pod_at_its_host_port_has_no_opaque_transport_unless_its_network_is_the_hosts() {
    let variable = |name: &str, port: u16| json!({"name": format!("LINKERD2_PROXY_{name}_LISTEN_ADDR"), "value": format!("0.0.0.0:{port}")});
    let env = [variable("INBOUND", 4143), variable("ADMIN", 4191), variable("CONTROL", 4190)];
    let meshed = |host_network: bool, address: &str| {
        let ports = json!([{"containerPort": 80, "hostPort": 3306}]);
        let containers = json!([{"name": "app", "ports": ports}, {"name": "linkerd-proxy", "env": env}]);
        pod(
            "web-1",
            address,
            &json!({"metadata": {"labels": {"linkerd.io/control-plane-ns": "linkerd"}},
            "spec": {"hostNetwork": host_network, "containers": containers}, "status": {"hostIP": "192.0.2.1"}}),
        )
    };
    // Port 3306 is opaque by default, so opaque transport is used where it is possible.
    for (host_network, pod_ip, path, expected) in [
        (false, "10.0.0.1", "10.0.0.1:3306", Some(4143)),
        (false, "10.0.0.1", "192.0.2.1:3306", None),
        (true, "192.0.2.1", "192.0.2.1:3306", Some(4143)),
    ] {
        let feed = cluster([meshed(host_network, pod_ip)]);
        let endpoint = new_stream(&feed, path, "").unwrap().endpoint.unwrap();
        let hint = endpoint.protocol_hint.unwrap();
        assert!(hint.protocol.is_some() && endpoint.tls_identity.is_some(), "{path} is still meshed");
        assert_eq!(hint.opaque_transport.map(|it| it.inbound_port), expected, "{path}, host network: {host_network}");
    }
}
