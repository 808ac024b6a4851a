//! The streams of one connection: the client side of HTTP/2, without the socket.
//!
//! * In: the requests; received bytes with their time; the current time. Out: bytes to write, and the received
//!   messages.
//! * Always: windows are replenished as in h2, which proxies use: when half is used. A stream without a first message
//!   in time is reset and requested again, as is a refused one, after a backoff with jitter. Of the server's windows
//!   only that of the connection is respected: a request is shorter than any stream window.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use bytes::{Bytes, BytesMut};
use linkerd2_proxy_api::destination::GetDestination;
use prost::Message as _;

use super::{
    Method, StreamRequest,
    arrivals::Arrivals,
    message::{Messages, What, last_endpoint, profile},
};
use crate::http2::{
    ACK, CANCEL, DATA, END_HEADERS, END_STREAM, Frame, GET, GET_PROFILE, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE, PING,
    PREFACE, PREFIX, RST_STREAM, SETTINGS, WINDOW_UPDATE, grpc_message, grpc_request,
};

/// The default of HTTP/2, which is also the proxy's stream window.
const STREAM_WINDOW: u32 = 65_535;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Flag of DATA: the payload ends with padding.
const PADDED: u8 = 0x8;

/// The proxy's timeout for a stream's first message.
const FIRST_MESSAGE: Duration = Duration::from_secs(3);
const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(60);
const JITTER: f64 = 0.1;

pub(super) struct Streams {
    requests: Vec<SentRequest>,
    /// False for a client that never reads: windows are not replenished, and there are no timeouts.
    takes: bool,
    /// The streams in the order of their numbers 1, 3, 5 and so on.
    streams: Vec<LoadedStream>,
    /// Requests that wait for room in the server's window.
    queue: VecDeque<usize>,
    /// The remaining bytes in the server's connection window.
    room: usize,
    /// Bytes received on the connection and not yet returned to the server's window.
    taken: u32,
    began: Option<Instant>,
    /// Streams without a first message, oldest first, with their deadlines.
    waiting: VecDeque<(Instant, u32)>,
    /// Requests to send again, with their times.
    again: BinaryHeap<Reverse<(Instant, usize)>>,
    /// The error code of the server's GOAWAY.
    goaway: Option<u32>,
    /// Everything received since the last merge.
    pub(super) arrivals: Arrivals,
}

struct SentRequest {
    method: Method,
    /// The header block, which the requests of a method share.
    headers: Bytes,
    message: Bytes,
    attempts: u32,
}

struct LoadedStream {
    request: usize,
    state: StreamState,
    /// Bytes received and not yet returned to the stream's window.
    taken: u32,
    messages: Messages,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamState {
    /// Waits for its first message.
    Waits,
    Receives,
    Ended,
}

// === impl Streams ===

impl Streams {
    pub(super) fn new(requests: &[StreamRequest]) -> Self {
        let [get, get_profile] = [GET, GET_PROFILE].map(grpc_request);
        let encoded = |request: &StreamRequest| {
            let (path, context_token) = (request.path.clone(), request.token.clone());
            let message = GetDestination { scheme: String::new(), path, context_token }.encode_to_vec();
            let headers = if request.method == Method::Get { &get } else { &get_profile };
            SentRequest {
                method: request.method,
                headers: headers.clone(),
                message: grpc_message(&message),
                attempts: 0,
            }
        };
        Self {
            requests: requests.iter().map(encoded).collect(),
            takes: true,
            streams: Vec::with_capacity(requests.len()),
            queue: (0..requests.len()).collect(),
            room: 65_535,
            taken: 0,
            began: None,
            waiting: VecDeque::new(),
            again: BinaryHeap::new(),
            goaway: None,
            arrivals: Arrivals::default(),
        }
    }

    /// The streams of a client that never reads.
    pub(super) fn unread(requests: &[StreamRequest]) -> Self {
        Self { takes: false, ..Self::new(requests) }
    }

    /// Writes the first frames of a connection.
    pub(super) fn greet(out: &mut BytesMut) {
        out.extend_from_slice(PREFACE);
        Frame::settings(&[(INITIAL_WINDOW_SIZE, STREAM_WINDOW)]).put(out);
        Frame::window_update(0, CONNECTION_WINDOW - 65_535).put(out);
    }

    pub(super) fn ping(out: &mut BytesMut) {
        Frame::new(PING, 0, 0, Bytes::from_static(&[0; 8])).put(out);
    }

    /// Sends all requests for which the server has room.
    pub(super) fn send_requests(&mut self, now: Instant, out: &mut BytesMut) {
        self.began.get_or_insert(now);
        while let Some(request) = self.queue.front().copied() {
            let Some(SentRequest { headers, message, .. }) = self.requests.get(request) else { return };
            let Some(room) = self.room.checked_sub(message.len()) else { return };
            self.room = room;
            self.queue.pop_front();
            let number = u32::try_from(self.streams.len()).unwrap_or(u32::MAX).saturating_mul(2).saturating_add(1);
            Frame::new(HEADERS, END_HEADERS, number, headers.clone()).put(out);
            Frame::new(DATA, END_STREAM, number, message.clone()).put(out);
            self.streams.push(LoadedStream {
                request,
                state: StreamState::Waits,
                taken: 0,
                messages: Messages::default(),
            });
            if self.takes {
                self.waiting.push_back((now + FIRST_MESSAGE, number));
            }
        }
    }

    /// Processes the received frames.
    ///
    /// # Errors
    /// Fails when the server violates the protocol.
    pub(super) fn read(&mut self, unread: &mut BytesMut, now: Instant, out: &mut BytesMut) -> Result<()> {
        while let Some(frame) = Frame::take(unread)? {
            match frame.kind {
                DATA => self.data(&frame, now, out)?,
                // Without an earlier message, this is a refusal: the answer is only a status.
                HEADERS if frame.has(END_STREAM) => self.end(frame.stream, now, || "a status".to_owned()),
                RST_STREAM => {
                    let code = frame.code().unwrap_or_default();
                    self.end(frame.stream, now, || format!("RST_STREAM with code {code}"));
                }
                SETTINGS | PING if !frame.has(ACK) => {
                    let echo = if frame.kind == PING { frame.payload } else { Bytes::new() };
                    Frame::new(frame.kind, ACK, 0, echo).put(out);
                }
                WINDOW_UPDATE if frame.stream == 0 => {
                    self.room += usize::try_from(frame.code().unwrap_or_default())?;
                    if self.began.is_some() {
                        self.send_requests(now, out);
                    }
                }
                GOAWAY => self.goaway = frame.code(),
                _ => {}
            }
        }
        if self.takes && self.taken >= CONNECTION_WINDOW / 2 {
            Frame::window_update(0, std::mem::take(&mut self.taken)).put(out);
        }
        Ok(())
    }

    fn data(&mut self, frame: &Frame, now: Instant, out: &mut BytesMut) -> Result<()> {
        let Self { requests, streams, arrivals, began, takes, .. } = self;
        let length = u32::try_from(frame.payload.len())?;
        self.taken += length;
        let Some(stream) = place(frame.stream).and_then(|place| streams.get_mut(place)) else {
            bail!("DATA on stream {}, which was never opened", frame.stream);
        };
        if stream.state == StreamState::Ended {
            // The frame was sent before the server received our reset.
            return Ok(());
        }
        stream.taken += length;
        let payload = if frame.has(PADDED) { unpadded(&frame.payload) } else { &*frame.payload };
        let state = &mut stream.state;
        let about: fn(&[u8]) -> Option<(What, u16)> = match requests.get(stream.request).map(|request| request.method) {
            Some(Method::GetProfile) => |message| Some(profile(message)),
            _ => last_endpoint,
        };
        stream.messages.feed(payload, |length, message| {
            arrivals.counts.messages += 1;
            arrivals.counts.bytes += (PREFIX + length) as u64;
            if *state == StreamState::Waits {
                *state = StreamState::Receives;
                arrivals.first.extend(began.map(|began| now.saturating_duration_since(began)));
            } else if let Some((what, port)) = message.and_then(about) {
                arrivals.changed(what, port, now);
            }
        });
        if frame.has(END_STREAM) {
            self.end(frame.stream, now, || "DATA".to_owned());
        } else if *takes && stream.taken >= STREAM_WINDOW / 2 {
            Frame::window_update(frame.stream, std::mem::take(&mut stream.taken)).put(out);
        }
        Ok(())
    }

    /// Handles a stream that the server ended.
    fn end(&mut self, number: u32, now: Instant, why: impl FnOnce() -> String) {
        let Some(stream) = place(number).and_then(|place| self.streams.get_mut(place)) else { return };
        match std::mem::replace(&mut stream.state, StreamState::Ended) {
            StreamState::Waits => {
                let request = stream.request;
                self.arrivals.counts.refused += 1;
                self.request_again(request, now);
            }
            StreamState::Receives => self.arrivals.ended(why(), 1),
            StreamState::Ended => {}
        }
    }

    fn request_again(&mut self, request: usize, now: Instant) {
        let Some(SentRequest { attempts, .. }) = self.requests.get_mut(request) else { return };
        let back_off = FIRST_BACK_OFF.saturating_mul(1 << (*attempts).min(16)).min(LONGEST_BACK_OFF);
        *attempts += 1;
        let back_off = back_off.mul_f64(1.0 + JITTER * rand::random::<f64>());
        self.again.push(Reverse((now + back_off, request)));
    }

    /// The next time at which [`Streams::tick`] has work.
    pub(super) fn due(&mut self) -> Option<Instant> {
        while let Some((_, number)) = self.waiting.front()
            && !self.waits(*number)
        {
            self.waiting.pop_front();
        }
        let late = self.waiting.front().map(|(deadline, _)| *deadline);
        let again = self.again.peek().map(|Reverse((when, _))| *when);
        late.into_iter().chain(again).min()
    }

    fn waits(&self, number: u32) -> bool {
        let stream = place(number).and_then(|place| self.streams.get(place));
        stream.is_some_and(|stream| stream.state == StreamState::Waits)
    }

    /// Resets late streams, and sends the requests whose backoff has ended.
    pub(super) fn tick(&mut self, now: Instant, out: &mut BytesMut) {
        while let Some((deadline, number)) = self.waiting.front().copied()
            && deadline <= now
        {
            self.waiting.pop_front();
            if let Some(stream) = place(number).and_then(|place| self.streams.get_mut(place))
                && stream.state == StreamState::Waits
            {
                stream.state = StreamState::Ended;
                let request = stream.request;
                Frame::reset(number, CANCEL).put(out);
                self.arrivals.counts.timed_out += 1;
                self.request_again(request, now);
            }
        }
        while let Some(Reverse((when, request))) = self.again.peek().copied()
            && when <= now
        {
            self.again.pop();
            self.queue.push_back(request);
        }
        self.send_requests(now, out);
    }

    /// Counts the open streams as ended, because the connection has ended.
    pub(super) fn close(&mut self, why: &str) {
        let open = self.streams.iter().filter(|stream| stream.state != StreamState::Ended).count();
        let unsent = self.queue.len() + self.again.len();
        let why = match self.goaway {
            Some(code) => format!("{why}, after GOAWAY with code {code}"),
            None => why.to_owned(),
        };
        if open + unsent > 0 {
            self.arrivals.ended(why, (open + unsent) as u64);
        }
    }
}

/// The index of a stream: clients use the odd numbers.
fn place(number: u32) -> Option<usize> {
    usize::try_from(number.checked_sub(1)? / 2).ok()
}

fn unpadded(payload: &[u8]) -> &[u8] {
    let Some((padding, data)) = payload.split_first() else { return payload };
    data.get(..data.len().saturating_sub(usize::from(*padding))).unwrap_or_default()
}

#[cfg(test)]
#[path = "streams_tests.rs"]
mod tests;
