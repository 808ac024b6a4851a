//! One stream: the frames of its response.
//!
//! In: what to send ([`Updates`]). Out: finished gRPC frames, made when the client has window for them, and at the end the
//! status. Always holds: at most one frame is in flight; a slow client receives the latest state next, and no state in between.

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use strum::{IntoStaticStr, VariantArray};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{
    http2::{
        connection::{BodyFrame, ResponseBody},
        stall::StreamProgress,
    },
    metrics::RpcObserver,
    views::Views,
};

/// What a stream sends to its client.
pub(super) trait Updates: Send {
    fn views(&self) -> &Views;
    /// Whether anything was sent.
    fn has_begun(&self) -> bool;
    /// Waits until there may be something new. Cancel safe.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
    /// Reads the latest state. Returns why the stream ends after what is to be sent now, if it does.
    fn refresh(&mut self) -> Option<EndReason>;
    /// Returns the next frames of what is to be sent now.
    fn next(&mut self) -> Option<OutgoingFrames>;
}

/// Frames that are handed to the transport at once.
pub(super) struct OutgoingFrames {
    pub(super) frames: Bytes,
    /// The messages that begin in them.
    pub(super) messages: MessageCounts,
    /// When the event was received that they are about. `None` for the answer to the request: its age says nothing about us.
    pub(super) received: Option<Instant>,
}

/// The number of messages of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MessageCounts {
    pub(super) add: u32,
    pub(super) remove: u32,
    pub(super) no_endpoints: u32,
    pub(super) profile: u32,
}

/// The state of a stream, as its metric labels it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum StreamState {
    /// The transport has taken nothing yet.
    Opening,
    /// The client has received everything.
    Idle,
    /// Something waits for the client.
    Blocked,
}

/// Why a stream ended, as its metric labels it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum EndReason {
    /// The client reset it, or its connection ended.
    Client,
    /// The process stops.
    Shutdown,
    /// Another kind of answer applies to the target now; the client opens a new stream.
    Rerouted,
    /// The client took nothing for too long.
    Stalled,
}

/// The body of a streaming response. There may be a hundred thousand: each field counts.
pub(super) struct ResponseStream<U: Updates> {
    updates: U,
    /// When the event was received that the frames in flight are about.
    in_flight: Option<Instant>,
    /// The status is next, or was sent.
    end: Option<EndOfStream>,
    state: StreamState,
    progress: Arc<StreamProgress>,
    /// Counts what is sent, and the call when the stream is dropped.
    observer: RpcObserver,
    /// One of all streams that may be open at a time.
    _permit: OwnedSemaphorePermit,
}

enum EndOfStream {
    Next(EndReason),
    Sent(EndReason),
}

// === impl ResponseStream ===

impl<U: Updates> ResponseStream<U> {
    pub(super) fn new(
        updates: U,
        progress: Arc<StreamProgress>,
        observer: RpcObserver,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let state = StreamState::Opening;
        updates.views().metrics.streams(state).inc();
        Self { updates, in_flight: None, end: None, state, progress, observer, _permit: permit }
    }

    fn refresh(&mut self) {
        self.end = self.updates.refresh().map(EndOfStream::Next);
    }

    fn set_state(&mut self, state: StreamState) {
        if state != self.state {
            let metrics = &self.updates.views().metrics;
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

    /// Returns `None` after the status.
    async fn next(&mut self) -> Option<BodyFrame> {
        // The transport polls for more once it has sent what it had.
        if let Some(received) = self.in_flight.take() {
            self.updates.views().metrics.taken(received);
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
        let metrics = &self.updates.views().metrics;
        metrics.streams(self.state).dec();
        metrics.stream_ended(match self.end {
            Some(EndOfStream::Next(end) | EndOfStream::Sent(end)) => end,
            None if self.progress.is_stalled() => EndReason::Stalled,
            None => EndReason::Client,
        });
    }
}

fn status_ok() -> HeaderMap {
    let status = (HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
    HeaderMap::from_iter([status])
}
