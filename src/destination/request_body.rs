//! The body of a request: one gRPC message of bounded size.

use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use tonic::Status;

/// The maximum size of a request in bytes. A valid request is shorter: a name of 253 characters, a port and a token.
pub(super) const LONGEST_REQUEST: usize = 16 * 1024;

/// Reads the single message of a request. The data of an incomplete message occupies the connection's window, so that
/// the window bounds the unfinished requests of a client.
pub(super) async fn read(body: &mut RecvStream) -> Result<Bytes, Status> {
    const PREFIX: usize = 5;
    let mut received = BytesMut::new();
    let mut taken = 0;
    let message = loop {
        if let Some((prefix, message)) = received.split_at_checked(PREFIX) {
            let mut prefix = prefix;
            let compressed = prefix.get_u8() != 0;
            let length = prefix.get_u32() as usize;
            if compressed {
                break Err(Status::unimplemented("the request is compressed: send it uncompressed"));
            }
            if length > LONGEST_REQUEST {
                let text =
                    format!("Invalid authority: the request has {length} bytes; the maximum is {LONGEST_REQUEST}");
                break Err(Status::invalid_argument(text));
            }
            if message.len() >= length {
                received.advance(PREFIX);
                received.truncate(length);
                break Ok(received.freeze());
            }
        }
        match body.data().await {
            Some(Ok(data)) => {
                taken += data.len();
                received.extend_from_slice(&data);
            }
            Some(Err(error)) => break Err(Status::cancelled(format!("the request was interrupted: {error}"))),
            None => break Err(Status::internal("the request ended before its message was complete")),
        }
    };
    // Without this, the request would occupy the connection's window while the stream is open, and after some hundred
    // streams the client could not send further requests. The call fails if the stream has ended.
    _ = body.flow_control().release_capacity(taken);
    message
}

/// Reads a request to its end and discards it.
pub(super) async fn discard(mut body: RecvStream) {
    let mut taken = 0;
    while let Some(Ok(data)) = body.data().await {
        taken += data.len();
        if taken > LONGEST_REQUEST {
            return;
        }
        _ = body.flow_control().release_capacity(data.len());
    }
}
