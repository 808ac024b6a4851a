//! Accepts the connections of the webhook server, and stops it.
//!
//! In: a listener, a certificate, a handler. Out: answers, until the server is requested to stop, and for some time
//! longer. Always holds: a connection that has no place yet waits in the backlog; when the server stops, requests under
//! way get some time, and so does one more request of each open connection.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use http::Response;
use http_body_util::Full;
use hyper::body::Bytes;
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use super::{
    certificate::ServingCertificate,
    connection::{ConnectionServer, acceptor},
    connections::Connections,
    limits::Limits,
    requests::Requests,
};
use crate::{listen, resources::Resources};

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
    pub resources: Resources,
    /// How long the server accepts connections after it was requested to stop. API servers still call this replica until
    /// all nodes know that it leaves.
    pub shutdown_delay: Duration,
}

// === impl WebhookServer ===

impl WebhookServer {
    /// The maximum time between the end of `shutdown_delay` and the end of the server.
    pub const DRAIN_TIME: Duration = Limits::DEFAULT.drain_time;

    /// Serves until `stop` is cancelled, for `shutdown_delay` longer, and then until the requests under way and one more
    /// request of each open connection are answered, or the client closes it: at most for [`Self::DRAIN_TIME`].
    pub async fn serve(self, stop: CancellationToken) {
        let limits = Limits {
            connections: self.resources.webhook_connections(),
            memory: self.resources.memory_budget(),
            bodies: self.resources.webhook_bodies(),
            shutdown_delay: self.shutdown_delay,
            ..Limits::DEFAULT
        };
        self.serve_within(limits, stop).await;
    }

    pub(super) async fn serve_within(self, limits: Limits, leaving: CancellationToken) {
        let Self { listener, certificate, handler, .. } = self;
        let tls = match acceptor(certificate) {
            Ok(tls) => tls,
            Err(error) => return error!(%error, "could not set up TLS for the webhook"),
        };
        let requests = Requests::new(handler, limits);
        let server = Arc::new(ConnectionServer { tls, requests, limits, leaving: leaving.clone() });
        let mut tasks = JoinSet::new();
        let left = async {
            leaving.cancelled().await;
            sleep(limits.shutdown_delay).await;
        };
        tokio::select! {
            // First, so that a client that is in the backlog is served.
            biased;
            () = accept(&listener, &mut tasks, &server) => {}
            () = left => {}
        }
        drop(listener);
        let all = async { while tasks.join_next().await.is_some() {} };
        if timeout(limits.drain_time, all).await.is_err() {
            debug!("some webhook connections did not end in time and are closed");
        }
    }
}

/// Accepts connections without end, each as soon as it has a place.
async fn accept(listener: &TcpListener, tasks: &mut JoinSet<()>, server: &Arc<ConnectionServer>) {
    let connections = Connections::new(server.limits.connections, server.limits.memory);
    loop {
        let (stream, client) = listen::accept(listener, "admission reviews").await;
        while tasks.try_join_next().is_some() {}
        match connections.admit(client.ip()).await {
            Some(connection) => _ = tasks.spawn(Arc::clone(server).serve(stream, connection)),
            None => debug!(client = %client.ip(), "closing a new webhook connection of a client that has most of them"),
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
    use crate::webhook::testing::{Running, SOON, Script, answer, http1, issue, request};

    #[tokio::test]
    async fn silent_connections_do_not_keep_a_new_client_out() {
        let running = Running::start(Limits { connections: 8, ..Limits::DEFAULT }).await;
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(TcpStream::connect(running.address).await.unwrap());
            // These are silent after the TLS handshake.
            held.push(running.connect("http/1.1").await.into_inner().0);
        }
        let mut client = http1(running.connect("http/1.1").await).await;
        assert_eq!(answer(client.send_request(request("/a", "x"))).await.1, "/a 1");
        // The oldest one was closed.
        let closed = timeout(SOON, held[0].read(&mut [0])).await.unwrap();
        assert!(!matches!(closed, Ok(1..)), "{closed:?}");
    }

    #[tokio::test]
    async fn a_burst_of_more_requests_than_connections_is_answered_completely() {
        let running = Running::start(Limits { connections: 8, ..Limits::DEFAULT }).await;
        let mut burst = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let (issued, address) = (running.issued.clone(), running.address);
            burst.spawn(async move {
                // As an API server does, which closes a connection that it has no use for.
                let mut client = http1(issued.connect(address, "http/1.1").await.unwrap()).await;
                answer(client.send_request(request("/a", "x"))).await.1
            });
        }
        for answer in timeout(SOON, burst.join_all()).await.unwrap() {
            assert_eq!(answer, "/a 1");
        }
        assert_eq!(running.script.calls(), 64);
    }

    #[tokio::test]
    async fn a_new_connection_waits_while_all_others_have_requests() {
        let running = Running::start(Limits { connections: 1, ..Limits::DEFAULT }).await;
        let mut client = http1(running.connect("http/1.1").await).await;
        let waiting = tokio::spawn(client.send_request(request("/wait", "x")));
        running.script.begun().await;
        let (issued, address) = (running.issued.clone(), running.address);
        let mut next = tokio::spawn(async move { issued.connect(address, "http/1.1").await });
        timeout(Duration::from_millis(300), &mut next).await.unwrap_err();
        running.script.release();
        assert_eq!(answer(async { waiting.await.unwrap() }).await.1, "/wait 1");
        drop(client);
        let mut next = http1(next.await.unwrap().unwrap()).await;
        assert_eq!(answer(next.send_request(request("/a", "x"))).await.1, "/a 1");
    }

    #[tokio::test]
    async fn a_stop_answers_the_requests_under_way() {
        let running = Running::start(Limits::DEFAULT).await;
        let stream = running.connect("http/1.1").await;
        let waiting = tokio::spawn(http1(stream).await.send_request(request("/wait", "x")));
        running.script.begun().await;
        running.stop.cancel();
        let refused = async { while TcpStream::connect(running.address).await.is_ok() {} };
        timeout(SOON, refused).await.unwrap();
        assert!(!running.task.is_finished());
        running.script.release();
        assert_eq!(answer(async { waiting.await.unwrap() }).await.1, "/wait 1");
        running.stopped().await;
    }

    #[tokio::test]
    async fn after_the_request_to_stop_new_connections_are_served_and_clients_are_told_to_leave() {
        let running = Running::start(Limits { shutdown_delay: Duration::from_secs(3), ..Limits::DEFAULT }).await;
        let mut open = http1(running.connect("http/1.1").await).await;
        assert_eq!(answer(open.send_request(request("/a", "x"))).await.1, "/a 1");
        running.stop.cancel();
        let mut new = http1(running.connect("http/1.1").await).await;
        for client in [&mut open, &mut new] {
            let response = timeout(SOON, client.send_request(request("/a", "x"))).await.unwrap().unwrap();
            assert_eq!((response.status().as_u16(), response.headers()["connection"].as_bytes()), (200, &b"close"[..]));
        }
        running.stopped().await;
    }

    /// Go's client sends no POST again whose connection ends after it was begun, and the API server then creates a Pod
    /// without a proxy.
    #[tokio::test]
    async fn a_stop_answers_one_more_request_of_each_open_connection() {
        let running = Running::start(Limits { drain_time: SOON, ..Limits::DEFAULT }).await;
        let mut idle = http1(running.connect("http/1.1").await).await;
        assert_eq!(answer(idle.send_request(request("/a", "x"))).await.1, "/a 1");
        let mut unused = http1(running.connect("http/1.1").await).await;
        let silent = TcpStream::connect(running.address).await.unwrap();
        running.stop.cancel();
        let refused = async { while TcpStream::connect(running.address).await.is_ok() {} };
        timeout(SOON, refused).await.unwrap();
        assert_eq!(answer(idle.send_request(request("/idle", "x"))).await.1, "/idle 1");
        assert_eq!(answer(unused.send_request(request("/unused", "x"))).await.1, "/unused 1");
        let mut silent = http1(running.issued.handshake(silent, "http/1.1").await.unwrap()).await;
        assert_eq!(answer(silent.send_request(request("/silent", "x"))).await.1, "/silent 1");
        running.stopped().await;
    }

    #[tokio::test]
    async fn a_stop_does_not_wait_for_a_client_that_sends_nothing() {
        let running = Running::start(Limits { drain_time: Duration::from_millis(50), ..Limits::DEFAULT }).await;
        let _silent = TcpStream::connect(running.address).await.unwrap();
        let _unused = http1(running.connect("http/1.1").await).await;
        let mut idle = http1(running.connect("http/1.1").await).await;
        assert_eq!(answer(idle.send_request(request("/a", "x"))).await.1, "/a 1");
        running.stop.cancel();
        running.stopped().await;
    }

    #[tokio::test]
    async fn a_stop_does_not_wait_for_a_request_without_end() {
        let running = Running::start(Limits { drain_time: Duration::from_millis(50), ..Limits::DEFAULT }).await;
        let mut client = http1(running.connect("http/1.1").await).await;
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
        let server = WebhookServer {
            listener,
            certificate: Arc::clone(&certificate),
            handler,
            resources: Resources::default(),
            shutdown_delay: Duration::ZERO,
        };
        let task = tokio::spawn(server.serve_within(Limits::DEFAULT, stop.clone()));
        let issued = issue();
        let error = issued.connect(address, "http/1.1").await.unwrap_err().to_string();
        assert!(error.contains("received fatal alert"), "{error}");
        certificate.offer(issued.certificate.as_bytes(), issued.key.as_bytes()).unwrap();
        let mut client = http1(issued.connect(address, "http/1.1").await.unwrap()).await;
        assert_eq!(answer(client.send_request(request("/a", "x"))).await.1, "/a 1");
        stop.cancel();
        timeout(SOON, task).await.unwrap().unwrap();
    }

    /// A rotation drops no connection and no request.
    #[tokio::test]
    async fn a_new_pair_leaves_open_connections_and_their_requests_alone() {
        let running = Running::start(Limits::DEFAULT).await;
        let mut client = http1(running.connect("http/1.1").await).await;
        let waiting = tokio::spawn(client.send_request(request("/wait", "x")));
        running.script.begun().await;
        let next = issue();
        running.certificate.offer(next.certificate.as_bytes(), next.key.as_bytes()).unwrap();
        running.issued.connect(running.address, "http/1.1").await.unwrap_err();
        next.connect(running.address, "http/1.1").await.unwrap();
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
        let mut client = http1(running.connect("http/1.1").await).await;
        assert_eq!(answer(client.send_request(request("/a", "x"))).await.1, "/a 1");
    }
}
