//! The content of slices, the findings and the transitions.

use super::*;
use crate::external_workload::transitions::{PublishedReadiness, TransitionKind};

#[test]
fn the_reference_object_of_the_specification() {
    let mut service = legacy();
    service.labels = [("team".to_owned(), "x".to_owned())].into();
    let labels = json!({"app": "legacy", "topology.kubernetes.io/zone": "a"});
    let vm1 = testing::external_workload(
        "vm1",
        true,
        &labels,
        &json!({
        "workloadIPs": [{"ip": "192.0.2.4"}, {"ip": "2001:db8::4"}], "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}),
    );
    let world = World::new(service, [Arc::new(vm1)]);
    let plan = world.plan();
    assert_eq!(plan.creates.len(), 1);
    let slice = serde_json::to_value(&plan.creates[0]).unwrap();
    assert_eq!(slice["addressType"], "IPv4");
    assert_eq!(
        slice["metadata"]["labels"],
        json!({"team": "x", "kubernetes.io/service-name": "legacy",
        "endpointslice.kubernetes.io/managed-by": "linkerd-external-workloads-controller"})
    );
    assert_eq!(
        slice["metadata"]["ownerReferences"],
        json!([{"apiVersion": "v1", "kind": "Service", "name": "legacy",
        "uid": "service-uid", "controller": true, "blockOwnerDeletion": true}])
    );
    assert_eq!(slice["metadata"]["annotations"], Value::Null);
    assert_eq!(
        slice["endpoints"],
        json!([{"addresses": ["192.0.2.4"],
        "conditions": {"ready": true, "serving": true, "terminating": false}, "zone": "a",
        "targetRef": {"kind": "ExternalWorkload", "namespace": "ns", "name": "vm1", "uid": "uid-vm1"}}])
    );
    assert_eq!(slice["ports"], json!([{"name": "one", "port": 80, "protocol": "TCP"}]));
    assert!(slice["metadata"]["name"].as_str().unwrap().starts_with("linkerd-external-legacy-"));
}

#[test]
fn nothing_is_written_when_nothing_changed_d1() {
    assert_eq!(World::new(legacy(), many(0..3)).settle(), writes(1, 0, 0));
}

#[test]
fn an_unnamed_port_settles_d1b() {
    let mut service = legacy();
    service.all_ports = testing::service(&json!({"ports": [{"port": 80}]})).all_ports;
    assert_eq!(World::new(service, many(0..3)).settle(), writes(1, 0, 0));
}

#[test]
fn a_service_that_is_being_deleted_gets_updates_and_deletes_but_no_new_slices_d9() {
    let mut world = World::new(legacy(), many(0..201));
    world.hold("a", &many(0..100));
    world.hold("b", &many(300..301));
    world.service.deleting = true;
    let plan = world.plan();
    assert_eq!((plan.creates.len(), plan.updates.len(), plan.retires.len()), (0, 1, 0));
    // A workload without a slice has no Published transition.
    assert_eq!(world.transitions().len(), 100 + 1);
    let mut emptied = World::new(world.service.clone(), []);
    emptied.hold("a", &many(0..3));
    assert_eq!(emptied.settle(), writes(0, 0, 1));
}

#[test]
fn a_headless_service_without_ports_settles_d10() {
    let service =
        testing::service(&json!({"selector": {"app": "legacy"}, "clusterIP": "None", "ipFamilies": ["IPv4"]}));
    let mut world = World::new(service, many(0..1));
    assert_eq!(world.settle(), writes(1, 0, 0));
    let slice = world.only();
    assert_eq!(slice.ports, []);
    assert_eq!(slice.label("service.kubernetes.io/headless"), Some(""));
    assert_eq!(slice.endpoints[0].hostname.as_deref(), Some("vm-0000"));
}

#[test]
fn a_workload_that_loses_a_family_is_removed_from_that_familys_slice_only_d12() {
    let mut world = World::new(
        dual(),
        [two_families("vm1", &["192.0.2.1", "2001:db8::1"]), two_families("vm2", &["192.0.2.2", "2001:db8::2"])],
    );
    assert_eq!(world.settle(), writes(2, 0, 0));
    world.workloads[1] = two_families("vm2", &["192.0.2.2"]);
    let plan = world.plan();
    assert_eq!((plan.creates.len(), plan.updates.len(), plan.retires.len()), (0, 1, 0));
    assert_eq!(world.transitions(), [], "it is still published");
    assert_eq!(world.sorted_lengths(), [2, 1]);
}

#[test]
fn a_workload_of_two_families_becomes_ready_when_it_is_ready_in_both_slices() {
    let mut world = World::new(dual(), [two_families("vm1", &["192.0.2.1", "2001:db8::1"])]);
    assert_eq!(world.transitions(), [("vm1".to_owned(), TransitionKind::Published(PublishedReadiness::Ready))]);
    let both = world.slices.clone();
    for at in [0, 1] {
        let mut half = both.clone();
        let mut flipped = EndpointSlice::clone(&half[at]);
        flipped.endpoints[0].conditions.ready = Some(false);
        half[at] = Arc::new(flipped);
        let one = &both[at..=at];
        let change = |before: &[_], after: &[_]| {
            transitions::transitions(&world.service, before, after).into_iter().map(|t| t.kind).next()
        };
        // One family was written and the other refused: the transition occurs now, and not again when the other is
        // written.
        assert_eq!(change(&both, &half), Some(TransitionKind::Became(PublishedReadiness::Unready)));
        assert_eq!(change(&half, &both), Some(TransitionKind::Became(PublishedReadiness::Ready)));
        assert_eq!(change(&both, one), None, "it is still published");
        assert_eq!(change(one, &both), None);
    }
}

#[test]
fn a_workload_without_the_port_is_in_a_slice_without_ports_and_reported_d15() {
    let mut world =
        World::new(legacy(), [numbered(0), workload("vm-no-port", &json!({"workloadIPs": [{"ip": "192.0.2.200"}]}))]);
    let plan = world.plan();
    assert_eq!(plan.findings.len(), 1);
    let notice = plan.findings[0].notice(&world.service);
    assert_eq!(notice.reason.as_str(), "UnmatchedPort");
    assert!(notice.note.contains("has no \"http\"/TCP"), "{}", notice.note);
    assert_eq!(world.apply(plan), writes(2, 0, 0));
    assert!(world.slices.iter().any(|slice| slice.ports.is_empty() && slice.endpoints.len() == 1));
}

#[test]
fn edited_endpoints_are_restored_d17() {
    let mut world = World::new(legacy(), many(0..2));
    world.settle();
    for (expected, spoil) in [
        // An empty slice is deleted and a new one is created; every other edit is reverted in place.
        (writes(1, 0, 1), (|slice| slice.endpoints.clear()) as fn(&mut EndpointSlice)),
        (writes(0, 1, 0), |slice| _ = slice.endpoints.pop()),
        (writes(0, 1, 0), |slice| slice.endpoints[0].addresses = vec!["203.0.113.1".to_owned()]),
        (writes(0, 1, 0), |slice| slice.endpoints[0].conditions.ready = Some(false)),
        (writes(0, 1, 0), |slice| slice.endpoints[0].zone = Some("elsewhere".to_owned())),
        (writes(0, 1, 0), |slice| slice.endpoints[0].node_name = Some("node".to_owned())),
        (writes(0, 1, 0), |slice| slice.endpoints[0].target_ref = None),
        (writes(0, 1, 0), |slice| slice.ports.clear()),
        (writes(0, 1, 0), |slice| {
            _ = slice.metadata.labels.as_mut().unwrap().insert("theirs".to_owned(), String::new());
        }),
    ] {
        let name = world.only().name().to_owned();
        world.edit_slice(&name, spoil);
        assert_eq!(world.settle(), expected);
        assert_eq!(world.only().endpoints.len(), 2);
    }
}

#[test]
fn a_deleted_slice_is_recreated_with_the_same_name_d18() {
    let mut world = World::new(legacy(), many(0..2));
    world.settle();
    let name = world.only().name().to_owned();
    world.slices.clear();
    assert_eq!(world.settle(), writes(1, 0, 0));
    assert_eq!(world.only().name(), name);
}

#[test]
fn a_changed_zone_is_one_update_d19() {
    let mut world = World::new(legacy(), many(0..2));
    world.settle();
    world.workloads[0] = edit(&world.workloads[0], |workload| {
        workload.labels = [("app", "legacy"), ("topology.kubernetes.io/zone", "")].into_iter().collect();
    });
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(world.only().endpoints[0].zone.as_deref(), Some(""), "an empty zone is copied");
}

#[test]
fn labels_are_added_and_removed_with_those_of_the_service_d20() {
    let mut world = World::new(legacy(), many(0..250));
    world.settle();
    world.service.labels = [("foo".to_owned(), "bar".to_owned())].into();
    assert_eq!(world.settle(), writes(0, 3, 0));
    world.service.labels.clear();
    assert_eq!(world.settle(), writes(0, 3, 0));
    assert!(world.slices.iter().all(|slice| slice.label("foo").is_none()));
}

#[test]
fn reserved_labels_of_the_service_are_not_copied() {
    let mut world = World::new(legacy(), many(0..1));
    world.settle();
    for key in [SERVICE_NAME_LABEL, MANAGED_BY_LABEL, HEADLESS_LABEL] {
        world.service.labels.insert(key.to_owned(), "theirs".to_owned());
    }
    assert_eq!(world.settle(), writes(0, 0, 0));
}

#[test]
fn only_the_invalid_address_is_skipped_and_reported_d22() {
    for bad in ["127.0.0.1", "bogus", "", "::1", "fe80::1"] {
        let world = World::new(dual(), [numbered(0), two_families("vm-bad", &[bad]), numbered(1)]);
        let plan = world.plan();
        assert_eq!(plan.creates.len(), 1);
        assert_eq!(plan.creates[0].endpoints.len(), 2);
        let reasons: Vec<_> = plan.findings.iter().map(|f| f.notice(&world.service).reason.as_str()).collect();
        assert_eq!(reasons, ["InvalidWorkloadIP"], "{bad}");
    }
}

#[test]
fn a_valid_address_beside_an_invalid_one_is_published() {
    let mut world = World::new(dual(), [two_families("vm1", &["bogus", "2001:db8::1"])]);
    world.settle();
    assert_eq!(world.only().address_type, "IPv6");
}

#[test]
fn a_workload_whose_name_is_not_a_hostname_is_published_without_one_d23() {
    let mut service = legacy();
    service.headless = true;
    for name in ["vm.example".to_owned(), "a".repeat(64)] {
        let mut world = World::new(service.clone(), [numbered(0), two_families(&name, &["192.0.2.200"])]);
        assert_eq!(world.plan().findings.len(), 1);
        world.settle();
        let hostnames: Vec<_> = world.only().endpoints.iter().map(|endpoint| endpoint.hostname.as_deref()).collect();
        assert_eq!(hostnames.iter().filter(|name| name.is_none()).count(), 1);
        assert!(hostnames.contains(&Some("vm-0000")));
    }
}

#[test]
fn two_addresses_of_one_family_are_one_endpoint_with_canonical_sorted_addresses_d32() {
    let mut world = World::new(dual(), [two_families("vm1", &["fd08::5678:0000:0000:9abc:def0", "2001:db8::1"])]);
    world.settle();
    assert_eq!(world.only().endpoints[0].addresses, ["2001:db8::1", "fd08::5678:0:0:9abc:def0"]);
}

#[test]
fn two_workloads_with_the_same_address_are_two_endpoints() {
    let mut world = World::new(legacy(), [two_families("vm1", &["192.0.2.1"]), two_families("vm2", &["192.0.2.1"])]);
    world.settle();
    assert_eq!(world.only().endpoints.len(), 2);
}

#[test]
fn a_workload_without_addresses_is_not_an_endpoint_and_has_no_finding() {
    let world = World::new(legacy(), [workload("vm1", &json!({}))]);
    let plan = world.plan();
    assert!(plan.is_empty() && plan.findings.is_empty());
}

#[test]
fn the_slices_of_a_service_that_no_longer_selects_are_deleted_d35() {
    // An ExternalName keeps its selector, and the workloads that it selects.
    let external: fn(&mut World) = |world| world.service.external_name = true;
    let without_selector: fn(&mut World) = |world| {
        world.service.selector = None;
        world.workloads.clear();
    };
    for change in [external, without_selector] {
        let mut world = World::new(legacy(), many(0..2));
        world.settle();
        change(&mut world);
        assert_eq!(world.plan().retires.len(), 1);
        assert_eq!(world.transitions().len(), 2);
        assert!(world.plan().is_empty() && world.slices.is_empty());
    }
}

#[test]
fn slices_in_kube_system_are_not_managed_d31() {
    let mut world = World::new(legacy(), many(0..2));
    world.hold("a", &many(0..1));
    world.service.key.namespace = "kube-system".into();
    assert!(world.plan().is_empty());
}

#[test]
fn a_readiness_change_is_one_update_and_the_endpoint_stays_d36() {
    let mut world = World::new(legacy(), many(0..2));
    world.settle();
    world.workloads[1] = edit(&world.workloads[1], |workload| workload.ready = false);
    assert_eq!(world.plan().updates.len(), 1);
    assert_eq!(world.transitions(), [("vm-0001".to_owned(), TransitionKind::Became(PublishedReadiness::Unready))]);
    let conditions = world.only().endpoints[1].conditions;
    assert_eq!((conditions.ready, conditions.serving, conditions.terminating), (Some(false), Some(false), Some(false)));
}

#[test]
fn annotations_and_finalizers_survive_an_update() {
    let mut world = World::new(legacy(), many(0..1));
    world.settle();
    let name = world.only().name().to_owned();
    world.edit_slice(&name, |slice| {
        slice.metadata.annotations = Some([("note".to_owned(), "keep".to_owned())].into());
        slice.metadata.finalizers = Some(vec!["example.com/keep".to_owned()]);
    });
    world.workloads.extend(many(1..2));
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert!(world.only().metadata.annotations.is_some() && world.only().metadata.finalizers.is_some());
}
