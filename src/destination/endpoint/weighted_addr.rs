//! What one endpoint looks like to one kind of client. Pure.
//!
//! In: a member of a Service, an address and port of it, the client's zone. Out: the `WeightedAddr` of the API. What a field
//! depends on is in destination.proto and, where that is silent, what Linkerd's destination sends.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use crate::destination::{
    get::members::{PodSubject, Subject, WorkloadSubject},
    settings::{Settings, TransportMode},
};
use crate::{
    api::{POD_TEMPLATE_HASH_LABEL, PROXY_NAME},
    cluster::kinds::endpoint_slice::ready::Mirror,
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
/// Of an endpoint in the client's zone, with `--ext-endpoint-zone-weights`.
const WEIGHT_IN_ZONE: u32 = 10 * WEIGHT;
/// Where the proxy of an ExternalWorkload listens that does not say.
const WORKLOAD_INBOUND_PORT: u16 = 4143;

/// An endpoint, as far as its slice tells.
#[derive(Clone, Copy, Debug)]
pub(in crate::destination) struct Placed<'a> {
    pub(in crate::destination) address: SocketAddr,
    pub(in crate::destination) zone: Option<&'a str>,
    pub(in crate::destination) mirror: Option<&'a Mirror>,
}

/// Who is told.
#[derive(Clone, Copy, Debug)]
pub(in crate::destination) struct Client<'a> {
    pub(in crate::destination) zone: Option<&'a str>,
    /// The port that was asked for.
    pub(in crate::destination) port: u16,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Locality {
    Local,
    Remote,
    Unknown,
}

/// The endpoint for the client.
pub(in crate::destination) fn weighted_address(
    subject: &Subject,
    placed: &Placed<'_>,
    client: &Client<'_>,
    settings: &Settings,
) -> WeightedAddr {
    // Of a bare address nothing is read but the address.
    let zone = placed.zone.filter(|_| !matches!(subject, Subject::Address));
    let locality = Locality::between(client.zone, zone);
    let mut endpoint = of_subject(subject, placed, client.port, settings);
    if settings.ext_endpoint_zone_weights && locality == Locality::Local {
        endpoint.weight = WEIGHT_IN_ZONE;
    }
    endpoint.metric_labels.insert("zone_locality".to_owned(), locality.as_str().to_owned());
    endpoint
}

/// The only endpoint of a profile: what it stands for is in no slice, so nothing is known of its zone.
pub(in crate::destination) fn profiled(subject: &Subject, address: SocketAddr, settings: &Settings) -> WeightedAddr {
    let placed = Placed { address, zone: None, mirror: None };
    let mut endpoint = of_subject(subject, &placed, address.port(), settings);
    if let Some(namespace) = subject.namespace() {
        endpoint.metric_labels.insert("namespace".to_owned(), namespace.to_owned());
    }
    endpoint
}

/// As it looks to everybody who asked for this port.
fn of_subject(subject: &Subject, placed: &Placed<'_>, port: u16, settings: &Settings) -> WeightedAddr {
    let base = WeightedAddr { addr: Some(tcp_address(placed.address)), weight: WEIGHT, ..WeightedAddr::default() };
    match subject {
        Subject::Pod(pod) => of_pod(base, pod, placed, settings),
        Subject::Workload(workload) => of_workload(base, workload, placed, settings),
        Subject::Address => of_address(base, placed, port, settings),
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

fn of_pod(base: WeightedAddr, subject: &PodSubject, placed: &Placed<'_>, settings: &Settings) -> WeightedAddr {
    let pod = &subject.pod;
    let port = placed.address.port();
    let meshed = pod.control_plane_namespace().filter(|_| !pod.skipped_ports.contains(port));
    let mut endpoint = WeightedAddr { metric_labels: pod_labels(subject, placed.zone), ..base };
    // Neither hint nor identity: what the proxy would do with them goes wrong without a proxy on the other side.
    let Some(control_plane_namespace) = meshed else { return endpoint };
    let opaque = subject.is_opaque(port, settings);
    let transport = opaque || settings.outbound_transport_mode == TransportMode::TransportHeader;
    endpoint.http2 = settings.meshed_http2_client_params.0;
    endpoint.protocol_hint = Some(ProtocolHint {
        protocol: protocol(opaque, settings.enable_h2_upgrade),
        // The proxy's own ports take no transport header. Where it listens is not always known: better a plain connection
        // that the Pod redirects than one to a port that is not there.
        opaque_transport: pod
            .proxy
            .filter(|proxy| transport && ![proxy.admin, proxy.control].contains(&port))
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

fn pod_labels(subject: &PodSubject, zone: Option<&str>) -> BTreeMap<String, String> {
    let pod = &subject.pod;
    let mut labels = BTreeMap::from([("pod".to_owned(), pod.key.name.to_string())]);
    if let Some(owner) = &subject.owner {
        // `job` is what Prometheus calls what it scrapes.
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

/// An ExternalWorkload is meshed, whatever else it says: that is what it is there for.
fn of_workload(
    base: WeightedAddr,
    subject: &WorkloadSubject,
    placed: &Placed<'_>,
    settings: &Settings,
) -> WeightedAddr {
    let workload = &subject.workload;
    let opaque = subject.is_opaque(placed.address.port(), settings);
    let transport = opaque || settings.outbound_transport_mode == TransportMode::TransportHeader;
    let inbound = workload.ports.iter().find(|port| port.name == PROXY_NAME);
    let inbound = inbound.map_or(Some(WORKLOAD_INBOUND_PORT), |port| u16::try_from(port.number).ok());
    let mut labels = BTreeMap::from([("external_workload".to_owned(), workload.key.name.to_string())]);
    if let Some(owner) = &workload.mesh.owner {
        labels.insert(owner.kind.to_lowercase(), owner.name.to_string());
    }
    labels.insert("zone".to_owned(), placed.zone.unwrap_or_default().to_owned());
    WeightedAddr {
        metric_labels: labels,
        http2: settings.meshed_http2_client_params.0,
        protocol_hint: Some(ProtocolHint {
            protocol: protocol(opaque, true),
            // Proxies ignore 65535.
            opaque_transport: inbound
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

/// A bare address, or a gateway in front of a Service in another cluster.
fn of_address(base: WeightedAddr, placed: &Placed<'_>, port: u16, settings: &Settings) -> WeightedAddr {
    let Some(mirror) = placed.mirror else { return base };
    let mut endpoint = base;
    if let Some(identity) = &mirror.gateway_identity {
        let identity = DnsLikeIdentity { name: identity.to_string() };
        let strategy = Some(tls_identity::Strategy::DnsLikeIdentity(identity));
        // Without a server name: the gateway's certificate is for its identity.
        endpoint.tls_identity = Some(TlsIdentity { strategy, server_name: None });
        endpoint.http2 = settings.meshed_http2_client_params.0;
        endpoint.protocol_hint = settings
            .enable_h2_upgrade
            .then(|| ProtocolHint { protocol: protocol(false, true), opaque_transport: None });
    }
    endpoint.authority_override = mirror.service.as_ref().map(|service| AuthorityOverride {
        // What the client asked for, not where the gateway listens.
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

// === impl Locality ===

impl Locality {
    fn between(client: Option<&str>, endpoint: Option<&str>) -> Self {
        match (client, endpoint) {
            (Some(client), Some(endpoint)) if client == endpoint => Self::Local,
            (Some(_), Some(_)) => Self::Remote,
            _ => Self::Unknown,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
#[path = "weighted_addr_tests.rs"]
mod tests;
