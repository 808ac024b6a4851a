//! The choice of a Service's ServiceProfile, the message for it, and the message without one.

use std::collections::HashMap;

use linkerd2_proxy_api::{
    destination::{
        HttpStatusRange, PathMatch, RequestMatch, ResponseClass, ResponseMatch, Route, WeightedDst, request_match,
        response_match,
    },
    http_types::{HttpMethod, http_method::Type},
    meta::{Metadata, Resource, metadata::Kind},
};

use super::*;

const NAME: &str = "name1.ns.svc.mycluster.local";

/// The Service `name1`, its ServiceProfile, and that of a client.
fn cluster() -> Cluster {
    Cluster::new(&[
        service(
            "name1",
            &json!({"clusterIP": "172.17.12.0", "ports": [{"name": "http", "port": 8989}, {"port": 443}]}),
        ),
        profile_of("name1", "ns", &json!({"routes": [route("route1", "/a/b/c")]})),
        profile_of(
            "name1",
            "client-ns",
            &json!({"routes": [
            {"name": "route2", "isRetryable": true, "condition": {"pathRegex": "/x/y/z"}}]}),
        ),
    ])
}

fn reference(group: &str, kind: &str, name: &str, namespace: &str, port: u32) -> Option<Metadata> {
    let [group, kind, name, namespace] = [group, kind, name, namespace].map(str::to_owned);
    let resource = Resource { group, kind, name, namespace, section: String::new(), port };
    Some(Metadata { kind: Some(Kind::Resource(resource)) })
}

fn path(regex: &str) -> RequestMatch {
    RequestMatch { r#match: Some(request_match::Match::Path(PathMatch { regex: regex.to_owned() })) }
}

fn labels(route: &str) -> HashMap<String, String> {
    HashMap::from([("route".to_owned(), route.to_owned())])
}

/// The names of the routes that a client in this namespace receives.
fn routes(cluster: &Cluster, client: &str) -> Vec<String> {
    let token = if client.is_empty() { String::new() } else { format!("{{\"ns\":\"{client}\"}}") };
    match cluster.get_as(&settings(), &format!("{NAME}:8989"), &token) {
        ProfileAnswer::Profile(profile) => {
            profile.routes.iter().map(|route| route.metrics_labels["route"].clone()).collect()
        }
        refused => panic!("{refused:?}"),
    }
}

#[test]
fn a_service_without_a_profile_has_the_default_one() {
    let cluster = Cluster::new(&[service("name2", &json!({"ports": [{"port": 8989}]}))]);
    let expected = DestinationProfile {
        fully_qualified_name: "name2.ns.svc.mycluster.local".to_owned(),
        retry_budget: budget(),
        parent_ref: reference("core", "Service", "name2", "ns", 8989),
        profile_ref: reference("linkerd.io", "", "", "", 0),
        ..DestinationProfile::default()
    };
    assert_eq!(cluster.profile("name2.ns.svc.mycluster.local:8989"), expected);
}

#[test]
fn a_profile_of_two_routes_is_sent_exactly() {
    let mut cluster = cluster();
    cluster.edit(
        "ServiceProfile/ns/name1.ns.svc.mycluster.local",
        json!({"spec": {
        "routes": [
            {"name": "get but not books", "timeout": "200ms", "condition": {"all": [
                {"method": "get"}, {"not": {"pathRegex": "/books"}}]}},
            {"name": "", "isRetryable": true, "condition": {"pathRegex": "/x"}, "responseClasses": [
                {"condition": {"status": {"min": 500, "max": 599}}, "isFailure": true},
                {"condition": {"any": [{"status": {"min": 500}}, {"status": {"min": 420, "max": 420}}]}}]}],
        "retryBudget": {"ttl": "1m0.5s", "retryRatio": 0.5},
        "dstOverrides": [{"authority": "api", "weight": "900m"}, {"authority": "web:http"}],
        "opaquePorts": {"8989": {}}}}),
    );
    let get = HttpMethod { r#type: Some(Type::Registered(0)) };
    let get = RequestMatch { r#match: Some(request_match::Match::Method(get)) };
    let not = RequestMatch { r#match: Some(request_match::Match::Not(Box::new(path("/books")))) };
    let all = request_match::Match::All(request_match::Seq { matches: vec![get, not] });
    let status =
        |min, max| ResponseMatch { r#match: Some(response_match::Match::Status(HttpStatusRange { min, max })) };
    let any = response_match::Match::Any(response_match::Seq { matches: vec![status(500, 0), status(420, 420)] });
    let weighted = |authority: &str, weight| WeightedDst { authority: authority.to_owned(), weight, backend_ref: None };
    let expected = DestinationProfile {
        fully_qualified_name: NAME.to_owned(),
        opaque_protocol: false,
        routes: vec![
            Route {
                condition: Some(RequestMatch { r#match: Some(all) }),
                response_classes: Vec::new(),
                metrics_labels: labels("get but not books"),
                is_retryable: false,
                timeout: Some(Duration { seconds: 0, nanos: 200_000_000 }),
            },
            Route {
                condition: Some(path("/x")),
                response_classes: vec![
                    ResponseClass { condition: Some(status(500, 599)), is_failure: true },
                    ResponseClass { condition: Some(ResponseMatch { r#match: Some(any) }), is_failure: false },
                ],
                metrics_labels: labels(""),
                is_retryable: true,
                timeout: None,
            },
        ],
        retry_budget: Some(RetryBudget {
            retry_ratio: 0.5,
            min_retries_per_second: 0,
            ttl: Some(Duration { seconds: 60, nanos: 500_000_000 }),
        }),
        dst_overrides: vec![weighted("api:8989", 9000), weighted("web:http", 0)],
        endpoint: None,
        parent_ref: reference("core", "Service", "name1", "ns", 8989),
        profile_ref: reference("linkerd.io", "ServiceProfile", NAME, "ns", 0),
    };
    assert_eq!(cluster.profile(&format!("{NAME}:8989")), expected);
    assert_eq!(cluster.profile("172.17.12.0:8989"), expected);
}

#[test]
fn the_clients_profile_replaces_that_of_the_service_completely() {
    let mut cluster = cluster();
    assert_eq!(routes(&cluster, ""), ["route1"]);
    assert_eq!(routes(&cluster, "other"), ["route1"]);
    assert_eq!(routes(&cluster, "ns"), ["route1"]);
    assert_eq!(routes(&cluster, "client-ns"), ["route2"]);
    cluster.remove("ServiceProfile/ns/name1.ns.svc.mycluster.local");
    assert_eq!(routes(&cluster, ""), [""; 0]);
    assert_eq!(routes(&cluster, "client-ns"), ["route2"]);
    cluster.put(profile_of("name1", "client-ns", &json!({"retryBudget": {"ttl": "0s"}})));
    cluster.put(profile_of("name1", "ns", &json!({"routes": [route("route1", "/")]})));
    assert_eq!(routes(&cluster, "client-ns"), [""; 0]);
    // ServiceProfiles of another cluster domain, or in the control plane's namespace, are not used.
    cluster.put(json!({"kind": "ServiceProfile", "spec": {"routes": [route("route3", "/")]},
        "metadata": {"name": "name1.ns.svc.cluster.local", "namespace": "client"}}));
    cluster.put(profile_of("name1", "linkerd", &json!({"routes": [route("route3", "/")]})));
    assert_eq!(routes(&cluster, "client"), ["route1"]);
}

#[test]
fn an_invalid_profile_counts_as_absent() {
    let mut cluster = cluster();
    cluster.edit("ServiceProfile/client-ns/name1.ns.svc.mycluster.local", json!({"spec": {"routes": [null]}}));
    assert_eq!(routes(&cluster, "client-ns"), ["route1"]);
    cluster.edit("ServiceProfile/ns/name1.ns.svc.mycluster.local", json!({"spec": {"retryBudget": {"ttl": "soon"}}}));
    assert_eq!(routes(&cluster, "client-ns"), [""; 0]);
    let ProfileAnswer::Profile(profile) = cluster.get(&format!("{NAME}:8989")) else { panic!("refused") };
    assert_eq!(profile.profile_ref, reference("linkerd.io", "", "", "", 0));
    assert_eq!(profile.retry_budget, budget());
}

#[test]
fn only_the_services_own_annotation_makes_a_port_opaque() {
    let opaque = |list: Option<&str>, port: u16| {
        let mut cluster = cluster();
        cluster.put(profile_of("name1", "ns", &json!({"opaquePorts": ["8989"]})));
        cluster.put(pod(
            "name1-1",
            "172.17.0.12",
            json!({"metadata": {"annotations": {
            "config.linkerd.io/opaque-ports": "8989"}}}),
        ));
        cluster.put(json!({"kind": "Server", "metadata": {"name": "all", "namespace": "ns"},
            "spec": {"podSelector": {}, "port": 8989, "proxyProtocol": "opaque"}}));
        if let Some(list) = list {
            let annotations = json!({"config.linkerd.io/opaque-ports": list});
            cluster.edit("Service/ns/name1", json!({"metadata": {"annotations": annotations}}));
        }
        cluster.profile(&format!("{NAME}:{port}")).opaque_protocol
    };
    for (list, at_8989, at_443) in [
        (None, false, true),
        (Some(""), false, false),
        (Some("8989"), true, false),
        (Some("http"), true, false),
        (Some("x, 400-9000,"), true, true),
        (Some("30 - 9000"), false, false),
        // The port 443 has no name.
        (Some(" ,,"), false, false),
    ] {
        assert_eq!((opaque(list, 8989), opaque(list, 443)), (at_8989, at_443), "{list:?}");
    }
}

#[test]
fn an_open_stream_for_a_name_survives_the_deletion_of_its_service() {
    let mut cluster = cluster();
    cluster.edit("Service/ns/name1", json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "8989"}}}));
    let path = format!("{NAME}:8989");
    let before = cluster.profile(&path);
    assert_eq!(cluster.get_while_open(&path), cluster.get(&path));
    cluster.remove("Service/ns/name1");
    assert_eq!(cluster.get(&path), refused(Code::Unknown, "service \"name1\" not found"));
    let ProfileAnswer::Profile(open) = cluster.get_while_open(&path) else { panic!("refused") };
    assert_eq!(*open, DestinationProfile { opaque_protocol: false, ..before });
    // For any port, because no Service restricts it.
    let ProfileAnswer::Profile(open) = cluster.get_while_open(&format!("{NAME}:443")) else { panic!("refused") };
    assert!(open.opaque_protocol && open.routes.len() == 1);
    let ProfileAnswer::Profile(open) = cluster.get_while_open("172.17.12.0:8989") else { panic!("refused") };
    assert!(open.endpoint.is_some(), "the address is then unknown");
}
