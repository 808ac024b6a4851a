//! One gRPC message in each direction.
//!
//! In: the body of a request; a response or a status. Out: the message of the request; the body of the response. Always
//! holds: the size of a request is bounded before it is read; the text of a status is bounded.

use std::{convert::Infallible, time::Duration};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Body;
use prost::Message;
use tonic::Status;

use crate::{resources::shares::Taken, text};

/// The maximum size of a request: the longest token, the longest signing request, and a name.
pub(super) const LONGEST_MESSAGE: usize = 64 << 10;
/// The maximum length of the text of a status, which may quote the request.
const LONGEST_TEXT: usize = 2048;
/// The length of the prefix of a message.
const PREFIX: usize = 5;
pub(super) const OVERLOADED: &str = "this identity server is overloaded: retry, preferably with another replica";

/// The frames of a response: at most one of data, and the trailers.
pub(super) type ResponseFrames = Vec<Result<Frame<Bytes>, Infallible>>;

/// Reads the message of a request, and the end of the request. `memory` grows by each byte as it arrives.
///
/// # Errors
/// When the message is too long or not complete, another one follows, or no memory is left. The codes and the first text
/// are those of gRPC for Go.
pub(super) async fn read(mut body: impl Body<Data = Bytes> + Unpin, memory: &mut Taken) -> Result<Bytes, Status> {
    let mut received = BytesMut::new();
    let mut has_ended = false;
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
            if message.len() > length {
                return Err(Status::unimplemented("the request has more than one message"));
            }
            if has_ended && message.len() == length {
                received.advance(PREFIX);
                return Ok(received.freeze());
            }
        }
        if has_ended {
            return Err(Status::internal("the request ended before its message was complete"));
        }
        match body.frame().await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    if !memory.try_grow(data.len()) {
                        return Err(Status::unavailable(OVERLOADED));
                    }
                    received.extend_from_slice(&data);
                }
            }
            Some(Err(_)) => return Err(Status::cancelled("the request was interrupted")),
            None => has_ended = true,
        }
    }
}

/// Returns whether a request is one of gRPC over HTTP/2, with any encoding of its messages, as gRPC for Go does.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    matches!(content_type.strip_prefix(b"application/grpc"), Some([] | [b'+' | b';', ..]))
}

/// Returns the time that a client gives its call. One that is not valid counts as none.
pub(super) fn client_timeout(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("grpc-timeout")?.to_str().ok()?;
    let (amount, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if amount.len() > 8 || !amount.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let amount: u32 = amount.parse().ok()?;
    let unit = match unit {
        "H" => Duration::from_hours(1),
        "M" => Duration::from_mins(1),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return None,
    };
    Some(unit * amount)
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
    use crate::{proto::identity::CertifyRequest, resources::shares::Pool};

    async fn code(bytes: &[u8]) -> Code {
        let mut memory = Pool::new(2 * LONGEST_MESSAGE).share().take_nothing();
        let read = read(Full::new(Bytes::copy_from_slice(bytes)), &mut memory).await;
        read.map_or_else(|status| status.code(), |_| Code::Ok)
    }

    #[tokio::test]
    async fn the_bytes_of_a_message_count_from_their_arrival_until_its_answer() {
        let pool = Pool::new(20);
        let nothing = || pool.share().take_nothing();
        // 12 bytes of a message of 20.
        let part = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"\0\0\0\0\x0fabcdefg")));
        let waits = stream::iter([part()]).chain(stream::pending());
        let mut waiting = nothing();
        let mut incomplete = Box::pin(read(StreamBody::new(waits), &mut waiting));
        assert!((&mut incomplete).now_or_never().is_none());
        assert_eq!(pool.free(), 8);
        let refused = read(StreamBody::new(stream::iter([part()])), &mut nothing()).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        drop(incomplete);
        drop(waiting);
        let mut memory = nothing();
        let message = read(Full::new(Bytes::from_static(b"\0\0\0\0\x02ab")), &mut memory).await.unwrap();
        assert_eq!((&message[..], pool.free()), (&b"ab"[..], 13));
        drop(memory);
        assert_eq!(pool.free(), 20);
    }

    #[tokio::test]
    async fn a_request_has_one_message() {
        assert_eq!(code(b"\0\0\0\0\x01a").await, Code::Ok);
        for two in [&b"\0\0\0\0\x01a\0\0\0\0\x01a"[..], b"\0\0\0\0\0\0\0\0\0\0", b"\0\0\0\0\x01ab"] {
            assert_eq!(code(two).await, Code::Unimplemented, "{two:?}");
        }
        let frames = [&b"\0\0\0\0\x01a"[..], b"", b"\0\0\0\0\x01a"];
        let frames = frames.map(|data| Ok::<_, Infallible>(Frame::data(Bytes::from_static(data))));
        let mut memory = Pool::new(100).share().take_nothing();
        let refused = read(StreamBody::new(stream::iter(frames)), &mut memory).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented);
    }

    #[test]
    fn other_content_types_than_those_of_grpc_are_told_apart() {
        for (content_type, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/json", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))]);
            assert_eq!(is_grpc(&headers), expected, "{content_type}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn a_timeout_of_a_client_has_a_unit_and_at_most_eight_digits() {
        let timeout = |value| {
            let name = header::HeaderName::from_static("grpc-timeout");
            client_timeout(&HeaderMap::from_iter([(name, HeaderValue::from_static(value))]))
        };
        assert_eq!(timeout("2H"), Some(Duration::from_secs(7_200)));
        assert_eq!(timeout("3M"), Some(Duration::from_secs(180)));
        assert_eq!(timeout("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(timeout("500m"), Some(Duration::from_millis(500)));
        assert_eq!((timeout("7u"), timeout("7n")), (Some(Duration::from_micros(7)), Some(Duration::from_nanos(7))));
        for invalid in ["", "S", "1", "1s", "+1S", "-1S", "1.5S", "100000000S"] {
            assert_eq!(timeout(invalid), None, "{invalid}");
        }
        assert_eq!(client_timeout(&HeaderMap::new()), None);
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
