//! A connection of hyper as the service that a gRPC client of tonic needs.
//!
//! In: the sender of an HTTP/2 connection. Out: a [`Service`]. Always holds: it connects to nothing; the owner of the
//! connection drives it, and sets the deadline of each call.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use hyper::{body::Incoming, client::conn::http2::SendRequest};
use tonic::body::Body;
use tower::Service;

/// The sender of an HTTP/2 connection.
pub(crate) struct Http2(pub(crate) SendRequest<Body>);

// === impl Http2 ===

impl Service<Request<Body>> for Http2 {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
