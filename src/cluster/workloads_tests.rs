//! The workload of a Pod, and the Pods of a workload.

use k8s_openapi::api::{apps::v1::ReplicaSet, batch::v1::Job};
use proptest::prelude::*;
use serde_json::{Value, from_value, json};

use super::*;
use crate::cluster::{Problems, Projected, Watched, kinds::owner::IntermediateOwner};

fn owned_by(name: &str, owners: &[(&str, &str)]) -> Value {
    let reference = |(kind, name): &(&str, &str)| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "u"});
    let owners: Vec<Value> = owners.iter().map(reference).collect();
    json!({"metadata": {"name": name, "namespace": "ns", "ownerReferences": owners}})
}

fn pod(state: &mut State, name: &str, owners: &[(&str, &str)]) {
    Pod::project(from_value(owned_by(name, owners)).unwrap(), &mut Problems::default()).apply(state);
}

fn between<T: Watched>(state: &mut State, name: &str, owners: &[(&str, &str)]) {
    T::project(from_value(owned_by(name, owners)).unwrap(), &mut Problems::default()).apply(state);
}

fn workload(kind: &str, name: &str) -> WorkloadKey {
    WorkloadKey::new("ns", kind, name)
}

fn pods(state: &State, kind: &str, name: &str) -> Vec<String> {
    let mut names: Vec<_> = state.pods_of(&workload(kind, name)).map(|pod| pod.key.name.to_string()).collect();
    names.sort();
    names
}

#[test]
fn the_workload_is_found_through_replica_sets_and_jobs_and_is_the_pod_itself_without_an_owner() {
    let mut state = State::default();
    between::<IntermediateOwner<ReplicaSet>>(&mut state, "web-5f", &[("Deployment", "web")]);
    between::<IntermediateOwner<ReplicaSet>>(&mut state, "canary-5f", &[("Rollout", "canary")]);
    between::<IntermediateOwner<ReplicaSet>>(&mut state, "alone", &[]);
    between::<IntermediateOwner<Job>>(&mut state, "tick-1", &[("CronJob", "tick")]);
    for (owners, expected) in [
        (&[("ReplicaSet", "web-5f")][..], "ns/Deployment/web"),
        (&[("ReplicaSet", "canary-5f")], "ns/Rollout/canary"),
        (&[("ReplicaSet", "alone")], "ns/ReplicaSet/alone"),
        (&[("ReplicaSet", "unknown")], "ns/ReplicaSet/unknown"),
        (&[("Job", "tick-1")], "ns/CronJob/tick"),
        (&[("Job", "once")], "ns/Job/once"),
        (&[("StatefulSet", "db")], "ns/StatefulSet/db"),
        (&[("Node", "node-1")], "ns/Node/node-1"),
        (&[("ReplicaSet", "web-5f"), ("Other", "other")], "ns/Pod/a"),
        (&[], "ns/Pod/a"),
    ] {
        pod(&mut state, "a", owners);
        let found = state.workload_of(state.pods.find("ns", "a").unwrap());
        assert_eq!(found.to_string(), expected, "{owners:?}");
        assert_eq!(pods(&state, &found.kind, &found.name), ["a"], "{owners:?}");
    }
}

#[test]
fn the_pods_of_a_replica_set_belong_to_its_owner_once_the_owner_is_known() {
    let mut state = State::default();
    pod(&mut state, "web-5f-1", &[("ReplicaSet", "web-5f")]);
    pod(&mut state, "web-79-1", &[("ReplicaSet", "web-79")]);
    pod(&mut state, "direct", &[("Deployment", "web")]);
    assert_eq!(pods(&state, "ReplicaSet", "web-5f"), ["web-5f-1"]);
    assert_eq!(pods(&state, "Deployment", "web"), ["direct"]);
    between::<IntermediateOwner<ReplicaSet>>(&mut state, "web-5f", &[("Deployment", "web")]);
    between::<IntermediateOwner<ReplicaSet>>(&mut state, "web-79", &[("Deployment", "web")]);
    assert_eq!(pods(&state, "ReplicaSet", "web-5f"), [""; 0]);
    assert_eq!(pods(&state, "Deployment", "web"), ["direct", "web-5f-1", "web-79-1"]);
    IntermediateOwner::<ReplicaSet>::remove(&NamespacedName::new("ns", "web-5f"), &mut state);
    assert_eq!(pods(&state, "ReplicaSet", "web-5f"), ["web-5f-1"]);
    assert_eq!(pods(&state, "Deployment", "web"), ["direct", "web-79-1"]);
    assert_eq!(state.pods_of(&WorkloadKey::new("other", "Deployment", "web")).count(), 0);
}

const KINDS: [&str; 4] = ["ReplicaSet", "Job", "Deployment", "Pod"];

proptest! {
    /// For any ownership, even of an object by itself, each Pod is among the Pods of its workload and of no other.
    #[test]
    fn a_pod_is_among_the_pods_of_exactly_its_workload(
        events in prop::collection::vec((0..3usize, 0..4usize, 0..4usize, 0..4usize, any::<bool>()), 0..30),
    ) {
        let names = ["a", "b", "c", "d"];
        let mut state = State::default();
        for (what, name, kind, owner, has_owner) in events {
            let owner = [(KINDS[kind], names[owner])];
            let owners = if has_owner { &owner[..] } else { &[] };
            match what {
                0 => pod(&mut state, names[name], owners),
                1 => between::<IntermediateOwner<ReplicaSet>>(&mut state, names[name], owners),
                _ => between::<IntermediateOwner<Job>>(&mut state, names[name], owners),
            }
            let now: Vec<_> = KINDS.iter().flat_map(|kind| names.iter().map(move |name| (kind, name)))
                .map(|(kind, name)| (workload(kind, name), pods(&state, kind, name))).collect();
            for (workload, found) in &now {
                for name in names {
                    let own = state.pods.find("ns", name).is_some_and(|pod| state.workload_of(pod) == *workload);
                    prop_assert_eq!(found.iter().filter(|it| **it == name).count(), usize::from(own));
                }
            }
        }
    }
}
