//! The requests of clients in several namespaces for profiles: names of Services and of instances, and addresses of all
//! kinds.

use super::{CLIENTS, ELSEWHERE, NAMESPACE, pod, slice, workload};
use crate::{
    discovery::token,
    oracle::{ApiState, Request},
};

pub(super) fn all() -> Vec<Request> {
    let tokens = [
        String::new(),
        token(NAMESPACE, "world-a"),
        token(ELSEWHERE, "world-a"),
        token(CLIENTS, "world-b"),
        token("absent", ""),
    ];
    let mut requests = Vec::new();
    let mut add = |path: String, token: &str| requests.push(Request { path, token: token.to_owned() });
    for service in ["web", "api", "db"] {
        let host = format!("{service}.{NAMESPACE}.svc.cluster.local");
        for (port, token) in [80, 443].into_iter().flat_map(|port| tokens.iter().map(move |token| (port, token))) {
            add(format!("{host}:{port}"), token);
        }
        for (port, token) in [53, 8080, 25, 4191].into_iter().zip(tokens.iter().rev()) {
            add(format!("{host}:{port}"), token);
        }
        for instance in ["host-0", "host-1", "host-9"] {
            add(format!("{instance}.{host}:8080"), "");
            add(format!("{instance}.{host}:25"), "ns:world");
        }
    }
    // The default port; unusual spellings; tokens that contain the namespace in other forms.
    add(format!("web.{NAMESPACE}.svc.cluster.local"), "ns:elsewhere");
    add(format!(".web.{NAMESPACE}.svc.cluster.local:+0080"), "{\"NS\":\"default\",\"nodeName\":1}");
    add(format!("[web.{NAMESPACE}.svc.cluster.local]:80"), "ns: elsewhere");
    add("web.elsewhere.svc.cluster.local:80".to_owned(), &token(CLIENTS, ""));
    for number in 0..pod::COUNT + workload::COUNT {
        let (ipv4, ipv6) = (slice::address("IPv4", number), slice::address("IPv6", number));
        add(format!("{ipv4}:8080"), "");
        add(format!("[{ipv6}]:8080"), "");
        // Only some objects declare this port.
        let port = [25, 9090, 8443, 4191, 1, 443].into_iter().cycle().nth(number).unwrap_or_default();
        add(format!("{ipv4}:{port}"), &token(NAMESPACE, "world-a"));
        let spelled =
            if number % 2 == 0 { format!("[::ffff:{ipv4}]:8080") } else { format!("[{}]:25", ipv6.to_uppercase()) };
        add(spelled, "");
    }
    for number in 1..=3 {
        for port in [8080, 7, 25, 9090] {
            add(format!("172.18.0.{number}:{port}"), "");
        }
        add(format!("[2001:db8:1::{number}]:8080"), "");
        for port in [80, 443, 25] {
            add(format!("10.96.0.{number}:{port}"), &token(ELSEWHERE, ""));
            add(format!("[fd00:10:96::{number}]:{port}"), "");
        }
    }
    for number in 1..=2 * workload::COUNT {
        for port in [8080, 9090, 25] {
            add(format!("192.0.2.{number}:{port}"), "");
        }
    }
    // No object has these addresses.
    for path in ["203.0.113.1", "203.0.113.1:25", "[2001:db8:ffff::1]:80", "10.96.0.9:80", "[::ffff:203.0.113.1]:25"] {
        add(path.to_owned(), "");
    }
    // Refused in every state of the world.
    for path in [
        "absent.world.svc.cluster.local:80",
        "web.nowhere.svc.cluster.local:80",
        "host-0.absent.world.svc.cluster.local:80",
        "web.world.svc.example.org:80",
        "web.world.svc.cluster.local:0",
        "web.world.svc.cluster.local.",
        "a.b.web.world.svc.cluster.local",
        "web.world",
        "10.42.0.01:8080",
        "[fe80::1%eth0]:80",
        "10.42.0.1:",
        "::1",
        "",
    ] {
        add(path.to_owned(), "");
    }
    requests
}

/// The requests for each Service by its current cluster IPs: at a port that most Services have, and at one that many
/// have.
pub fn cluster_ip_requests(state: &ApiState) -> Vec<Request> {
    let specs = state.services.values().filter_map(|service| service.spec.as_ref());
    let addresses = specs.flat_map(|spec| spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip));
    let mut addresses: Vec<std::net::IpAddr> = addresses.filter_map(|address| address.parse().ok()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let ports = |ip: std::net::IpAddr| [80, 443].map(|port| std::net::SocketAddr::new(ip, port));
    let paths = addresses.into_iter().flat_map(ports).map(|address| address.to_string());
    paths.map(|path| Request { path, token: token(CLIENTS, "world-a") }).collect()
}
