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
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, stream::FuturesUnordered};
use h2::{
    Reason, RecvStream, SendStream,
    server::{Builder, SendResponse},
};
use http::{HeaderMap, Request, Response};
use strum::{IntoStaticStr, VariantArray};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use super::{
    budget::Budget,
    keepalive::Keepalive,
    reset_limit::{EARLY_RESET, ResetLimit},
    stall::{CloseReason, Shortage, StallDetector, StreamProgress},
    transport::Transport,
    wake_time::WakeTime,
};
use crate::{
    contain::{Panicked, Work, contain},
    destination::settings::DestinationLimits,
};

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
/// The memory that the frames of one full read may become: h2 keeps some hundred bytes for a request of thirty, and some
/// kilobytes for one of two hundred bytes with a hundred fields.
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
    /// The connection got no place in time.
    Full,
}

/// A request, with the connection's data about its stream.
pub(in crate::destination) struct IncomingRequest {
    pub(in crate::destination) request: Request<RecvStream>,
    /// When the oldest queued request on this connection arrived: an upper bound for the wait of this one.
    pub(in crate::destination) queued_since: Instant,
    pub(in crate::destination) progress: Arc<StreamProgress>,
}

/// The frames that follow the headers of a response.
pub(in crate::destination) trait ResponseBody: Send {
    /// Returns whether the response ends with its headers.
    fn is_empty(&self) -> bool;
    /// Waits for the next frame. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Option<BodyFrame>> + Send;
}

pub(in crate::destination) enum BodyFrame {
    Data(Bytes),
    Trailers(Box<HeaderMap>),
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
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(max_streams(limits))
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_send_buffer_size(SEND_BUFFER)
        .data_frame_budget(DATA_FRAME_BUDGET)
        .max_pending_accept_reset_streams(UNACCEPTED_RESETS);
    let mut connection = match builder.handshake::<_, Bytes>(transport).await {
        Ok(connection) => connection,
        Err(error) => return end_of(&error),
    };
    let mut keepalive = Keepalive::new(connection.ping_pong());
    let stall = Arc::<StallDetector>::default();
    let mut close_reason = pin!(stall.close_reason(limits.stream_stall_timeout, shortage, &budget));
    let mut stop = pin!(stop.cancelled());
    let mut stopping = false;
    let mut reset_limit = ResetLimit::new(Instant::now());
    let mut streams = FuturesUnordered::new();
    // When the oldest queued request arrived. Since then, no turn has accepted all requests that the client had sent.
    let mut queued_since: Option<Instant> = None;
    // Whether h2 holds requests that were not accepted yet.
    let mut backlog = false;
    let mut pause = pin!(sleep(PAUSE));
    let mut turn = |cx: &mut Context<'_>| -> Poll<ConnectionEnd> {
        if budget.is_flooded() {
            return Poll::Ready(ConnectionEnd::Flood);
        }
        // If h2 holds requests that can be answered, they are accepted before more data is read from the socket.
        let may_read = !backlog || !budget.is_open();
        let has_memory = limits.memory.has_room_for(MEMORY_OF_A_READ);
        budget.begin_turn(may_read, has_memory);
        // What arrives now stays in h2, which limits the number of requests and not their bytes. The acknowledgement that
        // would open the connection may be behind them, so it is read on slowly. When memory is exhausted nothing is read,
        // and if that lasts, the connection is closed.
        let is_paused = !budget.is_open() && !has_memory && {
            let is_over = pause.as_mut().poll(cx).is_ready();
            if is_over {
                pause.as_mut().reset(Instant::now() + PAUSE);
                _ = pause.as_mut().poll(cx);
            }
            !is_over || limits.memory.is_exhausted()
        };
        budget.pause(is_paused);
        if !stopping && stop.as_mut().poll(cx).is_ready() {
            connection.graceful_shutdown();
            stopping = true;
        }
        let ended = if stopping { ConnectionEnd::Shutdown } else { ConnectionEnd::Client };
        if !budget.is_open() {
            // Requests that arrive now cannot be answered. They wait for the client, so the wait is not a delay of the
            // server.
            queued_since = None;
            if let Poll::Ready(result) = connection.poll_closed(cx) {
                return Poll::Ready(result.err().map_or(ended, |error| end_of(&error)));
            }
        }
        if budget.is_open() {
            let since = queued_since.unwrap_or_else(|| wake_time.of_turn());
            let mut accepted = 0;
            while accepted < REQUESTS_PER_TURN {
                // This call also drives the reads and writes of the connection.
                let (request, respond) = match connection.poll_accept(cx) {
                    Poll::Ready(Some(Ok(incoming))) => incoming,
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(end_of(&error)),
                    Poll::Ready(None) => return Poll::Ready(ended),
                    Poll::Pending => break,
                };
                let progress = stall.stream();
                let response =
                    answer(IncomingRequest { request, queued_since: since, progress: Arc::clone(&progress) });
                streams.push(run(Box::pin(response), respond, progress, Arc::clone(&budget), since));
                accepted += 1;
            }
            backlog = accepted == REQUESTS_PER_TURN;
            queued_since = (backlog || budget.remaining_read() == 0).then_some(since);
            if backlog {
                cx.waker().wake_by_ref();
            }
            while let Poll::Ready(Some(end)) = streams.poll_next_unpin(cx) {
                if end == StreamEnd::ResetEarly && !reset_limit.allow(Instant::now(), streams.len()) {
                    return Poll::Ready(ConnectionEnd::Flood);
                }
            }
            // One write for the frames of all streams.
            if let Poll::Ready(result) = connection.poll_closed(cx) {
                return Poll::Ready(result.err().map_or(ended, |error| end_of(&error)));
            }
        }
        if let Poll::Ready(reason) = close_reason.as_mut().poll(cx) {
            return Poll::Ready(match reason {
                CloseReason::Stalled => ConnectionEnd::Stalled,
                CloseReason::Idle => ConnectionEnd::Idle,
                CloseReason::Memory => ConnectionEnd::Memory,
            });
        }
        keepalive.poll_dead(&budget, cx).map(|()| ConnectionEnd::Gone)
    };
    let ended = poll_fn(&mut turn).await;
    match ended {
        ConnectionEnd::Idle => connection.graceful_shutdown(),
        ConnectionEnd::Flood => connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM),
        _ => return ended,
    }
    // A client that does not receive GOAWAY treats the end as a connection error.
    _ = timeout(
        GOAWAY_TIMEOUT,
        poll_fn(|cx| {
            budget.begin_turn(true, true);
            connection.poll_closed(cx)
        }),
    )
    .await;
    ended
}

/// Returns the maximum number of streams of a connection. Unless `streams_per_connection` is lower, it exceeds the
/// limit of the server, so that the excess streams are refused with a status.
fn max_streams(limits: &DestinationLimits) -> u32 {
    u32::try_from(limits.streams.saturating_add(1_000)).unwrap_or(u32::MAX).min(limits.streams_per_connection)
}

/// Maps an h2 error to the end of the connection. h2 closes a connection that floods it with ENHANCE_YOUR_CALM.
fn end_of(error: &h2::Error) -> ConnectionEnd {
    debug!(%error, "discovery connection failed");
    match error.reason() {
        Some(Reason::ENHANCE_YOUR_CALM) if error.is_library() => ConnectionEnd::Flood,
        _ if error.is_library() => ConnectionEnd::Fault,
        _ => ConnectionEnd::Client,
    }
}

/// How a stream ended, for the reset limit of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    Otherwise,
    ResetEarly,
}

/// Runs one stream from its request to its end. The future of the response is boxed and dropped early, because a future
/// holds the memory of its largest state until it is dropped.
async fn run<B: ResponseBody>(
    mut response: Pin<Box<dyn Future<Output = Response<B>> + Send>>,
    mut respond: SendResponse<Bytes>,
    progress: Arc<StreamProgress>,
    budget: Arc<Budget>,
    since: Instant,
) -> StreamEnd {
    let answered = poll_fn(|cx| match respond.poll_reset(cx) {
        Poll::Ready(_) => Poll::Ready(Err(StreamClosed)),
        Poll::Pending => poll_contained(Work::Answering, || response.as_mut().poll(cx)).map(Ok),
    });
    let answered = answered.await;
    drop(response);
    budget.may_send_now().await;
    let sent = match answered {
        Ok(Ok(response)) => match send_headers(response, respond, &budget) {
            Ok(Some((body, stream))) => send_body(body, stream, &progress, &budget).await,
            Ok(None) => Ok(()),
            Err(closed) => Err(closed),
        },
        // The client is not at fault, so this does not count as a stream that was reset.
        Ok(Err(_)) => {
            respond.send_reset(Reason::INTERNAL_ERROR);
            Ok(())
        }
        Err(closed) => Err(closed),
    };
    match sent {
        Err(StreamClosed) if since.elapsed() < EARLY_RESET => StreamEnd::ResetEarly,
        _ => StreamEnd::Otherwise,
    }
}

/// Polls a future that reads what a client or a tenant wrote. If it panics, only its stream ends: the connection has
/// streams of many clients.
fn poll_contained<T>(kind: Work, poll: impl FnOnce() -> Poll<T>) -> Poll<Result<T, Panicked>> {
    match contain(kind, poll) {
        Ok(polled) => polled.map(Ok),
        Err(panicked) => {
            error!(%panicked, "a discovery stream is reset");
            Poll::Ready(Err(panicked))
        }
    }
}

/// The stream was reset, by the client or by the server, or its connection is closed.
struct StreamClosed;

/// Sends the headers. Returns the body and its stream, or `None` if the response ends with its headers.
fn send_headers<B: ResponseBody>(
    response: Response<B>,
    mut respond: SendResponse<Bytes>,
    budget: &Budget,
) -> Result<Option<(B, SendStream<Bytes>)>, StreamClosed> {
    let (head, body) = response.into_parts();
    let ends = body.is_empty();
    budget.record_headers();
    let stream = respond.send_response(Response::from_parts(head, ()), ends).map_err(|_| StreamClosed)?;
    Ok((!ends).then_some((body, stream)))
}

async fn send_body<B: ResponseBody>(
    mut body: B,
    mut stream: SendStream<Bytes>,
    progress: &StreamProgress,
    budget: &Budget,
) -> Result<(), StreamClosed> {
    loop {
        let frame = {
            let mut next = pin!(body.next());
            poll_fn(|cx| match poll_contained(Work::Streaming, || next.as_mut().poll(cx)) {
                Poll::Ready(frame) => Poll::Ready(Ok(frame)),
                Poll::Pending => stream.poll_reset(cx).map(|_| Err(StreamClosed)),
            })
            .await?
        };
        let Ok(frame) = frame else {
            stream.send_reset(Reason::INTERNAL_ERROR);
            return Ok(());
        };
        match frame {
            Some(BodyFrame::Data(data)) => send_data(data, &mut stream, progress, budget).await?,
            Some(BodyFrame::Trailers(trailers)) => {
                budget.may_send_now().await;
                budget.record_headers();
                return stream.send_trailers(*trailers).map_err(|_| StreamClosed);
            }
            None => return stream.send_data(Bytes::new(), true).map_err(|_| StreamClosed),
        }
    }
}

/// Passes data to h2 in parts that fit into the client's window, no faster than the budget allows.
async fn send_data(
    mut data: Bytes,
    stream: &mut SendStream<Bytes>,
    progress: &StreamProgress,
    budget: &Budget,
) -> Result<(), StreamClosed> {
    while !data.is_empty() {
        // To reserve capacity wakes the stream if it can be had at once. Without the stream's own waker this costs nothing.
        // With it, the stream would be polled twice for each frame, and as [`FuturesUnordered`] ends its turn after two
        // such wake-ups, each write would have two frames. The waker is registered again when the stream has to wait.
        if stream.poll_reset(&mut Context::from_waker(Waker::noop())).is_ready() {
            return Err(StreamClosed);
        }
        stream.reserve_capacity(data.len());
        let window = poll_fn(|cx| {
            ready!(budget.poll_send(cx));
            let window = stream.capacity();
            if window > 0 {
                return Poll::Ready(Ok(window));
            }
            progress.waits();
            if progress.poll_stalled(cx).is_ready() {
                stream.send_reset(Reason::CANCEL);
                return Poll::Ready(Err(StreamClosed));
            }
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(Err(StreamClosed));
            }
            match ready!(stream.poll_capacity(cx)) {
                Some(Ok(window)) => Poll::Ready(Ok(window)),
                Some(Err(_)) | None => Poll::Ready(Err(StreamClosed)),
            }
        });
        let window = window.await?;
        let part = data.split_to(window.min(data.len()));
        progress.took(part.len());
        budget.record_data(part.len());
        stream.send_data(part, false).map_err(|_| StreamClosed)?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
