//! The two strings of a request: the authority that it asks for, and the context token.
//!
//! * In: text from a client. Out: a Service, a port and an instance, or why not; the name of the client's node.
//! * Always: a token is never an error.

use std::net::IpAddr;

use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) service: String,
    pub(super) namespace: String,
    pub(super) port: u16,
    /// The host name of one endpoint; "" for all.
    pub(super) instance: String,
}

impl Authority {
    /// `[<instance>.]<service>.<namespace>.svc.<cluster domain>[:<port>]`; the error is the text for the client.
    pub(super) fn parse(path: &str, cluster_domain: &str) -> Result<Self, String> {
        let invalid = || format!("Invalid authority: {path}");
        let (host, port) = if path.contains(':') { split_host_port(path).ok_or_else(invalid)? } else { (path, 80) };
        if host.parse::<IpAddr>().is_ok() {
            return Err(format!("IP queries not supported by Get API: host={host}"));
        }
        let name = host.strip_suffix(&format!(".svc.{cluster_domain}")).ok_or_else(invalid)?;
        let (instance, service, namespace) = match name.split('.').collect::<Vec<_>>()[..] {
            [service, namespace] => ("", service, namespace),
            [instance, service, namespace] => (instance, service, namespace),
            _ => return Err(invalid()),
        };
        Ok(Self { service: service.into(), namespace: namespace.into(), port, instance: instance.into() })
    }
}

/// As Go splits: one colon, or brackets around the host and a colon right behind them.
fn split_host_port(path: &str) -> Option<(&str, u16)> {
    let (host, port) = match path.strip_prefix('[') {
        Some(rest) => rest.split_once("]:")?,
        None => path.split_once(':')?,
    };
    let bracketed = path.starts_with('[');
    if host.contains(['[', ']']) || port.contains([':', '[', ']']) || (!bracketed && host.contains(':')) {
        return None;
    }
    // Takes a plus and leading zeros, as Go does.
    let port: u16 = port.parse().ok()?;
    (port > 0).then_some((host, port))
}

/// The `nodeName` of a context token; "" when there is none, or when it is not JSON.
pub(super) fn node_name(token: &str) -> String {
    let Ok(Value::Object(fields)) = serde_json::from_str(token) else { return String::new() };
    let node = fields.iter().find(|(key, _)| key.eq_ignore_ascii_case("nodeName"));
    node.and_then(|(_, value)| value.as_str()).unwrap_or_default().to_owned()
}
