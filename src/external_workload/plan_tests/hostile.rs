//! What large and malformed objects of one namespace cost in bytes, never in time.

use super::*;

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
