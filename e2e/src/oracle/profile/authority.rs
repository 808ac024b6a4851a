//! What a profile is asked for: a Service, one of its endpoints, or an address.
//!
//! * In: the path as the client wrote it. Out: a target; or the beginning of why not, see [the module](super).
//! * Always: addresses are compared as numbers, and an IPv4 address in the clothes of IPv6 is one of IPv4.

use std::net::{IpAddr, SocketAddr};

use super::super::authority::host_and_port;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target<'a> {
    Service {
        /// As asked for, which may begin with a dot.
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

pub(super) fn parse<'a>(path: &'a str, cluster_domain: &str) -> Result<Target<'a>, &'static str> {
    let (host, port) = host_and_port(path).ok_or("invalid authority")?;
    if let Some(ip) = ip(host) {
        return Ok(Target::Address(SocketAddr::new(ip, port)));
    }
    let invalid = "invalid service";
    let name = host.strip_suffix(&format!(".svc.{cluster_domain}")).ok_or(invalid)?;
    match name.split('.').collect::<Vec<_>>()[..] {
        [service, namespace] | ["", service, namespace] => Ok(Target::Service { host, service, namespace, port }),
        [host_name, service, namespace] => Ok(Target::Instance { host_name, service, namespace, port }),
        _ => Err(invalid),
    }
}

/// An address as any object or client may write it: no leading zeros, no zone.
pub(super) fn ip(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}
