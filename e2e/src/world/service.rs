//! Services without selectors, because their EndpointSlices are written by the world.

use serde_json::{Map, Value, json};

use super::{Draft, Mutation, ObjectKind, World, mutation, patched, with_metadata};

pub(super) const NAMES: [&str; 3] = ["web", "api", "db"];

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("a Service gets other ports", 6, renumber),
    mutation("a Service changes its internalTrafficPolicy", 5, change_policy),
    mutation("a Service becomes an ExternalName, or stops being one", 3, change_type),
    mutation("a Service moves to another cluster, or comes back", 3, change_place),
    mutation("a Service is annotated", 4, annotate),
    mutation("a Service gets another cluster IP", 2, renumber_ip),
];

pub(super) fn fresh(world: &mut World, namespace: &str, name: &str) -> Value {
    let spec = if world.dice.chance(6) { external_name(world, name) } else { spec(world, name) };
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": {}, "annotations": annotations(world)}, "spec": spec})
}

/// Annotations with opaque ports, by the names and numbers of Services' ports.
fn annotations(world: &mut World) -> Value {
    let list = world.dice.one_of(["", "80", "http", "https,", "53, 443", "1-65535", "25,http", "8080", "dns-tcp,-1"]);
    if world.dice.chance(35) { json!({"config.linkerd.io/opaque-ports": list}) } else { json!({}) }
}

fn spec(world: &mut World, name: &str) -> Value {
    let mut spec = json!({"type": "ClusterIP", "ports": ports(world, name)});
    let policy = world.dice.one_of([None, Some("Cluster"), Some("Cluster"), Some("Local")]);
    if let Some(spec) = spec.as_object_mut() {
        spec.extend(policy.map(|policy| ("internalTrafficPolicy".to_owned(), json!(policy))));
        // Fixed by the name, because a Service cannot gain or lose its cluster IP.
        if is_headless(name) {
            spec.insert("clusterIP".to_owned(), json!("None"));
        } else {
            if world.dice.chance(10) {
                spec.insert("type".to_owned(), json!("NodePort"));
            }
            spec.extend(cluster_ips(world, name));
        }
    }
    spec
}

/// Cluster IPs, if no API server assigns them: usually the Service's own, sometimes another's or a Pod's; listed or
/// not.
fn cluster_ips(world: &mut World, name: &str) -> Map<String, Value> {
    let mut fields = Map::new();
    if world.valid {
        return fields;
    }
    let usual = NAMES.iter().position(|known| *known == name).unwrap_or_default();
    let number = if world.dice.chance(85) { usual } else { world.dice.below(NAMES.len()) };
    let mut first = format!("10.96.0.{}", number + 1);
    if world.dice.chance(4) {
        first = "10.42.0.1".to_owned();
    }
    let second = world.dice.one_of(["fd00:10:96::", "FD00:10:96:0::"]).to_owned() + &(number + 1).to_string();
    let (single, listed) = match world.dice.below(8) {
        0 => (second, json!([])),
        1 => (first, Value::Null),
        2 => (first.clone(), json!([first])),
        // `clusterIPs` takes precedence over `clusterIP`.
        3 => ("10.96.0.9".to_owned(), json!([first, second])),
        _ => (first.clone(), json!([first, second])),
    };
    fields.insert("clusterIP".to_owned(), json!(single));
    fields.insert("clusterIPs".to_owned(), listed);
    fields
}

fn is_headless(name: &str) -> bool {
    name == "db"
}

/// Ports have no meaning in an ExternalName Service, but may be present.
fn external_name(world: &mut World, name: &str) -> Value {
    let mut spec = json!({"type": "ExternalName", "externalName": "example.com"});
    if let (Some(spec), true) = (spec.as_object_mut(), world.dice.chance(50)) {
        spec.insert("ports".to_owned(), ports(world, name));
    }
    spec
}

fn ports(world: &mut World, name: &str) -> Value {
    let port = |name: &str, port: u16, protocol: &str| json!({"name": name, "port": port, "targetPort": 1, "protocol": protocol});
    let (http, https) = (port("http", 80, "TCP"), port("https", 443, "TCP"));
    match world.dice.below(if is_headless(name) { 9 } else { 8 }) {
        0 | 1 => json!([http]),
        2 | 3 => json!([http, https]),
        4 => json!([{"port": 80, "targetPort": "http", "protocol": "TCP"}]),
        5 => json!([port("dns", 53, "UDP"), port("dns-tcp", 53, "TCP"), port("http", 80, "TCP")]),
        6 => json!([port("http", 443, "TCP")]),
        7 => json!([port("udp", 80, "UDP"), port("https", 443, "TCP"), port("sctp", 443, "SCTP")]),
        _ => json!([]),
    }
}

fn text(service: &Value, pointer: &str) -> String {
    service.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A Service that has endpoints.
fn own_endpoints(world: &mut World) -> Option<Value> {
    world.any(ObjectKind::Service).filter(|service| text(service, "/spec/type") != "ExternalName")
}

fn renumber(world: &mut World) -> Vec<Draft> {
    let Some(service) = own_endpoints(world) else { return Vec::new() };
    let ports = ports(world, &text(&service, "/metadata/name"));
    patched(Some(service), json!({"spec": {"ports": ports}}))
}

fn change_policy(world: &mut World) -> Vec<Draft> {
    let service = own_endpoints(world);
    let policy = world.dice.one_of(["Cluster", "Cluster", "Local"]);
    patched(service, json!({"spec": {"internalTrafficPolicy": policy}}))
}

fn change_type(world: &mut World) -> Vec<Draft> {
    let Some(mut service) = world.any(ObjectKind::Service) else { return Vec::new() };
    // Changing back is more frequent than changing to ExternalName.
    let external = text(&service, "/spec/type") != "ExternalName";
    if external && world.dice.chance(85) {
        return Vec::new();
    }
    let name = text(&service, "/metadata/name");
    let spec = if external { external_name(world, &name) } else { spec(world, &name) };
    if let Some(service) = service.as_object_mut() {
        service.insert("spec".to_owned(), spec);
    }
    vec![Draft::Put(service)]
}

fn annotate(world: &mut World) -> Vec<Draft> {
    let annotations = annotations(world);
    with_metadata(world.any(ObjectKind::Service), "annotations", annotations)
}

/// Skipped in a valid world: a real Service never changes its cluster IP.
fn renumber_ip(world: &mut World) -> Vec<Draft> {
    let Some(mut service) = own_endpoints(world) else { return Vec::new() };
    let name = text(&service, "/metadata/name");
    if world.valid || is_headless(&name) {
        return Vec::new();
    }
    let addresses = cluster_ips(world, &name);
    if let Some(spec) = service.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.extend(addresses);
    }
    vec![Draft::Put(service)]
}

/// Labels and annotations with which Linkerd's multicluster extension redirects a Service to another cluster.
fn change_place(world: &mut World) -> Vec<Draft> {
    let Some(service) = world.any(ObjectKind::Service) else { return Vec::new() };
    let marked = |field: &str| {
        let field = service.pointer(field).and_then(Value::as_object);
        field.is_some_and(|field| field.keys().any(|key| key.starts_with("multicluster.linkerd.io/")))
    };
    let (labelled, annotated) = (marked("/metadata/labels"), marked("/metadata/annotations"));
    let marker = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|(key, value)| (format!("multicluster.linkerd.io/{key}"), json!(value)));
        Value::Object(pairs.collect::<Map<_, _>>())
    };
    if labelled {
        return with_metadata(Some(service), "labels", json!({}));
    }
    if annotated {
        return with_metadata(Some(service), "annotations", json!({}));
    }
    let name = world.dice.one_of(NAMES);
    let cluster = world.dice.one_of(["east", "north", "unlinked"]);
    let list = world.dice.one_of([
        "web@east",
        "web@east, api@east",
        "db@north,web@east",
        "api@unlinked,web@north,web@north",
        "web@east@north,,@east,db",
        "",
    ]);
    // Where other clusters are not served, a Service that is marked has no answers.
    match world.dice.below(if world.joins { 6 } else { 30 }) {
        0 => with_metadata(Some(service), "labels", marker(&[("remote-discovery", cluster)])),
        1 => with_metadata(Some(service), "labels", marker(&[("remote-discovery", cluster), ("remote-service", name)])),
        2 => with_metadata(Some(service), "annotations", marker(&[("remote-discovery", list)])),
        3 => with_metadata(Some(service), "annotations", marker(&[("local-discovery", "")])),
        4 | 5 => {
            let both = marker(&[("remote-discovery", list), ("local-discovery", name)]);
            with_metadata(Some(service), "annotations", both)
        }
        _ => Vec::new(),
    }
}
