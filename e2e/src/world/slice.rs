//! EndpointSlices: overlapping, incomplete, moved between Services, with references to missing objects.

use k8s_openapi::api::{
    core::v1::ObjectReference,
    discovery::v1::{Endpoint, EndpointHints, EndpointSlice, ForNode, ForZone},
};
use serde_json::{Map, Value, json};

use super::{
    Draft, ELSEWHERE, Key, Mutation, NAMESPACE, ObjectKind, World, mutation, owner, pod, service, with_metadata,
    workload,
};

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("an endpoint changes its readiness", 10, |world| on_endpoint(world, flip_readiness)),
    mutation("an endpoint changes its addresses", 6, |world| on_endpoint(world, readdress)),
    mutation("an endpoint changes its zone", 4, |world| on_endpoint(world, rezone)),
    mutation("an endpoint changes its hints", 4, |world| on_endpoint(world, rehint)),
    mutation("an endpoint changes its host name", 3, |world| on_endpoint(world, rename_host)),
    mutation("an endpoint changes its target", 4, |world| on_endpoint(world, retarget)),
    mutation("an endpoint is added to a slice", 9, add),
    mutation("an endpoint is removed from a slice", 5, remove),
    mutation("two endpoints swap their addresses", 4, swap),
    mutation("an endpoint moves to another slice", 6, |world| carry(world, true)),
    mutation("an endpoint is copied to another slice", 5, |world| carry(world, false)),
    mutation("all endpoints of a slice get or lose hints", 5, hint_all),
    mutation("a slice gets other ports", 6, renumber),
    mutation("a slice is relabelled", 5, relabel),
    mutation("a slice is annotated", 3, annotate),
];

const SERVICE_NAME: &str = "kubernetes.io/service-name";

pub(super) fn fresh(world: &mut World, namespace: &str, name: &str) -> Value {
    let family = match world.dice.below(20) {
        0..13 => "IPv4",
        13..19 => "IPv6",
        _ => "FQDN",
    };
    let (hinted, nodes) = (world.dice.chance(50), world.dice.chance(50));
    let mut slice = EndpointSlice { address_type: family.to_owned(), ..EndpointSlice::default() };
    for _ in 0..world.dice.below(6) {
        let mut endpoint = endpoint(world, namespace, family);
        if hinted {
            hint(world, &mut endpoint, nodes);
        }
        slice.endpoints.push(endpoint);
    }
    let ports = ports(world);
    let (labels, annotations) = (labels(world), annotations(world));
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations},
        "endpoints": slice.endpoints, "ports": ports})
}

fn labels(world: &mut World) -> Value {
    let mut labels = Map::new();
    if world.dice.chance(95) {
        labels.insert(SERVICE_NAME.to_owned(), json!(world.dice.one_of(service::NAMES)));
    }
    if world.dice.chance(12) {
        labels.insert("mirror.linkerd.io/cluster-name".to_owned(), json!(world.dice.one_of(["east", "west"])));
    }
    Value::Object(labels)
}

fn annotations(world: &mut World) -> Value {
    let mut annotations = Map::new();
    if world.dice.chance(15) {
        let name = world.dice.one_of(["far.test.svc.cluster.local", "near.test", "one"]);
        annotations.insert("mirror.linkerd.io/remote-svc-fq-name".to_owned(), json!(name));
    }
    if world.dice.chance(15) {
        let identity = world.dice.one_of(["gateway.linkerd-multicluster", "other.linkerd-multicluster", ""]);
        annotations.insert("mirror.linkerd.io/remote-gateway-identity".to_owned(), json!(identity));
    }
    Value::Object(annotations)
}

/// Usually the names of the Services' ports; also no list, an empty list, and a port without a number.
fn ports(world: &mut World) -> Value {
    let number = world.dice.one_of([8080, 8080, 8080, 9090, 25, 4191]);
    let protocol = world.dice.one_of(["TCP", "TCP", "TCP", "UDP", "SCTP"]);
    let port = |name: &str, port: Value| json!({"name": name, "port": port, "protocol": "TCP"});
    let other = |name: &str, port: u16| json!({"name": name, "port": port, "protocol": protocol});
    match world.dice.below(20) {
        0..8 => json!([port("http", json!(number)), port("https", json!(8443))]),
        8 => json!([other("http", number), port("https", json!(8443)), other("sctp", 8444)]),
        9..12 => json!([port("http", json!(number))]),
        12..15 => json!([{"port": number}]),
        15 | 16 => json!([other("dns", 5353), port("dns-tcp", json!(5354)), port("http", json!(number))]),
        17 => json!([port("http", Value::Null), port("https", json!(8443))]),
        18 => json!([]),
        _ => Value::Null,
    }
}

/// Removes the ports without a number.
pub(super) fn keep_numbered_ports(slice: &mut Value) {
    if let Some(ports) = slice.get_mut("ports").and_then(Value::as_array_mut) {
        ports.retain(|port| port.get("port").is_some_and(Value::is_number));
    }
}

fn endpoint(world: &mut World, namespace: &str, family: &str) -> Endpoint {
    let mut endpoint = Endpoint { zone: owner::zone(world).map(str::to_owned), ..Endpoint::default() };
    flip_readiness(world, &mut endpoint, family);
    rename_host(world, &mut endpoint, family);
    let usual = target(world, namespace, &mut endpoint);
    endpoint.addresses = match usual {
        Some(number) if world.dice.chance(80) => vec![address(family, number)],
        _ => addresses(world, family),
    };
    endpoint
}

/// Sets the endpoint's target. Returns the number of the target's usual address.
fn target(world: &mut World, namespace: &str, endpoint: &mut Endpoint) -> Option<usize> {
    let (pod, vm) = (world.dice.below(pod::COUNT), world.dice.below(workload::COUNT));
    let vm_name = format!("vm-{vm}");
    let reference = |kind: &str, name: &str| json!({"kind": kind, "namespace": namespace, "name": name});
    let (reference, number) = match world.dice.below(40) {
        0..26 => (reference("Pod", &pod::name(pod)), Some(pod)),
        26..32 => (reference("ExternalWorkload", &vm_name), Some(pod::COUNT + vm)),
        32..36 => (Value::Null, None),
        36 => (json!({"kind": "Pod", "name": pod::name(pod)}), Some(pod)),
        37 => {
            let other = if namespace == NAMESPACE { ELSEWHERE } else { NAMESPACE };
            (json!({"kind": "Pod", "namespace": other, "name": "pod-00"}), Some(pod))
        }
        38 => (reference("Node", "world-a"), None),
        _ => (json!({"namespace": namespace, "name": pod::name(pod)}), Some(pod)),
    };
    endpoint.target_ref = serde_json::from_value(reference).ok().flatten();
    // An API server chooses its own uids.
    if let Some(reference) = endpoint.target_ref.as_mut().filter(|_| !world.valid)
        && world.dice.chance(40)
    {
        reference.uid = Some(if world.dice.chance(80) { uid_of(world, reference) } else { "stale".to_owned() });
    }
    number
}

/// Returns the current uid of the object, or an empty one if the object does not exist.
fn uid_of(world: &World, reference: &ObjectReference) -> String {
    let kind = match reference.kind.as_deref() {
        Some("Pod") => ObjectKind::Pod,
        Some("ExternalWorkload") => ObjectKind::ExternalWorkload,
        _ => return String::new(),
    };
    let namespace = reference.namespace.clone().unwrap_or_else(|| NAMESPACE.to_owned());
    let key = Key { kind, namespace, name: reference.name.clone().unwrap_or_default() };
    let uid = world.objects.get(&key).and_then(|object| object.pointer("/metadata/uid")?.as_str());
    uid.unwrap_or_default().to_owned()
}

/// The usual address of a Pod, or of a workload, whose numbers follow those of the Pods.
pub(super) fn address(family: &str, number: usize) -> String {
    match family {
        "IPv6" => format!("2001:db8::{:x}", number + 1),
        "FQDN" => format!("host-{number}.example"),
        _ => format!("10.42.0.{}", number + 1),
    }
}

/// Addresses from a small range, so that endpoints share them.
fn addresses(world: &mut World, family: &str) -> Vec<String> {
    let number = world.dice.below(pod::COUNT + workload::COUNT);
    let mut addresses = vec![address(family, number)];
    if world.dice.chance(12) {
        addresses.push(address(family, number + 3));
    }
    if !world.valid && world.dice.chance(8) {
        let odd = ["", "010.42.0.1", "10.42.0.300", "10.42.0.1:80", "fe80::1%eth0", " 10.42.0.1", "[2001:db8::1]"];
        addresses.push(world.dice.one_of(odd).to_owned());
    }
    addresses
}

fn readdress(world: &mut World, endpoint: &mut Endpoint, family: &str) {
    endpoint.addresses = addresses(world, family);
}

fn retarget(world: &mut World, endpoint: &mut Endpoint, _: &str) {
    target(world, NAMESPACE, endpoint);
}

fn rezone(world: &mut World, endpoint: &mut Endpoint, _: &str) {
    endpoint.zone = owner::zone(world).map(str::to_owned);
}

fn rename_host(world: &mut World, endpoint: &mut Endpoint, _: &str) {
    endpoint.hostname = world.dice.one_of([None, None, Some("host-0"), Some("host-1")]).map(str::to_owned);
}

/// An absent condition means ready; the other two conditions must not influence answers.
fn flip_readiness(world: &mut World, endpoint: &mut Endpoint, _: &str) {
    let ready = match world.dice.below(10) {
        0..2 => json!(null),
        2 => json!({"serving": false, "terminating": true}),
        3..8 => json!({"ready": true, "serving": true, "terminating": world.dice.chance(20)}),
        _ => json!({"ready": false, "serving": true}),
    };
    endpoint.conditions = serde_json::from_value(ready).ok().flatten();
}

fn rehint(world: &mut World, endpoint: &mut Endpoint, _: &str) {
    endpoint.hints = None;
    if world.dice.chance(70) {
        let nodes = world.dice.chance(50);
        hint(world, endpoint, nodes);
    }
}

/// Adds hints for zones, and maybe for nodes, as Kubernetes does.
fn hint(world: &mut World, endpoint: &mut Endpoint, nodes: bool) {
    let mut zones = vec![world.dice.one_of(["zone-a", "zone-b", "zone-c"])];
    if world.dice.chance(30) {
        zones.push("zone-d");
    }
    let for_zones = zones.into_iter().map(|zone| ForZone { name: zone.to_owned() }).collect();
    let for_nodes = nodes.then(|| vec![ForNode { name: world.dice.one_of(owner::NODES).to_owned() }]);
    endpoint.hints = Some(EndpointHints { for_zones: Some(for_zones), for_nodes });
}

/// A random EndpointSlice, with its JSON, in which the endpoints are replaced.
fn any(world: &mut World) -> Option<(Value, EndpointSlice)> {
    let json = world.any(ObjectKind::EndpointSlice)?;
    let slice = serde_json::from_value(json.clone()).ok()?;
    Some((json, slice))
}

fn put(mut json: Value, endpoints: &[Endpoint]) -> Draft {
    if let Some(json) = json.as_object_mut() {
        // As Go encodes a nil slice.
        let endpoints = if endpoints.is_empty() { Value::Null } else { json!(endpoints) };
        json.insert("endpoints".to_owned(), endpoints);
    }
    Draft::Put(json)
}

fn on_endpoint(world: &mut World, edit: fn(&mut World, &mut Endpoint, &str)) -> Vec<Draft> {
    let Some((json, mut slice)) = any(world) else { return Vec::new() };
    let at = world.dice.below(slice.endpoints.len());
    let Some(endpoint) = slice.endpoints.get_mut(at) else { return Vec::new() };
    edit(world, endpoint, &slice.address_type);
    vec![put(json, &slice.endpoints)]
}

fn add(world: &mut World) -> Vec<Draft> {
    let Some((json, mut slice)) = any(world) else { return Vec::new() };
    let mut new = endpoint(world, NAMESPACE, &slice.address_type);
    // Usually the same as its neighbors, so that hints stay complete.
    let neighbor = slice.endpoints.iter().find_map(|endpoint| endpoint.hints.clone());
    if let Some(neighbor) = neighbor.filter(|_| world.dice.chance(80)) {
        hint(world, &mut new, neighbor.for_nodes.is_some());
    }
    let at = world.dice.below(slice.endpoints.len() + 1);
    slice.endpoints.insert(at, new);
    vec![put(json, &slice.endpoints)]
}

fn remove(world: &mut World) -> Vec<Draft> {
    let Some((json, mut slice)) = any(world) else { return Vec::new() };
    if slice.endpoints.is_empty() {
        return Vec::new();
    }
    slice.endpoints.remove(world.dice.below(slice.endpoints.len()));
    vec![put(json, &slice.endpoints)]
}

fn swap(world: &mut World) -> Vec<Draft> {
    let Some((json, mut slice)) = any(world) else { return Vec::new() };
    let (one, other) = (world.dice.below(slice.endpoints.len()), world.dice.below(slice.endpoints.len()));
    let addresses = |at: usize| slice.endpoints.get(at).map(|endpoint| endpoint.addresses.clone());
    let (Some(of_one), Some(of_other)) = (addresses(one), addresses(other)) else { return Vec::new() };
    for (at, addresses) in [(one, of_other), (other, of_one)] {
        if let Some(endpoint) = slice.endpoints.get_mut(at) {
            endpoint.addresses = addresses;
        }
    }
    vec![put(json, &slice.endpoints)]
}

/// Moves or copies an endpoint. A move adds first or removes first, as controllers may do either.
fn carry(world: &mut World, away: bool) -> Vec<Draft> {
    let (Some((from_json, mut from)), Some((to_json, mut to))) = (any(world), any(world)) else { return Vec::new() };
    let same = from.metadata.name == to.metadata.name || from.address_type != to.address_type;
    if same || from.endpoints.is_empty() {
        return Vec::new();
    }
    let at = world.dice.below(from.endpoints.len());
    let carried = if away { Some(from.endpoints.remove(at)) } else { from.endpoints.get(at).cloned() };
    to.endpoints.extend(carried);
    let mut drafts = vec![put(to_json, &to.endpoints)];
    if away {
        drafts.push(put(from_json, &from.endpoints));
        if world.dice.chance(50) {
            drafts.reverse();
        }
    }
    drafts
}

fn hint_all(world: &mut World) -> Vec<Draft> {
    let Some((json, mut slice)) = any(world) else { return Vec::new() };
    let (hinted, nodes) = (world.dice.chance(70), world.dice.chance(50));
    for endpoint in &mut slice.endpoints {
        endpoint.hints = None;
        if hinted {
            hint(world, endpoint, nodes);
        }
    }
    vec![put(json, &slice.endpoints)]
}

fn renumber(world: &mut World) -> Vec<Draft> {
    let ports = ports(world);
    let Some(mut slice) = world.any(ObjectKind::EndpointSlice) else { return Vec::new() };
    if let Some(slice) = slice.as_object_mut() {
        slice.insert("ports".to_owned(), ports);
    }
    vec![Draft::Put(slice)]
}

fn relabel(world: &mut World) -> Vec<Draft> {
    let labels = labels(world);
    with_metadata(world.any(ObjectKind::EndpointSlice), "labels", labels)
}

fn annotate(world: &mut World) -> Vec<Draft> {
    let annotations = annotations(world);
    with_metadata(world.any(ObjectKind::EndpointSlice), "annotations", annotations)
}
