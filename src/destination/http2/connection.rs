//! The task that serves one HTTP/2 connection and its streams.
//!
//! ```text
//! a turn: accept new requests ─▶ poll the streams that have something to send ─▶ one write for all of them
//! ```
//!
//! In: a socket, and a function from a request to its response. Out: frames, passed to h2 no faster than the client's
//! window allows. Always holds: at most one frame of each stream is in flight; a stream whose client accepts no data is
//! reset, and if no client of the connection accepts data after that, the connection is closed; a dead peer is
//! detected; a turn is short ([`Budget`]) for any input.
//!
//! The streams have no tasks: a change usually affects many streams of a connection, and one task sends it in one
//! write.
//!
//! The module uses h2 without hyper. hyper (1.12) polls a body for its next frame while the last frame still waits for
//! the client's window, so it hides that a client does not read. It also cannot reset a single stream.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, stream::FuturesUnordered};
use h2::{
    Reason, RecvStream,
    server::{Builder, Connection, Handshake, SendResponse},
};
use http::{Request, Response};
use strum::{IntoStaticStr, VariantArray};
use tokio::{
    sync::watch,
    time::{Instant, Sleep, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{
    arrivals::{AcceptingTurn, Arrivals, TurnRead},
    budget::Budget,
    keepalive::Keepalive,
    reset_limit::ResetLimit,
    stall::{CloseReason, Shortage, StallDetector, StreamProgress},
    stream::{ResponseBody, StreamEnd, run},
    transport::Transport,
    wake_time::WakeTime,
};
use crate::destination::settings::DestinationLimits;

/// The maximum size of a request's headers, counted with 32 extra bytes for each field. Proxies send some hundred
/// bytes. For many small fields, h2 allocates many times their size.
const MAX_HEADER_BYTES: u32 = 8 * 1024;
/// The bytes that h2 may buffer for a stream whose client has window but does not read its socket.
const SEND_BUFFER: usize = 16 * 1024;
/// The maximum number of streams that a turn accepts. The updates of other streams wait until they are accepted.
const REQUESTS_PER_TURN: usize = 16;
/// The maximum number of reset streams that were not accepted yet. A client whose requests time out on a busy server
/// resets all its streams together. With h2's default of 20 this would close the connection, and the client would
/// reconnect and open all streams again.
const UNACCEPTED_RESETS: usize = 1_000;
/// h2 adds up by how much the queued DATA frames are shorter than 256 bytes, and closes the connection when the sum
/// exceeds this budget. A request is such a frame, and one turn reads some hundred requests. h2's default of 32 KiB is
/// too small for a client that opens many streams together.
const DATA_FRAME_BUDGET: usize = 512 * 1024;
/// The memory that the frames of one full read may become: h2 keeps some hundred bytes for a request of thirty, and
/// some kilobytes for one of two hundred bytes with a hundred fields.
const MEMORY_OF_A_READ: usize = 6 * 1024 * 1024;
/// How long a connection whose requests cannot be answered reads nothing after each read while memory is short.
const PAUSE: Duration = Duration::from_millis(50);
/// The time for a client to receive GOAWAY.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(2);

/// The reason why a connection ended, as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(in crate::destination) enum ConnectionEnd {
    /// The client closed the connection, or the socket failed.
    Client,
    /// The process stops.
    Shutdown,
    /// No client accepted data on the connection.
    Stalled,
    /// The connection had no stream for a long time.
    Idle,
    /// The peer did not answer a PING.
    Gone,
    /// The client sent more than any proxy needs to.
    Flood,
    /// The client violated the HTTP/2 protocol.
    Fault,
    /// The server had no memory for the connection, or needed that of its unread data.
    Memory,
    /// The connection got no permit in time.
    Full,
}

impl From<CloseReason> for ConnectionEnd {
    fn from(reason: CloseReason) -> Self {
        match reason {
            CloseReason::Stalled => Self::Stalled,
            CloseReason::Idle => Self::Idle,
            CloseReason::Memory => Self::Memory,
        }
    }
}

/// A request, with the connection's data about its stream.
pub(in crate::destination) struct IncomingRequest {
    pub(in crate::destination) request: Request<RecvStream>,
    /// A time before its arrival.
    pub(in crate::destination) queued_since: Instant,
    pub(in crate::destination) progress: Arc<StreamProgress>,
}

/// Serves a connection until it ends or has to be closed. After `stop` is cancelled, the connection accepts no more
/// streams and ends with its last stream.
pub(in crate::destination) async fn serve<A, F, B>(
    transport: Transport,
    wake_time: &WakeTime,
    limits: &DestinationLimits,
    stop: &CancellationToken,
    shortage: watch::Receiver<Shortage>,
    answer: A,
) -> ConnectionEnd
where
    A: Fn(IncomingRequest) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: ResponseBody + 'static,
{
    let budget = transport.budget();
    let mut connection = match handshake(transport, limits).await {
        Ok(connection) => connection,
        Err(error) => return end_of(&error),
    };
    let mut keepalive = Keepalive::new(connection.ping_pong());
    let stall = Arc::<StallDetector>::default();
    let mut close_reason = pin!(stall.close_reason(limits.stream_stall_timeout, shortage, &budget));
    let (mut stop, mut pause) = (pin!(stop.cancelled()), pin!(sleep(PAUSE)));
    let start = |request, respond, queued_since| {
        let progress = stall.stream();
        let response = answer(IncomingRequest { request, queued_since, progress: Arc::clone(&progress) });
        run(Box::pin(response), respond, progress, Arc::clone(&budget), queued_since)
    };
    let mut task = ConnectionTask {
        streams: FuturesUnordered::new(),
        connection,
        start,
        budget: &budget,
        limits,
        wake_time,
        reset_limit: ResetLimit::new(Instant::now()),
        stopping: false,
        arrivals: Arrivals::default(),
        backlog: false,
    };
    let turn = poll_fn(|cx| {
        if budget.is_flooded() {
            return Poll::Ready(ConnectionEnd::Flood);
        }
        task.begin_turn(pause.as_mut(), cx);
        if !task.stopping && stop.as_mut().poll(cx).is_ready() {
            task.connection.graceful_shutdown();
            task.stopping = true;
        }
        if let Poll::Ready(end) = task.poll_streams(cx) {
            return Poll::Ready(end);
        }
        if let Poll::Ready(reason) = close_reason.as_mut().poll(cx) {
            return Poll::Ready(reason.into());
        }
        keepalive.poll_dead(&budget, cx).map(|()| ConnectionEnd::Gone)
    });
    let ended = turn.await;
    task.close(ended).await;
    ended
}

fn handshake(transport: Transport, limits: &DestinationLimits) -> Handshake<Transport, Bytes> {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(max_streams(limits))
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_send_buffer_size(SEND_BUFFER)
        .data_frame_budget(DATA_FRAME_BUDGET)
        .max_pending_accept_reset_streams(UNACCEPTED_RESETS);
    builder.handshake(transport)
}

/// Returns the maximum number of streams of a connection. Unless `streams_per_connection` is lower, it exceeds the
/// limit of the server, so that the excess streams are refused with a status.
fn max_streams(limits: &DestinationLimits) -> u32 {
    u32::try_from(limits.streams.saturating_add(1_000)).unwrap_or(u32::MAX).min(limits.streams_per_connection)
}

/// Maps an h2 error to the end of the connection. If a client floods h2, h2 closes its connection with
/// ENHANCE_YOUR_CALM.
fn end_of(error: &h2::Error) -> ConnectionEnd {
    debug!(%error, "discovery connection failed");
    match error.reason() {
        Some(Reason::ENHANCE_YOUR_CALM) if error.is_library() => ConnectionEnd::Flood,
        _ if error.is_library() => ConnectionEnd::Fault,
        _ => ConnectionEnd::Client,
    }
}

/// The state of a connection's task.
struct ConnectionTask<'a, S, R> {
    streams: FuturesUnordered<R>,
    connection: Connection<Transport, Bytes>,
    /// Starts the stream of a request, with the time since which the request may have waited.
    start: S,
    budget: &'a Budget,
    limits: &'a DestinationLimits,
    wake_time: &'a WakeTime,
    reset_limit: ResetLimit,
    stopping: bool,
    arrivals: Arrivals,
    /// Whether h2 holds requests that were not accepted yet.
    backlog: bool,
}

// === impl ConnectionTask ===

impl<S, R> ConnectionTask<'_, S, R>
where
    S: Fn(Request<RecvStream>, SendResponse<Bytes>, Instant) -> R,
    R: Future<Output = StreamEnd>,
{
    /// Decides how much this turn reads.
    fn begin_turn(&self, pause: Pin<&mut Sleep>, cx: &mut Context<'_>) {
        // If h2 holds requests that can be answered, they are accepted before more data is read from the socket.
        let may_read = !self.backlog || !self.budget.is_open();
        let has_memory = self.limits.memory.has_room_for(MEMORY_OF_A_READ);
        self.budget.begin_turn(may_read, has_memory);
        // What arrives now stays in h2, which limits the number of requests and not their bytes. The acknowledgement
        // that would open the connection may be behind them, so it is read on slowly. When memory is exhausted nothing
        // is read, and if that lasts, the connection is closed.
        let is_paused =
            !self.budget.is_open() && !has_memory && (!is_over(pause, cx) || self.limits.memory.is_exhausted());
        self.budget.pause(is_paused);
    }

    /// Accepts requests, polls the streams, and writes their frames. Ready when the connection ends.
    fn poll_streams(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        if !self.budget.is_open() {
            // Requests that arrive now cannot be answered.
            self.arrivals.wait_for_the_client();
            if let Poll::Ready(end) = self.poll_closed(cx) {
                return Poll::Ready(end);
            }
        }
        if !self.budget.is_open() {
            return Poll::Pending;
        }
        if let Err(end) = self.accept(cx) {
            return Poll::Ready(end);
        }
        while let Poll::Ready(Some(end)) = self.streams.poll_next_unpin(cx) {
            if end == StreamEnd::ResetEarly && !self.reset_limit.allow(Instant::now(), self.streams.len()) {
                return Poll::Ready(ConnectionEnd::Flood);
            }
        }
        // One write for the frames of all streams.
        self.poll_closed(cx)
    }

    /// Starts the streams of new requests.
    ///
    /// # Errors
    /// When the connection ends.
    fn accept(&mut self, cx: &mut Context<'_>) -> Result<(), ConnectionEnd> {
        let (began, since) = (Instant::now(), self.arrivals.since(self.wake_time.of_turn()));
        let (had_requests, mut accepted) = (self.backlog, 0);
        while accepted < REQUESTS_PER_TURN {
            // This call also drives the reads and writes of the connection.
            match self.connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => self.streams.push((self.start)(request, respond, since)),
                Poll::Ready(Some(Err(error))) => return Err(end_of(&error)),
                Poll::Ready(None) => return Err(self.end()),
                Poll::Pending => break,
            }
            accepted += 1;
        }
        self.backlog = accepted == REQUESTS_PER_TURN;
        let read = match (had_requests, self.budget.remaining_read()) {
            (true, _) => TurnRead::Nothing,
            (false, 0) => TurnRead::Part,
            (false, _) => TurnRead::All,
        };
        self.arrivals.end_turn(&AcceptingTurn { began, since, read, leaves_requests: self.backlog });
        if self.backlog {
            cx.waker().wake_by_ref();
        }
        Ok(())
    }

    /// Reads and writes. Ready when the connection is closed.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        self.connection.poll_closed(cx).map(|result| result.err().map_or(self.end(), |error| end_of(&error)))
    }

    /// Returns the end of a connection that is closed without an error.
    fn end(&self) -> ConnectionEnd {
        if self.stopping { ConnectionEnd::Shutdown } else { ConnectionEnd::Client }
    }

    /// Sends GOAWAY if this end needs it.
    async fn close(&mut self, end: ConnectionEnd) {
        match end {
            ConnectionEnd::Idle => self.connection.graceful_shutdown(),
            ConnectionEnd::Flood => self.connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM),
            _ => return,
        }
        // A client that does not receive GOAWAY treats the end as a connection error.
        let sent = poll_fn(|cx| {
            self.budget.begin_turn(true, true);
            self.connection.poll_closed(cx)
        });
        _ = timeout(GOAWAY_TIMEOUT, sent).await;
    }
}

/// Returns whether the pause is over, and then begins the next one.
fn is_over(mut pause: Pin<&mut Sleep>, cx: &mut Context<'_>) -> bool {
    let is_over = pause.as_mut().poll(cx).is_ready();
    if is_over {
        pause.as_mut().reset(Instant::now() + PAUSE);
        _ = pause.poll(cx);
    }
    is_over
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
