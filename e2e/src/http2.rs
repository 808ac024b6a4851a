//! HTTP/2 frames on the wire (RFC 9113, section 4), for clients that no regular library allows: one that is cheaper
//! than the server it measures, and ones that violate the protocol.
//!
//! * In: the frame to send, or bytes from a socket. Out: the bytes of a frame, or the frames in the bytes.
//! * Always: header blocks are not compressed, so that one block can be sent on any stream, except for an attack; this
//!   module keeps no connection state.

use std::ops::RangeInclusive;

use anyhow::{Result, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The first bytes that a client sends.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0x0;
pub const HEADERS: u8 = 0x1;
pub const RST_STREAM: u8 = 0x3;
pub const SETTINGS: u8 = 0x4;
pub const PING: u8 = 0x6;
pub const GOAWAY: u8 = 0x7;
pub const WINDOW_UPDATE: u8 = 0x8;
pub const CONTINUATION: u8 = 0x9;

/// Flag of DATA and HEADERS.
pub const END_STREAM: u8 = 0x1;
/// Flag of HEADERS and CONTINUATION.
pub const END_HEADERS: u8 = 0x4;
/// Flag of SETTINGS and PING.
pub const ACK: u8 = 0x1;

/// A parameter of SETTINGS: the window of a new stream.
pub const INITIAL_WINDOW_SIZE: u16 = 0x4;

/// An error code of RST_STREAM.
pub const CANCEL: u32 = 0x8;

/// The methods of the Destination API.
pub const GET: &str = "/io.linkerd.proxy.destination.Destination/Get";
pub const GET_PROFILE: &str = "/io.linkerd.proxy.destination.Destination/GetProfile";
/// The length of a gRPC message's prefix: the compression flag and the message length.
pub const PREFIX: usize = 5;

const HEAD: usize = 9;
/// The default SETTINGS_MAX_FRAME_SIZE.
const LONGEST: usize = 16 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    /// 0 addresses the connection.
    pub stream: u32,
    pub payload: Bytes,
}

// === impl Frame ===

impl Frame {
    pub fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Bytes>) -> Self {
        Self { kind, flags, stream, payload: payload.into() }
    }

    pub fn settings(settings: &[(u16, u32)]) -> Self {
        let mut payload = BytesMut::new();
        for (name, value) in settings {
            payload.put_u16(*name);
            payload.put_u32(*value);
        }
        Self::new(SETTINGS, 0, 0, payload)
    }

    pub fn window_update(stream: u32, more: u32) -> Self {
        Self::new(WINDOW_UPDATE, 0, stream, more.to_be_bytes().to_vec())
    }

    pub fn reset(stream: u32, code: u32) -> Self {
        Self::new(RST_STREAM, 0, stream, code.to_be_bytes().to_vec())
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The 32-bit payload of RST_STREAM or WINDOW_UPDATE, or the error code of GOAWAY, which follows the last stream
    /// ID.
    pub fn code(&self) -> Option<u32> {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        self.payload.get(at..at + 4).map(|mut bytes| bytes.get_u32())
    }

    pub fn put(&self, into: &mut BytesMut) {
        let length = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        into.put_uint(length.into(), 3);
        into.put_u8(self.kind);
        into.put_u8(self.flags);
        into.put_u32(self.stream);
        into.extend_from_slice(&self.payload);
    }

    /// Removes the first frame from the bytes read; `None` while it is incomplete.
    ///
    /// # Errors
    /// Fails when the frame exceeds the size that a client must accept.
    pub fn take(read: &mut BytesMut) -> Result<Option<Self>> {
        let Some((mut head, rest)) = read.split_at_checked(HEAD) else { return Ok(None) };
        let length = usize::try_from(head.get_uint(3))?;
        ensure!(length <= LONGEST, "the frame has {length} bytes, more than {LONGEST}");
        if rest.len() < length {
            read.reserve(length - rest.len());
            return Ok(None);
        }
        let (kind, flags, stream) = (head.get_u8(), head.get_u8(), head.get_u32() & 0x7fff_ffff);
        read.advance(HEAD);
        Ok(Some(Self { kind, flags, stream, payload: read.split_to(length).freeze() }))
    }
}

/// A block of literal header fields without indexing (RFC 7541, section 6.2.2).
pub fn header_block<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Bytes {
    let mut block = BytesMut::new();
    for (name, value) in fields {
        block.put_u8(0);
        for text in [name, value] {
            put_length(text.len(), &mut block);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block.freeze()
}

/// The header block of a gRPC request.
pub fn grpc_request(path: &str) -> Bytes {
    header_block([
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "destination"),
        (":path", path),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ])
}

/// The header blocks of gRPC requests with a hundred fields and few bytes: of the first one, which adds fields to the
/// server's table (RFC 7541, section 2.3.2), and of all others.
pub fn requests_with_many_fields(path: &str) -> (Bytes, Bytes) {
    /// Indexed fields that h2 accepts without a value: all but content-length and transfer-encoding.
    const STATIC: [RangeInclusive<u8>; 3] = [15..=27, 29..=56, 58..=61];
    /// The places of added fields, the last one first, whose index is one byte.
    const ADDED: RangeInclusive<u8> = 62..=121;
    let (mut first, mut others) = (BytesMut::from(&*grpc_request(path)), BytesMut::from(&*grpc_request(path)));
    for number in ADDED {
        first.extend_from_slice(&[0x40, 2, b'a' + number / 26, b'a' + number % 26, 0]);
        others.put_u8(0x80 | number);
    }
    others.extend(STATIC.into_iter().flatten().map(|index| 0x80 | index));
    (first.freeze(), others.freeze())
}

/// A gRPC message with its prefix: the flag for no compression, and the length.
pub fn grpc_message(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(PREFIX + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.extend_from_slice(message);
    frame.freeze()
}

/// Writes an integer with a prefix of 7 bits (RFC 7541, section 5.1); the text is not Huffman-coded.
fn put_length(length: usize, block: &mut BytesMut) {
    let Some(mut rest) = length.checked_sub(127) else {
        #[allow(clippy::cast_possible_truncation, reason = "below 127")]
        return block.put_u8(length as u8);
    };
    block.put_u8(127);
    #[allow(clippy::cast_possible_truncation, reason = "7 bits")]
    while rest >= 128 {
        block.put_u8((rest % 128) as u8 | 128);
        rest /= 128;
    }
    #[allow(clippy::cast_possible_truncation, reason = "below 128")]
    block.put_u8(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_decoded_when_it_is_complete() {
        let frame = Frame::window_update(7, 65_535);
        let mut bytes = BytesMut::new();
        frame.put(&mut bytes);
        let mut half = BytesMut::from(&bytes[..10]);
        assert_eq!(Frame::take(&mut half).unwrap(), None);
        half.extend_from_slice(&bytes[10..]);
        half.extend_from_slice(b"more");
        assert_eq!(Frame::take(&mut half).unwrap(), Some(frame));
        assert_eq!(&half[..], b"more");
    }

    #[test]
    fn the_length_of_a_long_header_is_encoded_as_in_rfc_7541() {
        let long = "x".repeat(1337);
        let block = header_block([("a", long.as_str())]);
        // 1337 with a prefix of 7 bits: 127, then 1210 as 186, 9.
        assert_eq!(block[..6], [0, 1, b'a', 127, 186, 9]);
        assert_eq!(block.len(), 6 + 1337);
    }
}
