//! Summaries of received endpoints that are short enough for a table of expected values, and waits for them.

use std::{collections::BTreeMap, net::SocketAddr};

use anyhow::{Context, Result};
use e2e::discovery::Endpoints;
use linkerd2_proxy_api::destination::{
    WeightedAddr,
    protocol_hint::Protocol,
    tls_identity::{DnsLikeIdentity, Strategy},
};

/// The protocol hint, the inbound port for opaque transport, and whether the endpoint has an identity and HTTP/2
/// settings. `h2 4143 identity http2` is a meshed Pod, the empty string a plain address, and `hint` a hint without a
/// protocol.
pub(crate) fn traits(endpoint: &WeightedAddr) -> String {
    let mut words = Vec::new();
    if let Some(hint) = &endpoint.protocol_hint {
        words.push(match hint.protocol {
            Some(Protocol::H2(_)) => "h2".to_owned(),
            Some(Protocol::Opaque(_)) => "opaque".to_owned(),
            None => "hint".to_owned(),
        });
        words.extend(hint.opaque_transport.as_ref().map(|transport| transport.inbound_port.to_string()));
    }
    words.extend(endpoint.tls_identity.as_ref().map(|_| "identity".to_owned()));
    words.extend(endpoint.http2.as_ref().map(|_| "http2".to_owned()));
    words.join(" ")
}

/// The TLS identity and the server name (SNI), each after its kind.
pub(crate) fn identity(endpoint: &WeightedAddr) -> String {
    let Some(identity) = &endpoint.tls_identity else { return String::new() };
    let name = |server: &DnsLikeIdentity| format!(" sni {}", server.name);
    let server = identity.server_name.as_ref().map(name).unwrap_or_default();
    match &identity.strategy {
        Some(Strategy::DnsLikeIdentity(identity)) => format!("dns {}{server}", identity.name),
        Some(Strategy::UriLikeIdentity(identity)) => format!("uri {}{server}", identity.uri),
        None => server,
    }
}

/// The endpoint's labels, without the labels of the whole set.
pub(crate) fn labels(endpoint: &WeightedAddr) -> BTreeMap<String, String> {
    let own = |(key, _): &(&String, &String)| !matches!(key.as_str(), "service" | "namespace");
    endpoint.metric_labels.iter().filter(own).map(|(key, value)| (key.clone(), value.clone())).collect()
}

pub(crate) fn pairs(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Waits until `seen` returns the expected value for each endpoint, by socket address.
pub(crate) async fn wait_for<T: PartialEq + std::fmt::Debug>(
    endpoints: &mut Endpoints,
    seen: impl Fn(&WeightedAddr) -> T,
    expected: impl IntoIterator<Item = (&str, T)>,
) -> Result<()> {
    let parsed = expected.into_iter().map(|(address, value)| Ok((address.parse()?, value)));
    let expected: BTreeMap<SocketAddr, T> = parsed.collect::<Result<_>>()?;
    let values = |known: &BTreeMap<SocketAddr, WeightedAddr>| -> BTreeMap<SocketAddr, T> {
        known.iter().map(|(address, endpoint)| (*address, seen(endpoint))).collect()
    };
    let result = endpoints.until(&format!("{expected:?}"), |known| values(known) == expected).await;
    result.with_context(|| format!("last seen: {:?}", values(&endpoints.known)))
}

/// Like [`wait_for`], for a stream with one endpoint at any address.
pub(crate) async fn wait_for_only<T: PartialEq + std::fmt::Debug>(
    endpoints: &mut Endpoints,
    seen: impl Fn(&WeightedAddr) -> T,
    expected: T,
) -> Result<()> {
    let result = endpoints
        .until(&format!("one endpoint with {expected:?}"), |known| {
            known.len() == 1 && known.values().all(|endpoint| seen(endpoint) == expected)
        })
        .await;
    result.with_context(|| format!("last seen: {:?}", endpoints.known.values().map(&seen).collect::<Vec<_>>()))
}
