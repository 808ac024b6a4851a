//! The updates of one `GetProfile` stream: the latest profile, if it differs from the last sent profile.

use tokio::time::Instant;

use super::{
    encoded::{EncodedProfile, Pieces},
    views::{ProfileViews, PublishedProfile},
};
use crate::destination::{
    labels::{EndReason, MessageCounts},
    registry::{Published, Subscription},
    stream::{OutgoingFrames, Updates},
};

pub(in crate::destination) struct ProfileUpdates {
    subscription: Subscription<ProfileViews>,
    /// The profile that the client has or is about to receive.
    sent: Option<EncodedProfile>,
    /// The pieces of this profile that were not passed to the transport yet, until the last one was.
    next: Option<Outgoing>,
}

struct Outgoing {
    pieces: Pieces,
    /// For the first piece; see [`OutgoingFrames`].
    messages: MessageCounts,
    received: Option<Instant>,
}

impl ProfileUpdates {
    pub(in crate::destination) fn new(subscription: Subscription<ProfileViews>) -> Self {
        Self { subscription, sent: None, next: None }
    }
}

impl Updates for ProfileUpdates {
    fn has_begun(&self) -> bool {
        self.sent.is_some()
    }

    async fn changed(&mut self) {
        self.subscription.changed().await;
    }

    fn refresh(&mut self) -> Option<EndReason> {
        let Published { content, end } = self.subscription.latest();
        if end.is_some() {
            return end;
        }
        let PublishedProfile { profile, received } = content?;
        if self.sent.as_ref() != Some(&profile) {
            let received = self.sent.is_some().then_some(received);
            self.sent = Some(profile.clone());
            let messages = MessageCounts { profile: 1, ..MessageCounts::default() };
            self.next = Some(Outgoing { pieces: profile.pieces(), messages, received });
        }
        None
    }

    fn next(&mut self) -> Option<OutgoingFrames> {
        let Outgoing { pieces, messages, received } = self.next.as_mut()?;
        let frames = pieces.next();
        if frames.is_none() {
            self.next = None;
            return None;
        }
        Some(OutgoingFrames { frames: frames?, messages: std::mem::take(messages), received: received.take() })
    }
}
