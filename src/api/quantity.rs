//! Kubernetes quantities: `500m`, `1.5`, `2Ki`, `1e3`.
//!
//! The grammar and the limits are those of `k8s.io/apimachinery/pkg/api/resource`: the smallest unit is a billionth,
//! smaller fractions are rounded away from zero, and values beyond `i64` are capped. Parsing is exact, and linear in
//! the length of the text.

use std::str::FromStr;

/// The number of decimal places of the smallest unit.
const NANO: i64 = 9;
/// The largest value, in the smallest unit.
const MAX: u128 = (i64::MAX as u128) * 1_000_000_000;

/// A quantity in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(i128);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a quantity such as 100m, 1 or 250Mi")]
pub struct InvalidQuantity;

// === impl Quantity ===

impl Quantity {
    pub fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Returns whether the value is above the limit, or both are capped: Kubernetes compares most of those exactly.
    pub fn may_exceed(self, limit: Self) -> bool {
        self > limit || (self == limit && self.0.unsigned_abs() == MAX)
    }

    /// Returns the value in thousandths, rounded up.
    pub fn milli_value(self) -> i128 {
        const NANOS: i128 = 1_000_000;
        self.0.div_euclid(NANOS) + i128::from(self.0.rem_euclid(NANOS) != 0)
    }

    /// Returns the value as a whole number, rounded up.
    pub fn value(self) -> i128 {
        const NANOS: i128 = 1_000_000_000;
        self.0.div_euclid(NANOS) + i128::from(self.0.rem_euclid(NANOS) != 0)
    }
}

impl FromStr for Quantity {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at_checked(end).ok_or(InvalidQuantity)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if number.len() == number.matches('.').count() || fraction.contains('.') {
            return Err(InvalidQuantity);
        }
        let unit = Unit::parse(suffix).ok_or(InvalidQuantity)?;
        let mut digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|byte| byte - b'0').collect();
        let exponent = match unit {
            Unit::Ten(exponent) => i64::from(exponent),
            Unit::Kibi(power) => {
                for _ in 0..power {
                    multiply(&mut digits, 1024);
                }
                0
            }
        };
        let point = i64::try_from(fraction.len()).map_err(|_| InvalidQuantity)?;
        let nanos = shifted(&digits, exponent + NANO - point);
        let nanos = i128::try_from(nanos).map_err(|_| InvalidQuantity)?;
        Ok(Self(if text.starts_with('-') { -nanos } else { nanos }))
    }
}

enum Unit {
    /// A power of ten.
    Ten(i32),
    /// A power of 1024.
    Kibi(u8),
}

// === impl Unit ===

impl Unit {
    fn parse(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "n" => Self::Ten(-9),
            "u" => Self::Ten(-6),
            "m" => Self::Ten(-3),
            "" => Self::Ten(0),
            "k" => Self::Ten(3),
            "M" => Self::Ten(6),
            "G" => Self::Ten(9),
            "T" => Self::Ten(12),
            "P" => Self::Ten(15),
            "E" => Self::Ten(18),
            "Ki" => Self::Kibi(1),
            "Mi" => Self::Kibi(2),
            "Gi" => Self::Kibi(3),
            "Ti" => Self::Kibi(4),
            "Pi" => Self::Kibi(5),
            "Ei" => Self::Kibi(6),
            _ => Self::Ten(suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
        })
    }
}

/// Multiplies a number that is stored as decimal digits.
fn multiply(digits: &mut Vec<u8>, factor: u32) {
    let mut carry = 0;
    for digit in digits.iter_mut().rev() {
        let product = u32::from(*digit) * factor + carry;
        carry = product / 10;
        *digit = last_digit(product);
    }
    let mut front = Vec::new();
    while carry > 0 {
        front.push(last_digit(carry));
        carry /= 10;
    }
    digits.splice(0..0, front.into_iter().rev());
}

fn last_digit(number: u32) -> u8 {
    u8::try_from(number % 10).unwrap_or_default()
}

/// Returns the number with these decimal digits, times a power of ten, rounded up and at most [`MAX`].
fn shifted(digits: &[u8], exponent: i64) -> u128 {
    let first = digits.iter().position(|digit| *digit != 0).unwrap_or(digits.len());
    let digits = digits.get(first..).unwrap_or_default();
    if digits.is_empty() {
        return 0;
    }
    let dropped = usize::try_from(exponent.saturating_neg()).unwrap_or_default();
    let (kept, dropped) = digits.split_at_checked(digits.len().saturating_sub(dropped)).unwrap_or_default();
    let number = kept.iter().fold(0_u128, |sum, digit| sum.saturating_mul(10).saturating_add(u128::from(*digit)));
    let rounded = number.saturating_add(u128::from(dropped.iter().any(|digit| *digit != 0)));
    let power = u32::try_from(exponent.max(0)).ok().and_then(|exponent| 10_u128.checked_pow(exponent));
    power.map_or(MAX, |power| rounded.saturating_mul(power)).min(MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Quantity {
        text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
    }

    #[test]
    fn quantities_are_parsed_exactly() {
        for (text, nanos) in [
            ("0", 0),
            ("-0", 0),
            ("0Ei", 0),
            ("0e2147483647", 0),
            ("1", 1_000_000_000),
            ("+1", 1_000_000_000),
            ("-1", -1_000_000_000),
            ("1.", 1_000_000_000),
            (".5", 500_000_000),
            ("007", 7_000_000_000),
            ("1n", 1),
            ("1.1n", 2),
            ("-1.1n", -2),
            ("1u", 1_000),
            ("100m", 100_000_000),
            ("-1Gi", -1_073_741_824_000_000_000),
            ("1.5Ki", 1_536_000_000_000),
            ("0.0009765625Ki", 1_000_000_000),
            ("0.0000000000000000008673617379884035472059622406959533691406250Ei", 1_000_000_000),
            ("0.0000000000000000008673617379884035472059622406959533691406251Ei", 1_000_000_001),
            ("1k", 1_000_000_000_000),
            ("1M", 1_000_000_000_000_000),
            ("1G", 1_000_000_000_000_000_000),
            ("1T", 1_000_000_000_000_000_000_000),
            ("1P", 1_000_000_000_000_000_000_000_000),
            ("1E", 1_000_000_000_000_000_000_000_000_000),
            ("1e3", 1_000_000_000_000),
            ("1E+3", 1_000_000_000_000),
            ("5E-1", 500_000_000),
            ("1e-2147483648", 1),
            ("9223372036854775807", i128::from(i64::MAX) * 1_000_000_000),
            ("9223372036854775808", i128::from(i64::MAX) * 1_000_000_000),
            ("-8Ei", -i128::from(i64::MAX) * 1_000_000_000),
            ("1e2147483647", i128::from(i64::MAX) * 1_000_000_000),
        ] {
            assert_eq!(parse(text), Quantity(nanos), "{text}");
        }
        for text in [
            "",
            "-",
            "+",
            ".",
            "-.",
            "x",
            "1 ",
            " 1",
            "1x",
            "1KI",
            "1ki",
            "1K",
            "1.2.3",
            "1..2",
            "--1",
            "+-1",
            "1e",
            "1e1.5",
            "1e99999999999",
            "m",
            "Ki",
            "1mi",
            "١",
            "1é",
        ] {
            assert_eq!(text.parse::<Quantity>(), Err(InvalidQuantity), "{text:?}");
        }
        assert_eq!(parse(&"9".repeat(100_000)), parse("8Ei"));
        assert_eq!(parse(&format!("0.{}1Ei", "0".repeat(100_000))), parse("1n"));
    }

    #[test]
    fn quantities_compare_by_value() {
        for (less, more) in
            [("1Mi", "2M"), ("999m", "1"), ("-1Gi", "0"), ("-2", "-1"), ("1000Ki", "1Mi"), ("1e3", "1Ki")]
        {
            assert!(parse(less) < parse(more), "{less} {more}");
        }
        for (one, other) in [("1", "1000m"), ("1Ki", "1024"), ("0.5Gi", "512Mi"), ("1e3", "1k"), ("0", "-0")] {
            assert_eq!(parse(one), parse(other));
        }
        for (request, limit, may_exceed) in [
            ("2", "1", true),
            ("1", "1", false),
            ("1", "2", false),
            ("12E", "11E", true),
            ("9223372036854775808", "9223372036854775807", true),
            ("9223372036854775806", "9223372036854775807", false),
        ] {
            assert_eq!(parse(request).may_exceed(parse(limit)), may_exceed, "{request} {limit}");
        }
        assert!(parse("-1n").is_negative() && !parse("-0").is_negative());
        for (text, milli) in [("1", 1000), ("1n", 1), ("1500u", 2), ("-1500u", -1), ("-1", -1000)] {
            assert_eq!(parse(text).milli_value(), milli, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(text in "[-+]?[0-9.]{0,40}([numkKMGTPEi]{0,2}|[eE][-+]?[0-9]{0,11})|.{0,8}") {
            if let Ok(quantity) = text.parse::<Quantity>() {
                prop_assert!(quantity.0.unsigned_abs() <= MAX);
            }
        }

        #[test]
        fn any_number_of_nanos_is_parsed_exactly(nanos in any::<i64>()) {
            prop_assert_eq!(parse(&format!("{nanos}n")), Quantity(nanos.into()));
        }
    }
}
