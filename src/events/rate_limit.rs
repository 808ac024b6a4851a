//! Rate limits of Events, so that many changes do not cause as many writes. Pure.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::{Cause, Notice, Reason};

const RATE_PER_SECOND: f64 = 20.0;
const BURST: f64 = 100.0;
/// Minimum interval between two Events of one object and reason.
const PER_OBJECT: Duration = Duration::from_secs(60);
/// How long a namespace that answered 403 gets no Events. A terminating namespace and an exhausted quota also cause
/// 403, and retries change neither.
const DENIED: Duration = Duration::from_secs(600);

pub(super) struct RateLimits {
    tokens: f64,
    filled: Instant,
    /// The time of the last Event of each object and reason. Entries older than [`PER_OBJECT`] are removed; the overall
    /// rate bounds the number of newer ones.
    recent: HashMap<(String, Reason), Instant>,
    /// The namespaces that answered 403, and the times of these answers.
    denied: HashMap<String, Instant>,
}

// === impl RateLimits ===

impl RateLimits {
    pub(super) fn new(now: Instant) -> Self {
        Self { tokens: BURST, filled: now, recent: HashMap::new(), denied: HashMap::new() }
    }

    /// Admits an Event and counts it, or returns why it is dropped.
    #[allow(clippy::map_entry, reason = "an entry is made only when the overall rate admits it")]
    pub(super) fn admit(&mut self, notice: &Notice, now: Instant) -> Result<(), Cause> {
        if let Some(namespace) = &notice.regarding.namespace
            && self.denied.get(namespace).is_some_and(|since| now - *since < DENIED)
        {
            return Err(Cause::Denied);
        }
        let key = (notice.regarding.uid.clone().unwrap_or_default(), notice.reason);
        if self.recent.get(&key).is_some_and(|last| now - *last < PER_OBJECT) {
            return Err(Cause::ObjectRate);
        }
        let refill = (now - self.filled).as_secs_f64() * RATE_PER_SECOND;
        self.tokens = (self.tokens + refill).min(BURST);
        self.filled = now;
        if self.tokens < 1.0 {
            return Err(Cause::OverallRate);
        }
        self.tokens -= 1.0;
        // About twice the number that a minute admits, so that the scan is rare and the map is bounded.
        if self.recent.len() > 3000 {
            self.recent.retain(|_, last| now - *last < PER_OBJECT);
        }
        self.recent.insert(key, now);
        Ok(())
    }

    /// Records that a namespace answered 403. Returns whether this is the first denial.
    pub(super) fn deny(&mut self, namespace: &str, now: Instant) -> bool {
        self.denied.retain(|_, since| now - *since < 2 * DENIED);
        self.denied.insert(namespace.to_owned(), now).is_none()
    }

    /// Records that a namespace accepted an Event. Returns whether it was denied before.
    pub(super) fn allow(&mut self, namespace: &str) -> bool {
        self.denied.remove(namespace).is_some()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;

    fn notice(uid: &str, reason: Reason) -> Notice {
        let regarding = ObjectReference {
            uid: Some(uid.to_owned()),
            namespace: Some("ns".to_owned()),
            ..ObjectReference::default()
        };
        Notice { reason, regarding, related: None, note: String::new() }
    }

    #[test]
    fn one_event_a_minute_per_object_and_reason() {
        let now = Instant::now();
        let mut limits = RateLimits::new(now);
        assert_eq!(limits.admit(&notice("a", Reason::BecameReady), now), Ok(()));
        assert_eq!(limits.admit(&notice("a", Reason::BecameReady), now), Err(Cause::ObjectRate));
        assert_eq!(limits.admit(&notice("a", Reason::BecameUnready), now), Ok(()));
        assert_eq!(limits.admit(&notice("b", Reason::BecameReady), now), Ok(()));
        assert_eq!(limits.admit(&notice("a", Reason::BecameReady), now + PER_OBJECT), Ok(()));
    }

    #[test]
    fn a_burst_of_a_hundred_then_twenty_a_second() {
        let now = Instant::now();
        let mut limits = RateLimits::new(now);
        let mut admitted = |count: usize, from: usize, at| {
            (from..from + count)
                .filter(|i| limits.admit(&notice(&i.to_string(), Reason::Published), at).is_ok())
                .count()
        };
        assert_eq!(admitted(500, 0, now), 100);
        assert_eq!(admitted(500, 1000, now + Duration::from_secs(1)), 20);
        assert_eq!(admitted(500, 2000, now + Duration::from_secs(60)), 100);
    }

    #[test]
    fn a_namespace_that_denies_events_gets_none_for_ten_minutes() {
        let now = Instant::now();
        let mut limits = RateLimits::new(now);
        assert!(limits.deny("ns", now) && !limits.deny("ns", now));
        assert_eq!(limits.admit(&notice("a", Reason::Published), now), Err(Cause::Denied));
        assert_eq!(limits.admit(&notice("a", Reason::Published), now + DENIED), Ok(()));
        assert!(limits.allow("ns") && !limits.allow("ns"));
    }
}
