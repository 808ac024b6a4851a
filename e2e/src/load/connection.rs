//! One connection of a load: its socket, read in large pieces.
//!
//! * In: the streams to open. Out: the messages, merged once for each read.
//! * Always: reads continue while a write is blocked, so that both sides cannot block each other forever.

use std::{
    net::SocketAddr,
    pin::pin,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{StreamRequest, arrivals::Arrivals, lock, streams::Streams};

const CONNECT: Duration = Duration::from_secs(10);
/// A client that can reach another server sends a PING after this time without a byte of its server, and leaves the
/// server if it does not answer in time. These are the parameters that Linkerd gives its proxies for their own clients.
const KEEPALIVE: Keepalive = Keepalive { interval: Duration::from_secs(10), timeout: Duration::from_secs(3) };
const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(10);
const READ: usize = 64 * 1024;

pub(super) struct Connection {
    socket: TcpStream,
    streams: Streams,
    unread: BytesMut,
    out: BytesMut,
}

#[derive(Clone, Copy)]
struct Keepalive {
    interval: Duration,
    timeout: Duration,
}

/// A connection whose streams are never read, by a client that is alive: it answers PINGs. Dropping it closes the
/// connection.
pub struct Unread(JoinHandle<()>);

// === impl Connection ===

impl Connection {
    /// Connects and waits for the server's first bytes, because an unaccepted connection may only be queued.
    pub(super) async fn open(address: SocketAddr, streams: Streams) -> Result<Self> {
        let socket = connect(address).await?;
        let mut connection = Self { socket, streams, unread: BytesMut::new(), out: BytesMut::new() };
        Streams::greet(&mut connection.out);
        let answered = async {
            connection.socket.write_all_buf(&mut connection.out).await?;
            connection.unread.reserve(READ);
            connection.socket.read_buf(&mut connection.unread).await
        };
        let read = timeout(CONNECT, answered).await.with_context(|| format!("{address} does not answer"))?;
        if read.with_context(|| format!("{address} does not accept a connection"))? == 0 {
            bail!("{address} closes a new connection");
        }
        Ok(connection)
    }

    /// Opens the streams at the start signal, and reads until the connection ends.
    pub(super) async fn run(mut self, mut start: watch::Receiver<Option<Instant>>, arrivals: Arc<Mutex<Arrivals>>) {
        let began = start.wait_for(Option::is_some).await.ok().and_then(|began| *began);
        let Some(began) = began else { return };
        self.streams.send_requests(began, &mut self.out);
        let why = match self.exchange(&arrivals, None).await {
            Ok(()) => "the connection was closed".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        self.streams.close(&why);
        lock(&arrivals).absorb(&mut self.streams.arrivals);
    }

    /// As [`Connection::run`], but when the server is gone, requests all streams again from the other one, and so on.
    /// The time of a first message is then counted from the moment at which the client has noticed that.
    pub(super) async fn run_on_either(
        mut self,
        requests: Vec<StreamRequest>,
        [mut server, mut other]: [SocketAddr; 2],
        mut start: watch::Receiver<Option<Instant>>,
        arrivals: Arc<Mutex<Arrivals>>,
    ) {
        let began = start.wait_for(Option::is_some).await.ok().and_then(|began| *began);
        let Some(mut began) = began else { return };
        loop {
            self.streams.send_requests(began, &mut self.out);
            let _ = self.exchange(&arrivals, Some(KEEPALIVE)).await;
            began = Instant::now();
            lock(&arrivals).left.push(began);
            let mut back_off = FIRST_BACK_OFF;
            self = loop {
                (server, other) = (other, server);
                if let Ok(connection) = Self::open(server, Streams::new(&requests)).await {
                    break connection;
                }
                sleep(back_off.mul_f64(1.0 + rand::random::<f64>())).await;
                back_off = (back_off * 2).min(LONGEST_BACK_OFF);
            };
        }
    }

    async fn exchange(&mut self, arrivals: &Mutex<Arrivals>, keepalive: Option<Keepalive>) -> Result<()> {
        let Self { socket, streams, unread, out } = self;
        let (mut reader, writer) = socket.split();
        let mut timer = pin!(sleep(Duration::ZERO));
        let mut silence = pin!(sleep(keepalive.map_or(Duration::ZERO, |keepalive| keepalive.interval)));
        let (mut heard, mut pinged) = (Instant::now(), false);
        // Bytes that arrived with the answer to the preface.
        streams.read(unread, Instant::now(), out)?;
        loop {
            while !out.is_empty() {
                match writer.try_write(out) {
                    Ok(written) => out.advance(written),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error).context("writing"),
                }
            }
            let due = streams.due().map(tokio::time::Instant::from_std);
            if let Some(due) = due
                && timer.deadline() != due
            {
                timer.as_mut().reset(due);
            }
            unread.reserve(READ);
            tokio::select! {
                read = reader.read_buf(unread) => {
                    if read.context("reading")? == 0 {
                        return Ok(());
                    }
                    streams.arrivals.counts.reads += 1;
                    (heard, pinged) = (Instant::now(), false);
                    streams.read(unread, heard, out)?;
                }
                () = silence.as_mut(), if keepalive.is_some() => {
                    let Keepalive { interval, timeout } = keepalive.unwrap_or(KEEPALIVE);
                    let since = heard.elapsed();
                    ensure!(!pinged || since < interval + timeout, "the server does not answer a PING");
                    if since >= interval && !pinged {
                        Streams::ping(out);
                        pinged = true;
                    }
                    let next = if pinged { interval + timeout } else { interval };
                    silence.as_mut().reset(tokio::time::Instant::from_std(heard + next));
                }
                writable = writer.writable(), if !out.is_empty() => writable?,
                () = timer.as_mut(), if due.is_some() => streams.tick(Instant::now(), out),
            }
            lock(arrivals).absorb(&mut streams.arrivals);
        }
    }
}

// === impl Unread ===

impl Unread {
    pub(super) async fn open(address: SocketAddr, requests: &[StreamRequest]) -> Result<Self> {
        let mut connection = Connection::open(address, Streams::unread(requests)).await?;
        connection.streams.send_requests(Instant::now(), &mut connection.out);
        // The result is ignored: the bench reads the number of open streams from the server.
        Ok(Self(tokio::spawn(async move { drop(connection.exchange(&Mutex::default(), None).await) })))
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn connect(address: SocketAddr) -> Result<TcpStream> {
    let connecting = timeout(CONNECT, TcpStream::connect(address)).await;
    let socket = connecting.map_err(std::io::Error::from).flatten();
    let socket = socket.with_context(|| format!("connecting to {address}"))?;
    socket.set_nodelay(true)?;
    Ok(socket)
}
