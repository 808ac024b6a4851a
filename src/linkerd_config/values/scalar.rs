//! Plain scalars as Go's YAML reader resolves them (go.yaml.in/yaml/v2 `resolve.go`, under sigs.k8s.io/yaml), and numbers
//! as Go spells them.

/// What a plain scalar is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar<'a> {
    Null,
    Bool(bool),
    Int(i64),
    /// Beyond `i64` only.
    Uint(u64),
    /// May be infinite or no number.
    Float(f64),
    /// Timestamps too: Go leaves them as they were written.
    Text(&'a str),
}

pub(super) fn resolve(text: &str) -> Scalar<'_> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Scalar::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Scalar::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Scalar::Float(f64::NEG_INFINITY),
        _ => {}
    }
    let number = match text.bytes().next() {
        Some(b'.') => after_a_point(text),
        Some(b'0'..=b'9' | b'+' | b'-') => number(text),
        _ => None,
    };
    number.unwrap_or(Scalar::Text(text))
}

/// Base 60 is none, as in Go. A number that is too large for its form is a text.
fn number<'a>(text: &str) -> Option<Scalar<'a>> {
    let plain = text.replace('_', "");
    if let Some(int) = int(&plain) {
        return Some(int);
    }
    if is_decimal(&plain) {
        return finite(&plain).map(Scalar::Float);
    }
    // What is left of Go's binary numbers: a second sign after the prefix.
    let digits = plain.strip_prefix("0b")?;
    let (negative, digits) = sign(digits);
    in_base(digits, 2, negative).filter(|found| matches!(found, Scalar::Int(_)))
}

/// Go's `ParseFloat` at once: underscores stand between digits only.
fn after_a_point<'a>(text: &str) -> Option<Scalar<'a>> {
    let bytes = text.as_bytes();
    let between_digits = |at: usize| {
        let digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
        // Of several in a row the neighbour is none.
        digit(at.checked_sub(1)) && digit(at.checked_add(1))
    };
    let well_placed = bytes.iter().enumerate().all(|(at, byte)| *byte != b'_' || between_digits(at));
    let plain = text.replace('_', "");
    (well_placed && is_decimal(&plain)).then(|| finite(&plain).map(Scalar::Float))?
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_decimal(text: &str) -> bool {
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (_, text) = sign(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        None => (text, None),
        Some((mantissa, exponent)) => (mantissa, Some(sign(exponent).1)),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    all_digits(whole)
        && all_digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent.is_none_or(|exponent| !exponent.is_empty() && all_digits(exponent))
}

fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

fn sign(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

/// Go's `ParseInt` with base 0, then `ParseUint`, which takes no sign.
fn int<'a>(text: &str) -> Option<Scalar<'a>> {
    let (negative, digits) = sign(text);
    let prefixed = |prefix: [&str; 2]| prefix.into_iter().find_map(|prefix| digits.strip_prefix(prefix));
    let (base, digits) = if let Some(digits) = prefixed(["0x", "0X"]) {
        (16, digits)
    } else if let Some(digits) = prefixed(["0b", "0B"]) {
        (2, digits)
    } else if let Some(digits) = prefixed(["0o", "0O"]) {
        (8, digits)
    } else if let Some(rest) = digits.strip_prefix('0').filter(|rest| !rest.is_empty()) {
        (8, rest)
    } else {
        (10, digits)
    };
    let found = in_base(digits, base, negative)?;
    let signed = text.starts_with(['+', '-']);
    Some(found).filter(|found| !signed || matches!(found, Scalar::Int(_)))
}

fn in_base<'a>(digits: &str, base: u32, negative: bool) -> Option<Scalar<'a>> {
    // Rust's own parser takes a sign.
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(base)) {
        return None;
    }
    let size = u64::from_str_radix(digits, base).ok()?;
    match (negative, i64::try_from(size)) {
        (true, _) => 0i64.checked_sub_unsigned(size).map(Scalar::Int),
        (false, Ok(int)) => Some(Scalar::Int(int)),
        (false, Err(_)) => Some(Scalar::Uint(size)),
    }
}

/// Go's `FormatFloat(number, 'g', -1, 32)`: what its YAML reader makes of a float where a string is wanted.
#[expect(clippy::cast_possible_truncation, reason = "to 32 bits, as Go does")]
pub(super) fn spelled_by_go(number: f64) -> String {
    let number = number as f32;
    if number.is_infinite() {
        return if number > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() };
    }
    if number.is_nan() {
        return "NaN".to_owned();
    }
    let shortest = format!("{number:e}");
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        return number.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_are_what_go_makes_of_them() {
        use Scalar::{Bool, Float, Int, Null, Uint};
        for (text, scalar) in [
            ("", Null),
            ("~", Null),
            ("NULL", Null),
            ("y", Bool(true)),
            ("On", Bool(true)),
            ("N", Bool(false)),
            ("OFF", Bool(false)),
            ("0", Int(0)),
            ("-0", Int(0)),
            ("+12", Int(12)),
            ("1_000", Int(1000)),
            ("1__0_", Int(10)),
            ("0777", Int(511)),
            ("0o777", Int(511)),
            ("-0o7", Int(-7)),
            ("0x1F", Int(31)),
            ("+0X1f", Int(31)),
            ("0b101", Int(5)),
            ("-0b1", Int(-1)),
            ("0b-1", Int(-1)),
            ("9223372036854775807", Int(i64::MAX)),
            ("-9223372036854775808", Int(i64::MIN)),
            ("9223372036854775808", Uint(1 << 63)),
            ("18446744073709551615", Uint(u64::MAX)),
            ("+18446744073709551615", Float(18_446_744_073_709_551_615.0)),
            ("18446744073709551616", Float(18_446_744_073_709_551_616.0)),
            ("08", Float(8.0)),
            ("12e03", Float(12_000.0)),
            ("1.", Float(1.0)),
            (".5", Float(0.5)),
            (".5_0", Float(0.5)),
            ("1_0.5", Float(10.5)),
            ("-.5", Float(-0.5)),
            ("1e-400", Float(0.0)),
            (".inf", Float(f64::INFINITY)),
            ("-.INF", Float(f64::NEG_INFINITY)),
        ] {
            assert_eq!(resolve(text), scalar, "{text:?}");
        }
        assert!(matches!(resolve(".NaN"), Float(number) if number.is_nan()));
    }

    #[test]
    fn what_looks_like_a_number_or_a_bool_may_still_be_a_text() {
        for text in [
            "yES",
            "oN",
            "tRUE",
            "nULL",
            "1:30",
            "190:20:30",
            "2001-01-01",
            "2001-12-14t21:59:43.10-05:00",
            "=",
            "<<",
            ".",
            "-",
            "+",
            "0x",
            "0o",
            "0b",
            "0o8",
            "0xg",
            "1e",
            "1e+",
            "1e999",
            "e1",
            "inf",
            "nan",
            "._5",
            ".5__0",
            ".5_",
            "1.2.3",
            "--1",
            "+-1",
            "0b+-1",
            "1 000",
            "1,000",
            "-y",
            "é",
        ] {
            assert_eq!(resolve(text), Scalar::Text(text));
        }
    }

    #[test]
    fn a_float_in_place_of_a_string_is_spelled_as_go_spells_it() {
        for (number, text) in [
            (0.5, "0.5"),
            (1.1, "1.1"),
            (-0.0, "-0"),
            (12_000.0, "12000"),
            (1e6, "1e+06"),
            (123_456.0, "123456"),
            (1_234_567.0, "1.234567e+06"),
            (0.000_1, "0.0001"),
            (0.000_01, "1e-05"),
            (1.234_567_89, "1.2345679"),
            (1e300, "+Inf"),
        ] {
            assert_eq!(spelled_by_go(number), text);
        }
    }
}
