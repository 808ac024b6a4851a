//! The admin server: probes, metrics.
//!
//! | path       | answer |
//! |------------|--------|
//! | `/live`    | 200 as long as the process can answer |
//! | `/ready`   | 200 or 503, and a line for each thing that is waited for; 503 from the moment the process stops |
//! | `/ping`    | `pong`, as Linkerd's admin servers answer |
//! | `/metrics` | Prometheus' text format |

use std::{
    convert::Infallible,
    io::ErrorKind,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::Registry;
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet, time::timeout};
use tracing::{debug, warn};

/// Probes, a few scrapers and a person; what comes beyond that waits.
const CONNECTIONS: usize = 64;
/// Until the head of a request is there, also between requests.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection lives no longer, however busy or slow.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

/// What `/ready` says.
pub struct Readiness {
    pub ready: bool,
    pub waiting_for: Vec<String>,
}

pub struct Admin {
    pub registry: Registry,
    pub readiness: Box<dyn Fn() -> Readiness + Send + Sync>,
}

/// # Errors
/// When the address is taken or not ours.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = match TcpListener::bind(address).await {
        // A node without IPv6 cannot listen on [::].
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && error.kind() != ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    };
    bound.with_context(|| format!("cannot listen on {address} for probes and metrics: choose another --admin-addr"))
}

/// Serves for ever.
pub async fn serve(listener: TcpListener, admin: Arc<Admin>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: without the pause this loop would take a core as well.
                warn!(%error, "cannot accept a connection for probes and metrics");
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let admin = Arc::clone(&admin);
        connections.spawn(async move {
            let _place = place;
            let service = service_fn(|request| {
                let response = answer(&admin, &request);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            if let Ok(Err(error)) = timeout(CONNECTION_TIMEOUT, connection).await {
                debug!(%error, "a connection for probes or metrics broke");
            }
        });
    }
}

fn answer(admin: &Admin, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    }
    match request.uri().path() {
        "/live" => text(StatusCode::OK, "live\n"),
        "/ping" => text(StatusCode::OK, "pong\n"),
        "/ready" => {
            let Readiness { ready, waiting_for } = (admin.readiness)();
            let (status, head) =
                if ready { (StatusCode::OK, "ready\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready\n") };
            let lines: String = waiting_for.iter().map(|thing| format!("waiting: {thing}\n")).collect();
            text(status, format!("{head}{lines}"))
        }
        "/metrics" => match crate::metrics::encode(&admin.registry) {
            Ok(metrics) => text(StatusCode::OK, metrics),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot encode the metrics: {error}\n")),
        },
        _ => text(StatusCode::NOT_FOUND, "try /live, /ready, /ping or /metrics\n"),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let plain = header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}
