//! The cost of large and malformed objects of one namespace: bytes, copies and comparisons, never time.

use super::*;
use crate::external_workload::ports::tests::COMPARISONS;

/// A Service with ports 1 to `count`, all of which target the port `http` of a workload.
fn wide(count: i32) -> Service {
    let ports: Vec<Value> =
        (1..=count).map(|port| json!({"name": format!("p{port}"), "port": port, "targetPort": "http"})).collect();
    testing::service(&json!({"selector": {"app": "legacy"}, "ipFamilies": ["IPv4", "IPv6"], "ports": ports}))
}

fn notes(service: Service, spec: &Value) -> Vec<String> {
    let world = World::new(service, [workload("vm", spec)]);
    world.plan().findings.iter().map(|finding| finding.notice(&world.service).note).collect()
}

#[test]
fn an_invalid_address_of_a_million_characters_is_reported_in_a_short_text() {
    let notes = notes(legacy(), &json!({"workloadIPs": [{"ip": "x".repeat(1_000_000)}]}));
    let shown = "x".repeat(64);
    assert_eq!(
        notes,
        [format!(
            "As an endpoint of Service legacy: workloadIPs contains \"{shown}\", which is not a valid endpoint \
             address: it is not an IP address; it is skipped"
        )]
    );
}

#[test]
fn a_thousand_invalid_addresses_of_a_workload_are_one_finding() {
    let ips: Vec<Value> = (0..1000).map(|number| json!({"ip": format!("bad-{number}")})).collect();
    let notes = notes(legacy(), &json!({ "workloadIPs": ips }));
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("\"bad-0\"") && notes[0].ends_with("; and 997 more"), "{}", notes[0]);
}

#[test]
fn a_workload_that_lacks_a_thousand_ports_is_reported_in_a_short_text() {
    let ports: Vec<Value> = (1..=1000).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    let notes = notes(
        testing::service(&json!({"selector": {"app": "legacy"}, "ports": ports})),
        &json!({"workloadIPs": [{"ip": "192.0.2.1"}]}),
    );
    assert_eq!(notes.len(), 1);
    assert!(
        notes[0].ends_with(
            "spec.ports has no 1/TCP, 2/TCP, 3/TCP, 4/TCP, 5/TCP, 6/TCP, 7/TCP, 8/TCP, and 992 more, which the \
             Service targets; missing ports are not published"
        ),
        "{}",
        notes[0]
    );
}

#[test]
fn workloads_that_need_the_same_ports_share_one_set_in_both_families() {
    let workloads: Vec<_> = (1..=200)
        .map(|number| {
            let ips = json!([{"ip": format!("192.0.2.{number}")}, {"ip": format!("2001:db8::{number}")}]);
            // Half of the workloads declare a second port, which the Service does not target.
            let more = (number % 2 == 0).then(|| json!({"name": format!("other-{number}"), "port": number}));
            let ports: Vec<Value> = more.into_iter().chain([json!({"name": "http", "port": 8080})]).collect();
            workload(&format!("vm-{number}"), &json!({"workloadIPs": ips, "ports": ports}))
        })
        .collect();
    let (families, _) = endpoint::desired(&wide(500), &workloads);
    let desired: Vec<_> = families.values().flat_map(BTreeMap::values).collect();
    assert_eq!(desired.len(), 400);
    assert!(desired.iter().all(|desired| desired.ports.len() == 500));
    let copies: HashSet<_> = desired.iter().map(|desired| std::ptr::from_ref(desired.ports.first().unwrap())).collect();
    assert_eq!(copies.len(), 1);
}

#[test]
fn the_comparisons_of_port_sets_grow_with_the_workloads_and_not_with_their_square() {
    // Each workload needs a set of ports of its own, and therefore a slice of its own.
    let own = |first: i32| {
        let own = move |number: usize| {
            edit(&numbered(number), |workload| workload.all_ports[0].number = first + i32::try_from(number).unwrap())
        };
        (0..400).map(own).collect::<Vec<_>>()
    };
    let comparisons = |world: &mut World| {
        COMPARISONS.set(0);
        let plan = world.plan();
        let comparisons = COMPARISONS.get();
        (world.apply(plan), comparisons)
    };
    let mut world = World::new(legacy(), own(1000));
    let (created, first) = comparisons(&mut world);
    assert_eq!(created, writes(400, 0, 0));
    world.workloads = own(2000);
    let (updated, second) = comparisons(&mut world);
    assert_eq!(updated, writes(0, 400, 0));
    // Half of 400 x 400 is 80000. A search in a tree of 400 entries takes about 15.
    assert!(first < 20_000 && second < 20_000, "{first} and {second}");
}
