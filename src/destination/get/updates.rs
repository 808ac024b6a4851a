//! The updates of one `Get` stream: the frames that lead from the state of its client to the content of its view.
//!
//! Always holds: folding the sent frames gives a snapshot of the view that the request resolves to, or resolved to
//! last.

use std::sync::Arc;

use super::{
    request::{GetRefusal, GetRequest},
    snapshot::{EncodedFrames, Frames, Snapshot},
    views::{EndpointViews, EndpointsContent},
};
use crate::destination::{
    labels::EndReason,
    registry::{Published, Subscription},
    stream::{OutgoingFrames, Updates},
};

pub(in crate::destination) struct EndpointUpdates {
    request: GetRequest,
    subscription: Subscription<EndpointViews>,
    /// The placement of the view at the time when the request was resolved.
    placement: u64,
    /// The snapshot that the client has after all frames are sent; `None` before the first message.
    sent: Option<Arc<Snapshot>>,
    frames: Option<Frames>,
    /// Whether an event caused the current frames, and not the request or a move to another view.
    is_event: bool,
}

// === impl EndpointUpdates ===

impl EndpointUpdates {
    pub(in crate::destination) fn new(
        mut request: GetRequest,
        (subscription, placement): (Subscription<EndpointViews>, u64),
    ) -> Self {
        request.share_names(&subscription.view().key);
        Self { request, subscription, placement, sent: None, frames: None, is_event: false }
    }

    /// Returns whether the request may have to be resolved again.
    fn is_moved(&self, content: &EndpointsContent) -> bool {
        content.placement != self.placement
    }

    /// Resolves the request again. Returns whether it has a view now.
    ///
    /// # Errors
    /// When the stream has to end.
    fn subscribe_again(&mut self) -> Result<bool, EndReason> {
        match self.subscription.views().subscribe(&self.request) {
            Ok((subscription, placement)) => {
                (self.subscription, self.placement) = (subscription, placement);
                self.is_event = false;
                Ok(true)
            }
            Err(GetRefusal::NoService) => Ok(false),
            Err(GetRefusal::Stopping) => Err(EndReason::Shutdown),
            Err(_) => Err(EndReason::Rerouted),
        }
    }
}

impl Updates for EndpointUpdates {
    fn has_begun(&self) -> bool {
        self.sent.is_some()
    }

    async fn changed(&mut self) {
        self.subscription.changed().await;
    }

    fn refresh(&mut self) -> Option<EndReason> {
        self.is_event = self.sent.is_some();
        // Whatever this loop reads, it also acts on: a state that is read counts as seen, so nothing would wake the
        // stream for it again. The loop ends, because another turn needs another change of the placement.
        let content = loop {
            let Published { content, end } = self.subscription.latest();
            if end.is_some() {
                return end;
            }
            // A deleted Service has no endpoints and no other view. The stream stays open until the Service exists
            // again.
            if !self.is_moved(&content) || !content.exists() {
                break content;
            }
            match self.subscribe_again() {
                Ok(true) => {}
                // The Service was deleted after this content was published. The publication of that wakes the stream.
                Ok(false) => return None,
                Err(end) => return Some(end),
            }
        };
        let snapshot = content.snapshot;
        let views = self.subscription.views();
        self.frames = match &self.sent {
            Some(sent) if sent.is_version_of(&snapshot) => return None,
            Some(sent) => {
                let frames = Frames::between(sent, &snapshot, self.request.port);
                views.metrics.delta(frames.is_shared());
                Some(frames)
            }
            None if !snapshot.is_empty() => Some(Frames::first(&snapshot, self.request.port)),
            // The API's message for a Service without endpoints, once all its clusters are known. Linkerd's server
            // sends no message, so that proxies retry every 3 s.
            None if content.is_complete && !views.settings.strict_upstream_parity => Some(Frames::no_endpoints()),
            None => return None,
        };
        self.sent = Some(snapshot);
        None
    }

    fn next(&mut self) -> Option<OutgoingFrames> {
        let next = self.frames.as_mut().and_then(Frames::next);
        let Some(EncodedFrames { frames, messages }) = next else {
            self.frames = None;
            return None;
        };
        let received = self.sent.as_ref().filter(|_| self.is_event).map(|sent| sent.received);
        Some(OutgoingFrames { frames, messages, received })
    }
}

#[cfg(test)]
#[path = "updates_tests.rs"]
mod tests;
