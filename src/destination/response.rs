//! The responses of the server: streams, responses of the health service, and refusals.

use http::{Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use tonic::Status;

use super::{
    get::updates::EndpointUpdates,
    http2::stream::{BodyFrame, ResponseBody},
    profile::updates::ProfileUpdates,
    stream::ResponseStream,
};
use crate::{resources::shares::Taken, text};

/// The maximum number of bytes that a message quotes of a client's text.
const LONGEST_QUOTE: usize = 512;

/// The body of the response to a call.
pub(super) enum CallBody {
    Get(Box<ResponseStream<EndpointUpdates>>),
    GetProfile(Box<ResponseStream<ProfileUpdates>>),
    Health { body: tonic::body::Body, _permit: Taken },
    Empty,
}

impl ResponseBody for CallBody {
    fn is_empty(&self) -> bool {
        match self {
            Self::Get(_) | Self::GetProfile(_) => false,
            Self::Health { body, .. } => body.is_end_stream(),
            Self::Empty => true,
        }
    }

    async fn next(&mut self) -> Option<BodyFrame> {
        match self {
            Self::Get(stream) => stream.next().await,
            Self::GetProfile(stream) => stream.next().await,
            Self::Health { body, .. } => match body.frame().await? {
                Ok(frame) => match frame.into_data() {
                    Ok(data) => Some(BodyFrame::Data(data)),
                    Err(frame) => frame.into_trailers().ok().map(|trailers| BodyFrame::Trailers(Box::new(trailers))),
                },
                Err(status) => Some(BodyFrame::Trailers(Box::new(status.into_http::<()>().into_parts().0.headers))),
            },
            Self::Empty => None,
        }
    }
}

/// Truncates a client's text for a message.
pub(super) fn quote(text: &str) -> String {
    text::truncate(text, LONGEST_QUOTE).to_owned()
}

/// Returns a response that has only a status, in headers that are also trailers. The message is truncated: with the
/// client's whole text it could exceed the client's limit for headers and look like a broken connection.
pub(super) fn refuse(status: &Status) -> Response<CallBody> {
    Status::new(status.code(), quote(status.message())).into_http::<()>().map(|()| CallBody::Empty)
}

/// Returns a response that has only an HTTP status.
pub(super) fn without_body(code: StatusCode) -> Response<CallBody> {
    let mut response = Response::new(CallBody::Empty);
    *response.status_mut() = code;
    response
}
