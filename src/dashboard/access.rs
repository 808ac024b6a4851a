//! Access to the dashboard. Pure.
//!
//! * In: the setting, the address that a client connected to, its headers. Out: why the request is refused.
//! * Always: by default only a port-forward is served. It connects to a loopback address in the Pod's network, which no
//!   other Pod can reach.

use std::net::IpAddr;

use clap::ValueEnum;

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

/// Returns why a request is refused; `None` if it is served.
///
/// A page of another site that the same browser shows must not read the dashboard through a name of its own that
/// resolves to 127.0.0.1 (DNS rebinding), so a port-forward needs a name of the loopback in `Host`.
pub(super) fn refusal(
    access: DashboardAccess,
    local: IpAddr,
    host: Option<&str>,
    fetch_site: Option<&str>,
) -> Option<&'static str> {
    match access {
        // Browsers say so of a request that a page of another site makes.
        _ if fetch_site == Some("cross-site") => Some("the dashboard is not served to pages of other sites\n"),
        DashboardAccess::Off => Some("the dashboard is off: --dashboard=off\n"),
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

/// Whether the header `Host` names a loopback address, with or without a port.
fn is_loopback_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_served(access: DashboardAccess, local: &str, host: &str) -> bool {
        refusal(access, local.parse().unwrap(), Some(host), None).is_none()
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
    fn a_name_of_another_site_that_resolves_to_the_loopback_is_refused() {
        for host in ["localhost", "LOCALHOST:9996", "127.0.0.1", "127.0.0.1:1", "[::1]:9996", "[::1]"] {
            assert!(is_served(DashboardAccess::PortForward, "127.0.0.1", host), "{host}");
        }
        for host in ["", "evil.example", "evil.example:9996", "localhost.evil.example", "10.0.0.1", "localhost:x"] {
            assert!(!is_served(DashboardAccess::PortForward, "127.0.0.1", host), "{host}");
        }
        assert!(refusal(DashboardAccess::PortForward, IpAddr::from([127, 0, 0, 1]), None, None).is_some());
    }

    #[test]
    fn a_page_of_another_site_is_refused_and_a_link_typed_by_a_person_is_served() {
        for access in [DashboardAccess::PortForward, DashboardAccess::Network] {
            let is_served =
                |site| refusal(access, IpAddr::from([127, 0, 0, 1]), Some("localhost"), Some(site)).is_none();
            assert!(is_served("same-origin") && is_served("none"));
            assert!(!is_served("cross-site"));
        }
    }

    #[test]
    fn with_network_every_client_is_served_and_with_off_none() {
        assert!(is_served(DashboardAccess::Network, "10.42.0.7", "operator.example"));
        assert!(!is_served(DashboardAccess::Off, "127.0.0.1", "localhost"));
    }
}
