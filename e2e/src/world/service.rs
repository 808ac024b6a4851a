//! Services without selectors: their slices are written by hand.

use serde_json::{Map, Value, json};

use super::{Draft, Kind, Mutation, World, mutation, patched, with_metadata};

pub(super) const NAMES: [&str; 3] = ["web", "api", "db"];

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("a Service gets other ports", 6, renumber),
    mutation("a Service changes its internalTrafficPolicy", 5, change_policy),
    mutation("a Service becomes an ExternalName, or is one no more", 3, change_type),
    mutation("a Service moves to another cluster, or comes back", 3, change_place),
];

pub(super) fn fresh(world: &mut World, namespace: &str, name: &str) -> Value {
    let spec = if world.dice.chance(6) { external_name() } else { spec(world, name) };
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": {}, "annotations": {}}, "spec": spec})
}

fn spec(world: &mut World, name: &str) -> Value {
    let mut spec = json!({"type": "ClusterIP", "ports": ports(world, name)});
    let policy = world.dice.one_of([None, Some("Cluster"), Some("Cluster"), Some("Local")]);
    if let Some(spec) = spec.as_object_mut() {
        spec.extend(policy.map(|policy| ("internalTrafficPolicy".to_owned(), json!(policy))));
        // Once and for all: a Service cannot gain or lose its address.
        if is_headless(name) {
            spec.insert("clusterIP".to_owned(), json!("None"));
        } else if world.dice.chance(10) {
            spec.insert("type".to_owned(), json!("NodePort"));
        }
    }
    spec
}

fn is_headless(name: &str) -> bool {
    name == "db"
}

fn external_name() -> Value {
    json!({"type": "ExternalName", "externalName": "example.com"})
}

fn ports(world: &mut World, name: &str) -> Value {
    let port = |name: &str, port: u16, protocol: &str| json!({"name": name, "port": port, "targetPort": 1, "protocol": protocol});
    let (http, https) = (port("http", 80, "TCP"), port("https", 443, "TCP"));
    match world.dice.below(if is_headless(name) { 8 } else { 7 }) {
        0 | 1 => json!([http]),
        2 | 3 => json!([http, https]),
        4 => json!([{"port": 80, "targetPort": "http", "protocol": "TCP"}]),
        5 => json!([port("dns", 53, "UDP"), port("dns-tcp", 53, "TCP"), port("http", 80, "TCP")]),
        6 => json!([port("http", 443, "TCP")]),
        _ => json!([]),
    }
}

fn text(service: &Value, pointer: &str) -> String {
    service.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A Service with endpoints of its own.
fn own_endpoints(world: &mut World) -> Option<Value> {
    world.any(Kind::Service).filter(|service| text(service, "/spec/type") != "ExternalName")
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
    let Some(mut service) = world.any(Kind::Service) else { return Vec::new() };
    // Rather back than away.
    let external = text(&service, "/spec/type") != "ExternalName";
    if external && world.dice.chance(85) {
        return Vec::new();
    }
    let spec = if external { external_name() } else { spec(world, &text(&service, "/metadata/name")) };
    if let Some(service) = service.as_object_mut() {
        service.insert("spec".to_owned(), spec);
    }
    vec![Draft::Put(service)]
}

/// The labels and annotations by which Linkerd's multicluster extension redirects a Service.
fn change_place(world: &mut World) -> Vec<Draft> {
    let Some(service) = world.any(Kind::Service) else { return Vec::new() };
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
    match world.dice.below(30) {
        0 => with_metadata(Some(service), "labels", marker(&[("remote-discovery", "east")])),
        1 => with_metadata(Some(service), "labels", marker(&[("remote-discovery", "east"), ("remote-service", "web")])),
        2 => with_metadata(Some(service), "annotations", marker(&[("remote-discovery", "web@east")])),
        3 => with_metadata(Some(service), "annotations", marker(&[("local-discovery", "")])),
        _ => Vec::new(),
    }
}
