//! The gRPC server: connections, calls, and their ends.
//!
//! In: plain HTTP/2 connections (the pod's own proxy has ended the TLS). Out: `Get` and `GetProfile` streams, the health service. Not tonic's
//! server: its bodies are encoded for each stream anew, and none of its streams can be ended alone.
//!
//! Always holds: a connection, a request and a reader that stands still have a deadline; every task is waited for at the
//! end; streams end with OK when the process stops.

use std::{sync::Arc, task::Poll, time::Duration};

use bytes::{Buf, Bytes};
use h2::RecvStream;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody};
use prost::Message;
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

use super::observer::KINDS;
use super::{
    authority::{ProfileAuthority, ServiceAuthority},
    context_token::ContextToken,
    get::{request, updates::EndpointUpdates, views::Views},
    http2::{
        connection::{self, Asked, Content, Piece},
        stall::Progress,
        transport::Transport,
        wake_time::Readiness,
    },
    metrics::{Busy, Call, Method as Rpc},
    profile::{self, updates::ProfileUpdates},
    stream::Stream,
};
use crate::proto::destination::GetDestination;

/// In a refusal: whoever balances over several replicas is to try another.
const BUSY: &str = "this destination is busy: ask another, or again";
const FULL: &str = "this destination has as many streams as it can hold: ask another";

/// What the health service is asked about.
pub(super) const HEALTH_OF: [&str; 2] = ["", "io.linkerd.proxy.destination.Destination"];

/// Longer than any request can be that means something: a name of 253 characters, a port, a token.
pub(super) const LONGEST_REQUEST: usize = 16 * 1024;
/// Of the health service, whose streams last as long as their clients want.
const HEALTH_STREAMS: usize = 1_000;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const LATE_REQUEST: &str = "the request did not come in time";
/// For clients to take the ends of their streams.
const GOODBYE: Duration = Duration::from_secs(2);
/// Of a path that comes back in a message: whoever reads that has seen enough.
const LONGEST_QUOTE: usize = 512;

pub(super) struct Server {
    views: Arc<Views>,
    health: HealthServer<HealthService>,
    reporter: HealthReporter,
    /// One for each stream that there may be.
    places: Arc<Semaphore>,
    health_places: Arc<Semaphore>,
}

impl Server {
    pub(super) fn new(views: Arc<Views>, reporter: HealthReporter) -> Self {
        let health = HealthServer::new(HealthService::from_health_reporter(reporter.clone()))
            .max_decoding_message_size(LONGEST_REQUEST);
        let places = Arc::new(Semaphore::new(views.settings.limits.streams.min(Semaphore::MAX_PERMITS)));
        Self { views, health, reporter, places, health_places: Arc::new(Semaphore::new(HEALTH_STREAMS)) }
    }

    /// Serves until `stop`, and then until the streams have ended.
    pub(super) async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        let places = Arc::new(Semaphore::new(self.views.settings.limits.connections.min(Semaphore::MAX_PERMITS)));
        let accept = async {
            loop {
                let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let readiness = Readiness::new();
                        let connection =
                            Arc::clone(&self).connection(stream, stop.clone(), Arc::clone(&readiness), place);
                        // A turn is bounded by more than tokio's budget, which would be spent on looking at streams.
                        tasks.spawn(unconstrained(readiness.of(connection)));
                    }
                    Err(error) => {
                        // Out of descriptors, most likely: without the pause this loop would take a core as well.
                        warn!(%error, "cannot accept a connection for discovery");
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accept => {}
            () = stop.cancelled() => {}
        }
        // Connections and streams that begin now are refused, so that their clients ask another replica.
        drop(listener);
        for service in HEALTH_OF {
            self.reporter.set_service_status(service, tonic_health::ServingStatus::NotServing).await;
        }
        self.views.close();
        tasks.close();
        if timeout(GOODBYE, tasks.wait()).await.is_err() {
            debug!("some clients did not take the ends of their streams");
        }
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        stop: CancellationToken,
        readiness: Arc<Readiness>,
        _place: OwnedSemaphorePermit,
    ) {
        let transport = match Transport::accept(stream).await {
            Ok(transport) => transport,
            Err(error) => {
                debug!(%error, "a connection for discovery was given up");
                return;
            }
        };
        let metrics = &self.views.metrics;
        let _open = metrics.connection();
        let answer = |asked| {
            let server = Arc::clone(&self);
            async move { server.call(asked).await }
        };
        let ended = connection::serve(transport, &readiness, &self.views.settings.limits, &stop, answer).await;
        metrics.connection_ended(ended);
    }

    async fn call(&self, asked: Asked) -> Response<Answer> {
        let Asked { request, since, progress } = asked;
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let (head, mut body) = request.into_parts();
        let path = head.uri.path();
        if path.strip_prefix('/').is_some_and(|path| path.starts_with(HealthServer::<HealthService>::NAME)) {
            return self.health(Request::from_parts(head, body)).await;
        }
        let refusal = if head.method != Method::POST {
            plain(StatusCode::METHOD_NOT_ALLOWED)
        } else if !head.headers.get(header::CONTENT_TYPE).is_some_and(|value| is_grpc(value.as_bytes())) {
            plain(StatusCode::UNSUPPORTED_MEDIA_TYPE)
        } else if let Some(rpc) = Rpc::of_path(path) {
            let mut call = self.views.metrics.began(rpc);
            match self.open(rpc, &call, &mut body, since, deadline).await {
                Ok((subscribed, place)) => {
                    let mut response = Response::new(subscribed.stream(progress, call, place));
                    let content_type = HeaderValue::from_static("application/grpc");
                    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
                    return response;
                }
                Err(status) => {
                    call.will_end(status.code());
                    refuse(&status)
                }
            }
        } else {
            refuse(&Status::unimplemented(format!("no method {}", quote(path))))
        };
        // h2 resets a stream that is answered before its request has ended, and counts what still comes for it as the
        // client's fault: after 1,024 such it would close the connection, with all streams on it.
        _ = timeout_at(deadline, rest_of(body)).await;
        refusal
    }

    async fn health(&self, request: Request<RecvStream>) -> Response<Answer> {
        let Ok(place) = Arc::clone(&self.health_places).try_acquire_owned() else {
            _ = timeout(REQUEST_TIMEOUT, rest_of(request.into_body())).await;
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
            Ok(Ok(response)) => response.map(|body| Answer::Health { body, _place: place }),
            Ok(Err(never)) => match never {},
            Err(_) => refuse(&Status::deadline_exceeded(LATE_REQUEST)),
        }
    }

    async fn open(
        &self,
        rpc: Rpc,
        call: &Call,
        body: &mut RecvStream,
        since: Instant,
        deadline: Instant,
    ) -> Result<(Subscribed, OwnedSemaphorePermit), Status> {
        let (message, place) = self.request(call, body, since, deadline).await?;
        Ok((self.subscribe(rpc, &message)?, place))
    }

    /// Reads the request, if there is a place for its stream.
    async fn request(
        &self,
        call: &Call,
        body: &mut RecvStream,
        since: Instant,
        deadline: Instant,
    ) -> Result<(GetDestination, OwnedSemaphorePermit), Status> {
        let metrics = &self.views.metrics;
        if since.elapsed() > self.views.settings.limits.stream_wait {
            metrics.refused(Busy::Waited);
            return Err(Status::unavailable(BUSY));
        }
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            metrics.refused(Busy::Full);
            Status::unavailable(FULL)
        })?;
        let message = timeout_at(deadline, read(body));
        let message = message.await.map_err(|_| Status::deadline_exceeded(LATE_REQUEST))??;
        let message = GetDestination::decode(message)
            .map_err(|error| Status::internal(format!("cannot read the request: {error}")))?;
        call.received();
        if !self.views.cluster.knows(KINDS) {
            return Err(Status::unavailable("the caches are not filled yet: ask another replica, or again"));
        }
        Ok((message, place))
    }

    /// Finds what answers the request.
    fn subscribe(&self, rpc: Rpc, message: &GetDestination) -> Result<Subscribed, Status> {
        let GetDestination { path, context_token, .. } = message;
        let cluster_domain = &self.views.settings.cluster_domain;
        let token = ContextToken::parse(context_token);
        match rpc {
            Rpc::Get => {
                let authority = ServiceAuthority::parse(path, cluster_domain).map_err(invalid)?;
                let request = request::Request::new(authority, &token.node);
                let subscription = self.views.subscribe(&request);
                let subscription = subscription.map_err(|refusal| request.refused(&refusal, &quote(path)))?;
                Ok(Subscribed::Get(EndpointUpdates::new(request, subscription)))
            }
            Rpc::GetProfile => {
                let authority = ProfileAuthority::parse(path, cluster_domain).map_err(invalid)?;
                let request = profile::request::Request::new(authority, &token.namespace);
                let subscription = self.views.subscribe_to_profile(&request);
                let subscription = subscription.map_err(|refusal| refusal.status(&quote(path)))?;
                Ok(Subscribed::GetProfile(ProfileUpdates::new(subscription)))
            }
        }
    }
}

/// What a stream is about to tell.
enum Subscribed {
    Get(EndpointUpdates),
    GetProfile(ProfileUpdates),
}

impl Subscribed {
    fn stream(self, progress: Arc<Progress>, call: Call, place: OwnedSemaphorePermit) -> Answer {
        match self {
            Self::Get(updates) => Answer::Get(Box::new(Stream::new(updates, progress, call, place))),
            Self::GetProfile(updates) => Answer::GetProfile(Box::new(Stream::new(updates, progress, call, place))),
        }
    }
}

fn invalid(error: impl std::error::Error) -> Status {
    Status::invalid_argument(quote(&error.to_string()))
}

/// The one message of a request. What is read takes its part of the connection's window until it is complete, so that a client
/// cannot leave behind more of unfinished requests than that.
async fn read(body: &mut RecvStream) -> Result<Bytes, Status> {
    const PREFIX: usize = 5;
    let mut received = bytes::BytesMut::new();
    let mut taken = 0;
    let message = loop {
        if let Some((prefix, message)) = received.split_at_checked(PREFIX) {
            let mut prefix = prefix;
            let compressed = prefix.get_u8() != 0;
            let length = prefix.get_u32() as usize;
            if compressed {
                break Err(Status::unimplemented("the request is compressed: send it as it is"));
            }
            if length > LONGEST_REQUEST {
                let text =
                    format!("Invalid authority: a request of {length} bytes names none; the most is {LONGEST_REQUEST}");
                break Err(Status::invalid_argument(text));
            }
            if message.len() >= length {
                received.advance(PREFIX);
                received.truncate(length);
                break Ok(received.freeze());
            }
        }
        match body.data().await {
            Some(Ok(data)) => {
                taken += data.len();
                received.extend_from_slice(&data);
            }
            Some(Err(error)) => break Err(Status::cancelled(format!("the request broke off: {error}"))),
            None => break Err(Status::internal("the request ended before its message")),
        }
    };
    // Else it would be missing in the connection's window for as long as the stream is open, and some hundred streams later its
    // client could ask for no more. It fails when the stream is over.
    _ = body.flow_control().release_capacity(taken);
    message
}

/// Reads a request to its end, for nothing.
async fn rest_of(mut body: RecvStream) {
    let mut taken = 0;
    while let Some(Ok(data)) = body.data().await {
        taken += data.len();
        if taken > LONGEST_REQUEST {
            return;
        }
        _ = body.flow_control().release_capacity(data.len());
    }
}

/// The beginning of what a client wrote.
fn quote(text: &str) -> String {
    let mut quoted = text.to_owned();
    quoted.truncate(text.floor_char_boundary(LONGEST_QUOTE));
    quoted
}

/// gRPC with any encoding of its messages, but not gRPC-Web, whose bodies are others.
fn is_grpc(content_type: &[u8]) -> bool {
    let encoding = content_type.strip_prefix(b"application/grpc");
    encoding.is_some_and(|encoding| matches!(encoding.first(), None | Some(b'+' | b';')))
}

/// An answer that is a status only: headers that are trailers. A text with all that a client wrote would break the limit that
/// clients set to headers, and look to them like a broken connection.
fn refuse(status: &Status) -> Response<Answer> {
    Status::new(status.code(), quote(status.message())).into_http::<()>().map(|()| Answer::Empty)
}

fn plain(code: StatusCode) -> Response<Answer> {
    let mut response = Response::new(Answer::Empty);
    *response.status_mut() = code;
    response
}

/// What a call is answered with.
enum Answer {
    Get(Box<Stream<EndpointUpdates>>),
    GetProfile(Box<Stream<ProfileUpdates>>),
    Health { body: tonic::body::Body, _place: OwnedSemaphorePermit },
    Empty,
}

impl Content for Answer {
    fn is_empty(&self) -> bool {
        match self {
            Self::Get(_) | Self::GetProfile(_) => false,
            Self::Health { body, .. } => body.is_end_stream(),
            Self::Empty => true,
        }
    }

    async fn next(&mut self) -> Option<Piece> {
        match self {
            Self::Get(stream) => stream.next().await,
            Self::GetProfile(stream) => stream.next().await,
            Self::Health { body, .. } => match body.frame().await? {
                Ok(frame) => match frame.into_data() {
                    Ok(data) => Some(Piece::Data(data)),
                    Err(frame) => frame.into_trailers().ok().map(|trailers| Piece::Trailers(Box::new(trailers))),
                },
                Err(status) => Some(Piece::Trailers(Box::new(status.into_http::<()>().into_parts().0.headers))),
            },
            Self::Empty => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use tonic_health::pb::{HealthCheckRequest, health_server::Health};

    use super::{super::settings::tests::settings, *};
    use crate::{cluster::testing::Feed, destination::metrics::Metrics};

    #[tokio::test]
    async fn a_server_that_stops_says_so_of_its_service_too() {
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let reporter = HealthReporter::new();
        for service in HEALTH_OF {
            reporter.set_service_status(service, tonic_health::ServingStatus::Serving).await;
        }
        let service = HealthService::from_health_reporter(reporter.clone());
        let views = Views::new(Feed::default().cluster, settings(), metrics);
        let stop = CancellationToken::new();
        stop.cancel();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        Arc::new(Server::new(views, reporter)).serve(listener, stop).await;
        for name in HEALTH_OF {
            let request = tonic::Request::new(HealthCheckRequest { service: name.to_owned() });
            let status = service.check(request).await.unwrap().into_inner().status();
            assert_eq!(status, tonic_health::pb::health_check_response::ServingStatus::NotServing, "{name:?}");
        }
    }
}
