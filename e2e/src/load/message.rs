//! Splits the DATA of a stream into gRPC messages, and summarizes an `Update` or a `DestinationProfile`.
//!
//! * In: the payloads of DATA frames, in order. Out: the length of each message, and its bytes unless it is long.
//! * Always: no state is kept between messages, and no bytes of a long message are kept.
//! * It does not use prost, which would allocate maps and strings for every endpoint and take longer than the rest of
//!   the client.

use std::net::Ipv4Addr;

/// The effect of an `Update` on its endpoints; or a profile, which is always complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    Add,
    Remove,
    Profile { opaque: bool, endpoint: Option<Ipv4Addr> },
}

/// The length of a gRPC message's prefix: the compression flag and the message length.
pub(super) const PREFIX: usize = 5;
/// Longer messages are only counted.
const LONGEST: usize = 64 * 1024;

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

/// The length in a prefix.
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
    const ADD: u64 = 1;
    const REMOVE: u64 = 2;
    /// In both sets: the endpoints. In `WeightedAddr`: the `TcpAddress`.
    const FIRST: u64 = 1;
    const PORT: u64 = 2;
    let (what, set) = Fields(update).find_map(|(number, value)| match (number, value) {
        (ADD, Value::Bytes(set)) => Some((What::Add, set)),
        (REMOVE, Value::Bytes(set)) => Some((What::Remove, set)),
        _ => None,
    })?;
    let bytes = |(number, value)| match value {
        Value::Bytes(bytes) if number == FIRST => Some(bytes),
        _ => None,
    };
    let last = Fields(set).filter_map(bytes).last()?;
    let address = if what == What::Add { Fields(last).find_map(bytes)? } else { last };
    let port = Fields(address).find_map(|(number, value)| match value {
        Value::Number(port) if number == PORT => Some(port),
        _ => None,
    })?;
    Some((what, u16::try_from(port).ok()?))
}

/// Returns whether the port of a profile is opaque, its IPv4 endpoint if it has one, and the endpoint's port or 0.
pub(super) fn profile(profile: &[u8]) -> (What, u16) {
    const OPAQUE: u64 = 4;
    const ENDPOINT: u64 = 6;
    /// In `WeightedAddr` the `TcpAddress`, in that the `IPAddress`, in that the `ipv4`.
    const FIRST: u64 = 1;
    const PORT: u64 = 2;
    let (mut opaque, mut address) = (false, &[][..]);
    let first = |message| {
        Fields(message).find_map(|(number, value)| match value {
            Value::Bytes(bytes) if number == FIRST => Some(bytes),
            _ => None,
        })
    };
    for field in Fields(profile) {
        match field {
            (OPAQUE, Value::Number(number)) => opaque = number != 0,
            (ENDPOINT, Value::Bytes(endpoint)) => address = first(endpoint).unwrap_or_default(),
            _ => {}
        }
    }
    let endpoint = Fields(first(address).unwrap_or_default()).find_map(|(number, value)| match value {
        Value::Four(bytes) if number == FIRST => Some(Ipv4Addr::from_bits(u32::from_le_bytes(bytes))),
        _ => None,
    });
    let port = Fields(address).find_map(|(number, value)| match value {
        Value::Number(port) if number == PORT => u16::try_from(port).ok(),
        _ => None,
    });
    (What::Profile { opaque, endpoint }, port.unwrap_or_default())
}

/// The fields of a protobuf message, in wire order.
struct Fields<'a>(&'a [u8]);

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Four([u8; 4]),
    Eight,
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Value<'a>);

    /// Stops at invalid bytes.
    fn next(&mut self) -> Option<Self::Item> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.bytes(8).map(|_| Value::Eight)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.bytes(length)?)
            }
            5 => Value::Four(*self.bytes(4)?.first_chunk()?),
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use linkerd2_proxy_api::{
        destination::{
            AddrSet, DestinationProfile, NoEndpoints, RetryBudget, Update, WeightedAddr, WeightedAddrSet, update,
        },
        net::{IPv6, IpAddress, TcpAddress, ip_address::Ip},
    };
    use prost::Message as _;

    use super::*;
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
