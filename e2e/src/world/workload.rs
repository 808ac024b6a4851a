//! ExternalWorkloads.

use serde_json::{Value, json};

use super::{Draft, Mutation, ObjectKind, World, mutation, owner, pod, slice, with_metadata};

pub(super) const COUNT: usize = 4;

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("a workload gets another spec", 4, respecify),
    mutation("a workload is relabelled", 2, relabel),
    mutation("a workload is annotated", 3, annotate),
    mutation("a workload gets another owner", 2, own),
];

pub(super) fn fresh(world: &mut World, namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
        "metadata": {"name": name, "namespace": namespace, "labels": labels(world), "annotations": annotations(world),
            "ownerReferences": owners(world)},
        "spec": spec(world)})
}

fn spec(world: &mut World) -> Value {
    let host = world.dice.one_of(["vm", "machine"]);
    let mut ports = vec![json!({"name": "http", "port": world.dice.one_of([8080, 9090]), "protocol": "TCP"})];
    if world.dice.chance(30) {
        ports.push(json!({"name": "linkerd-proxy", "port": world.dice.one_of([4143, 1111]), "protocol": "TCP"}));
    }
    if world.dice.chance(30) {
        ports.push(json!({"port": 25, "protocol": "TCP"}));
    }
    if world.dice.chance(20) {
        let name = world.dice.one_of(["http", "linkerd-proxy", "dns"]);
        let protocol = world.dice.one_of(["UDP", "SCTP"]);
        ports.push(json!({"name": name, "port": world.dice.one_of([8080, 9090, 53]), "protocol": protocol}));
    }
    if !world.valid && world.dice.chance(10) {
        ports.push(world.dice.one_of([
            json!({"port": 0}),
            json!({"port": 65536}),
            json!({"name": "http", "port": 8080}),
        ]));
    }
    let identity = format!("spiffe://root.linkerd.cluster.local/{host}");
    json!({"meshTLS": {"identity": identity, "serverName": format!("{host}.example")}, "ports": ports,
        "workloadIPs": addresses(world)})
}

/// One or two addresses from a small range; sometimes that of a Pod.
fn addresses(world: &mut World) -> Value {
    let mut addresses = match world.dice.below(10) {
        0..6 => vec![format!("192.0.2.{}", 1 + world.dice.below(2 * COUNT))],
        6 | 7 => vec![slice::address("IPv4", world.dice.below(pod::COUNT + COUNT))],
        8 => vec![slice::address("IPv6", world.dice.below(pod::COUNT + COUNT))],
        _ => Vec::new(),
    };
    if world.dice.chance(20) {
        addresses.push(world.dice.one_of(["192.0.2.1", "2001:DB8:0::9", "::ffff:192.0.2.2"]).to_owned());
    }
    if !world.valid && world.dice.chance(10) {
        addresses.push(world.dice.one_of(["", "vm.example", "192.0.2.01", "192.0.2.1"]).to_owned());
    }
    addresses.into_iter().map(|address| json!({ "ip": address })).collect()
}

fn labels(world: &mut World) -> Value {
    json!({"app": world.dice.one_of(["web", "api", "db"])})
}

fn annotations(world: &mut World) -> Value {
    // The annotation for skipped ports has an effect only on Pods.
    let key = world.dice.one_of(["config.linkerd.io/opaque-ports", "config.linkerd.io/skip-inbound-ports"]);
    if world.dice.chance(40) { json!({key: pod::port_list(world)}) } else { json!({}) }
}

fn owners(world: &mut World) -> Value {
    match world.dice.below(4) {
        0 => json!([]),
        1 => json!([owner::reference("Job", "job-0")]),
        2 => json!([owner::reference("ExternalGroup", "one"), owner::reference("ExternalGroup", "two")]),
        _ => json!([owner::reference("ExternalGroup", "group")]),
    }
}

fn respecify(world: &mut World) -> Vec<Draft> {
    let spec = spec(world);
    let Some(mut workload) = world.any(ObjectKind::ExternalWorkload) else { return Vec::new() };
    if let Some(workload) = workload.as_object_mut() {
        workload.insert("spec".to_owned(), spec);
    }
    vec![Draft::Put(workload)]
}

fn relabel(world: &mut World) -> Vec<Draft> {
    let labels = labels(world);
    with_metadata(world.any(ObjectKind::ExternalWorkload), "labels", labels)
}

fn annotate(world: &mut World) -> Vec<Draft> {
    let annotations = annotations(world);
    with_metadata(world.any(ObjectKind::ExternalWorkload), "annotations", annotations)
}

fn own(world: &mut World) -> Vec<Draft> {
    let owners = owners(world);
    with_metadata(world.any(ObjectKind::ExternalWorkload), "ownerReferences", owners)
}
