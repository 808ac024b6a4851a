//! The framing of gRPC messages on a stream: each message is uncompressed and follows its length.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

pub(super) use crate::cluster::kinds::service_profile::route::MAX_MESSAGE_BYTES;

const HEADER: usize = 5;

/// Writes the header of a message with `length` bytes.
pub(super) fn put_header(length: usize, frame: &mut BytesMut) {
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

/// Encodes a message with its header.
pub(super) fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(HEADER + length);
    put_header(length, &mut frame);
    // This cannot fail: the buffer grows.
    _ = message.encode(&mut frame);
    frame.freeze()
}
