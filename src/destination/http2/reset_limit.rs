//! The limit for rapid resets (CVE-2023-44487): a client that resets streams immediately after opening them causes work
//! for the server at no cost for itself.
//!
//! In: early resets, with their times. Out: whether they exceed the limit. The resets of ordinary proxies are not
//! early: a proxy resets a stream seconds after the request when it no longer needs the target, or after three seconds
//! if the server is slow.

use std::time::Duration;

use tokio::time::Instant;

/// A reset is early if its stream is younger than this.
pub(super) const EARLY_RESET: Duration = Duration::from_secs(1);
/// Early resets that are allowed in a burst: a proxy whose application disconnects resets all streams that it has just
/// opened.
const BURST: f64 = 1_000.0;
const PER_SECOND: f64 = 100.0;

/// A token bucket of one connection.
pub(super) struct ResetLimit {
    tokens: f64,
    refilled: Instant,
}

// === impl ResetLimit ===

impl ResetLimit {
    pub(super) fn new(now: Instant) -> Self {
        Self { tokens: BURST, refilled: now }
    }

    /// Counts an early reset. Returns whether it is within the limit.
    pub(super) fn allow(&mut self, now: Instant) -> bool {
        let earned = now.duration_since(self.refilled).as_secs_f64() * PER_SECOND;
        self.tokens = (self.tokens + earned).min(BURST) - 1.0;
        self.refilled = now;
        self.tokens >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_a_flood_is_not() {
        let begun = Instant::now();
        let mut limit = ResetLimit::new(begun);
        assert!((0..1_000).all(|_| limit.allow(begun)));
        assert!(!limit.allow(begun));
    }

    #[test]
    fn the_limit_recovers_with_time() {
        let begun = Instant::now();
        let mut limit = ResetLimit::new(begun);
        assert!((0..10_000).all(|n| limit.allow(begun + Duration::from_millis(10) * n)));
        assert!(!(0..3_000).all(|n| limit.allow(begun + Duration::from_secs(100) + Duration::from_millis(1) * n)));
    }
}
