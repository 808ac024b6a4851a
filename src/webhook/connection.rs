//! One connection of the webhook server: TLS, then HTTP/1.
//!
//! In: a TCP connection. Out: requests, and their answers. Always holds: only TLS 1.3 is accepted; each silence of the
//! client has a deadline, also while it does not take an answer; a request waits until the client has taken the answer
//! before it; a connection that ends is first shut down gracefully, so that a request under way is answered.
//!
//! API servers call webhooks by HTTP/1.1 only, so that their requests spread over all replicas. HTTP/2 would let one
//! connection hold the headers of many requests.

use std::{
    convert::Infallible,
    future::pending,
    io::IoSlice,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::{ServerConfig, crypto::ring, server::NoServerSessionStorage, version};
use tokio::{
    io::{self, AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{
    answer::AnswerBody,
    certificate::ServingCertificate,
    connections::OpenConnection,
    limits::Limits,
    requests::{Requests, WebhookAnswer, closing},
};

/// The maximum length of the head of a request, and the read buffer of a connection. An API server sends less than 1 KiB.
const BUFFER: usize = 8 << 10;
/// The maximum length of the part of an answer that the TLS library keeps: one record.
const TLS_BUFFER: usize = 16 << 10;

/// Serves each connection.
pub(super) struct ConnectionServer {
    pub(super) tls: TlsAcceptor,
    pub(super) requests: Requests,
    pub(super) limits: Limits,
    /// Each answer is the last one of its connection when this is cancelled. A connection without a request is not closed
    /// at that moment: an API server may be about to send one on it, which it does not send again.
    pub(super) leaving: CancellationToken,
}

/// A stream that records when its client sends something, and when all that was written is sent.
struct Recorded {
    stream: TlsStream<TcpStream>,
    connection: Arc<OpenConnection>,
}

/// Returns the TLS settings.
///
/// # Errors
/// When the TLS library cannot be set up.
pub(super) fn acceptor(certificate: Arc<ServingCertificate>) -> Result<TlsAcceptor, rustls::Error> {
    let mut tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A resumed session would not present a new certificate.
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    tls.send_tls13_tickets = 0;
    Ok(Arc::new(tls).into())
}

// === impl ConnectionServer ===

impl ConnectionServer {
    /// Serves a connection until it ends.
    pub(super) async fn serve(self: Arc<Self>, stream: TcpStream, connection: OpenConnection) {
        let connection = Arc::new(connection);
        let accepted = tokio::select! {
            accepted = self.handshake(stream) => accepted,
            () = connection.closed() => return,
        };
        let ended = match accepted {
            Ok(stream) => tokio::select! {
                ended = self.http(stream, &connection) => ended,
                () = connection.closed() => return,
            },
            Err(error) => return debug!(%error, "the TLS handshake of a webhook connection failed"),
        };
        if let Err(error) = ended {
            debug!(%error, "a webhook connection failed");
        }
    }

    async fn handshake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        stream.set_nodelay(true)?;
        let mut stream = timeout(self.limits.handshake_time, self.tls.accept(stream)).await??;
        stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
        Ok(stream)
    }

    /// Serves requests until the client or an answer ends the connection. Shuts it down if a deadline passes.
    async fn http(
        self: &Arc<Self>,
        stream: TlsStream<TcpStream>,
        connection: &Arc<OpenConnection>,
    ) -> hyper::Result<()> {
        connection.established();
        // One place, because the request with such a body is the last one of its connection.
        let (unread_bodies, unread_body) = mpsc::channel(1);
        let service = service_fn(|request| {
            let (server, connection, unread_bodies) = (Arc::clone(self), Arc::clone(connection), unread_bodies.clone());
            async move {
                connection.taken().await;
                let WebhookAnswer { response, memory, unread } = server.requests.answer(request, &connection).await;
                if let Some(body) = unread {
                    // If this fails, the body is dropped, which ends the connection.
                    _ = unread_bodies.try_send(body);
                }
                let response = if server.leaving.is_cancelled() { closing(response) } else { response };
                Ok::<_, Infallible>(response.map(|body| AnswerBody::new(body, memory, connection)))
            }
        });
        let stream = TokioIo::new(Recorded { stream, connection: Arc::clone(connection) });
        // hyper's timeout for heads would also close connections that an API server keeps for its next request.
        let served =
            http1::Builder::new().header_read_timeout(None).max_buf_size(BUFFER).serve_connection(stream, service);
        let mut served = pin!(served);
        tokio::select! {
            ended = &mut served => return ended,
            () = self.discard(unread_body) => {}
            () = connection.overdue(&self.limits) => {
                if connection.has_untaken_answer() {
                    debug!("closing a webhook connection whose client does not take its answer");
                    return Ok(());
                }
            }
        }
        served.as_mut().graceful_shutdown();
        timeout(self.limits.drain_time, served).await.unwrap_or(Ok(()))
    }

    /// Reads a body of which hyper writes the answer meanwhile. Without such a body, waits forever.
    async fn discard(&self, mut unread: mpsc::Receiver<Incoming>) {
        match unread.recv().await {
            Some(body) => self.requests.discard(body).await,
            None => pending().await,
        }
    }
}

// === impl Recorded ===

impl AsyncRead for Recorded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if buffer.filled().len() > before {
            self.connection.received();
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Recorded {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    /// Otherwise hyper copies each answer into a buffer that it keeps for the next one.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes when it has written everything.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.connection.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::webhook::testing::{Running, SOON, answer, http1, issue, request};

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
    async fn requests_of_one_connection_are_answered_by_http_1_only() {
        let running = Running::start(Limits::DEFAULT).await;
        let mut client = http1(running.connect("http/1.1").await).await;
        for _ in 0..2 {
            assert_eq!(answer(client.send_request(request("/a", "four"))).await, (StatusCode::OK, "/a 4".into()));
        }
        assert_eq!(answer(client.send_request(request("/", ""))).await, (StatusCode::OK, String::new()));
        let refused = running.issued.connect(running.address, "h2").await.unwrap_err().to_string();
        assert!(refused.contains("received fatal alert"), "{refused}");
    }

    #[tokio::test]
    async fn the_head_of_a_request_has_at_most_eight_kibibytes() {
        let running = Running::start(Limits::DEFAULT).await;
        for (field, status) in [(7_000, "HTTP/1.1 200"), (9_000, "HTTP/1.1 431")] {
            let mut stream = running.connect("http/1.1").await;
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX: {}\r\n\r\n", "x".repeat(field));
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = String::new();
            timeout(SOON, stream.read_to_string(&mut answer)).await.unwrap().ok();
            assert!(answer.starts_with(status), "{answer}");
        }
    }

    #[tokio::test]
    async fn ten_mebibytes_are_accepted_and_one_more_byte_is_not() {
        let running = Running::start(Limits::DEFAULT).await;
        let mut client = http1(running.connect("http/1.1").await).await;
        let (longest, too_long) = (vec![0; 10_485_760], vec![0; 10_485_761]);
        let accepted = (StatusCode::OK, "/ 10485760".to_owned());
        let refused = (StatusCode::PAYLOAD_TOO_LARGE, "limit reached while reading: 10485760".to_owned());
        assert_eq!(answer(client.send_request(request("/", longest))).await, accepted);
        assert_eq!(answer(client.send_request(request("/", too_long))).await, refused);
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_is_answered_before_it_arrives_and_then_ends_its_connection() {
        const BODY: usize = 4 << 20;
        let limits = Limits { body: BODY - 1, body_time: Duration::from_secs(3600), ..Limits::DEFAULT };
        let running = Running::start(limits).await;
        let mut stream = running.connect("http/1.1").await;
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {BODY}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let expected = format!("limit reached while reading: {}", BODY - 1);
        let mut answer = String::new();
        while !answer.ends_with(&expected) {
            let mut part = [0; 1024];
            let length = timeout(SOON, stream.read(&mut part)).await.unwrap().unwrap();
            assert!(length > 0, "{answer}");
            answer.push_str(std::str::from_utf8(&part[..length]).unwrap());
        }
        assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("connection: close"), "{answer}");
        // Many clients read the answer only now.
        timeout(SOON, stream.write_all(&vec![b'x'; BODY])).await.unwrap().unwrap();
        timeout(SOON, stream.flush()).await.unwrap().unwrap();
        assert_eq!(timeout(SOON, stream.read(&mut [0; 1])).await.unwrap().unwrap(), 0);
        assert_eq!(running.script.calls(), 0);
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
    async fn a_client_that_sends_nothing_or_half_a_head_is_disconnected() {
        const SHORT: Duration = Duration::from_millis(50);
        let long = Limits { drain_time: SHORT, ..Limits::DEFAULT };
        for (limits, first, next) in [
            (Limits { idle_time: SHORT, ..long }, "", ""),
            (Limits { header_time: SHORT, ..long }, "", "POST / HTT"),
            (Limits { header_time: SHORT, ..long }, "POST / HTTP/1.1\r\nHost: a\r\n\r\n", "POST"),
        ] {
            let running = Running::start(limits).await;
            let mut stream = running.connect("http/1.1").await;
            if !first.is_empty() {
                stream.write_all(first.as_bytes()).await.unwrap();
                assert!(timeout(SOON, stream.read(&mut [0; 1024])).await.unwrap().unwrap() > 0);
            }
            stream.write_all(next.as_bytes()).await.unwrap();
            timeout(SOON, stream.read_to_end(&mut Vec::new())).await.unwrap().ok();
        }
        let running = Running::start(Limits { handshake_time: SHORT, ..Limits::DEFAULT }).await;
        let mut silent = TcpStream::connect(running.address).await.unwrap();
        timeout(SOON, silent.read_to_end(&mut Vec::new())).await.unwrap().ok();
    }

    /// An API server keeps a connection for 90 s. If our server closes it first, the request that is being sent fails.
    #[tokio::test]
    async fn a_connection_is_kept_for_longer_than_an_api_server_keeps_it() {
        assert!(Limits::DEFAULT.idle_time > Duration::from_secs(90));
        let running = Running::start(Limits { header_time: Duration::from_millis(50), ..Limits::DEFAULT }).await;
        let mut client = http1(running.connect("http/1.1").await).await;
        for _ in 0..3 {
            assert_eq!(answer(client.send_request(request("/a", "x"))).await.1, "/a 1");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    #[tokio::test]
    async fn a_panic_of_the_handler_is_answered() {
        let running = Running::start(Limits::DEFAULT).await;
        let mut client = http1(running.connect("http/1.1").await).await;
        for (path, status) in [("/panic", StatusCode::INTERNAL_SERVER_ERROR), ("/a", StatusCode::OK)] {
            assert_eq!(answer(client.send_request(request(path, "x"))).await.0, status);
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

    const ATTACKER: [u8; 4] = [127, 0, 0, 2];
    /// A request whose answer has more bytes than the buffers of a connection on this machine.
    const LONG: &[u8] = b"POST /long8 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx";

    async fn called(running: &Running, calls: usize) {
        let called = async {
            while running.script.calls() < calls {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, called).await.unwrap();
    }

    #[tokio::test]
    async fn a_client_that_does_not_take_its_answer_is_disconnected() {
        const SHORT: Duration = Duration::from_millis(300);
        let running = Running::start(Limits { answer_time: SHORT, header_time: SHORT, ..Limits::DEFAULT }).await;
        let mut stream = running.issued.connect_slowly(running.address, ATTACKER).await.unwrap();
        stream.write_all(LONG).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut read = Vec::new();
        timeout(SOON, stream.read_to_end(&mut read)).await.unwrap().ok();
        assert!(read.starts_with(b"HTTP/1.1 200") && read.len() < 8 << 20, "{} bytes", read.len());
    }

    #[tokio::test]
    async fn a_request_waits_until_the_answer_before_it_is_taken() {
        let running = Running::start(Limits::DEFAULT).await;
        let mut stream = running.issued.connect_slowly(running.address, ATTACKER).await.unwrap();
        stream.write_all(&LONG.repeat(3)).await.unwrap();
        called(&running, 1).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(running.script.calls(), 1);
        stream.read_exact(&mut vec![0; 3 * (8 << 20)]).await.unwrap();
        assert_eq!(running.script.calls(), 3);
    }

    #[tokio::test]
    async fn answers_that_one_client_does_not_take_have_its_share_of_the_memory_and_others_are_answered() {
        let hour = Duration::from_secs(3600);
        // Three answers fit into the share of a client.
        let running = Running::start(Limits { bodies: 40 << 20, answer_time: hour, ..Limits::DEFAULT }).await;
        let mut attackers = Vec::new();
        for number in 1..=6 {
            let mut stream = running.issued.connect_slowly(running.address, ATTACKER).await.unwrap();
            stream.write_all(LONG).await.unwrap();
            attackers.push(stream);
            called(&running, number.min(3)).await;
        }
        let begun = std::time::Instant::now();
        let mut client = http1(running.connect("http/1.1").await).await;
        assert_eq!(answer(client.send_request(request("/a", "x"))).await.1, "/a 1");
        // After 5 s, connections of the attacker would be closed for this one.
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!(running.script.calls(), 4);
    }

    /// hyper does not need the body of its answer.
    #[tokio::test]
    async fn a_head_request_is_answered_and_its_connection_goes_on() {
        let running = Running::start(Limits { idle_time: Duration::from_millis(500), ..Limits::DEFAULT }).await;
        let mut stream = running.connect("http/1.1").await;
        let head = "HEAD /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx";
        stream.write_all(head.repeat(2).as_bytes()).await.unwrap();
        let mut answers = String::new();
        // It is idle after that.
        timeout(SOON, stream.read_to_string(&mut answers)).await.unwrap().ok();
        assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
    }
}
