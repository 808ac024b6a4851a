//! Plain scalars as Go's YAML reader resolves them: go.yaml.in/yaml/v2 `resolve.go`, under sigs.k8s.io/yaml.

use serde_json::Value;

/// Returns the JSON value of a plain scalar, or `None` for a number that YAML parsers read differently: one with
/// underscores, with a leading zero or in another base, infinity, and NaN. Timestamps and numbers in base 60 are
/// strings.
pub(crate) fn resolve(text: &str) -> Option<Value> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Some(Value::Null),
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Some(true.into()),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Some(false.into());
        }
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || ".+-".contains(c)) {
        return Some(text.into());
    }
    // Go ignores underscores in numbers.
    let bare = text.replace('_', "");
    let unsigned = bare.strip_prefix(['+', '-']).unwrap_or(&bare);
    if is_decimal(unsigned) {
        let is_canonical = bare == text && !matches!(unsigned.as_bytes(), [b'0', b'0'..=b'9', ..]);
        return is_canonical.then(|| number(text));
    }
    let is_special = [".inf", ".nan"].iter().any(|special| unsigned.eq_ignore_ascii_case(special));
    (!is_special && !has_base(unsigned)).then(|| text.into())
}

/// Returns the value of a decimal number. A number that is too large for a float is a string.
fn number(text: &str) -> Value {
    // Go does not parse a `u64` with a sign.
    let unsigned = || if text.starts_with('+') { None } else { text.parse::<u64>().ok() };
    let float = || text.parse::<f64>().ok().filter(|float| float.is_finite());
    let int = text.parse::<i64>().ok().map(Value::from).or_else(|| unsigned().map(Value::from));
    int.or_else(|| float().map(Value::from)).unwrap_or_else(|| text.into())
}

/// Whether the text is a number in base 2, 8 or 16. Go accepts a sign after `0b`.
fn has_base(text: &str) -> bool {
    let Some((prefix, digits)) = text.split_at_checked(2) else { return false };
    let base = match prefix {
        "0b" | "0B" => 2,
        "0o" | "0O" => 8,
        "0x" | "0X" => 16,
        _ => return false,
    };
    let digits = digits.strip_prefix(['+', '-']).unwrap_or(digits);
    !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(base))
}

/// `(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_decimal(text: &str) -> bool {
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        None => (text, None),
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    all_digits(whole)
        && all_digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent.is_none_or(|exponent| !exponent.is_empty() && all_digits(exponent))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plain_scalars_resolve_as_in_go() {
        for (text, value) in [
            ("", json!(null)),
            ("~", json!(null)),
            ("NULL", json!(null)),
            ("y", json!(true)),
            ("On", json!(true)),
            ("N", json!(false)),
            ("OFF", json!(false)),
            ("0", json!(0)),
            ("-0", json!(0)),
            ("+12", json!(12)),
            ("9223372036854775807", json!(i64::MAX)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("9223372036854775808", json!(1_u64 << 63)),
            ("18446744073709551615", json!(u64::MAX)),
            ("+18446744073709551615", json!(18_446_744_073_709_551_615.0)),
            ("18446744073709551616", json!(18_446_744_073_709_551_616.0)),
            ("12e03", json!(12_000.0)),
            ("1.", json!(1.0)),
            (".5", json!(0.5)),
            ("-.5", json!(-0.5)),
            ("1e-400", json!(0.0)),
        ] {
            assert_eq!(resolve(text), Some(value), "{text:?}");
        }
    }

    #[test]
    fn numbers_that_readers_disagree_about_have_no_value() {
        for text in [
            "1_000", "1__0_", ".5_0", "._5", ".5__0", ".5_", "1_0.5", "0777", "-0777", "08", "00", "00.5", "0o777",
            "-0o7", "0x1F", "+0X1f", "0b101", "-0b1", "0b-1", "0b1_0", ".inf", "-.INF", "+.Inf", ".NaN", ".nan",
        ] {
            assert_eq!(resolve(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_scalar_that_only_resembles_a_number_or_a_bool_is_a_string() {
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
            "1234e567",
            "e1",
            "inf",
            "nan",
            "1.2.3",
            "25.10.1",
            "--1",
            "+-1",
            "0b+-1",
            "1 000",
            "1,000",
            "-y",
            "_1",
            "é",
            "1é",
        ] {
            assert_eq!(resolve(text), Some(text.into()));
        }
    }
}
