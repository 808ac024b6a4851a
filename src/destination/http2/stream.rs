//! One stream, from its request to its end.
//!
//! In: the future of a response, and its body. Out: frames, passed to h2 no faster than the client's window and the
//! [`Budget`] allow. Always holds: at most one frame is in flight; a stream whose client accepts no data is reset.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use h2::{Reason, SendStream, server::SendResponse};
use http::{HeaderMap, Response};
use tokio::time::Instant;
use tracing::error;

use super::{budget::Budget, reset_limit::EARLY_RESET, stall::StreamProgress};
use crate::contain::{Panicked, Work, contain};

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

/// How a stream ended, for the reset limit of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    Otherwise,
    ResetEarly,
}

/// Runs one stream from its request to its end. The future of the response is boxed and dropped early, because a future
/// holds the memory of its largest state until it is dropped.
pub(super) async fn run<B: ResponseBody>(
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
        // A call of `reserve_capacity` wakes the stream if there is capacity already. With a waker that does nothing,
        // this costs nothing. With the stream's own waker, the stream would be polled twice for each frame, and as
        // `FuturesUnordered` ends its turn after two such wake-ups, each write would have only two frames. The own
        // waker is registered again when the stream has to wait.
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
