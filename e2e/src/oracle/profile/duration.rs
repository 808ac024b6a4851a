//! Durations in Go's syntax.
//!
//! * In: text such as `1h30m` or `-1.5s`. Out: nanoseconds, or a protobuf message.
//! * Always: rejects the same texts as Go, and truncates fractions of a nanosecond.

use std::str::FromStr;

/// The maximum magnitude. It is valid only for a negative duration, as in Go.
const END: u64 = 1 << 63;

/// Returns nanoseconds; `None` for an invalid duration, including the empty text.
pub(super) fn parse(text: &str) -> Option<i64> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let magnitude = if unsigned == "0" { 0 } else { sum(unsigned)? };
    match (negative, magnitude) {
        (true, END) => Some(i64::MIN),
        (true, magnitude) => i64::try_from(magnitude).ok().map(|magnitude| -magnitude),
        (false, magnitude) => i64::try_from(magnitude).ok(),
    }
}

/// Sums one or more numbers with units.
fn sum(text: &str) -> Option<u64> {
    let (mut sum, mut rest) = (0_u64, text);
    loop {
        let digits = leading(rest, |at| at.is_ascii_digit());
        rest = rest.strip_prefix(digits)?;
        let (fraction, point) = match rest.strip_prefix('.') {
            Some(behind) => (leading(behind, |at| at.is_ascii_digit()), 1),
            None => ("", 0),
        };
        rest = rest.get(point + fraction.len()..)?;
        let unit = leading(rest, |at| at != '.' && !at.is_ascii_digit());
        rest = rest.strip_prefix(unit)?;
        sum = sum.checked_add(part(digits, fraction, unit)?).filter(|sum| *sum <= END)?;
        if rest.is_empty() {
            return Some(sum);
        }
    }
}

fn leading(text: &str, wanted: impl Fn(char) -> bool) -> &str {
    let end = text.find(|at| !wanted(at)).unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

fn part(digits: &str, fraction: &str, unit: &str) -> Option<u64> {
    let unit: u64 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    if digits.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole = if digits.is_empty() { 0 } else { digits.parse::<u64>().ok()? };
    // Digits after the 18th contribute less than a nanosecond, even for hours.
    let fraction = fraction.get(..fraction.len().min(18))?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let fraction = if fraction.is_empty() { 0 } else { fraction.parse::<u128>().ok()? };
    let below = u64::try_from(fraction * u128::from(unit) / scale).ok()?;
    whole.checked_mul(unit)?.checked_add(below).filter(|part| *part <= END)
}

/// The message of a duration; `None` for zero. It is parsed from text, because the crate that defines its type is only
/// a dev-dependency.
pub(super) fn wire<Message: FromStr>(nanoseconds: i64) -> Option<Message> {
    let (sign, magnitude) = (if nanoseconds < 0 { "-" } else { "" }, nanoseconds.unsigned_abs());
    let text = format!("{sign}{}.{:09}s", magnitude / 1_000_000_000, magnitude % 1_000_000_000);
    (nanoseconds != 0).then(|| text.parse().ok()).flatten()
}
