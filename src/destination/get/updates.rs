//! What one `Get` stream sends: the frames that lead from what its client has to what the view contains now.
//!
//! Always holds: what was sent, folded, is a snapshot of the view that the request resolves to, or resolved to last.

use std::sync::Arc;

use super::{
    request::{GetRefusal, GetRequest},
    snapshot::{EncodedFrames, Frames, Snapshot},
    views::{EndpointsContent, ServiceEndpoints},
};
use crate::destination::{
    registry::{Published, Subscription},
    stream::{EndReason, OutgoingFrames, Updates},
    views::Views,
};

pub(in crate::destination) struct EndpointUpdates {
    request: GetRequest,
    subscription: Subscription<ServiceEndpoints>,
    /// The placement of the view for which the request was resolved to it.
    placement: u64,
    /// What the client has, once all frames are taken; `None` before the first message.
    sent: Option<Arc<Snapshot>>,
    frames: Option<Frames>,
    /// Whether the current frames are about an event, not about the request or a move to another view.
    is_event: bool,
}

// === impl EndpointUpdates ===

impl EndpointUpdates {
    pub(in crate::destination) fn new(
        mut request: GetRequest,
        (subscription, placement): (Subscription<ServiceEndpoints>, u64),
    ) -> Self {
        request.share_names(&subscription.view().key);
        Self { request, subscription, placement, sent: None, frames: None, is_event: false }
    }

    /// Whether the request may have to be resolved again.
    fn is_moved(&self, content: &EndpointsContent) -> bool {
        content.placement != self.placement
    }

    /// Resolves the request again.
    fn subscribe_again(&mut self) -> Result<(), EndReason> {
        match self.subscription.views().subscribe(&self.request) {
            Ok((subscription, placement)) => {
                (self.subscription, self.placement) = (subscription, placement);
                self.is_event = false;
                Ok(())
            }
            // It was deleted meanwhile: the view is about to publish that.
            Err(GetRefusal::NoService) => Ok(()),
            Err(GetRefusal::Stopping) => Err(EndReason::Shutdown),
            Err(_) => Err(EndReason::Rerouted),
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

    fn refresh(&mut self) -> Option<EndReason> {
        let Published { mut content, end } = self.subscription.latest();
        if end.is_some() {
            return end;
        }
        self.is_event = self.sent.is_some();
        // A deleted Service has no endpoints and no other view. The request stays open until the Service is back.
        if self.is_moved(&content) && content.exists {
            if let Err(end) = self.subscribe_again() {
                return Some(end);
            }
            content = self.subscription.latest().content;
            if self.is_moved(&content) {
                // It moved again meanwhile: the next state of the view is waiting already.
                return None;
            }
        }
        let snapshot = content.snapshot;
        let views = self.subscription.views();
        self.frames = match &self.sent {
            Some(sent) if sent.is_version_of(&snapshot) => return None,
            Some(sent) => {
                let frames = Frames::between(sent, &snapshot);
                views.metrics.delta(frames.is_shared());
                Some(frames)
            }
            None if !snapshot.is_empty() => Some(Frames::first(&snapshot)),
            // The contract's answer for a Service without endpoints. Upstream sends nothing, and proxies retry every 3 s.
            None if !views.settings.strict_upstream_parity => Some(Frames::no_endpoints()),
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
