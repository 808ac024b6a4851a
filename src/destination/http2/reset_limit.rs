//! Clients that reset streams as soon as they have opened them (CVE-2023-44487): each costs us a little, and them nothing.
//!
//! In: such resets, with their times. Out: whether it is a flood. A proxy that loses interest does so seconds after it
//! asked, and one that gives up on us after three; neither counts.

use std::time::Duration;

use tokio::time::Instant;

/// A stream that is younger when its client resets it was opened for nothing.
pub(in crate::destination) const EARLY: Duration = Duration::from_secs(1);
/// So many at once are borne: a proxy whose application goes away resets all that it has just asked for.
const BURST: f64 = 1_000.0;
const A_SECOND: f64 = 100.0;

/// What is left to a connection.
pub(in crate::destination) struct Resets {
    left: f64,
    counted: Instant,
}

// === impl Resets ===

impl Resets {
    pub(in crate::destination) fn new(now: Instant) -> Self {
        Self { left: BURST, counted: now }
    }

    /// Counts an early reset. `false`: it is one too many.
    pub(in crate::destination) fn bears(&mut self, now: Instant) -> bool {
        let earned = now.duration_since(self.counted).as_secs_f64() * A_SECOND;
        self.left = (self.left + earned).min(BURST) - 1.0;
        self.counted = now;
        self.left >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_borne_and_a_flood_is_not() {
        let begun = Instant::now();
        let mut resets = Resets::new(begun);
        assert!((0..1_000).all(|_| resets.bears(begun)));
        assert!(!resets.bears(begun));
    }

    #[test]
    fn what_was_borne_is_forgotten_in_time() {
        let begun = Instant::now();
        let mut resets = Resets::new(begun);
        assert!((0..10_000).all(|n| resets.bears(begun + Duration::from_millis(10) * n)));
        assert!(!(0..3_000).all(|n| resets.bears(begun + Duration::from_secs(100) + Duration::from_millis(1) * n)));
    }
}
