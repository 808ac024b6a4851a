//! The admin server: probes, metrics, the dashboard.
//!
//! | path       | answer |
//! |------------|--------|
//! | `/live`    | 200 while the process responds |
//! | `/ready`   | 200 or 503, with a line for each condition that the process waits for; 503 during shutdown |
//! | `/ping`    | `pong`, as Linkerd's admin servers answer |
//! | `/metrics` | Prometheus' text format, or a refusal of [`MetricsAccess`] |
//! | `/issued`  | what certificates this process has issued, with `?pods=1` also to which Pods; access as to the metrics |
//! | `/dashboard/` | the page of [`crate::dashboard`] |
//!
//! Always holds: an answer that its client does not take within 10 s ends the connection; see [`Scrapes`] for metrics.

mod known_tokens;
mod metrics_access;
mod scrapes;
mod write_deadline;

use std::{
    collections::VecDeque,
    convert::Infallible,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use futures::stream;
use http::{Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::TcpListener,
    task::{AbortHandle, JoinSet},
    time::timeout,
};
use tracing::debug;

pub use self::{metrics_access::MetricsAccess, scrapes::Scrapes};
use self::{metrics_access::MetricsRefusal, write_deadline::WriteDeadline};
use crate::{
    dashboard::{self, AdminBody, Dashboard},
    identity::IssuedLeaves,
    listen::accept,
};

/// The maximum number of connections: enough for probes, a few scrapers and a person. A further connection closes the
/// oldest one. Otherwise a client that holds connections could block the probes of the kubelet, which would kill the
/// process.
const CONNECTIONS: usize = 64;
/// The size of the kernel's buffer for what a connection sends. A text of metrics of some MiB is sent to a Prometheus in
/// another region in a few seconds.
pub const SEND_BUFFER: u32 = 64 * 1024;
/// The timeout for the headers of a request, also between requests.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum lifetime of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

/// The answer of `/ready`.
pub struct Readiness {
    pub ready: bool,
    pub waiting_for: Vec<String>,
}

pub struct Admin {
    pub scrapes: Scrapes,
    /// `None` if every client may read the metrics.
    pub metrics_access: Option<MetricsAccess>,
    pub readiness: Box<dyn Fn() -> Readiness + Send + Sync>,
    pub dashboard: Dashboard,
    /// `None` if the process issues no certificates.
    pub issued: Option<Arc<IssuedLeaves>>,
}

/// Accepts connections without end.
pub async fn serve(listener: TcpListener, admin: Arc<Admin>) {
    let mut connections = JoinSet::new();
    // The connections, oldest first.
    let mut open = VecDeque::new();
    loop {
        let (stream, _) = accept(&listener, "probes and metrics").await;
        while connections.try_join_next().is_some() {}
        open.retain(|connection: &AbortHandle| !connection.is_finished());
        if open.len() >= CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let admin = Arc::clone(&admin);
        let connection = connections.spawn(async move {
            // An address that is not known is no loopback address.
            let local = stream.local_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip());
            let service = service_fn(async |request| Ok::<_, Infallible>(answer(&admin, &request, local).await));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(WriteDeadline::new(stream)), service);
            if let Ok(Err(error)) = timeout(CONNECTION_TIMEOUT, connection).await {
                debug!(%error, "a connection for probes or metrics failed");
            }
        });
        open.push_back(connection);
    }
}

async fn answer(admin: &Admin, request: &Request<Incoming>, local: IpAddr) -> Response<AdminBody> {
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
            let lines: String = waiting_for.iter().map(|condition| format!("waiting: {condition}\n")).collect();
            text(status, format!("{head}{lines}"))
        }
        "/metrics" => {
            if let Some(refusal) = refusal(admin, request, local).await {
                return refusal;
            }
            match admin.scrapes.scrape().await {
                Ok(metrics) => text(StatusCode::OK, metrics),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot encode the metrics: {error}\n")),
            }
        }
        "/issued" => match refusal(admin, request, local).await {
            Some(refusal) => refusal,
            None => issued(admin, request.uri().query()),
        },
        path if dashboard::serves(path) => {
            let readiness = || {
                let Readiness { ready, waiting_for } = (admin.readiness)();
                (ready, waiting_for)
            };
            admin.dashboard.answer(request, local, readiness).await
        }
        _ => text(StatusCode::NOT_FOUND, "try /live, /ready, /ping, /metrics, /issued or /dashboard/\n"),
    }
}

/// Returns why a client may not read the metrics.
async fn refusal(admin: &Admin, request: &Request<Incoming>, local: IpAddr) -> Option<Response<AdminBody>> {
    let access = admin.metrics_access.as_ref().filter(|_| !dashboard::is_port_forward(local, request.headers()))?;
    access.admit(request.headers()).await.err().map(MetricsRefusal::response)
}

fn issued(admin: &Admin, query: Option<&str>) -> Response<AdminBody> {
    let Some(issued) = &admin.issued else {
        return text(StatusCode::NOT_FOUND, "this process issues no certificates\n");
    };
    let body = match query {
        None => Full::from(issued.issuers() + "\n").boxed_unsync(),
        Some("pods=1") => match issued.pods() {
            Some(pods) => streamed(pods),
            None => return text(StatusCode::SERVICE_UNAVAILABLE, "another client reads the list: retry later\n"),
        },
        Some(_) => return text(StatusCode::BAD_REQUEST, "try /issued or /issued?pods=1\n"),
    };
    let mut response = Response::new(body);
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn streamed(parts: impl Iterator<Item = String> + Send + 'static) -> AdminBody {
    StreamBody::new(stream::iter(parts.map(|part| Ok(Frame::data(Bytes::from(part)))))).boxed_unsync()
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<AdminBody> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = status;
    let plain = header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, SocketAddr},
        sync::mpsc,
    };

    use prometheus::{
        Registry,
        core::{Collector, Desc},
        proto::MetricFamily,
    };
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpSocket, TcpStream},
    };

    use super::*;
    use crate::dashboard::DashboardAccess;

    /// More than the default timeout of a probe.
    const SOON: Duration = Duration::from_secs(5);

    /// Its collections wait until the sender is dropped.
    struct Blocked(Desc, parking_lot::Mutex<mpsc::Receiver<()>>);

    impl Collector for Blocked {
        fn desc(&self) -> Vec<&Desc> {
            vec![&self.0]
        }

        fn collect(&self) -> Vec<MetricFamily> {
            self.1.lock().recv().unwrap_err();
            Vec::new()
        }
    }

    async fn started(registry: Registry) -> SocketAddr {
        started_with(registry, None).await
    }

    async fn started_with(registry: Registry, issued: Option<Arc<IssuedLeaves>>) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let readiness = Box::new(|| Readiness { ready: true, waiting_for: Vec::new() });
        let dashboard = dashboard::testing::dashboard(None, DashboardAccess::Off);
        let scrapes = Scrapes::new(registry);
        tokio::spawn(serve(listener, Arc::new(Admin { scrapes, metrics_access: None, readiness, dashboard, issued })));
        address
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        send("GET", address, path).await
    }

    async fn send(method: &str, address: SocketAddr, path: &str) -> String {
        let mut probe = TcpStream::connect(address).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n");
        probe.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(SOON, probe.read_to_string(&mut answer)).await.unwrap().unwrap();
        answer
    }

    #[tokio::test]
    async fn probes_are_answered_however_many_connections_a_client_holds() {
        let address = started(Registry::new()).await;
        let mut held = Vec::new();
        for _ in 0..2 * CONNECTIONS {
            held.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = get(address, "/live").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    #[tokio::test]
    async fn probes_are_answered_while_metrics_are_collected() {
        let (registry, (release, permissions)) = (Registry::new(), mpsc::channel());
        let desc = Desc::new("blocked".to_owned(), "Blocked".to_owned(), Vec::new(), Default::default()).unwrap();
        registry.register(Box::new(Blocked(desc, parking_lot::Mutex::new(permissions)))).unwrap();
        let address = started(registry).await;
        let scrapes: Vec<_> = (0..60).map(|_| tokio::spawn(get(address, "/metrics"))).collect();
        for path in ["/live", "/ready", "/ping"] {
            let answer = get(address, path).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        }
        assert!(scrapes.iter().all(|scrape| !scrape.is_finished()));
        drop(release);
        for scrape in scrapes {
            let answer = scrape.await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    }

    #[tokio::test]
    async fn a_process_that_issues_no_certificates_says_so() {
        let address = started(Registry::new()).await;
        let answer = get(address, "/issued").await;
        assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("issues no certificates"), "{answer}");
    }

    #[tokio::test]
    async fn what_was_issued_is_shown_in_json_and_other_queries_are_refused() {
        let issued = IssuedLeaves::new(jiff::Timestamp::UNIX_EPOCH);
        let address = started_with(Registry::new(), Some(Arc::clone(&issued))).await;
        let summary = r#"{"issuers":[],"since":"1970-01-01T00:00:00Z"}"#;
        let answer = get(address, "/issued").await;
        assert!(answer.contains("content-type: application/json\r\n") && answer.contains(summary), "{answer}");
        let head = send("HEAD", address, "/issued").await;
        assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
        for query in ["pods", "pods=2", "pods=1&pods=1", ""] {
            let refused = get(address, &format!("/issued?{query}")).await;
            assert!(refused.starts_with("HTTP/1.1 400"), "{query}: {refused}");
        }
        for other in [send("POST", address, "/issued").await, send("DELETE", address, "/issued?pods=1").await] {
            assert!(other.starts_with("HTTP/1.1 405"), "{other}");
        }
    }

    #[tokio::test]
    async fn a_second_client_of_the_list_of_pods_is_told_to_retry() {
        let issued = IssuedLeaves::new(jiff::Timestamp::UNIX_EPOCH);
        let address = started_with(Registry::new(), Some(Arc::clone(&issued))).await;
        let list = issued.pods();
        let answer = get(address, "/issued?pods=1").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry later"), "{answer}");
        drop(list);
        let answer = get(address, "/issued?pods=1").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"podsOmitted\":0"), "{answer}");
    }

    #[tokio::test]
    async fn a_client_that_does_not_take_its_answers_is_disconnected() {
        let registry = Registry::new();
        let long = "x".repeat(1 << 20);
        registry.register(Box::new(prometheus::IntCounter::new("a", long).unwrap())).unwrap();
        let address = started(registry).await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut client = socket.connect(address).await.unwrap();
        client.write_all(&b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".repeat(100)).await.unwrap();
        // The server first fills the buffers of the connection, which takes longer on a busy host.
        client.readable().await.unwrap();
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            tokio::time::pause();
            tokio::time::advance(write_deadline::WRITE_TIMEOUT).await;
            tokio::time::resume();
        }
        // Most of the hundred answers were never written.
        let mut read = Vec::new();
        timeout(SOON, client.read_to_end(&mut read)).await.unwrap().ok();
        assert!(read.len() < 20 << 20, "{} bytes", read.len());
    }
}
