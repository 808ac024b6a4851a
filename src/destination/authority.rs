//! What a client asks for: the grammar of `path`. Pure.
//!
//! In: `web.prod.svc.cluster.local:80`, as any client may have written it. Out: the Service, port and instance it names, or
//! why it names none. Upstream splits with Go's `net.SplitHostPort`, so does this, to the letter: which code a client gets
//! for a bad path decides whether it ever asks again.

use std::{net::IpAddr, sync::Arc};

use crate::cluster::object::NamespacedName;

/// What the hostname of an endpoint may be at most (RFC 1035).
const LONGEST_LABEL: usize = 63;
/// The port of a path that names none.
const DEFAULT_PORT: u16 = 80;

/// A Service as clients ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceAuthority {
    pub(super) service: NamespacedName,
    pub(super) port: u16,
    /// `<instance>.<service>.<namespace>.svc.…` asks only for the endpoints with this hostname.
    pub(super) instance: Option<Arc<str>>,
}

/// Why a path names no Service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AuthorityError {
    /// The text is what an upstream test, and people, look for.
    #[error("Invalid authority: {0}")]
    Invalid(String),
    #[error("IP queries not supported by Get API: host={0}")]
    Ip(String),
}

impl ServiceAuthority {
    /// # Errors
    /// When the path is malformed, is an IP address, or is no name of a Service under `svc.<cluster domain>`.
    pub(super) fn parse(path: &str, cluster_domain: &str) -> Result<Self, AuthorityError> {
        let invalid = || AuthorityError::Invalid(path.to_owned());
        let (host, port) = split(path).ok_or_else(invalid)?;
        if host.parse::<IpAddr>().is_ok() {
            return Err(AuthorityError::Ip(host.to_owned()));
        }
        let name = host.strip_suffix(cluster_domain).and_then(|it| it.strip_suffix(".svc.")).ok_or_else(invalid)?;
        let labels: Vec<&str> = name.split('.').collect();
        let (instance, service, namespace) = match labels[..] {
            [service, namespace] => (None, service, namespace),
            [instance, service, namespace] => (Some(instance), service, namespace),
            _ => return Err(invalid()),
        };
        Ok(Self {
            service: NamespacedName::new(namespace, service),
            port,
            // One that is longer than any hostname matches none, and is cut: views and metrics are kept by it.
            instance: instance
                .filter(|instance| !instance.is_empty())
                .and_then(|instance| instance.get(..instance.floor_char_boundary(LONGEST_LABEL + 1)))
                .map(Arc::from),
        })
    }
}

/// Host and port, as `net.SplitHostPort` splits them; without any colon the whole is the host.
pub(super) fn split(path: &str) -> Option<(&str, u16)> {
    let Some((before, port)) = path.rsplit_once(':') else { return Some((path, DEFAULT_PORT)) };
    let host = match before.strip_prefix('[') {
        Some(bracketed) => bracketed.strip_suffix(']').filter(|host| !host.contains(['[', ']']))?,
        None if before.contains([':', '[', ']']) => return None,
        None => before,
    };
    (!port.contains(['[', ']'])).then_some(())?;
    Some((host, parse_port(port)?))
}

/// As `strconv.Atoi` reads it: a sign and leading zeros are taken.
fn parse_port(text: &str) -> Option<u16> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| digits.trim_start_matches('0').parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> Result<(String, u16, Option<String>), AuthorityError> {
        let authority = ServiceAuthority::parse(path, "cluster.local")?;
        Ok((authority.service.to_string(), authority.port, authority.instance.map(|it| it.to_string())))
    }

    #[test]
    fn names_of_services_are_taken_with_every_spelling_of_a_port() {
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
    fn what_names_no_service_is_invalid() {
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
    fn addresses_are_told_from_names() {
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
}
