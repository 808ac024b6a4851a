//! The streams of one connection: the client's half of HTTP/2, without its socket.
//!
//! * In: what to ask for; bytes that were read, and when; the time. Out: bytes to write, and what the streams were told.
//! * Always: windows are given back as h2 does it, which is what proxies use: when half of one is used. A stream that has no
//!   first message in time is reset and asked for anew, as is one that is refused, after a back-off with jitter. Of the
//!   server's windows only that of the connection is minded: a request is shorter than any stream's.

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
    Ask,
    arrivals::Arrivals,
    message::{Messages, PREFIX, last_endpoint},
};
use crate::http2::{
    ACK, CANCEL, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE, PING, PREFACE, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, grpc_message, grpc_request,
};

const GET: &str = "/io.linkerd.proxy.destination.Destination/Get";
/// What HTTP/2 begins with, and the proxy's for a stream.
const STREAM_WINDOW: u32 = 65_535;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Of DATA: it ends with bytes that mean nothing.
const PADDED: u8 = 0x8;

/// How long the proxy waits for a stream's first message.
const FIRST_MESSAGE: Duration = Duration::from_secs(3);
const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(60);
const JITTER: f64 = 0.1;

pub(super) struct Streams {
    requests: Vec<Request>,
    /// Whether what came is taken: else no window is given back, and nothing is waited for.
    takes: bool,
    /// What a request's headers are, whatever it asks for.
    headers: Bytes,
    /// By their number: 1, 3, 5 and so on.
    streams: Vec<Stream>,
    /// Requests that wait for the server to make room.
    queue: VecDeque<usize>,
    /// How much the server takes.
    room: usize,
    /// What was taken from the server's window of the connection and not given back.
    taken: u32,
    began: Option<Instant>,
    /// Streams that have no first message, the oldest first, and until when they may have none.
    waiting: VecDeque<(Instant, u32)>,
    /// Requests that are made anew, and when.
    again: BinaryHeap<Reverse<(Instant, usize)>>,
    /// What the server said when it announced the end of the connection.
    goaway: Option<u32>,
    /// What came since the last look at it.
    pub(super) arrivals: Arrivals,
}

struct Request {
    message: Bytes,
    attempts: u32,
}

struct Stream {
    request: usize,
    state: State,
    /// Of its window.
    taken: u32,
    messages: Messages,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// For its first message.
    Waits,
    Told,
    Ended,
}

// === impl Streams ===

impl Streams {
    pub(super) fn new(asks: &[Ask]) -> Self {
        let request = |ask: &Ask| {
            let (path, context_token) = (ask.path.clone(), ask.token.clone());
            let message = GetDestination { scheme: String::new(), path, context_token }.encode_to_vec();
            Request { message: grpc_message(&message), attempts: 0 }
        };
        Self {
            requests: asks.iter().map(request).collect(),
            takes: true,
            headers: grpc_request(GET),
            streams: Vec::with_capacity(asks.len()),
            queue: (0..asks.len()).collect(),
            room: 65_535,
            taken: 0,
            began: None,
            waiting: VecDeque::new(),
            again: BinaryHeap::new(),
            goaway: None,
            arrivals: Arrivals::default(),
        }
    }

    /// Of a client that leaves unread whatever comes.
    pub(super) fn unread(asks: &[Ask]) -> Self {
        Self { takes: false, ..Self::new(asks) }
    }

    /// What a connection begins with.
    pub(super) fn greet(out: &mut BytesMut) {
        out.extend_from_slice(PREFACE);
        Frame::settings(&[(INITIAL_WINDOW_SIZE, STREAM_WINDOW)]).put(out);
        Frame::window_update(0, CONNECTION_WINDOW - 65_535).put(out);
    }

    /// Asks for everything, as far as the server has room.
    pub(super) fn ask(&mut self, now: Instant, out: &mut BytesMut) {
        self.began.get_or_insert(now);
        while let Some(request) = self.queue.front().copied() {
            let Some(Request { message, .. }) = self.requests.get(request) else { return };
            let Some(room) = self.room.checked_sub(message.len()) else { return };
            self.room = room;
            self.queue.pop_front();
            let number = u32::try_from(self.streams.len()).unwrap_or(u32::MAX).saturating_mul(2).saturating_add(1);
            Frame::new(HEADERS, END_HEADERS, number, self.headers.clone()).put(out);
            Frame::new(DATA, END_STREAM, number, message.clone()).put(out);
            self.streams.push(Stream { request, state: State::Waits, taken: 0, messages: Messages::default() });
            if self.takes {
                self.waiting.push_back((now + FIRST_MESSAGE, number));
            }
        }
    }

    /// Takes the frames off what was read.
    ///
    /// # Errors
    /// When the server breaks the rules.
    pub(super) fn read(&mut self, unread: &mut BytesMut, now: Instant, out: &mut BytesMut) -> Result<()> {
        while let Some(frame) = Frame::take(unread)? {
            match frame.kind {
                DATA => self.data(&frame, now, out)?,
                // Without a message before it this is a refusal: an answer that is a status only.
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
                        self.ask(now, out);
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
        let Self { streams, arrivals, began, takes, .. } = self;
        let length = u32::try_from(frame.payload.len())?;
        self.taken += length;
        let Some(stream) = place(frame.stream).and_then(|place| streams.get_mut(place)) else {
            bail!("DATA on stream {}, which was never opened", frame.stream);
        };
        if stream.state == State::Ended {
            // It was under way when we reset the stream.
            return Ok(());
        }
        stream.taken += length;
        let payload = if frame.has(PADDED) { unpadded(&frame.payload) } else { &*frame.payload };
        let state = &mut stream.state;
        stream.messages.feed(payload, |length, message| {
            arrivals.counts.messages += 1;
            arrivals.counts.bytes += (PREFIX + length) as u64;
            if *state == State::Waits {
                *state = State::Told;
                arrivals.first.extend(began.map(|began| now.saturating_duration_since(began)));
            } else if let Some((what, port)) = message.and_then(last_endpoint) {
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

    /// The server ended a stream.
    fn end(&mut self, number: u32, now: Instant, why: impl FnOnce() -> String) {
        let Some(stream) = place(number).and_then(|place| self.streams.get_mut(place)) else { return };
        match std::mem::replace(&mut stream.state, State::Ended) {
            State::Waits => {
                let request = stream.request;
                self.arrivals.counts.refused += 1;
                self.ask_again(request, now);
            }
            State::Told => self.arrivals.ended(why(), 1),
            State::Ended => {}
        }
    }

    fn ask_again(&mut self, request: usize, now: Instant) {
        let Some(Request { attempts, .. }) = self.requests.get_mut(request) else { return };
        let back_off = FIRST_BACK_OFF.saturating_mul(1 << (*attempts).min(16)).min(LONGEST_BACK_OFF);
        *attempts += 1;
        let back_off = back_off.mul_f64(1.0 + JITTER * rand::random::<f64>());
        self.again.push(Reverse((now + back_off, request)));
    }

    /// When [`Streams::tick`] has something to do.
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
        stream.is_some_and(|stream| stream.state == State::Waits)
    }

    /// Gives up streams that are late, and asks anew for those whose back-off is over.
    pub(super) fn tick(&mut self, now: Instant, out: &mut BytesMut) {
        while let Some((deadline, number)) = self.waiting.front().copied()
            && deadline <= now
        {
            self.waiting.pop_front();
            if let Some(stream) = place(number).and_then(|place| self.streams.get_mut(place))
                && stream.state == State::Waits
            {
                stream.state = State::Ended;
                let request = stream.request;
                Frame::reset(number, CANCEL).put(out);
                self.arrivals.counts.timed_out += 1;
                self.ask_again(request, now);
            }
        }
        while let Some(Reverse((when, request))) = self.again.peek().copied()
            && when <= now
        {
            self.again.pop();
            self.queue.push_back(request);
        }
        self.ask(now, out);
    }

    /// The connection has ended, and with it all that was open.
    pub(super) fn close(&mut self, why: &str) {
        let open = self.streams.iter().filter(|stream| stream.state != State::Ended).count();
        let unasked = self.queue.len() + self.again.len();
        let why = match self.goaway {
            Some(code) => format!("{why}, after GOAWAY with code {code}"),
            None => why.to_owned(),
        };
        if open + unasked > 0 {
            self.arrivals.ended(why, (open + unasked) as u64);
        }
    }
}

/// Where a stream's number leads to: clients have the odd ones.
fn place(number: u32) -> Option<usize> {
    usize::try_from(number.checked_sub(1)? / 2).ok()
}

fn unpadded(payload: &[u8]) -> &[u8] {
    let Some((padding, data)) = payload.split_first() else { return payload };
    data.get(..data.len().saturating_sub(usize::from(*padding))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::What;

    fn frames(out: &mut BytesMut) -> Vec<(u8, u8, u32)> {
        std::iter::from_fn(|| Frame::take(out).unwrap()).map(|frame| (frame.kind, frame.flags, frame.stream)).collect()
    }

    fn opened(count: usize) -> (Streams, Instant) {
        let ask = Ask { path: "web.default.svc.cluster.local:80".to_owned(), token: String::new() };
        let mut streams = Streams::new(&vec![ask; count]);
        let (now, mut out) = (Instant::now(), BytesMut::new());
        streams.ask(now, &mut out);
        assert_eq!(frames(&mut out).len(), 2 * streams.streams.len());
        (streams, now)
    }

    fn read(streams: &mut Streams, frame: &Frame, now: Instant) -> Vec<(u8, u8, u32)> {
        let (mut unread, mut out) = (BytesMut::new(), BytesMut::new());
        frame.put(&mut unread);
        streams.read(&mut unread, now, &mut out).unwrap();
        assert!(unread.is_empty());
        frames(&mut out)
    }

    /// A Remove of 10.0.0.1 with this port, below 128.
    fn remove(port: u8) -> Bytes {
        grpc_message(&[0x12, 11, 0x0a, 9, 0x0a, 5, 0x0d, 1, 0, 0, 10, 0x10, port])
    }

    #[test]
    fn the_first_message_is_timed_and_later_ones_are_told_apart() {
        let (mut streams, began) = opened(2);
        let later = began + Duration::from_millis(7);
        for number in [1, 3, 1, 3] {
            read(&mut streams, &Frame::new(DATA, 0, number, remove(80)), later);
        }
        assert_eq!(streams.arrivals.first, [Duration::from_millis(7); 2]);
        assert_eq!((streams.arrivals.counts.messages, streams.arrivals.counts.bytes), (4, 4 * 18));
        assert_eq!(streams.arrivals.changes.len(), 1);
        let mut all = Arrivals::default();
        all.absorb(&mut streams.arrivals);
        assert_eq!((all.told(What::Remove, 80), all.told(What::Add, 80)), (2, 0));
        assert_eq!(streams.due(), None);
    }

    #[test]
    fn windows_are_given_back_when_half_of_one_is_used() {
        let (mut streams, now) = opened(40);
        let mut given = Vec::new();
        for number in (0..40).map(|place| place * 2 + 1) {
            for _ in 0..2 {
                given.extend(read(&mut streams, &Frame::new(DATA, 0, number, vec![0; 16_384]), now));
            }
        }
        let of_the_connection = given.iter().filter(|(_, _, stream)| *stream == 0).count();
        assert_eq!((given.len() - of_the_connection, of_the_connection), (40, 2));
        assert!(given.iter().all(|(kind, _, _)| *kind == WINDOW_UPDATE));
    }

    #[test]
    fn a_stream_that_is_refused_or_late_is_asked_for_anew() {
        let (mut streams, began) = opened(2);
        read(&mut streams, &Frame::new(HEADERS, END_HEADERS | END_STREAM, 1, Bytes::new()), began);
        assert_eq!((streams.arrivals.counts.refused, streams.arrivals.counts.timed_out), (1, 0));
        let due = streams.due().unwrap() - began;
        assert!((FIRST_BACK_OFF..=FIRST_BACK_OFF.mul_f64(1.1)).contains(&due), "{due:?}");
        let mut out = BytesMut::new();
        streams.tick(began + FIRST_MESSAGE, &mut out);
        let asked = |number| [(HEADERS, END_HEADERS, number), (DATA, END_STREAM, number)];
        assert_eq!(frames(&mut out), [&[(RST_STREAM, 0, 3)], &asked(5)[..]].concat());
        assert_eq!((streams.arrivals.counts.refused, streams.arrivals.counts.timed_out), (1, 1));
        streams.tick(began + FIRST_MESSAGE * 2, &mut out);
        assert_eq!(frames(&mut out), [&[(RST_STREAM, 0, 5)], &asked(7)[..]].concat());
    }

    #[test]
    fn requests_wait_for_the_servers_window() {
        let (mut streams, now) = opened(2_000);
        let open = streams.streams.len();
        assert!(open > 1_000 && open < 2_000, "{open}");
        assert_eq!(read(&mut streams, &Frame::window_update(0, 1 << 20), now).len(), 2 * (2_000 - open));
    }

    #[test]
    fn the_ends_of_streams_are_counted_by_their_reasons() {
        let (mut streams, now) = opened(3);
        for number in [1, 3, 5] {
            read(&mut streams, &Frame::new(DATA, 0, number, remove(80)), now);
        }
        assert_eq!(read(&mut streams, &Frame::new(PING, 0, 0, vec![1; 8]), now), [(PING, ACK, 0)]);
        read(&mut streams, &Frame::reset(1, 8), now);
        read(&mut streams, &Frame::new(HEADERS, END_HEADERS | END_STREAM, 3, Bytes::new()), now);
        read(&mut streams, &Frame::new(GOAWAY, 0, 0, vec![0, 0, 0, 0, 0, 0, 0, 11]), now);
        streams.close("closed");
        let ended: Vec<&str> = streams.arrivals.ended.keys().map(String::as_str).collect();
        assert_eq!(ended, ["RST_STREAM with code 8", "a status", "closed, after GOAWAY with code 11"]);
    }
}
