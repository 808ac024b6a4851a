//! The gRPC server: its connections, and its shutdown.
//!
//! In: HTTP/2 connections, without TLS if a Linkerd proxy in the Pod terminates it. Out: answers of [`CertifyService`].
//! Always holds: connections, calls and the memory of their requests are bounded; a panic ends one call; calls under way
//! have [`DRAIN_TIME`] when the process stops. hyper serves the connections: each call is one small message in both
//! directions, so no stream can be behind.

mod activity;
mod message;
pub(super) mod tls;

use std::{collections::VecDeque, convert::Infallible, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::{
    body::{Body, Bytes, Incoming},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{AbortHandle, JoinSet},
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tracing::{debug, error};

use self::{
    activity::{ConnectionActivity, IdleEnd},
    message::{OVERLOADED, ResponseFrames, decode, read, response},
};
use super::{
    metrics::{IdentityMetrics, METHOD, SERVICE},
    service::CertifyService,
};
use crate::{
    contain::{Work, contain_future},
    listen,
    proto::identity::CertifyResponse,
};

/// The time for calls under way when the server stops.
pub(super) const DRAIN_TIME: Duration = Duration::from_secs(20);
/// The maximum number of calls of one connection. Behind the server's own proxy, all proxies share a connection.
const CALLS_PER_CONNECTION: u32 = 10_000;
/// The number of connections that have ended and are remembered.
const MAX_ENDED: usize = 64;
/// The maximum memory of the calls that are being received and answered, in bytes: about 10,000 calls of proxies.
const MEMORY_OF_CALLS: usize = 64 << 20;
/// The memory of a call without its message: its stream and its task.
const MEMORY_OF_CALL: u32 = 4 << 10;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The deadline of a call from the arrival of its headers: of its message, and of the review of its token with its retries
/// and its time in the queue. Proxies have no deadline of their own.
const CALL_TIMEOUT: Duration = Duration::from_secs(8);
/// The maximum size of the headers of a request.
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// The interval of PINGs, and the deadline of their answers.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(20));
/// The maximum number of streams that a client may reset before they are accepted: clients whose calls time out on a
/// busy server reset all of them.
const UNACCEPTED_RESETS: usize = 1_000;

/// Serves calls.
pub(super) struct IdentityServer {
    service: CertifyService,
    metrics: Arc<IdentityMetrics>,
    /// `None` without TLS.
    tls: Option<TlsAcceptor>,
    /// The memory for further calls, in bytes.
    memory: Semaphore,
    connections: usize,
}

/// A connection that was accepted.
struct AcceptedConnection {
    task: AbortHandle,
    activity: Arc<ConnectionActivity>,
}

/// Observes a call from its start to its end, however it ends.
struct CertifyObserver {
    metrics: Arc<IdentityMetrics>,
    started: Instant,
    code: Code,
}

// === impl CertifyObserver ===

impl CertifyObserver {
    fn new(metrics: &Arc<IdentityMetrics>) -> Self {
        metrics.certify.started.inc();
        // A call that its client cancels is dropped before it has another code.
        Self { metrics: Arc::clone(metrics), started: Instant::now(), code: Code::Cancelled }
    }
}

impl Drop for CertifyObserver {
    fn drop(&mut self) {
        let code = if std::thread::panicking() { Code::Internal } else { self.code };
        self.metrics.certify.sent.inc_by((code == Code::Ok).into());
        self.metrics.certify.handled(code, self.started);
    }
}

// === impl IdentityServer ===

impl IdentityServer {
    pub(super) fn new(service: CertifyService, tls: Option<TlsAcceptor>, connections: usize) -> Arc<Self> {
        let metrics = Arc::clone(&service.metrics);
        Arc::new(Self { service, metrics, tls, memory: Semaphore::new(MEMORY_OF_CALLS), connections })
    }

    /// Serves until `stop` is cancelled, and then until the calls under way are answered.
    pub(super) async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        tokio::select! {
            () = self.accept(&listener, &mut tasks, &stop) => {}
            () = stop.cancelled() => {}
        }
        drop(listener);
        let all = async { while tasks.join_next().await.is_some() {} };
        if timeout(DRAIN_TIME, all).await.is_err() {
            debug!("some calls were not answered in time and are cancelled");
        }
    }

    /// Accepts connections, forever. At the limit, the oldest connection without a call ends, or the new one.
    async fn accept(self: &Arc<Self>, listener: &TcpListener, tasks: &mut JoinSet<()>, stop: &CancellationToken) {
        let mut open: VecDeque<AcceptedConnection> = VecDeque::new();
        loop {
            let (stream, client) = listen::accept(listener, "certificates").await;
            while tasks.try_join_next().is_some() {}
            // A handle keeps the memory of its task, and each search is for about as many that have ended.
            if open.len() > 2 * tasks.len() + MAX_ENDED {
                open.retain(|connection| !connection.task.is_finished());
            }
            if tasks.len() >= self.connections {
                let is_idle = |it: &AcceptedConnection| !it.task.is_finished() && !it.activity.has_open_call();
                let oldest = open.iter().position(is_idle);
                let Some(connection) = oldest.and_then(|at| open.remove(at)) else {
                    debug!(%client, "closing a new connection, because all others have calls");
                    continue;
                };
                connection.task.abort();
            }
            let activity = ConnectionActivity::new();
            let task = tasks.spawn(Arc::clone(self).connection(stream, client, Arc::clone(&activity), stop.clone()));
            open.push_back(AcceptedConnection { task, activity });
        }
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        client: SocketAddr,
        activity: Arc<ConnectionActivity>,
        stop: CancellationToken,
    ) {
        // An answer is one small write, which must not wait for the next one.
        _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return Arc::clone(&self).http(stream, client, &activity, &stop).await };
        let handshake = tokio::select! {
            handshake = timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)) => handshake,
            () = stop.cancelled() => return,
        };
        match handshake {
            Ok(Ok(stream)) => Arc::clone(&self).http(stream, client, &activity, &stop).await,
            Ok(Err(error)) => debug!(%client, %error, "a TLS handshake failed"),
            Err(_) => debug!(%client, "a TLS handshake was not completed in time"),
        }
    }

    async fn http(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        client: SocketAddr,
        activity: &Arc<ConnectionActivity>,
        stop: &CancellationToken,
    ) {
        let service = service_fn(|request| {
            let (server, activity) = (Arc::clone(&self), Arc::clone(activity));
            // On a busy server, a task for the call begins later.
            let deadline = Instant::now() + CALL_TIMEOUT;
            async move { Ok::<_, Infallible>(server.answer(request, client, deadline, &activity).await) }
        });
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEPALIVE.0)
            .keep_alive_timeout(KEEPALIVE.1)
            .max_concurrent_streams(CALLS_PER_CONNECTION)
            .max_header_list_size(MAX_HEADER_BYTES)
            .max_pending_accept_reset_streams(UNACCEPTED_RESETS)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        tokio::select! {
            ended = &mut connection => {
                if let Err(error) = ended {
                    debug!(%client, %error, "a connection failed");
                }
                return;
            }
            end = activity.ended() => {
                if end == IdleEnd::AtOnce {
                    return debug!(%client, "closing a connection without progress");
                }
            }
            () = stop.cancelled() => {}
        }
        connection.as_mut().graceful_shutdown();
        _ = timeout(DRAIN_TIME, connection).await;
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        client: SocketAddr,
        deadline: Instant,
        activity: &Arc<ConnectionActivity>,
    ) -> Response<impl Body<Data = Bytes, Error = Infallible> + use<>> {
        let call = activity.call();
        let response = match contain_future(Work::Answering, self.frames(request, client, deadline)).await {
            Ok(response) => response,
            Err(panicked) => {
                error!(%panicked, "a call of Certify ends");
                response::<CertifyResponse>(Err(Status::internal("internal error")))
            }
        };
        // The call is open until hyper has taken all frames.
        let frames = |frames: ResponseFrames| {
            StreamBody::new(stream::iter(frames).map(move |frame: Result<Frame<Bytes>, Infallible>| {
                let _call = &call;
                frame
            }))
        };
        response.map(frames)
    }

    async fn frames(
        &self,
        request: Request<Incoming>,
        client: SocketAddr,
        deadline: Instant,
    ) -> Response<ResponseFrames> {
        if request.method() != Method::POST {
            let mut refusal = Response::new(Vec::new());
            *refusal.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            return refusal;
        }
        let is_certify = request.uri().path().strip_prefix('/').and_then(|path| path.split_once('/'));
        if is_certify != Some((SERVICE, METHOD)) {
            return response::<CertifyResponse>(Err(Status::unimplemented("unknown service or method")));
        }
        let mut observer = CertifyObserver::new(&self.metrics);
        let answer = self.certify(request.into_body(), client, deadline).await;
        observer.code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        response(answer)
    }

    async fn certify(&self, body: Incoming, client: SocketAddr, deadline: Instant) -> Result<CertifyResponse, Status> {
        let Ok(_call) = self.memory.try_acquire_many(MEMORY_OF_CALL) else {
            return Err(Status::unavailable(OVERLOADED));
        };
        let (message, _memory) = match timeout_at(deadline, read(body, &self.memory)).await {
            Ok(message) => message?,
            Err(_) => return Err(Status::deadline_exceeded("the request was not received in time")),
        };
        self.metrics.certify.received.inc();
        let request = decode(message)?;
        let certified = self.service.certify(request, &client.to_string(), deadline).await;
        certified.map_err(|refusal| Status::new(refusal.code(), refusal.to_string()))
    }
}

#[cfg(test)]
mod tests;
