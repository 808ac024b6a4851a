//! The world keeps its guarantees, and a long random walk produces all cases of the contract.

mod profile;
mod validity;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use linkerd2_proxy_api::destination::protocol_hint::Protocol;

use super::*;
use crate::oracle::{Answer, Settings, answer};

fn settings(ipv6: bool) -> Settings {
    Settings {
        cluster_domain: "cluster.local".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        controller_namespace: "linkerd".to_owned(),
        default_opaque_ports: "25".to_owned(),
        transport_header: true,
        h2_upgrade: true,
        ipv6,
        zone_weights: false,
        http2: None,
    }
}

#[test]
fn a_seed_reproduces_a_world_and_another_seed_does_not() {
    let walk = |seed| {
        let mut world = World::new(seed).unwrap();
        (0..200).map(|_| world.mutate().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(walk(1), walk(1));
    assert_ne!(walk(1), walk(2));
}

#[test]
fn changes_add_up_to_the_objects() {
    let mut world = World::new(7).unwrap();
    let mut objects: BTreeMap<Key, Value> = world.json().clone();
    let mut versions = BTreeSet::new();
    for _ in 0..2000 {
        match world.mutate().unwrap() {
            Change::Applied { key, object } => {
                assert!(versions.insert(object["metadata"]["resourceVersion"].as_str().unwrap().to_owned()));
                let successor = objects.insert(key, object.clone());
                let uid = |object: &Value| object["metadata"]["uid"].clone();
                assert!(successor.is_none_or(|before| uid(&before) == uid(&object)), "{object}");
            }
            Change::Deleted { key, object } => assert_eq!(objects.remove(&key), Some(object)),
        }
        assert_eq!(&objects, world.json());
    }
    assert_eq!(world.objects().pods.len(), objects.keys().filter(|key| key.kind == ObjectKind::Pod).count());
}

#[test]
fn only_a_world_that_need_not_be_valid_has_invalid_addresses() {
    let odd = |mut world: World| {
        let mut odd = 0;
        for _ in 0..1500 {
            world.mutate().unwrap();
            for slice in world.objects().slices.values().filter(|slice| slice.address_type != "FQDN") {
                let addresses = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
                odd += addresses.filter(|address| address.parse::<IpAddr>().is_err()).count();
            }
        }
        odd
    };
    assert_eq!(odd(World::valid(3).unwrap()), 0);
    assert!(odd(World::new(3).unwrap()) > 0);
}

#[test]
fn a_long_walk_covers_every_mutation_and_every_kind_of_answer() {
    let mut applied = BTreeSet::new();
    let mut covered = BTreeSet::new();
    let (mut filled, mut requested) = (0, 0);
    for seed in 0..4 {
        let mut world = World::new(seed).unwrap();
        for step in 0..2000 {
            applied.insert(world.mutate_by_name().unwrap().0);
            if step % 20 != 0 {
                continue;
            }
            for request in world.requests() {
                let answers = [false, true].map(|ipv6| answer(world.objects(), &settings(ipv6), &request));
                if answers[0] != answers[1] {
                    covered.insert("the family affects the answer".to_owned());
                }
                if answers[0] != answer(world.objects(), &settings(false), &Request { token: String::new(), ..request })
                {
                    covered.insert("the client's node affects the answer".to_owned());
                }
                let [answer, _] = answers;
                requested += 1;
                filled += usize::from(matches!(&answer, Answer::Endpoints(endpoints) if !endpoints.is_empty()));
                covered.extend(traits(answer));
            }
        }
    }
    for mutation in mutations() {
        assert!(applied.contains(mutation.name), "{}", mutation.name);
    }
    for expected in [
        "the family affects the answer",
        "the client's node affects the answer",
        "refused InvalidArgument",
        "refused NotFound",
        "refused Unknown",
        "refused FailedPrecondition",
        "label deployment",
        "label replicaset",
        "label k8s_job",
        "label cronjob",
        "label statefulset",
        "label external_workload",
        "label externalgroup",
        "label job",
        "label target_cluster",
        "label target_service",
        "label pod_template_hash",
        "zone_locality local",
        "zone_locality remote",
        "zone_locality unknown",
        "h2 with transport",
        "h2 without transport",
        "opaque with transport",
        "opaque without transport",
        "no hint",
        "hint without identity",
        "IPv6",
        "authority_override",
        "an open stream without endpoints",
    ] {
        assert!(covered.contains(expected), "{expected} is not among {covered:?}");
    }
    assert!(filled * 4 > requested, "only {filled} of {requested} answers have endpoints");
}

/// The properties of an answer, in words.
fn traits(answer: Answer) -> Vec<String> {
    let endpoints = match answer {
        Answer::Refused(code, _) => return vec![format!("refused {code:?}")],
        Answer::Endpoints(endpoints) => endpoints,
    };
    let mut traits = Vec::new();
    if endpoints.is_empty() {
        traits.push("an open stream without endpoints".to_owned());
    }
    for (address, endpoint) in endpoints {
        traits.extend(endpoint.metric_labels.keys().map(|key| format!("label {key}")));
        traits.push(format!("zone_locality {}", endpoint.metric_labels["zone_locality"]));
        traits.push(if address.is_ipv6() { "IPv6" } else { "IPv4" }.to_owned());
        if endpoint.authority_override.is_some() {
            traits.push("authority_override".to_owned());
        }
        let Some(hint) = endpoint.protocol_hint else {
            traits.push("no hint".to_owned());
            continue;
        };
        if endpoint.tls_identity.is_none() {
            traits.push("hint without identity".to_owned());
        }
        let protocol = match hint.protocol {
            Some(Protocol::H2(_)) => "h2",
            Some(Protocol::Opaque(_)) => "opaque",
            None => "no protocol",
        };
        let with = if hint.opaque_transport.is_some() { "with" } else { "without" };
        traits.push(format!("{protocol} {with} transport"));
    }
    traits
}
