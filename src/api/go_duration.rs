//! Parses durations like Go's `time.ParseDuration`: `1h30m`, `-1.5s`, `.5ms`, `0`.

/// The magnitude of the longest `time.Duration`, in nanoseconds; a longer text is invalid.
const LONGEST: u64 = 1 << 63;
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    // U+00B5 and U+03BC look the same.
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Returns the duration in nanoseconds, or `None` for a text that Go rejects.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut rest = Some(rest).filter(|rest| !rest.is_empty())?;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = after.strip_prefix('.').map_or(("", after), digits);
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(end)?;
        let (_, unit) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let part = whole.checked_mul(unit)?.checked_add(fraction_of(fraction, unit))?;
        total = total.checked_add(part).filter(|total| *total <= LONGEST)?;
        rest = after;
    }
    if negative { 0i64.checked_sub_unsigned(total) } else { i64::try_from(total).ok() }
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// Returns a decimal fraction of a unit in nanoseconds, truncated. Digits after the eighteenth are less than a
/// nanosecond in every unit.
fn fraction_of(digits: &str, unit: u64) -> u64 {
    let kept = digits.get(..digits.len().min(18)).unwrap_or_default();
    let scale = kept.bytes().fold(1u128, |scale, _| scale * 10);
    let nanoseconds = kept.parse::<u128>().unwrap_or_default() * u128::from(unit) / scale;
    u64::try_from(nanoseconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_as_in_go() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("+0", 0),
            ("-0", 0),
            ("0s", 0),
            ("0.5ns", 0),
            ("1ns", 1),
            ("200ms", 200_000_000),
            ("1.5s", 1_500_000_000),
            ("-1.5s", -1_500_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("+1s", 1_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1h1h", 7_200_000_000_000),
            ("1us1µs1μs", 3_000),
            ("0.1234567891234567899s", 123_456_789),
            ("0.100000000000000000000h", 360_000_000_000),
            ("9223372036.854775807s", i64::MAX),
            ("-9223372036.854775808s", i64::MIN),
        ] {
            assert_eq!(parse(text), Some(nanoseconds), "{text}");
        }
        for text in [
            "",
            "+",
            "-",
            ".",
            ".s",
            "s",
            "5",
            "1.5",
            "1d",
            "1S",
            "1e3s",
            " 1s",
            "1s ",
            "1 s",
            "1s1",
            "--1s",
            "1_0s",
            "one-second",
            "9223372036.854775808s",
            "99999999999999999999s",
            "3000000h",
            "1ß",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
