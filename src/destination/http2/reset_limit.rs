//! The limit for rapid resets (CVE-2023-44487): a client that resets streams right after it opened them causes work at no cost
//! of its own.
//!
//! In: early resets, with their times. Out: whether there are too many. A proxy that no longer needs a target resets its stream
//! seconds after the request, and one that gives up on a slow server does so after three seconds; neither counts.

use std::time::Duration;

use tokio::time::Instant;

/// A reset of a stream that is younger than this counts.
pub(super) const EARLY_RESET: Duration = Duration::from_secs(1);
/// Early resets that are allowed at once: a proxy whose application goes away resets all streams that it has just opened.
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
