//! The part of the values document that affects an injected Pod.
//!
//! * In: the text of the file. Out: [`Values`], or the failure of the injector for every object.
//! * Always: decoded as Go decodes into Linkerd's struct: an absent key is the zero value, not the default of the
//!   chart; a number or a bool is accepted as a string; unknown keys are ignored. Only the keys declared here are
//!   validated.
//! * The parser follows YAML 1.2, Linkerd's parser 1.1. Other tests prove that both decode the operator's output in the
//!   same way.

use std::net::IpAddr;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
use serde_json::{Map, Value};

/// The map behind a pointer that Linkerd dereferences without a check, for every object.
const REQUIRED: &str = "/proxy";
/// Maps that it dereferences for a Pod to inject.
const REQUIRED_TO_INJECT: [&str; 2] = ["/proxy/image", "/proxyInit"];
/// Maps that its template requires.
const REQUIRED_BY_TEMPLATE: [&str; 7] = [
    "/identity",
    "/proxy/livenessProbe",
    "/proxy/metrics",
    "/proxy/ports",
    "/proxy/readinessProbe",
    "/proxy/resources",
    "/proxyInit/xtMountPath",
];

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
    pub(super) cluster_networks: Text,
    pub(super) cni_enabled: Option<bool>,
    pub(super) image_pull_policy: Text,
    #[serde(deserialize_with = "map_or_null")]
    pub(super) identity: IdentityValues,
    #[serde(deserialize_with = "map_or_null")]
    pub(super) proxy: ProxyValues,
    #[serde(deserialize_with = "map_or_null")]
    pub(super) proxy_init: ProxyInit,
    /// The maps that a Pod to inject requires, and that are missing.
    #[serde(skip)]
    missing: Vec<&'static str>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct IdentityValues {
    pub(super) service_account_token_projection: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ProxyInit {
    pub(super) close_wait_timeout_secs: Option<i64>,
    pub(super) iptables_mode: Text,
    pub(super) run_as_root: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ProxyValues {
    #[serde(deserialize_with = "map_or_null")]
    pub(super) image: ImageValues,
    pub(super) log_level: Text,
    pub(super) log_format: Text,
    #[serde(rename = "logHTTPHeaders")]
    pub(super) log_http_headers: Text,
    pub(super) native_sidecar: Option<bool>,
    #[serde(rename = "await")]
    pub(super) wait: Option<bool>,
    pub(super) uid: Option<i64>,
    pub(super) gid: Option<i64>,
    #[serde(deserialize_with = "map_or_null")]
    pub(super) ports: Ports,
    /// Arbitrary entries of `env`.
    pub(super) additional_env: Option<Vec<Map<String, Value>>>,
    pub(super) experimental_env: Option<Vec<Map<String, Value>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ImageValues {
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
        let is_missing = |map: &&str| document.pointer(map).is_none_or(Value::is_null);
        let panics = is_missing(&REQUIRED);
        let missing = REQUIRED_TO_INJECT.into_iter().chain(REQUIRED_BY_TEMPLATE).filter(is_missing).collect();
        let values = map(document.clone()).map_err(|error| {
            Unfit::Unreadable(format!("error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {error}"))
        })?;
        if panics { Err(Unfit::Panics) } else { Ok(Self { missing, ..values }) }
    }

    /// Why the injector fails for a Pod that it would inject.
    pub(super) fn unfit_to_inject(&self) -> Option<Unfit> {
        if self.missing.iter().any(|map| REQUIRED_TO_INJECT.contains(map)) {
            return Some(Unfit::Panics);
        }
        let is_network = |text: &str| {
            let parts = text.split_once('/').and_then(|(ip, length)| Some((ip.parse::<IpAddr>().ok()?, length)));
            parts.is_some_and(|(ip, length)| {
                length.parse::<u8>().is_ok_and(|length| length <= if ip.is_ipv4() { 32 } else { 128 })
            })
        };
        let networks = self.cluster_networks.as_str();
        let init = &self.proxy_init;
        let (mode, headers) = (init.iptables_mode.as_str(), self.proxy.log_http_headers.as_str());
        let with_init = self.cni_enabled != Some(true);
        let failed = |what: String| Some(Unfit::Unreadable(format!("template: linkerd2/templates/patch.json: {what}")));
        if !networks.is_empty() && !networks.trim_matches(',').split(',').all(is_network) {
            failed(format!("clusterNetworks must not be {networks}"))
        } else if let Some(map) = self.missing.first() {
            failed(format!("nil pointer evaluating {map}"))
        } else if with_init && !["nft", "legacy"].contains(&mode) {
            failed(format!("proxyInit.iptablesMode must not be {mode}"))
        } else if with_init && init.close_wait_timeout_secs.unwrap_or_default() != 0 && init.run_as_root != Some(true) {
            failed("proxyInit.closeWaitTimeoutSecs requires proxyInit.runAsRoot".to_owned())
        } else if !["off", "insecure", ""].contains(&headers) {
            failed(format!("logHTTPHeaders must not be {headers}"))
        } else {
            None
        }
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

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
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
