//! The gRPC server: its connections, and its shutdown.
//!
//! In: HTTP/2 connections, without TLS if a Linkerd proxy in the Pod terminates it. Out: answers of [`CertifyService`].
//! Always holds: connections are bounded, and so is the memory of calls, from their headers until their answers are
//! written to the socket; a panic ends one call; calls under way have [`DRAIN_TIME`] when the process stops. hyper serves
//! the connections: each call is one small message in both directions, so no stream can be behind.

mod activity;
mod message;
pub(super) mod tls;
mod transport;

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::{Future, poll_fn, ready},
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use futures::future::Either;
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use hyper::{
    body::{Body, Bytes, Incoming},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tracing::{debug, error};

use self::{
    activity::{ConnectionActivity, IdleEnd, OpenCall},
    message::{OVERLOADED, ResponseFrames, client_timeout, decode, is_grpc, read, response},
    transport::{PacedTransport, TurnLimits},
};
use super::{
    metrics::{IdentityMetrics, METHOD, SERVICE},
    service::CertifyService,
};
use crate::{
    contain::{Work, contain_future},
    listen,
    proto::identity::CertifyResponse,
    resources::shares::{Pool, Taken},
};

/// The time for calls under way when the server stops.
pub(super) const DRAIN_TIME: Duration = Duration::from_secs(20);
/// The maximum number of calls of one connection: fewer than have room in its half of the memory. Behind the server's own
/// proxy, all proxies share a connection, and their further calls wait in that proxy.
const CALLS_PER_CONNECTION: u32 = 5_000;
/// The number of connections that have ended and are remembered.
const MAX_ENDED: usize = 64;
/// The maximum memory of calls, in bytes.
const MEMORY_OF_CALLS: usize = 96 << 20;
/// A connection whose calls have less gets more until the last byte is taken.
const MEMORY_OF_FIRST_CALLS: usize = 32 << 10;
/// The maximum memory of refusals that clients have not taken, in bytes.
const MEMORY_OF_REFUSALS: usize = 8 << 20;
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
    memory: Arc<Pool>,
    refusals: Arc<Pool>,
    connections: usize,
}

/// A connection that was accepted.
struct AcceptedConnection {
    task: AbortHandle,
    activity: Weak<ConnectionActivity>,
}

/// What the headers of a request ask for.
enum RequestedCall {
    Certify { deadline: Instant },
    Unknown,
    NotGrpc(StatusCode),
}

// === impl RequestedCall ===

impl RequestedCall {
    fn new<B>(request: &Request<B>, arrived: Instant) -> Self {
        if request.method() != Method::POST {
            return Self::NotGrpc(StatusCode::METHOD_NOT_ALLOWED);
        }
        if !is_grpc(request.headers()) {
            return Self::NotGrpc(StatusCode::UNSUPPORTED_MEDIA_TYPE);
        }
        let path = request.uri().path().strip_prefix('/').and_then(|path| path.split_once('/'));
        if path != Some((SERVICE, METHOD)) {
            return Self::Unknown;
        }
        let timeout = client_timeout(request.headers()).map_or(CALL_TIMEOUT, |own| own.min(CALL_TIMEOUT));
        Self::Certify { deadline: arrived + timeout }
    }
}

/// The frames of an answer. hyper drops it when h2 has all of them.
struct CertifyBody {
    frames: <ResponseFrames as IntoIterator>::IntoIter,
    _call: OpenCall,
}

// === impl CertifyBody ===

impl Body for CertifyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.frames.next())
    }
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
        let memory = Pool::with_reserve(MEMORY_OF_CALLS, MEMORY_OF_FIRST_CALLS);
        let refusals = Pool::new(MEMORY_OF_REFUSALS);
        Arc::new(Self { service, metrics, tls, memory, refusals, connections })
    }

    /// Returns the activity of a new connection.
    fn activity(&self) -> Arc<ConnectionActivity> {
        ConnectionActivity::new(self.memory.share(), self.refusals.share())
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
                let is_idle = |it: &AcceptedConnection| {
                    !it.task.is_finished() && it.activity.upgrade().is_some_and(|activity| !activity.has_open_call())
                };
                let oldest = open.iter().position(is_idle);
                let Some(connection) = oldest.and_then(|at| open.remove(at)) else {
                    debug!(%client, "closing a new connection, because all others have calls");
                    continue;
                };
                connection.task.abort();
            }
            let activity = self.activity();
            let weak = Arc::downgrade(&activity);
            let task = tasks.spawn(Arc::clone(self).connection(stream, client, activity, stop.clone()));
            open.push_back(AcceptedConnection { task, activity: weak });
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
        let service = service_fn(|request: Request<Incoming>| {
            // On a busy server, a task for the call begins later.
            let requested = RequestedCall::new(&request, Instant::now());
            let answer = match activity.call() {
                // In a box, so that the task of a refusal is small. The headers are dropped.
                Ok(call) => {
                    let server = Arc::clone(&self);
                    Either::Left(Box::pin(server.answer(requested, request.into_body(), client, call)))
                }
                Err(call) => Either::Right(ready(self.refusal(&requested, call))),
            };
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let limits = Arc::<TurnLimits>::default();
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEPALIVE.0)
            .keep_alive_timeout(KEEPALIVE.1)
            .max_concurrent_streams(CALLS_PER_CONNECTION)
            .max_header_list_size(MAX_HEADER_BYTES)
            .max_pending_accept_reset_streams(UNACCEPTED_RESETS)
            .serve_connection(TokioIo::new(PacedTransport::new(stream, &limits)), service);
        let mut connection = pin!(connection);
        tokio::select! {
            ended = poll_fn(|cx| poll_turn(connection.as_mut(), activity, &limits, cx)) => {
                return match ended {
                    Some(Ok(())) => {}
                    Some(Err(error)) => debug!(%client, %error, "a connection failed"),
                    None => debug!(%client, "closing a connection whose client opens calls and takes no answers"),
                };
            }
            end = activity.ended() => {
                if end == IdleEnd::AtOnce {
                    return debug!(%client, "closing a connection without progress");
                }
            }
            () = stop.cancelled() => {}
        }
        connection.as_mut().graceful_shutdown();
        let turn = poll_fn(|cx| poll_turn(connection.as_mut(), activity, &limits, cx));
        tokio::select! {
            _ = timeout(DRAIN_TIME, turn) => {}
            () = activity.unused() => {}
        }
    }

    async fn answer(
        self: Arc<Self>,
        requested: RequestedCall,
        body: Incoming,
        client: SocketAddr,
        mut call: OpenCall,
    ) -> Response<CertifyBody> {
        let memory = &mut call.memory;
        let response = match contain_future(Work::Answering, self.frames(requested, body, client, memory)).await {
            Ok(response) => response,
            Err(panicked) => {
                error!(%panicked, "a call of Certify ends");
                response::<CertifyResponse>(Err(Status::internal("internal error")))
            }
        };
        response.map(|frames| CertifyBody { frames: frames.into_iter(), _call: call })
    }

    /// Refuses a call without a task that costs memory.
    fn refusal(&self, requested: &RequestedCall, call: OpenCall) -> Response<CertifyBody> {
        if matches!(requested, RequestedCall::Certify { .. }) {
            CertifyObserver::new(&self.metrics).code = Code::Unavailable;
        }
        let response = response::<CertifyResponse>(Err(Status::unavailable(OVERLOADED)));
        response.map(|frames| CertifyBody { frames: frames.into_iter(), _call: call })
    }

    async fn frames(
        &self,
        requested: RequestedCall,
        body: Incoming,
        client: SocketAddr,
        memory: &mut Taken,
    ) -> Response<ResponseFrames> {
        let deadline = match requested {
            RequestedCall::Certify { deadline } => deadline,
            RequestedCall::Unknown => {
                return response::<CertifyResponse>(Err(Status::unimplemented("unknown service or method")));
            }
            RequestedCall::NotGrpc(status) => {
                let mut refusal = Response::new(Vec::new());
                *refusal.status_mut() = status;
                return refusal;
            }
        };
        let mut observer = CertifyObserver::new(&self.metrics);
        let answer = self.certify(body, client, deadline, memory).await;
        observer.code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        response(answer)
    }

    async fn certify(
        &self,
        body: Incoming,
        client: SocketAddr,
        deadline: Instant,
        memory: &mut Taken,
    ) -> Result<CertifyResponse, Status> {
        let message = match timeout_at(deadline, read(body, memory)).await {
            Ok(message) => message?,
            Err(_) => return Err(Status::deadline_exceeded("the request was not received in time")),
        };
        self.metrics.certify.received.inc();
        let request = decode(message)?;
        let certified = self.service.certify(request, &client.to_string(), deadline).await;
        certified.map_err(|refusal| Status::new(refusal.code(), refusal.to_string()))
    }
}

/// Polls a connection once. Ready with `None` if its client floods the server.
fn poll_turn<C: Future>(
    connection: Pin<&mut C>,
    activity: &ConnectionActivity,
    limits: &TurnLimits,
    cx: &mut Context<'_>,
) -> Poll<Option<C::Output>> {
    limits.begin_turn(activity.is_short());
    activity.begin_turn(cx);
    let turn = connection.poll(cx);
    activity.end_turn(!limits.is_full());
    match activity.is_flooded() {
        true => Poll::Ready(None),
        false => turn.map(Some),
    }
}

#[cfg(test)]
mod tests;
