//! When the end of an issuer is announced. Pure.
//!
//! In: the time until its end, now and when it was loaded. Out: the number of the announcement. Always holds: the nearer
//! the end, the higher the number.

use jiff::SignedDuration;

const DAY: i64 = 24 * 60 * 60;
/// The announcements for an issuer that is valid for long.
const LONG: [i64; 3] = [30 * DAY, 7 * DAY, DAY];
/// An issuer that is valid for less has other announcements, in percent of the time.
const SHORT: i64 = 8 * DAY;
const SHORT_PERCENT: [i64; 3] = [50, 25, 10];

/// Returns how many of the announcements are due.
pub(super) fn announcements(at_load: SignedDuration, left: SignedDuration) -> usize {
    let (at_load, left) = (at_load.as_secs(), left.as_secs());
    let due = match at_load < SHORT {
        true => SHORT_PERCENT.map(|percent| at_load.saturating_mul(percent) / 100),
        false => LONG,
    };
    due.into_iter().filter(|due| left <= *due).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_issuer_is_announced_30_7_and_1_day_before_its_end() {
        let of = |left: i64| announcements(SignedDuration::from_secs(365 * DAY), SignedDuration::from_secs(left));
        assert_eq!([of(31 * DAY), of(30 * DAY), of(7 * DAY), of(DAY), of(-1)], [0, 1, 2, 3, 3]);
    }

    #[test]
    fn a_short_issuer_is_announced_at_half_a_quarter_and_a_tenth_of_its_time() {
        let of = |left: i64| announcements(SignedDuration::from_hours(48), SignedDuration::from_hours(left));
        assert_eq!([of(48), of(24), of(12), of(4), of(0)], [0, 1, 2, 3, 3]);
    }
}
