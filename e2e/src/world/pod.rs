//! Pods: with and without a proxy, scheduled and unscheduled, with valid and invalid annotations.

use serde_json::{Value, json};

use super::{Draft, Mutation, ObjectKind, World, mutation, owner, patched, status, with_metadata};

pub(super) const COUNT: usize = 12;

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("a pod begins to terminate", 4, terminate),
    mutation("a pod is relabelled", 5, relabel),
    mutation("a pod is annotated", 6, annotate),
    mutation("a pod gets another owner", 4, own),
];

pub(super) fn name(number: usize) -> String {
    format!("pod-{number:02}")
}

pub(super) fn fresh(world: &mut World, namespace: &str, name: &str) -> Value {
    let node = if world.dice.chance(90) { json!(world.dice.one_of(owner::NODES)) } else { Value::Null };
    let account = world.dice.one_of([json!("web"), json!("api"), Value::Null]);
    let mut app = json!({"name": "app", "image": "app", "ports": ports(world)});
    let (mut before, mut beside) = (Vec::new(), Vec::new());
    match world.dice.below(10) {
        0..6 => before.push(proxy(world)),
        6..8 => beside.push(proxy(world)),
        // Meshed only by its label.
        8 => {}
        _ => {
            before.push(proxy(world));
            if let Some(app) = app.as_object_mut() {
                app.remove("ports");
            }
        }
    }
    if world.dice.chance(20) {
        before.push(json!({"name": "side", "image": "app", "restartPolicy": "Always", "ports": ports(world)}));
    }
    beside.push(app);
    let status = status::fresh(world, name, node.as_str());
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels(world), "annotations": annotations(world),
            "ownerReferences": owners(world)},
        "spec": {"nodeName": node, "serviceAccountName": account, "initContainers": before, "containers": beside},
        "status": status});
    if world.dice.chance(8) {
        share_host(world, &mut pod);
    }
    pod
}

/// A Pod in the host's network: its container ports are also host ports, which the API server fills in.
fn share_host(world: &mut World, pod: &mut Value) {
    let filled = world.valid || world.dice.chance(80);
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    spec.insert("hostNetwork".to_owned(), json!(true));
    for field in ["initContainers", "containers"] {
        let containers = spec.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten();
        let ports = containers.filter_map(|container| container.get_mut("ports")?.as_array_mut()).flatten();
        for port in ports.filter_map(Value::as_object_mut).filter(|_| filled) {
            let own = port.get("containerPort").cloned().unwrap_or_default();
            port.insert("hostPort".to_owned(), own);
        }
    }
}

/// Ports with the names that Services and Servers use, but not always with the same numbers.
fn ports(world: &mut World) -> Value {
    let http = world.dice.one_of([8080, 8080, 9090]);
    let mut ports = vec![json!({"name": "http", "containerPort": http})];
    if world.dice.chance(40) {
        ports.push(json!({"name": "https", "containerPort": 8443}));
    }
    if world.dice.chance(20) {
        ports.push(json!({"name": "host", "containerPort": 7, "hostPort": 8080}));
    }
    if world.dice.chance(20) {
        ports.push(json!({"containerPort": 25}));
    }
    if world.dice.chance(20) {
        let (name, protocol) = (world.dice.one_of(["udp", "dns"]), world.dice.one_of(["UDP", "SCTP"]));
        ports.push(json!({"name": name, "containerPort": http, "hostPort": 8080, "protocol": protocol}));
    }
    json!(ports)
}

fn proxy(world: &mut World) -> Value {
    let mut inbound = "0.0.0.0:4143";
    let mut admin = "[::]:4191";
    let mut control = Some("127.0.0.1:4190");
    match world.dice.below(30) {
        0 => inbound = "localhost:4143",
        1 => inbound = "0.0.0.0:65535",
        2 => admin = ":4191",
        3 => control = None,
        4 => admin = "0.0.0.0:8080",
        5 => inbound = "[2001:db8::9]:5143",
        _ => {}
    }
    let mut variables = vec![
        json!({"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": inbound}),
        json!({"name": "LINKERD2_PROXY_LOG", "value": "warn"}),
        json!({"name": "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "value": admin}),
    ];
    variables.extend(control.map(|control| json!({"name": "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "value": control})));
    json!({"name": "linkerd-proxy", "image": "proxy", "env": variables})
}

fn labels(world: &mut World) -> Value {
    let mut labels = json!({"app": world.dice.one_of(["web", "api", "db"])});
    let control_plane = match world.dice.below(20) {
        0..15 => Some("linkerd"),
        15 | 16 => Some("other"),
        17 => Some(""),
        _ => None,
    };
    let hash = world.dice.one_of([None, Some("5d4f"), Some("")]);
    if let Some(labels) = labels.as_object_mut() {
        labels.extend(control_plane.map(|name| ("linkerd.io/control-plane-ns".to_owned(), json!(name))));
        labels.extend(hash.map(|hash| ("pod-template-hash".to_owned(), json!(hash))));
    }
    labels
}

/// Port lists of users, including mistakes.
pub(super) fn port_list(world: &mut World) -> &'static str {
    world.dice.one_of([
        "",
        "8080",
        "http",
        "https,8080",
        " 9090 , 25,",
        "8000-9000",
        "1-65535",
        "8443,http",
        "25,http,4191",
        "8080-",
        "9000-8000",
        "80 80",
        "nonsense",
        ",,",
        "0-70000",
        "admin, 8443",
    ])
}

fn annotations(world: &mut World) -> Value {
    let mut annotations = serde_json::Map::new();
    if world.dice.chance(30) {
        annotations.insert("config.linkerd.io/opaque-ports".to_owned(), json!(port_list(world)));
    }
    if world.dice.chance(12) {
        annotations.insert("config.linkerd.io/skip-inbound-ports".to_owned(), json!(port_list(world)));
    }
    Value::Object(annotations)
}

fn owners(world: &mut World) -> Value {
    let number = world.dice.below(3);
    match world.dice.below(12) {
        0..6 => json!([owner::reference("ReplicaSet", &format!("set-{number}"))]),
        6 | 7 => json!([owner::reference("Job", &format!("job-{number}"))]),
        8 => json!([owner::reference("StatefulSet", "db")]),
        9 => json!([owner::reference("ReplicaSet", "set-0"), owner::reference("Job", "job-0")]),
        // Its metric label `zone` conflicts with that of the zone.
        10 => json!([owner::reference("Zone", "not-a-zone")]),
        _ => json!([]),
    }
}

/// Only for Pods that are scheduled and running: other Pods are deleted immediately.
fn terminate(world: &mut World) -> Vec<Draft> {
    let now = world.now();
    let pod = world.any(ObjectKind::Pod).filter(|pod| {
        let ending = pod.pointer("/metadata/deletionTimestamp").is_some();
        let phase = pod.pointer("/status/phase").and_then(Value::as_str);
        let ended = matches!(phase, Some("Succeeded" | "Failed"));
        !ending && !ended && pod.pointer("/spec/nodeName").is_some_and(Value::is_string)
    });
    patched(pod, json!({"metadata": {"deletionTimestamp": now, "deletionGracePeriodSeconds": 3600}}))
}

fn relabel(world: &mut World) -> Vec<Draft> {
    let labels = labels(world);
    with_metadata(world.any(ObjectKind::Pod), "labels", labels)
}

fn annotate(world: &mut World) -> Vec<Draft> {
    let annotations = annotations(world);
    with_metadata(world.any(ObjectKind::Pod), "annotations", annotations)
}

fn own(world: &mut World) -> Vec<Draft> {
    let owners = owners(world);
    with_metadata(world.any(ObjectKind::Pod), "ownerReferences", owners)
}
