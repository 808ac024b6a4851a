//! Durations as resources write them.

use std::time::Duration;

use crate::api::go_duration;

/// The default in place of what an older schema let in.
pub(super) fn duration(text: &str, default: &str) -> Duration {
    let parsed = |text| u64::try_from(go_duration::parse(text)?).ok();
    Duration::from_nanos(parsed(text).or_else(|| parsed(default)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos_and_nonsense_is_the_default() {
        assert_eq!(duration("1m30s", "3m"), Duration::from_secs(90));
        assert_eq!(duration("0s", "3m"), Duration::ZERO);
        for nonsense in ["", "-1s", "soon"] {
            assert_eq!(duration(nonsense, "3m"), Duration::from_secs(180), "{nonsense}");
        }
    }
}
