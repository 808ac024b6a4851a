//! Rate limits of Events, so that many changes do not cause as many writes. Pure.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::{Cause, Notice, Reason, Reporter};

/// The rate per second, and the burst, of the Events of controllers.
const CONTROLLERS: BucketSize = BucketSize { per_second: 20.0, burst: 100.0 };
/// The same for admission reviews and certificates of workloads. Any author of Pods causes these, so they must not use
/// up the rate of controllers.
const REVIEWS: BucketSize = BucketSize { per_second: 10.0, burst: 50.0 };
/// The share of a namespace in [`REVIEWS`].
const REVIEWS_OF_NAMESPACE: BucketSize = BucketSize { per_second: 0.5, burst: 20.0 };
/// Minimum interval between two Events of one object and reason.
const PER_OBJECT: Duration = Duration::from_secs(60);
/// The time for which a namespace that answered 403 gets no Events. An exhausted quota also causes 403, and retries do
/// not change that.
const DENIED: Duration = Duration::from_secs(600);
/// The same for a namespace that is being deleted: one with the same name may exist soon.
const TERMINATING: Duration = Duration::from_secs(10);

/// The size of a token bucket.
struct BucketSize {
    per_second: f64,
    burst: f64,
}

struct TokenBucket {
    tokens: f64,
    filled: Instant,
}

/// Why a namespace gets no Events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Forbidden,
    /// The namespace is being deleted.
    Terminating,
}

pub(super) struct RateLimits {
    controllers: TokenBucket,
    reviews: TokenBucket,
    /// The shares of namespaces. Full ones are removed, and [`REVIEWS`] bounds the number of others.
    namespaces: HashMap<String, TokenBucket>,
    /// The time of the last Event of each object and reason. Entries older than [`PER_OBJECT`] are removed; the overall
    /// rates bound the number of newer ones.
    recent: HashMap<(String, Reason), Instant>,
    /// The namespaces that answered 403, and when they get Events again.
    denied: HashMap<String, Instant>,
}

// === impl RateLimits ===

impl RateLimits {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            controllers: TokenBucket::full(&CONTROLLERS, now),
            reviews: TokenBucket::full(&REVIEWS, now),
            namespaces: HashMap::new(),
            recent: HashMap::new(),
            denied: HashMap::new(),
        }
    }

    /// Admits an Event and counts it, or returns why it is dropped.
    #[allow(clippy::map_entry, reason = "an entry is made only when the overall rate admits it")]
    pub(super) fn admit(&mut self, notice: &Notice, now: Instant) -> Result<(), Cause> {
        if let Some(namespace) = &notice.regarding.namespace
            && self.denied.get(namespace).is_some_and(|until| now < *until)
        {
            return Err(Cause::Denied);
        }
        let key = (notice.regarding.uid.clone().unwrap_or_default(), notice.reason);
        if self.recent.get(&key).is_some_and(|last| now - *last < PER_OBJECT) {
            return Err(Cause::ObjectRate);
        }
        match notice.reason.reporter() {
            Reporter::Controller | Reporter::Identity => {
                if !self.controllers.take(&CONTROLLERS, now) {
                    return Err(Cause::OverallRate);
                }
            }
            Reporter::ProxyInjector | Reporter::IdentityLeaf => {
                self.admit_review(notice.regarding.namespace.as_deref(), now)?;
            }
        }
        // About twice the number that a minute admits, so that the scan is rare and the map is bounded.
        if self.recent.len() > 4000 {
            self.recent.retain(|_, last| now - *last < PER_OBJECT);
        }
        self.recent.insert(key, now);
        Ok(())
    }

    fn admit_review(&mut self, namespace: Option<&str>, now: Instant) -> Result<(), Cause> {
        // A share is full again after 40 s. In this time, at most 450 Events are admitted.
        if self.namespaces.len() >= 1000 {
            self.namespaces.retain(|_, share| {
                share.refill(&REVIEWS_OF_NAMESPACE, now);
                share.tokens < REVIEWS_OF_NAMESPACE.burst
            });
        }
        let share = self.namespaces.entry(namespace.unwrap_or_default().to_owned());
        let share = share.or_insert_with(|| TokenBucket::full(&REVIEWS_OF_NAMESPACE, now));
        share.refill(&REVIEWS_OF_NAMESPACE, now);
        if share.tokens < 1.0 {
            return Err(Cause::NamespaceRate);
        }
        if !self.reviews.take(&REVIEWS, now) {
            return Err(Cause::OverallRate);
        }
        share.tokens -= 1.0;
        Ok(())
    }

    /// Records that a namespace answered 403. Returns whether this is the first denial.
    pub(super) fn deny(&mut self, namespace: &str, refusal: Refusal, now: Instant) -> bool {
        self.denied.retain(|_, until| now < *until + DENIED);
        self.denied.insert(namespace.to_owned(), now + refusal.pause()).is_none()
    }

    /// Records that a namespace accepted an Event. Returns whether it was denied before.
    pub(super) fn allow(&mut self, namespace: &str) -> bool {
        self.denied.remove(namespace).is_some()
    }
}

// === impl Refusal ===

impl Refusal {
    /// Returns how long the namespace gets no Events.
    fn pause(self) -> Duration {
        match self {
            Self::Forbidden => DENIED,
            Self::Terminating => TERMINATING,
        }
    }
}

// === impl TokenBucket ===

impl TokenBucket {
    fn full(size: &BucketSize, now: Instant) -> Self {
        Self { tokens: size.burst, filled: now }
    }

    fn refill(&mut self, size: &BucketSize, now: Instant) {
        let tokens = self.tokens + (now - self.filled).as_secs_f64() * size.per_second;
        self.tokens = tokens.min(size.burst);
        self.filled = now;
    }

    /// Takes a token. Returns whether there was one.
    fn take(&mut self, size: &BucketSize, now: Instant) -> bool {
        self.refill(size, now);
        let has_token = self.tokens >= 1.0;
        if has_token {
            self.tokens -= 1.0;
        }
        has_token
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

    fn review(namespace: &str, uid: usize) -> Notice {
        let mut notice = notice(&uid.to_string(), Reason::Injected);
        notice.regarding.namespace = Some(namespace.to_owned());
        notice
    }

    #[test]
    fn a_namespace_gets_only_its_share_of_the_events_of_reviews() {
        let now = Instant::now();
        let mut limits = RateLimits::new(now);
        let mut admitted = |namespace: &str, from: usize, at| {
            (from..from + 100).filter(|uid| limits.admit(&review(namespace, *uid), at).is_ok()).count()
        };
        assert_eq!((admitted("one", 0, now), admitted("two", 100, now)), (20, 20));
        // Ten are left of the burst of all namespaces.
        assert_eq!(admitted("three", 200, now), 10);
        assert_eq!(admitted("one", 300, now + Duration::from_secs(10)), 5);
        assert_eq!(limits.admit(&review("one", 400), now + Duration::from_secs(10)), Err(Cause::NamespaceRate));
    }

    #[test]
    fn reviews_leave_the_rate_of_controllers_untouched() {
        let now = Instant::now();
        let mut limits = RateLimits::new(now);
        for number in 0..1000 {
            let _ = limits.admit(&review(&number.to_string(), number), now);
        }
        assert_eq!(limits.admit(&review("other", 2000), now), Err(Cause::OverallRate));
        let of_controllers =
            (3000..3200).filter(|uid| limits.admit(&notice(&uid.to_string(), Reason::PodRestart), now).is_ok());
        assert_eq!(of_controllers.count(), 100);
    }

    #[test]
    fn the_shares_of_many_namespaces_are_forgotten_when_they_are_full() {
        let mut now = Instant::now();
        let mut limits = RateLimits::new(now);
        for number in 0..20_000 {
            now += Duration::from_millis(100);
            let _ = limits.admit(&review(&number.to_string(), number), now);
            assert!(limits.namespaces.len() <= 1000);
        }
    }

    #[test]
    fn a_namespace_that_denies_events_gets_none_for_ten_minutes() {
        let now = Instant::now();
        let mut limits = RateLimits::new(now);
        assert!(limits.deny("ns", Refusal::Forbidden, now) && !limits.deny("ns", Refusal::Forbidden, now));
        assert_eq!(limits.admit(&notice("a", Reason::Published), now), Err(Cause::Denied));
        assert_eq!(limits.admit(&notice("a", Reason::Published), now + DENIED), Ok(()));
        assert!(limits.allow("ns") && !limits.allow("ns"));
    }

    #[test]
    fn a_namespace_that_is_created_again_after_its_deletion_gets_events_after_seconds() {
        let now = Instant::now();
        let mut limits = RateLimits::new(now);
        assert!(limits.deny("ns", Refusal::Terminating, now));
        assert_eq!(limits.admit(&notice("a", Reason::Published), now), Err(Cause::Denied));
        assert_eq!(limits.admit(&notice("a", Reason::Published), now + Duration::from_secs(10)), Ok(()));
    }
}
