//! The server's application: answers each request with the address at which it received it.
//!
//! * In: a listener behind an inbound proxy; the identity that clients must have. Out: answers.
//! * Always: an answer is 200 only if the proxy has verified the client's certificate.

use std::{convert::Infallible, net::IpAddr, sync::Arc};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// Set by the inbound proxy from the client's certificate.
const CLIENT: &str = "l5d-client-id";

/// Serves all connections until the returned future is dropped.
pub(crate) async fn serve(listener: TcpListener, client: String) {
    let client: Arc<str> = client.into();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(serve_one(stream, client.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_one(stream: TcpStream, client: Arc<str>) {
    let Ok(own) = stream.local_addr() else { return };
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(&request, own.ip(), &client);
        async move { Ok::<_, Infallible>(answer) }
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

fn answer(request: &Request<Incoming>, own: IpAddr, client: &str) -> Response<Full<Bytes>> {
    let seen = request.headers().get(CLIENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if seen == client {
        return Response::new(Full::from(own.to_string()));
    }
    let mut refused = Response::new(Full::from(format!("the client's identity is {seen:?}")));
    *refused.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    refused
}
