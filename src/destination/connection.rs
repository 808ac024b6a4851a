//! One HTTP/2 connection, and the streams on it.
//!
//! In: a socket, and what answers a request. Out: frames, handed to h2 no faster than the client makes room for them. Always
//! holds: of each stream at most one piece is under way; a stream whose client takes nothing of what waits for it is reset,
//! and then a connection on which nobody takes anything is closed; a peer that is gone is noticed.
//!
//! On h2 itself and not on hyper: hyper (1.12) asks a body for its next frame while the last one still waits for the client's
//! window, so nobody could see that a client does not read, and it cannot reset one stream.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use h2::{
    Ping, PingPong, Reason, RecvStream, SendStream,
    server::{Builder, SendResponse},
};
use http::{Request, Response};
use http_body::Body;
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use super::{
    progress::{ConnectionProgress, Progress, Useless},
    transport::Transport,
};

/// One sidecar multiplexes what a whole cluster asks.
const STREAMS: u32 = 100_000;
const HEADER_BYTES: u32 = 16 * 1024;
/// What h2 may keep of a stream whose client has room for it, but does not empty its socket.
const SEND_BUFFER: usize = 16 * 1024;
/// Dead peers are noticed after both.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
const GOODBYE: Duration = Duration::from_secs(2);

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// By its client, by a fault, or because we stop.
    Normally,
    /// Because nobody on it took anything.
    Stalled,
}

/// Serves a connection until it ends, or was long of no use. When `stop` is cancelled it takes no more streams, and ends with its last.
pub(super) async fn serve<A, F, B>(
    transport: Transport,
    stall_timeout: Duration,
    tasks: &TaskTracker,
    stop: &CancellationToken,
    answer: A,
) -> Ended
where
    A: Fn(Request<RecvStream>, Arc<Progress>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Send> + Unpin + Send + 'static,
{
    let mut builder = Builder::new();
    builder.max_concurrent_streams(STREAMS).max_header_list_size(HEADER_BYTES).max_send_buffer_size(SEND_BUFFER);
    let mut connection = match builder.handshake(transport).await {
        Ok(connection) => connection,
        Err(error) => {
            debug!(%error, "a connection for discovery was given up");
            return Ended::Normally;
        }
    };
    let progress = Arc::<ConnectionProgress>::default();
    let mut gone = pin!(peer_gone(connection.ping_pong()));
    let mut useless = pin!(progress.useless(stall_timeout));
    let mut stopping = false;
    loop {
        tokio::select! {
            // This drives everything that is sent and received.
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    let progress = progress.begin();
                    let response = answer(request, Arc::clone(&progress));
                    tasks.spawn(run(response, respond, progress));
                }
                Some(Err(error)) => {
                    debug!(%error, "a connection for discovery broke");
                    return Ended::Normally;
                }
                None => return Ended::Normally,
            },
            () = &mut gone => return Ended::Normally,
            useless = &mut useless => match useless {
                Useless::Stalled => return Ended::Stalled,
                Useless::Idle => {
                    connection.graceful_shutdown();
                    // For its client to take that well.
                    _ = timeout(GOODBYE, poll_fn(|cx| connection.poll_closed(cx))).await;
                    return Ended::Normally;
                }
            },
            () = stop.cancelled(), if !stopping => {
                connection.graceful_shutdown();
                stopping = true;
            }
        }
    }
}

/// Resolves when the peer does not answer pings any more.
async fn peer_gone(pings: Option<PingPong>) {
    // h2 hands it out once, to the first who asks.
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        sleep(KEEP_ALIVE_INTERVAL).await;
        if !matches!(timeout(KEEP_ALIVE_TIMEOUT, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
    }
}

/// One stream, from its request to its end.
async fn run<B: Body<Data = Bytes> + Unpin>(
    response: impl Future<Output = Response<B>>,
    mut respond: SendResponse<Bytes>,
    progress: Arc<Progress>,
) {
    let response = tokio::select! {
        response = response => response,
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
    };
    let (head, body) = response.into_parts();
    let ends = body.is_end_stream();
    // It fails when the client is gone.
    if let Ok(stream) = respond.send_response(Response::from_parts(head, ()), ends)
        && !ends
    {
        _ = send_body(body, stream, &progress).await;
    }
}

/// The client has reset the stream or is gone, or we have reset it.
struct Gone;

async fn send_body<B: Body<Data = Bytes> + Unpin>(
    mut body: B,
    mut stream: SendStream<Bytes>,
    progress: &Progress,
) -> Result<(), Gone> {
    loop {
        let frame = poll_fn(|cx| {
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(Err(Gone));
            }
            Pin::new(&mut body).poll_frame(cx).map(Ok)
        });
        match frame.await? {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => send_data(data, &mut stream, progress).await?,
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    return stream.send_trailers(trailers).map_err(|_| Gone);
                }
            },
            Some(Err(_)) => {
                stream.send_reset(Reason::INTERNAL_ERROR);
                return Err(Gone);
            }
            None => return stream.send_data(Bytes::new(), true).map_err(|_| Gone),
        }
    }
}

/// Hands data to h2, as much at a time as the client has room for.
async fn send_data(mut data: Bytes, stream: &mut SendStream<Bytes>, progress: &Progress) -> Result<(), Gone> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let mut room = stream.capacity();
        if room == 0 {
            progress.waits();
            room = poll_fn(|cx| {
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
            })
            .await?;
        }
        progress.took();
        stream.send_data(data.split_to(room.min(data.len())), false).map_err(|_| Gone)?;
    }
    Ok(())
}
