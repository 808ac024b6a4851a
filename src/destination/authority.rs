//! The parser of `path`, the authority that a client requests. Pure.
//!
//! In: a path such as `web.prod.svc.cluster.local:80` or `10.0.0.1:80`. Out: its target, or the reason why the path is
//! invalid. A path of `Get` names a Service, a port and optionally an instance; a path of `GetProfile` may also be an
//! address. The parser behaves exactly like Go's `net.SplitHostPort`, which upstream uses: the status code of an
//! invalid path decides whether a client ever retries.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use crate::{
    api::{LONGEST_LABEL, NamespacedName},
    cluster::index::address,
    text,
};

/// The port of a path without a port.
const DEFAULT_PORT: u16 = 80;

/// A Service, as a client requests it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceAuthority {
    pub(super) service: NamespacedName,
    pub(super) port: u16,
    /// The hostname of the requested endpoints, from `<instance>.<service>.<namespace>.svc.…`.
    pub(super) instance: Option<Arc<str>>,
}

/// The reason why a path does not name a Service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AuthorityError {
    /// An upstream test expects this text, and users search for it.
    #[error("Invalid authority: {0}")]
    Invalid(String),
    #[error("IP queries not supported by Get API: host={0}")]
    Ip(String),
}

/// The target whose profile a client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProfileAuthority {
    Service {
        service: NamespacedName,
        port: u16,
        /// Whether the name begins with a dot. The response then repeats the name with the dot.
        dotted: bool,
    },
    /// An endpoint of a Service, by its hostname.
    Instance { service: NamespacedName, hostname: Arc<str>, port: u16 },
    /// A canonical address: an IPv4-mapped IPv6 address becomes an IPv4 address.
    Address(SocketAddr),
}

/// The reason why a path has no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProfileAuthorityError {
    #[error("invalid authority: {path:?}: {reason:?}")]
    Path { path: String, reason: String },
    #[error("invalid service {host:?}: \"name {host} does not match cluster domain {cluster_domain}\"")]
    Domain { host: String, cluster_domain: String },
    #[error("invalid service {0:?}: \"invalid k8s service {0}\"")]
    Labels(String),
}

/// The reason why a text is not a host and port, with the messages of Go's `net`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PathError<'a> {
    #[error("missing port in address")]
    NoPort,
    #[error("too many colons in address")]
    Colons,
    #[error("missing ']' in address")]
    NoClosingBracket,
    #[error("unexpected '[' in address")]
    OpeningBracket,
    #[error("unexpected ']' in address")]
    ClosingBracket,
    #[error("invalid port {0}")]
    Port(&'a str),
}

impl ProfileAuthority {
    /// # Errors
    /// When the path is malformed, or is not the name of a Service under `svc.<cluster domain>`.
    pub(super) fn parse(path: &str, cluster_domain: &str) -> Result<Self, ProfileAuthorityError> {
        let (host, port) = split(path)
            .map_err(|error| ProfileAuthorityError::Path { path: path.to_owned(), reason: error.to_string() })?;
        if let Some(address) = address::parse(host) {
            return Ok(Self::Address(SocketAddr::new(address, port)));
        }
        let Some(labels) = labels(host, cluster_domain) else {
            let cluster_domain = cluster_domain.to_owned();
            return Err(ProfileAuthorityError::Domain { host: host.to_owned(), cluster_domain });
        };
        match labels[..] {
            [service, namespace] => {
                Ok(Self::Service { service: NamespacedName::new(namespace, service), port, dotted: false })
            }
            ["", service, namespace] => {
                Ok(Self::Service { service: NamespacedName::new(namespace, service), port, dotted: true })
            }
            [hostname, service, namespace] => {
                Ok(Self::Instance { service: NamespacedName::new(namespace, service), hostname: hostname.into(), port })
            }
            _ => Err(ProfileAuthorityError::Labels(host.to_owned())),
        }
    }
}

impl ServiceAuthority {
    /// # Errors
    /// When the path is malformed, is an IP address, or is not the name of a Service under `svc.<cluster domain>`.
    pub(super) fn parse(path: &str, cluster_domain: &str) -> Result<Self, AuthorityError> {
        let invalid = || AuthorityError::Invalid(path.to_owned());
        let (host, port) = split(path).map_err(|_| invalid())?;
        if host.parse::<IpAddr>().is_ok() {
            return Err(AuthorityError::Ip(host.to_owned()));
        }
        let labels = labels(host, cluster_domain).ok_or_else(invalid)?;
        let (instance, service, namespace) = match labels[..] {
            [service, namespace] => (None, service, namespace),
            [instance, service, namespace] => (Some(instance), service, namespace),
            _ => return Err(invalid()),
        };
        Ok(Self {
            service: NamespacedName::new(namespace, service),
            port,
            // An instance that is longer than any hostname has no endpoints. It is truncated, because keys and metrics
            // contain it.
            instance: instance
                .filter(|instance| !instance.is_empty())
                .map(|instance| text::truncate(instance, LONGEST_LABEL + 1).into()),
        })
    }
}

/// Splits a path into host and port. A path without a colon is a host.
fn split(path: &str) -> Result<(&str, u16), PathError<'_>> {
    if !path.contains(':') {
        return Ok((path, DEFAULT_PORT));
    }
    let (host, port) = split_host_port(path)?;
    Ok((host, parse_port(port).ok_or(PathError::Port(port))?))
}

/// Splits like Go's `net.SplitHostPort`: at the last colon, with brackets around a host that contains colons.
pub(super) fn split_host_port(text: &str) -> Result<(&str, &str), PathError<'_>> {
    let (before, port) = text.rsplit_once(':').ok_or(PathError::NoPort)?;
    let host = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (host, after) = bracketed.split_once(']').ok_or(PathError::NoClosingBracket)?;
            match after.strip_prefix(':') {
                Some(rest) if rest == port => host,
                Some(_) => return Err(PathError::Colons),
                None => return Err(PathError::NoPort),
            }
        }
        None if before.contains(':') => return Err(PathError::Colons),
        None => before,
    };
    if host.contains('[') || port.contains('[') {
        return Err(PathError::OpeningBracket);
    }
    if host.contains(']') || port.contains(']') {
        return Err(PathError::ClosingBracket);
    }
    Ok((host, port))
}

/// Parses a port like Go's `strconv.Atoi`, which accepts a sign and leading zeros. Port 0 is invalid.
fn parse_port(text: &str) -> Option<u16> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| digits.trim_start_matches('0').parse().ok()).flatten()
}

/// Returns the labels of a name before `svc.<cluster domain>`, or `None` if the name has another suffix.
fn labels<'a>(host: &'a str, cluster_domain: &str) -> Option<Vec<&'a str>> {
    let name = host.strip_suffix(cluster_domain)?;
    if name == "svc." {
        return Some(Vec::new());
    }
    Some(name.strip_suffix(".svc.")?.split('.').collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> Result<(String, u16, Option<String>), AuthorityError> {
        let authority = ServiceAuthority::parse(path, "cluster.local")?;
        Ok((authority.service.to_string(), authority.port, authority.instance.map(|it| it.to_string())))
    }

    #[test]
    fn service_names_are_accepted_with_every_spelling_of_a_port() {
        for (path, port) in [
            ("web.prod.svc.cluster.local", 80),
            ("web.prod.svc.cluster.local:8080", 8080),
            ("web.prod.svc.cluster.local:+80", 80),
            ("web.prod.svc.cluster.local:0080", 80),
            ("web.prod.svc.cluster.local:000000000000000000000000080", 80),
            ("[web.prod.svc.cluster.local]:80", 80),
            ("web.prod.svc.cluster.local:65535", 65535),
        ] {
            assert_eq!(parse(path), Ok(("prod/web".into(), port, None)), "{path}");
        }
    }

    #[test]
    fn a_third_label_is_an_instance_unless_it_is_empty() {
        assert_eq!(parse("db-0.db.prod.svc.cluster.local"), Ok(("prod/db".into(), 80, Some("db-0".into()))));
        assert_eq!(parse(".web.prod.svc.cluster.local"), Ok(("prod/web".into(), 80, None)));
        let cut = |instance: &str| parse(&format!("{instance}.db.prod.svc.cluster.local")).unwrap().2.unwrap();
        assert_eq!([cut(&"x".repeat(63)), cut(&"x".repeat(9_000))], ["x".repeat(63), "x".repeat(64)]);
        assert_eq!(cut(&"ß".repeat(9_000)), "ß".repeat(32));
        assert_eq!(parse(".prod.svc.cluster.local"), Ok(("prod/".into(), 80, None)), "no Service has that name");
    }

    #[test]
    fn a_path_without_a_service_name_is_invalid() {
        for path in [
            "",
            ":80",
            "foo",
            "linkerd.io",
            "web.prod",
            "web.prod.svc",
            "web.prod.svc.cluster.local.",
            "web.prod.svc.cluster.local.:80",
            "web.prod.SVC.cluster.local",
            "web.prod.svc.Cluster.local",
            "web.prod.svc.other.local",
            "prod.svc.cluster.local",
            "svc.cluster.local",
            "a.b.c.d.svc.cluster.local",
            "web.prodsvc.cluster.local",
            "web.prod.svc.cluster.local:",
            "web.prod.svc.cluster.local:0",
            "web.prod.svc.cluster.local:000",
            "web.prod.svc.cluster.local:65536",
            "web.prod.svc.cluster.local:-1",
            "web.prod.svc.cluster.local:++1",
            "web.prod.svc.cluster.local:http",
            "web.prod.svc.cluster.local: 80",
            "web.prod.svc.cluster.local:8_0",
            "web.prod.svc.cluster.local:0x50",
            "web.prod.svc.cluster.local:99999999999999999999",
            "web.prod.svc.cluster.local:80:80",
            "a:b:80",
            "::1",
            "[::1]",
            "[::1]80",
            "[web.prod.svc.cluster.local:80",
            "web.prod.svc.cluster.local]:80",
            "[[web.prod.svc.cluster.local]]:80",
            "10.0.0.01:80",
            "[fe80::1%eth0]:80",
        ] {
            assert_eq!(parse(path), Err(AuthorityError::Invalid(path.into())), "{path:?}");
        }
    }

    #[test]
    fn an_address_is_reported_as_an_address() {
        for (path, host) in [
            ("10.0.0.1", "10.0.0.1"),
            ("10.0.0.1:80", "10.0.0.1"),
            ("[10.0.0.1]:80", "10.0.0.1"),
            ("[::1]:80", "::1"),
            ("[::ffff:10.0.0.1]:80", "::ffff:10.0.0.1"),
        ] {
            assert_eq!(parse(path), Err(AuthorityError::Ip(host.into())), "{path}");
        }
    }

    fn profile(path: &str) -> Result<String, String> {
        let authority = ProfileAuthority::parse(path, "cluster.local").map_err(|error| error.to_string())?;
        Ok(match authority {
            ProfileAuthority::Service { service, port, dotted } => {
                format!("{}{service}:{port}", if dotted { "." } else { "" })
            }
            ProfileAuthority::Instance { service, hostname, port } => format!("{hostname} of {service}:{port}"),
            ProfileAuthority::Address(address) => address.to_string(),
        })
    }

    #[test]
    fn a_profile_can_be_requested_by_address_by_name_and_by_hostname() {
        for (path, expected) in [
            ("10.0.0.1", "10.0.0.1:80"),
            ("10.0.0.1:+080", "10.0.0.1:80"),
            ("[10.0.0.1]:81", "10.0.0.1:81"),
            ("[2001:DB8:0:0::1]:81", "[2001:db8::1]:81"),
            ("[::ffff:10.0.0.1]:81", "10.0.0.1:81"),
            ("web.prod.svc.cluster.local", "prod/web:80"),
            ("[web.prod.svc.cluster.local]:81", "prod/web:81"),
            (".web.prod.svc.cluster.local:81", ".prod/web:81"),
            ("db-0.db.prod.svc.cluster.local:81", "db-0 of prod/db:81"),
            (".prod.svc.cluster.local", "prod/:80"),
        ] {
            assert_eq!(profile(path).as_deref(), Ok(expected), "{path}");
        }
    }

    #[test]
    fn profile_errors_have_the_messages_of_upstream() {
        for (path, reason) in [
            ("web:", "invalid port "),
            ("web:http", "invalid port http"),
            ("web:0", "invalid port 0"),
            ("web:65536", "invalid port 65536"),
            ("web:-1", "invalid port -1"),
            ("::1", "too many colons in address"),
            ("2001:db8::1:80", "too many colons in address"),
            ("a:b:c", "too many colons in address"),
            ("[::1]", "missing port in address"),
            ("[::1]80", "missing port in address"),
            ("[::1]:80:80", "too many colons in address"),
            ("[::1:80", "missing ']' in address"),
            ("[[::1]]:80", "missing port in address"),
            ("[a[b]:80", "unexpected '[' in address"),
            ("web]:80", "unexpected ']' in address"),
        ] {
            assert_eq!(profile(path), Err(format!("invalid authority: {path:?}: {reason:?}")));
        }
        for host in [
            "",
            "foo",
            "linkerd.io",
            "web.prod",
            "web.prod.svc.cluster.local.",
            "web.prod.SVC.cluster.local",
            "10.0.0.01",
            "fe80::1%eth0",
        ] {
            let path = if host.contains(':') { format!("[{host}]:80") } else { format!("{host}:80") };
            let reason = format!("name {host} does not match cluster domain cluster.local");
            assert_eq!(profile(&path), Err(format!("invalid service {host:?}: {reason:?}")));
        }
        for host in ["svc.cluster.local", "prod.svc.cluster.local", "a.b.c.d.svc.cluster.local"] {
            assert_eq!(profile(host), Err(format!("invalid service {host:?}: \"invalid k8s service {host}\"")));
        }
    }
}
