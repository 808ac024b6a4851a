//! What one `GetProfile` stream tells: the latest profile, if it is another than the last.

use bytes::Bytes;

use super::views::{Profile, Published, Subscription};
use crate::destination::{
    get::views::Views,
    metrics::{End, Messages},
    stream::{Told, Updates},
};

pub(in crate::destination) struct ProfileUpdates {
    subscription: Subscription,
    /// What the client has, or is about to have.
    sent: Option<Bytes>,
    next: Option<Told>,
}

impl ProfileUpdates {
    pub(in crate::destination) fn new(subscription: Subscription) -> Self {
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

    fn look(&mut self) -> Option<End> {
        let Published { profile, end } = self.subscription.latest();
        if end.is_some() {
            return end;
        }
        let Profile { frame, received } = profile?;
        if self.sent.as_ref() != Some(&frame) {
            let answers = self.sent.is_some().then_some(received);
            self.sent = Some(frame.clone());
            let messages = Messages { profile: 1, ..Messages::default() };
            self.next = Some(Told { frames: frame, messages, answers });
        }
        None
    }

    fn next(&mut self) -> Option<Told> {
        self.next.take()
    }
}
