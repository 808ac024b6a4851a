//! Accepts the connections of the webhook server, and stops it.
//!
//! In: a listener, a certificate, a handler. Out: answers, until the server is requested to stop. Always holds: a new
//! connection is accepted unless every open one has a request under way; when the server stops, requests under way get
//! some time.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use http::Response;
use http_body_util::Full;
use hyper::body::Bytes;
use tokio::{net::TcpListener, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::{
    certificate::ServingCertificate, connection::ConnectionServer, connections::Connections, requests::Requests,
};

/// Answers the requests of a webhook.
pub trait Handler: Send + Sync + 'static {
    /// Returns the answer to a request of any method. The body is complete, and it is not empty.
    ///
    /// The future is dropped after a deadline, and when the client disconnects. It must not block its thread.
    fn answer(self: Arc<Self>, path: String, body: Bytes) -> BoxFuture<'static, Response<Full<Bytes>>>;
}

/// The HTTPS server of a webhook.
pub struct WebhookServer {
    pub listener: TcpListener,
    pub certificate: Arc<ServingCertificate>,
    pub handler: Arc<dyn Handler>,
}

/// The limits of the server. Tests lower them.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// The maximum number of connections. An API server holds only a few, and each may take 256 KiB.
    pub(super) connections: usize,
    /// The maximum number of requests under way on a connection of HTTP/2.
    pub(super) streams: u32,
    /// The maximum length of a body. Linkerd's webhooks have the same.
    pub(super) body: usize,
    /// The maximum length of all bodies together.
    pub(super) bodies: usize,
    pub(super) handshake_time: Duration,
    /// The timeout for the headers of a request of HTTP/1, also between requests.
    pub(super) header_time: Duration,
    /// The timeout for a body, with the wait for memory. An API server waits for 10 s by default.
    pub(super) body_time: Duration,
    /// The timeout for the handler.
    pub(super) handler: Duration,
    /// How long a connection may have no request.
    pub(super) idle_time: Duration,
    pub(super) keepalive_interval: Duration,
    pub(super) keepalive_timeout: Duration,
    /// The time for requests under way when the server stops.
    pub(super) drain_time: Duration,
}

// === impl Limits ===

impl Limits {
    pub(super) const DEFAULT: Self = Self {
        connections: 256,
        streams: 250,
        body: 10 << 20,
        bodies: 64 << 20,
        handshake_time: Duration::from_secs(10),
        header_time: Duration::from_secs(15),
        body_time: Duration::from_secs(10),
        handler: Duration::from_secs(10),
        idle_time: Duration::from_secs(90),
        keepalive_interval: Duration::from_secs(20),
        keepalive_timeout: Duration::from_secs(10),
        drain_time: Duration::from_secs(4),
    };
}

// === impl WebhookServer ===

impl WebhookServer {
    /// Serves until `stop` is cancelled, and then until the requests under way are answered, at most 4 s.
    pub async fn serve(self, stop: CancellationToken) {
        self.serve_within(Limits::DEFAULT, stop).await;
    }

    pub(super) async fn serve_within(self, limits: Limits, stop: CancellationToken) {
        let Self { listener, certificate, handler } = self;
        let requests = Requests::new(handler, limits);
        let server = match ConnectionServer::new(certificate, requests, limits, stop.clone()) {
            Ok(server) => Arc::new(server),
            Err(error) => return error!(%error, "could not set up TLS for the webhook"),
        };
        let mut connections = Connections::new(limits.connections);
        tokio::select! {
            () = accept(&listener, &mut connections, &server) => {}
            () = stop.cancelled() => {}
        }
        drop(listener);
        connections.finish(limits.drain_time).await;
    }
}

/// Accepts connections without end.
async fn accept(listener: &TcpListener, connections: &mut Connections, server: &Arc<ConnectionServer>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // The process is probably out of file descriptors. Without the pause this loop would use a whole core.
                warn!(%error, "could not accept a webhook connection, retrying");
                sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        if connections.make_room() {
            connections.spawn(|activity| Arc::clone(server).serve(stream, activity));
        } else {
            debug!("closing a new webhook connection, because all others have requests under way");
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        time::timeout,
    };

    use super::*;
    use crate::webhook::testing::{Running, SOON, Script, answer, http1, http2, issue, request};

    #[tokio::test]
    async fn silent_connections_do_not_keep_a_new_client_out() {
        let running = Running::start(Limits { connections: 8, ..Limits::DEFAULT }).await;
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(TcpStream::connect(running.address).await.unwrap());
            // These are silent after the TLS handshake.
            held.push(running.connect("h2").await.into_inner().0);
        }
        let mut client = http1(running.connect("http/1.1").await).await;
        assert_eq!(answer(client.send_request(request("/a", "x"))).await.1, "/a 1");
        // The oldest one was closed.
        let closed = timeout(SOON, held[0].read(&mut [0])).await.unwrap();
        assert!(!matches!(closed, Ok(1..)), "{closed:?}");
    }

    #[tokio::test]
    async fn a_new_connection_is_closed_while_all_others_have_requests() {
        let running = Running::start(Limits { connections: 1, ..Limits::DEFAULT }).await;
        let mut client = http2(running.connect("h2").await).await;
        let waiting = tokio::spawn(client.send_request(request("/wait", "x")));
        running.script.begun().await;
        running.issued.connect(running.address, "h2").await.unwrap_err();
        running.script.release();
        assert_eq!(answer(async { waiting.await.unwrap() }).await.1, "/wait 1");
    }

    #[tokio::test]
    async fn a_stop_answers_the_requests_under_way() {
        for alpn in ["h2", "http/1.1"] {
            let running = Running::start(Limits::DEFAULT).await;
            // A silent connection and an idle one do not delay the stop.
            let _silent = TcpStream::connect(running.address).await.unwrap();
            let mut idle = http2(running.connect("h2").await).await;
            assert_eq!(answer(idle.send_request(request("/a", "x"))).await.1, "/a 1");
            let stream = running.connect(alpn).await;
            let waiting = if alpn == "h2" {
                tokio::spawn(http2(stream).await.send_request(request("/wait", "x")))
            } else {
                tokio::spawn(http1(stream).await.send_request(request("/wait", "x")))
            };
            running.script.begun().await;
            running.stop.cancel();
            let refused = async { while TcpStream::connect(running.address).await.is_ok() {} };
            timeout(SOON, refused).await.unwrap();
            assert!(!running.task.is_finished());
            running.script.release();
            assert_eq!(answer(async { waiting.await.unwrap() }).await.1, "/wait 1", "{alpn}");
            running.stopped().await;
        }
    }

    #[tokio::test]
    async fn a_stop_does_not_wait_for_a_request_without_end() {
        let running = Running::start(Limits { drain_time: Duration::from_millis(50), ..Limits::DEFAULT }).await;
        let mut client = http2(running.connect("h2").await).await;
        let waiting = tokio::spawn(client.send_request(request("/wait", "x")));
        running.script.begun().await;
        running.stop.cancel();
        running.stopped().await;
        timeout(SOON, waiting).await.unwrap().unwrap().unwrap_err();
    }

    #[tokio::test]
    async fn without_a_certificate_handshakes_fail_until_there_is_one() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let certificate = Arc::<ServingCertificate>::default();
        let handler = Arc::<Script>::default() as Arc<dyn Handler>;
        let server = WebhookServer { listener, certificate: Arc::clone(&certificate), handler };
        let task = tokio::spawn(server.serve_within(Limits::DEFAULT, stop.clone()));
        let issued = issue();
        let error = issued.connect(address, "h2").await.unwrap_err().to_string();
        assert!(error.contains("received fatal alert"), "{error}");
        certificate.offer(issued.certificate.as_bytes(), issued.key.as_bytes()).unwrap();
        let mut client = http2(issued.connect(address, "h2").await.unwrap()).await;
        assert_eq!(answer(client.send_request(request("/a", "x"))).await.1, "/a 1");
        stop.cancel();
        timeout(SOON, task).await.unwrap().unwrap();
    }

    /// A rotation drops no connection and no request.
    #[tokio::test]
    async fn a_new_pair_leaves_open_connections_and_their_requests_alone() {
        let running = Running::start(Limits::DEFAULT).await;
        let mut client = http2(running.connect("h2").await).await;
        let waiting = tokio::spawn(client.send_request(request("/wait", "x")));
        running.script.begun().await;
        let next = issue();
        running.certificate.offer(next.certificate.as_bytes(), next.key.as_bytes()).unwrap();
        running.issued.connect(running.address, "h2").await.unwrap_err();
        next.connect(running.address, "h2").await.unwrap();
        running.script.release();
        assert_eq!(answer(async { waiting.await.unwrap() }).await.1, "/wait 1");
        assert_eq!(answer(client.send_request(request("/a", "x"))).await.1, "/a 1");
    }

    #[tokio::test]
    async fn a_connection_that_fails_does_not_end_the_server() {
        let running = Running::start(Limits::DEFAULT).await;
        let mut plain = TcpStream::connect(running.address).await.unwrap();
        plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        timeout(SOON, plain.read_to_end(&mut Vec::new())).await.unwrap().ok();
        let mut client = http2(running.connect("h2").await).await;
        assert_eq!(answer(client.send_request(request("/a", "x"))).await.1, "/a 1");
    }
}
