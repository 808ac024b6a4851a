//! Random choices that a seed repeats.

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

pub(super) struct Dice(StdRng);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// A number from 0 up to, and without, `end`; 0 when there is none.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end.max(1))
    }

    /// True in so many cases of a hundred.
    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.choose(&mut self.0)
    }

    /// One of a few literals; the default only for none at all.
    pub(super) fn one_of<T: Default, const N: usize>(&mut self, from: [T; N]) -> T {
        let at = self.below(N);
        from.into_iter().nth(at).unwrap_or_default()
    }
}
