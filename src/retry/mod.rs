//! Retry delays: exponential backoff and jitter; the rate of the reports of a failure; and the bound of a
//! contest with another writer.

mod overwrites;

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

pub use self::overwrites::Overwrites;

/// Limits the reports of a failure that many calls meet.
pub struct ReportRate {
    /// The shortest time between two reports.
    interval: Duration,
    last: Mutex<Option<Instant>>,
}

/// Returns the delay after a number of consecutive failures: it doubles from `base`, up to `cap`, and is jittered.
pub fn backoff(failures: u32, base: Duration, cap: Duration) -> Duration {
    jittered(base.saturating_mul(1 << failures.min(20)).min(cap))
}

/// Subtracts a random part of up to a tenth, so that objects that failed together are not retried together, and
/// replicas do not send requests at the same time.
pub fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(1.0 - 0.1 * rand::random::<f64>())
}

// === impl ReportRate ===

impl ReportRate {
    pub fn new(interval: Duration) -> Self {
        Self { interval, last: Mutex::default() }
    }

    /// Returns whether the failure is reported now, and counts the report.
    pub fn allows(&self) -> bool {
        let mut last = self.last.lock();
        let is_due = last.is_none_or(|last| last.elapsed() >= self.interval);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_reported_at_once_and_then_seldom() {
        let rate = ReportRate::new(Duration::from_secs(60));
        let mut reports = Vec::new();
        for second in 0..150 {
            reports.extend(rate.allows().then_some(second));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(reports, [0, 60, 120]);
    }

    #[test]
    fn backoff_doubles_up_to_its_cap() {
        let delay = |failures| backoff(failures, Duration::from_millis(100), Duration::from_secs(60));
        for (failures, expected) in [(0, 0.1), (1, 0.2), (3, 0.8), (9, 51.2), (10, 60.0), (4_000_000_000, 60.0)] {
            let seconds = delay(failures).as_secs_f64();
            assert!((expected * 0.9..=expected).contains(&seconds), "{failures} failures: {seconds} s");
        }
    }
}
