//! The part of the values document that affects an injected Pod.
//!
//! * In: the text of the file. Out: [`Values`], or the failure of the injector.
//! * Always: decoded as Go decodes into Linkerd's struct: an absent key is the zero value, not the default of the
//!   chart; a number or a bool is accepted as a string; unknown keys are ignored. Only the keys declared here are
//!   validated.
//! * The parser follows YAML 1.2, Linkerd's parser 1.1. Other tests prove that both decode the operator's output in the
//!   same way.

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
use serde_json::{Map, Value};

/// Maps behind pointers, which Linkerd dereferences without a check.
const REQUIRED: [&str; 4] = ["/identity", "/proxy", "/proxy/image", "/proxy/ports"];

/// The failure of the injector for a document.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Unfit {
    /// Every creation is denied, with this message.
    Unreadable(String),
    /// A nil pointer: the connection is closed without an answer.
    Panics,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Values {
    pub(super) linkerd_version: Text,
    pub(super) cluster_domain: Text,
    pub(super) image_pull_policy: Text,
    #[serde(deserialize_with = "map_or_null")]
    pub(super) proxy: Proxy,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Proxy {
    #[serde(deserialize_with = "map_or_null")]
    pub(super) image: Image,
    pub(super) log_level: Text,
    pub(super) log_format: Text,
    #[serde(rename = "logHTTPHeaders")]
    pub(super) log_http_headers: Text,
    pub(super) native_sidecar: Option<bool>,
    pub(super) uid: Option<i64>,
    pub(super) gid: Option<i64>,
    #[serde(deserialize_with = "map_or_null")]
    pub(super) ports: Ports,
    /// Arbitrary entries of `env`.
    pub(super) additional_env: Option<Vec<Map<String, Value>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Image {
    pub(super) name: Text,
    pub(super) version: Text,
    pub(super) pull_policy: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Ports {
    pub(super) admin: Option<i32>,
    pub(super) control: Option<i32>,
    pub(super) inbound: Option<i32>,
    pub(super) outbound: Option<i32>,
}

/// A string, or a scalar that is accepted as one.
#[derive(Debug, Default)]
pub(super) struct Text(String);

impl Values {
    pub(super) fn read(text: &str) -> Result<Self, Unfit> {
        let document: Value = serde_yaml::from_str(text)
            .map_err(|error| Unfit::Unreadable(format!("error converting YAML to JSON: yaml: {error}")))?;
        let missing = REQUIRED.iter().any(|map| document.pointer(map).is_none_or(Value::is_null));
        let values = map(document).map_err(|error| {
            Unfit::Unreadable(format!("error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {error}"))
        })?;
        if missing { Err(Unfit::Panics) } else { Ok(values) }
    }

    /// The tag of the proxy's image.
    pub(super) fn proxy_version(&self) -> &str {
        self.proxy.image.version.or(&self.linkerd_version)
    }

    pub(super) fn pull_policy(&self) -> &str {
        self.proxy.image.pull_policy.or(&self.image_pull_policy)
    }
}

impl Text {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    fn or<'a>(&'a self, other: &'a Self) -> &'a str {
        if self.0.is_empty() { &other.0 } else { &self.0 }
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Null => Ok(Self::default()),
            Value::String(text) => Ok(Self(text)),
            plain @ (Value::Bool(_) | Value::Number(_)) => Ok(Self(plain.to_string())),
            Value::Array(_) => Err(D::Error::custom("array into Go value of type string")),
            Value::Object(_) => Err(D::Error::custom("object into Go value of type string")),
        }
    }
}

/// Serde would also decode a struct from an array, but not from null.
fn map<T: DeserializeOwned + Default>(value: Value) -> Result<T, String> {
    match value {
        Value::Null => Ok(T::default()),
        Value::Object(_) => serde_json::from_value(value).map_err(|error| error.to_string()),
        Value::Array(_) => Err("array into Go value of type map".to_owned()),
        Value::String(_) => Err("string into Go value of type map".to_owned()),
        Value::Bool(_) | Value::Number(_) => Err("scalar into Go value of type map".to_owned()),
    }
}

fn map_or_null<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(deserializer: D) -> Result<T, D::Error> {
    map(Value::deserialize(deserializer)?).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHART: &str = include_str!("../../../src/linkerd_config/values/testdata/installed.yaml");

    fn fails(text: &str) -> Unfit {
        Values::read(text).unwrap_err()
    }

    #[test]
    fn the_values_of_the_chart_are_decoded() {
        let values = Values::read(CHART).unwrap();
        assert_eq!(values.proxy_version(), "edge-26.8.3");
        assert_eq!(values.pull_policy(), "IfNotPresent");
        assert_eq!(values.proxy.log_http_headers.as_str(), "off");
        assert_eq!(values.proxy.native_sidecar, Some(true));
        assert_eq!(values.proxy.ports.inbound, Some(4143));
        assert!(values.proxy.additional_env.is_none());
    }

    #[test]
    fn a_number_is_accepted_as_a_string_but_not_the_reverse() {
        let values = Values::read(&CHART.replace("logLevel: warn,", "logLevel: 7 #")).unwrap();
        assert_eq!(values.proxy.log_level.as_str(), "7");
        assert!(matches!(fails(&CHART.replace("uid: 2102", "uid: \"2102\"")), Unfit::Unreadable(_)));
        assert!(matches!(fails(&CHART.replace("logFormat: plain", "logFormat: {}")), Unfit::Unreadable(_)));
    }

    #[test]
    fn a_document_that_is_not_a_yaml_map_is_unreadable() {
        for text in ["proxy: {", "[]", "text", "proxy: 7", "proxy: []", "a: 1\n b: 2"] {
            assert!(matches!(fails(text), Unfit::Unreadable(_)), "{text}");
        }
    }

    #[test]
    fn a_missing_map_causes_a_panic() {
        for text in ["", "null", "{}", "identity: {}", "identity: {}\nproxy:", "proxy: {image: {}, ports: {}}"] {
            assert_eq!(fails(text), Unfit::Panics, "{text}");
        }
        assert_eq!(fails(&CHART.replace("\nidentity:\n", "\nother:\n")), Unfit::Panics);
        assert_eq!(fails(&CHART.replace("  ports:\n", "  other:\n")), Unfit::Panics);
    }
}
