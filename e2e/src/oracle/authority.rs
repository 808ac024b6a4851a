//! Parses the two strings of a request: the authority and the context token.
//!
//! * In: text from a client. Out: a Service, a port and an instance, or an error; the client's node name and namespace.
//! * Always: an invalid token is not an error.

use std::net::IpAddr;

use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) service: String,
    pub(super) namespace: String,
    pub(super) port: u16,
    /// The hostname of one endpoint; "" selects all.
    pub(super) instance: String,
}

impl Authority {
    /// Parses `[<instance>.]<service>.<namespace>.svc.<cluster domain>[:<port>]`; the error is the text for the client.
    pub(super) fn parse(path: &str, cluster_domain: &str) -> Result<Self, String> {
        let invalid = || format!("Invalid authority: {path}");
        let (host, port) = host_and_port(path).ok_or_else(invalid)?;
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

/// The host and the port of a path; the port defaults to 80.
pub(super) fn host_and_port(path: &str) -> Option<(&str, u16)> {
    if !path.contains(':') {
        return Some((path, 80));
    }
    let (host, port) = split(path)?;
    // Accepts a plus sign and leading zeros, as Go does.
    let port: u16 = port.parse().ok()?;
    (port > 0).then_some((host, port))
}

/// Splits as Go does: exactly one colon, or a host in brackets followed by a colon. The port may be any text.
pub(super) fn split(path: &str) -> Option<(&str, &str)> {
    let (host, port) = match path.strip_prefix('[') {
        Some(rest) => rest.split_once("]:")?,
        None => path.split_once(':')?,
    };
    let bracketed = path.starts_with('[');
    if host.contains(['[', ']']) || port.contains([':', '[', ']']) || (!bracketed && host.contains(':')) {
        return None;
    }
    Some((host, port))
}

/// The `nodeName` of a context token; "" if it is absent, or if the token is not JSON.
pub(super) fn node_name(token: &str) -> String {
    serde_json::from_str(token).map(|token| text(&token, "nodeName")).unwrap_or_default()
}

/// The `ns` of a context token, also in the legacy form `ns:<namespace>`; "" if it is absent.
pub(super) fn client_namespace(token: &str) -> String {
    match (serde_json::from_str(token), token.split_once(':')) {
        (Ok(token), _) => text(&token, "ns"),
        (Err(_), Some(("ns", namespace))) if !namespace.contains(':') => namespace.to_owned(),
        (Err(_), _) => String::new(),
    }
}

/// A field of a token, with a case-insensitive key; "" if the value is not a string.
fn text(token: &Value, key: &str) -> String {
    let mut fields = token.as_object().into_iter().flatten();
    let field = fields.find(|(other, _)| other.eq_ignore_ascii_case(key));
    field.and_then(|(_, value)| value.as_str()).unwrap_or_default().to_owned()
}
