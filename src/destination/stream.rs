//! One `Get` stream: the body of its response.
//!
//! In: a subscription. Out: finished gRPC frames, made when the transport asks for them, and at the end the status. Always
//! holds: what was sent, folded, is a snapshot of the view; at most one piece is under way; a client that is slow is told
//! the latest next, and nothing in between.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Frame;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::ReusableBoxFuture;

use super::{
    metrics::{Call, End, StreamState},
    progress::Progress,
    resolve::{Refusal, Request},
    snapshot::{Frames, Shared, Snapshot},
    views::{Published, Subscription, Views},
};

pub(super) struct GetStream {
    views: Arc<Views>,
    request: Request,
    subscription: Subscription,
    changed: ReusableBoxFuture<'static, watch::Receiver<Published>>,
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
}

enum Ended {
    Now(End),
    Told(End),
}

// === impl GetStream ===

impl GetStream {
    pub(super) fn new(
        views: Arc<Views>,
        request: Request,
        subscription: Subscription,
        progress: Arc<Progress>,
        call: Call,
    ) -> Self {
        let changed = ReusableBoxFuture::new(change_of(subscription.receiver().clone()));
        views.metrics.state(StreamState::Opening).inc();
        Self {
            views,
            request,
            subscription,
            changed,
            sent: None,
            frames: None,
            moved: false,
            under_way: None,
            end: None,
            state: StreamState::Opening,
            progress,
            _call: call,
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
        let metrics = &self.views.metrics;
        self.frames = match &self.sent {
            Some(sent) if sent.is_version_of(&snapshot) => return,
            Some(sent) => {
                let frames = Frames::between(sent, &snapshot);
                metrics.delta(frames.is_shared());
                Some(frames)
            }
            None if !snapshot.is_empty() => Some(Frames::first(&snapshot)),
            // The contract's answer to a Service that has none. Upstream says nothing, and proxies ask again every 3 s.
            None if !self.views.settings.strict_upstream_parity => Some(Frames::no_endpoints()),
            None => return,
        };
        self.sent = Some(snapshot);
    }

    /// Resolves the request again.
    fn move_to_its_view(&mut self) -> Result<(), End> {
        match self.views.subscribe(&self.request) {
            Ok(subscription) => {
                self.changed.set(change_of(subscription.receiver().clone()));
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
            let metrics = &self.views.metrics;
            metrics.state(self.state).dec();
            metrics.state(state).inc();
            self.state = state;
        }
    }
}

impl http_body::Body for GetStream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let stream = self.get_mut();
        // Asked for more, the transport has got rid of what it had.
        if let Some(received) = stream.under_way.take() {
            stream.views.metrics.taken(received);
        }
        let is_first = stream.sent.is_none();
        if is_first {
            stream.look();
        }
        loop {
            if let Some(Shared { frames, messages }) = stream.frames.as_mut().and_then(Frames::next) {
                stream.views.metrics.sent(messages);
                let answers = !is_first && !stream.moved;
                stream.under_way = stream.sent.as_ref().filter(|_| answers).map(|sent| sent.received);
                stream.become_state(StreamState::Blocked);
                return Poll::Ready(Some(Ok(Frame::data(frames))));
            }
            stream.frames = None;
            stream.moved = false;
            match stream.end {
                None => {}
                Some(Ended::Now(end)) => {
                    stream.end = Some(Ended::Told(end));
                    return Poll::Ready(Some(Ok(Frame::trailers(ok()))));
                }
                Some(Ended::Told(_)) => return Poll::Ready(None),
            }
            if stream.sent.is_some() {
                stream.become_state(StreamState::Idle);
            }
            let receiver = ready!(stream.changed.poll(cx));
            stream.changed.set(change_of(receiver));
            stream.look();
        }
    }
}

impl Drop for GetStream {
    fn drop(&mut self) {
        let metrics = &self.views.metrics;
        metrics.state(self.state).dec();
        metrics.ended(match self.end {
            Some(Ended::Now(end) | Ended::Told(end)) => end,
            None if self.progress.is_stalled() => End::Stalled,
            None => End::Client,
        });
    }
}

async fn change_of(mut receiver: watch::Receiver<Published>) -> watch::Receiver<Published> {
    if receiver.changed().await.is_err() {
        // A view is kept by its subscriptions, so this cannot be: and if it were, there would be nothing to wait for.
        std::future::pending::<()>().await;
    }
    receiver
}

fn ok() -> HeaderMap {
    let status = (HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
    HeaderMap::from_iter([status])
}
