//! A client of the Destination API that breaks the rules of HTTP/2, or keeps them in bad faith.
//!
//! * In: the address of a destination, a path to ask for, frames of any kind. Out: the bytes on the wire as fast as the server
//!   takes them, and what the server said to that, above all how it ended the connection.
//! * Always: in one task and with no library between, so that nothing here holds the flood back; everything that comes is read
//!   between two writes, also after the server took no more, unless the client is deaf. It is polite where it was not told to
//!   be rude: SETTINGS and PING are acknowledged, the connection's window is given back.

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
    ACK, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE, PING, PREFACE, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, grpc_message, grpc_request,
};

/// Of RST_STREAM: the server takes no more streams.
pub const REFUSED_STREAM: u32 = 0x7;
/// Of GOAWAY: the peer is asked to stop what looks like an attack.
pub const ENHANCE_YOUR_CALM: u32 = 0xb;
/// The most that a window can be.
pub const ENDLESS: u32 = i32::MAX.unsigned_abs();

const GET: &str = "/io.linkerd.proxy.destination.Destination/Get";
const DEADLINE: Duration = Duration::from_secs(45);
/// How much is made before it is sent: enough that the socket is never empty.
const BATCH: usize = 64 * 1024;
/// From here on the connection's window is given back.
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
    /// Takes nothing from its socket.
    pub deaf: bool,
    pub heard: Heard,
}

/// What came from the server.
#[derive(Clone, Debug)]
pub struct Heard {
    /// How much DATA it takes on the whole connection, less what was sent. Who floods does not heed it.
    pub room: i64,
    /// Streams whose response headers came, oldest first.
    pub answered: VecDeque<u32>,
    /// How many streams it ended with headers: at once, or with trailers. If the request was not finished, it resets the
    /// stream as well.
    pub ended_streams: u64,
    /// How many streams it reset with each code.
    pub resets: BTreeMap<u32, u64>,
    pub bytes_of_data: u64,
    /// How many of our PINGs it acknowledged.
    pub pongs: u64,
    /// The last GOAWAY.
    pub go_away: Option<GoAway>,
    /// The connection has ended.
    pub ended: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoAway {
    pub code: u32,
    /// What the server adds for those who look for the reason.
    pub text: String,
}

// === impl HostileClient ===

impl HostileClient {
    /// With a window of its choice for each stream.
    pub async fn connect(address: SocketAddr, path: &str, window: u32) -> Result<Self> {
        let socket = timeout(DEADLINE, TcpStream::connect(address)).await.context("nobody accepts")?;
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
            deaf: false,
            heard: Heard::nothing(),
        };
        client.put(&Frame::settings(&[(INITIAL_WINDOW_SIZE, window)]));
        Ok(client)
    }

    /// A frame that goes with the next bytes.
    pub fn put(&mut self, frame: &Frame) {
        if frame.kind == DATA {
            self.heard.room -= i64::try_from(frame.payload.len()).unwrap_or(i64::MAX);
        }
        frame.put(&mut self.unsent);
    }

    /// The number of a new stream, of which nothing is said yet.
    pub fn new_stream(&mut self) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        stream
    }

    /// How many streams there were.
    pub fn streams(&self) -> u32 {
        self.next_stream / 2
    }

    /// Begins a request without its message.
    pub fn begin(&mut self) -> u32 {
        let stream = self.new_stream();
        self.put(&Frame::new(HEADERS, END_HEADERS, stream, self.request.0.clone()));
        stream
    }

    /// Asks for the path.
    pub fn get(&mut self) -> u32 {
        let stream = self.begin();
        self.put(&Frame::new(DATA, END_STREAM, stream, self.request.1.clone()));
        stream
    }

    /// Says `more` again and again, as fast as the server takes it, until the connection has ended. `turned` is told each time
    /// how many bytes went, and what was heard so far. When `more` has nothing to say, it waits for what the server says.
    ///
    /// # Errors
    /// When the server says what is no HTTP/2.
    pub async fn flood(
        &mut self,
        mut more: impl FnMut(&mut Self),
        mut turned: impl FnMut(usize, &Heard),
    ) -> Result<()> {
        while !self.heard.ended {
            while self.unsent.len() < BATCH && !self.takes_no_more {
                let before = self.unsent.len();
                more(self);
                if self.unsent.len() == before {
                    break;
                }
            }
            let bytes = self.turn().await?;
            turned(bytes, &self.heard);
            // The socket is always ready: without this nothing else would run on this thread.
            yield_now().await;
        }
        Ok(())
    }

    /// Sends what there is, and reads until it is as wanted, or the connection has ended.
    ///
    /// # Errors
    /// When that does not come in time.
    pub async fn until(&mut self, what: &str, mut wanted: impl FnMut(&Heard) -> bool) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        while !(self.unsent.is_empty() && (self.heard.ended || wanted(&self.heard))) {
            let turned = timeout_at(deadline, self.turn()).await;
            turned.with_context(|| format!("not seen in time: {what}; heard: {:?}", self.heard))??;
        }
        ensure!(wanted(&self.heard), "the connection ended before {what}; heard: {:?}", self.heard);
        Ok(())
    }

    /// Sends what there is, without reading.
    ///
    /// # Errors
    /// When the server does not take it in time.
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

    /// Waits until the socket can be used, and then sends and reads what goes without waiting. How many bytes were sent.
    async fn turn(&mut self) -> Result<usize> {
        let interest = match (self.unsent.is_empty(), self.deaf) {
            (true, _) => Interest::READABLE,
            (false, true) => Interest::WRITABLE,
            (false, false) => Interest::READABLE | Interest::WRITABLE,
        };
        let ready = self.socket.ready(interest).await?;
        // First, for the server's last words are lost when it closes a connection on which more comes.
        if ready.is_readable() && !self.deaf {
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
            // There may still be something to read.
            Err(_) => {
                self.unsent.clear();
                self.takes_no_more = true;
                self.heard.ended |= self.deaf;
                0
            }
        }
    }

    fn read(&mut self) -> Result<()> {
        self.unread.reserve(BATCH);
        match self.socket.try_read_buf(&mut self.unread) {
            Ok(0) => self.heard.ended = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.heard.ended = true,
        }
        while let Some(frame) = Frame::take(&mut self.unread)? {
            self.hear(&frame);
        }
        Ok(())
    }

    fn hear(&mut self, frame: &Frame) {
        match frame.kind {
            SETTINGS if !frame.has(ACK) => self.reply(&Frame::new(SETTINGS, ACK, 0, Bytes::new())),
            PING if frame.has(ACK) => self.heard.pongs += 1,
            PING => self.reply(&Frame::new(PING, ACK, 0, frame.payload.clone())),
            HEADERS if frame.has(END_STREAM) => self.heard.ended_streams += 1,
            HEADERS => self.heard.answered.push_back(frame.stream),
            WINDOW_UPDATE if frame.stream == 0 => self.heard.room += i64::from(frame.code().unwrap_or_default()),
            RST_STREAM => *self.heard.resets.entry(frame.code().unwrap_or_default()).or_default() += 1,
            GOAWAY => {
                let text = frame.payload.get(8..).unwrap_or_default();
                let text = String::from_utf8_lossy(text).into_owned();
                self.heard.go_away = Some(GoAway { code: frame.code().unwrap_or_default(), text });
            }
            DATA => {
                self.heard.bytes_of_data += frame.payload.len() as u64;
                self.unclaimed += frame.payload.len();
                if self.unclaimed >= UNCLAIMED {
                    let room = u32::try_from(std::mem::take(&mut self.unclaimed)).unwrap_or(u32::MAX);
                    self.reply(&Frame::window_update(0, room));
                }
            }
            _ => {}
        }
    }

    /// It comes between two batches of a flood.
    fn reply(&mut self, frame: &Frame) {
        if !self.takes_no_more {
            self.put(frame);
        }
    }
}

// === impl Heard ===

impl Heard {
    fn nothing() -> Self {
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
