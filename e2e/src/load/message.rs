//! Splits the DATA of a stream into gRPC messages, and summarizes an `Update` or a `DestinationProfile`.
//!
//! * In: the payloads of DATA frames, in order. Out: the length of each message, and its bytes unless it is long.
//! * Always: no state is kept between messages, and no bytes of a long message are kept.
//! * Only what is measured is decoded: the labels of every endpoint would take longer than the rest of the client.

use std::net::Ipv4Addr;

use linkerd2_proxy_api::net::{TcpAddress, ip_address::Ip};
use prost::Message;

use crate::http2::PREFIX;

/// The effect of an `Update` on its endpoints; or a profile, which is always complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    Add,
    Remove,
    Profile { opaque: bool, endpoint: Option<Ipv4Addr> },
}

/// Longer messages are only counted.
const LONGEST: usize = 64 * 1024;

/// An `Update`. These types have the tags of the Destination API, and only the fields that are measured.
#[derive(Clone, PartialEq, Message)]
struct Update {
    #[prost(message, optional, tag = "1")]
    add: Option<EndpointsMessage>,
    #[prost(message, optional, tag = "2")]
    remove: Option<Addresses>,
}

#[derive(Clone, PartialEq, Message)]
struct ProfileMessage {
    #[prost(bool, tag = "4")]
    opaque: bool,
    #[prost(message, optional, tag = "6")]
    endpoint: Option<EndpointMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct EndpointsMessage {
    #[prost(message, repeated, tag = "1")]
    all: Vec<EndpointMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct Addresses {
    #[prost(message, repeated, tag = "1")]
    all: Vec<TcpAddress>,
}

#[derive(Clone, PartialEq, Message)]
struct EndpointMessage {
    #[prost(message, optional, tag = "1")]
    address: Option<TcpAddress>,
}

/// The position of a stream in its messages.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// The beginning of an incomplete message, including the prefix.
    kept: Vec<u8>,
    /// A long message: its length, and the number of bytes that are missing.
    long: Option<(usize, usize)>,
}

impl Messages {
    /// Calls `each` with the length of every completed message, and with the message unless it is long.
    pub(super) fn feed(&mut self, mut data: &[u8], mut each: impl FnMut(usize, Option<&[u8]>)) {
        while !data.is_empty() {
            if let Some((length, left)) = &mut self.long {
                let (_, rest) = data.split_at(data.len().min(*left));
                *left -= data.len() - rest.len();
                data = rest;
                if *left == 0 {
                    each(*length, None);
                    self.long = None;
                }
                continue;
            }
            if self.kept.is_empty()
                && let Some((message, rest)) = split(data)
            {
                each(message.len(), Some(message));
                data = rest;
                continue;
            }
            // A message that spans frames. This is rare, so the copy may be slow.
            let needed = length(&self.kept).map_or(PREFIX, |length| PREFIX + length);
            let (more, rest) = data.split_at(data.len().min(needed.saturating_sub(self.kept.len())));
            self.kept.extend_from_slice(more);
            data = rest;
            if let Some((message, _)) = split(&self.kept) {
                each(message.len(), Some(message));
                self.kept = Vec::new();
            } else if let Some(length) = length(&self.kept).filter(|length| *length > LONGEST) {
                self.long = Some((length, length + PREFIX - self.kept.len()));
                self.kept = Vec::new();
            }
        }
    }
}

/// The length in a message's prefix.
fn length(data: &[u8]) -> Option<usize> {
    let [_, length @ ..] = *data.first_chunk::<PREFIX>()?;
    usize::try_from(u32::from_be_bytes(length)).ok()
}

/// The first message, and the bytes after it.
fn split(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = length(data)?;
    data.get(PREFIX..)?.split_at_checked(length)
}

/// Returns whether an `Update` adds or removes, and the port of its last endpoint.
pub(super) fn last_endpoint(update: &[u8]) -> Option<(What, u16)> {
    let Update { add, remove } = Update::decode(update).ok()?;
    let (what, port) = match add {
        Some(added) => (What::Add, added.all.last()?.address.as_ref()?.port),
        None => (What::Remove, remove?.all.last()?.port),
    };
    Some((what, u16::try_from(port).ok()?))
}

/// Returns whether the port of a profile is opaque, its IPv4 endpoint if it has one, and the endpoint's port or 0.
pub(super) fn profile(profile: &[u8]) -> (What, u16) {
    let ProfileMessage { opaque, endpoint } = ProfileMessage::decode(profile).unwrap_or_default();
    let TcpAddress { ip, port } = endpoint.and_then(|endpoint| endpoint.address).unwrap_or_default();
    let endpoint = match ip.and_then(|ip| ip.ip) {
        Some(Ip::Ipv4(bits)) => Some(Ipv4Addr::from_bits(bits)),
        _ => None,
    };
    (What::Profile { opaque, endpoint }, u16::try_from(port).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use linkerd2_proxy_api::{
        destination::{
            AddrSet, DestinationProfile, NoEndpoints, RetryBudget, Update, WeightedAddr, WeightedAddrSet, update,
        },
        net::{IPv6, IpAddress},
    };

    use super::{Ip, Ipv4Addr, Message as _, TcpAddress};
    use super::{LONGEST, Messages, What, last_endpoint};
    use crate::http2::grpc_message;

    fn address(port: u32) -> TcpAddress {
        TcpAddress { ip: Some(IpAddress { ip: Some(Ip::Ipv4(0x0a00_0001)) }), port }
    }

    fn encode(update: update::Update) -> Vec<u8> {
        Update { update: Some(update) }.encode_to_vec()
    }

    #[test]
    fn the_last_port_of_an_update_is_found() {
        let endpoint = |port| WeightedAddr {
            addr: Some(address(port)),
            weight: 10_000,
            metric_labels: [("pod".to_owned(), "a".to_owned())].into(),
            ..WeightedAddr::default()
        };
        let set = WeightedAddrSet {
            addrs: vec![endpoint(80), endpoint(65_535)],
            metric_labels: [("service".to_owned(), "web".to_owned())].into(),
        };
        assert_eq!(last_endpoint(&encode(update::Update::Add(set))), Some((What::Add, 65_535)));
        let set = AddrSet { addrs: vec![address(1), address(300)] };
        assert_eq!(last_endpoint(&encode(update::Update::Remove(set))), Some((What::Remove, 300)));
        assert_eq!(last_endpoint(&encode(update::Update::NoEndpoints(NoEndpoints { exists: true }))), None);
        assert_eq!(last_endpoint(&[0xff; 20]), None);
    }

    #[test]
    fn the_opacity_and_the_endpoint_of_a_profile_are_found() {
        let of = |opaque_protocol, endpoint: Option<TcpAddress>| {
            let profile = DestinationProfile {
                fully_qualified_name: "web".to_owned(),
                opaque_protocol,
                retry_budget: Some(RetryBudget { retry_ratio: 0.2, ..RetryBudget::default() }),
                endpoint: endpoint.map(|addr| WeightedAddr { addr: Some(addr), ..WeightedAddr::default() }),
                ..DestinationProfile::default()
            };
            super::profile(&profile.encode_to_vec())
        };
        let what = |opaque, endpoint| What::Profile { opaque, endpoint };
        let endpoint = Some(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(of(true, Some(address(8080))), (what(true, endpoint), 8080));
        assert_eq!(of(false, Some(address(80))), (what(false, endpoint), 80));
        assert_eq!(of(true, None), (what(true, None), 0));
        let ipv6 = IpAddress { ip: Some(Ip::Ipv6(IPv6 { first: 1, last: 1 })) };
        assert_eq!(of(false, Some(TcpAddress { ip: Some(ipv6), port: 80 })), (what(false, None), 80));
        assert_eq!(super::profile(&[]), (what(false, None), 0));
        assert_eq!(super::profile(&[0xff; 20]), (what(false, None), 0));
    }

    #[test]
    fn messages_are_found_for_any_frame_size() {
        let lengths = [0, 1, 300, LONGEST, LONGEST + 1, 4];
        let mut wire = Vec::new();
        for length in lengths {
            wire.extend_from_slice(&grpc_message(&vec![7; length]));
        }
        for frame in [1, 3, 5, 6, 299, 16_384, 200_000] {
            let mut messages = Messages::default();
            let mut seen = Vec::new();
            for data in wire.chunks(frame) {
                messages.feed(data, |length, message| {
                    assert!(message.is_none_or(|message| message.len() == length && message.iter().all(|it| *it == 7)));
                    assert!(message.is_some() || length > LONGEST);
                    seen.push(length);
                });
            }
            assert_eq!(seen, lengths, "in frames of {frame}");
            assert!(messages.kept.is_empty() && messages.long.is_none());
        }
    }
}
