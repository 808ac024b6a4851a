//! Converts JSON to YAML that parses the same by the rules of YAML 1.1 and of YAML 1.2.
//!
//! serde-saphyr quotes strings that YAML 1.1 parses as a bool, a null, a number or a timestamp, and escapes unusual
//! characters. Go's reader rejects a tab before the first character of a line of a block scalar, so strings with tabs
//! are quoted too.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use serde_saphyr::{LitStr, ser_error::Error, ser_options};

/// Returns YAML in block style, with sorted keys.
///
/// # Errors
/// No failure is known: serde-saphyr writes every JSON value.
pub(super) fn to_yaml(map: &Map<String, Value>) -> Result<String, Error> {
    serde_saphyr::to_string_with_options(&SortedMap(map), ser_options! { prefer_block_scalars: false })
}

/// A map with sorted keys. Whether a map of serde_json is sorted depends on features that other crates may enable.
struct SortedMap<'a>(&'a Map<String, Value>);

struct Sorted<'a>(&'a Value);

impl Serialize for SortedMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sorted: BTreeMap<&String, &Value> = self.0.iter().collect();
        serializer.collect_map(sorted.into_iter().map(|(key, value)| (key, Sorted(value))))
    }
}

impl Serialize for Sorted<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(map) => SortedMap(map).serialize(serializer),
            Value::Array(items) => serializer.collect_seq(items.iter().map(Sorted)),
            // A certificate, for example.
            Value::String(text) if text.contains('\n') && !text.contains('\t') => LitStr(text).serialize(serializer),
            value => value.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_output_looks_like_helms() {
        let value = json!({
            "proxy": {
                "logLevel": "warn,linkerd=info",
                "logHTTPHeaders": "off",
                "opaquePorts": "25,587",
                "image": {"name": "cr.l5d.io/linkerd/proxy", "version": ""},
                "additionalEnv": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
                "cores": null,
            },
            "matrix": [[1, 2], [], ["a"]],
            "pem": "-----BEGIN-----\nMII\n-----END-----\n",
            "empty": {},
            "ratio": 0.5,
        });
        let text = to_yaml(value.as_object().unwrap()).unwrap();
        let expected = r#"empty: {}
matrix:
- - 1
  - 2
- []
- - a
pem: |
  -----BEGIN-----
  MII
  -----END-----
proxy:
  additionalEnv:
  - name: A
    value: "1"
  - name: B
    valueFrom:
      fieldRef:
        fieldPath: x
  cores: null
  image:
    name: cr.l5d.io/linkerd/proxy
    version: ""
  logHTTPHeaders: "off"
  logLevel: warn,linkerd=info
  opaquePorts: 25,587
ratio: 0.5
"#;
        assert_eq!(text, expected);
        assert_eq!(to_yaml(&Map::new()).unwrap(), "{}\n");
    }

    #[test]
    fn floats_look_like_floats_to_every_reader() {
        for (number, text) in [
            (0.5, "0.5"),
            (-1e-5, "-0.00001"),
            (1e-7, "1.0e-7"),
            (1.5e300, "1.5e+300"),
            (1e20, "1.0e+20"),
            (5e-324, "5.0e-324"),
        ] {
            assert_eq!(to_yaml(json!({"a": number}).as_object().unwrap()).unwrap(), format!("a: {text}\n"));
        }
    }
}
