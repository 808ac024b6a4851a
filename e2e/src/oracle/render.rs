//! Renders one endpoint for a client.
//!
//! * In: the winning candidate of an address. Out: its `WeightedAddr`, without the labels of the set.
//! * Always: if the ports of a meshed Pod's proxy cannot be parsed, only `opaque_transport` is omitted; the identity
//!   and the hint stay.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use linkerd2_proxy_api::{
    destination::{
        AuthorityOverride, ProtocolHint, TlsIdentity, WeightedAddr,
        protocol_hint::{H2, Opaque, OpaqueTransport, Protocol},
        tls_identity::{DnsLikeIdentity, Strategy, UriLikeIdentity},
    },
    net::{IPv6, IpAddress, TcpAddress, ip_address::Ip},
};
use serde_json::Value;

use super::{
    ApiState, Settings,
    authority::Authority,
    candidate::{Candidate, EndpointTarget},
    label::{self, CONTROL_PLANE, Labels},
    opaque::{self, Selector},
};

pub(super) const WEIGHT: u32 = 10_000;
const LOCAL_WEIGHT: u32 = 100_000;
const GATEWAY_IDENTITY: &str = "mirror.linkerd.io/remote-gateway-identity";
const MIRRORED_SERVICE: &str = "mirror.linkerd.io/remote-svc-fq-name";
const SKIPPED_PORTS: &str = "config.linkerd.io/skip-inbound-ports";
const PROXY: &str = "linkerd-proxy";

pub(super) fn endpoint(
    state: &ApiState,
    settings: &Settings,
    authority: &Authority,
    client_zone: &str,
    address: SocketAddr,
    candidate: &Candidate<'_>,
) -> WeightedAddr {
    let zone = candidate.endpoint.zone.as_deref().unwrap_or_default();
    let locality = match (client_zone, zone) {
        ("", _) | (_, "") => "unknown",
        (client, endpoint) if client == endpoint => "local",
        _ => "remote",
    };
    let mut rendered = match candidate.target {
        EndpointTarget::Pod { name, pod } => {
            let labels = label::of_pod(state, &authority.namespace, name, pod, zone, Some(locality));
            of_pod(state, settings, &authority.namespace, pod, &[address.port()], labels)
        }
        EndpointTarget::Workload { name, workload } => {
            let labels = label::of_workload(name, workload, zone, Some(locality));
            of_workload(state, settings, &authority.namespace, workload, address.port(), labels)
        }
        EndpointTarget::Plain => plain(settings, authority, candidate),
    };
    rendered.addr = Some(wire(address));
    let near = rendered.metric_labels.get("zone_locality").is_some_and(|locality| locality == "local");
    rendered.weight = if settings.zone_weights && near { LOCAL_WEIGHT } else { WEIGHT };
    rendered
}

/// The endpoint of a Pod that receives connections at these ports, without address and weight.
pub(super) fn of_pod(
    state: &ApiState,
    settings: &Settings,
    namespace: &str,
    pod: &Pod,
    ports: &[u16],
    metric_labels: Labels,
) -> WeightedAddr {
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
    let control_plane = labels.get(CONTROL_PLANE).map_or("", String::as_str);
    let skips = |list: &String| ports.iter().any(|port| opaque::lists(list, &[], *port));
    let skipped = annotations.get(SKIPPED_PORTS).is_some_and(skips);
    let mut rendered = WeightedAddr { metric_labels, ..WeightedAddr::default() };
    if control_plane.is_empty() || skipped {
        return rendered;
    }
    let opaque = pod_is_opaque(state, settings, namespace, pod, ports);
    let protocol = match (opaque, settings.h2_upgrade) {
        (true, _) => Some(Protocol::Opaque(Opaque {})),
        (false, true) => Some(Protocol::H2(H2 {})),
        (false, false) => None,
    };
    let transported = opaque || settings.transport_header;
    let of_proxy = |own: &[u16]| ports.iter().any(|port| own.contains(port));
    let inbound = proxy_ports(pod).filter(|proxy| transported && !of_proxy(&proxy.own));
    let opaque_transport = inbound.map(|ports| OpaqueTransport { inbound_port: ports.inbound.into() });
    rendered.protocol_hint = Some(ProtocolHint { opaque_transport, protocol });
    rendered.http2 = settings.http2;
    if control_plane == settings.controller_namespace && !settings.trust_domain.is_empty() {
        let account = label::service_account(pod);
        let trust_domain = &settings.trust_domain;
        let name = format!("{account}.{namespace}.serviceaccount.identity.{control_plane}.{trust_domain}");
        let identity = DnsLikeIdentity { name };
        rendered.tls_identity = Some(TlsIdentity {
            server_name: Some(identity.clone()),
            strategy: Some(Strategy::DnsLikeIdentity(identity)),
        });
    }
    rendered
}

/// The endpoint of a workload, without address and weight.
pub(super) fn of_workload(
    state: &ApiState,
    settings: &Settings,
    namespace: &str,
    workload: &DynamicObject,
    port: u16,
    metric_labels: Labels,
) -> WeightedAddr {
    let names = opaque::workload_ports(workload);
    let opaque = workload_is_opaque(state, settings, namespace, workload, port);
    let inbound = names.iter().find(|named| named.name == PROXY);
    let inbound = inbound.map_or(4143, |named| named.number);
    let inbound_port = u32::try_from(inbound).ok().filter(|port| (1..=65534).contains(port));
    let transported = opaque || settings.transport_header;
    let opaque_transport = inbound_port.filter(|_| transported).map(|inbound_port| OpaqueTransport { inbound_port });
    let protocol = Some(if opaque { Protocol::Opaque(Opaque {}) } else { Protocol::H2(H2 {}) });
    let text = |pointer: &str| workload.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    WeightedAddr {
        metric_labels,
        protocol_hint: Some(ProtocolHint { opaque_transport, protocol }),
        http2: settings.http2,
        tls_identity: Some(TlsIdentity {
            server_name: Some(DnsLikeIdentity { name: text("/spec/meshTLS/serverName") }),
            strategy: Some(Strategy::UriLikeIdentity(UriLikeIdentity { uri: text("/spec/meshTLS/identity") })),
        }),
        ..WeightedAddr::default()
    }
}

/// Returns whether the Pod's annotation, the default or a Server makes one of the ports opaque.
pub(super) fn pod_is_opaque(state: &ApiState, settings: &Settings, namespace: &str, pod: &Pod, ports: &[u16]) -> bool {
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
    let names = opaque::pod_ports(pod);
    let default = &settings.default_opaque_ports;
    let metadata = (&labels, &annotations);
    ports.iter().any(|port| opaque::is_opaque(state, default, namespace, Selector::Pod, metadata, &names, *port))
}

/// Returns whether a workload's annotation, the default or a Server makes the port opaque.
pub(super) fn workload_is_opaque(
    state: &ApiState,
    settings: &Settings,
    namespace: &str,
    workload: &DynamicObject,
    port: u16,
) -> bool {
    let labels = workload.metadata.labels.clone().unwrap_or_default();
    let annotations = workload.metadata.annotations.clone().unwrap_or_default();
    let names = opaque::workload_ports(workload);
    let default = &settings.default_opaque_ports;
    opaque::is_opaque(state, default, namespace, Selector::Workload, (&labels, &annotations), &names, port)
}

/// The endpoint of an address without a target; annotations of the slice may make it another cluster's gateway.
fn plain(settings: &Settings, authority: &Authority, candidate: &Candidate<'_>) -> WeightedAddr {
    let annotations = candidate.slice.metadata.annotations.clone().unwrap_or_default();
    let mut rendered = WeightedAddr {
        metric_labels: Labels::from([("zone_locality".to_owned(), "unknown".to_owned())]),
        ..WeightedAddr::default()
    };
    if let Some(name) = annotations.get(GATEWAY_IDENTITY).filter(|name| !name.is_empty()) {
        let strategy = Some(Strategy::DnsLikeIdentity(DnsLikeIdentity { name: name.clone() }));
        rendered.tls_identity = Some(TlsIdentity { server_name: None, strategy });
        rendered.http2 = settings.http2;
        let hint = ProtocolHint { opaque_transport: None, protocol: Some(Protocol::H2(H2 {})) };
        rendered.protocol_hint = settings.h2_upgrade.then_some(hint);
    }
    // The requested port, not the gateway's.
    rendered.authority_override = annotations
        .get(MIRRORED_SERVICE)
        .map(|name| AuthorityOverride { authority_override: format!("{name}:{}", authority.port) });
    rendered
}

/// The ports of a Pod's proxy.
struct ProxyPorts {
    inbound: u16,
    /// The admin and control ports of the proxy itself, which accept no transport header.
    own: [u16; 2],
}

/// `None` if the Pod has no proxy, a variable is missing, or a value is not a literal socket address.
fn proxy_ports(pod: &Pod) -> Option<ProxyPorts> {
    let proxy = opaque::containers(pod).into_iter().find(|container| container.name == PROXY)?;
    let port = |variable: &str| {
        let set = proxy.env.iter().flatten().find(|set| set.name == variable)?;
        set.value.as_ref()?.parse::<SocketAddr>().ok().map(|address| address.port())
    };
    let own = [port("LINKERD2_PROXY_ADMIN_LISTEN_ADDR")?, port("LINKERD2_PROXY_CONTROL_LISTEN_ADDR")?];
    let inbound = port("LINKERD2_PROXY_INBOUND_LISTEN_ADDR").filter(|port| (1..=65534).contains(port))?;
    Some(ProxyPorts { inbound, own })
}

pub(super) fn wire(address: SocketAddr) -> TcpAddress {
    let ip = match address.ip() {
        IpAddr::V4(ip) => Ip::Ipv4(ip.to_bits()),
        IpAddr::V6(ip) => {
            let [a, b, c, d, e, f, g, h] = ip.segments().map(u64::from);
            let join = |four: [u64; 4]| four.into_iter().fold(0, |sum, part| (sum << 16) | part);
            Ip::Ipv6(IPv6 { first: join([a, b, c, d]), last: join([e, f, g, h]) })
        }
    };
    TcpAddress { ip: Some(IpAddress { ip: Some(ip) }), port: address.port().into() }
}
