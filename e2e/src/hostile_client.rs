//! A client of the Destination API that violates HTTP/2, or uses it legally in bad faith.
//!
//! * In: the address of a destination server, a path to request, frames of any kind. Out: bytes sent as fast as the
//!   server takes them, and the server's response, in particular how it closes the connection.
//! * Always: one task without an HTTP/2 library, so that the client does not throttle the flood. Unless `never_reads`
//!   is set, the client reads between two writes, also after the server has stopped reading. By default it behaves
//!   well: it acknowledges SETTINGS and PING, and replenishes the connection's window.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::SocketAddr,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use linkerd2_proxy_api::destination::GetDestination;
use prost::Message as _;
use tokio::{
    io::Interest,
    net::TcpStream,
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};

use crate::http2::{
    ACK, DATA, END_HEADERS, END_STREAM, Frame, GET, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE, PING, PREFACE, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, grpc_message, grpc_request,
};

/// Error code of RST_STREAM: the server accepts no more streams.
pub const REFUSED_STREAM: u32 = 0x7;
/// Error code of GOAWAY: the server considers the peer's behavior an attack.
pub const ENHANCE_YOUR_CALM: u32 = 0xb;
/// The maximum size of a window.
pub const ENDLESS: u32 = i32::MAX.unsigned_abs();

const DEADLINE: Duration = Duration::from_secs(45);
/// The number of bytes prepared before each write, large enough that the socket's buffer never drains.
const BATCH: usize = 64 * 1024;
/// The number of received bytes after which the connection's window is replenished.
const UNCLAIMED: usize = 16 * 1024;

/// One connection.
pub struct HostileClient {
    socket: TcpStream,
    /// The header block and the message of a request.
    request: (Bytes, Bytes),
    next_stream: u32,
    unsent: BytesMut,
    unread: BytesMut,
    unclaimed: usize,
    takes_no_more: bool,
    /// If set, the client never reads from its socket.
    pub never_reads: bool,
    /// If set, the client does not acknowledge PINGs.
    pub ignores_pings: bool,
    pub received: ReceivedFrames,
}

/// The frames received from the server, counted by kind.
#[derive(Clone, Debug)]
pub struct ReceivedFrames {
    /// The bytes of DATA that the connection's window still allows. Floods ignore it.
    pub room: i64,
    /// Streams whose response headers have arrived, oldest first.
    pub answered: VecDeque<u32>,
    /// The number of streams that the server ended with END_STREAM: in the first headers or in trailers. If the request
    /// was not complete, the server also resets the stream.
    pub ended_streams: u64,
    /// The number of streams that the server reset, by error code.
    pub resets: BTreeMap<u32, u64>,
    pub bytes_of_data: u64,
    /// The number of our PINGs that the server acknowledged.
    pub pongs: u64,
    /// The last GOAWAY.
    pub go_away: Option<GoAway>,
    /// True when the connection has ended.
    pub ended: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoAway {
    pub code: u32,
    /// The debug data, which explains the reason.
    pub text: String,
}

// === impl HostileClient ===

impl HostileClient {
    /// Connects, with `window` as the initial window of each stream.
    pub async fn connect(address: SocketAddr, path: &str, window: u32) -> Result<Self> {
        let socket =
            timeout(DEADLINE, TcpStream::connect(address)).await.context("the connection was not accepted in time")?;
        let socket = socket.with_context(|| format!("connecting to {address}"))?;
        socket.set_nodelay(true)?;
        let message = GetDestination { path: path.to_owned(), ..GetDestination::default() }.encode_to_vec();
        let mut client = Self {
            socket,
            request: (grpc_request(GET), grpc_message(&message)),
            next_stream: 1,
            unsent: BytesMut::from(PREFACE),
            unread: BytesMut::new(),
            unclaimed: 0,
            takes_no_more: false,
            never_reads: false,
            ignores_pings: false,
            received: ReceivedFrames::initial(),
        };
        client.put(&Frame::settings(&[(INITIAL_WINDOW_SIZE, window)]));
        Ok(client)
    }

    /// Queues a frame, which is sent with the next bytes.
    pub fn put(&mut self, frame: &Frame) {
        if frame.kind == DATA {
            self.received.room -= i64::try_from(frame.payload.len()).unwrap_or(i64::MAX);
        }
        frame.put(&mut self.unsent);
    }

    /// Returns the number of a new stream, for which no frame has been sent.
    pub fn new_stream(&mut self) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        stream
    }

    /// The number of streams opened so far.
    pub fn streams(&self) -> u32 {
        self.next_stream / 2
    }

    /// Begins a request, without its message.
    pub fn begin(&mut self) -> u32 {
        self.begin_with(self.request.0.clone())
    }

    /// Begins a request with this header block.
    pub fn begin_with(&mut self, headers: Bytes) -> u32 {
        let stream = self.new_stream();
        self.put(&Frame::new(HEADERS, END_HEADERS, stream, headers));
        stream
    }

    /// Sends a complete `Get` request for the path.
    pub fn get(&mut self) -> u32 {
        let stream = self.begin();
        self.put(&Frame::new(DATA, END_STREAM, stream, self.request.1.clone()));
        stream
    }

    /// Calls `more` to queue frames and sends them as fast as the server reads, until the connection has ended. After
    /// each write, calls `turned` with the number of bytes sent and the frames received. If `more` queues nothing,
    /// waits for the server.
    ///
    /// # Errors
    /// Fails when the server sends invalid HTTP/2.
    pub async fn flood(
        &mut self,
        mut more: impl FnMut(&mut Self),
        mut turned: impl FnMut(usize, &ReceivedFrames),
    ) -> Result<()> {
        while !self.received.ended {
            while self.unsent.len() < BATCH && !self.takes_no_more {
                let before = self.unsent.len();
                more(self);
                if self.unsent.len() == before {
                    break;
                }
            }
            let bytes = self.turn().await?;
            turned(bytes, &self.received);
            // The socket is always ready, so without this no other task would run on this thread.
            yield_now().await;
        }
        Ok(())
    }

    /// Sends all queued frames, and reads until `wanted` holds or the connection has ended.
    ///
    /// # Errors
    /// Fails when that does not happen before the deadline.
    pub async fn until(&mut self, what: &str, mut wanted: impl FnMut(&ReceivedFrames) -> bool) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        while !(self.unsent.is_empty() && (self.received.ended || wanted(&self.received))) {
            let turned = timeout_at(deadline, self.turn()).await;
            turned.with_context(|| format!("not seen in time: {what}; received: {:?}", self.received))??;
        }
        ensure!(wanted(&self.received), "the connection ended before {what}; received: {:?}", self.received);
        Ok(())
    }

    /// Sends all queued frames without reading.
    ///
    /// # Errors
    /// Fails when the server does not read them before the deadline.
    pub async fn send(&mut self) -> Result<()> {
        let all = async {
            while !self.unsent.is_empty() {
                self.socket.writable().await?;
                self.write();
            }
            anyhow::Ok(())
        };
        timeout(DEADLINE, all).await.context("the server does not read")?
    }

    /// Waits until the socket is ready, then sends and reads without blocking. Returns the number of bytes sent.
    async fn turn(&mut self) -> Result<usize> {
        let interest = match (self.unsent.is_empty(), self.never_reads) {
            (true, _) => Interest::READABLE,
            (false, true) => Interest::WRITABLE,
            (false, false) => Interest::READABLE | Interest::WRITABLE,
        };
        let ready = self.socket.ready(interest).await?;
        // Reads first: when a server closes a connection with unread data, its last frames are lost.
        if ready.is_readable() && !self.never_reads {
            self.read()?;
        }
        Ok(if ready.is_writable() { self.write() } else { 0 })
    }

    fn write(&mut self) -> usize {
        match self.socket.try_write(&self.unsent) {
            Ok(sent) => {
                _ = self.unsent.split_to(sent);
                sent
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            // Unread bytes may remain.
            Err(_) => {
                self.unsent.clear();
                self.takes_no_more = true;
                self.received.ended |= self.never_reads;
                0
            }
        }
    }

    fn read(&mut self) -> Result<()> {
        self.unread.reserve(BATCH);
        match self.socket.try_read_buf(&mut self.unread) {
            Ok(0) => self.received.ended = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.received.ended = true,
        }
        while let Some(frame) = Frame::take(&mut self.unread)? {
            self.handle(&frame);
        }
        Ok(())
    }

    fn handle(&mut self, frame: &Frame) {
        match frame.kind {
            SETTINGS if !frame.has(ACK) => self.reply(&Frame::new(SETTINGS, ACK, 0, Bytes::new())),
            PING if frame.has(ACK) => self.received.pongs += 1,
            PING if self.ignores_pings => {}
            PING => self.reply(&Frame::new(PING, ACK, 0, frame.payload.clone())),
            HEADERS if frame.has(END_STREAM) => self.received.ended_streams += 1,
            HEADERS => self.received.answered.push_back(frame.stream),
            WINDOW_UPDATE if frame.stream == 0 => self.received.room += i64::from(frame.code().unwrap_or_default()),
            RST_STREAM => *self.received.resets.entry(frame.code().unwrap_or_default()).or_default() += 1,
            GOAWAY => {
                let text = frame.payload.get(8..).unwrap_or_default();
                let text = String::from_utf8_lossy(text).into_owned();
                self.received.go_away = Some(GoAway { code: frame.code().unwrap_or_default(), text });
            }
            DATA => {
                self.received.bytes_of_data += frame.payload.len() as u64;
                self.unclaimed += frame.payload.len();
                if self.unclaimed >= UNCLAIMED {
                    let room = u32::try_from(std::mem::take(&mut self.unclaimed)).unwrap_or(u32::MAX);
                    self.reply(&Frame::window_update(0, room));
                }
            }
            _ => {}
        }
    }

    /// Queued between two batches of a flood.
    fn reply(&mut self, frame: &Frame) {
        if !self.takes_no_more {
            self.put(frame);
        }
    }
}

// === impl ReceivedFrames ===

impl ReceivedFrames {
    fn initial() -> Self {
        Self {
            room: 65_535,
            answered: VecDeque::new(),
            ended_streams: 0,
            resets: BTreeMap::new(),
            bytes_of_data: 0,
            pongs: 0,
            go_away: None,
            ended: false,
        }
    }
}
