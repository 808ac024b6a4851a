//! Weights, in the syntax of Kubernetes quantities.
//!
//! * In: a JSON number or a text such as `500m`, `1.5`, `2Ki`, `1e3`. Out: the weight, which is 10,000 times the
//!   quantity.
//! * Always: rounded up to a thousandth; a negative quantity is 0, one that is too large is `u32::MAX`.

use serde_json::Value;

/// A power of ten that exceeds any weight.
const MANY: i64 = 38;

/// `None` for an invalid quantity.
pub(super) fn weight(value: &Value) -> Option<u32> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let text = text.trim();
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let thousandths = thousandths(unsigned)?;
    let weight = if negative { 0 } else { thousandths.saturating_mul(10) };
    Some(u32::try_from(weight).unwrap_or(u32::MAX))
}

fn thousandths(text: &str) -> Option<u128> {
    let suffix_at = text.find(|at: char| !at.is_ascii_digit() && at != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(suffix_at)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || fraction.contains('.') {
        return None;
    }
    let (factor, exponent) = unit(suffix)?;
    // A mantissa that overflows exceeds any weight.
    let mantissa = digits.parse::<u128>().unwrap_or(u128::MAX).saturating_mul(factor);
    let exponent = exponent.saturating_add(3).saturating_sub(i64::try_from(fraction.len()).ok()?);
    let power = 10_u128.pow(u32::try_from(exponent.abs().min(MANY)).ok()?);
    Some(if exponent < 0 { mantissa.div_ceil(power) } else { mantissa.saturating_mul(power) })
}

/// The factor and the power of ten of a suffix.
fn unit(suffix: &str) -> Option<(u128, i64)> {
    Some(match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        other => (1, other.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?.into()),
    })
}
