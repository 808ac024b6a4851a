//! The requests that are sent to both servers.
//!
//! In: authorities, or the Services of the cluster. Out: requests, each one once. Always holds: for a name, the
//! endpoints and the profile are requested; for an address, only the profile, as by a proxy.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, api::ListParams};
use serde::Serialize;

use crate::{
    api::carries_tcp,
    cli::{authority_form::without_repetitions, cluster_flags::ClusterFlags},
};

/// The number of Services in one page of a list.
const PAGE: u32 = 500;
/// The port of an authority for a Service without TCP ports, such as an ExternalName.
const DEFAULT_PORT: i32 = 80;

/// The method of the Destination API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum RequestKind {
    Endpoints,
    Profile,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct CompareRequest {
    pub(super) method: RequestKind,
    pub(super) authority: String,
}

pub(super) fn of_authorities(authorities: &[String]) -> Vec<CompareRequest> {
    without_repetitions(authorities.to_vec()).into_iter().flat_map(of_authority).collect()
}

/// Lists the Services of all namespaces.
///
/// # Errors
/// Fails without a usable kubeconfig, or if the API server refuses the list.
pub(super) async fn of_all_services(cluster: &ClusterFlags, cluster_domain: &str) -> Result<Vec<CompareRequest>> {
    let services: Api<Service> = Api::all(cluster.client()?);
    let mut pages = ListParams::default().limit(PAGE);
    let mut authorities = Vec::new();
    loop {
        let page = services.list(&pages).await.context("cannot list the Services of all namespaces")?;
        authorities.extend(page.items.iter().flat_map(|service| authorities_of(service, cluster_domain)));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => pages = pages.continue_token(&token),
            None => return Ok(of_authorities(&authorities)),
        }
    }
}

/// Returns the authorities by which proxies find a Service: its name and its addresses, with each of its TCP ports.
fn authorities_of(service: &Service, cluster_domain: &str) -> Vec<String> {
    let (name, namespace) = (service.metadata.name.as_deref(), service.metadata.namespace.as_deref());
    let name = format!("{}.{}.svc.{cluster_domain}", name.unwrap_or_default(), namespace.unwrap_or_default());
    let spec = service.spec.as_ref();
    let ips = spec.and_then(|spec| spec.cluster_ips.as_deref()).unwrap_or_default();
    // A headless Service has the address "None".
    let ips = ips.iter().filter_map(|ip| ip.parse().ok()).map(|ip| match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    });
    let hosts: Vec<String> = std::iter::once(name).chain(ips).collect();
    let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let tcp = ports.iter().filter(|port| port.protocol.as_deref().is_none_or(carries_tcp));
    let ports: Vec<i32> = tcp.map(|port| port.port).collect();
    let ports = if ports.is_empty() { vec![DEFAULT_PORT] } else { ports };
    ports.iter().flat_map(|port| hosts.iter().map(move |host| format!("{host}:{port}"))).collect()
}

fn of_authority(authority: String) -> Vec<CompareRequest> {
    let profile = CompareRequest { method: RequestKind::Profile, authority: authority.clone() };
    if authority.parse::<SocketAddr>().is_ok() {
        return vec![profile];
    }
    vec![CompareRequest { method: RequestKind::Endpoints, authority }, profile]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn authorities(spec: &Value) -> Vec<String> {
        let service = json!({"metadata": {"name": "web", "namespace": "prod"}, "spec": spec});
        authorities_of(&serde_json::from_value(service).unwrap(), "cluster.test")
    }

    #[test]
    fn a_service_is_requested_by_its_name_and_its_addresses_with_each_port() {
        let spec = json!({
            "clusterIPs": ["10.0.0.1", "fd00::1"],
            "ports": [{"port": 53, "protocol": "UDP"}, {"port": 80}, {"port": 443, "protocol": "TCP"}],
        });
        assert_eq!(
            authorities(&spec),
            [
                "web.prod.svc.cluster.test:80",
                "10.0.0.1:80",
                "[fd00::1]:80",
                "web.prod.svc.cluster.test:443",
                "10.0.0.1:443",
                "[fd00::1]:443",
            ]
        );
    }

    #[test]
    fn a_service_without_addresses_or_ports_is_requested_by_name() {
        let headless = json!({"clusterIPs": ["None"], "ports": [{"port": 80}]});
        assert_eq!(authorities(&headless), ["web.prod.svc.cluster.test:80"]);
        let external = json!({"type": "ExternalName", "externalName": "example.org"});
        assert_eq!(authorities(&external), ["web.prod.svc.cluster.test:80"]);
    }

    #[test]
    fn a_name_has_two_requests_and_an_address_one() {
        let request = |method, authority: &str| CompareRequest { method, authority: authority.to_owned() };
        let authorities = ["web.prod.svc:80", "10.0.0.1:80", "web.prod.svc:80", "[fd00::1]:80"].map(str::to_owned);
        assert_eq!(
            of_authorities(&authorities),
            [
                request(RequestKind::Endpoints, "web.prod.svc:80"),
                request(RequestKind::Profile, "web.prod.svc:80"),
                request(RequestKind::Profile, "10.0.0.1:80"),
                request(RequestKind::Profile, "[fd00::1]:80"),
            ]
        );
    }
}
