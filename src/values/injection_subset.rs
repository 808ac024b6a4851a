//! The part of a document that affects what the injector adds to a Pod.

use serde_json::{Map, Value};

use super::{
    CONFIG_HASH_ENV,
    canonical::below,
    go_types::{GoType, VALUES},
};

/// The paths that reach an injected Pod, each with everything below it. Unknown keys below them count too, because the
/// injector may use them.
const AFFECTS_INJECTION: [&[&str]; 13] = [
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
/// The paths below [`AFFECTS_INJECTION`] that do not reach an injected Pod.
const NOT_INJECTED: [&[&str]; 3] =
    [&["proxy", "outboundTransportMode"], &["proxyInit", "kubeAPIServerPorts"], &["proxyInit", "resources"]];

/// Returns the part that affects injection, without nulls and Go's zeros: the injector does not distinguish them from
/// keys that are absent.
pub(super) fn injection_subset(map: &Map<String, Value>) -> Map<String, Value> {
    let mut subset = Map::new();
    for keys in AFFECTS_INJECTION {
        copy(map, keys, &mut subset);
    }
    for keys in NOT_INJECTED {
        remove(&mut subset, keys);
    }
    if let Some(env) =
        subset.get_mut("proxy").and_then(|proxy| proxy.get_mut("additionalEnv")).and_then(Value::as_array_mut)
    {
        env.retain(|variable| variable.get("name").and_then(Value::as_str) != Some(CONFIG_HASH_ENV));
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

fn drop_zeros(map: &mut Map<String, Value>, holds: &GoType) {
    // An entry of a Go map counts, even if its value is a zero.
    let counted = matches!(holds, GoType::Map(_) | GoType::Any);
    map.retain(|key, value| {
        if let Value::Object(map) = value {
            drop_zeros(map, &below(holds, key).1);
        }
        match value {
            Value::Null => false,
            _ if counted || matches!(below(holds, key).1, GoType::Any) => true,
            Value::Bool(it) => *it,
            Value::Number(it) => it.as_f64() != Some(0.0),
            Value::String(it) => !it.is_empty(),
            Value::Array(it) => !it.is_empty(),
            Value::Object(it) => !it.is_empty(),
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::values::go_types::GoField;

    /// Such a table changes the hash of a document. So proxies keep the hash that they were given for it.
    #[test]
    fn a_table_that_learns_a_key_drops_its_zero() {
        static OLD: GoType = GoType::Struct(&[]);
        static NEW: GoType = GoType::Struct(&[GoField { name: "aNewFlag", holds: GoType::Bool }]);
        let subset = |table| {
            let mut map = json!({"aNewFlag": false}).as_object().unwrap().clone();
            drop_zeros(&mut map, table);
            map.len()
        };
        assert_eq!((subset(&OLD), subset(&NEW)), (1, 0));
    }
}
