//! Decides whether the memory grows.
//!
//! * In: the allocated memory at many times. Out: the floor of an early and of a late part, and whether the late one is
//!   higher than tolerated.
//! * Always: the rule is the same for every duration. After the warm-up, which is the first quarter, the floor of the
//!   second half of the time must not exceed the floor of the first half by more than [`TOLERATED_KIB`]. The longer the
//!   run, the smaller the leak that this finds: 400 KiB a minute in 7 minutes, 90 in half an hour, 2 in a day.
//! * A floor is the tenth part of the samples with the least memory: memory that clients take for a moment is above it.

/// The fluctuation of the floor in a long run without a leak: the random worlds have more or fewer objects.
const TOLERATED_KIB: f64 = 1024.0;
/// Caches and the heap's bins fill up at the beginning.
pub(crate) const WARM: f64 = 0.25;
/// With fewer samples, and so in the shortest runs, growth is not judged.
const LEAST: usize = 120;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MemoryGrowth {
    pub(crate) early_kib: f64,
    pub(crate) late_kib: f64,
    /// Between the middles of the two parts.
    pub(crate) minutes: f64,
}

// === impl MemoryGrowth ===

impl MemoryGrowth {
    /// From pairs of a time in seconds and an amount in KiB, in the order of time. `None` if they are too few.
    pub(crate) fn of(points: &[(f64, f64)]) -> Option<Self> {
        let (begin, end) = (points.first()?.0, points.last()?.0);
        let at = |share: f64| begin + (end - begin) * share;
        let middle = at(WARM + (1.0 - WARM) / 2.0);
        let of = |from: f64, to: f64| points.iter().filter(|it| it.0 >= from && it.0 < to).map(|it| it.1).collect();
        let (early, late): (Vec<f64>, Vec<f64>) = (of(at(WARM), middle), of(middle, f64::INFINITY));
        if early.len() + late.len() < LEAST {
            return None;
        }
        let minutes = (end - begin) * (1.0 - WARM) / 2.0 / 60.0;
        Some(Self { early_kib: floor(early)?, late_kib: floor(late)?, minutes })
    }

    pub(crate) fn is_tolerated(self) -> bool {
        self.late_kib <= self.early_kib + TOLERATED_KIB
    }

    pub(crate) fn kib_per_minute(self) -> f64 {
        (self.late_kib - self.early_kib) / self.minutes.max(f64::EPSILON)
    }
}

/// The mean of the smallest tenth, and at least of the smallest one.
fn floor(mut amounts: Vec<f64>) -> Option<f64> {
    amounts.sort_by(f64::total_cmp);
    amounts.truncate((amounts.len() / 10).max(1));
    (!amounts.is_empty()).then(|| amounts.iter().sum::<f64>() / amounts.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One sample a second, of 20 MiB, `noise` and a leak.
    fn points(minutes: u32, kib_per_minute: f64, noise: impl Fn(u32) -> f64) -> Vec<(f64, f64)> {
        let second = |at: u32| (f64::from(at), 20_480.0 + noise(at) + f64::from(at) / 60.0 * kib_per_minute);
        (0..minutes * 60).map(second).collect()
    }

    fn is_tolerated(points: &[(f64, f64)]) -> bool {
        MemoryGrowth::of(points).unwrap().is_tolerated()
    }

    #[test]
    fn a_leak_is_found_the_smaller_the_longer_the_run() {
        for (minutes, found, hidden) in [(7, 450.0, 350.0), (30, 100.0, 80.0), (1440, 2.0, 1.8)] {
            assert!(!is_tolerated(&points(minutes, found, |_| 0.0)), "{minutes} minutes");
            assert!(is_tolerated(&points(minutes, hidden, |_| 0.0)), "{minutes} minutes");
        }
    }

    #[test]
    fn bursts_and_the_warm_up_are_not_growth() {
        let burst = |at: u32| if at.is_multiple_of(10) && at > 300 { 50_000.0 } else { f64::from(at % 7) * 100.0 };
        assert!(is_tolerated(&points(10, 0.0, burst)));
        let warm_up = |at: u32| f64::from(at.min(120)) * 100.0;
        assert!(is_tolerated(&points(10, 0.0, warm_up)));
        let shrinking = |at: u32| f64::from(1000 - at) * 10.0;
        assert!(is_tolerated(&points(10, 0.0, shrinking)));
    }

    #[test]
    fn the_shortest_run_is_not_judged() {
        assert_eq!(MemoryGrowth::of(&points(1, 10_000.0, |_| 0.0)), None);
        assert_eq!(MemoryGrowth::of(&[]), None);
    }

    #[test]
    fn the_growth_is_that_of_the_floor() {
        let growth = MemoryGrowth::of(&points(8, 60.0, |at| f64::from(at % 2) * 5000.0)).unwrap();
        assert!((growth.kib_per_minute() - 60.0).abs() < 1.0, "{growth:?}");
    }
}
