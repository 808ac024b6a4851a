//! Quantities that the API server accepts and that no author means, because their unit is missing or wrong. Pure.
//!
//! Always holds: they are never a reason to refuse a resource, a document or a Pod; each is reported with the amount
//! that it stands for.

use crate::{api::quantity::Quantity, text::counted};

/// Less memory than any proxy starts with: the text of its program alone is larger, and container runtimes refuse less
/// (containerd with runc fails, CRI-O requires 12 MiB). A number up to 4 million without its unit is less, and so is a
/// number up to 4 thousand with the unit k. An ephemeral storage below this is full after a few pages of the log, and
/// the kubelet then evicts the Pod.
const LEAST_BYTES: i128 = 4 << 20;
/// More cores than any proxy gets: only a few machines for databases in memory have more, and a proxy uses a small part
/// of a node. A number of millicores above 512 without its unit is more, and any number with a larger unit is far more.
const MOST_CORES: i128 = 512;
/// The largest amount that is suggested.
const MOST_SUGGESTED_BYTES: i128 = 1 << 40;

/// Returns what a quantity of a resource (cpu, memory, ephemeral-storage) stands for, and what the author may mean, if
/// no proxy can run with it. Other rules check texts that are no quantities, and negative quantities.
pub(crate) fn doubtful_quantity(resource: &str, text: &str) -> Option<String> {
    let quantity = text.parse::<Quantity>().ok()?;
    let (amount, suggested) = match resource {
        "cpu" => {
            let is_possible = |milli: i128| (1..=MOST_CORES * 1000).contains(&milli);
            if quantity.milli_value() <= MOST_CORES * 1000 {
                return None;
            }
            let cores = counted(usize::try_from(quantity.value()).unwrap_or(usize::MAX), "core");
            (cores, suggestion(text, &["m"], |quantity| is_possible(quantity.milli_value())))
        }
        _ => {
            // A limit of 0 is no limit.
            if quantity.value() <= 0 || quantity.value() >= LEAST_BYTES {
                return None;
            }
            let bytes = counted(usize::try_from(quantity.value()).unwrap_or_default(), "byte");
            let is_possible = |quantity: Quantity| (LEAST_BYTES..=MOST_SUGGESTED_BYTES).contains(&quantity.value());
            (bytes, suggestion(text, &["Mi", "Gi"], is_possible))
        }
    };
    Some(match suggested {
        Some(suggested) => format!("is {amount}: did you mean {suggested}?"),
        None => format!("is {amount}: check its unit"),
    })
}

/// Returns the number of a quantity with the first of these units that makes it possible.
fn suggestion(text: &str, units: &[&str], is_possible: impl Fn(Quantity) -> bool) -> Option<String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    // With an exponent, the digits at the end are not the number.
    if text.contains(['e', 'E']) && text.ends_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let with_units = units.iter().map(|unit| format!("{number}{unit}"));
    with_units.into_iter().find(|suggested| suggested.parse().is_ok_and(&is_possible))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_with_which_no_proxy_runs_is_named_with_the_unit_that_may_be_meant() {
        for (resource, text, expected) in [
            ("memory", "250", "is 250 bytes: did you mean 250Mi?"),
            ("memory", "250m", "is 1 byte: did you mean 250Mi?"),
            ("memory", "10", "is 10 bytes: did you mean 10Mi?"),
            ("memory", "250k", "is 250000 bytes: did you mean 250Mi?"),
            ("memory", "1", "is 1 byte: did you mean 1Gi?"),
            ("memory", "0.5", "is 1 byte: did you mean 0.5Gi?"),
            ("memory", "3Mi", "is 3145728 bytes: did you mean 3Gi?"),
            ("memory", "4000000", "is 4000000 bytes: check its unit"),
            ("memory", "1e3", "is 1000 bytes: check its unit"),
            ("ephemeral-storage", "100", "is 100 bytes: did you mean 100Mi?"),
            ("cpu", "100M", "is 100000000 cores: did you mean 100m?"),
            ("cpu", "1000", "is 1000 cores: did you mean 1000m?"),
            ("cpu", "250Mi", "is 262144000 cores: did you mean 250m?"),
            ("cpu", "1000000", "is 1000000 cores: check its unit"),
            ("cpu", "1e6", "is 1000000 cores: check its unit"),
        ] {
            assert_eq!(doubtful_quantity(resource, text).as_deref(), Some(expected), "{resource} {text}");
        }
        for (resource, text) in [
            ("memory", "4Mi"),
            ("memory", "20Mi"),
            ("memory", "0"),
            ("memory", ""),
            ("memory", "-1"),
            ("memory", "lots"),
            ("memory", "1e9"),
            ("ephemeral-storage", "1Gi"),
            ("cpu", "512"),
            ("cpu", "10m"),
            ("cpu", "0"),
            ("cpu", "-1"),
            ("cpu", "1.5"),
        ] {
            assert_eq!(doubtful_quantity(resource, text), None, "{resource} {text}");
        }
        assert!(doubtful_quantity("cpu", &"9".repeat(100_000)).is_some());
    }
}
