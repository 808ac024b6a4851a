//! One connection of the webhook server: TLS, then HTTP/2 or HTTP/1.
//!
//! In: a TCP connection. Out: requests, and their answers. Always holds: only TLS 1.3 is accepted; each silence of the
//! client has a deadline; a connection that ends is first shut down gracefully, so that requests under way are answered.

use std::{convert::Infallible, pin::Pin, pin::pin, sync::Arc};

use hyper::{
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::{ServerConfig, crypto::ring, server::NoServerSessionStorage, version};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{certificate::ServingCertificate, connections::Activity, requests::Requests, server::Limits};

/// The flow control windows of HTTP/2, and the read buffer of HTTP/1. They bound the bytes of bodies that are not read
/// yet.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;
const HTTP1_BUFFER: usize = 64 << 10;

/// Serves each connection.
pub(super) struct ConnectionServer {
    tls: TlsAcceptor,
    requests: Requests,
    limits: Limits,
    stop: CancellationToken,
}

// === impl ConnectionServer ===

impl ConnectionServer {
    /// # Errors
    /// When the TLS library cannot be set up.
    pub(super) fn new(
        certificate: Arc<ServingCertificate>,
        requests: Requests,
        limits: Limits,
        stop: CancellationToken,
    ) -> Result<Self, rustls::Error> {
        let mut tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(certificate);
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // A resumed session would not present a new certificate.
        tls.session_storage = Arc::new(NoServerSessionStorage {});
        tls.send_tls13_tickets = 0;
        Ok(Self { tls: Arc::new(tls).into(), requests, limits, stop })
    }

    /// Serves a connection until it ends.
    pub(super) async fn serve(self: Arc<Self>, stream: TcpStream, activity: Arc<Activity>) {
        let accepted = tokio::select! {
            accepted = self.handshake(stream) => accepted,
            () = self.stop.cancelled() => return,
        };
        let ended = match accepted {
            Ok(stream) => self.http(stream, &activity).await,
            Err(error) => return debug!(%error, "the TLS handshake of a webhook connection failed"),
        };
        if let Err(error) = ended {
            debug!(%error, "a webhook connection failed");
        }
    }

    async fn handshake(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        stream.set_nodelay(true)?;
        timeout(self.limits.handshake_time, self.tls.accept(stream)).await?
    }

    async fn http(self: &Arc<Self>, stream: TlsStream<TcpStream>, activity: &Arc<Activity>) -> hyper::Result<()> {
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let (stream, limits) = (TokioIo::new(stream), &self.limits);
        let close = CancellationToken::new();
        let service = service_fn(|request| {
            let (server, close, under_way) = (Arc::clone(self), close.clone(), activity.begin());
            async move {
                let response = server.requests.answer(request, &close).await;
                drop(under_way);
                Ok::<_, Infallible>(response)
            }
        });
        if is_http2 {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(limits.keepalive_interval)
                .keep_alive_timeout(limits.keepalive_timeout)
                .max_concurrent_streams(limits.streams)
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .serve_connection(stream, service);
            self.drive(connection, http2::Connection::graceful_shutdown, activity, &close).await
        } else {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits.header_time)
                .max_buf_size(HTTP1_BUFFER)
                .serve_connection(stream, service);
            self.drive(connection, http1::Connection::graceful_shutdown, activity, &close).await
        }
    }

    /// Drives a connection to its end. Shuts it down if it is idle for too long, if a request cancels `close`, or if the
    /// server stops.
    async fn drive<C: Future<Output = hyper::Result<()>>>(
        &self,
        connection: C,
        shut_down: fn(Pin<&mut C>),
        activity: &Activity,
        close: &CancellationToken,
    ) -> hyper::Result<()> {
        let mut connection = pin!(connection);
        tokio::select! {
            ended = &mut connection => return ended,
            () = activity.idle_for(self.limits.idle_time) => {}
            () = close.cancelled() => {}
            () = self.stop.cancelled() => {}
        }
        shut_down(connection.as_mut());
        // A client of HTTP/2 must confirm the shutdown. Requests that it sent before are answered.
        activity.restart();
        tokio::select! {
            ended = connection => ended,
            () = activity.idle_for(self.limits.drain_time) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::webhook::testing::{Running, SOON, answer, http1, http2, issue, request};

    /// A ClientHello of TLS 1.2. The TLS library of the tests may be built without that version.
    const TLS12: &[u8] = &[
        0x16, 3, 1, 0, 63, // a handshake record
        1, 0, 0, 59, 3, 3, // ClientHello, TLS 1.2
        7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, // random
        0, 0, 2, 0xc0, 0x2b, 1, 0, // no session, ECDHE_ECDSA with AES_128_GCM_SHA256, no compression
        0, 16, // extensions
        0, 10, 0, 4, 0, 2, 0, 23, // the group secp256r1
        0, 13, 0, 4, 0, 2, 4, 3, // the signature algorithm ecdsa_secp256r1_sha256
    ];

    #[tokio::test]
    async fn tls_1_2_is_refused() {
        let running = Running::start(Limits::DEFAULT).await;
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(TLS12).await.unwrap();
        let mut alert = Vec::new();
        timeout(SOON, stream.read_to_end(&mut alert)).await.unwrap().unwrap();
        // A fatal alert: protocol_version.
        assert_eq!(alert, [0x15, 3, 3, 0, 2, 2, 70]);
    }

    #[tokio::test]
    async fn http1_and_http2_are_answered() {
        let running = Running::start(Limits::DEFAULT).await;
        let (mut one, mut two) =
            (http1(running.connect("http/1.1").await).await, http2(running.connect("h2").await).await);
        for _ in 0..2 {
            assert_eq!(answer(one.send_request(request("/a", "four"))).await, (StatusCode::OK, "/a 4".into()));
            assert_eq!(answer(two.send_request(request("/b", "four"))).await, (StatusCode::OK, "/b 4".into()));
        }
        assert_eq!(answer(one.send_request(request("/", ""))).await, (StatusCode::OK, String::new()));
        assert_eq!(answer(two.send_request(request("/", ""))).await, (StatusCode::OK, String::new()));
    }

    #[tokio::test]
    async fn ten_mebibytes_are_accepted_and_one_more_byte_is_not() {
        let running = Running::start(Limits::DEFAULT).await;
        let (mut one, mut two) =
            (http1(running.connect("http/1.1").await).await, http2(running.connect("h2").await).await);
        let (longest, too_long) = (vec![0; 10_485_760], vec![0; 10_485_761]);
        let accepted = (StatusCode::OK, "/ 10485760".to_owned());
        let refused = (StatusCode::INTERNAL_SERVER_ERROR, "limit reached while reading: 10485760".to_owned());
        assert_eq!(answer(one.send_request(request("/", longest.clone()))).await, accepted);
        assert_eq!(answer(two.send_request(request("/", longest))).await, accepted);
        assert_eq!(answer(one.send_request(request("/", too_long.clone()))).await, refused);
        assert_eq!(answer(two.send_request(request("/", too_long))).await, refused);
    }

    #[tokio::test]
    async fn a_body_that_does_not_arrive_ends_its_connection() {
        let running = Running::start(Limits { body_time: Duration::from_millis(50), ..Limits::DEFAULT }).await;
        let mut stream = running.connect("http/1.1").await;
        stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\nhalf").await.unwrap();
        let mut answer = String::new();
        timeout(SOON, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("connection: close"), "{answer}");
        assert_eq!(running.script.calls(), 0);
    }

    #[tokio::test]
    async fn a_client_without_requests_is_disconnected() {
        let limits = Limits { idle_time: Duration::from_millis(50), ..Limits::DEFAULT };
        let running = Running::start(Limits { drain_time: Duration::from_millis(50), ..limits }).await;
        for alpn in ["h2", "http/1.1"] {
            let mut silent = running.connect(alpn).await;
            timeout(SOON, silent.read_to_end(&mut Vec::new())).await.unwrap().ok();
        }
        let limits = Limits { handshake_time: Duration::from_millis(50), ..Limits::DEFAULT };
        let running = Running::start(limits).await;
        let mut silent = TcpStream::connect(running.address).await.unwrap();
        timeout(SOON, silent.read_to_end(&mut Vec::new())).await.unwrap().ok();
    }

    #[tokio::test]
    async fn a_panic_of_the_handler_is_answered() {
        let running = Running::start(Limits::DEFAULT).await;
        let (mut one, mut two) =
            (http1(running.connect("http/1.1").await).await, http2(running.connect("h2").await).await);
        for path in ["/panic", "/a"] {
            let expected = if path == "/a" { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
            assert_eq!(answer(one.send_request(request(path, "x"))).await.0, expected);
            assert_eq!(answer(two.send_request(request(path, "x"))).await.0, expected);
        }
    }

    #[tokio::test]
    async fn the_next_connection_receives_the_new_certificate_and_open_ones_go_on() {
        let running = Running::start(Limits::DEFAULT).await;
        let mut open = http1(running.connect("http/1.1").await).await;
        assert_eq!(answer(open.send_request(request("/a", "x"))).await.1, "/a 1");
        let new = issue();
        new.write(running.folder.path());
        assert_eq!(running.certificate.refresh(running.folder.path(), &mut Default::default()), None);
        let mut next = http1(new.connect(running.address, "http/1.1").await.unwrap()).await;
        assert_eq!(answer(next.send_request(request("/b", "x"))).await.1, "/b 1");
        assert_eq!(answer(open.send_request(request("/c", "x"))).await.1, "/c 1");
        running.issued.connect(running.address, "http/1.1").await.unwrap_err();
    }
}
