//! ServiceProfiles: all forms of routes and budgets, in the namespace of the Service and of its clients; and invalid
//! ones.

use serde_json::{Value, json};

use super::{CLIENTS, Draft, ELSEWHERE, Mutation, NAMESPACE, ObjectKind, World, mutation, service};

pub(super) const NAMESPACES: [&str; 3] = [NAMESPACE, ELSEWHERE, CLIENTS];

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("a ServiceProfile is rewritten", 6, rewrite),
    mutation("a ServiceProfile gets another retry budget", 4, rebudget),
    mutation("a ServiceProfile gets other overrides", 4, override_others),
    mutation("a ServiceProfile gets one route more", 4, add_route),
    mutation("a ServiceProfile appears or vanishes", 6, toggle),
];

/// The name of the ServiceProfile of a Service.
pub(super) fn name(service: &str, namespace: &str) -> String {
    format!("{service}.{namespace}.svc.cluster.local")
}

pub(super) fn fresh(world: &mut World, namespace: &str, name: &str) -> Value {
    let mut profile = json!({"apiVersion": "linkerd.io/v1alpha2", "kind": "ServiceProfile",
        "metadata": {"name": name, "namespace": namespace, "labels": {}, "annotations": {}}});
    let spec = if !world.valid && world.dice.chance(20) { broken(world) } else { spec(world) };
    if let Some(profile) = profile.as_object_mut() {
        profile.extend(spec.map(|spec| ("spec".to_owned(), spec)));
    }
    profile
}

/// A spec; sometimes an absent one.
fn spec(world: &mut World) -> Option<Value> {
    let mut spec = json!({});
    let fields = spec.as_object_mut()?;
    if world.dice.chance(80) {
        let routes: Vec<Value> = (0..world.dice.below(4)).map(|_| route(world)).collect();
        fields.insert("routes".to_owned(), json!(routes));
    }
    if world.dice.chance(50) {
        fields.insert("retryBudget".to_owned(), budget(world));
    }
    if world.dice.chance(40) {
        fields.insert("dstOverrides".to_owned(), overrides(world));
    }
    if world.dice.chance(10) {
        fields.insert("opaquePorts".to_owned(), json!(["80", "443"]));
    }
    if !world.valid && world.dice.chance(10) {
        let odd = world.dice.one_of([json!({"80": {}}), json!(80), json!("80"), Value::Null]);
        fields.insert("opaquePorts".to_owned(), odd);
        fields.insert("unknown".to_owned(), json!([1]));
    }
    (!fields.is_empty() || world.dice.chance(50)).then_some(spec)
}

fn route(world: &mut World) -> Value {
    let classes: Vec<Value> = (0..world.dice.below(3)).map(|_| class(world)).collect();
    let mut route = json!({"name": world.dice.one_of(["GET /", "all", "buy a book", ""]), "condition": top(world)});
    if let Some(route) = route.as_object_mut() {
        if world.dice.chance(50) {
            route.insert("isRetryable".to_owned(), json!(world.dice.chance(60)));
        }
        if world.dice.chance(50) {
            route.insert("timeout".to_owned(), json!(duration(world, true)));
        }
        if !classes.is_empty() || world.dice.chance(30) {
            route.insert("responseClasses".to_owned(), json!(classes));
        }
    }
    route
}

/// A duration in Go's syntax, or an invalid one: it leaves a route without a timeout, and makes a budget invalid.
fn duration(world: &mut World, may_fail: bool) -> &'static str {
    if may_fail && world.dice.chance(30) {
        return world.dice.one_of(["", "5", "1d", "1S", " 1s", "soon", "9223372037s"]);
    }
    world.dice.one_of(["10s", "200ms", "1h30m", "1.5s", "-1.5s", "0s", "0", "0.5ns", "+.5s", "7µs", "60m0.000001s"])
}

/// Removes the fields for which Linkerd's schema requires a list, and its server another type.
pub(super) fn keep_what_linkerd_decodes(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|field, value| !(value.is_array() && matches!(field.as_str(), "not" | "opaquePorts")));
            fields.values_mut().for_each(keep_what_linkerd_decodes);
        }
        Value::Array(items) => items.iter_mut().for_each(keep_what_linkerd_decodes),
        _ => {}
    }
}

/// The condition of a route. The CRD requires a list for `not` at this level only, and accepts any value below.
fn top(world: &mut World) -> Value {
    let mut condition = request(world, 2);
    if world.valid
        && let Some(not) = condition.get_mut("not").filter(|not| not.is_object())
    {
        *not = json!([not.clone()]);
    }
    condition
}

fn request(world: &mut World, depth: usize) -> Value {
    let mut condition = json!({});
    let Some(fields) = condition.as_object_mut() else { return condition };
    let (method, path) = (
        world.dice.one_of(["GET", "get", "POST", "Trace", "propfind"]),
        world.dice.one_of(["/", "/api/[^/]*", "^/books$", "("]),
    );
    match world.dice.below(if depth > 0 { 8 } else { 3 }) {
        0 => drop(fields.insert("method".to_owned(), json!(method))),
        1 => drop(fields.insert("pathRegex".to_owned(), json!(path))),
        2 => {
            fields.insert("method".to_owned(), json!(method));
            fields.insert("pathRegex".to_owned(), json!(path));
        }
        3 | 4 => {
            let nested: Vec<Value> = (0..world.dice.below(3)).map(|_| request(world, depth - 1)).collect();
            fields.insert(world.dice.one_of(["all", "any"]).to_owned(), json!(nested));
            fields.insert("pathRegex".to_owned(), json!(world.dice.one_of(["", path])));
        }
        5 | 6 => {
            let not = request(world, depth - 1);
            let not = if world.dice.chance(20) { json!([not]) } else { not };
            fields.insert("not".to_owned(), not);
        }
        _ => {
            fields.insert("any".to_owned(), json!([request(world, depth - 1)]));
            fields.insert("all".to_owned(), json!([]));
            fields.insert("method".to_owned(), json!(method));
            fields.insert("not".to_owned(), request(world, depth - 1));
            fields.insert("pathRegex".to_owned(), json!(path));
        }
    }
    condition
}

fn class(world: &mut World) -> Value {
    let mut class = json!({"condition": response(world, 2)});
    if let (Some(class), true) = (class.as_object_mut(), world.dice.chance(70)) {
        class.insert("isFailure".to_owned(), json!(world.dice.chance(60)));
    }
    class
}

fn response(world: &mut World, depth: usize) -> Value {
    let status = world.dice.one_of([
        json!({"min": 500, "max": 599}),
        json!({"min": 404, "max": 404}),
        json!({"min": 200}),
        json!({"max": 100}),
        json!({}),
    ]);
    match world.dice.below(if depth > 0 { 6 } else { 1 }) {
        0 | 1 => json!({ "status": status }),
        2 => json!({"not": response(world, depth - 1)}),
        3 => json!({"all": [response(world, depth - 1), response(world, depth - 1)]}),
        4 => json!({"any": [], "status": status}),
        _ => {
            json!({"not": response(world, depth - 1), "status": status, "any": [response(world, depth - 1)], "all": []})
        }
    }
}

fn budget(world: &mut World) -> Value {
    let ratio = world.dice.one_of([json!(0.2), json!(0), json!(1), json!(0.333), json!(20.5)]);
    json!({"retryRatio": ratio, "minRetriesPerSecond": world.dice.one_of([0, 1, 10, 1000]), "ttl": duration(world, false)})
}

fn overrides(world: &mut World) -> Value {
    let one = |world: &mut World| {
        let authority = world.dice.one_of([
            "web.world.svc.cluster.local:80",
            "api",
            "api:http",
            ":80",
            "::1",
            "[::1]:80",
            "a:b:c",
            "",
        ]);
        let mut weight = world.dice.one_of([
            json!(1),
            json!("500m"),
            json!("1.5"),
            json!("100u"),
            json!("2k"),
            json!(0),
            json!("1Ki"),
            json!("1e2"),
        ]);
        if world.dice.chance(10) {
            weight = world.dice.one_of([json!(-1), json!("429497"), json!("1E")]);
        }
        match world.dice.below(8) {
            0 => json!({ "authority": authority }),
            1 => json!({ "weight": weight }),
            _ => json!({"authority": authority, "weight": weight}),
        }
    };
    (0..world.dice.below(4)).map(|_| one(world)).collect()
}

/// Specs without a meaning, or that cannot be decoded. With each of them, clients get the next profile in precedence.
fn broken(world: &mut World) -> Option<Value> {
    let route = |part: Value| {
        let mut route = json!({"name": "broken", "condition": {"method": "GET"}});
        crate::mesh::merge(&mut route, part);
        json!({ "routes": [route] })
    };
    let condition = |condition: Value| json!({ "routes": [{"name": "broken", "condition": condition}] });
    let class = |class: Value| route(json!({ "responseClasses": [class] }));
    let budget = |part: Value| {
        let mut budget = json!({"retryRatio": 0.2, "minRetriesPerSecond": 10, "ttl": "10s"});
        crate::mesh::merge(&mut budget, part);
        json!({ "retryBudget": budget })
    };
    let status = |status: Value| class(json!({"condition": {"any": [{"not": { "status": status }}]}}));
    let broken = [
        condition(Value::Null),
        condition(json!({})),
        condition(json!({"method": "", "pathRegex": ""})),
        condition(json!({"all": [{"any": [{}]}]})),
        condition(json!({"all": [null]})),
        condition(json!({"any": [{"method": "GET"}, null]})),
        condition(json!({"not": {}})),
        condition(json!({"not": []})),
        condition(json!({"not": [{"method": "GET"}, {"method": "PUT"}]})),
        condition(json!({"method": 1})),
        condition(json!("GET")),
        json!({ "routes": [{"name": "no condition"}] }),
        json!({"routes": [null]}),
        json!({"routes": {}}),
        json!({"routes": ["GET"]}),
        route(json!({"isRetryable": "yes"})),
        route(json!({"timeout": 5})),
        route(json!({"responseClasses": {}})),
        class(Value::Null),
        class(json!({})),
        class(json!({"condition": null})),
        class(json!({"condition": {}})),
        class(json!({"condition": {"all": [null]}})),
        class(json!({"condition": {"not": [{"status": {"min": 500}}]}})),
        class(json!({"condition": {"status": {"min": 500}}, "isFailure": 1})),
        status(json!({"min": 99})),
        status(json!({"max": 600})),
        status(json!({"min": 500, "max": 499})),
        status(json!({"min": -1})),
        status(json!({"min": "500"})),
        budget(json!({"ttl": "soon"})),
        budget(json!({"ttl": ""})),
        budget(json!({"ttl": null})),
        budget(json!({"ttl": 10})),
        budget(json!({"minRetriesPerSecond": -5})),
        budget(json!({"minRetriesPerSecond": 0.5})),
        budget(json!({"retryRatio": "0.2"})),
        json!({"retryBudget": {"retryRatio": 0.2, "minRetriesPerSecond": 10}}),
        json!({"dstOverrides": [{"authority": "api", "weight": "heavy"}]}),
        json!({"dstOverrides": [{"authority": "api", "weight": ""}]}),
        json!({"dstOverrides": [{"authority": "api", "weight": true}]}),
        json!({"dstOverrides": [{"authority": 80, "weight": 1}]}),
        json!({"dstOverrides": [null]}),
        json!("routes"),
        json!([]),
    ];
    world.dice.pick(&broken).cloned()
}

/// A random ServiceProfile of any namespace.
fn any(world: &mut World) -> Option<Value> {
    let all: Vec<&Value> = world
        .objects
        .iter()
        .filter(|(key, _)| key.kind == ObjectKind::ServiceProfile)
        .map(|(_, object)| object)
        .collect();
    world.dice.pick(&all).map(|object| (*object).clone())
}

fn place(profile: &Value) -> (String, String) {
    let text = |pointer: &str| profile.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    (text("/metadata/namespace"), text("/metadata/name"))
}

fn rewrite(world: &mut World) -> Vec<Draft> {
    let Some(profile) = any(world) else { return Vec::new() };
    let (namespace, name) = place(&profile);
    vec![Draft::Put(fresh(world, &namespace, &name))]
}

/// The change of one field of a spec; none if the spec is not an object.
fn with_field(profile: Option<Value>, field: &str, value: Option<Value>) -> Vec<Draft> {
    let Some(mut profile) = profile else { return Vec::new() };
    let Some(spec) = profile.get_mut("spec").and_then(Value::as_object_mut) else { return Vec::new() };
    match value {
        Some(value) => drop(spec.insert(field.to_owned(), value)),
        None => drop(spec.remove(field)),
    }
    vec![Draft::Put(profile)]
}

fn rebudget(world: &mut World) -> Vec<Draft> {
    let budget = if world.dice.chance(80) { Some(budget(world)) } else { None };
    with_field(any(world), "retryBudget", budget)
}

fn override_others(world: &mut World) -> Vec<Draft> {
    let overrides = if world.dice.chance(80) { Some(overrides(world)) } else { None };
    with_field(any(world), "dstOverrides", overrides)
}

fn add_route(world: &mut World) -> Vec<Draft> {
    let new = route(world);
    let profile = any(world);
    let routes = profile.as_ref().and_then(|profile| profile.pointer("/spec/routes")?.as_array().cloned());
    let mut routes = routes.unwrap_or_default();
    routes.push(new);
    // A limit, so that answers stay readable.
    let routes = routes.into_iter().rev().take(4).rev().collect();
    with_field(profile, "routes", Some(routes))
}

/// Creates or deletes the ServiceProfile of a client or of the Service's owner, independent of other ServiceProfiles.
fn toggle(world: &mut World) -> Vec<Draft> {
    let namespace = world.dice.one_of(NAMESPACES);
    let of = if namespace == ELSEWHERE && world.dice.chance(30) { ELSEWHERE } else { NAMESPACE };
    let name = name(world.dice.one_of(service::NAMES), of);
    let found = world
        .objects
        .keys()
        .find(|key| key.kind == ObjectKind::ServiceProfile && key.namespace == namespace && key.name == name);
    match found.cloned() {
        Some(key) => vec![Draft::Delete(key)],
        None => vec![Draft::Put(fresh(world, namespace, &name))],
    }
}
