//! Numbers as Go reads and writes them.

use std::{
    fmt::{Display, LowerExp},
    ops::Range,
};

use serde_json::Number;

/// Converts a float that is a whole number to an integer, so that whole numbers have one form.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within bounds and whole")]
pub(crate) fn whole(number: Number) -> Number {
    const END_OF_U64: f64 = 18_446_744_073_709_551_616.0;
    const START_OF_I64: f64 = -9_223_372_036_854_775_808.0;
    match number.as_f64().filter(|it| number.is_f64() && it.fract() == 0.0) {
        Some(it) if (0.0..END_OF_U64).contains(&it) => (it as u64).into(),
        Some(it) if (START_OF_I64..0.0).contains(&it) => (it as i64).into(),
        _ => number,
    }
}

/// Returns the text that sigs.k8s.io/yaml makes of a number where the type is a string. For a float, it is Go's
/// `FormatFloat(number, 'g', -1, 32)`.
#[expect(clippy::cast_possible_truncation, reason = "to 32 bits, as Go does")]
pub(crate) fn as_text(number: &Number) -> String {
    match number.as_f64().filter(|_| number.is_f64()).map(|float| float as f32) {
        None => number.to_string(),
        Some(f32::INFINITY) => "+Inf".to_owned(),
        Some(f32::NEG_INFINITY) => "-Inf".to_owned(),
        Some(float) => spelled(float, -4..6, 2),
    }
}

/// Returns a number as encoding/json writes it.
pub(crate) fn as_json(number: &Number) -> String {
    match number.as_f64().filter(|_| number.is_f64()) {
        None => number.to_string(),
        Some(float) => spelled(float, -6..21, 1),
    }
}

/// Spells a float with the fewest digits. An exponent outside of `without_exponent` is written with at least `digits`
/// digits.
fn spelled(float: impl Display + LowerExp, without_exponent: Range<i32>, digits: usize) -> String {
    let shortest = format!("{float:e}");
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if without_exponent.contains(&exponent) {
        return float.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:0digits$}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(number: f64) -> Number {
        Number::from_f64(number).unwrap()
    }

    #[test]
    fn a_float_in_place_of_a_string_is_formatted_as_in_go() {
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
            (-1e300, "-Inf"),
        ] {
            assert_eq!(as_text(&float(number)), text);
        }
        assert_eq!(as_text(&Number::from(u64::MAX)), "18446744073709551615");
    }

    /// Recorded from Go's encoding/json.
    #[test]
    fn a_float_in_json_is_formatted_as_in_go() {
        for (number, text) in [
            (0.0, "0"),
            (1.5, "1.5"),
            (1e6, "1000000"),
            (18_446_744_073_709_551_616.0, "18446744073709552000"),
            (1e21, "1e+21"),
            (1e39, "1e+39"),
            (0.000_001, "0.000001"),
            (-1e-9, "-1e-9"),
            (1.5e-10, "1.5e-10"),
        ] {
            assert_eq!(as_json(&float(number)), text);
        }
    }
}
