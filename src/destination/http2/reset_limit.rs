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

/// The number of streams of a proxy with many targets. Behind the server's own proxy, a connection with more streams
/// has several clients, and the limit grows with it.
const STREAMS_OF_A_CLIENT: usize = 100;
/// The maximum growth of the limit.
const CLIENTS: usize = 10;

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

    /// Counts an early reset on a connection with this number of other streams. Returns whether it is within the limit.
    pub(super) fn allow(&mut self, now: Instant, streams: usize) -> bool {
        #[allow(clippy::cast_precision_loss, reason = "at most ten")]
        let clients = (streams / STREAMS_OF_A_CLIENT).clamp(1, CLIENTS) as f64;
        let earned = now.duration_since(self.refilled).as_secs_f64() * PER_SECOND * clients;
        self.tokens = (self.tokens + earned).min(BURST * clients) - 1.0;
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
        assert!((0..1_000).all(|_| limit.allow(begun, 0)));
        assert!(!limit.allow(begun, 0));
    }

    #[test]
    fn the_limit_recovers_with_time() {
        let begun = Instant::now();
        let mut limit = ResetLimit::new(begun);
        assert!((0..10_000).all(|n| limit.allow(begun + Duration::from_millis(10) * n, 0)));
        assert!(!(0..3_000).all(|n| limit.allow(begun + Duration::from_secs(100) + Duration::from_millis(1) * n, 0)));
    }

    #[test]
    fn a_connection_that_many_clients_share_may_reset_more() {
        let begun = Instant::now();
        let every = |milliseconds: u64, streams| {
            let mut limit = ResetLimit::new(begun);
            (0..20_000).all(|n| limit.allow(begun + Duration::from_millis(milliseconds) * n, streams))
        };
        assert!(!every(2, 100), "five hundred a second, with the streams of one client");
        assert!(every(2, 500), "the same with those of five");
        assert!(!every(0, 100_000), "the growth has an end");
    }
}
