//! Servers, with selectors as users write them.

use serde_json::{Value, json};

use super::{Draft, Mutation, ObjectKind, World, mutation};

pub(super) const MUTATIONS: &[Mutation] = &[mutation("a Server is rewritten", 8, rewrite)];

pub(super) fn fresh(world: &mut World, namespace: &str, name: &str) -> Value {
    let mut protocol = world.dice.one_of(["opaque", "opaque", "opaque", "HTTP/2", "TLS", "Opaque", ""]);
    let port =
        world.dice.one_of([json!(8080), json!(9090), json!("http"), json!("host"), json!("https"), json!("8080")]);
    let mut spec = json!({ "port": port });
    let selector = selector(world);
    let field = world.dice.one_of(["podSelector", "podSelector", "externalWorkloadSelector"]);
    if let Some(spec) = spec.as_object_mut() {
        spec.insert(field.to_owned(), selector.clone());
        if !world.valid {
            match world.dice.below(12) {
                0 => drop(spec.remove(field)),
                1 => drop(spec.insert("externalWorkloadSelector".to_owned(), selector)),
                2 => drop(spec.insert(field.to_owned(), Value::Null)),
                3 => protocol = "OPAQUE",
                _ => {}
            }
        }
        if !protocol.is_empty() {
            spec.insert("proxyProtocol".to_owned(), json!(protocol));
        }
    }
    json!({"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

fn selector(world: &mut World) -> Value {
    let app = world.dice.one_of(["web", "api", "db", "absent"]);
    let labels = json!({ "app": app });
    match world.dice.below(8) {
        0 => json!({}),
        1..4 => json!({ "matchLabels": labels }),
        4 | 5 => json!({ "matchExpressions": [requirement(world)] }),
        6 => json!({"matchLabels": labels, "matchExpressions": [requirement(world)]}),
        _ => json!({"matchLabels": {}, "matchExpressions": [requirement(world), requirement(world)]}),
    }
}

/// A requirement of a selector. Some are invalid, so that the selector matches nothing.
fn requirement(world: &mut World) -> Value {
    let mut operator = world.dice.one_of(["In", "NotIn", "Exists", "DoesNotExist"]);
    if !world.valid && world.dice.chance(10) {
        operator = world.dice.one_of(["Equals", "in", ""]);
    }
    let key = world.dice.one_of(["app", "pod-template-hash", "missing"]);
    let lists = matches!(operator, "In" | "NotIn") != world.dice.chance(15);
    let values = if lists { json!(["web", world.dice.one_of(["api", "5d4f", ""])]) } else { json!([]) };
    json!({"key": key, "operator": operator, "values": values})
}

fn rewrite(world: &mut World) -> Vec<Draft> {
    let Some(server) = world.any(ObjectKind::Server) else { return Vec::new() };
    let text = |pointer: &str| server.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    vec![Draft::Put(fresh(world, &namespace, &name))]
}
