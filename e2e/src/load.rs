//! Many `Get` streams at once, as proxies hold them, from a client that costs little itself.
//!
//! * In: the address of any server of the Destination API, and what each stream asks for. Out: when the first message of each
//!   stream came, and when each later one did.
//! * Proxy-faithful where it matters to the server: HTTP/2 windows of 64 KiB a stream and 1 MiB a connection, context tokens
//!   with nodes, everything read at once. Bare h2 and no decoding but of what is measured: a client that is the bottleneck
//!   measures itself.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::future::try_join_all;
use h2::{
    RecvStream,
    client::{Builder, SendRequest},
};
use http::{Method, Request};
use linkerd2_proxy_api::destination::{GetDestination, Update, update};
use prost::Message as _;
use tokio::{net::TcpStream, sync::watch, task::JoinSet, time::timeout};

const STREAM_WINDOW: u32 = 65_535;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
const PATIENCE: Duration = Duration::from_secs(60);

/// What one stream asks for.
#[derive(Clone, Debug)]
pub struct Ask {
    pub path: String,
    pub token: String,
}

/// Open streams. Dropping it closes their connections.
pub struct Load {
    tasks: JoinSet<()>,
    arrivals: Arc<Mutex<Arrivals>>,
    /// Kept until the streams end: they wait for it to open.
    _opened: watch::Sender<Option<Instant>>,
}

/// What the streams were told, and when.
#[derive(Debug, Default)]
pub struct Arrivals {
    /// From the moment of opening to each stream's first message.
    pub first: Vec<Duration>,
    /// Each later message that adds an endpoint: the port of its last one, and when it came.
    pub changes: Vec<(u16, Instant)>,
    pub messages: u64,
    pub bytes: u64,
    /// Streams that ended, with why.
    pub ended: Vec<String>,
}

impl Load {
    /// Connects, and opens all streams at the same moment: `asks` are dealt out to the connections in turn.
    ///
    /// # Errors
    /// When a connection cannot be made.
    pub async fn open(address: SocketAddr, connections: usize, asks: Vec<Ask>) -> Result<Self> {
        ensure!(connections > 0, "a load needs a connection");
        let arrivals = Arc::<Mutex<Arrivals>>::default();
        let (opened, start) = watch::channel(None);
        let mut tasks = JoinSet::new();
        let senders = try_join_all((0..connections).map(|_| connect(address))).await?;
        let mut ready = Vec::with_capacity(connections);
        for (sender, connection) in senders {
            tasks.spawn(async move { drop(connection.await) });
            ready.push(sender);
        }
        for (number, ask) in asks.into_iter().enumerate() {
            let sender = ready.get(number % connections).cloned().context("a connection")?;
            let (arrivals, start) = (Arc::clone(&arrivals), start.clone());
            tasks.spawn(async move {
                let why = match stream(sender, &ask, start, &arrivals).await {
                    Ok(()) => "ended".to_owned(),
                    Err(error) => format!("{error:#}"),
                };
                lock(&arrivals).ended.push(why);
            });
        }
        // Until every task waits for the start.
        tokio::task::yield_now().await;
        opened.send_replace(Some(Instant::now()));
        Ok(Self { tasks, arrivals, _opened: opened })
    }

    /// Waits until so many streams have their first message; what came until then, sorted.
    ///
    /// # Errors
    /// When they do not come, or a stream ends.
    pub async fn first_messages(&self, streams: usize) -> Result<Vec<Duration>> {
        let all = async {
            loop {
                {
                    let arrivals = self.arrivals();
                    ensure!(arrivals.ended.is_empty(), "streams ended: {:?}", arrivals.ended.first());
                    if arrivals.first.len() >= streams {
                        let mut first = arrivals.first.clone();
                        first.sort();
                        return Ok(first);
                    }
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, all).await.with_context(|| format!("{} of {streams} came", self.arrivals().first.len()))?
    }

    pub fn arrivals(&self) -> std::sync::MutexGuard<'_, Arrivals> {
        lock(&self.arrivals)
    }

    /// Forgets what has come so far.
    pub fn reset(&self) {
        *self.arrivals() = Arrivals::default();
    }

    /// Closes all connections, and waits until nothing of it is left here.
    pub async fn close(mut self) {
        self.tasks.shutdown().await;
    }
}

fn lock(arrivals: &Mutex<Arrivals>) -> std::sync::MutexGuard<'_, Arrivals> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn connect(address: SocketAddr) -> Result<(SendRequest<Bytes>, h2::client::Connection<TcpStream>)> {
    let tcp = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
    tcp.set_nodelay(true)?;
    let mut builder = Builder::new();
    builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    builder.handshake(tcp).await.context("the HTTP/2 handshake")
}

async fn stream(
    sender: SendRequest<Bytes>,
    ask: &Ask,
    mut start: watch::Receiver<Option<Instant>>,
    arrivals: &Mutex<Arrivals>,
) -> Result<()> {
    let request = Request::builder()
        .method(Method::POST)
        .uri("http://destination/io.linkerd.proxy.destination.Destination/Get")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let message = GetDestination { scheme: String::new(), path: ask.path.clone(), context_token: ask.token.clone() }
        .encode_to_vec();
    let mut frame = BytesMut::with_capacity(message.len() + 5);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len())?);
    frame.extend_from_slice(&message);
    let began = start.wait_for(Option::is_some).await.context("never started")?.context("a start")?;
    let mut sender = sender.ready().await?;
    let (response, mut body) = sender.send_request(request, false)?;
    body.send_data(frame.freeze(), true)?;
    let mut messages = response.await?.into_body();
    let mut first = true;
    let mut unread = BytesMut::new();
    while let Some(message) = next_message(&mut messages, &mut unread, arrivals).await? {
        let now = Instant::now();
        if first {
            lock(arrivals).first.push(now.duration_since(began));
            first = false;
            continue;
        }
        if let Some(update::Update::Add(set)) = Update::decode(message)?.update
            && let Some(port) = set.addrs.last().and_then(|it| it.addr.as_ref()).map(|it| it.port)
        {
            lock(arrivals).changes.push((u16::try_from(port)?, now));
        }
    }
    Ok(())
}

async fn next_message(
    body: &mut RecvStream,
    unread: &mut BytesMut,
    arrivals: &Mutex<Arrivals>,
) -> Result<Option<Bytes>> {
    loop {
        if let Some((mut prefix, rest)) = unread.split_at_checked(5) {
            prefix.advance(1);
            let length = prefix.get_u32() as usize;
            if rest.len() >= length {
                unread.advance(5);
                let message = unread.split_to(length).freeze();
                let mut arrivals = lock(arrivals);
                arrivals.messages += 1;
                arrivals.bytes += length as u64 + 5;
                return Ok(Some(message));
            }
        }
        let Some(data) = body.data().await else { return Ok(None) };
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        unread.extend_from_slice(&data);
        if unread.is_empty() {
            // What a stream has read it does not keep.
            *unread = BytesMut::new();
        }
    }
}
