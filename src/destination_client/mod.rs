//! A client of a Destination API: its connection, its streams, and the states that their messages add up to.
//!
//! In: an address or a connected stream of bytes, an authority, a context token. Out: the messages of a stream, which
//! an [`AuthorityState`] turns into differences. Always holds: connecting has a deadline. The reader of a stream sets
//! the deadline of its messages, because a server may hold back even the headers until it has a message to send.

pub mod endpoints;
pub mod profile;

use std::{error::Error, future::ready, time::Duration};

use anyhow::{Context, Result};
use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use http::{Uri, uri::PathAndQuery};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use serde::Serialize;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tonic::{Code, Status, Streaming, body::Body, client::Grpc};
use tonic_prost::ProstCodec;

use crate::{
    client,
    grpc_client::Http2,
    proto::destination::{DestinationProfile, GetDestination, Update},
};

const ADDRESS_DEADLINE: Duration = Duration::from_secs(5);
/// The interval of pings, which detect a dead connection. Linkerd's server uses Go's gRPC, which closes the connection
/// of a client that pings more often than every five minutes.
const PING_INTERVAL: Duration = Duration::from_secs(330);
const PING_DEADLINE: Duration = Duration::from_secs(20);
/// The deadline for the reason of a failed port-forward, which may arrive after its end.
pub const FAILURE_DEADLINE: Duration = Duration::from_millis(200);

/// A connection to a Destination API.
#[derive(Clone)]
pub struct DestinationClient {
    requests: SendRequest<Body>,
    origin: Uri,
    /// The name of the server in messages.
    peer: String,
    /// The reason why a forwarded port cannot be used. The stream itself only ends; the reason arrives on another
    /// channel, at about the same time or never.
    failure: Shared<BoxFuture<'static, Option<String>>>,
}

/// The status with which the server refuses a request.
#[derive(Debug, thiserror::Error)]
#[error("Destination API error: {}{}", message_of(.status), .hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
pub struct DestinationError {
    status: Status,
    /// The suggestion of what to write instead.
    hint: Option<String>,
}

/// The state of one authority that the messages of its streams add up to.
pub trait AuthorityState: Default + Send {
    type Message: Message + Default + 'static;
    /// The difference that one message makes.
    type Difference: Serialize + Send;
    /// Whether a first answer may come as several messages.
    const IN_PARTS: bool;

    /// Opens a stream of this kind.
    ///
    /// # Errors
    /// Returns the status of the server, or why the request could not be sent.
    fn open(
        destination: &DestinationClient,
        request: GetDestination,
    ) -> impl Future<Output = Result<Streaming<Self::Message>, Status>> + Send;

    /// A new stream begins: the state stays until the first message of that stream replaces it.
    fn reopen(&mut self);

    /// Applies a message; returns `None` if the state stays the same.
    fn apply(&mut self, message: Self::Message) -> Option<Self::Difference>;
}

/// Returns the request for an authority.
pub fn destination_request(authority: &str, token: &str) -> GetDestination {
    // The server ignores the scheme. Linkerd's command for endpoints sends this one.
    GetDestination { scheme: "http:".to_owned(), path: authority.to_owned(), context_token: token.to_owned() }
}

// === impl DestinationClient ===

impl DestinationClient {
    /// Connects to `HOST:PORT`.
    ///
    /// # Errors
    /// Fails if no server answers within 5 s.
    pub async fn connect(address: &str) -> Result<Self> {
        let stream = timeout(ADDRESS_DEADLINE, TcpStream::connect(address))
            .await
            .with_context(|| format!("no connection to {address} within {} s", ADDRESS_DEADLINE.as_secs()))?
            .with_context(|| format!("cannot connect to {address}; does a Destination API listen there?"))?;
        Self::over(stream, address, address.to_owned()).await
    }

    /// Speaks HTTP/2 over a connected stream. `peer` names the server in errors.
    ///
    /// # Errors
    /// Fails if the handshake fails or takes longer than 5 s.
    pub async fn over(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        authority: &str,
        peer: String,
    ) -> Result<Self> {
        let origin: Uri =
            format!("http://{authority}").parse().with_context(|| format!("{authority} is not a host and a port"))?;
        let handshake = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_DEADLINE)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream));
        let (requests, connection) = timeout(ADDRESS_DEADLINE, handshake)
            .await
            .with_context(|| format!("no HTTP/2 handshake with {peer} within {} s", ADDRESS_DEADLINE.as_secs()))?
            .with_context(|| format!("the HTTP/2 handshake with {peer} failed"))?;
        // The streams on the connection return its error.
        tokio::spawn(connection);
        Ok(Self { requests, origin, peer, failure: ready(None).boxed().shared() })
    }

    /// Returns whether no stream can be opened any more.
    pub fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }

    /// Sets where the reason of a failure of the connection arrives.
    pub fn set_failure(&mut self, failure: impl Future<Output = Option<String>> + Send + 'static) {
        self.failure = failure.boxed().shared();
    }

    /// Opens a `Get` stream.
    ///
    /// # Errors
    /// Returns the status of the server, or why the request could not be sent.
    pub async fn get(&self, request: GetDestination) -> Result<Streaming<Update>, Status> {
        self.stream("/io.linkerd.proxy.destination.Destination/Get", request).await
    }

    /// Opens a `GetProfile` stream.
    ///
    /// # Errors
    /// Returns the status of the server, or why the request could not be sent.
    pub async fn get_profile(&self, request: GetDestination) -> Result<Streaming<DestinationProfile>, Status> {
        self.stream("/io.linkerd.proxy.destination.Destination/GetProfile", request).await
    }

    async fn stream<Req, Res>(&self, method: &'static str, request: Req) -> Result<Streaming<Res>, Status>
    where
        Req: Message + 'static,
        Res: Message + Default + 'static,
    {
        let mut grpc = Grpc::with_origin(Http2(self.requests.clone()), self.origin.clone());
        let path = PathAndQuery::from_static(method);
        let codec = ProstCodec::<Req, Res>::default();
        let answer = match grpc.ready().await {
            Ok(()) => grpc.server_streaming(tonic::Request::new(request), path, codec).await,
            Err(error) => Err(Status::from_error(error.into())),
        };
        match answer {
            Ok(streaming) => Ok(streaming.into_inner()),
            Err(status) => Err(self.explained(status).await),
        }
    }

    /// Adds the causes to an error of the connection. A status that the server sent stays as it is.
    async fn explained(&self, status: Status) -> Status {
        let Some(cause) = status.source().map(client::describe) else { return status };
        let failure = timeout(FAILURE_DEADLINE, self.failure.clone()).await.ok().flatten();
        let reason = failure.unwrap_or(cause);
        Status::unavailable(format!(
            "the connection to {} failed: {}; does a Destination API listen there?",
            self.peer,
            reason.trim()
        ))
    }
}

// === impl DestinationError ===

impl From<Status> for DestinationError {
    fn from(status: Status) -> Self {
        Self { status, hint: None }
    }
}

impl DestinationError {
    /// Adds what to write instead.
    pub fn with_hint(self, hint: Option<String>) -> Self {
        Self { hint, ..self }
    }

    /// Returns whether the server might answer the same request later, as when it restarts.
    pub fn is_temporary(&self) -> bool {
        matches!(
            self.status.code(),
            Code::Aborted | Code::Cancelled | Code::DeadlineExceeded | Code::ResourceExhausted | Code::Unavailable
        )
    }

    /// Returns the code and the message.
    pub fn code_and_message(&self) -> String {
        format!("{:?}: {}", self.status.code(), message_of(&self.status))
    }
}

/// Returns the message of a status, or the description of its code if it has none.
pub fn message_of(status: &Status) -> &str {
    if status.message().is_empty() { status.code().description() } else { status.message() }
}
