//! Kubernetes quantities (`500m`, `1.5`, `2Ki`, `1e3`) as weights. A part that is finer than a thousandth is rounded
//! up.

use serde_json::Value;

use crate::api::quantity::Quantity;

/// The weight of a thousandth, so that the weight of 1 is 10,000.
const OF_A_THOUSANDTH: i128 = 10;

/// Returns `None` for a value that is not a quantity. Null and negative quantities weigh 0; a weight that is too large
/// is cut to the maximum.
pub(super) fn weight(quantity: &Value) -> Option<u32> {
    let quantity: Quantity = match quantity {
        Value::Null => return Some(0),
        Value::Number(number) => number.to_string().parse().ok()?,
        // Go's decoder accepts blanks around it.
        Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    let weight = quantity.milli_value().saturating_mul(OF_A_THOUSANDTH).max(0);
    Some(u32::try_from(weight).unwrap_or(u32::MAX))
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
            (json!(" 1 "), 10_000),
        ] {
            assert_eq!(weight(&quantity), Some(expected), "{quantity}");
        }
        for quantity in [
            json!(""),
            json!("-"),
            json!("."),
            json!("x"),
            json!("1 k"),
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
