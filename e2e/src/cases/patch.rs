//! Edits of JSON values: patches, and replaced texts.

use serde_json::Value;

/// Applies a patch: objects are merged, and other values are replaced. `null` removes a field; where the field does not
/// exist, it is added with the value `null`.
pub(super) fn patch(into: &mut Value, by: &Value) {
    let (Value::Object(into), Value::Object(by)) = (&mut *into, by) else {
        *into = by.clone();
        return;
    };
    for (key, value) in by {
        match into.get_mut(key) {
            Some(_) if value.is_null() => drop(into.remove(key)),
            Some(field) => patch(field, value),
            None => drop(into.insert(key.clone(), value.clone())),
        }
    }
}

/// Replaces every text by `edit`: values and keys, at any depth.
pub(super) fn replace_texts(value: &Value, edit: &impl Fn(&str) -> Value) -> Value {
    match value {
        Value::String(text) => edit(text),
        Value::Array(items) => items.iter().map(|item| replace_texts(item, edit)).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| {
                let key = match edit(key) {
                    Value::String(key) => key,
                    other => other.to_string(),
                };
                (key, replace_texts(value, edit))
            });
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}
