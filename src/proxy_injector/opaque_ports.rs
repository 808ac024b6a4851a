//! The annotation `config.linkerd.io/opaque-ports` of objects that have none.
//!
//! In: the ports of an object, and the default ports of the values. Out: the value of the annotation. Always holds: an
//! object that has the annotation keeps it; the namespace's has priority over the defaults.

use serde_json::Value;

use super::{
    annotations::Annotations,
    reviewed::{ReviewedServicePort, ReviewedSpec},
};

const NAME: &str = "opaque-ports";

/// Returns the annotation to add to a Pod.
pub(super) fn of_pod(annotations: Annotations<'_>, spec: &ReviewedSpec, defaults: &str) -> Option<String> {
    let ports = spec.container_ports().map(|port| port.to_string());
    to_add(annotations, || ports.filter(|port| is_default(defaults, port)).collect())
}

/// Returns the annotation to add to a Service.
pub(super) fn of_service(
    annotations: Annotations<'_>,
    ports: &[ReviewedServicePort],
    defaults: &str,
) -> Option<String> {
    let port = |it: &ReviewedServicePort| {
        // The API server sets the target port. A name is resolved per Pod, so it is no default port.
        let target = match &it.target_port {
            Value::Null => it.port,
            Value::Number(target) if target.as_i64() == Some(0) => it.port,
            target => target.as_i64()?,
        };
        is_default(defaults, &target.to_string()).then(|| it.port.to_string())
    };
    to_add(annotations, || ports.iter().filter_map(port).collect())
}

fn to_add(annotations: Annotations<'_>, defaults: impl FnOnce() -> Vec<String>) -> Option<String> {
    let key = format!("{}{NAME}", super::annotations::PREFIX);
    if annotations.pod.contains_key(&key) {
        return None;
    }
    if let Some(of_namespace) = annotations.namespace.get(&key) {
        return Some(of_namespace.clone());
    }
    let ports = defaults();
    (!ports.is_empty()).then(|| ports.join(","))
}

/// Linkerd's injector compares texts, so spaces and ranges of the default list match no port.
fn is_default(defaults: &str, port: &str) -> bool {
    defaults.split(',').any(|it| it == port)
}
