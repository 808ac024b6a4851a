//! One HTTP/2 connection, and the streams on it: one task.
//!
//! ```text
//! a turn: requests that have come ─▶ streams that have something to say ─▶ one write for all of them
//! ```
//!
//! In: a socket, and what answers a request. Out: frames, handed to h2 no faster than the client makes room for them. Always
//! holds: of each stream at most one piece is under way; a stream whose client takes nothing of what waits for it is reset,
//! and then a connection on which nobody takes anything is closed; a peer that is gone is noticed; a turn is short
//! ([`Pace`]), whatever the client sends.
//!
//! One task and not one for each stream: a change reaches all streams of a connection at once, and so leaves in one write.
//!
//! On h2 itself and not on hyper: hyper (1.12) asks a body for its next frame while the last one still waits for the client's
//! window, so nobody could see that a client does not read, and it cannot reset one stream.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, stream::FuturesUnordered};
use h2::{
    Reason, RecvStream, SendStream,
    server::{Builder, SendResponse},
};
use http::{HeaderMap, Request, Response};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{
    budget::Pace,
    keepalive::Pulse,
    reset_limit::{EARLY, Resets},
    stall::{ConnectionProgress, Progress, Useless},
    transport::Transport,
    wake_time::Readiness,
};
use crate::destination::settings::Limits;

/// Of a request, with 32 for each field. Proxies send some hundred; h2 holds many times as much for many small fields.
const HEADER_BYTES: u32 = 8 * 1024;
/// What h2 may keep of a stream whose client has room for it, but does not empty its socket.
const SEND_BUFFER: usize = 16 * 1024;
/// Streams that begin in one turn. Others wait for their updates meanwhile.
const REQUESTS: usize = 16;
/// Resets of streams that were not accepted yet. A client that gave up on a busy server resets all that it asked for at
/// once, which must not cost it the connection too: with h2's 20 it would, and come back with everything.
const UNACCEPTED_RESETS: usize = 1_000;
/// h2 counts what DATA frames are short of 256 bytes and closes the connection when those that wait are beyond this. A request
/// is such a frame, and one turn reads some hundred of them; h2's own 32 KiB are too little for who asks for so much at once.
const DATA_FRAME_BUDGET: usize = 512 * 1024;
const GOODBYE: Duration = Duration::from_secs(2);

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::destination) enum Ended {
    /// By its client, or with its socket.
    Client,
    /// By us: because the process stops.
    Shutdown,
    /// Nobody on it took anything.
    Stalled,
    /// There was no stream on it for long.
    Idle,
    /// The peer did not answer.
    Gone,
    /// The client asked for more than anybody needs.
    Flood,
    /// The client broke the rules of HTTP/2.
    Fault,
}

pub(in crate::destination) struct Asked {
    pub(in crate::destination) request: Request<RecvStream>,
    /// Since when requests stand in line on its connection: it has not waited longer.
    pub(in crate::destination) since: Instant,
    pub(in crate::destination) progress: Arc<Progress>,
}

/// What follows the head of a response.
pub(in crate::destination) trait Content: Send {
    /// Whether the head is all.
    fn is_empty(&self) -> bool;
    /// The next piece, when there is one. Nothing may be lost when the wait is given up.
    fn next(&mut self) -> impl Future<Output = Option<Piece>> + Send;
}

pub(in crate::destination) enum Piece {
    Data(Bytes),
    Trailers(Box<HeaderMap>),
}

/// Serves a connection until it ends, or was long of no use. When `stop` is cancelled it takes no more streams, and ends with its last.
pub(in crate::destination) async fn serve<A, F, C>(
    transport: Transport,
    readiness: &Readiness,
    limits: &Limits,
    stop: &CancellationToken,
    answer: A,
) -> Ended
where
    A: Fn(Asked) -> F,
    F: Future<Output = Response<C>> + Send + 'static,
    C: Content + 'static,
{
    let pace = transport.pace();
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(streams(limits))
        .max_header_list_size(HEADER_BYTES)
        .max_send_buffer_size(SEND_BUFFER)
        .data_frame_budget(DATA_FRAME_BUDGET)
        .max_pending_accept_reset_streams(UNACCEPTED_RESETS);
    let mut connection = match builder.handshake::<_, Bytes>(transport).await {
        Ok(connection) => connection,
        Err(error) => return failed(&error),
    };
    let mut pulse = Pulse::new(connection.ping_pong());
    let progress = Arc::<ConnectionProgress>::default();
    let mut useless = pin!(progress.useless(limits.stream_stall_timeout));
    let mut stop = pin!(stop.cancelled());
    let mut stopping = false;
    let mut resets = Resets::new(Instant::now());
    let mut streams = FuturesUnordered::new();
    // Since when requests stand in line: no turn since then has taken all that the client had sent.
    let mut line: Option<Instant> = None;
    // h2 has requests that were not taken.
    let mut backlog = false;
    let mut turn = |cx: &mut Context<'_>| -> Poll<Ended> {
        // What h2 has comes first, if it can be answered.
        pace.begin_turn(!backlog || !pace.is_open());
        if !stopping && stop.as_mut().poll(cx).is_ready() {
            connection.graceful_shutdown();
            stopping = true;
        }
        let ended = if stopping { Ended::Shutdown } else { Ended::Client };
        if !pace.is_open() {
            // Nothing could be answered. What the client asks for meanwhile waits for the client.
            line = None;
            if let Poll::Ready(result) = connection.poll_closed(cx) {
                return Poll::Ready(result.err().map_or(ended, |error| failed(&error)));
            }
        }
        if pace.is_open() {
            let since = line.unwrap_or_else(|| readiness.since());
            let mut taken = 0;
            while taken < REQUESTS {
                // This also drives everything that is received and sent.
                let (request, respond) = match connection.poll_accept(cx) {
                    Poll::Ready(Some(Ok(asked))) => asked,
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(failed(&error)),
                    Poll::Ready(None) => return Poll::Ready(ended),
                    Poll::Pending => break,
                };
                let progress = progress.begin();
                let response = answer(Asked { request, since, progress: Arc::clone(&progress) });
                streams.push(run(Box::pin(response), respond, progress, Arc::clone(&pace), since));
                taken += 1;
            }
            backlog = taken == REQUESTS;
            line = (backlog || pace.may_read() == 0).then_some(since);
            if backlog {
                cx.waker().wake_by_ref();
            }
            while let Poll::Ready(Some(end)) = streams.poll_next_unpin(cx) {
                if end == StreamEnd::ResetEarly && !resets.bears(Instant::now()) {
                    return Poll::Ready(Ended::Flood);
                }
            }
            // One write for what all of them have handed over.
            if let Poll::Ready(result) = connection.poll_closed(cx) {
                return Poll::Ready(result.err().map_or(ended, |error| failed(&error)));
            }
        }
        if let Poll::Ready(useless) = useless.as_mut().poll(cx) {
            return Poll::Ready(match useless {
                Useless::Stalled => Ended::Stalled,
                Useless::Idle => Ended::Idle,
            });
        }
        pulse.poll_gone(&pace, cx).map(|()| Ended::Gone)
    };
    let ended = poll_fn(&mut turn).await;
    match ended {
        Ended::Idle => connection.graceful_shutdown(),
        Ended::Flood => connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM),
        _ => return ended,
    }
    // For its client to take that well.
    _ = timeout(
        GOODBYE,
        poll_fn(|cx| {
            pace.begin_turn(true);
            connection.poll_closed(cx)
        }),
    )
    .await;
    ended
}

/// A few more than there are places for, so that the others can be told that there are none.
fn streams(limits: &Limits) -> u32 {
    u32::try_from(limits.streams.saturating_add(1_000)).unwrap_or(u32::MAX).min(limits.streams_per_connection)
}

/// h2 itself ends a connection that floods it, with this reason.
fn failed(error: &h2::Error) -> Ended {
    debug!(%error, "a connection for discovery broke");
    match error.reason() {
        Some(Reason::ENHANCE_YOUR_CALM) if error.is_library() => Ended::Flood,
        _ if error.is_library() => Ended::Fault,
        _ => Ended::Client,
    }
}

/// How a stream ended, as far as its connection is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    Otherwise,
    ResetEarly,
}

/// One stream, from its request to its end. What it takes to answer is boxed, because a future keeps the room of its largest
/// part for all its life.
async fn run<C: Content>(
    mut response: Pin<Box<dyn Future<Output = Response<C>> + Send>>,
    mut respond: SendResponse<Bytes>,
    progress: Arc<Progress>,
    pace: Arc<Pace>,
    since: Instant,
) -> StreamEnd {
    let answered = poll_fn(|cx| match respond.poll_reset(cx) {
        Poll::Ready(_) => Poll::Ready(Err(Gone)),
        Poll::Pending => response.as_mut().poll(cx).map(Ok),
    });
    let answered = answered.await;
    drop(response);
    pace.turn().await;
    let sent = match answered.and_then(|response| begin(response, respond, &pace)) {
        Ok(Some((content, stream))) => send(content, stream, &progress, &pace).await,
        Ok(None) => Ok(()),
        Err(gone) => Err(gone),
    };
    match sent {
        Err(Gone) if since.elapsed() < EARLY => StreamEnd::ResetEarly,
        _ => StreamEnd::Otherwise,
    }
}

/// The client has reset the stream or is gone, or we have reset it.
struct Gone;

/// Sends the head, and finds out whether there is more.
fn begin<C: Content>(
    response: Response<C>,
    mut respond: SendResponse<Bytes>,
    pace: &Pace,
) -> Result<Option<(C, SendStream<Bytes>)>, Gone> {
    let (head, content) = response.into_parts();
    let ends = content.is_empty();
    pace.sent_headers();
    let stream = respond.send_response(Response::from_parts(head, ()), ends).map_err(|_| Gone)?;
    Ok((!ends).then_some((content, stream)))
}

async fn send<C: Content>(
    mut content: C,
    mut stream: SendStream<Bytes>,
    progress: &Progress,
    pace: &Pace,
) -> Result<(), Gone> {
    loop {
        let piece = {
            let mut next = pin!(content.next());
            poll_fn(|cx| match next.as_mut().poll(cx) {
                Poll::Ready(piece) => Poll::Ready(Ok(piece)),
                Poll::Pending => stream.poll_reset(cx).map(|_| Err(Gone)),
            })
            .await?
        };
        match piece {
            Some(Piece::Data(data)) => send_data(data, &mut stream, progress, pace).await?,
            Some(Piece::Trailers(trailers)) => {
                pace.turn().await;
                pace.sent_headers();
                return stream.send_trailers(*trailers).map_err(|_| Gone);
            }
            None => return stream.send_data(Bytes::new(), true).map_err(|_| Gone),
        }
    }
}

/// Hands data to h2, as much at a time as the client has room for, and no faster than the connection may.
async fn send_data(
    mut data: Bytes,
    stream: &mut SendStream<Bytes>,
    progress: &Progress,
    pace: &Pace,
) -> Result<(), Gone> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = poll_fn(|cx| {
            ready!(pace.poll_turn(cx));
            let room = stream.capacity();
            if room > 0 {
                return Poll::Ready(Ok(room));
            }
            progress.waits();
            if progress.poll_stalled(cx).is_ready() {
                stream.send_reset(Reason::CANCEL);
                return Poll::Ready(Err(Gone));
            }
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(Err(Gone));
            }
            match ready!(stream.poll_capacity(cx)) {
                Some(Ok(room)) => Poll::Ready(Ok(room)),
                Some(Err(_)) | None => Poll::Ready(Err(Gone)),
            }
        });
        let room = room.await?;
        let piece = data.split_to(room.min(data.len()));
        progress.took(piece.len());
        pace.sent(piece.len());
        stream.send_data(piece, false).map_err(|_| Gone)?;
    }
    Ok(())
}

// === impl Ended ===

impl Ended {
    pub(in crate::destination) const ALL: [Self; 7] =
        [Self::Client, Self::Shutdown, Self::Stalled, Self::Idle, Self::Gone, Self::Flood, Self::Fault];

    pub(in crate::destination) const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Shutdown => "shutdown",
            Self::Stalled => "stalled",
            Self::Idle => "idle",
            Self::Gone => "gone",
            Self::Flood => "flood",
            Self::Fault => "fault",
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
