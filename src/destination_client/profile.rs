//! The profile that the last message of a `GetProfile` stream contains.
//!
//! In: messages of the stream, each of which replaces the one before. Out: the messages that differ, as JSON. Always
//! holds: the JSON is that of [`crate::proto`]; its fields have the names that `linkerd diagnostics profile` prints.

use serde::Serialize;
use tonic::{Status, Streaming};

use super::{AuthorityState, DestinationClient};
use crate::proto::destination::{DestinationProfile, GetDestination};

/// The profile of one authority. It is empty for a port that its Service does not have.
#[derive(Debug, Default)]
pub struct ProfileState {
    /// Set by the first message.
    known: Option<DestinationProfile>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct ProfileChange {
    profile: DestinationProfile,
}

// === impl ProfileState ===

impl ProfileState {
    /// Returns the profile, after the first message.
    pub fn known(&self) -> Option<&DestinationProfile> {
        self.known.as_ref()
    }
}

impl AuthorityState for ProfileState {
    type Message = DestinationProfile;
    type Difference = ProfileChange;
    const IN_PARTS: bool = false;

    async fn open(
        destination: &DestinationClient,
        request: GetDestination,
    ) -> Result<Streaming<Self::Message>, Status> {
        destination.get_profile(request).await
    }

    /// Each message is a complete profile.
    fn reopen(&mut self) {}

    fn apply(&mut self, profile: DestinationProfile) -> Option<ProfileChange> {
        if self.known.as_ref() == Some(&profile) {
            return None;
        }
        self.known = Some(profile.clone());
        Some(ProfileChange { profile })
    }
}

#[cfg(test)]
#[path = "profile_tests.rs"]
mod tests;
