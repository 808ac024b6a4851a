//! When a leaf is valid.
//!
//! In: the time, the settings. Out: the first and the last second. Always holds: both are whole seconds, in years that a
//! certificate can express.

use jiff::{SignedDuration, Timestamp};

/// How long leaves are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafLifetime {
    lifetime: SignedDuration,
    clock_skew: SignedDuration,
}

/// When a leaf is valid. [`super::issuer::Issuer::issue`] shortens it to the end of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) now: Timestamp,
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
}

// === impl LeafLifetime ===

impl LeafLifetime {
    /// As in Linkerd, a lifetime of zero is a year, an allowance of zero is 10 s, and both may be negative.
    pub(crate) fn new(lifetime: SignedDuration, clock_skew_allowance: SignedDuration) -> Self {
        Self { lifetime, clock_skew: clock_skew_allowance }
    }

    /// Returns the validity of a leaf that is issued now.
    pub(crate) fn at(&self, now: Timestamp) -> Validity {
        Validity {
            now,
            not_before: now.saturating_sub(self.clock_skew).unwrap_or(now),
            not_after: now.saturating_add(self.lifetime).unwrap_or(now),
        }
    }
}
