//! Values for display, without secrets.
//!
//! Always holds: no part of a secret is shown, at any depth; certificates are shown as a count.

use serde_json::{Map, Value};

use super::{
    Path,
    findings::{HIDDEN, KEY, is_secret},
    path::shortened,
};

const PEM: &str = "-----BEGIN ";
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

/// Returns the value with secrets and certificates replaced.
pub fn visible(path: &Path, value: &Value) -> Value {
    match value {
        _ if is_secret(path) && !is_empty(value) => Value::from(HIDDEN),
        Value::String(text) if text.contains(KEY) => Value::from(HIDDEN),
        Value::String(text) if text.contains(PEM) => Value::from(certificates(text)),
        Value::Array(items) => items.iter().map(|item| visible(path, item)).collect(),
        Value::Object(map) => {
            let below = map.iter().map(|(key, value)| (key.clone(), visible(&path.with(key), value)));
            Value::Object(below.collect::<Map<_, _>>())
        }
        value => value.clone(),
    }
}

/// Returns the visible value as one line of JSON, shortened. A text that replaces a value is not quoted.
pub fn shown(path: &Path, value: &Value, longest: usize) -> String {
    match visible(path, value) {
        Value::String(text) if value.as_str() != Some(&text) => text,
        visible => shortened(&visible.to_string(), longest),
    }
}

fn certificates(text: &str) -> String {
    match text.matches(CERTIFICATE).count() {
        1 => "(PEM, 1 certificate)".to_owned(),
        count => format!("(PEM, {count} certificates)"),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn displayed(keys: &[&str], value: &Value) -> String {
        shown(&Path::from(keys), value, 40)
    }

    #[test]
    fn values_are_one_short_line_of_json() {
        for (value, expected) in [
            (json!("warn"), r#""warn""#),
            (json!("a\nb"), r#""a\nb""#),
            (json!(4191), "4191"),
            (json!(null), "null"),
            (json!({"a": [1, "b"]}), r#"{"a":[1,"b"]}"#),
            (json!("x".repeat(100)), &*format!("\"{}…", "x".repeat(39))),
        ] {
            assert_eq!(displayed(&["proxy", "logLevel"], &value), expected);
        }
    }

    #[test]
    fn secrets_are_never_shown_and_certificates_are_counted() {
        let certificate = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n";
        let key = "-----BEGIN EC PRIVATE KEY-----\nMII\n-----END EC PRIVATE KEY-----\n";
        for (keys, value, expected) in [
            (&["identityTrustAnchorsPEM"][..], json!(certificate), "(PEM, 1 certificate)"),
            (&["identityTrustAnchorsPEM"], json!([certificate, certificate].concat()), "(PEM, 2 certificates)"),
            (&["identityTrustAnchorsPEM"], json!([certificate, key].concat()), HIDDEN),
            (&["identity", "issuer", "tls", "keyPEM"], json!("MII"), HIDDEN),
            (&["proxy", "additionalEnv"], json!([{"name": "A", "value": "MII"}]), HIDDEN),
            (&["proxy", "additionalEnv"], json!([]), "[]"),
            (&["new"], json!({"list": [{"KeyPem": "MII"}]}), r#"{"list":[{"KeyPem":"(not shown)"}]}"#),
            (&["new"], json!([key]), r#"["(not shown)"]"#),
        ] {
            assert_eq!(displayed(keys, &value), expected);
            assert!(!visible(&Path::from(keys), &value).to_string().contains("MII"));
        }
    }
}
