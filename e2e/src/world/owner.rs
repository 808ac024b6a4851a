//! Nodes, and owners of Pods that have owners themselves.

use serde_json::{Value, json};

use super::{Draft, Mutation, ObjectKind, World, mutation, patched, with_metadata};

/// No kubelet runs these nodes, so that their Pods change only through the world.
pub(super) const NODES: [&str; 3] = ["world-a", "world-b", "world-c"];

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("a node moves to another zone", 3, move_node),
    mutation("a ReplicaSet gets another owner", 2, |world| own(world, ObjectKind::ReplicaSet)),
    mutation("a Job gets another owner", 2, |world| own(world, ObjectKind::Job)),
];

/// A random zone; sometimes `None`.
pub(super) fn zone(world: &mut World) -> Option<&'static str> {
    let zone = world.dice.one_of(["zone-a", "zone-b", "zone-c"]);
    (!world.dice.chance(8)).then_some(zone)
}

pub(super) fn node(world: &mut World, name: &str) -> Value {
    let labels = zone(world).map(|zone| json!({"topology.kubernetes.io/zone": zone}));
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels.unwrap_or_else(|| json!({}))}})
}

pub(super) fn replica_set(world: &mut World, namespace: &str, name: &str) -> Value {
    let owners = owners(world, ObjectKind::ReplicaSet);
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": owners},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"set": name}}, "template": {
            "metadata": {"labels": {"set": name}}, "spec": {"containers": [{"name": "app", "image": "app"}]}}}})
}

pub(super) fn job(world: &mut World, namespace: &str, name: &str) -> Value {
    let owners = owners(world, ObjectKind::Job);
    json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": owners},
        "spec": {"suspend": true, "template": {
            "spec": {"restartPolicy": "Never", "containers": [{"name": "app", "image": "app"}]}}}})
}

/// An owner reference, as in `metadata.ownerReferences`.
pub(super) fn reference(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": kind, "name": name, "uid": "5f0c2a4e-0000-4000-8000-000000000001"})
}

fn owners(world: &mut World, kind: ObjectKind) -> Value {
    let usual = if kind == ObjectKind::Job { "CronJob" } else { "Deployment" };
    let rare = world.dice.one_of(["Rollout", "StatefulSet", "Job", "daemonset"]);
    match world.dice.below(10) {
        0..6 => json!([reference(usual, "owner")]),
        6 | 7 => json!([reference(rare, "rare")]),
        8 => json!([reference(usual, "owner"), reference(rare, "second")]),
        _ => json!([]),
    }
}

fn own(world: &mut World, kind: ObjectKind) -> Vec<Draft> {
    let owners = owners(world, kind);
    with_metadata(world.any(kind), "ownerReferences", owners)
}

fn move_node(world: &mut World) -> Vec<Draft> {
    let node = world.any(ObjectKind::Node);
    match zone(world) {
        Some(zone) => patched(node, json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}})),
        None => with_metadata(node, "labels", json!({})),
    }
}
