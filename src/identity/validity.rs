//! When a leaf is valid.
//!
//! In: the time, the settings. Out: the first and the last second. Always holds: both are whole
//! seconds in the years 0 to 9999, which a certificate can express.

use jiff::{SignedDuration, Timestamp};

use crate::trust::seen::LeafSettings;

/// The lifetime that Linkerd takes instead of zero: a year.
const LONGEST_DEFAULT: SignedDuration = SignedDuration::from_hours(365 * 24);
/// The allowance that Linkerd takes instead of zero.
const DEFAULT_CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(10);
/// The first second of the year 0.
const FIRST_SECOND: i64 = -62_167_219_200;

/// The minimum of [`RenewWithin`]. Each proxy calls again after about two thirds of it.
pub const SHORTEST_RENEW_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// Shortens the end of a leaf in the answer to a proxy. The leaf itself stays valid for longer. A proxy renews after 70 %
/// of the time until the end in the answer, and otherwise shows that end only in a metric. So the mesh survives an outage
/// of the identity service for as long as without this setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenewWithin(Option<SignedDuration>);

/// How long leaves are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafLifetime {
    lifetime: SignedDuration,
    clock_skew: SignedDuration,
}

/// When a leaf is valid. [`super::issuer::Issuer::issue`] shortens it to the end of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(super) now: Timestamp,
    pub(super) not_before: Timestamp,
    pub(super) not_after: Timestamp,
}

// === impl RenewWithin ===

impl RenewWithin {
    /// Zero is no time. `None` if another time is shorter than [`SHORTEST_RENEW_WITHIN`].
    pub fn new(within: SignedDuration) -> Option<Self> {
        if within.is_zero() {
            return Some(Self(None));
        }
        (within >= SHORTEST_RENEW_WITHIN).then_some(Self(Some(within)))
    }

    pub(super) fn at_most(self, within: SignedDuration) -> Self {
        Self(Some(self.0.map_or(within, |own| own.min(within))))
    }

    /// Returns the end that the answer names: up to 5 % earlier, so that proxies that started together do not renew
    /// together. `random` is from 0 to 1.
    pub(super) fn valid_until(self, not_after: Timestamp, now: Timestamp, random: f64) -> Timestamp {
        let Some(within) = self.0 else { return not_after };
        let earlier = SignedDuration::try_from_secs_f64(within.as_secs_f64() / 20.0 * random).unwrap_or_default();
        not_after.min(moved(now, within.saturating_sub(earlier)))
    }
}

// === impl LeafLifetime ===

impl LeafLifetime {
    /// As in Linkerd, a lifetime of zero is a year, an allowance of zero is 10 s, and both may be negative.
    pub(crate) fn new(lifetime: SignedDuration, clock_skew_allowance: SignedDuration) -> Self {
        let or = |duration: SignedDuration, default| if duration.is_zero() { default } else { duration };
        let (lifetime, clock_skew) = (or(lifetime, LONGEST_DEFAULT), or(clock_skew_allowance, DEFAULT_CLOCK_SKEW));
        Self { lifetime, clock_skew }
    }

    /// The same, with the trust domain.
    pub(super) fn settings(&self, trust_domain: &str) -> LeafSettings {
        let Self { lifetime, clock_skew } = *self;
        let longest_lifetime = lifetime;
        LeafSettings { trust_domain: trust_domain.to_owned(), lifetime, longest_lifetime, clock_skew }
    }

    /// Returns the validity of a leaf that is issued now.
    pub(crate) fn at(&self, now: Timestamp) -> Validity {
        let before = self.clock_skew.checked_neg().unwrap_or(SignedDuration::MAX);
        let until = self.lifetime.saturating_add(self.clock_skew);
        Validity { now, not_before: moved(now, before), not_after: moved(now, until) }
    }
}

/// Returns another time, without its fraction of a second.
fn moved(time: Timestamp, by: SignedDuration) -> Timestamp {
    let latest = if by.is_negative() { Timestamp::MIN } else { Timestamp::MAX };
    let moved = time.checked_add(by).unwrap_or(latest);
    // The seconds of a time before 1970 with a fraction are rounded up.
    let seconds = moved.as_second() - i64::from(moved.subsec_nanosecond() < 0);
    Timestamp::from_second(seconds.max(FIRST_SECOND)).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn validity(lifetime: i64, clock_skew: i64, now: &str) -> [String; 2] {
        let lifetime = LeafLifetime::new(SignedDuration::from_secs(lifetime), SignedDuration::from_secs(clock_skew));
        let validity = lifetime.at(time(now));
        [validity.not_before.to_string(), validity.not_after.to_string()]
    }

    #[test]
    fn the_clock_skew_is_added_at_both_ends_and_fractions_of_seconds_are_dropped() {
        let day = validity(86_400, 20, "2026-11-28T02:00:00.999Z");
        assert_eq!(day, ["2026-11-28T01:59:40Z", "2026-11-29T02:00:20Z"]);
        let before_1970 = validity(10, 1, "1960-01-01T00:00:00.5Z");
        assert_eq!(before_1970, ["1959-12-31T23:59:59Z", "1960-01-01T00:00:11Z"]);
    }

    #[test]
    fn proxies_are_told_to_renew_up_to_a_twentieth_earlier_and_not_after_the_end_of_the_leaf() {
        let now = time("2026-11-28T02:00:00Z");
        let hour = RenewWithin::new(SignedDuration::from_hours(1)).unwrap();
        let until = |not_after: &str, random| hour.valid_until(time(not_after), now, random).to_string();
        assert_eq!(until("2026-11-29T02:00:20Z", 0.0), "2026-11-28T03:00:00Z");
        assert_eq!(until("2026-11-29T02:00:20Z", 1.0), "2026-11-28T02:57:00Z");
        assert_eq!(until("2026-11-28T02:30:00Z", 0.5), "2026-11-28T02:30:00Z");
        let longest = RenewWithin::new(SignedDuration::MAX).unwrap();
        assert_eq!(longest.valid_until(time("2026-11-29T02:00:20Z"), now, 0.5), time("2026-11-29T02:00:20Z"));
        assert_eq!(RenewWithin::new(SignedDuration::from_secs(59)), None);
        let never = RenewWithin::new(SignedDuration::ZERO).unwrap();
        assert_eq!(never.valid_until(time("2026-11-29T02:00:20Z"), now, 0.5), time("2026-11-29T02:00:20Z"));
    }

    #[test]
    fn zero_is_the_default_of_linkerd_and_negative_durations_are_used() {
        assert_eq!(validity(0, 0, "2026-01-01T00:00:00Z"), ["2025-12-31T23:59:50Z", "2027-01-01T00:00:10Z"]);
        assert_eq!(validity(-3600, 20, "2026-01-01T01:00:00Z"), ["2026-01-01T00:59:40Z", "2026-01-01T00:00:20Z"]);
        assert_eq!(validity(60, -20, "2026-01-01T00:00:00Z"), ["2026-01-01T00:00:20Z", "2026-01-01T00:00:40Z"]);
    }

    #[test]
    fn times_that_a_certificate_cannot_express_are_cut_off() {
        let far = [i64::MAX, i64::MIN].map(SignedDuration::from_secs);
        for (lifetime, clock_skew) in [(far[0], far[0]), (far[1], far[1]), (far[0], far[1]), (far[1], far[0])] {
            let validity = LeafLifetime::new(lifetime, clock_skew).at(time("2026-01-01T00:00:00Z"));
            for time in [validity.not_before, validity.not_after] {
                assert!(time >= self::time("0000-01-01T00:00:00Z"), "{time}");
                assert!([13, 15].contains(&crate::x509::leaf::encoded(time).1.len()), "{time}");
            }
        }
    }
}
