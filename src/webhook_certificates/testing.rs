//! Authorities and leaves, for tests.

use jiff::Timestamp;

use super::issue::{self, LeafPair, SigningAuthority};

pub(super) const NAME: &str = "linkerd-operator-webhook.linkerd-operator-system.svc";

pub(super) fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// An authority that is issued at this time.
pub(super) fn authority(at: &str) -> SigningAuthority {
    issue::authority(time(at)).unwrap()
}

/// A leaf for [`NAME`] that is issued at this time.
pub(super) fn leaf(authority: &SigningAuthority, at: &str) -> LeafPair {
    issue::leaf(authority, &[NAME.to_owned()], time(at)).unwrap()
}
