//! Parses durations like Go's `time.ParseDuration`: `1h30m`, `-1.5s`, `.5ms`, `0`.

use std::fmt::Write;

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

/// Why Go rejects a text, in Go's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidDuration {
    #[error("time: invalid duration {}", quoted(.0))]
    Syntax(String),
    #[error("time: missing unit in duration {}", quoted(.0))]
    NoUnit(String),
    #[error("time: unknown unit {} in duration {}", quoted(.unit), quoted(.text))]
    UnknownUnit { unit: String, text: String },
}

/// Returns the duration in nanoseconds, or `None` for a text that Go rejects.
pub(crate) fn parse(text: &str) -> Option<i64> {
    checked(text).ok()
}

/// Returns the duration in nanoseconds.
///
/// # Errors
/// When Go rejects the text.
pub(crate) fn checked(text: &str) -> Result<i64, InvalidDuration> {
    let invalid = || InvalidDuration::Syntax(text.to_owned());
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut rest = rest;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        let (fraction, after) = after.strip_prefix('.').map_or(("", after), digits);
        if !rest.starts_with(|c: char| c.is_ascii_digit()) && fraction.is_empty() {
            return Err(invalid());
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (name, after) = after.split_at_checked(end).unwrap_or((after, ""));
        if name.is_empty() {
            return Err(InvalidDuration::NoUnit(text.to_owned()));
        }
        let Some((_, unit)) = UNITS.into_iter().find(|(known, _)| *known == name) else {
            return Err(InvalidDuration::UnknownUnit { unit: name.to_owned(), text: text.to_owned() });
        };
        let part = whole.checked_mul(unit).and_then(|part| part.checked_add(fraction_of(fraction, unit)));
        total = part.and_then(|part| total.checked_add(part)).filter(|total| *total <= LONGEST).ok_or_else(invalid)?;
        rest = after;
    }
    let signed = if negative { 0i64.checked_sub_unsigned(total) } else { i64::try_from(total).ok() };
    signed.ok_or_else(invalid)
}

/// Quotes a text as Go's package `time` does: all bytes other than printable ASCII are escaped.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=b'~' => quoted.push(char::from(byte)),
            // Writing to a String cannot fail.
            _ => _ = write!(quoted, "\\x{byte:02x}"),
        }
    }
    quoted.push('"');
    quoted
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
    /// Recorded from Linkerd's sp-validator, which returns the errors of Go.
    #[test]
    fn errors_are_those_of_go() {
        for (text, error) in [
            ("", r#"time: invalid duration """#),
            ("+", r#"time: invalid duration "+""#),
            ("s", r#"time: invalid duration "s""#),
            (".s", r#"time: invalid duration ".s""#),
            ("one-second", r#"time: invalid duration "one-second""#),
            ("9999999999h", r#"time: invalid duration "9999999999h""#),
            ("5", r#"time: missing unit in duration "5""#),
            ("1.5", r#"time: missing unit in duration "1.5""#),
            ("1.5.5s", r#"time: missing unit in duration "1.5.5s""#),
            ("1h2", r#"time: missing unit in duration "1h2""#),
            ("1d", r#"time: unknown unit "d" in duration "1d""#),
            ("1h\u{e9}2s", r#"time: unknown unit "h\xc3\xa9" in duration "1h\xc3\xa92s""#),
            ("1s\n\"\u{e9}", r#"time: unknown unit "s\x0a\"\xc3\xa9" in duration "1s\x0a\"\xc3\xa9""#),
        ] {
            assert_eq!(checked(text).unwrap_err().to_string(), error);
        }
    }
}
