//! One `Get` stream: what its response says.
//!
//! In: a subscription. Out: finished gRPC frames, made when there is room for them, and at the end the status. Always
//! holds: what was sent, folded, is a snapshot of the view; at most one piece is under way; a client that is slow is told
//! the latest next, and nothing in between.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{
    connection::Piece,
    metrics::{Call, End, StreamState},
    progress::Progress,
    resolve::{Refusal, Request},
    snapshot::{Frames, Shared, Snapshot},
    views::Subscription,
};

/// There may be a hundred thousand: each field counts.
pub(super) struct GetStream {
    request: Request,
    subscription: Subscription,
    /// What the client has, once all frames are taken; `None` before the first message.
    sent: Option<Arc<Snapshot>>,
    frames: Option<Frames>,
    /// What is under way is of another view than what came before: that it is old says nothing about us.
    moved: bool,
    /// What was handed to the transport last and has not gone yet was the answer to an event received then.
    under_way: Option<Instant>,
    /// The status is next, or was last.
    end: Option<Ended>,
    state: StreamState,
    progress: Arc<Progress>,
    /// Counts the call when the stream is dropped.
    _call: Call,
    /// Of all that there may be at a time.
    _place: OwnedSemaphorePermit,
}

enum Ended {
    Now(End),
    Told(End),
}

// === impl GetStream ===

impl GetStream {
    pub(super) fn new(
        mut request: Request,
        subscription: Subscription,
        progress: Arc<Progress>,
        call: Call,
        place: OwnedSemaphorePermit,
    ) -> Self {
        subscription.share_names(&mut request);
        subscription.views().metrics.state(StreamState::Opening).inc();
        Self {
            request,
            subscription,
            sent: None,
            frames: None,
            moved: false,
            under_way: None,
            end: None,
            state: StreamState::Opening,
            progress,
            _call: call,
            _place: place,
        }
    }

    /// The next piece, when there is one; `None` after the status. Nothing is lost when the wait is given up.
    pub(super) async fn next(&mut self) -> Option<Piece> {
        // Asked for more, the transport has got rid of what it had.
        if let Some(received) = self.under_way.take() {
            self.subscription.views().metrics.taken(received);
        }
        let is_first = self.sent.is_none();
        if is_first {
            self.look();
        }
        loop {
            if let Some(Shared { frames, messages }) = self.frames.as_mut().and_then(Frames::next) {
                self.subscription.views().metrics.sent(messages);
                let answers = !is_first && !self.moved;
                self.under_way = self.sent.as_ref().filter(|_| answers).map(|sent| sent.received);
                self.become_state(StreamState::Blocked);
                return Some(Piece::Data(frames));
            }
            self.frames = None;
            self.moved = false;
            match self.end {
                None => {}
                Some(Ended::Now(end)) => {
                    self.end = Some(Ended::Told(end));
                    return Some(Piece::Trailers(Box::new(ok())));
                }
                Some(Ended::Told(_)) => return None,
            }
            if self.sent.is_some() {
                self.become_state(StreamState::Idle);
            }
            self.subscription.changed().await;
            self.look();
        }
    }

    /// Looks at the view's latest state: what is to be sent now, if anything, and whether the stream goes on.
    fn look(&mut self) {
        let mut published = self.subscription.latest();
        if published.closed {
            self.end = Some(Ended::Now(End::Shutdown));
            return;
        }
        // A Service that is gone has no endpoints and no other view. The question stays open until it is back.
        if self.subscription.is_moved(&published) && published.exists {
            if let Err(end) = self.move_to_its_view() {
                self.end = Some(Ended::Now(end));
                return;
            }
            published = self.subscription.latest();
            if self.subscription.is_moved(&published) {
                // It moved again meanwhile: the view's next state is waiting already.
                return;
            }
        }
        let snapshot = published.snapshot;
        let metrics = &self.subscription.views().metrics;
        self.frames = match &self.sent {
            Some(sent) if sent.is_version_of(&snapshot) => return,
            Some(sent) => {
                let frames = Frames::between(sent, &snapshot);
                metrics.delta(frames.is_shared());
                Some(frames)
            }
            None if !snapshot.is_empty() => Some(Frames::first(&snapshot)),
            // The contract's answer to a Service that has none. Upstream says nothing, and proxies ask again every 3 s.
            None if !self.subscription.views().settings.strict_upstream_parity => Some(Frames::no_endpoints()),
            None => return,
        };
        self.sent = Some(snapshot);
    }

    /// Resolves the request again.
    fn move_to_its_view(&mut self) -> Result<(), End> {
        match self.subscription.views().subscribe(&self.request) {
            Ok(subscription) => {
                self.subscription = subscription;
                self.moved = true;
                Ok(())
            }
            // Gone meanwhile: the view is about to say so.
            Err(Refusal::NoService) => Ok(()),
            Err(Refusal::Stopping) => Err(End::Shutdown),
            Err(_) => Err(End::Rerouted),
        }
    }

    fn become_state(&mut self, state: StreamState) {
        if state != self.state {
            let metrics = &self.subscription.views().metrics;
            metrics.state(self.state).dec();
            metrics.state(state).inc();
            self.state = state;
        }
    }
}

impl Drop for GetStream {
    fn drop(&mut self) {
        let metrics = &self.subscription.views().metrics;
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
