use serde_json::json;

use super::*;
use crate::cluster::{Watched, testing::service};

fn request(path: &str, client_namespace: &str) -> ProfileRequest {
    ProfileRequest::new(ProfileAuthority::parse(path, "cluster.local").unwrap(), client_namespace)
}

/// A state with Service `ns/legacy` at 10.96.0.1, and two Services that share 10.96.0.2.
fn state() -> State {
    let mut state = State::default();
    for (name, address) in [("legacy", "10.96.0.1"), ("one", "10.96.0.2"), ("other", "10.96.0.2")] {
        let mut service = service(&json!({ "clusterIP": address }));
        service.key.name = name.into();
        service.apply(&mut state);
    }
    state
}

fn service_port(client_namespace: Option<&str>) -> ServiceTarget {
    let service = NamespacedName::new("ns", "legacy");
    ServiceTarget { service, port: 80, client_namespace: client_namespace.map(Arc::from), dotted: false }
}

#[test]
fn a_name_and_a_cluster_ip_resolve_to_a_service_and_any_other_address_to_an_endpoint() {
    let state = state();
    let resolve = |path: &str| request(path, "").resolve(&state);
    let of_name = ProfileTarget::Service(service_port(None));
    assert_eq!(resolve("legacy.ns.svc.cluster.local"), Ok(of_name));
    let of_address = ProfileTarget::ClusterIp("10.96.0.1".parse().unwrap(), service_port(None));
    assert_eq!(resolve("10.96.0.1:80"), Ok(of_address.clone()));
    assert_eq!(resolve("[::ffff:10.96.0.1]:80"), Ok(of_address));
    assert_eq!(resolve("10.96.0.2"), Err(ProfileRefusal::Services(2, "10.96.0.2".parse().unwrap())));
    assert_eq!(resolve("10.96.0.3:81"), Ok(ProfileTarget::Endpoint("10.96.0.3:81".parse().unwrap())));
    assert_eq!(resolve("none.ns.svc.cluster.local"), Err(ProfileRefusal::NoService("none".into())));
    let dotted = ProfileTarget::Service(ServiceTarget { dotted: true, ..service_port(None) });
    assert_eq!(resolve(".legacy.ns.svc.cluster.local"), Ok(dotted));
}

#[test]
fn clients_in_the_services_namespace_and_clients_without_a_namespace_share_a_view() {
    let state = state();
    for (client, expected) in [("", None), ("ns", None), ("client", Some("client"))] {
        let target = request("legacy.ns.svc.cluster.local", client).resolve(&state);
        assert_eq!(target, Ok(ProfileTarget::Service(service_port(expected))), "{client:?}");
    }
}

#[test]
fn the_clients_own_profile_precedes_the_services_profile_and_both_are_found_by_name() {
    let profiles = |client: Option<&str>| {
        service_port(client).profiles("cluster.local").map(|it| it.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(profiles(None), ["ns/legacy.ns.svc.cluster.local"]);
    assert_eq!(profiles(Some("client")), ["client/legacy.ns.svc.cluster.local", "ns/legacy.ns.svc.cluster.local"]);
    assert_eq!(service_of("legacy.ns.svc.cluster.local", "cluster.local"), Some(NamespacedName::new("ns", "legacy")));
    for name in ["legacy.ns.svc.other", "legacy.ns", "nssvc.cluster.local", "ns.svc.cluster.local"] {
        assert_eq!(service_of(name, "cluster.local"), None, "{name}");
    }
}
