//! Kubernetes quantities (`500m`, `1.5`, `2Ki`, `1e3`) as weights.
//!
//! The grammar is that of `k8s.io/apimachinery/pkg/api/resource`. What is finer than a thousandth rounds up, as there.

use serde_json::Value;

/// What a weight counts: ten for each thousandth, so that 1 is 10,000.
const OF_A_THOUSANDTH: u128 = 10;
/// Digits after the point that are kept; what stands behind them only rounds up.
const FRACTION: usize = 15;
/// More than any weight even in the smallest unit, with room for what stands behind the point.
const LARGEST: u128 = 10_000_000_000_000_000_000_000;

/// `None` for what is no quantity. Nothing is 0; what no weight can hold becomes the nearest that one can.
pub(crate) fn weight(quantity: &Value) -> Option<u32> {
    match quantity {
        Value::Null => Some(0),
        Value::Number(number) => parse(&number.to_string()),
        Value::String(text) => parse(text),
        _ => None,
    }
}

fn parse(text: &str) -> Option<u32> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let factor = factor(suffix)?;
    let (kept, finer) = fraction.split_at_checked(FRACTION).unwrap_or((fraction, ""));
    let kept: u128 = format!("{kept:0<FRACTION$}").parse().ok()?;
    let scale = 10u128.pow(u32::try_from(FRACTION).ok()?);
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { 0 } else { whole.parse().unwrap_or(LARGEST) }.min(LARGEST);
    let any_finer = finer.bytes().any(|digit| digit != b'0');
    // In parts of 10^-15.
    let value = whole * scale + kept + u128::from(any_finer);
    let thousandths = match factor {
        Factor::Times(factor) => value.checked_mul(factor).map(|value| value.div_ceil(scale / 1_000)),
        Factor::Over(divisor) => Some(value.div_ceil((scale / 1_000).saturating_mul(divisor))),
    };
    let weight = thousandths.and_then(|it| it.checked_mul(OF_A_THOUSANDTH)).unwrap_or(u128::MAX);
    Some(if negative { 0 } else { u32::try_from(weight).unwrap_or(u32::MAX) })
}

enum Factor {
    Times(u128),
    Over(u128),
}

fn factor(suffix: &str) -> Option<Factor> {
    let exponent = match suffix {
        "n" => -9,
        "u" => -6,
        "m" => -3,
        "" => 0,
        "k" => 3,
        "M" => 6,
        "G" => 9,
        "T" => 12,
        "P" => 15,
        "E" => 18,
        "Ki" => return Some(Factor::Times(1 << 10)),
        "Mi" => return Some(Factor::Times(1 << 20)),
        "Gi" => return Some(Factor::Times(1 << 30)),
        "Ti" => return Some(Factor::Times(1 << 40)),
        "Pi" => return Some(Factor::Times(1 << 50)),
        "Ei" => return Some(Factor::Times(1 << 60)),
        _ => suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?,
    };
    let power = 10u128.saturating_pow(exponent.unsigned_abs());
    Some(if exponent < 0 { Factor::Over(power) } else { Factor::Times(power) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_become_weights_and_round_up() {
        for (quantity, expected) in [
            (json!(null), 0),
            (json!(1), 10_000),
            (json!(0.5), 5_000),
            (json!("1"), 10_000),
            (json!("500m"), 5_000),
            (json!("900m"), 9_000),
            (json!("0"), 0),
            (json!("-0"), 0),
            (json!("1500m"), 15_000),
            (json!("0.5"), 5_000),
            (json!(".5"), 5_000),
            (json!("1."), 10_000),
            (json!("+1"), 10_000),
            (json!("1k"), 10_000_000),
            (json!("1Ki"), 10_240_000),
            (json!("1e3"), 10_000_000),
            (json!("5E-1"), 5_000),
            (json!("100u"), 10),
            (json!("1n"), 10),
            (json!("100000000000000n"), 1_000_000_000),
            (json!("10000000000000e-9"), 100_000_000),
            (json!("0.00015"), 10),
            (json!("0.0000000000000000001"), 10),
            (json!("1e-300"), 10),
            (json!("1.23456"), 12_350),
            (json!("0.0010000000000000000001"), 20),
            (json!("429496.729"), 4_294_967_290),
            (json!("429497"), u32::MAX),
            (json!("1E"), u32::MAX),
            (json!("1Ei"), u32::MAX),
            (json!("1e300"), u32::MAX),
            (json!("99999999999999999999999999999999999999999999999999"), u32::MAX),
            (json!(-1), 0),
        ] {
            assert_eq!(weight(&quantity), Some(expected), "{quantity}");
        }
        for quantity in [
            json!(""),
            json!("-"),
            json!("."),
            json!("x"),
            json!("1 "),
            json!("1x"),
            json!("1KI"),
            json!("1ki"),
            json!("1.2.3"),
            json!("--1"),
            json!("1e"),
            json!("1e1.5"),
            json!("m"),
            json!([]),
            json!({}),
            json!(true),
        ] {
            assert_eq!(weight(&quantity), None, "{quantity}");
        }
    }
}
