//! The annotations of a Pod that override values.
//!
//! * In: the values, the annotations of the Pod. Out: the values for this Pod.
//! * Always: a value that cannot be parsed is ignored, as in Linkerd's injector. Annotations that only change ports,
//!   probes, resources and the timeouts of the proxy are not supported.

use serde_json::{Map, Value};

use super::values::{Text, Values};

const PREFIX: &str = "config.linkerd.io/";
/// The first of these annotations that exists decides, even if its value cannot be parsed.
const NATIVE_SIDECAR: [&str; 3] = [
    "config.linkerd.io/proxy-enable-native-sidecar",
    "config.beta.linkerd.io/proxy-enable-native-sidecar",
    "config.alpha.linkerd.io/proxy-enable-native-sidecar",
];

/// Applies the annotations of a Pod.
pub(super) fn apply(values: &mut Values, pod: &Value) {
    let Some(annotations) = pod.pointer("/metadata/annotations").and_then(Value::as_object) else { return };
    let annotation = |name: &str| annotations.get(name).and_then(Value::as_str);
    let text = |name: &str, into: &mut Text| {
        if let Some(value) = annotation(&format!("{PREFIX}{name}")) {
            *into = Text::from(value);
        }
    };
    let number = |name: &str| annotation(&format!("{PREFIX}{name}"))?.parse::<i64>().ok();
    let proxy = &mut values.proxy;
    text("proxy-image", &mut proxy.image.name);
    text("proxy-version", &mut proxy.image.version);
    text("image-pull-policy", &mut proxy.image.pull_policy);
    text("proxy-log-level", &mut proxy.log_level);
    text("proxy-log-format", &mut proxy.log_format);
    text("proxy-log-http-headers", &mut proxy.log_http_headers);
    proxy.uid = number("proxy-uid").or(proxy.uid);
    proxy.gid = number("proxy-gid").or(proxy.gid);
    match annotation("config.linkerd.io/proxy-await") {
        Some("enabled") => proxy.wait = Some(true),
        Some("disabled") => proxy.wait = Some(false),
        _ => {}
    }
    // A duration in Go's syntax, of which only seconds are supported here.
    let close_wait =
        annotation("config.linkerd.io/close-wait-timeout").and_then(|text| text.strip_suffix('s')?.parse().ok());
    values.proxy_init.close_wait_timeout_secs = close_wait.or(values.proxy_init.close_wait_timeout_secs);
    let native = NATIVE_SIDECAR.into_iter().find_map(annotation).and_then(go_bool);
    proxy.native_sidecar = native.or(proxy.native_sidecar);
    let more = annotation("config.linkerd.io/proxy-additional-env").and_then(|list| serde_json::from_str(list).ok());
    merge_by_name(proxy.additional_env.get_or_insert_default(), more.unwrap_or_default());
}

/// A variable replaces the first one of its name, or is appended.
fn merge_by_name(into: &mut Vec<Map<String, Value>>, from: Vec<Map<String, Value>>) {
    for variable in from {
        match into.iter_mut().find(|known| known.get("name") == variable.get("name")) {
            Some(known) => *known = variable,
            None => into.push(variable),
        }
    }
}

/// Go's `ParseBool`.
fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}
