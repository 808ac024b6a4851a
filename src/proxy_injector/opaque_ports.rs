//! The annotation `config.linkerd.io/opaque-ports` of objects that have none.
//!
//! In: the ports of an object, and the default ports of the values. Out: the value of the annotation. Always holds: an
//! object that has the annotation keeps it; the annotation of the namespace has priority over the defaults.

use serde_json::Value;

use super::{
    annotations::Annotations,
    reviewed::{ReviewedServicePort, ReviewedSpec},
};
use crate::api::OPAQUE_PORTS_ANNOTATION;

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
    if annotations.pod.contains_key(OPAQUE_PORTS_ANNOTATION) {
        return None;
    }
    if let Some(of_namespace) = annotations.namespace.get(OPAQUE_PORTS_ANNOTATION) {
        return Some(of_namespace.clone());
    }
    let ports = defaults();
    (!ports.is_empty()).then(|| ports.join(","))
}

/// Linkerd's injector compares the texts, so items of the list with spaces or ranges match no port.
fn is_default(defaults: &str, port: &str) -> bool {
    defaults.split(',').any(|it| it == port)
}
