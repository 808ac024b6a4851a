//! Parses the target of a profile request: a Service, an instance, or an address.
//!
//! * In: the path as the client sent it. Out: a target, or the beginning of the refusal's text, see
//!   [the module](super).
//! * Always: addresses are compared as numbers, and an IPv4-mapped IPv6 address equals the IPv4 address.

use std::net::{IpAddr, SocketAddr};

use super::super::authority::host_and_port;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestedTarget<'a> {
    Service {
        /// The host as requested; it may begin with a dot.
        host: &'a str,
        service: &'a str,
        namespace: &'a str,
        port: u16,
    },
    Instance {
        host_name: &'a str,
        service: &'a str,
        namespace: &'a str,
        port: u16,
    },
    Address(SocketAddr),
}

pub(super) fn parse<'a>(path: &'a str, cluster_domain: &str) -> Result<RequestedTarget<'a>, &'static str> {
    let (host, port) = host_and_port(path).ok_or("invalid authority")?;
    if let Some(ip) = ip(host) {
        return Ok(RequestedTarget::Address(SocketAddr::new(ip, port)));
    }
    let invalid = "invalid service";
    let name = host.strip_suffix(&format!(".svc.{cluster_domain}")).ok_or(invalid)?;
    match name.split('.').collect::<Vec<_>>()[..] {
        [service, namespace] | ["", service, namespace] => {
            Ok(RequestedTarget::Service { host, service, namespace, port })
        }
        [host_name, service, namespace] => Ok(RequestedTarget::Instance { host_name, service, namespace, port }),
        _ => Err(invalid),
    }
}

/// Parses an address from an object or a client. Leading zeros and zone ids are invalid.
pub(super) fn ip(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}
