//! Hints for zones, `publishNotReadyAddresses`, and the Events about the traffic of a workload.

use super::*;

fn service_with(fields: &Value) -> Service {
    let mut spec = json!({"selector": {"app": "legacy"}, "clusterIP": "10.96.0.1", "ipFamilies": ["IPv4"],
        "ports": [{"name": "one", "port": 80, "targetPort": "http"}]});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    testing::service(&spec)
}

/// A workload with this label for the zone.
fn in_zone(name: &str, ip: &str, ready: bool, zone: &Value) -> Arc<ExternalWorkload> {
    let mut labels = json!({"app": "legacy"});
    if let Value::String(_) = zone {
        labels["topology.kubernetes.io/zone"] = zone.clone();
    }
    let spec = json!({"workloadIPs": [{"ip": ip}], "ports": [{"name": "http", "port": 80}]});
    Arc::new(testing::external_workload(name, ready, &labels, &spec))
}

fn three() -> [Arc<ExternalWorkload>; 3] {
    [
        in_zone("vm-a", "192.0.2.1", true, &json!("zone-a")),
        in_zone("vm-b", "192.0.2.2", true, &json!("zone-b")),
        in_zone("vm-c", "192.0.2.3", false, &json!("zone-c")),
    ]
}

fn hints(world: &World) -> Vec<Value> {
    world.only().endpoints.iter().map(|endpoint| json!(endpoint.hints)).collect()
}

fn for_zone(zone: &str) -> Value {
    json!({"forZones": [{"name": zone}]})
}

/// As the EndpointSlice controller of Kubernetes writes the hints of endpoints that have no node.
#[test]
fn a_ready_endpoint_has_a_hint_for_its_zone_if_the_service_prefers_near_endpoints() {
    for distribution in ["PreferClose", "PreferSameZone", "PreferSameNode"] {
        let mut world = World::new(service_with(&json!({"trafficDistribution": distribution})), three());
        assert_eq!(world.settle(), writes(1, 0, 0));
        assert_eq!(hints(&world), [for_zone("zone-a"), for_zone("zone-b"), Value::Null], "{distribution}");
    }
    for distribution in [json!(null), json!(""), json!("prefersamezone"), json!("PreferSamePlanet")] {
        let mut world = World::new(service_with(&json!({"trafficDistribution": distribution})), three());
        world.settle();
        assert_eq!(hints(&world), [const { Value::Null }; 3], "{distribution}");
    }
}

#[test]
fn hints_follow_the_service_the_zone_and_the_readiness_with_one_update_each() {
    let near = service_with(&json!({"trafficDistribution": "PreferSameZone"}));
    // As an earlier version wrote the slices: without hints.
    let mut world = World::new(service_with(&json!({})), three());
    world.settle();
    let name = world.only().name().to_owned();
    world.service = near.clone();
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(hints(&world), [for_zone("zone-a"), for_zone("zone-b"), Value::Null]);
    world.workloads[0] = in_zone("vm-a", "192.0.2.1", true, &json!("zone-d"));
    world.workloads[2] = in_zone("vm-c", "192.0.2.3", true, &json!("zone-c"));
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(hints(&world), [for_zone("zone-d"), for_zone("zone-b"), for_zone("zone-c")]);
    world.service = service_with(&json!({"trafficDistribution": "PreferSameNode"}));
    assert_eq!(world.settle(), writes(0, 0, 0), "the hints are the same");
    world.service = service_with(&json!({}));
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(hints(&world), [const { Value::Null }; 3]);
    assert_eq!(world.only().name(), name, "no slice is recreated");
}

/// One ready endpoint without a hint turns the hints of all endpoints of the Service off, for kube-proxy and for proxies.
#[test]
fn a_workload_without_a_zone_has_no_hint_and_is_reported_if_the_service_prefers_near_endpoints() {
    let near = service_with(&json!({"trafficDistribution": "PreferClose"}));
    for zone in [json!(null), json!("")] {
        let vms = [in_zone("vm-a", "192.0.2.1", true, &json!("a")), in_zone("vm-b", "192.0.2.2", false, &zone)];
        let mut world = World::new(near.clone(), vms.clone());
        let findings = world.plan().findings;
        let notice = findings[0].notice(&near);
        assert_eq!((findings.len(), notice.reason.as_str()), (1, "MissingZone"));
        assert_eq!(
            (notice.regarding.name.as_deref(), notice.note.as_str()),
            (
                Some("vm-b"),
                "As an endpoint of Service legacy: it has no label topology.kubernetes.io/zone, so while it is ready, \
                 trafficDistribution of the Service has no effect"
            )
        );
        world.settle();
        assert_eq!(hints(&world), [for_zone("a"), Value::Null], "{zone}");
        assert_eq!(World::new(legacy(), vms).plan().findings, []);
    }
}

#[test]
fn hints_of_another_writer_are_reverted_unless_it_allocates_those_of_the_service() {
    let annotated = |key: &str, mode: &str| {
        let metadata = json!({"name": "legacy", "namespace": "ns", "uid": "service-uid", "annotations": {key: mode}});
        let spec = json!({"selector": {"app": "legacy"}, "ipFamilies": ["IPv4"], "trafficDistribution": "PreferClose",
            "ports": [{"name": "one", "port": 80, "targetPort": "http"}]});
        let object = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        <Service as crate::cluster::Projected>::project(object, &mut crate::cluster::Problems::default())
    };
    let (mode, deprecated) = ("service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints");
    for (service, kept) in [
        (annotated(mode, "Auto"), true),
        (annotated(mode, "auto"), true),
        (annotated(deprecated, "Auto"), true),
        (annotated(mode, "Disabled"), false),
        (annotated("any", "Auto"), false),
        (service_with(&json!({})), false),
    ] {
        let mut world = World::new(service, three());
        world.settle();
        let (name, own) = (world.only().name().to_owned(), hints(&world));
        world.edit_slice(&name, |slice| slice.endpoints[0].hints = Some(for_zone("theirs")));
        assert_eq!(world.settle(), writes(0, usize::from(!kept), 0));
        assert_eq!(hints(&world)[0], if kept { for_zone("theirs") } else { own[0].clone() });
        world.workloads[1] = in_zone("vm-b", "192.0.2.2", false, &json!("zone-b"));
        assert_eq!(world.settle(), writes(0, 1, 0));
        assert_eq!(hints(&world)[0] == for_zone("theirs"), kept, "an update of another endpoint");
    }
}

#[test]
fn an_endpoint_that_is_published_although_it_is_not_ready_is_ready_and_not_serving() {
    let peers = service_with(&json!({"publishNotReadyAddresses": true, "trafficDistribution": "PreferSameZone"}));
    let mut world = World::new(peers, three());
    world.settle();
    let conditions = |world: &World| -> Vec<_> {
        let all = world.only().endpoints.iter().map(|endpoint| endpoint.conditions);
        all.map(|it| (it.ready, it.serving, it.terminating)).collect()
    };
    let (up, down) = ((Some(true), Some(true), Some(false)), (Some(true), Some(false), Some(false)));
    assert_eq!(conditions(&world), [up, up, down]);
    assert_eq!(hints(&world)[2], for_zone("zone-c"), "hints count for all endpoints that receive traffic");
    world.service = service_with(&json!({"publishNotReadyAddresses": false}));
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(conditions(&world)[2], (Some(false), Some(false), Some(false)));
}

#[test]
fn events_say_that_a_workload_receives_traffic_although_it_is_not_ready() {
    let (plain, peers) = (service_with(&json!({})), service_with(&json!({"publishNotReadyAddresses": true})));
    let mut world = World::new(peers.clone(), three());
    let mut notes = |service: &Service, ready: bool| -> Vec<(&'static str, String)> {
        world.service = service.clone();
        world.workloads = vec![in_zone("vm", "192.0.2.1", ready, &json!(null))];
        let before = world.slices.clone();
        world.settle();
        let transitions = transitions::transitions(&world.service, &before, &world.slices);
        let notices = transitions.iter().map(|it| it.notice(&world.service));
        notices.map(|notice| (notice.reason.as_str(), notice.note)).collect()
    };
    let published = "Published as an endpoint of Service legacy: 192.0.2.1, not ready, but it receives traffic because of \
                     publishNotReadyAddresses";
    assert_eq!(notes(&peers, false), [("Published", published.to_owned())]);
    let ready = [("BecameReady", "Ready: Service legacy sends it traffic at 192.0.2.1".to_owned())];
    assert_eq!(notes(&peers, true), ready);
    let unready = "Not ready: Service legacy sends it traffic at 192.0.2.1 because of publishNotReadyAddresses";
    assert_eq!(notes(&peers, false), [("BecameUnready", unready.to_owned())]);
    let stopped = "Not ready: Service legacy no longer sends it traffic at 192.0.2.1";
    assert_eq!(notes(&plain, false), [("BecameUnready", stopped.to_owned())]);
    assert_eq!(notes(&plain, true), ready);
    assert_eq!(notes(&peers, true), [], "nothing changes for clients");
    let portless = service_with(&json!({"ports": [{"name": "one", "port": 80, "targetPort": "metrics"}]}));
    let without = "Without traffic: the workload has none of the ports of Service legacy: 192.0.2.1";
    assert_eq!(notes(&portless, true), [("BecameUnready", without.to_owned())]);
    assert_eq!(notes(&portless, false), [], "nothing changes for clients");
}
