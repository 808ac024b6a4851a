//! Linkerd's keys and types, laid over JSON: spelling, the strings that Go makes of numbers, types, and what shapes Pods.

use std::collections::{BTreeMap, btree_map::Entry};

use serde_json::{Map, Value};

use super::{
    MARKER, Path,
    scalar::spelled_by_go,
    table::{Field, Type, VALUES},
};

/// Two keys of one map that Go's decoder takes for the same.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TwoSpellings {
    /// In Linkerd's spelling.
    pub(super) path: Path,
    pub(super) one: String,
    pub(super) other: String,
}

/// What of a document reaches an injected Pod, each with all below it. Keys below them that we do not know count too: the
/// injector may know them.
const SHAPES_PODS: [&[&str]; 13] = [
    &["clusterDomain"],
    &["clusterNetworks"],
    &["cniEnabled"],
    &["debugContainer"],
    &["disableIPv6"],
    &["identity", "serviceAccountTokenProjection"],
    &["identityTrustDomain"],
    &["imagePullPolicy"],
    &["linkerdVersion"],
    &["networkValidator"],
    &["proxy"],
    &["proxyInit"],
    &["proxyContainerName"],
];
/// Below them, what does not.
const SHAPES_NONE: [&[&str]; 3] =
    [&["proxy", "outboundTransportMode"], &["proxyInit", "kubeAPIServerPorts"], &["proxyInit", "resources"]];

// === Spelling ===

/// Gives every key Linkerd's spelling and every value the form that Go gives it. Of two spellings of one key the exact one
/// stays, and the first such pair is returned.
pub(super) fn canonical(map: &mut Map<String, Value>) -> Option<TwoSpellings> {
    let mut found = None;
    *map = canonical_map(std::mem::take(map), &VALUES, true, &Path::default(), &mut found);
    found
}

pub(super) fn canonical_path(path: &Path) -> Path {
    let mut holds = Type::clone(&VALUES);
    let mut keys: Vec<&str> = Vec::with_capacity(path.keys().len());
    for key in path.keys() {
        let (name, below) = below(&holds, key);
        keys.push(name);
        holds = below;
    }
    keys.into_iter().collect()
}

/// Of a value that is to stand at a canonical path.
pub(super) fn canonical_value(path: &Path, value: Value) -> Value {
    let (mut holds, mut coerced) = (Type::clone(&VALUES), true);
    for key in path.keys() {
        coerced &= !matches!(holds, Type::Embedded(_));
        holds = below(&holds, key).1;
    }
    canonical_of(value, &holds, coerced, path, &mut None)
}

/// The field that a key means: the one of this spelling, else one that differs in case only.
pub(super) fn field<'a>(fields: &'a [Field], key: &str) -> Option<&'a Field> {
    fields.iter().find(|field| field.name == key).or_else(|| fields.iter().find(|field| folds_to(field.name, key)))
}

/// As encoding/json compares. Linkerd's names are ASCII, and two letters beyond fold into it.
fn folds_to(name: &str, key: &str) -> bool {
    let folded = |c: char| match c {
        'ſ' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    name.chars().map(folded).eq(key.chars().map(folded))
}

/// A key in its spelling, and what stands below it.
fn below<'a>(holds: &Type, key: &'a str) -> (&'a str, Type) {
    match holds {
        Type::Struct(fields) => match field(fields, key) {
            Some(field) => (field.name, field.holds),
            None => (key, Type::Any),
        },
        Type::Map(item) => (key, **item),
        Type::Embedded(inner) => below(inner, key),
        _ => (key, Type::Any),
    }
}

fn canonical_map(
    map: Map<String, Value>,
    holds: &Type,
    coerced: bool,
    above: &Path,
    found: &mut Option<TwoSpellings>,
) -> Map<String, Value> {
    // By Linkerd's spelling: the one that was found, and the value.
    let mut spelled: BTreeMap<&str, (&String, Value)> = BTreeMap::new();
    let keys: Vec<_> = map.keys().cloned().collect();
    for (key, value) in keys.iter().zip(map.into_iter().map(|(_, value)| value)) {
        let (name, holds) = below(holds, key);
        let path = above.with(name);
        let value = canonical_of(value, &holds, coerced, &path, found);
        match spelled.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert((key, value));
            }
            Entry::Occupied(mut entry) => {
                let one = entry.get().0.clone();
                found.get_or_insert_with(|| TwoSpellings { path, one, other: key.clone() });
                if name == key {
                    entry.insert((key, value));
                }
            }
        }
    }
    spelled.into_iter().map(|(name, (_, value))| (name.to_owned(), value)).collect()
}

fn canonical_of(value: Value, holds: &Type, coerced: bool, path: &Path, found: &mut Option<TwoSpellings>) -> Value {
    let (holds, coerced) = match holds {
        Type::Embedded(inner) => (*inner, false),
        holds => (holds, coerced),
    };
    match (value, holds) {
        (Value::Object(map), _) => Value::Object(canonical_map(map, holds, coerced, path, found)),
        (Value::Array(items), _) => {
            let item = if let Type::List(item) = holds { *item } else { &Type::Any };
            items.into_iter().map(|value| canonical_of(value, item, coerced, path, found)).collect()
        }
        (Value::Bool(it), Type::Text) if coerced => Value::from(it.to_string()),
        (Value::Number(it), Type::Text) if coerced => Value::from(match it.as_f64() {
            Some(float) if it.is_f64() => spelled_by_go(float),
            _ => it.to_string(),
        }),
        (Value::Number(it), _) => Value::Number(whole(it)),
        (value, _) => value,
    }
}

/// A whole number has one form.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within bounds and whole")]
fn whole(number: serde_json::Number) -> serde_json::Number {
    const END_OF_U64: f64 = 18_446_744_073_709_551_616.0;
    const START_OF_I64: f64 = -9_223_372_036_854_775_808.0;
    match number.as_f64().filter(|it| number.is_f64() && it.fract() == 0.0) {
        Some(it) if (0.0..END_OF_U64).contains(&it) => (it as u64).into(),
        Some(it) if (START_OF_I64..0.0).contains(&it) => (it as i64).into(),
        _ => number,
    }
}

// === What shapes Pods ===

/// Without nulls and Go's zeros, which it does not tell from what is absent.
pub(super) fn injection_subset(map: &Map<String, Value>) -> Map<String, Value> {
    let mut subset = Map::new();
    for keys in SHAPES_PODS {
        copy(map, keys, &mut subset);
    }
    for keys in SHAPES_NONE {
        remove(&mut subset, keys);
    }
    if let Some(env) =
        subset.get_mut("proxy").and_then(|proxy| proxy.get_mut("additionalEnv")).and_then(Value::as_array_mut)
    {
        env.retain(|variable| variable.get("name").and_then(Value::as_str) != Some(MARKER));
    }
    drop_zeros(&mut subset, &VALUES);
    subset
}

fn copy(from: &Map<String, Value>, keys: &[&str], to: &mut Map<String, Value>) {
    match keys {
        [] => {}
        [last] => {
            if let Some(value) = from.get(*last) {
                to.insert((*last).to_owned(), value.clone());
            }
        }
        [first, rest @ ..] => {
            if let Some(Value::Object(from)) = from.get(*first)
                && let Value::Object(to) = to.entry(*first).or_insert_with(|| Value::Object(Map::new()))
            {
                copy(from, rest, to);
            }
        }
    }
}

fn remove(from: &mut Map<String, Value>, keys: &[&str]) {
    match keys {
        [] => {}
        [last] => {
            from.remove(*last);
        }
        [first, rest @ ..] => {
            if let Some(Value::Object(below)) = from.get_mut(*first) {
                remove(below, rest);
            }
        }
    }
}

fn drop_zeros(map: &mut Map<String, Value>, holds: &Type) {
    // An entry of a Go map is more than none, whatever it holds.
    let counted = matches!(holds, Type::Map(_) | Type::Any);
    map.retain(|key, value| {
        if let Value::Object(map) = value {
            drop_zeros(map, &below(holds, key).1);
        }
        match value {
            Value::Null => false,
            _ if counted || matches!(below(holds, key).1, Type::Any) => true,
            Value::Bool(it) => *it,
            Value::Number(it) => it.as_f64() != Some(0.0),
            Value::String(it) => !it.is_empty(),
            Value::Array(it) => !it.is_empty(),
            Value::Object(it) => !it.is_empty(),
        }
    });
}
