//! The part of a document that affects what the injector adds to a Pod.

use serde_json::{Map, Value};

use super::{
    CONFIG_HASH_ENV,
    model::{GoStruct, IdentityValues, ProxyContainerValues, ProxyInitValues, ProxyValues, VALUES},
    unknown_keys::drop_unknown,
};
use crate::go::types::GoType;

/// Returns the part that affects injection, without nulls and Go's zeros: the injector does not distinguish them from
/// keys that are absent. Unknown keys of the injected maps count only if the injector may be of a version that uses
/// them.
pub(super) fn injection_subset(map: &Map<String, Value>) -> Map<String, Value> {
    let mut subset = injected_part(map);
    drop_unknown(&mut subset);
    drop_zeros(&mut subset, &VALUES);
    subset
}

/// Returns the same part with unknown keys, which counted in earlier versions of the operator.
pub(super) fn with_unknown_keys(map: &Map<String, Value>) -> Map<String, Value> {
    let mut subset = injected_part(map);
    drop_zeros(&mut subset, &VALUES);
    subset
}

/// Returns the part that affects injection, as it stands in the document.
pub(super) fn injected_part(map: &Map<String, Value>) -> Map<String, Value> {
    let mut subset = only(map, ProxyValues::INJECTED);
    // Unknown keys of this map belong to the control plane.
    let identity = subset.remove("identity").and_then(|it| Some(only(it.as_object()?, IdentityValues::INJECTED)));
    subset.extend(identity.map(|it| ("identity".to_owned(), Value::Object(it))));
    for (part, not_injected) in
        [("proxy", ProxyContainerValues::CONTROL_PLANE), ("proxyInit", ProxyInitValues::CONTROL_PLANE)]
    {
        if let Some(Value::Object(below)) = subset.get_mut(part) {
            below.retain(|key, _| !not_injected.contains(&key.as_str()));
        }
    }
    if let Some(env) =
        subset.get_mut("proxy").and_then(|proxy| proxy.get_mut("additionalEnv")).and_then(Value::as_array_mut)
    {
        env.retain(|variable| variable.get("name").and_then(Value::as_str) != Some(CONFIG_HASH_ENV));
    }
    subset
}

fn only(map: &Map<String, Value>, keys: &[&str]) -> Map<String, Value> {
    keys.iter().filter_map(|key| map.get(*key).map(|value| ((*key).to_owned(), value.clone()))).collect()
}

fn drop_zeros(map: &mut Map<String, Value>, holds: &GoType) {
    // An entry of a Go map counts, even if its value is a zero.
    let counted = matches!(holds, GoType::Map(_) | GoType::Any);
    map.retain(|key, value| {
        if let Value::Object(map) = value {
            drop_zeros(map, &holds.below(key));
        }
        match value {
            Value::Null => false,
            // A quantity is not compared with zero: its text may be 0m.
            _ if counted || matches!(holds.below(key), GoType::Any | GoType::Quantity) => true,
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
    use crate::go::types::GoField;

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
