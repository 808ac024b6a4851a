//! The requirements of the API server for the source of a variable. Pure.
//!
//! In: a `valueFrom`, of the document or of an annotation. Out: what is wrong with it. Always holds: a reason shows no
//! part of the value; null counts as absent. The rules are those of Kubernetes' `EnvVarSource`.

use serde_json::{Map, Value};

use crate::api::{LONGEST_LABEL, LONGEST_NAME, is_dns_label, quantity::Quantity};

type SourceFields = Map<String, Value>;
type SourceCheck = Result<(), &'static str>;

const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const CPU_DIVISORS: &[&str] = &["1m", "1"];
const DECIMAL_DIVISORS: &[&str] = &["1", "1k", "1M", "1G", "1T", "1P", "1E"];
const BINARY_DIVISORS: &[&str] = &["1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// Whether a text is the name of a variable.
pub(crate) fn is_variable_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'=')
}

/// Returns what is wrong with a source that the API server rejects.
pub(crate) fn unusable_source(source: &Value) -> Option<&'static str> {
    check(source).err()
}

fn check(source: &Value) -> SourceCheck {
    let sources = source.as_object().ok_or("valueFrom is not a map")?;
    let mut sources = sources.iter().filter(|(_, fields)| !fields.is_null());
    let (Some((kind, fields)), None) = (sources.next(), sources.next()) else {
        return Err("valueFrom must have exactly one source");
    };
    let fields = fields.as_object().ok_or("the source is not a map")?;
    match kind.as_str() {
        "fieldRef" => field(fields),
        "configMapKeyRef" | "secretKeyRef" => key_of_object(fields),
        "resourceFieldRef" => resource(fields),
        "fileKeyRef" => key_of_file(fields),
        _ => Err("valueFrom has a source that Kubernetes does not know"),
    }
}

fn field(fields: &SourceFields) -> SourceCheck {
    require(["", "v1"].contains(&text(fields, "apiVersion")?), "fieldRef.apiVersion must be v1")?;
    let path = text(fields, "fieldPath")?;
    let subscript = |of: &str| path.strip_prefix(of)?.strip_prefix("['")?.strip_suffix("']");
    let is_known = FIELDS.contains(&path)
        || subscript("metadata.labels").is_some_and(is_qualified)
        || subscript("metadata.annotations").is_some_and(|key| is_qualified(&key.to_ascii_lowercase()));
    require(is_known, "fieldRef.fieldPath is not a field that a variable can have, such as metadata.name")
}

fn key_of_object(fields: &SourceFields) -> SourceCheck {
    check_optional(fields)?;
    require(is_subdomain(text(fields, "name")?), "the source must have a valid name of an object")?;
    let key = text(fields, "key")?;
    let is_key =
        (1..=LONGEST_NAME).contains(&key.len()) && key.bytes().all(is_of_name) && key != "." && !key.starts_with("..");
    require(is_key, "the source must have a key of letters, digits, -, _ and dots")
}

fn resource(fields: &SourceFields) -> SourceCheck {
    text(fields, "containerName")?;
    let path = text(fields, "resource")?;
    let name = path.strip_prefix("limits.").or_else(|| path.strip_prefix("requests.")).unwrap_or_default();
    let is_cpu = name == "cpu";
    let is_known = is_cpu || ["memory", "ephemeral-storage"].contains(&name) || name.starts_with("hugepages-");
    require(is_known, "resourceFieldRef.resource must be limits or requests of cpu, memory or ephemeral-storage")?;
    let divisor = match fields.get("divisor") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        Some(_) => return Err("resourceFieldRef.divisor must be a quantity"),
    };
    let parsed = |text: &str| text.parse::<Quantity>().ok();
    // The API server trims the text.
    let divisor = divisor.trim();
    let quantity = parsed(divisor).ok_or("resourceFieldRef.divisor must be a quantity")?;
    let allowed = match (is_cpu, divisor.ends_with('i')) {
        (true, _) => CPU_DIVISORS,
        (false, true) => BINARY_DIVISORS,
        (false, false) => DECIMAL_DIVISORS,
    };
    let is_unit = |unit: &str| parsed(unit) == Some(quantity) && (unit == divisor || is_rewritten(divisor));
    // Zero counts as absent.
    let fits = parsed("0") == Some(quantity) || allowed.iter().copied().any(is_unit);
    require(
        fits,
        if is_cpu {
            "resourceFieldRef.divisor must be 1m or 1"
        } else {
            "resourceFieldRef.divisor must be a unit such as 1, 1M or 1Mi"
        },
    )
}

/// Whether the API server rewrites a quantity before it looks for it in the list of units: 1000k is 1M then. It keeps
/// the text of a number without zeros at its end, such as 01k and +1, and it keeps exponents.
fn is_rewritten(quantity: &str) -> bool {
    let number = quantity.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let digits = number.trim_start_matches('0').trim_end_matches('.');
    digits != "1" && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

fn key_of_file(fields: &SourceFields) -> SourceCheck {
    check_optional(fields)?;
    require(is_dns_label(text(fields, "volumeName")?), "fileKeyRef.volumeName must be the name of a volume")?;
    let path = text(fields, "path")?;
    let is_below = !path.is_empty() && !path.starts_with('/') && path.split('/').all(|part| part != "..");
    require(is_below, "fileKeyRef.path must be a path in the volume")?;
    require(is_variable_name(text(fields, "key")?), "fileKeyRef.key must be the name of a variable")
}

fn require(fits: bool, reason: &'static str) -> SourceCheck {
    if fits { Ok(()) } else { Err(reason) }
}

fn text<'a>(fields: &'a SourceFields, key: &str) -> Result<&'a str, &'static str> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(value) => value.as_str().ok_or("the source has a field that must be a string"),
    }
}

fn check_optional(fields: &SourceFields) -> SourceCheck {
    let fits = fields.get("optional").is_none_or(|value| value.is_null() || value.is_boolean());
    require(fits, "the field optional of the source must be true or false")
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
}

/// A part of a DNS subdomain may be longer than a label.
fn is_subdomain(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(is_inner) && !part.starts_with('-') && !part.ends_with('-');
    text.len() <= LONGEST_NAME && text.split('.').all(is_part)
}

/// Whether a text is a key of labels: a name, perhaps after a DNS subdomain and a slash.
fn is_qualified(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_end = |c: char| c.is_ascii_alphanumeric();
    prefix.is_none_or(is_subdomain)
        && (1..=LONGEST_LABEL).contains(&name.len())
        && name.bytes().all(is_of_name)
        && name.starts_with(is_end)
        && name.ends_with(is_end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_source_is_usable_if_the_api_server_accepts_it() {
        for source in [
            json!({"fieldRef": {"fieldPath": "status.podIPs"}}),
            json!({"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.labels['app.kubernetes.io/name']"}}),
            json!({"fieldRef": {"fieldPath": "metadata.annotations['Team']"}, "secretKeyRef": null}),
            json!({"configMapKeyRef": {"name": "a.b", "key": "A_b.c", "optional": true}}),
            json!({"secretKeyRef": {"name": "a", "key": "b"}}),
            json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}),
            json!({"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi", "containerName": "a"}}),
            json!({"resourceFieldRef": {"resource": "limits.ephemeral-storage", "divisor": 1}}),
            json!({"resourceFieldRef": {"resource": "limits.memory", "divisor": "0"}}),
            json!({"fileKeyRef": {"volumeName": "a", "path": "b/c", "key": "D e"}}),
        ] {
            assert_eq!(unusable_source(&source), None, "{source}");
        }
    }

    #[test]
    fn a_source_that_the_api_server_rejects_is_unusable() {
        for source in [
            json!("a"),
            json!({}),
            json!({"fooRef": {"name": "a"}}),
            json!({"fieldRef": 5}),
            json!({"fieldRef": {}}),
            json!({"fieldRef": {"fieldPath": ""}}),
            json!({"fieldRef": {"fieldPath": 5}}),
            json!({"fieldRef": {"fieldPath": "spec.foo"}}),
            json!({"fieldRef": {"fieldPath": "metadata.labels"}}),
            json!({"fieldRef": {"fieldPath": "metadata.labels['']"}}),
            json!({"fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v2"}}),
            json!({"fieldRef": {"fieldPath": "metadata.name"}, "secretKeyRef": {"name": "a", "key": "b"}}),
            json!({"configMapKeyRef": {"name": "a", "key": ""}}),
            json!({"configMapKeyRef": {"name": "a", "key": "a b"}}),
            json!({"configMapKeyRef": {"key": "a"}}),
            json!({"secretKeyRef": {"name": "A B", "key": "a"}}),
            json!({"secretKeyRef": {"name": "a", "key": "..a"}}),
            json!({"secretKeyRef": {"name": "a", "key": "a", "optional": "yes"}}),
            json!({"resourceFieldRef": {}}),
            json!({"resourceFieldRef": {"resource": "limits.foo"}}),
            json!({"resourceFieldRef": {"resource": "limits.gpu"}}),
            json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1k"}}),
            json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "all"}}),
            json!({"resourceFieldRef": {"resource": "limits.memory", "divisor": "3"}}),
            json!({"resourceFieldRef": {"resource": "limits.memory", "divisor": "1024"}}),
            json!({"resourceFieldRef": {"resource": "limits.memory", "divisor": "1m"}}),
            json!({"fileKeyRef": {"volumeName": "A B", "path": "b", "key": "D"}}),
            json!({"fileKeyRef": {"volumeName": "a", "path": "../b", "key": "D"}}),
            json!({"fileKeyRef": {"volumeName": "a", "path": "b", "key": "D=e"}}),
            json!({"fileKeyRef": {"volumeName": "a", "path": "b", "key": "é"}}),
            json!({"fileKeyRef": {"volumeName": "a", "path": "b", "key": ""}}),
        ] {
            assert!(unusable_source(&source).is_some(), "{source}");
        }
    }

    /// The answers are those of the API server of Kubernetes 1.36.
    #[test]
    fn a_divisor_is_a_unit_as_the_api_server_writes_it() {
        let unusable = |resource: &str, divisor: &serde_json::Value| {
            unusable_source(&json!({"resourceFieldRef": {"resource": resource, "divisor": divisor}}))
        };
        for divisor in ["1", "1.0", "1.000", "1000m", "0.001k", "0", "0e5"] {
            for resource in ["limits.cpu", "limits.memory", "limits.hugepages-2Mi"] {
                assert_eq!(unusable(resource, &json!(divisor)), None, "{resource} {divisor}");
            }
        }
        for divisor in ["1000", "1000k", "1000.0", "1E", "1000P", "1Ki", "1.0Ki", "1024Ki", "1024Pi", " 1Mi", "1Mi "] {
            assert_eq!(unusable("limits.memory", &json!(divisor)), None, "{divisor}");
        }
        assert_eq!([unusable("limits.cpu", &json!("0.001")), unusable("limits.memory", &json!(1000))], [None; 2]);
        for divisor in ["1e0", "1E0", "1e3", "1e6", "1e18", "01", "+1", "1.", "01k", "1.k", "1024", "0.5Ki"] {
            assert!(unusable("limits.memory", &json!(divisor)).is_some(), "{divisor}");
        }
        for divisor in ["1e-3", "1e0", "1k", "1Ki", "01", "+1m"] {
            assert!(unusable("limits.cpu", &json!(divisor)).is_some(), "{divisor}");
        }
    }
}
