//! One stream: what its response says.
//!
//! In: what there is to tell ([`Updates`]). Out: finished gRPC frames, made when there is room for them, and at the end the
//! status. Always holds: at most one piece is under way; a client that is slow is told the latest next, and nothing in between.

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{
    get::views::Views,
    http2::{
        connection::{Content, Piece},
        stall::Progress,
    },
    metrics::{Call, End, Messages, StreamState},
};

/// What a stream tells its client.
pub(super) trait Updates: Send {
    fn views(&self) -> &Views;
    /// Whether the client was told anything.
    fn has_begun(&self) -> bool;
    /// Waits until there may be something new. Nothing is lost when the wait is given up.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
    /// Looks at the latest state: what is to be told now, if anything, and whether that is the end.
    fn look(&mut self) -> Option<End>;
    /// The next piece of what is to be told now.
    fn next(&mut self) -> Option<Told>;
}

/// What is handed to the transport at a time.
pub(super) struct Told {
    pub(super) frames: Bytes,
    /// Those that begin in it.
    pub(super) messages: Messages,
    /// When the event was received that it answers. `None` for what the client asked for: that it is old says nothing about us.
    pub(super) answers: Option<Instant>,
}

/// There may be a hundred thousand: each field counts.
pub(super) struct Stream<U: Updates> {
    updates: U,
    /// What was handed to the transport last and has not gone yet was the answer to an event received then.
    under_way: Option<Instant>,
    /// The status is next, or was last.
    end: Option<Ended>,
    state: StreamState,
    progress: Arc<Progress>,
    /// Counts what is sent, and the call when the stream is dropped.
    call: Call,
    /// Of all that there may be at a time.
    _place: OwnedSemaphorePermit,
}

enum Ended {
    Now(End),
    Told(End),
}

// === impl Stream ===

impl<U: Updates> Stream<U> {
    pub(super) fn new(updates: U, progress: Arc<Progress>, call: Call, place: OwnedSemaphorePermit) -> Self {
        updates.views().metrics.state(StreamState::Opening).inc();
        Self { updates, under_way: None, end: None, state: StreamState::Opening, progress, call, _place: place }
    }

    fn look(&mut self) {
        self.end = self.updates.look().map(Ended::Now);
    }

    fn become_state(&mut self, state: StreamState) {
        if state != self.state {
            let metrics = &self.updates.views().metrics;
            metrics.state(self.state).dec();
            metrics.state(state).inc();
            self.state = state;
        }
    }
}

impl<U: Updates> Content for Stream<U> {
    fn is_empty(&self) -> bool {
        false
    }

    /// `None` after the status.
    async fn next(&mut self) -> Option<Piece> {
        // Asked for more, the transport has got rid of what it had.
        if let Some(received) = self.under_way.take() {
            self.updates.views().metrics.taken(received);
        }
        if !self.updates.has_begun() {
            self.look();
        }
        loop {
            if let Some(Told { frames, messages, answers }) = self.updates.next() {
                self.call.sent(messages);
                self.under_way = answers;
                self.become_state(StreamState::Blocked);
                return Some(Piece::Data(frames));
            }
            match self.end {
                None => {}
                Some(Ended::Now(end)) => {
                    self.end = Some(Ended::Told(end));
                    return Some(Piece::Trailers(Box::new(ok())));
                }
                Some(Ended::Told(_)) => return None,
            }
            if self.updates.has_begun() {
                self.become_state(StreamState::Idle);
            }
            self.updates.changed().await;
            self.look();
        }
    }
}

impl<U: Updates> Drop for Stream<U> {
    fn drop(&mut self) {
        let metrics = &self.updates.views().metrics;
        metrics.state(self.state).dec();
        metrics.ended(match self.end {
            Some(Ended::Now(end) | Ended::Told(end)) => end,
            None if self.progress.is_stalled() => End::Stalled,
            None => End::Client,
        });
    }
}

fn ok() -> HeaderMap {
    let status = (HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
    HeaderMap::from_iter([status])
}
