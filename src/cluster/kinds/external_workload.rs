//! ExternalWorkloads: the fields that become endpoints, and the lookup by selector and by address.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::{owner::Owner, port_ranges::PortRanges};
use crate::{
    api::{
        self, ExternalWorkloadPort, NamespacedName, OPAQUE_PORTS_ANNOTATION, PROXY_NAME, WorkloadIp, ZONE_LABEL,
        carries_tcp, endpoint_slice::Family,
    },
    cluster::{
        Problems, Projected,
        index::{
            address::{self, ByAddress, NetworkAddress},
            selector::{ByLabel, Labels, Pair, Selector},
            store::{Store, Stored},
        },
    },
};

/// The number of ports up to which a change affects only clients of these ports. A workload may declare fifty thousand
/// ports, and its changes are processed under the lock of the state.
const FEW_PORTS: usize = 64;

/// The inbound port of a proxy that declares none.
const INBOUND_PORT: u16 = 4143;

/// An ExternalWorkload, reduced to the fields that endpoints and clients depend on. Probe times, other conditions and
/// most annotations are left out, so that their changes cause no work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalWorkload {
    pub key: NamespacedName,
    pub uid: Arc<str>,
    pub labels: Labels,
    pub addresses: Vec<Address>,
    /// The ports of all protocols, for the slices of Services.
    pub all_ports: Vec<WorkloadPort>,
    /// Whether any condition `Ready` is `True`.
    pub ready: bool,
    pub mesh: Mesh,
}

/// The fields of an ExternalWorkload that are not part of its slices, but that clients receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh {
    pub identity: Arc<str>,
    pub server_name: Arc<str>,
    /// `None` for the mesh's default.
    pub opaque_ports: Option<PortRanges>,
    pub owner: Option<Owner>,
}

/// One of `workloadIPs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address that the API server accepts in a slice. `text` is the canonical form (RFC 5952) of the user's text,
    /// because API servers reject a slice with any other form (seen with 1.36).
    Valid { family: Family, text: String },
    /// An address for which the API server would reject the whole slice. `reason` is for the user.
    Invalid { text: String, reason: &'static str },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadPort {
    pub name: String,
    pub number: i32,
    pub protocol: String,
}

// === impl ExternalWorkload ===

impl ExternalWorkload {
    pub fn zone(&self) -> Option<&str> {
        self.labels.get(ZONE_LABEL).map(|zone| &**zone)
    }

    /// All addresses, including those that slices must not have.
    fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().filter_map(|address| match address {
            Address::Valid { text, .. } | Address::Invalid { text, .. } => address::parse(text),
        })
    }

    /// The ports that proxies can forward to.
    pub fn tcp_ports(&self) -> impl Iterator<Item = &WorkloadPort> {
        tcp(&self.all_ports)
    }

    /// The port at which its proxy accepts connections of other proxies: a declared port with the name of the proxy, else
    /// Linkerd's default. `None` if the declared one is no port.
    pub fn inbound_port(&self) -> Option<u16> {
        let declared = self.tcp_ports().find(|port| port.name == PROXY_NAME);
        declared.map_or(Some(INBOUND_PORT), |port| u16::try_from(port.number).ok())
    }

    fn has_port(&self, port: u16) -> bool {
        self.tcp_ports().any(|it| it.number == i32::from(port))
    }

    /// The addresses at which clients reach the workload: each IP with each port. If it has many ports, each IP with all
    /// ports.
    pub fn network_addresses(&self) -> impl Iterator<Item = NetworkAddress> {
        let has_few_ports = self.tcp_ports().nth(FEW_PORTS).is_none();
        let each = self.tcp_ports().take(if has_few_ports { FEW_PORTS } else { 0 });
        let each = each.filter_map(|port| u16::try_from(port.number).ok());
        let sockets = each.flat_map(|port| self.ips().map(move |ip| NetworkAddress::Socket(SocketAddr::new(ip, port))));
        let ips = self.ips().filter(move |_| !has_few_ports).map(NetworkAddress::Ip);
        sockets.chain(ips)
    }

    /// Whether both result in the same endpoints in slices.
    pub fn has_same_endpoints(&self, other: &Self) -> bool {
        let Self { key, uid, labels, addresses, all_ports, ready, mesh: _ } = self;
        (key, uid, labels, addresses, all_ports, ready)
            == (&other.key, &other.uid, &other.labels, &other.addresses, &other.all_ports, &other.ready)
    }
}

impl Projected for ExternalWorkload {
    type Wire = api::ExternalWorkload;
    const INFORMER_LAG: Option<&'static str> = Some("externalworkload_informer_lag_seconds");
    const IS_OPTIONAL: bool = true;

    fn project(wire: api::ExternalWorkload, problems: &mut Problems) -> Self {
        let spec = wire.spec.unwrap_or_default();
        let conditions = wire.status.and_then(|status| status.conditions).unwrap_or_default();
        let all_ports: Vec<_> = spec.ports.into_iter().flatten().filter_map(WorkloadPort::parse).collect();
        let opaque_ports = wire.metadata.annotations.as_ref().and_then(|all| all.get(OPAQUE_PORTS_ANNOTATION));
        let opaque_ports = opaque_ports.map(|text| {
            let named = tcp(&all_ports).filter_map(|port| Some((port.name.as_str(), u16::try_from(port.number).ok()?)));
            PortRanges::parse(text, named, problems)
        });
        let tls = spec.mesh_tls.unwrap_or_default();
        let mesh = Mesh {
            identity: tls.identity.unwrap_or_default().into(),
            server_name: tls.server_name.unwrap_or_default().into(),
            opaque_ports,
            owner: Owner::only(&wire.metadata),
        };
        Self {
            key: NamespacedName::of(&wire.metadata),
            uid: wire.metadata.uid.unwrap_or_default().into(),
            labels: wire.metadata.labels.unwrap_or_default().iter().collect(),
            addresses: spec.workload_ips.into_iter().flatten().map(Address::from).collect(),
            all_ports,
            ready: conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            mesh,
        }
    }
}

fn tcp(ports: &[WorkloadPort]) -> impl Iterator<Item = &WorkloadPort> {
    ports.iter().filter(|port| carries_tcp(&port.protocol))
}

impl Stored for ExternalWorkload {
    type NamespaceIndex = ByLabel;
    type ClusterIndex = ByAddress<IpAddr, Self>;

    fn key(&self) -> NamespacedName {
        self.key.clone()
    }

    fn index(self: &Arc<Self>, by_label: &mut ByLabel, by_ip: &mut ByAddress<IpAddr, Self>) {
        by_label.insert(&self.labels, &self.key.name);
        by_ip.insert(self.ips(), self);
    }

    fn unindex(self: &Arc<Self>, by_label: &mut ByLabel, by_ip: &mut ByAddress<IpAddr, Self>) {
        by_label.remove(&self.labels, &self.key.name);
        by_ip.remove(self.ips(), self);
    }
}

impl WorkloadPort {
    /// Returns `None` for a number that is not a port: no request can match it.
    fn parse(port: ExternalWorkloadPort) -> Option<Self> {
        let number = u16::try_from(port.port).ok().filter(|number| *number != 0)?;
        Some(Self {
            name: port.name.unwrap_or_default(),
            number: i32::from(number),
            protocol: port.protocol.unwrap_or_else(|| "TCP".to_owned()),
        })
    }
}

impl From<WorkloadIp> for Address {
    /// Applies the API server's rule for endpoint addresses (`ValidateNonSpecialIP`, and the syntax of `addressType`).
    /// It also rejects two forms that only some versions accept: IPv4 octets with leading zeros, which parsers
    /// interpret differently, and IPv4-mapped IPv6.
    fn from(ip: WorkloadIp) -> Self {
        let text = ip.ip.unwrap_or_default();
        let invalid = |text, reason| Self::Invalid { text, reason };
        if text.is_empty() {
            return invalid(text, "it is empty");
        }
        let Ok(address) = text.parse::<IpAddr>() else { return invalid(text, "it is not an IP address") };
        let link_local = match address {
            IpAddr::V4(v4) => v4.is_link_local() || v4.octets().starts_with(&[224, 0, 0]),
            IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.segments().first().is_some_and(|s| s & 0xff0f == 0xff02),
        };
        match address {
            IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => invalid(text, "it is an IPv4-mapped IPv6 address"),
            _ if address.is_unspecified() => invalid(text, "it is the unspecified address"),
            _ if address.is_loopback() => invalid(text, "it is a loopback address"),
            _ if link_local => invalid(text, "it is a link-local address"),
            IpAddr::V4(_) => Self::Valid { family: Family::IPv4, text: address.to_string() },
            IpAddr::V6(_) => Self::Valid { family: Family::IPv6, text: address.to_string() },
        }
    }
}

impl Store<ExternalWorkload> {
    /// The workloads of a namespace that the selector of a Service matches.
    pub fn selected<'a>(
        &'a self,
        namespace: &str,
        selector: &'a Selector,
    ) -> impl Iterator<Item = &'a Arc<ExternalWorkload>> {
        let candidates = self.select(namespace, |index| index.candidates(selector));
        candidates.filter(|workload| selector.matches(&workload.labels))
    }

    /// The workloads that declare the port at the address.
    pub fn at(&self, address: SocketAddr) -> Vec<&Arc<ExternalWorkload>> {
        let at_ip = self.cluster_index().get(&address.ip()).iter();
        at_ip.filter(|workload| workload.has_port(address.port())).collect()
    }

    /// The workloads of a namespace that have the label, or all of them.
    pub fn labeled(&self, namespace: &str, label: Option<&Pair>) -> Vec<Arc<ExternalWorkload>> {
        match label {
            Some(pair) => self.select(namespace, |index| index.with(pair)).cloned().collect(),
            None => self.in_namespace(namespace).cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::testing::external_workload as workload;
    use crate::cluster::{State, Watched};

    fn address(text: &str) -> Address {
        Address::from(WorkloadIp { ip: Some(text.to_owned()) })
    }

    #[test]
    fn an_address_is_valid_if_the_api_server_accepts_it() {
        for (text, canonical) in [
            ("192.0.2.4", "192.0.2.4"),
            ("239.1.1.1", "239.1.1.1"),
            ("2001:DB8::A", "2001:db8::a"),
            ("fd08::5678:0000:0000:9abc:def0", "fd08::5678:0:0:9abc:def0"),
            ("2001:db8:0:0:1:0:0:1", "2001:db8::1:0:0:1"),
            ("64:ff9b::192.0.2.1", "64:ff9b::c000:201"),
            ("::192.0.2.1", "::c000:201"),
            ("ff05::1", "ff05::1"),
        ] {
            assert!(matches!(&address(text), Address::Valid { text, .. } if text == canonical), "{text}");
        }
        for text in [
            "",
            "bogus",
            "192.0.2",
            "192.0.2.4 ",
            "010.0.0.1",
            "192.0.2.4/32",
            "fe80::1%eth0",
            "0.0.0.0",
            "::",
            "127.0.0.1",
            "::1",
            "169.254.0.1",
            "fe80::1",
            "224.0.0.1",
            "ff02::1",
            "::ffff:192.0.2.4",
        ] {
            assert!(matches!(&address(text), Address::Invalid { text: kept, .. } if kept == text), "{text}");
        }
    }

    #[test]
    fn one_ready_condition_that_is_true_makes_a_workload_ready() {
        let ready = |conditions| {
            let object = json!({"metadata": {"name": "vm", "namespace": "ns"}, "status": {"conditions": conditions}});
            ExternalWorkload::project(serde_json::from_value(object).unwrap(), &mut Problems::default()).ready
        };
        assert!(ready(json!([{"type": "Ready", "status": "False"}, {"type": "Ready", "status": "True"}])));
        assert!(!ready(json!([{"type": "Ready", "status": "Unknown"}, {"type": "Live", "status": "True"}])));
        assert!(!ready(json!(null)));
    }

    #[test]
    fn a_port_number_out_of_range_is_dropped_and_a_missing_protocol_is_tcp() {
        let spec = json!({"ports": [{"port": 0}, {"port": 65536}, {"port": 80, "name": "http"}]});
        let kept = workload("vm", true, &json!({}), &spec).all_ports;
        assert_eq!(kept, [WorkloadPort { name: "http".into(), number: 80, protocol: "TCP".into() }]);
    }

    #[test]
    fn a_workload_is_found_by_its_addresses_and_declared_ports() {
        let mut state = State::default();
        let spec = json!({"workloadIPs": [{"ip": "192.0.2.1"}, {"ip": "2001:DB8::1"}, {"ip": "::ffff:192.0.2.2"}, {}],
            "ports": [{"port": 54, "protocol": "UDP"}, {"port": 53}, {"port": 53, "protocol": "UDP"}, {"port": 0}]});
        workload("vm", false, &json!({}), &spec).apply(&mut state);
        let at = |state: &State, address: &str| state.external_workloads.at(address.parse().unwrap()).len();
        for (address, found) in
            [("192.0.2.1:53", 1), ("[2001:db8::1]:53", 1), ("192.0.2.2:53", 1), ("192.0.2.1:54", 0), ("192.0.2.1:0", 0)]
        {
            assert_eq!(at(&state, address), found, "{address}");
        }
        let moved = json!({"workloadIPs": [{"ip": "192.0.2.9"}], "ports": [{"port": 53}]});
        workload("vm", false, &json!({}), &moved).apply(&mut state);
        assert_eq!([at(&state, "192.0.2.1:53"), at(&state, "192.0.2.9:53")], [0, 1]);
        ExternalWorkload::remove(&NamespacedName::new("ns", "vm"), &mut state);
        assert!(state.external_workloads.cluster_index().is_empty());
    }

    #[test]
    fn a_change_of_a_workload_with_many_ports_affects_its_addresses_and_not_each_port() {
        let affected = |ports: u16| {
            let ports: Vec<_> = (1..=ports).map(|port| json!({ "port": port })).collect();
            let spec = json!({"workloadIPs": [{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}], "ports": ports});
            workload("vm", false, &json!({}), &spec).network_addresses().collect::<Vec<_>>()
        };
        assert_eq!((affected(0).len(), affected(1).len(), affected(64).len()), (0, 2, 128));
        let ips = ["192.0.2.1", "2001:db8::1"].map(|ip| NetworkAddress::Ip(ip.parse().unwrap()));
        assert_eq!(affected(65), ips);
        assert_eq!(affected(50_000), ips);
    }
}
