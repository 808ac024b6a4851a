//! Pseudo-random choices, reproducible from a seed.

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

pub(super) struct Dice(StdRng);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// A number in `0..end`; 0 if the range is empty.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end.max(1))
    }

    /// Returns true with this probability in percent.
    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.choose(&mut self.0)
    }

    /// Picks one of the values; the default only for an empty array.
    pub(super) fn one_of<T: Default, const N: usize>(&mut self, from: [T; N]) -> T {
        let at = self.below(N);
        from.into_iter().nth(at).unwrap_or_default()
    }
}
