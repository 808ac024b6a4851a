//! Durations for people.

use std::time::Duration;

/// Returns a duration with its two largest units, such as `1 h 23 min`.
pub fn rounded(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [(seconds / 86_400, "d"), (seconds / 3_600 % 24, "h"), (seconds / 60 % 60, "min"), (seconds % 60, "s")];
    let first = units.iter().position(|(count, _)| *count > 0).unwrap_or(units.len() - 1);
    let shown = units.iter().skip(first).take(2).filter(|(count, _)| *count > 0 || seconds == 0);
    shown.map(|(count, unit)| format!("{count} {unit}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_its_two_largest_units() {
        for (seconds, expected) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (4_980, "1 h 23 min"),
            (5_010, "1 h 23 min"),
            (90_061, "1 d 1 h"),
            (86_400, "1 d"),
        ] {
            assert_eq!(rounded(Duration::from_secs(seconds)), expected);
        }
    }
}
