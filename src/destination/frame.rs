//! Messages as gRPC puts them on a stream: not compressed, each behind its length.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

const HEADER: usize = 5;

pub(super) fn header(message: usize, frame: &mut BytesMut) {
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message).unwrap_or(u32::MAX));
}

pub(super) fn of(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(HEADER + length);
    header(length, &mut frame);
    // There is room: it grows.
    _ = message.encode(&mut frame);
    frame.freeze()
}
