//! The calls of the Destination API and of the health service.
//!
//! In: a request of a connection, and the connection's share of the permits. Out: its response: a stream, or a refusal.
//! Always holds: a request that is not complete has a deadline and a permit, and holds little; a stream without a
//! permit or without memory is refused with UNAVAILABLE, so that its client retries with another replica.

use std::{pin::pin, sync::Arc, task::Poll, time::Duration};

use h2::RecvStream;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::StreamBody;
use prost::Message;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::{Status, server::NamedService};
use tonic_health::{
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};
use tower::Service;

use super::{
    authority::{ProfileAuthority, ServiceAuthority},
    context_token::ContextToken,
    get::{
        request::{GetRefusal, GetRequest},
        updates::EndpointUpdates,
    },
    http2::{connection::IncomingRequest, stall::StreamProgress},
    labels::{OverloadReason, RpcMethod},
    metrics::{RpcObserver, SERVICE},
    observer,
    profile::{request::ProfileRequest, updates::ProfileUpdates},
    request_body::{self, LONGEST_REQUEST},
    response::{CallBody, quote, refuse, without_body},
    stream::ResponseStream,
    views::Views,
};
use crate::{
    memory::BYTES_OF_A_STREAM,
    proto::destination::GetDestination,
    resources::shares::{Exhausted, Pool, Share, Taken},
};

/// The messages of refusals. A client that balances over several replicas should retry with another replica.
const BUSY: &str = "this destination server is overloaded: retry, preferably with another replica";
const FULL: &str = "this destination server has its maximum number of streams: retry with another replica";
const GREEDY: &str =
    "this connection has its share of the streams of this destination server: retry with another replica";
const NO_MEMORY: &str = "this destination server has no memory for another stream: retry with another replica";

/// The maximum number of streams of the health service. The clients decide how long these streams stay open.
const HEALTH_STREAMS: usize = 1_000;
/// The maximum number of refused requests whose rest is awaited.
const REFUSED_REQUESTS: usize = 1_000;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const LATE_REQUEST: &str = "the request was not received in time";

/// Answers calls.
pub(super) struct Calls {
    views: Arc<Views>,
    health: HealthServer<HealthService>,
    streams: Arc<Pool>,
    refused: Arc<Pool>,
    health_streams: Arc<Pool>,
}

/// One connection's shares of the permits.
pub(super) struct ConnectionShares {
    streams: Arc<Share>,
    refused: Arc<Share>,
    health_streams: Arc<Share>,
}

/// The target of a request, according to its headers.
enum Target {
    Rpc(RpcMethod),
    Health(Box<Request<()>>),
    Nothing(Box<Response<CallBody>>),
}

/// The updates of a new stream.
pub(super) enum Subscribed {
    Get(EndpointUpdates),
    GetProfile(ProfileUpdates),
}

// === impl Calls ===

impl Calls {
    pub(super) fn new(views: Arc<Views>, reporter: HealthReporter) -> Self {
        let health =
            HealthServer::new(HealthService::from_health_reporter(reporter)).max_decoding_message_size(LONGEST_REQUEST);
        Self {
            health,
            streams: Pool::new(views.settings.limits.streams),
            refused: Pool::new(REFUSED_REQUESTS),
            health_streams: Pool::new(HEALTH_STREAMS),
            views,
        }
    }

    /// Returns the shares of a new connection.
    pub(super) fn shares(&self) -> ConnectionShares {
        ConnectionShares {
            streams: self.streams.share(),
            refused: self.refused.share(),
            health_streams: self.health_streams.share(),
        }
    }

    pub(super) async fn answer(&self, incoming: IncomingRequest, shares: &ConnectionShares) -> Response<CallBody> {
        let IncomingRequest { request, queued_since, progress } = incoming;
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        // The headers are dropped here: a request whose message is awaited must not hold them.
        let (target, mut body) = target(request);
        let refusal = match target {
            Target::Health(head) => return self.health((*head).map(|()| body), shares).await,
            Target::Nothing(refusal) => *refusal,
            Target::Rpc(method) => {
                let mut observer = self.views.metrics.observe(method);
                match self.open(method, &observer, &mut body, shares, queued_since, deadline).await {
                    Ok((updates, permit)) => return stream(updates, progress, observer, permit),
                    Err(status) => {
                        observer.set_code(status.code());
                        refuse(&status)
                    }
                }
            }
        };
        discard(body, shares, deadline).await;
        refusal
    }

    async fn health(&self, request: Request<RecvStream>, shares: &ConnectionShares) -> Response<CallBody> {
        let Ok(permit) = shares.health_streams.try_take(1) else {
            discard(request.into_body(), shares, Instant::now() + REQUEST_TIMEOUT).await;
            return refuse(&Status::unavailable(FULL));
        };
        let request = request.map(|mut body| {
            StreamBody::new(futures::stream::poll_fn(move |cx| {
                let data = body.poll_data(cx);
                if let Poll::Ready(Some(Ok(data))) = &data {
                    _ = body.flow_control().release_capacity(data.len());
                }
                data.map_ok(Frame::data)
            }))
        });
        let mut health = self.health.clone();
        match timeout(REQUEST_TIMEOUT, health.call(request)).await {
            Ok(Ok(response)) => response.map(|body| CallBody::Health { body, _permit: permit }),
            Ok(Err(never)) => match never {},
            Err(_) => refuse(&Status::deadline_exceeded(LATE_REQUEST)),
        }
    }

    async fn open(
        &self,
        method: RpcMethod,
        observer: &RpcObserver,
        body: &mut RecvStream,
        shares: &ConnectionShares,
        queued_since: Instant,
        deadline: Instant,
    ) -> Result<(Subscribed, Taken), Status> {
        let limits = &self.views.settings.limits;
        if queued_since.elapsed() > limits.stream_wait {
            return Err(self.overloaded(OverloadReason::Waited));
        }
        if !limits.memory.has_room_for(BYTES_OF_A_STREAM) {
            return Err(self.overloaded(OverloadReason::Memory));
        }
        // A request that is not complete has the permit of its stream already: a client may send the headers of
        // thousands of requests before their messages.
        let permit = shares.streams.try_take(1).map_err(|exhausted| {
            self.overloaded(match exhausted {
                Exhausted::Full => OverloadReason::Full,
                Exhausted::Share => OverloadReason::Share,
            })
        })?;
        let message = timeout_at(deadline, request_body::read(body));
        let message = message.await.map_err(|_| Status::deadline_exceeded(LATE_REQUEST))??;
        let message = GetDestination::decode(message)
            .map_err(|error| Status::internal(format!("cannot decode the request: {error}")))?;
        observer.received();
        if !self.views.clusters.local.knows(observer::KINDS) {
            return Err(Status::unavailable("the caches have not synced yet: retry, preferably with another replica"));
        }
        Ok((self.subscribe(method, &message)?, permit))
    }

    /// Counts a refusal, and returns its status.
    fn overloaded(&self, reason: OverloadReason) -> Status {
        self.views.metrics.stream_refused(reason);
        Status::unavailable(match reason {
            OverloadReason::Waited => BUSY,
            OverloadReason::Full => FULL,
            OverloadReason::Share => GREEDY,
            OverloadReason::Memory => NO_MEMORY,
        })
    }

    /// Subscribes to the view of the requested target.
    pub(super) fn subscribe(&self, method: RpcMethod, message: &GetDestination) -> Result<Subscribed, Status> {
        let GetDestination { path, context_token, .. } = message;
        let cluster_domain = &self.views.settings.cluster_domain;
        let token = ContextToken::parse(context_token);
        match method {
            RpcMethod::Get => {
                let authority = ServiceAuthority::parse(path, cluster_domain).map_err(invalid)?;
                let request = GetRequest { with_clusters: token.clusters, ..GetRequest::new(authority, &token.node) };
                let subscription = self.views.endpoints.subscribe(&request);
                let subscription = subscription.map_err(|refusal| {
                    if refusal == GetRefusal::NoMemory {
                        self.views.metrics.stream_refused(OverloadReason::Memory);
                    }
                    request.refused(&refusal, &quote(path))
                })?;
                Ok(Subscribed::Get(EndpointUpdates::new(request, subscription)))
            }
            RpcMethod::GetProfile => {
                let authority = ProfileAuthority::parse(path, cluster_domain).map_err(invalid)?;
                let request = ProfileRequest::new(authority, &token.namespace);
                let subscription = self.views.profiles.subscribe(&request);
                let subscription = subscription.map_err(|refusal| refusal.status(&quote(path)))?;
                Ok(Subscribed::GetProfile(ProfileUpdates::new(subscription)))
            }
        }
    }
}

/// Reads the rest of a refused request, unless too many others are awaited.
///
/// h2 resets a stream that is answered before its request has ended, and counts frames that arrive after the reset as
/// errors. After 1,024 such frames it closes the connection with all streams.
async fn discard(body: RecvStream, shares: &ConnectionShares, deadline: Instant) {
    let mut rest = pin!(request_body::discard(body));
    // A permit is needed only for a rest that has not arrived yet.
    if futures::poll!(rest.as_mut()).is_pending()
        && let Ok(_permit) = shares.refused.try_take(1)
    {
        _ = timeout_at(deadline, rest).await;
    }
}

/// Returns what a request asks for, and its body.
fn target(request: Request<RecvStream>) -> (Target, RecvStream) {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    if path.strip_prefix('/').is_some_and(|path| path.starts_with(HealthServer::<HealthService>::NAME)) {
        return (Target::Health(Box::new(Request::from_parts(head, ()))), body);
    }
    let refusal = if head.method != Method::POST {
        without_body(StatusCode::METHOD_NOT_ALLOWED)
    } else if !head.headers.get(header::CONTENT_TYPE).is_some_and(|value| is_grpc(value.as_bytes())) {
        without_body(StatusCode::UNSUPPORTED_MEDIA_TYPE)
    } else if let Some(method) = RpcMethod::of_path(path) {
        return (Target::Rpc(method), body);
    } else {
        refuse(&Status::unimplemented(format!("unknown method {}", quote(path))))
    };
    (Target::Nothing(Box::new(refusal)), body)
}

/// Returns the response that sends the updates.
fn stream(
    updates: Subscribed,
    progress: Arc<StreamProgress>,
    observer: RpcObserver,
    permit: Taken,
) -> Response<CallBody> {
    let mut response = Response::new(match updates {
        Subscribed::Get(updates) => CallBody::Get(Box::new(ResponseStream::new(updates, progress, observer, permit))),
        Subscribed::GetProfile(updates) => {
            CallBody::GetProfile(Box::new(ResponseStream::new(updates, progress, observer, permit)))
        }
    });
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn invalid(error: impl std::error::Error) -> Status {
    Status::invalid_argument(quote(&error.to_string()))
}

/// Returns whether a content type is gRPC, with any message encoding. gRPC-Web is not, because its bodies have another
/// framing.
fn is_grpc(content_type: &[u8]) -> bool {
    let encoding = content_type.strip_prefix(b"application/grpc");
    encoding.is_some_and(|encoding| matches!(encoding.first(), None | Some(b'+' | b';')))
}

// === impl RpcMethod ===

impl RpcMethod {
    /// Parses the path of a request.
    fn of_path(path: &str) -> Option<Self> {
        path.strip_prefix('/')?.strip_prefix(SERVICE)?.strip_prefix('/')?.parse().ok()
    }
}
