//! A client of the Destination API that reads only on request, over an HTTP/2 connection with configurable windows.
//!
//! * In: the address of a destination server, [`Windows`]. Out: `Get` streams that are not read automatically, and how
//!   they end: with a status, with RST_STREAM, or with their connection. On request, the socket is not read either.
//! * Always: flow-control capacity is released only by [`SlowStream::next`]; a stream that is not dropped keeps its
//!   unread bytes also after its end. Every wait has a deadline.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, Bytes, BytesMut};
use h2::{
    Reason, RecvStream,
    client::{ResponseFuture, SendRequest},
};
use http::HeaderMap;
use linkerd2_proxy_api::destination::{GetDestination, Update, WeightedAddr};
use prost::Message as _;
use tokio::{net::TcpStream, task::JoinHandle, time::timeout};

use crate::{
    discovery::{Message, fold},
    gate::Gate,
    http2::{GET, PREFIX, grpc_message},
    wait::stays_quiet,
};

const DEADLINE: Duration = Duration::from_secs(45);

/// The number of bytes that the server may send before the client releases capacity.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    pub stream: u32,
    /// HTTP/2 does not allow a connection window below 65,535.
    pub connection: u32,
}

/// One HTTP/2 connection.
pub struct SlowClient {
    requests: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
    reads_disabled: Arc<AtomicBool>,
}

/// A requested stream; its response headers may not have arrived yet.
pub struct PendingStream(ResponseFuture);

/// A `Get` stream and the messages read from it.
pub struct SlowStream {
    body: RecvStream,
    /// The number of bytes that were read but not released to flow control.
    kept: usize,
    unparsed: BytesMut,
    pub known: BTreeMap<SocketAddr, WeightedAddr>,
    pub messages: Vec<Message>,
    /// The encoded length of each message.
    pub sizes: Vec<usize>,
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The server sent this gRPC status.
    Status(String),
    /// The server sent RST_STREAM.
    Reset(Reason),
    /// The connection ended, or a protocol error occurred.
    Broken(String),
}

// === impl Windows ===

impl Windows {
    /// The windows of Linkerd's proxies: sixteen unread streams exhaust the window of their connection.
    pub const OF_PROXIES: Self = Self { stream: 65_535, connection: 1024 * 1024 };
}

// === impl SlowClient ===

impl SlowClient {
    pub async fn connect(address: SocketAddr, windows: Windows) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
        let reads_disabled = Arc::<AtomicBool>::default();
        let socket = Gate::of_reads(stream, Arc::clone(&reads_disabled));
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(windows.stream).initial_connection_window_size(windows.connection);
        let (requests, connection) = timeout(DEADLINE, builder.handshake(socket)).await??;
        Ok(Self { requests, connection: tokio::spawn(connection), reads_disabled })
    }

    /// Stops reading from the socket, including HTTP/2's own frames.
    pub fn stop_reading(&self) {
        self.reads_disabled.store(true, Ordering::SeqCst);
    }

    /// Requests a stream without waiting for a response.
    pub async fn request(&self, path: &str) -> Result<PendingStream> {
        let message = GetDestination { path: path.to_owned(), ..GetDestination::default() }.encode_to_vec();
        let request = http::Request::post(format!("http://destination{GET}"))
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .header(http::header::TE, "trailers")
            .body(())?;
        let mut requests = timeout(DEADLINE, self.requests.clone().ready()).await??;
        let (response, mut body) = requests.send_request(request, false)?;
        body.send_data(grpc_message(&message), true)?;
        Ok(PendingStream(response))
    }

    /// Requests a stream and waits for its response headers. Fails when the request is refused.
    pub async fn get(&self, path: &str) -> Result<SlowStream> {
        let PendingStream(response) = self.request(path).await?;
        let response = timeout(DEADLINE, response).await.context("no response headers")??;
        if let Some(status) = status_of(response.headers()) {
            bail!("refused with grpc-status {status}");
        }
        Ok(SlowStream {
            body: response.into_body(),
            kept: 0,
            unparsed: BytesMut::new(),
            known: BTreeMap::new(),
            messages: Vec::new(),
            sizes: Vec::new(),
        })
    }

    pub async fn get_many(&self, path: &str, count: usize) -> Result<Vec<SlowStream>> {
        futures::future::try_join_all((0..count).map(|_| self.get(path))).await
    }

    pub fn is_open(&self) -> bool {
        !self.connection.is_finished()
    }

    /// Waits until the server has closed the connection.
    pub async fn closed(&mut self, deadline: Duration) -> Result<()> {
        let ended = timeout(deadline, &mut self.connection).await;
        // Any way of closing is accepted, including an error.
        let _ = ended.with_context(|| format!("the connection is still open after {deadline:?}"))??;
        Ok(())
    }
}

impl Drop for SlowClient {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

// === impl SlowStream ===

impl SlowStream {
    /// The number of received bytes that were not read.
    pub fn unread(&mut self) -> usize {
        self.body.flow_control().used_capacity()
    }

    /// Reads the next message and releases all capacity. `None` when the stream ended with trailers.
    pub async fn next(&mut self) -> Result<Option<Message>> {
        let read = timeout(DEADLINE, self.read()).await;
        read.with_context(|| format!("no message; so far: {} messages", self.messages.len()))?
    }

    /// Reads messages until the endpoints satisfy `wanted`.
    pub async fn until(&mut self, mut wanted: impl FnMut(&BTreeMap<SocketAddr, WeightedAddr>) -> bool) -> Result<()> {
        while !wanted(&self.known) {
            self.next().await?.context("the stream ended")?;
        }
        Ok(())
    }

    /// Fails when data arrives within this time. Releases no capacity.
    pub async fn is_quiet_for(&mut self, time: Duration) -> Result<()> {
        stays_quiet(time, async { Ok(self.body.data().await) }).await
    }

    /// Reads without releasing capacity until the stream ends.
    pub async fn end(&mut self, deadline: Duration) -> Result<StreamEnd> {
        let end = async {
            loop {
                match self.body.data().await {
                    Some(Ok(data)) => self.kept += data.len(),
                    Some(Err(error)) if error.is_reset() && error.is_remote() => {
                        break StreamEnd::Reset(error.reason().unwrap_or(Reason::NO_ERROR));
                    }
                    Some(Err(error)) => break StreamEnd::Broken(error.to_string()),
                    None => match self.body.trailers().await {
                        Ok(trailers) => {
                            break StreamEnd::Status(trailers.as_ref().and_then(status_of).unwrap_or_default());
                        }
                        Err(error) => break StreamEnd::Broken(error.to_string()),
                    },
                }
            }
        };
        timeout(deadline, end).await.with_context(|| format!("the stream is still open after {deadline:?}"))
    }

    async fn read(&mut self) -> Result<Option<Message>> {
        loop {
            if let Some(update) = self.parse()? {
                let message = fold(&mut self.known, self.messages.is_empty(), update)?;
                self.messages.push(message.clone());
                return Ok(Some(message));
            }
            let Some(data) = self.body.data().await else { return Ok(None) };
            let data = data?;
            self.body.flow_control().release_capacity(std::mem::take(&mut self.kept) + data.len())?;
            self.unparsed.extend_from_slice(&data);
        }
    }

    fn parse(&mut self) -> Result<Option<Update>> {
        let Some((mut prefix, rest)) = self.unparsed.split_at_checked(PREFIX) else { return Ok(None) };
        ensure!(prefix.get_u8() == 0, "a compressed message");
        let length = usize::try_from(prefix.get_u32())?;
        if rest.len() < length {
            return Ok(None);
        }
        self.unparsed.advance(PREFIX);
        self.sizes.push(length);
        Ok(Some(Update::decode(self.unparsed.split_to(length))?))
    }
}

fn status_of(headers: &HeaderMap) -> Option<String> {
    headers.get("grpc-status").map(|status| String::from_utf8_lossy(status.as_bytes()).into_owned())
}
