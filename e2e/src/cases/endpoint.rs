//! The expected endpoint.
//!
//! * In: the fields that the message has, as in the files. Out: the complete `WeightedAddr`.
//! * Always: a field that is not given is absent from the message.

use std::{collections::HashMap, net::SocketAddr};

use anyhow::{Context, Result, bail};
use linkerd2_proxy_api::{
    destination::{
        AuthorityOverride, ProtocolHint, TlsIdentity, WeightedAddr,
        protocol_hint::{H2, Opaque, OpaqueTransport, Protocol},
        tls_identity::{DnsLikeIdentity, Strategy, UriLikeIdentity},
    },
    net::{IPv6, IpAddress, TcpAddress, ip_address::Ip},
};
use serde::Deserialize;
use serde_json::Value;

use super::flag;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Endpoint {
    weight: u32,
    #[serde(default)]
    labels: HashMap<String, String>,
    identity: Option<Identity>,
    hint: Option<Hint>,
    /// The inbound port for the transport header.
    opaque_transport: Option<u32>,
    authority: Option<String>,
    http2: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {
    dns: Option<String>,
    uri: Option<String>,
    server_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Hint {
    H2,
    Opaque,
    /// A hint without a protocol.
    Empty,
}

pub(super) fn endpoint(address: SocketAddr, fields: &Value) -> Result<WeightedAddr> {
    let fields: Endpoint = serde_json::from_value(fields.clone()).with_context(|| format!("{address}: {fields}"))?;
    let protocol_hint = match (&fields.hint, fields.opaque_transport) {
        (None, None) => None,
        (None, Some(_)) => bail!("{address}: opaque_transport is part of a hint"),
        (Some(hint), port) => Some(ProtocolHint {
            protocol: match hint {
                Hint::H2 => Some(Protocol::H2(H2 {})),
                Hint::Opaque => Some(Protocol::Opaque(Opaque {})),
                Hint::Empty => None,
            },
            opaque_transport: port.map(|inbound_port| OpaqueTransport { inbound_port }),
        }),
    };
    Ok(WeightedAddr {
        addr: Some(wire(address)),
        weight: fields.weight,
        metric_labels: fields.labels,
        tls_identity: fields.identity.map(identity).transpose()?,
        protocol_hint,
        authority_override: fields.authority.map(|authority_override| AuthorityOverride { authority_override }),
        http2: fields.http2.as_ref().map(flag::http2).transpose()?,
        resource_ref: None,
    })
}

fn identity(identity: Identity) -> Result<TlsIdentity> {
    let strategy = match (identity.dns, identity.uri) {
        (Some(name), None) => Strategy::DnsLikeIdentity(DnsLikeIdentity { name }),
        (None, Some(uri)) => Strategy::UriLikeIdentity(UriLikeIdentity { uri }),
        _ => bail!("an identity has either `dns` or `uri`"),
    };
    let server_name = identity.server_name.map(|name| DnsLikeIdentity { name });
    Ok(TlsIdentity { strategy: Some(strategy), server_name })
}

fn wire(address: SocketAddr) -> TcpAddress {
    let ip = match address {
        SocketAddr::V4(address) => Ip::Ipv4(u32::from(*address.ip())),
        SocketAddr::V6(address) => {
            let bits = u128::from(*address.ip());
            #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
            let last = bits as u64;
            Ip::Ipv6(IPv6 { first: (bits >> 64) as u64, last })
        }
    };
    TcpAddress { ip: Some(IpAddress { ip: Some(ip) }), port: address.port().into() }
}
