//! The gRPC server: its connections and calls, and its shutdown.
//!
//! In: plain HTTP/2 connections (a Linkerd proxy in the Pod, if it has one, terminates TLS). Out: `Get` and
//! `GetProfile` streams, and the health service. tonic's server is not used, because it encodes every message for each
//! stream and cannot reset a single stream.
//!
//! Always holds: connections, requests and clients that do not read have deadlines; when the process stops, streams end
//! with OK and the server waits for all its tasks, up to a timeout.

use std::{sync::Arc, task::Poll, time::Duration};

use h2::RecvStream;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::StreamBody;
use prost::Message;
use strum::{EnumString, IntoStaticStr, VariantArray};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::unconstrained,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Status, server::NamedService};
use tonic_health::{
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};
use tower::Service;
use tracing::{debug, warn};

use super::{
    authority::{ProfileAuthority, ServiceAuthority},
    context_token::ContextToken,
    get::{request::GetRequest, updates::EndpointUpdates},
    http2::{
        connection::{self, IncomingRequest},
        transport::Transport,
        wake_time::WakeTime,
    },
    metrics::RpcObserver,
    observer,
    profile::{request::ProfileRequest, updates::ProfileUpdates},
    request_body::{self, LONGEST_REQUEST},
    response::{CallBody, quote, refuse, without_body},
    stream::ResponseStream,
    views::Views,
};
use crate::proto::destination::GetDestination;

/// The name of the service in paths, metrics and health checks.
pub(super) const SERVICE: &str = "io.linkerd.proxy.destination.Destination";
/// The names of the services that the health service reports.
pub(super) const HEALTH_SERVICES: [&str; 2] = ["", SERVICE];

/// The messages of refusals. A client that balances over several replicas should retry with another replica.
const BUSY: &str = "this destination server is overloaded: retry, preferably with another replica";
const FULL: &str = "this destination server has its maximum number of streams: retry with another replica";

/// The maximum number of streams of the health service. The clients decide how long these streams stay open.
const HEALTH_STREAMS: usize = 1_000;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const LATE_REQUEST: &str = "the request was not received in time";
/// The time for clients to receive the ends of their streams.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct DestinationServer {
    views: Arc<Views>,
    health: HealthServer<HealthService>,
    reporter: HealthReporter,
    /// One permit for each stream that may be open.
    permits: Arc<Semaphore>,
    health_permits: Arc<Semaphore>,
}

/// A method of the Destination API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(const_into_str)]
pub(super) enum RpcMethod {
    Get,
    GetProfile,
}

/// The reason why a valid stream was refused, as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum OverloadReason {
    /// The request had waited too long in the queue.
    Waited,
    /// The maximum number of streams was open.
    Full,
}

// === impl DestinationServer ===

impl DestinationServer {
    pub(super) fn new(views: Arc<Views>, reporter: HealthReporter) -> Self {
        let health = HealthServer::new(HealthService::from_health_reporter(reporter.clone()))
            .max_decoding_message_size(LONGEST_REQUEST);
        let permits = Arc::new(Semaphore::new(views.settings.limits.streams.min(Semaphore::MAX_PERMITS)));
        Self { views, health, reporter, permits, health_permits: Arc::new(Semaphore::new(HEALTH_STREAMS)) }
    }

    /// Serves until `stop` is cancelled, and then until the streams have ended or the drain timeout has passed.
    pub(super) async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        let permits = Arc::new(Semaphore::new(self.views.settings.limits.connections.min(Semaphore::MAX_PERMITS)));
        let accept = async {
            loop {
                let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let wake_time = WakeTime::new();
                        let connection =
                            Arc::clone(&self).connection(stream, stop.clone(), Arc::clone(&wake_time), permit);
                        // The connection limits its own turns. Polling idle streams would use up tokio's budget.
                        tasks.spawn(unconstrained(wake_time.track(connection)));
                    }
                    Err(error) => {
                        // Most likely no file descriptors are left. Without the pause this loop would use a whole core.
                        warn!(%error, "could not accept a discovery connection, retrying");
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accept => {}
            () = stop.cancelled() => {}
        }
        // New connections and streams are refused from now on, so that their clients use another replica.
        drop(listener);
        for service in HEALTH_SERVICES {
            self.reporter.set_service_status(service, tonic_health::ServingStatus::NotServing).await;
        }
        self.views.close();
        tasks.close();
        if timeout(DRAIN_TIMEOUT, tasks.wait()).await.is_err() {
            debug!("some clients did not receive the ends of their streams before the drain timeout");
        }
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        stop: CancellationToken,
        wake_time: Arc<WakeTime>,
        _permit: OwnedSemaphorePermit,
    ) {
        let transport = match Transport::accept(stream).await {
            Ok(transport) => transport,
            Err(error) => {
                debug!(%error, "rejected a discovery connection");
                return;
            }
        };
        let metrics = &self.views.metrics;
        let _open = metrics.connection();
        let answer = |request| {
            let server = Arc::clone(&self);
            async move { server.call(request).await }
        };
        let end = connection::serve(transport, &wake_time, &self.views.settings.limits, &stop, answer).await;
        metrics.connection_ended(end);
    }

    async fn call(&self, incoming: IncomingRequest) -> Response<CallBody> {
        let IncomingRequest { request, queued_since, progress } = incoming;
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let (head, mut body) = request.into_parts();
        let path = head.uri.path();
        if path.strip_prefix('/').is_some_and(|path| path.starts_with(HealthServer::<HealthService>::NAME)) {
            return self.health(Request::from_parts(head, body)).await;
        }
        let refusal = if head.method != Method::POST {
            without_body(StatusCode::METHOD_NOT_ALLOWED)
        } else if !head.headers.get(header::CONTENT_TYPE).is_some_and(|value| is_grpc(value.as_bytes())) {
            without_body(StatusCode::UNSUPPORTED_MEDIA_TYPE)
        } else if let Some(method) = RpcMethod::of_path(path) {
            let mut observer = self.views.metrics.observe(method);
            match self.open(method, &observer, &mut body, queued_since, deadline).await {
                Ok((updates, permit)) => {
                    let answer = match updates {
                        Subscribed::Get(updates) => {
                            CallBody::Get(Box::new(ResponseStream::new(updates, progress, observer, permit)))
                        }
                        Subscribed::GetProfile(updates) => {
                            CallBody::GetProfile(Box::new(ResponseStream::new(updates, progress, observer, permit)))
                        }
                    };
                    let mut response = Response::new(answer);
                    let content_type = HeaderValue::from_static("application/grpc");
                    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
                    return response;
                }
                Err(status) => {
                    observer.set_code(status.code());
                    refuse(&status)
                }
            }
        } else {
            refuse(&Status::unimplemented(format!("unknown method {}", quote(path))))
        };
        // The rest of the request must be read: h2 resets a stream that is answered before its request has ended, and
        // counts frames that arrive after the reset as errors. After 1,024 such frames it would close the connection
        // with all streams.
        _ = timeout_at(deadline, request_body::discard(body)).await;
        refusal
    }

    async fn health(&self, request: Request<RecvStream>) -> Response<CallBody> {
        let Ok(permit) = Arc::clone(&self.health_permits).try_acquire_owned() else {
            _ = timeout(REQUEST_TIMEOUT, request_body::discard(request.into_body())).await;
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
        queued_since: Instant,
        deadline: Instant,
    ) -> Result<(Subscribed, OwnedSemaphorePermit), Status> {
        let (message, permit) = self.request(observer, body, queued_since, deadline).await?;
        Ok((self.subscribe(method, &message)?, permit))
    }

    /// Reads the request, unless the server is overloaded.
    async fn request(
        &self,
        observer: &RpcObserver,
        body: &mut RecvStream,
        queued_since: Instant,
        deadline: Instant,
    ) -> Result<(GetDestination, OwnedSemaphorePermit), Status> {
        let metrics = &self.views.metrics;
        if queued_since.elapsed() > self.views.settings.limits.stream_wait {
            metrics.stream_refused(OverloadReason::Waited);
            return Err(Status::unavailable(BUSY));
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| {
            metrics.stream_refused(OverloadReason::Full);
            Status::unavailable(FULL)
        })?;
        let message = timeout_at(deadline, request_body::read(body));
        let message = message.await.map_err(|_| Status::deadline_exceeded(LATE_REQUEST))??;
        let message = GetDestination::decode(message)
            .map_err(|error| Status::internal(format!("cannot decode the request: {error}")))?;
        observer.received();
        if !self.views.cluster.knows(observer::KINDS) {
            return Err(Status::unavailable("the caches have not synced yet: retry, preferably with another replica"));
        }
        Ok((message, permit))
    }

    /// Subscribes to the view of the requested target.
    fn subscribe(&self, method: RpcMethod, message: &GetDestination) -> Result<Subscribed, Status> {
        let GetDestination { path, context_token, .. } = message;
        let cluster_domain = &self.views.settings.cluster_domain;
        let token = ContextToken::parse(context_token);
        match method {
            RpcMethod::Get => {
                let authority = ServiceAuthority::parse(path, cluster_domain).map_err(invalid)?;
                let request = GetRequest::new(authority, &token.node);
                let subscription = self.views.subscribe(&request);
                let subscription = subscription.map_err(|refusal| request.refused(&refusal, &quote(path)))?;
                Ok(Subscribed::Get(EndpointUpdates::new(request, subscription)))
            }
            RpcMethod::GetProfile => {
                let authority = ProfileAuthority::parse(path, cluster_domain).map_err(invalid)?;
                let request = ProfileRequest::new(authority, &token.namespace);
                let subscription = self.views.subscribe_to_profile(&request);
                let subscription = subscription.map_err(|refusal| refusal.status(&quote(path)))?;
                Ok(Subscribed::GetProfile(ProfileUpdates::new(subscription)))
            }
        }
    }
}

/// The updates of a new stream.
enum Subscribed {
    Get(EndpointUpdates),
    GetProfile(ProfileUpdates),
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use tonic_health::pb::{HealthCheckRequest, health_server::Health};

    use super::*;
    use crate::{
        cluster::testing::Feed,
        destination::{metrics::DiscoveryMetrics, testing::settings},
    };

    #[tokio::test]
    async fn a_server_that_stops_reports_not_serving_for_its_service_too() {
        let metrics = DiscoveryMetrics::register(&prometheus::Registry::new()).unwrap();
        let reporter = HealthReporter::new();
        for service in HEALTH_SERVICES {
            reporter.set_service_status(service, tonic_health::ServingStatus::Serving).await;
        }
        let service = HealthService::from_health_reporter(reporter.clone());
        let views = Views::new(Feed::default().cluster, settings(), metrics);
        let stop = CancellationToken::new();
        stop.cancel();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        Arc::new(DestinationServer::new(views, reporter)).serve(listener, stop).await;
        for name in HEALTH_SERVICES {
            let request = tonic::Request::new(HealthCheckRequest { service: name.to_owned() });
            let status = service.check(request).await.unwrap().into_inner().status();
            assert_eq!(status, tonic_health::pb::health_check_response::ServingStatus::NotServing, "{name:?}");
        }
    }
}
