//! One gRPC message in each direction.
//!
//! In: the body of a request; a response or a status. Out: the message of the request; the body of the response. Always
//! holds: the size of a request is bounded before it is read; the text of a status is bounded.

use std::convert::Infallible;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Body;
use prost::Message;
use tokio::sync::{Semaphore, SemaphorePermit};
use tonic::Status;

use crate::text;

/// The maximum size of a request: the longest token, the longest signing request, and a name.
pub(super) const LONGEST_MESSAGE: usize = 64 << 10;
/// The maximum length of the text of a status, which may quote the request.
const LONGEST_TEXT: usize = 2048;
/// The length of the prefix of a message.
const PREFIX: usize = 5;
pub(super) const OVERLOADED: &str = "this identity server is overloaded: retry, preferably with another replica";

/// The frames of a response: at most one of data, and the trailers.
pub(super) type ResponseFrames = Vec<Result<Frame<Bytes>, Infallible>>;

/// Reads the message of a request. The data that follow are not read. `memory` has a permit for each byte of all
/// messages; those of this one are taken as it arrives.
///
/// # Errors
/// When the message is too long or not complete, or no memory is left. The codes and the first text are those of gRPC
/// for Go.
pub(super) async fn read(
    mut body: impl Body<Data = Bytes> + Unpin,
    memory: &Semaphore,
) -> Result<(Bytes, SemaphorePermit<'_>), Status> {
    let overloaded = || Status::unavailable(OVERLOADED);
    let mut permit = memory.try_acquire_many(0).map_err(|_| overloaded())?;
    let mut received = BytesMut::new();
    loop {
        if let Some((mut prefix, message)) = received.split_at_checked(PREFIX) {
            let is_compressed = prefix.get_u8() != 0;
            let length = prefix.get_u32() as usize;
            if is_compressed {
                return Err(Status::unimplemented("the request is compressed: send it uncompressed"));
            }
            if length > LONGEST_MESSAGE {
                let text = format!("grpc: received message larger than max ({length} vs. {LONGEST_MESSAGE})");
                return Err(Status::resource_exhausted(text));
            }
            if message.len() >= length {
                received.advance(PREFIX);
                received.truncate(length);
                return Ok((received.freeze(), permit));
            }
        }
        match body.frame().await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
                    permit.merge(memory.try_acquire_many(bytes).map_err(|_| overloaded())?);
                    received.extend_from_slice(&data);
                }
            }
            Some(Err(_)) => return Err(Status::cancelled("the request was interrupted")),
            None => return Err(Status::internal("the request ended before its message was complete")),
        }
    }
}

/// Decodes the message of a request.
///
/// # Errors
/// When it is not valid.
pub(super) fn decode<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|error| Status::internal(format!("grpc: error unmarshalling request: {error}")))
}

/// Returns the response with a message, or with a status.
pub(super) fn response<M: Message>(answer: Result<M, Status>) -> Response<ResponseFrames> {
    let mut frames = Vec::with_capacity(2);
    let mut trailers = HeaderMap::new();
    match answer {
        Ok(message) => {
            let length = message.encoded_len();
            let mut data = BytesMut::with_capacity(PREFIX + length);
            data.put_u8(0);
            // A response has a few kilobytes.
            data.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
            data.put(message.encode_to_vec().as_slice());
            frames.push(Ok(Frame::data(data.freeze())));
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
        }
        Err(status) => {
            let status = Status::new(status.code(), text::truncate(status.message(), LONGEST_TEXT));
            trailers = status.into_http::<()>().into_parts().0.headers;
            trailers.remove(header::CONTENT_TYPE);
        }
    }
    frames.push(Ok(Frame::trailers(trailers)));
    let mut response = Response::new(frames);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, StreamExt, stream};
    use http_body_util::{Full, StreamBody};
    use tonic::Code;

    use super::*;
    use crate::proto::identity::CertifyRequest;

    async fn code(bytes: &[u8]) -> Code {
        let memory = Semaphore::new(LONGEST_MESSAGE);
        read(Full::new(Bytes::copy_from_slice(bytes)), &memory).await.map_or_else(|status| status.code(), |_| Code::Ok)
    }

    #[tokio::test]
    async fn the_bytes_of_a_message_count_from_their_arrival_until_its_answer() {
        let memory = Semaphore::new(20);
        // 12 bytes of a message of 20.
        let part = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"\0\0\0\0\x0fabcdefg")));
        let waits = stream::iter([part()]).chain(stream::pending());
        let mut incomplete = Box::pin(read(StreamBody::new(waits), &memory));
        assert!((&mut incomplete).now_or_never().is_none());
        assert_eq!(memory.available_permits(), 8);
        let refused = read(StreamBody::new(stream::iter([part()])), &memory).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        drop(incomplete);
        let (message, permit) = read(Full::new(Bytes::from_static(b"\0\0\0\0\x02ab")), &memory).await.unwrap();
        assert_eq!((&message[..], memory.available_permits()), (&b"ab"[..], 13));
        drop(permit);
        assert_eq!(memory.available_permits(), 20);
    }

    #[tokio::test]
    async fn a_message_is_read_and_its_size_is_bounded() {
        assert_eq!(code(b"\0\0\0\0\0").await, Code::Ok);
        assert_eq!(code(b"\0\0\x01\0\0").await, Code::Internal, "64 KiB are not complete");
        assert_eq!(code(b"\0\0\x01\0\x01").await, Code::ResourceExhausted);
        assert_eq!(code(b"\x01\0\0\0\0").await, Code::Unimplemented);
        assert_eq!(code(b"\0\0\0").await, Code::Internal);
    }

    #[test]
    fn a_message_that_is_not_valid_is_an_internal_error_as_in_go() {
        for bytes in [&b"\xff"[..], b"\x0a\x01\xff"] {
            let status = decode::<CertifyRequest>(Bytes::copy_from_slice(bytes)).unwrap_err();
            assert_eq!(status.code(), Code::Internal, "{bytes:?}");
        }
    }

    #[test]
    fn a_status_is_in_trailers_and_its_text_is_bounded() {
        let response = response::<CertifyRequest>(Err(Status::internal("x".repeat(10_000))));
        let [Ok(trailers)] = response.body().as_slice() else { panic!("there is a message") };
        let trailers = trailers.trailers_ref().unwrap();
        assert_eq!((trailers["grpc-status"].as_bytes(), trailers["grpc-message"].len()), (&b"13"[..], LONGEST_TEXT));
    }
}
