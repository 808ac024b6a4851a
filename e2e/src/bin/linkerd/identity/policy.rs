//! A stand-in for Linkerd's policy controller, which has no part in certificates.
//!
//! * In: connections of proxies. Out: no policies.
//! * Always: an inbound port keeps the default policy of its proxy, and a Service is routed by its ServiceProfile.

use std::{convert::Infallible, future::pending};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::{Request, Response, body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

const INBOUND: &str = "/io.linkerd.proxy.inbound.";
const UNIMPLEMENTED: &str = "12";

/// Serves all connections until the returned future is dropped.
pub(super) async fn serve(listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(serve_one(stream));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_one(stream: TcpStream) {
    let service = service_fn(|request: Request<Incoming>| async move {
        if request.uri().path().starts_with(INBOUND) {
            // The proxy would retry after any answer.
            return pending().await;
        }
        let mut answer = Response::new(Empty::<Bytes>::new());
        for (name, value) in [("content-type", "application/grpc"), ("grpc-status", UNIMPLEMENTED)] {
            answer.headers_mut().insert(name, hyper::header::HeaderValue::from_static(value));
        }
        Ok::<_, Infallible>(answer)
    });
    let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}
