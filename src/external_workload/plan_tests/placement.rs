//! The distribution of endpoints over slices, and which slices are created, filled, named and deleted.

use super::*;

#[test]
fn clean_slices_take_the_endpoints_that_remain_after_full_new_slices_d2() {
    let mut world = World::new(legacy(), many(0..250));
    world.hold("a", &many(0..62));
    world.hold("b", &many(62..123));
    assert_eq!(world.settle(), writes(1, 1, 0));
    assert_eq!(world.sorted_lengths(), [100, 89, 61]);
}

#[test]
fn remaining_endpoints_that_fit_no_clean_slice_get_a_new_slice_d3() {
    let mut world = World::new(legacy(), many(0..300));
    world.hold("a", &many(0..74));
    world.hold("b", &many(74..148));
    assert_eq!(world.settle(), writes(2, 0, 0));
    assert_eq!(world.sorted_lengths(), [100, 74, 74, 52]);
}

#[test]
fn slices_that_are_written_anyway_are_filled_first_d4() {
    let mut world = World::new(legacy(), many(0..115));
    world.hold("a", &many(0..80));
    world.hold("b", &many(80..100));
    for number in [0, 80] {
        world.workloads[number] = edit(&world.workloads[number], |workload| workload.ready = false);
    }
    assert_eq!(world.settle(), writes(0, 2, 0));
    assert_eq!(world.lengths(), [95, 20]);
}

#[test]
fn a_new_full_slice_is_created_and_an_existing_empty_slice_is_deleted_d5() {
    let mut world = World::new(legacy(), many(0..199));
    world.hold("a", &many(0..99));
    world.hold("b", &[]);
    assert_eq!(world.settle(), writes(1, 0, 1));
    assert_eq!(world.sorted_lengths(), [100, 99]);
}

#[test]
fn an_existing_empty_slice_is_deleted_even_if_its_labels_are_wrong() {
    let mut world = World::new(legacy(), many(0..10));
    world.hold("a", &[]);
    world.edit_slice("a", |slice| slice.metadata.labels.as_mut().unwrap().clear());
    assert_eq!(world.settle(), writes(1, 0, 1));
}

#[test]
fn the_fullest_clean_slice_that_has_room_is_filled_d6() {
    let mut world = World::new(legacy(), many(0..100));
    world.hold("a", &many(0..1));
    world.hold("b", &[]);
    assert_eq!(world.settle(), writes(0, 1, 1));
    assert_eq!(world.lengths(), [100]);
}

#[test]
fn new_endpoints_replace_removed_ones_in_the_same_slice_d7() {
    let mut world = World::new(legacy(), many(10..155));
    world.hold("a", &many(0..100));
    world.hold("b", &many(100..150));
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(world.lengths(), [95, 50]);
}

#[test]
fn a_slice_of_a_deleted_service_with_the_same_name_is_replaced_not_reused_d8() {
    let mut world = World::new(legacy(), many(0..2));
    world.hold("a", &many(0..2));
    world.service.uid = "another-uid".into();
    assert_eq!(world.settle(), writes(1, 0, 1));
    assert!(world.only().is_owned_by("another-uid"));
}

#[test]
fn the_slices_are_deleted_with_the_last_workload_and_no_placeholder_stays_d11() {
    let mut world = World::new(legacy(), many(0..150));
    world.settle();
    world.workloads.clear();
    assert_eq!(world.settle(), writes(0, 0, 2));
    assert!(world.slices.is_empty());
}

#[test]
fn a_changed_address_is_one_update_in_place_d13() {
    let mut world = World::new(legacy(), [two_families("vm1", &["192.0.2.1"])]);
    world.settle();
    let name = world.only().name().to_owned();
    world.workloads = vec![two_families("vm1", &["192.0.2.9"])];
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(world.only().name(), name);
}

#[test]
fn an_endpoint_in_two_slices_is_kept_once_d14() {
    let mut world = World::new(legacy(), many(0..3));
    world.hold("a", &many(0..2));
    world.hold("b", &many(1..3));
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(world.lengths(), [2, 1]);
}

#[test]
fn names_occupied_by_other_controllers_slices_are_not_used_d21() {
    let mut world = World::new(legacy(), many(0..1));
    world.settle();
    // The slice's managed-by label was edited: it is no longer ours, but its name is occupied.
    let taken: HashSet<String> = [world.only().name().to_owned()].into();
    world.slices.clear();
    let input = SlicePlanInput { service: &world.service, workloads: &world.workloads, slices: NONE, taken: &taken };
    let plan = plan(&input);
    assert_eq!(plan.creates.len(), 1);
    assert!(!taken.contains(plan.creates[0].name()));
}

#[test]
fn a_terminating_slice_is_ignored_but_its_name_is_not_reused() {
    let mut world = World::new(legacy(), many(0..1));
    world.settle();
    let name = world.only().name().to_owned();
    world.edit_slice(&name, |slice| {
        slice.metadata = serde_json::from_value(
            json!({"name": slice.name(), "namespace": "ns", "deletionTimestamp": "2026-01-01T00:00:00Z", "labels": slice.metadata.labels}),
        )
        .unwrap();
    });
    let plan = world.plan();
    assert_eq!((plan.creates.len(), plan.updates.len(), plan.retires.len()), (1, 0, 0));
    assert_ne!(plan.creates[0].name(), name);
}

#[test]
fn a_recreated_workload_keeps_its_place_d37() {
    let mut world = World::new(legacy(), many(0..2));
    world.settle();
    world.workloads[0] = edit(&world.workloads[0], |workload| workload.uid = "new-uid".into());
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(world.only().endpoints[0].target_ref.as_ref().unwrap().uid.as_deref(), Some("new-uid"));
}

#[test]
fn every_endpoint_stays_in_its_slice_when_the_port_of_the_service_changes_d39() {
    let mut world = World::new(legacy(), many(0..250));
    world.settle();
    let before = world.places();
    world.service.all_ports[0].name = "two".to_owned();
    assert_eq!(world.settle(), writes(0, 3, 0));
    assert_eq!(world.places(), before);
}

#[test]
fn only_the_workload_whose_port_changed_moves() {
    let mut world = World::new(legacy(), many(0..10));
    world.settle();
    let before = world.places();
    world.workloads[3] = edit(&world.workloads[3], |workload| workload.all_ports[0].number = 8080);
    assert_eq!(world.settle(), writes(1, 1, 0));
    let moved = world.places().into_iter().filter(|(workload, slice)| before[workload] != *slice).count();
    assert_eq!(moved, 1);
}

#[test]
fn named_ports_with_five_numbers_make_five_slices() {
    let workloads =
        (0..300).map(|i| edit(&numbered(i), |w| w.all_ports[0].number = 8080 + i32::try_from(i % 5).unwrap()));
    let mut world = World::new(legacy(), workloads);
    assert_eq!(world.settle(), writes(5, 0, 0));
    assert_eq!(world.lengths(), [60; 5]);
}

#[test]
fn a_slice_whose_workloads_were_all_removed_is_reused() {
    let mut world = World::new(legacy(), many(0..10));
    world.settle();
    let name = world.only().name().to_owned();
    world.workloads = (20..25).map(|i| edit(&numbered(i), |w| w.all_ports[0].number = 8080)).collect();
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(world.only().name(), name);
}

#[test]
fn the_slices_of_a_removed_family_are_deleted_and_an_added_family_gets_new_slices() {
    let mut world = World::new(dual(), [two_families("vm1", &["192.0.2.1", "2001:db8::1"])]);
    assert_eq!(world.settle(), writes(2, 0, 0));
    world.service.families = vec![Family::IPv4];
    assert_eq!(world.settle(), writes(0, 0, 1));
    world.service.families = vec![Family::IPv4, Family::IPv6];
    assert_eq!(world.settle(), writes(1, 0, 0));
}

#[test]
fn slices_with_unsupported_address_types_are_deleted() {
    let mut world = World::new(legacy(), many(0..1));
    world.hold("a", &many(0..1));
    world.edit_slice("a", |slice| slice.address_type = "FQDN".to_owned());
    assert_eq!(world.settle(), writes(1, 0, 1));
}

#[test]
fn a_slice_that_another_writer_overfilled_is_left_unchanged() {
    let mut world = World::new(legacy(), many(0..150));
    world.hold("a", &many(0..150));
    assert_eq!(world.settle(), writes(0, 0, 0));
}

#[test]
fn names_are_short_and_deterministic() {
    let mut service = legacy();
    service.key.name = "a-".repeat(31).into();
    let name = slice_name(&service, Family::IPv4, 0);
    assert!(name.len() <= 63 && !name.contains("--"), "{name}");
    assert_eq!(name, slice_name(&service, Family::IPv4, 0));
    assert_ne!(name, slice_name(&service, Family::IPv4, 1));
    assert_ne!(name, slice_name(&service, Family::IPv6, 0));
    service.uid = "another".into();
    assert_ne!(name, slice_name(&service, Family::IPv4, 0));
    // This name is stored in clusters, so it must never change.
    assert_eq!(slice_name(&legacy(), Family::IPv4, 0), "linkerd-external-legacy-3b89b8ab61829eac");
}
