//! A limit of a rate that permits a burst. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// A limit of how often something happens: at most once per interval on average, and `burst` times at once.
#[derive(Debug)]
pub(in crate::proxy_injector) struct Pace {
    interval: Duration,
    burst: u32,
    /// When the next one would be due without a burst.
    due: Option<Instant>,
}

// === impl Pace ===

impl Pace {
    pub(in crate::proxy_injector) const fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst, due: None }
    }

    /// Returns how long to wait until the next one is permitted.
    pub(in crate::proxy_injector) fn wait(&self, now: Instant) -> Duration {
        let ahead = self.due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now));
        ahead.saturating_sub(self.interval.saturating_mul(self.burst.saturating_sub(1)))
    }

    /// Counts one.
    pub(in crate::proxy_injector) fn count(&mut self, now: Instant) {
        self.due = Some(self.due.map_or(now, |due| due.max(now)) + self.interval);
    }

    /// Counts one if it is permitted now. Returns whether it is.
    pub(in crate::proxy_injector) fn admit(&mut self, now: Instant) -> bool {
        let is_permitted = self.wait(now).is_zero();
        if is_permitted {
            self.count(now);
        }
        is_permitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_permitted_and_then_one_per_interval() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut pace = Pace::new(second, 3);
        let mut admitted = |at: Duration| (0..10).filter(|_| pace.admit(start + at)).count();
        assert_eq!([admitted(Duration::ZERO), admitted(second / 2), admitted(second)], [3, 0, 1]);
        assert_eq!(admitted(60 * second), 3, "unused intervals add up to a burst at most");
    }
}
