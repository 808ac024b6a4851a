//! Access to the dashboard. Pure.
//!
//! In: the setting, the address that a client connected to, its headers. Out: why the request is refused. Always holds:
//! by default only a port-forward is served. It connects to a loopback address in the Pod's network, which no other Pod
//! can reach.

use std::net::IpAddr;

use clap::ValueEnum;
use http::{HeaderMap, header};

/// The clients that can open the dashboard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DashboardAccess {
    /// Only clients that connect to a loopback address, as a port-forward does
    #[default]
    PortForward,
    /// All clients that reach the admin port: there is no other authentication
    Network,
    Off,
}

/// The value that browsers set in `Sec-Fetch-Site` for a request from a page of another site.
const OTHER_SITE: &str = "cross-site";

/// The headers of a request that decide about access. Browsers set the last three; they describe the origin of the
/// request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestOrigin<'a> {
    pub(super) host: Option<&'a str>,
    pub(super) site: Option<&'a str>,
    pub(super) mode: Option<&'a str>,
    pub(super) destination: Option<&'a str>,
}

/// Returns why a request is refused; `None` if it is served. `is_page` says that it is for the page itself.
///
/// A page of another site that the same browser shows must not read the dashboard through a name of its own that
/// resolves to the address of the dashboard (DNS rebinding). So `Host` must be a name that no other site can have.
pub(super) fn refusal(
    access: DashboardAccess,
    local: IpAddr,
    origin: RequestOrigin<'_>,
    is_page: bool,
    cluster_domain: &str,
) -> Option<&'static str> {
    let RequestOrigin { host, .. } = origin;
    match access {
        DashboardAccess::Off => Some("the dashboard is off: --dashboard=off\n"),
        _ if origin.is_of_other_site() && !(is_page && origin.is_link()) => {
            Some("the dashboard is not served to pages of other sites\n")
        }
        DashboardAccess::Network
            if !host.is_some_and(|host| is_loopback_name(host) || is_inner_name(host, cluster_domain)) =>
        {
            Some("the dashboard is only served by its address or as a Service: open it by that name\n")
        }
        DashboardAccess::Network => None,
        DashboardAccess::PortForward if !local.to_canonical().is_loopback() => {
            Some("the dashboard is only served to a port-forward: run linkerd-operator dashboard\n")
        }
        DashboardAccess::PortForward if !host.is_some_and(is_loopback_name) => {
            Some("the dashboard is only served as localhost: open it by that name\n")
        }
        DashboardAccess::PortForward => None,
    }
}

/// Returns whether a request arrives through a port-forward: at a loopback address, by a name that no other site can have,
/// and not from a page of another site.
pub fn is_port_forward(local: IpAddr, headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST);
    let is_of_other_site = text(header::HeaderName::from_static("sec-fetch-site")) == Some(OTHER_SITE);
    local.to_canonical().is_loopback() && !is_of_other_site && host.is_some_and(is_loopback_name)
}

// === impl RequestOrigin ===

impl RequestOrigin<'_> {
    fn is_of_other_site(&self) -> bool {
        self.site == Some(OTHER_SITE)
    }

    /// Whether a person follows a link, which shows the page in a tab of its own. The other site cannot read it there.
    fn is_link(&self) -> bool {
        self.mode == Some("navigate") && self.destination == Some("document")
    }
}

/// Whether the header `Host` names a loopback address, with or without a port.
fn is_loopback_name(host: &str) -> bool {
    let name = name(host);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Whether the header `Host` is an address, a name without a dot, or the name of a Service of this cluster. A name that
/// only looks like one, such as `a.b.svc.evil.example`, may be of another site.
fn is_inner_name(host: &str, cluster_domain: &str) -> bool {
    let name = name(host).trim_end_matches('.').to_ascii_lowercase();
    let mut labels = name.splitn(4, '.');
    let (service, namespace, svc, domain) = (labels.next(), labels.next(), labels.next(), labels.next());
    let is_service = [service, namespace].into_iter().all(|label| label.is_some_and(|label| !label.is_empty()))
        && svc == Some("svc")
        && domain.is_none_or(|domain| domain.eq_ignore_ascii_case(cluster_domain.trim_end_matches('.')));
    !name.is_empty() && (name.parse::<IpAddr>().is_ok() || !name.contains('.') || is_service)
}

/// Returns the name in the header `Host`, without a port and the brackets of an IPv6 address.
fn name(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_served(access: DashboardAccess, local: &str, host: &str) -> bool {
        let origin = RequestOrigin { host: Some(host), ..RequestOrigin::default() };
        refusal(access, local.parse().unwrap(), origin, false, "cluster.local").is_none()
    }

    #[test]
    fn by_default_only_a_port_forward_is_served() {
        let access = DashboardAccess::default();
        for local in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(is_served(access, local, "localhost:50750"), "{local}");
        }
        for local in ["10.42.0.7", "::ffff:10.42.0.7", "fd00::7", "0.0.0.0"] {
            assert!(!is_served(access, local, "localhost:50750"), "{local}");
        }
    }

    #[test]
    fn a_port_forward_is_a_connection_to_loopback_by_a_loopback_name() {
        for (local, host, expected) in [
            ("127.0.0.1", Some("localhost:9996"), true),
            ("::ffff:127.0.0.1", Some("[::1]"), true),
            ("10.42.0.7", Some("localhost"), false),
            ("127.0.0.1", Some("evil.example"), false),
            ("127.0.0.1", None, false),
        ] {
            let host = host.map(|host| (header::HOST, host.parse().unwrap()));
            let mut headers: HeaderMap = host.into_iter().collect();
            assert_eq!(is_port_forward(local.parse().unwrap(), &headers), expected, "{local} {headers:?}");
            headers.insert("sec-fetch-site", "cross-site".parse().unwrap());
            assert!(!is_port_forward(local.parse().unwrap(), &headers), "a page of another site");
        }
    }

    #[test]
    fn a_name_of_another_site_that_resolves_to_the_loopback_is_refused() {
        for host in ["localhost", "LOCALHOST:9996", "127.0.0.1", "127.0.0.1:1", "[::1]:9996", "[::1]"] {
            assert!(is_served(DashboardAccess::PortForward, "127.0.0.1", host), "{host}");
        }
        for host in ["", "evil.example", "evil.example:9996", "localhost.evil.example", "10.0.0.1", "localhost:x"] {
            assert!(!is_served(DashboardAccess::PortForward, "127.0.0.1", host), "{host}");
        }
        let nameless = RequestOrigin::default();
        assert!(
            refusal(DashboardAccess::PortForward, IpAddr::from([127, 0, 0, 1]), nameless, false, "cluster.local")
                .is_some()
        );
    }

    #[test]
    fn a_page_of_another_site_is_refused_and_a_link_to_the_page_is_served() {
        for access in [DashboardAccess::PortForward, DashboardAccess::Network] {
            let is_served = |site, mode, destination, is_page| {
                let [site, mode, destination] = [site, mode, destination].map(Some);
                let origin = RequestOrigin { host: Some("localhost"), site, mode, destination };
                refusal(access, IpAddr::from([127, 0, 0, 1]), origin, is_page, "cluster.local").is_none()
            };
            assert!(
                is_served("same-origin", "cors", "empty", false) && is_served("none", "navigate", "document", true)
            );
            assert!(is_served("cross-site", "navigate", "document", true), "a link in a chat or on a wiki");
            assert!(!is_served("cross-site", "navigate", "document", false), "the data");
            assert!(!is_served("cross-site", "navigate", "iframe", true));
            assert!(!is_served("cross-site", "no-cors", "script", true));
            assert!(!is_served("cross-site", "cors", "empty", true));
        }
    }

    #[test]
    fn with_network_every_client_is_served_by_an_inner_name_and_with_off_none() {
        for host in [
            "10.42.0.7:9996",
            "[fd00::7]:9996",
            "localhost",
            "linkerd-operator:9996",
            "linkerd-operator.linkerd-operator-system.svc",
            "linkerd-operator.linkerd-operator-system.svc.cluster.local:9996",
        ] {
            assert!(is_served(DashboardAccess::Network, "10.42.0.7", host), "{host}");
        }
        for host in [
            "",
            ":9996",
            "evil.example",
            "evil.example:9996",
            "10.42.0.7.evil.example",
            "svc.example",
            "a.b.svc.evil.example",
            "a.svc.cluster.local",
            ".b.svc",
        ] {
            assert!(!is_served(DashboardAccess::Network, "10.42.0.7", host), "{host}");
        }
        assert!(!is_served(DashboardAccess::Off, "127.0.0.1", "localhost"));
    }
}
