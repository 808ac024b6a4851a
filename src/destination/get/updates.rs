//! What one `Get` stream tells: what leads from what its client has to what there is now.
//!
//! Always holds: what was told, folded, is a snapshot of the view that the request resolves to, or resolved to last.

use std::sync::Arc;

use super::{
    request::{Refusal, Request},
    snapshot::{Frames, Shared, Snapshot},
    views::{Subscription, Views},
};
use crate::destination::{
    metrics::End,
    stream::{Told, Updates},
};

pub(in crate::destination) struct EndpointUpdates {
    request: Request,
    subscription: Subscription,
    /// What the client has, once all frames are taken; `None` before the first message.
    sent: Option<Arc<Snapshot>>,
    frames: Option<Frames>,
    /// What is being told answers an event: not the request, nor a move to another view.
    answers: bool,
}

// === impl EndpointUpdates ===

impl EndpointUpdates {
    pub(in crate::destination) fn new(mut request: Request, subscription: Subscription) -> Self {
        subscription.share_names(&mut request);
        Self { request, subscription, sent: None, frames: None, answers: false }
    }

    /// Resolves the request again.
    fn move_to_its_view(&mut self) -> Result<(), End> {
        match self.subscription.views().subscribe(&self.request) {
            Ok(subscription) => {
                self.subscription = subscription;
                self.answers = false;
                Ok(())
            }
            // Gone meanwhile: the view is about to say so.
            Err(Refusal::NoService) => Ok(()),
            Err(Refusal::Stopping) => Err(End::Shutdown),
            Err(_) => Err(End::Rerouted),
        }
    }
}

impl Updates for EndpointUpdates {
    fn views(&self) -> &Views {
        self.subscription.views()
    }

    fn has_begun(&self) -> bool {
        self.sent.is_some()
    }

    async fn changed(&mut self) {
        self.subscription.changed().await;
    }

    fn look(&mut self) -> Option<End> {
        let mut published = self.subscription.latest();
        if published.closed {
            return Some(End::Shutdown);
        }
        self.answers = self.sent.is_some();
        // A Service that is gone has no endpoints and no other view. The question stays open until it is back.
        if self.subscription.is_moved(&published) && published.exists {
            if let Err(end) = self.move_to_its_view() {
                return Some(end);
            }
            published = self.subscription.latest();
            if self.subscription.is_moved(&published) {
                // It moved again meanwhile: the view's next state is waiting already.
                return None;
            }
        }
        let snapshot = published.snapshot;
        let views = self.subscription.views();
        self.frames = match &self.sent {
            Some(sent) if sent.is_version_of(&snapshot) => return None,
            Some(sent) => {
                let frames = Frames::between(sent, &snapshot);
                views.metrics.delta(frames.is_shared());
                Some(frames)
            }
            None if !snapshot.is_empty() => Some(Frames::first(&snapshot)),
            // The contract's answer to a Service that has none. Upstream says nothing, and proxies ask again every 3 s.
            None if !views.settings.strict_upstream_parity => Some(Frames::no_endpoints()),
            None => return None,
        };
        self.sent = Some(snapshot);
        None
    }

    fn next(&mut self) -> Option<Told> {
        let next = self.frames.as_mut().and_then(Frames::next);
        let Some(Shared { frames, messages }) = next else {
            self.frames = None;
            return None;
        };
        let answers = self.sent.as_ref().filter(|_| self.answers).map(|sent| sent.received);
        Some(Told { frames, messages, answers })
    }
}
