//! The status of Pods as kubelets report it: phases, and addresses from a small range.

use serde_json::{Map, Value, json};

use super::{Draft, Mutation, ObjectKind, World, mutation, owner, pod, slice};

/// The fields of a Pod's status that a world sets.
pub(super) const FIELDS: [&str; 5] = ["phase", "podIP", "podIPs", "hostIP", "hostIPs"];

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("a pod changes its phase", 9, change_phase),
    mutation("a pod changes its addresses", 6, readdress),
    mutation("a pod takes over the addresses of another", 4, take_over),
];

pub(super) fn fresh(world: &mut World, name: &str, node: Option<&str>) -> Value {
    let mut status = addresses(world, name, node);
    status.extend(phase(world).map(|phase| ("phase".to_owned(), json!(phase))));
    Value::Object(status)
}

fn phase(world: &mut World) -> Option<&'static str> {
    match world.dice.below(20) {
        0..14 => Some("Running"),
        14 | 15 => Some("Pending"),
        16 => Some("Succeeded"),
        17 => Some("Failed"),
        18 => Some("Unknown"),
        // An API server defaults the phase to Pending.
        _ if world.valid => Some("Pending"),
        _ => None,
    }
}

/// The Pod's usual address, as in its endpoints, or another Pod's; of one family or both; and the addresses of its
/// node.
fn addresses(world: &mut World, name: &str, node: Option<&str>) -> Map<String, Value> {
    let usual = (0..pod::COUNT).find(|number| pod::name(*number) == name).unwrap_or_default();
    let number = if world.dice.chance(92) { usual } else { world.dice.below(pod::COUNT) };
    let (first, second) = (slice::address("IPv4", number), slice::address("IPv6", number));
    let own = match world.dice.below(20) {
        0 => Vec::new(),
        1 | 2 => vec![second],
        3..8 => vec![first, second],
        _ => vec![first],
    };
    let host = node.and_then(|node| owner::NODES.iter().position(|known| *known == node));
    let hosts = host.map(|number| vec![format!("172.18.0.{}", number + 1), format!("2001:db8:1::{:x}", number + 1)]);
    let mut status = Map::new();
    for (field, mut addresses) in [("podIP", own), ("hostIP", hosts.unwrap_or_default())] {
        if world.dice.chance(30) {
            addresses.truncate(1);
        }
        let Some(single) = addresses.first().cloned() else { continue };
        // Without the list, as an old kubelet reports it; or with an IPv4-mapped address, which is invalid.
        let (listed, odd) = (world.valid || world.dice.chance(85), !world.valid && world.dice.chance(5));
        if listed {
            let listed: Vec<Value> = addresses.iter().map(|address| json!({ "ip": address })).collect();
            status.insert(format!("{field}s"), json!(listed));
        }
        let single = if odd { format!("::ffff:{}", slice::address("IPv4", number)) } else { single };
        status.insert(field.to_owned(), json!(single));
    }
    status
}

/// The change that replaces these fields of the Pod's status.
fn with_status(mut pod: Value, replaced: &[&str], by: Map<String, Value>) -> Vec<Draft> {
    if let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) {
        status.retain(|field, _| !replaced.contains(&field.as_str()));
        status.extend(by);
    }
    vec![Draft::Put(pod)]
}

fn change_phase(world: &mut World) -> Vec<Draft> {
    let phase = phase(world);
    let Some(pod) = world.any(ObjectKind::Pod) else { return Vec::new() };
    let phase = phase.map(|phase| ("phase".to_owned(), json!(phase)));
    with_status(pod, &["phase"], phase.into_iter().collect())
}

fn readdress(world: &mut World) -> Vec<Draft> {
    let Some(pod) = world.any(ObjectKind::Pod) else { return Vec::new() };
    let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let (name, node) = (text("/metadata/name").unwrap_or_default(), text("/spec/nodeName"));
    let addresses = addresses(world, &name, node.as_deref());
    with_status(pod, &["podIP", "podIPs", "hostIP", "hostIPs"], addresses)
}

/// One Pod ends, and another gets its address: after that, or shortly before.
fn take_over(world: &mut World) -> Vec<Draft> {
    let (Some(from), Some(to)) = (world.any(ObjectKind::Pod), world.any(ObjectKind::Pod)) else { return Vec::new() };
    if from.pointer("/metadata/name") == to.pointer("/metadata/name") {
        return Vec::new();
    }
    let own = from.get("status").and_then(Value::as_object).cloned().unwrap_or_default();
    let own = own.into_iter().filter(|(field, _)| matches!(field.as_str(), "podIP" | "podIPs")).collect();
    let end = world.dice.one_of(["Succeeded", "Failed"]);
    let ended = [("phase".to_owned(), json!(end))].into_iter().collect();
    let mut drafts = with_status(from, &["phase"], ended);
    drafts.extend(with_status(to, &["podIP", "podIPs"], own));
    if world.dice.chance(30) {
        drafts.reverse();
    }
    drafts
}
