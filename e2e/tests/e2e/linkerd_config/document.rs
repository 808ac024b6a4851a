//! Merge and comparison of documents as JSON.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// Merges a patch into a document, by RFC 7386.
pub(super) fn put_over(base: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *base = patch.clone();
        return;
    };
    if !base.is_object() {
        *base = json!({});
    }
    for (key, value) in patch {
        match value {
            Value::Null => {
                base.as_object_mut().map(|base| base.remove(key));
            }
            value => put_over(&mut base[key], value),
        }
    }
}

/// The document without the variable that marks the proxies injected with it.
pub(super) fn unmarked(mut document: Value) -> Value {
    let variables = document.pointer_mut("/proxy/additionalEnv");
    if let Some(Value::Array(list)) = variables {
        list.retain(|variable| variable["name"] != "LINKERD_CONFIG_HASH");
        if list.is_empty() {
            document["proxy"]["additionalEnv"] = Value::Null;
        }
    }
    document
}

/// The differences between two documents, with their paths.
pub(super) fn difference(seen: &Value, expected: &Value) -> String {
    let mut lines = Vec::new();
    differences("", seen, expected, &mut lines);
    lines.join("; ")
}

fn differences(path: &str, seen: &Value, expected: &Value, lines: &mut Vec<String>) {
    match (seen, expected) {
        (Value::Object(seen), Value::Object(expected)) => {
            let keys: BTreeSet<_> = seen.keys().chain(expected.keys()).collect();
            for key in keys {
                let side = |side: &Map<String, Value>| side.get(key).cloned().unwrap_or(json!("(absent)"));
                differences(&format!("{path}/{key}"), &side(seen), &side(expected), lines);
            }
        }
        (seen, expected) if seen == expected => {}
        (seen, expected) => lines.push(format!("{path}: {seen} instead of {expected}")),
    }
}
