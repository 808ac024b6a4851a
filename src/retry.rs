//! Retry delays: exponential backoff and jitter.

use std::time::Duration;

/// Returns the delay after a number of consecutive failures: it doubles from `base`, up to `cap`, and is jittered.
pub fn backoff(failures: u32, base: Duration, cap: Duration) -> Duration {
    jittered(base.saturating_mul(1 << failures.min(20)).min(cap))
}

/// Subtracts a random part of up to a tenth, so that objects that failed together are not retried together, and
/// replicas do not send requests at the same time.
pub fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(1.0 - 0.1 * rand::random::<f64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_cap() {
        let delay = |failures| backoff(failures, Duration::from_millis(100), Duration::from_secs(60));
        for (failures, expected) in [(0, 0.1), (1, 0.2), (3, 0.8), (9, 51.2), (10, 60.0), (4_000_000_000, 60.0)] {
            let seconds = delay(failures).as_secs_f64();
            assert!((expected * 0.9..=expected).contains(&seconds), "{failures} failures: {seconds} s");
        }
    }
}
