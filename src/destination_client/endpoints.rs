//! The endpoints that the messages of a `Get` stream add up to.
//!
//! In: messages of the stream, applied as the proxy applies them: the first `Add` of a stream replaces all, later ones
//! replace by address; `Remove` deletes; `NoEndpoints` clears. Out: the current endpoints, and the change that each
//! message made. Always holds: it reads no clock and prints nothing; addresses that the proxy could not use are left
//! out, as the proxy does.

use std::{
    collections::BTreeMap,
    mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use serde::Serialize;
use serde_json::Value;
use tonic::{Status, Streaming};

use super::{AuthorityState, DestinationClient};
use crate::proto::{
    destination::{
        GetDestination, Http2ClientParams, Update, WeightedAddr, protocol_hint::Protocol, tls_identity::Strategy,
        update,
    },
    net::{TcpAddress, ip_address::Ip},
};

/// The label of an endpoint in another cluster, if the token asks for it.
const CLUSTER: &str = "cluster";

/// Returns a token that also asks for the clusters of endpoints. Linkerd's server ignores that. A token in the old
/// format, which is not JSON, is returned unchanged.
pub fn with_clusters(token: &str) -> String {
    let text = if token.trim().is_empty() { "{}" } else { token };
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(mut fields)) => {
            fields.insert("clusters".to_owned(), Value::Bool(true));
            Value::Object(fields).to_string()
        }
        _ => token.to_owned(),
    }
}

/// The endpoints of one authority.
#[derive(Debug, Default)]
pub struct EndpointsState {
    known: BTreeMap<SocketAddr, EndpointRow>,
    /// Whether this stream has sent a state, so that its next message is a change.
    begun: bool,
    /// Set if the last message was `NoEndpoints`.
    none: Option<NoEndpoints>,
}

/// One endpoint. The first fields are those of `linkerd diagnostics endpoints -o json`; the others are only in the
/// output of this command.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EndpointRow {
    pub namespace: String,
    pub ip: IpAddr,
    pub port: u16,
    /// The name of the Pod, or of the ExternalWorkload.
    pub pod: String,
    /// `<name>.<namespace>`.
    pub service: String,
    /// Another cluster, as the link names it; absent for this cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    pub weight: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http2: Option<Http2ClientParams>,
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_identity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opaque_transport_port: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority_override: Option<String>,
}

/// The change that a message made.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EndpointsChange {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<EndpointRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<ChangedEndpoint>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<EndpointRow>,
    /// Set if the message was `NoEndpoints`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_endpoints: Option<NoEndpoints>,
}

/// An endpoint after a change, and the fields that were different before.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChangedEndpoint {
    #[serde(flatten)]
    pub endpoint: EndpointRow,
    pub differs: Vec<&'static str>,
}

/// The message of that name. It is a separate type, because the JSON has `exists` even if it is `false`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NoEndpoints {
    /// Whether the Service exists.
    pub exists: bool,
}

// === impl EndpointsState ===

impl EndpointsState {
    /// Returns the endpoints, ordered by address.
    pub fn known(&self) -> impl Iterator<Item = &EndpointRow> {
        self.known.values()
    }

    /// Returns the last message if it was `NoEndpoints`.
    pub fn none(&self) -> Option<NoEndpoints> {
        self.none
    }
}

impl AuthorityState for EndpointsState {
    type Message = Update;
    type Difference = EndpointsChange;
    const IN_PARTS: bool = true;

    async fn open(destination: &DestinationClient, request: GetDestination) -> Result<Streaming<Update>, Status> {
        destination.get(request).await
    }

    fn reopen(&mut self) {
        self.begun = false;
    }

    fn apply(&mut self, update: Update) -> Option<EndpointsChange> {
        let mut change = EndpointsChange::default();
        match update.update {
            Some(update::Update::Add(set)) => {
                let mut vanished = if self.begun { BTreeMap::new() } else { mem::take(&mut self.known) };
                self.begun = true;
                self.none = None;
                for addr in set.addrs {
                    let Some(address) = addr.addr.as_ref().and_then(socket_address) else { continue };
                    let endpoint = EndpointRow::new(address, addr, &set.metric_labels);
                    let replaced = self.known.insert(address, endpoint.clone());
                    match vanished.remove(&address).or(replaced) {
                        None => change.added.push(endpoint),
                        Some(before) => {
                            let differs = before.differs(&endpoint);
                            if !differs.is_empty() {
                                change.changed.push(ChangedEndpoint { endpoint, differs });
                            }
                        }
                    }
                }
                change.removed.extend(vanished.into_values());
            }
            // As a first message it has no effect: there is no state yet.
            Some(update::Update::Remove(set)) if self.begun => {
                let addresses = set.addrs.iter().filter_map(socket_address);
                change.removed.extend(addresses.filter_map(|address| self.known.remove(&address)));
            }
            Some(update::Update::NoEndpoints(none)) => {
                self.begun = true;
                change.removed.extend(mem::take(&mut self.known).into_values());
                self.none = Some(NoEndpoints { exists: none.exists });
                change.no_endpoints = self.none;
            }
            Some(update::Update::Remove(_)) | None => {}
        }
        (change != EndpointsChange::default()).then_some(change)
    }
}

// === impl EndpointRow ===

impl EndpointRow {
    fn new(address: SocketAddr, addr: WeightedAddr, set_labels: &BTreeMap<String, String>) -> Self {
        // The label of an endpoint has precedence, as in the proxy.
        let mut labels = addr.metric_labels;
        let label = |name: &str| labels.get(name).or_else(|| set_labels.get(name)).cloned();
        let (service, namespace) = (label("service").unwrap_or_default(), label("namespace").unwrap_or_default());
        let cluster = label(CLUSTER);
        labels.remove(CLUSTER);
        let pod = labels.get("pod").or_else(|| labels.get("external_workload")).cloned().unwrap_or_default();
        let identity = addr.tls_identity.as_ref();
        let hint = addr.protocol_hint.as_ref();
        Self {
            service: format!("{service}.{namespace}"),
            cluster,
            namespace,
            ip: address.ip(),
            port: address.port(),
            pod,
            weight: addr.weight,
            http2: addr.http2,
            tls_identity: identity.and_then(|identity| identity.strategy.as_ref()).map(|strategy| match strategy {
                Strategy::DnsLikeIdentity(identity) => identity.name.clone(),
                Strategy::UriLikeIdentity(identity) => identity.uri.clone(),
            }),
            server_name: identity.and_then(|identity| identity.server_name.as_ref()).map(|server| server.name.clone()),
            protocol: hint.and_then(|hint| hint.protocol.as_ref()).map(|protocol| match protocol {
                Protocol::H2(_) => "h2",
                Protocol::Opaque(_) => "opaque",
            }),
            opaque_transport_port: hint
                .and_then(|hint| hint.opaque_transport.as_ref())
                .map(|transport| transport.inbound_port),
            authority_override: addr.authority_override.map(|authority| authority.authority_override),
            labels,
        }
    }

    /// Returns the JSON names of the fields in which two endpoints with the same address differ.
    pub fn differs(&self, other: &Self) -> Vec<&'static str> {
        [
            ("service", self.service != other.service),
            ("cluster", self.cluster != other.cluster),
            ("pod", self.pod != other.pod),
            ("weight", self.weight != other.weight),
            ("http2", self.http2 != other.http2),
            ("labels", self.labels != other.labels),
            ("tls_identity", self.tls_identity != other.tls_identity),
            ("server_name", self.server_name != other.server_name),
            ("protocol", self.protocol != other.protocol),
            ("opaque_transport_port", self.opaque_transport_port != other.opaque_transport_port),
            ("authority_override", self.authority_override != other.authority_override),
        ]
        .into_iter()
        .filter_map(|(name, differs)| differs.then_some(name))
        .collect()
    }
}

fn socket_address(address: &TcpAddress) -> Option<SocketAddr> {
    let ip = match address.ip.as_ref()?.ip.as_ref()? {
        Ip::Ipv4(bits) => IpAddr::V4(Ipv4Addr::from_bits(*bits)),
        Ip::Ipv6(ip) => IpAddr::V6(Ipv6Addr::from_bits(u128::from(ip.first) << 64 | u128::from(ip.last))),
    };
    Some(SocketAddr::new(ip, u16::try_from(address.port).ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::proto::{
        destination::{
            self, AddrSet, AuthorityOverride, Http2ClientParams, ProtocolHint, TlsIdentity, WeightedAddrSet,
            http2_client_params::{FlowControl, KeepAlive},
            protocol_hint::{H2, Opaque, OpaqueTransport},
            tls_identity::{DnsLikeIdentity, UriLikeIdentity},
        },
        net::{IPv6, IpAddress},
    };

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// `10.0.0.<last>:80`.
    fn tcp(last: u8) -> TcpAddress {
        let ip = Ip::Ipv4(Ipv4Addr::new(10, 0, 0, last).to_bits());
        TcpAddress { ip: Some(IpAddress { ip: Some(ip) }), port: 80 }
    }

    fn weighted(last: u8, pod: &str) -> WeightedAddr {
        let metric_labels = labels(&[("pod", pod)]);
        WeightedAddr { addr: Some(tcp(last)), weight: 10_000, metric_labels, ..WeightedAddr::default() }
    }

    fn add(addrs: Vec<WeightedAddr>) -> Update {
        let metric_labels = labels(&[("service", "web"), ("namespace", "prod")]);
        Update { update: Some(update::Update::Add(WeightedAddrSet { addrs, metric_labels })) }
    }

    fn remove(lasts: &[u8]) -> Update {
        Update {
            update: Some(update::Update::Remove(AddrSet { addrs: lasts.iter().map(|last| tcp(*last)).collect() })),
        }
    }

    fn none(exists: bool) -> Update {
        Update { update: Some(update::Update::NoEndpoints(destination::NoEndpoints { exists })) }
    }

    fn pods(endpoints: impl IntoIterator<Item = EndpointRow>) -> Vec<String> {
        endpoints.into_iter().map(|endpoint| endpoint.pod).collect()
    }

    /// The row for a single address.
    fn shown(addr: WeightedAddr) -> EndpointRow {
        EndpointsState::default().apply(add(vec![addr])).unwrap().added.remove(0)
    }

    #[test]
    fn the_cluster_is_that_of_the_endpoint_or_of_the_set_and_no_label() {
        let of = |set: &[(&str, &str)], endpoint: &[(&str, &str)]| {
            let row = EndpointRow::new(
                ([10, 0, 0, 1], 80).into(),
                WeightedAddr { metric_labels: labels(endpoint), ..WeightedAddr::default() },
                &labels(set),
            );
            (row.service, row.cluster, row.labels.len())
        };
        let names = [("service", "web"), ("namespace", "prod")];
        assert_eq!(of(&names, &[("pod", "a")]), ("web.prod".to_owned(), None, 1));
        let east = Some("east".to_owned());
        assert_eq!(of(&names[1..], &[("service", "bb"), ("cluster", "east")]), ("bb.prod".to_owned(), east.clone(), 1));
        assert_eq!(of(&[names[0], names[1], ("cluster", "east")], &[]), ("web.prod".to_owned(), east, 0));
    }

    #[test]
    fn a_token_asks_for_clusters_and_keeps_its_fields() {
        for (token, expected) in [
            ("", r#"{"clusters":true}"#),
            (r#"{"nodeName":"node-1"}"#, r#"{"clusters":true,"nodeName":"node-1"}"#),
            ("ns:prod", "ns:prod"),
        ] {
            assert_eq!(with_clusters(token), expected);
        }
    }

    #[test]
    fn the_first_add_is_the_state_and_later_ones_add_to_it() {
        let mut endpoints = EndpointsState::default();
        assert_eq!(pods(endpoints.apply(add(vec![weighted(1, "a"), weighted(2, "b")])).unwrap().added), ["a", "b"]);
        assert_eq!(pods(endpoints.apply(add(vec![weighted(3, "c")])).unwrap().added), ["c"]);
        assert_eq!(pods(endpoints.known().cloned()), ["a", "b", "c"]);
    }

    #[test]
    fn a_repeated_endpoint_is_no_change_and_a_change_names_its_fields() {
        let mut endpoints = EndpointsState::default();
        endpoints.apply(add(vec![weighted(1, "a")]));
        assert_eq!(endpoints.apply(add(vec![weighted(1, "a")])), None);
        let change = endpoints.apply(add(vec![WeightedAddr { weight: 1, ..weighted(1, "b") }])).unwrap();
        assert_eq!(change.changed[0].differs, ["pod", "weight", "labels"]);
        assert_eq!(change.changed[0].endpoint.pod, "b");
        assert_eq!((change.added, change.removed), (vec![], vec![]));
    }

    #[test]
    fn a_remove_deletes_the_endpoints_with_its_addresses() {
        let mut endpoints = EndpointsState::default();
        endpoints.apply(add(vec![weighted(1, "a"), weighted(2, "b")]));
        assert_eq!(pods(endpoints.apply(remove(&[2, 9])).unwrap().removed), ["b"]);
        assert_eq!(pods(endpoints.known().cloned()), ["a"]);
    }

    #[test]
    fn no_endpoints_clears_the_state_and_shows_whether_the_service_exists() {
        let mut endpoints = EndpointsState::default();
        let change = endpoints.apply(none(false)).unwrap();
        assert_eq!(change.no_endpoints, Some(NoEndpoints { exists: false }));
        assert_eq!(endpoints.none(), change.no_endpoints);
        endpoints.apply(add(vec![weighted(1, "a")]));
        assert_eq!(endpoints.none(), None);
        let change = endpoints.apply(none(true)).unwrap();
        assert_eq!(change.no_endpoints, Some(NoEndpoints { exists: true }));
        assert_eq!(pods(change.removed), ["a"]);
        assert_eq!(endpoints.known().count(), 0);
    }

    #[test]
    fn a_reopened_stream_replaces_the_state_and_only_the_difference_is_a_change() {
        let mut endpoints = EndpointsState::default();
        endpoints.apply(add(vec![weighted(1, "a"), weighted(2, "b")]));
        endpoints.reopen();
        assert_eq!(endpoints.apply(remove(&[1])), None, "a first Remove has no effect");
        let change = endpoints.apply(add(vec![weighted(2, "b"), weighted(3, "c")])).unwrap();
        assert_eq!((pods(change.added), pods(change.removed)), (vec!["c".to_owned()], vec!["a".to_owned()]));
        assert_eq!(change.changed, []);
        assert_eq!(pods(endpoints.known().cloned()), ["b", "c"]);
    }

    #[test]
    fn unusable_messages_change_nothing() {
        let mut endpoints = EndpointsState::default();
        assert_eq!(endpoints.apply(Update { update: None }), None);
        let no_port = WeightedAddr { addr: Some(TcpAddress { port: 65_536, ..tcp(1) }), ..weighted(1, "a") };
        let no_ip = WeightedAddr { addr: Some(TcpAddress { ip: None, port: 80 }), ..weighted(2, "b") };
        let no_address = WeightedAddr { addr: None, ..weighted(3, "c") };
        assert_eq!(endpoints.apply(add(vec![no_port, no_ip, no_address])), None);
    }

    #[test]
    fn an_endpoint_has_the_name_of_its_pod_or_its_external_workload() {
        let of = |pairs| shown(WeightedAddr { metric_labels: labels(pairs), ..weighted(1, "") }).pod;
        assert_eq!(of(&[("pod", "web-1"), ("zone", "a")]), "web-1");
        assert_eq!(of(&[("external_workload", "vm-1")]), "vm-1");
        assert_eq!(of(&[("zone_locality", "unknown")]), "");
    }

    #[test]
    fn addresses_of_both_families_are_parsed() {
        assert_eq!(shown(weighted(7, "a")).ip, IpAddr::from([10, 0, 0, 7]));
        let ip = Ip::Ipv6(IPv6 { first: 0x2001_0db8_0000_0000, last: 0x1 });
        let addr = Some(TcpAddress { ip: Some(IpAddress { ip: Some(ip) }), port: 8080 });
        let endpoint = shown(WeightedAddr { addr, ..weighted(1, "a") });
        assert_eq!((endpoint.ip.to_string(), endpoint.port), ("2001:db8::1".to_owned(), 8080));
    }

    #[test]
    fn all_fields_of_a_meshed_pod_are_shown() {
        let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        let keep_alive = KeepAlive { interval: seconds(10), timeout: seconds(3), while_idle: true };
        let flow_control = FlowControl { initial_stream_window_size: 65_535, ..FlowControl::default() };
        let identity = |name: &str| DnsLikeIdentity { name: name.to_owned() };
        let endpoint = shown(WeightedAddr {
            tls_identity: Some(TlsIdentity {
                strategy: Some(Strategy::DnsLikeIdentity(identity("default.prod"))),
                server_name: Some(identity("sni")),
            }),
            protocol_hint: Some(ProtocolHint {
                protocol: Some(Protocol::H2(H2 {})),
                opaque_transport: Some(OpaqueTransport { inbound_port: 4143 }),
            }),
            authority_override: Some(AuthorityOverride { authority_override: "web.remote:80".to_owned() }),
            http2: Some(Http2ClientParams {
                flow_control: Some(flow_control),
                keep_alive: Some(keep_alive),
                internals: None,
            }),
            ..weighted(1, "web-1")
        });
        let expected = json!({
            "namespace": "prod", "ip": "10.0.0.1", "port": 80, "pod": "web-1", "service": "web.prod", "weight": 10_000,
            "http2": {
                "flow_control": {"initial_stream_window_size": 65_535},
                "keep_alive": {"interval": {"seconds": 10}, "timeout": {"seconds": 3}, "while_idle": true},
            },
            "labels": {"pod": "web-1"}, "tls_identity": "default.prod", "server_name": "sni", "protocol": "h2",
            "opaque_transport_port": 4143, "authority_override": "web.remote:80",
        });
        assert_eq!(serde_json::to_value(endpoint).unwrap(), expected);
    }

    #[test]
    fn a_field_that_is_not_set_is_absent() {
        let strategy = Some(Strategy::UriLikeIdentity(UriLikeIdentity { uri: "spiffe://mesh.example/vm".to_owned() }));
        let endpoint = shown(WeightedAddr {
            tls_identity: Some(TlsIdentity { strategy, server_name: None }),
            protocol_hint: Some(ProtocolHint { protocol: Some(Protocol::Opaque(Opaque {})), opaque_transport: None }),
            ..weighted(1, "a")
        });
        let value = serde_json::to_value(endpoint).unwrap();
        assert_eq!(
            (&value["tls_identity"], &value["protocol"]),
            (&json!("spiffe://mesh.example/vm"), &json!("opaque"))
        );
        for absent in ["http2", "server_name", "opaque_transport_port", "authority_override"] {
            assert!(value.get(absent).is_none(), "{absent} in {value}");
        }
    }
}
