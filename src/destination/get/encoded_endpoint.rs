//! An endpoint, encoded for the clients of a view.
//!
//! In: a `WeightedAddr`, or its source. Out: the bytes of a field of a set. Always holds: the bytes are those of
//! `weighted_addr`, for each port.
//!
//! The clients of one view may request different ports, if the Service does not declare them. Then the bytes after the
//! address are encoded at first use, once for all ports with the same [`PortTraits`], so that a stream with a new port
//! costs as little as another stream with the same port.

use std::{
    borrow::Cow,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint},
};

use super::set_labels::SourceTraits;
use crate::{
    cluster::kinds::endpoint_slice::ready::Mirror,
    destination::{
        endpoint::{
            target::EndpointTarget,
            weighted_addr::{Locality, PortTraits, SliceContext, tcp_address, without_address},
        },
        settings::DestinationSettings,
    },
    proto::destination::WeightedAddr,
};

/// The field of `WeightedAddrSet` and `AddrSet` that holds addresses.
pub(super) const ADDRS: u32 = 1;

#[derive(Debug)]
pub(in crate::destination) struct EncodedEndpoint {
    /// The port is 0 if each client has the port that it requested.
    pub(super) address: SocketAddr,
    bytes: EndpointBytes,
}

#[derive(Debug)]
enum EndpointBytes {
    /// For one port. With the source of the bytes, unless comparing sources is not cheaper than encoding; equal sources
    /// have equal bytes.
    OfPort {
        field: Box<[u8]>,
        source: Option<EndpointSource>,
    },
    OfAnyPort {
        source: EndpointSource,
        locality: Locality,
        settings: Arc<DestinationSettings>,
        tails: Tails,
    },
}

/// Everything that the encoding of an endpoint depends on, other than its address and the view.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EndpointSource {
    pub(super) target: EndpointTarget,
    pub(super) zone: Option<Arc<str>>,
    /// Only for a bare address.
    pub(super) mirror: Option<Arc<Mirror>>,
    /// The traits of the Service with the endpoint.
    pub(super) traits: Option<Arc<SourceTraits>>,
}

/// The bytes after the address, for each combination of properties that was requested: a list that only grows, to at
/// most eight.
#[derive(Debug, Default)]
struct Tails(OnceLock<Box<Tail>>);

#[derive(Debug)]
struct Tail {
    of: PortTraits,
    bytes: Box<[u8]>,
    next: Tails,
}

/// A field of a set: the part with the address, which may be empty, and the tail after it.
#[derive(Debug)]
pub(super) struct Field<'a> {
    head: Vec<u8>,
    tail: Cow<'a, [u8]>,
}

// === impl EncodedEndpoint ===

/// Endpoints are equal if clients of all ports receive the same bytes for the same address.
impl PartialEq for EncodedEndpoint {
    fn eq(&self, other: &Self) -> bool {
        let has_same_bytes = || match (&self.bytes, &other.bytes) {
            (EndpointBytes::OfPort { field: one, .. }, EndpointBytes::OfPort { field: other, .. }) => one == other,
            (EndpointBytes::OfAnyPort { .. }, EndpointBytes::OfAnyPort { source, locality, .. }) => {
                self.is_of_any_port(source, *locality)
            }
            _ => false,
        };
        std::ptr::eq(self, other) || (self.address == other.address && has_same_bytes())
    }
}

impl Eq for EncodedEndpoint {}

impl EncodedEndpoint {
    pub(super) fn new(address: SocketAddr, weighted_address: &[u8], source: Option<EndpointSource>) -> Self {
        Self { address, bytes: EndpointBytes::OfPort { field: field(ADDRS, weighted_address), source } }
    }

    /// The port of the address must be 0.
    pub(super) fn of_any_port(
        address: SocketAddr,
        source: EndpointSource,
        locality: Locality,
        settings: &Arc<DestinationSettings>,
    ) -> Self {
        let settings = Arc::clone(settings);
        Self { address, bytes: EndpointBytes::OfAnyPort { source, locality, settings, tails: Tails::default() } }
    }

    pub(super) fn source(&self) -> Option<&EndpointSource> {
        match &self.bytes {
            EndpointBytes::OfPort { source, .. } => source.as_ref(),
            EndpointBytes::OfAnyPort { source, .. } => Some(source),
        }
    }

    /// Returns whether the endpoint has this encoding, at its own port.
    pub(super) fn is_encoded_as(&self, weighted_address: &[u8]) -> bool {
        match &self.bytes {
            EndpointBytes::OfPort { field, .. } => {
                field.ends_with(weighted_address) && field.len() == field_length(ADDRS, weighted_address.len())
            }
            EndpointBytes::OfAnyPort { .. } => false,
        }
    }

    /// Returns whether the endpoint is for clients of any port, from this source.
    pub(super) fn is_of_any_port(&self, source: &EndpointSource, locality: Locality) -> bool {
        matches!(&self.bytes, EndpointBytes::OfAnyPort { source: own, locality: of, .. } if own == source && *of == locality)
    }

    /// Returns whether the bytes depend on the port that a client requests.
    pub(super) fn depends_on_port(&self) -> bool {
        matches!(self.bytes, EndpointBytes::OfAnyPort { .. })
    }

    /// Returns the address for clients that request this port.
    pub(super) fn address_at(&self, port: u16) -> SocketAddr {
        if self.address.port() == 0 { SocketAddr::new(self.address.ip(), port) } else { self.address }
    }

    /// Returns the bytes for clients that request this port.
    pub(super) fn field(&self, port: u16) -> Field<'_> {
        match &self.bytes {
            EndpointBytes::OfPort { field, .. } => Field { head: Vec::new(), tail: Cow::Borrowed(field) },
            EndpointBytes::OfAnyPort { source, locality, settings, tails } => {
                Field::new(self.address_at(port), tails.get(source, *locality, port, settings))
            }
        }
    }
}

// === impl Tails ===

impl Tails {
    fn get(
        &self,
        EndpointSource { target, zone, mirror, traits }: &EndpointSource,
        locality: Locality,
        port: u16,
        settings: &DestinationSettings,
    ) -> Cow<'_, [u8]> {
        let of = PortTraits::of(target, port, settings);
        let slice = SliceContext {
            zone: zone.as_deref(),
            mirror: mirror.as_deref(),
            labels: traits.as_ref().map(|it| &it.labels),
        };
        let encode = || without_address(target, slice, port, of, locality, settings).encode_to_vec();
        // The authority behind a gateway has the requested port.
        if mirror.is_some() {
            return Cow::Owned(encode());
        }
        let mut at = self;
        loop {
            let tail = at.0.get_or_init(|| Box::new(Tail { of, bytes: encode().into(), next: Self::default() }));
            if tail.of == of {
                return Cow::Borrowed(&tail.bytes);
            }
            at = &tail.next;
        }
    }
}

// === impl Field ===

impl<'a> Field<'a> {
    fn new(address: SocketAddr, tail: Cow<'a, [u8]>) -> Self {
        let address = WeightedAddr { addr: Some(tcp_address(address)), ..WeightedAddr::default() };
        let mut head = Vec::with_capacity(48);
        put_length(ADDRS, address.encoded_len() + tail.len(), &mut head);
        // This cannot fail: a vector grows.
        _ = address.encode(&mut head);
        Self { head, tail }
    }

    pub(super) fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    pub(super) fn parts(&self) -> [&[u8]; 2] {
        [&self.head, &self.tail]
    }
}

/// Fields are equal if they have the same bytes, however they are divided.
impl PartialEq for Field<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.parts().into_iter().flatten().eq(other.parts().into_iter().flatten())
    }
}

/// Returns a field with its key and its length.
pub(super) fn field(tag: u32, content: &[u8]) -> Box<[u8]> {
    let mut field = Vec::with_capacity(field_length(tag, content.len()));
    put_length(tag, content.len(), &mut field);
    field.extend_from_slice(content);
    field.into()
}

fn put_length(tag: u32, length: usize, to: &mut Vec<u8>) {
    encode_key(tag, WireType::LengthDelimited, to);
    encode_varint(length as u64, to);
}

pub(super) fn field_length(tag: u32, content: usize) -> usize {
    prost::encoding::key_len(tag) + encoded_len_varint(content as u64) + content
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use serde_json::json;

    use super::*;
    use crate::{
        cluster::Kind,
        destination::{
            endpoint::weighted_addr::{ClientContext, weighted_addr},
            testing::{endpoint, members, settings, slice},
        },
    };

    #[test]
    fn the_bytes_for_any_port_are_those_of_the_weighted_address_at_that_port() {
        let settings = Arc::new(settings());
        let variable = |name: &str, port: u16| json!({"name": format!("LINKERD2_PROXY_{name}_LISTEN_ADDR"), "value": format!("0.0.0.0:{port}")});
        let env = [variable("INBOUND", 4143), variable("ADMIN", 4191), variable("CONTROL", 4190)];
        let metadata = json!({"name": "web-1", "labels": {"linkerd.io/control-plane-ns": "linkerd"},
            "annotations": {"config.linkerd.io/skip-inbound-ports": "81"}});
        let pod = json!({"metadata": metadata, "spec": {"containers": [{"name": "linkerd-proxy", "env": env}]}});
        let workload =
            json!({"metadata": {"name": "vm"}, "spec": {"meshTLS": {"identity": "spiffe://a/b", "serverName": "vm"}}});
        let members = members([
            (Kind::Pod, pod),
            (Kind::ExternalWorkload, workload),
            slice(
                "a",
                &json!([]),
                &[
                    endpoint("10.0.0.1", "Pod", "web-1"),
                    endpoint("2001:db8::2", "ExternalWorkload", "vm"),
                    json!({"addresses": ["10.0.0.3"]}),
                ],
            ),
        ]);
        let mirror =
            Mirror { service: Some("web.ns.svc.east".into()), gateway_identity: Some("gw".into()), cluster: None };
        let plain = members.members.iter().map(|member| (member, None));
        let bare = members.members.iter().filter(|member| matches!(member.target, EndpointTarget::Address));
        let mirrored = bare.map(|member| (member, Some(Arc::new(mirror.clone()))));
        for (member, mirror) in plain.chain(mirrored) {
            for zones in [(None, None), (Some("a"), Some("a")), (Some("a"), Some("b"))] {
                let ip = members.endpoint(member).unwrap().addresses[0];
                are_those_of_the_weighted_address(&member.target, ip, zones, mirror.as_ref(), &settings);
            }
        }
    }

    fn are_those_of_the_weighted_address(
        target: &EndpointTarget,
        ip: IpAddr,
        (client_zone, zone): (Option<&str>, Option<&str>),
        mirror: Option<&Arc<Mirror>>,
        settings: &Arc<DestinationSettings>,
    ) {
        let slice = SliceContext { zone, mirror: mirror.map(|it| &**it), labels: None };
        let source =
            EndpointSource { target: target.clone(), zone: zone.map(Arc::from), mirror: mirror.cloned(), traits: None };
        let locality = Locality::of(client_zone, target, zone);
        let any = EncodedEndpoint::of_any_port(SocketAddr::new(ip, 0), source, locality, settings);
        // Ports: usual, opaque by default, skipped, of the proxy, and with one and three bytes.
        for port in [80, 3306, 81, 4191, 1, 65_535, 80] {
            let (address, client) = (SocketAddr::new(ip, port), ClientContext { zone: client_zone, port });
            let expected = weighted_addr(target, address, slice, &client, settings).encode_to_vec();
            let (own, any) = (EncodedEndpoint::new(address, &expected, None), any.field(port));
            let own = own.field(port);
            assert_eq!(any.parts().concat(), own.parts().concat(), "{target:?} {port}");
            assert!(any == own && any.len() == own.len(), "{target:?} {port}");
        }
    }
}
