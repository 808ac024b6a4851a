//! Roots, numbers and times in sentences. Pure.

use jiff::{RoundMode, SignedDuration, Timestamp, TimestampRound, Unit};

use crate::{text::hex, x509::anchors::RootCertificate};

/// The number of digits of a fingerprint in a sentence.
const SHOWN: usize = 8;

/// Returns a root for a sentence: its name, and the first digits of its fingerprint, because roots often share names.
pub(super) fn named(root: &RootCertificate) -> String {
    named_by(&root.name, &hex(root.sha256))
}

pub(super) fn named_by(name: &str, sha256: &str) -> String {
    format!("{name} ({})", sha256.get(..SHOWN).unwrap_or_default())
}

/// Returns a number of proxies in words.
pub fn proxies(count: usize) -> String {
    if count == 1 { "1 proxy".to_owned() } else { format!("{count} proxies") }
}

/// Returns that a number of proxies trust a root or not, as the beginning of a sentence.
pub fn proxies_trust(count: usize, is_trusted: bool) -> String {
    let verb = match (count, is_trusted) {
        (1, true) => "trusts",
        (_, true) => "trust",
        (1, false) => "does not trust",
        (_, false) => "do not trust",
    };
    format!("{} {verb}", proxies(count))
}

/// Returns a time from now on, in its largest unit.
pub fn in_time(time: Timestamp, now: Timestamp) -> String {
    let left = time.duration_since(now);
    match left.is_negative() {
        true => format!("{} ago", rounded(-left)),
        false => format!("in {}", rounded(left)),
    }
}

/// Returns the beginning of a minute, so that a status changes once a minute at most.
pub(crate) fn minute_of(time: Timestamp) -> Timestamp {
    time.round(TimestampRound::new().smallest(Unit::Minute).mode(RoundMode::Trunc)).unwrap_or(time)
}

/// Returns a duration in days or hours or minutes.
pub(super) fn rounded(duration: SignedDuration) -> String {
    let hours = duration.as_hours();
    match hours {
        0 => format!("{} min", duration.as_mins()),
        1..=72 => format!("{hours} h"),
        _ => format!("{} d", hours / 24),
    }
}

/// Returns the date of a time, in UTC.
pub(super) fn day(time: Timestamp) -> String {
    time.round(Unit::Second).unwrap_or(time).to_string().get(..10).unwrap_or_default().to_owned()
}
