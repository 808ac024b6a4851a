//! Durations in the fields of a `LinkerdConfig`.

use std::time::Duration;

use crate::go;

/// Parses a duration. An invalid one, which an older schema may have accepted, is replaced by the default.
pub(super) fn duration(text: &str, default: &str) -> Duration {
    let parsed = |text| u64::try_from(go::duration::parse(text)?).ok();
    Duration::from_nanos(parsed(text).or_else(|| parsed(default)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_go_duration_is_parsed_and_an_invalid_one_is_the_default() {
        assert_eq!(duration("1m30s", "3m"), Duration::from_secs(90));
        assert_eq!(duration("0s", "3m"), Duration::ZERO);
        for invalid in ["", "-1s", "soon"] {
            assert_eq!(duration(invalid, "3m"), Duration::from_secs(180), "{invalid}");
        }
    }
}
