//! The `WeightedAddr` of one endpoint for one kind of client. Pure.
//!
//! In: a target, its address and port, what its slice says about it, and the client's zone. Out: the message.
//! destination.proto specifies the fields. A field that it does not specify has the value that Linkerd's destination
//! sends.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use strum::IntoStaticStr;

use super::target::{EndpointTarget, PodTarget, WorkloadTarget};
use crate::{
    api::POD_TEMPLATE_HASH_LABEL,
    cluster::kinds::endpoint_slice::ready::Mirror,
    destination::settings::{DestinationSettings, TransportMode},
    proto::{
        destination::{
            AuthorityOverride, ProtocolHint, TlsIdentity, WeightedAddr,
            protocol_hint::{self, OpaqueTransport, Protocol},
            tls_identity::{self, DnsLikeIdentity, Strategy, UriLikeIdentity},
        },
        net::{IPv6, IpAddress, TcpAddress, ip_address},
    },
};

const WEIGHT: u32 = 10_000;
/// The weight of an endpoint in the client's zone, with `--ext-endpoint-zone-weights`.
const WEIGHT_IN_ZONE: u32 = 10 * WEIGHT;

/// The properties that an endpoint has from its slice, besides its address.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::destination) struct SliceContext<'a> {
    pub(in crate::destination) zone: Option<&'a str>,
    pub(in crate::destination) mirror: Option<&'a Mirror>,
    /// The labels of the slice's Service that other endpoints of the set do not have.
    pub(in crate::destination) labels: Option<&'a BTreeMap<String, String>>,
}

/// The properties of a client that affect an endpoint.
#[derive(Clone, Copy, Debug)]
pub(in crate::destination) struct ClientContext<'a> {
    pub(in crate::destination) zone: Option<&'a str>,
    /// The requested port of the Service.
    pub(in crate::destination) port: u16,
}

/// The properties of a port of a target. Endpoints at ports with the same properties differ only in their addresses,
/// and behind a mirror in their authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::destination) struct PortTraits {
    skipped: bool,
    opaque: bool,
    /// Whether it is a port of the proxy itself, which accepts no transport header.
    of_proxy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(in crate::destination) enum Locality {
    Local,
    Remote,
    Unknown,
}

/// Returns the endpoint for the client.
pub(in crate::destination) fn weighted_addr(
    target: &EndpointTarget,
    address: SocketAddr,
    slice: SliceContext<'_>,
    client: &ClientContext<'_>,
    settings: &DestinationSettings,
) -> WeightedAddr {
    let traits = PortTraits::of(target, address.port(), settings);
    let locality = Locality::of(client.zone, target, slice.zone);
    let addr = Some(tcp_address(address));
    WeightedAddr { addr, ..without_address(target, slice, client.port, traits, locality, settings) }
}

/// Returns the endpoint without its address. `port` is that of the Service.
pub(in crate::destination) fn without_address(
    target: &EndpointTarget,
    slice: SliceContext<'_>,
    port: u16,
    traits: PortTraits,
    locality: Locality,
    settings: &DestinationSettings,
) -> WeightedAddr {
    let mut endpoint = of_target(target, slice, port, traits, settings);
    if settings.ext_endpoint_zone_weights && locality == Locality::Local {
        endpoint.weight = WEIGHT_IN_ZONE;
    }
    endpoint.metric_labels.insert("zone_locality".to_owned(), locality.into_str().to_owned());
    for (key, value) in slice.labels.into_iter().flatten() {
        endpoint.metric_labels.entry(key.clone()).or_insert_with(|| value.clone());
    }
    endpoint
}

/// Returns the endpoint of a profile. Its zone is unknown, because it is found by its address and not in a slice.
pub(in crate::destination) fn profiled(
    target: &EndpointTarget,
    address: SocketAddr,
    settings: &DestinationSettings,
) -> WeightedAddr {
    let ports = target.ports_at(address);
    let traits = PortTraits::of_any(target, &ports, settings);
    let endpoint = of_target(target, SliceContext::default(), address.port(), traits, settings);
    let mut endpoint = WeightedAddr { addr: Some(tcp_address(address)), ..endpoint };
    // A host port forwards connections to one port of the Pod. Nothing forwards the inbound port of its proxy.
    if let (true, Some(hint)) = (ports.len() > 1, &mut endpoint.protocol_hint) {
        hint.opaque_transport = None;
    }
    if let Some(namespace) = target.namespace() {
        endpoint.metric_labels.insert("namespace".to_owned(), namespace.to_owned());
    }
    endpoint
}

/// Returns the fields that depend neither on the address nor on the client's zone.
fn of_target(
    target: &EndpointTarget,
    slice: SliceContext<'_>,
    port: u16,
    traits: PortTraits,
    settings: &DestinationSettings,
) -> WeightedAddr {
    let base = WeightedAddr { weight: WEIGHT, ..WeightedAddr::default() };
    match target {
        EndpointTarget::Pod(pod) => of_pod(base, pod, traits, slice.zone, settings),
        EndpointTarget::Workload(workload) => of_workload(base, workload, traits, slice.zone, settings),
        EndpointTarget::Address => of_address(base, slice, port, settings),
    }
}

pub(in crate::destination) fn tcp_address(address: SocketAddr) -> TcpAddress {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip_address::Ip::Ipv4(ip.into()),
        IpAddr::V6(ip) => {
            let [first, last] = halves(ip.into());
            ip_address::Ip::Ipv6(IPv6 { first, last })
        }
    };
    TcpAddress { ip: Some(IpAddress { ip: Some(ip) }), port: address.port().into() }
}

fn halves(bits: u128) -> [u64; 2] {
    let low = bits & u128::from(u64::MAX);
    [bits >> 64, low].map(|half| u64::try_from(half).unwrap_or_default())
}

fn of_pod(
    base: WeightedAddr,
    target: &PodTarget,
    PortTraits { skipped, opaque, of_proxy }: PortTraits,
    zone: Option<&str>,
    settings: &DestinationSettings,
) -> WeightedAddr {
    let pod = &target.pod;
    let meshed = pod.control_plane_namespace().filter(|_| !skipped);
    let mut endpoint = WeightedAddr { metric_labels: pod_labels(target, zone), ..base };
    // No hint and no identity: without a proxy on the other side, connections that use them fail.
    let Some(control_plane_namespace) = meshed else { return endpoint };
    let transport = opaque || settings.outbound_transport_mode == TransportMode::TransportHeader;
    endpoint.http2 = settings.meshed_http2_client_params.0;
    endpoint.protocol_hint = Some(ProtocolHint {
        protocol: protocol(opaque, settings.enable_h2_upgrade),
        // If the inbound port is unknown, proxies open a plain connection, which the Pod redirects, instead of a
        // connection to a port that does not exist.
        opaque_transport: pod
            .proxy
            .filter(|_| transport && !of_proxy)
            .map(|proxy| OpaqueTransport { inbound_port: proxy.inbound.into() }),
    });
    let ours = *control_plane_namespace == *settings.controller_namespace;
    if ours && !settings.identity_trust_domain.is_empty() {
        let (service_account, namespace) = (&pod.service_account, &pod.key.namespace);
        let trust_domain = &settings.identity_trust_domain;
        let name =
            format!("{service_account}.{namespace}.serviceaccount.identity.{control_plane_namespace}.{trust_domain}");
        endpoint.tls_identity = Some(TlsIdentity {
            strategy: Some(Strategy::DnsLikeIdentity(DnsLikeIdentity { name: name.clone() })),
            server_name: Some(DnsLikeIdentity { name }),
        });
    }
    endpoint
}

fn pod_labels(target: &PodTarget, zone: Option<&str>) -> BTreeMap<String, String> {
    let pod = &target.pod;
    let mut labels = BTreeMap::from([("pod".to_owned(), pod.key.name.to_string())]);
    if let Some(owner) = &target.owner {
        // Prometheus uses the label `job` for its own scrape jobs.
        let kind = owner.kind.to_lowercase();
        labels.insert(if kind == "job" { "k8s_job".to_owned() } else { kind }, owner.name.to_string());
    }
    if let Some(namespace) = pod.control_plane_namespace() {
        labels.insert("control_plane_ns".to_owned(), namespace.to_owned());
    }
    if let Some(hash) = pod.labels.get(POD_TEMPLATE_HASH_LABEL).filter(|hash| !hash.is_empty()) {
        labels.insert("pod_template_hash".to_owned(), hash.to_string());
    }
    labels.insert("serviceaccount".to_owned(), pod.service_account.to_string());
    labels.insert("zone".to_owned(), zone.unwrap_or_default().to_owned());
    labels
}

/// Returns the endpoint of an ExternalWorkload, which is always meshed.
fn of_workload(
    base: WeightedAddr,
    target: &WorkloadTarget,
    PortTraits { opaque, .. }: PortTraits,
    zone: Option<&str>,
    settings: &DestinationSettings,
) -> WeightedAddr {
    let workload = &target.workload;
    let transport = opaque || settings.outbound_transport_mode == TransportMode::TransportHeader;
    let mut labels = BTreeMap::from([("external_workload".to_owned(), workload.key.name.to_string())]);
    if let Some(owner) = &workload.mesh.owner {
        labels.insert(owner.kind.to_lowercase(), owner.name.to_string());
    }
    labels.insert("zone".to_owned(), zone.unwrap_or_default().to_owned());
    WeightedAddr {
        metric_labels: labels,
        http2: settings.meshed_http2_client_params.0,
        protocol_hint: Some(ProtocolHint {
            protocol: protocol(opaque, true),
            // Proxies ignore 65535.
            opaque_transport: workload
                .inbound_port()
                .filter(|inbound| transport && *inbound < u16::MAX)
                .map(|inbound| OpaqueTransport { inbound_port: inbound.into() }),
        }),
        tls_identity: Some(TlsIdentity {
            strategy: Some(Strategy::UriLikeIdentity(UriLikeIdentity { uri: workload.mesh.identity.to_string() })),
            server_name: Some(DnsLikeIdentity { name: workload.mesh.server_name.to_string() }),
        }),
        ..base
    }
}

/// Returns the endpoint of a bare address, or of a gateway in front of a Service in another cluster.
fn of_address(base: WeightedAddr, slice: SliceContext<'_>, port: u16, settings: &DestinationSettings) -> WeightedAddr {
    let Some(mirror) = slice.mirror else { return base };
    let mut endpoint = base;
    if let Some(identity) = &mirror.gateway_identity {
        let identity = DnsLikeIdentity { name: identity.to_string() };
        let strategy = Some(tls_identity::Strategy::DnsLikeIdentity(identity));
        // No server name, because the gateway's certificate is for its identity.
        endpoint.tls_identity = Some(TlsIdentity { strategy, server_name: None });
        endpoint.http2 = settings.meshed_http2_client_params.0;
        endpoint.protocol_hint = settings
            .enable_h2_upgrade
            .then(|| ProtocolHint { protocol: protocol(false, true), opaque_transport: None });
    }
    endpoint.authority_override = mirror.service.as_ref().map(|service| AuthorityOverride {
        // The requested port, not the port of the gateway.
        authority_override: format!("{service}:{port}"),
    });
    endpoint
}

fn protocol(opaque: bool, h2: bool) -> Option<Protocol> {
    if opaque {
        Some(Protocol::Opaque(protocol_hint::Opaque {}))
    } else {
        h2.then_some(Protocol::H2(protocol_hint::H2 {}))
    }
}

// === impl PortTraits ===

impl PortTraits {
    pub(in crate::destination) fn of(target: &EndpointTarget, port: u16, settings: &DestinationSettings) -> Self {
        Self::of_any(target, &[port], settings)
    }

    /// Returns the properties of a target that receives the same connections at several ports.
    fn of_any(target: &EndpointTarget, ports: &[u16], settings: &DestinationSettings) -> Self {
        let opaque = ports.iter().any(|port| target.is_opaque(*port, settings));
        let EndpointTarget::Pod(target) = target else { return Self { skipped: false, opaque, of_proxy: false } };
        let skipped = ports.iter().any(|port| target.pod.skipped_ports.contains(*port));
        let of_proxy = target.pod.proxy.is_some_and(|it| ports.contains(&it.admin) || ports.contains(&it.control));
        Self { skipped, opaque, of_proxy }
    }
}

// === impl Locality ===

impl Locality {
    /// Returns the locality of an endpoint. The zone of a bare address is ignored.
    pub(in crate::destination) fn of(client: Option<&str>, target: &EndpointTarget, zone: Option<&str>) -> Self {
        Self::between(client, zone.filter(|_| !matches!(target, EndpointTarget::Address)))
    }

    fn between(client: Option<&str>, endpoint: Option<&str>) -> Self {
        match (client, endpoint) {
            (Some(client), Some(endpoint)) if client == endpoint => Self::Local,
            (Some(_), Some(_)) => Self::Remote,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_is_sent_in_two_halves() {
        let ip = tcp_address("[2001:db8::94]:8989".parse().unwrap());
        let halves = IPv6 { first: 0x2001_0db8_0000_0000, last: 0x94 };
        assert_eq!(ip, TcpAddress { ip: Some(IpAddress { ip: Some(ip_address::Ip::Ipv6(halves)) }), port: 8989 });
        let mapped = tcp_address("[::ffff:10.0.0.1]:80".parse().unwrap());
        let halves = IPv6 { first: 0, last: 0xffff_0a00_0001 };
        assert_eq!(
            mapped.ip,
            Some(IpAddress { ip: Some(ip_address::Ip::Ipv6(halves)) }),
            "an IPv4-mapped address stays an IPv6 address"
        );
    }

    #[test]
    fn the_locality_is_unknown_unless_both_zones_are_known() {
        for (client, endpoint, expected) in [
            (None, Some("a"), "unknown"),
            (None, None, "unknown"),
            (Some("a"), None, "unknown"),
            (Some("A"), Some("a"), "remote"),
        ] {
            assert_eq!(Locality::between(client, endpoint).into_str(), expected);
        }
    }
}
