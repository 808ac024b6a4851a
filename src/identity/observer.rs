//! Has the LinkerdTrusts watched. The identity service reads them from the state.

use tokio::time::Instant;

use crate::cluster::{Change, Kind, Observer, State};

/// Reads LinkerdTrusts.
pub struct IdentityObserver;

impl Observer for IdentityObserver {
    fn kinds(&self) -> &'static [Kind] {
        &[Kind::LinkerdTrust]
    }

    /// Proxies need certificates also without a LinkerdTrust.
    fn blocks_readiness(&self) -> bool {
        false
    }

    fn changed(&self, _: &State, _: &[Change], _: Instant) {}
}
