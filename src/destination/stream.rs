//! One stream: the frames of its response.
//!
//! In: [`Updates`]. Out: complete gRPC frames, encoded when the client has window for them, and finally the status.
//! Always holds: at most one frame is in flight; a slow client next receives the latest state and skips the states in
//! between.

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use super::{
    http2::{
        stall::StreamProgress,
        stream::{BodyFrame, ResponseBody},
    },
    labels::{EndReason, MessageCounts, StreamState},
    metrics::RpcObserver,
};
use crate::resources::shares::Taken;

/// The updates that a stream sends to its client.
pub(super) trait Updates: Send {
    /// Returns whether the client has a state, or is about to receive its first one.
    fn has_begun(&self) -> bool;
    /// Waits until the state may have changed. Cancel safe.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
    /// Reads the latest state. If the stream ends after the pending updates, returns the reason.
    fn refresh(&mut self) -> Option<EndReason>;
    /// Returns the next frames of the pending updates.
    fn next(&mut self) -> Option<OutgoingFrames>;
}

/// Frames that are passed to the transport together.
pub(super) struct OutgoingFrames {
    pub(super) frames: Bytes,
    /// The number of messages that begin in these frames.
    pub(super) messages: MessageCounts,
    /// When the event that caused these frames was received. `None` for the first response to a request, because the
    /// age of its event is not a delay of this server.
    pub(super) received: Option<Instant>,
}

/// The body of a streaming response. A hundred thousand of them may exist, so every field matters for memory.
pub(super) struct ResponseStream<U: Updates> {
    updates: U,
    /// When the event that caused the frames in flight was received.
    in_flight: Option<Instant>,
    /// Whether the status comes next or was sent; `None` while the stream stays open.
    end: Option<EndOfStream>,
    state: StreamState,
    progress: Arc<StreamProgress>,
    /// Counts the sent messages, and the call when the stream is dropped.
    observer: RpcObserver,
    _permit: Taken,
}

enum EndOfStream {
    Next(EndReason),
    Sent(EndReason),
}

// === impl ResponseStream ===

impl<U: Updates> ResponseStream<U> {
    pub(super) fn new(updates: U, progress: Arc<StreamProgress>, observer: RpcObserver, permit: Taken) -> Self {
        let state = StreamState::Opening;
        observer.metrics.streams(state).inc();
        Self { updates, in_flight: None, end: None, state, progress, observer, _permit: permit }
    }

    fn refresh(&mut self) {
        self.end = self.updates.refresh().map(EndOfStream::Next);
    }

    fn set_state(&mut self, state: StreamState) {
        if state != self.state {
            let metrics = &self.observer.metrics;
            metrics.streams(self.state).dec();
            metrics.streams(state).inc();
            self.state = state;
        }
    }
}

impl<U: Updates> ResponseBody for ResponseStream<U> {
    fn is_empty(&self) -> bool {
        false
    }

    /// Returns the next frame; `None` after the trailers were sent.
    async fn next(&mut self) -> Option<BodyFrame> {
        // The transport requests the next frame only after it has sent the last one.
        if let Some(received) = self.in_flight.take() {
            self.observer.metrics.taken(received);
        }
        if !self.updates.has_begun() {
            self.refresh();
        }
        loop {
            if let Some(OutgoingFrames { frames, messages, received }) = self.updates.next() {
                self.observer.sent(messages);
                self.in_flight = received;
                self.set_state(StreamState::Blocked);
                return Some(BodyFrame::Data(frames));
            }
            match self.end {
                None => {}
                Some(EndOfStream::Next(end)) => {
                    self.end = Some(EndOfStream::Sent(end));
                    return Some(BodyFrame::Trailers(Box::new(status_ok())));
                }
                Some(EndOfStream::Sent(_)) => return None,
            }
            if self.updates.has_begun() {
                self.set_state(StreamState::Idle);
            }
            self.updates.changed().await;
            self.refresh();
        }
    }
}

impl<U: Updates> Drop for ResponseStream<U> {
    fn drop(&mut self) {
        let metrics = &self.observer.metrics;
        metrics.streams(self.state).dec();
        metrics.stream_ended(match self.end {
            Some(EndOfStream::Next(end) | EndOfStream::Sent(end)) => end,
            None if self.progress.has_ended_for_memory() => EndReason::Memory,
            None if self.progress.is_stalled() => EndReason::Stalled,
            None => EndReason::Client,
        });
    }
}

fn status_ok() -> HeaderMap {
    let status = (HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
    HeaderMap::from_iter([status])
}
