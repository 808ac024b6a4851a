//! The updates of one `GetProfile` stream: the latest profile, if it differs from the last sent profile.

use bytes::Bytes;

use super::views::{EncodedProfile, Profiles};
use crate::destination::{
    registry::{Published, Subscription},
    stream::{EndReason, MessageCounts, OutgoingFrames, Updates},
    views::Views,
};

pub(in crate::destination) struct ProfileUpdates {
    subscription: Subscription<Profiles>,
    /// The profile that the client has or is about to receive.
    sent: Option<Bytes>,
    next: Option<OutgoingFrames>,
}

impl ProfileUpdates {
    pub(in crate::destination) fn new(subscription: Subscription<Profiles>) -> Self {
        Self { subscription, sent: None, next: None }
    }
}

impl Updates for ProfileUpdates {
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
        let Published { content, end } = self.subscription.latest();
        if end.is_some() {
            return end;
        }
        let EncodedProfile { frame, received } = content?;
        if self.sent.as_ref() != Some(&frame) {
            let received = self.sent.is_some().then_some(received);
            self.sent = Some(frame.clone());
            let messages = MessageCounts { profile: 1, ..MessageCounts::default() };
            self.next = Some(OutgoingFrames { frames: frame, messages, received });
        }
        None
    }

    fn next(&mut self) -> Option<OutgoingFrames> {
        self.next.take()
    }
}
