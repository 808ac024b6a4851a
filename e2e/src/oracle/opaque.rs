//! Opaque ports: lists in annotations and flags, and Servers.
//!
//! * In: arbitrary text of users; Servers as JSON. Out: whether a port is listed or opaque.
//! * Always: invalid items are ignored, and the other items still apply.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::api::DynamicObject;
use serde_json::Value;

use super::ApiState;

/// A TCP port of a container or a workload.
#[derive(Clone, Debug)]
pub(super) struct NamedPort {
    pub(super) name: String,
    pub(super) number: i32,
    /// The port of the host that is forwarded to a container port.
    pub(super) host: Option<i32>,
}

/// The selector of a Server that applies to an object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Selector {
    Pod,
    Workload,
}

const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";

/// Returns whether the port is opaque: by the annotation, by the default if the annotation is absent, or by a Server.
pub(super) fn is_opaque(
    state: &ApiState,
    default: &str,
    namespace: &str,
    selector: Selector,
    (labels, annotations): (&BTreeMap<String, String>, &BTreeMap<String, String>),
    names: &[NamedPort],
    port: u16,
) -> bool {
    let listed = is_listed(default, annotations, names, port);
    let mut servers = state.servers.iter().filter(|((of, _), _)| of == namespace).map(|(_, server)| server);
    listed || servers.any(|server| makes_opaque(server, selector, labels, names, port))
}

/// Returns whether the annotation lists the port, or the default if the annotation is absent.
pub(super) fn is_listed(default: &str, annotations: &BTreeMap<String, String>, names: &[NamedPort], port: u16) -> bool {
    match annotations.get(OPAQUE_PORTS) {
        Some(list) => lists(list, names, port),
        None => lists(default, &[], port),
    }
}

/// Returns whether a list such as `25, 80-90,http` contains the port. Names are looked up in `names`.
pub(super) fn lists(list: &str, names: &[NamedPort], port: u16) -> bool {
    list.split(',').map(str::trim).any(|item| {
        // If two ports have the same name, the later one counts.
        if let Some(named) = names.iter().rfind(|named| !item.is_empty() && named.name == item) {
            return named.number == i32::from(port);
        }
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        matches!((number(first), number(last)), (Some(first), Some(last)) if (first..=last).contains(&port))
    })
}

/// Accepts only digits; Rust's parser would also accept a plus sign.
fn number(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn makes_opaque(
    server: &DynamicObject,
    selector: Selector,
    labels: &BTreeMap<String, String>,
    names: &[NamedPort],
    port: u16,
) -> bool {
    let spec = &server.data;
    let opaque = spec.pointer("/spec/proxyProtocol").and_then(Value::as_str) == Some("opaque");
    let selector = match selector {
        Selector::Pod => spec.pointer("/spec/podSelector"),
        Selector::Workload => spec.pointer("/spec/externalWorkloadSelector"),
    };
    let selected = selector.filter(|selector| !selector.is_null()).is_some_and(|selector| selects(selector, labels));
    let port_matches = match spec.pointer("/spec/port") {
        Some(Value::Number(number)) => number.as_i64() == Some(i64::from(port)),
        Some(Value::String(name)) => {
            let has_number = |named: &NamedPort| [Some(named.number), named.host].contains(&Some(i32::from(port)));
            names.iter().any(|named| named.name == *name && has_number(named))
        }
        _ => false,
    };
    opaque && selected && port_matches
}

/// Kubernetes' label selector. A selector with an invalid requirement matches nothing.
fn selects(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    let Ok(selector) = serde_json::from_value::<LabelSelector>(selector.clone()) else { return false };
    let equal =
        selector.match_labels.unwrap_or_default().into_iter().all(|(key, value)| labels.get(&key) == Some(&value));
    let required = selector.match_expressions.unwrap_or_default().into_iter().all(|requirement| {
        let values = requirement.values.unwrap_or_default();
        let value = labels.get(&requirement.key);
        match (requirement.operator.as_str(), values.is_empty()) {
            ("In", false) => value.is_some_and(|value| values.contains(value)),
            ("NotIn", false) => value.is_none_or(|value| !values.contains(value)),
            ("Exists", true) => value.is_some(),
            ("DoesNotExist", true) => value.is_none(),
            _ => false,
        }
    });
    equal && required
}

/// Returns whether a port of this protocol is one to which proxies can forward: they forward TCP only. A port without a
/// protocol is one of TCP, and so is one of an ExternalWorkload with an invalid protocol.
pub fn is_tcp(protocol: Option<&str>) -> bool {
    protocol != Some("UDP") && protocol != Some("SCTP")
}

/// The named TCP ports of a Pod, those of init containers first.
pub(super) fn pod_ports(pod: &Pod) -> Vec<NamedPort> {
    let mut ports = Vec::new();
    for container in containers(pod) {
        for port in container.ports.iter().flatten().filter(|port| is_tcp(port.protocol.as_deref())) {
            let name = port.name.clone().unwrap_or_default();
            ports.push(NamedPort { name, number: port.container_port, host: port.host_port });
        }
    }
    ports
}

/// All containers of a Pod, init containers first.
pub(super) fn containers(pod: &Pod) -> Vec<&Container> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    spec.init_containers.iter().flatten().chain(&spec.containers).collect()
}

/// Returns whether a port of an ExternalWorkload is one of TCP.
pub(super) fn is_tcp_of_workload(port: &Value) -> bool {
    is_tcp(port.get("protocol").and_then(Value::as_str))
}

/// The named TCP ports of an ExternalWorkload.
pub(super) fn workload_ports(workload: &DynamicObject) -> Vec<NamedPort> {
    let ports = workload.data.pointer("/spec/ports").and_then(Value::as_array);
    let named = ports.into_iter().flatten().filter(|port| is_tcp_of_workload(port)).filter_map(|port| {
        let name = port.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let number = port.get("port").and_then(Value::as_i64).and_then(|number| i32::try_from(number).ok())?;
        Some(NamedPort { name, number, host: None })
    });
    named.collect()
}
