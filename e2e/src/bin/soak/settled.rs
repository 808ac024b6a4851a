//! Selects two comparable samples: an early and a late one, with a similar number of streams.
//!
//! * In: samples taken when every stream was up to date. Out: the most similar pair. The number of streams depends on
//!   the worlds, in which Services are created and deleted, and on the slow readers; the first and the last sample may
//!   differ by hundreds.
//! * Always: stores at most [`KEPT`] early and as many late samples.

use std::collections::VecDeque;

use crate::samples::Sample;

const KEPT: usize = 60;
/// Shares of the whole time: the end of the warm-up, the end of early, the beginning of late.
const WARM: f64 = 0.1;
const EARLY: f64 = 0.4;
const LATE: f64 = 0.6;

#[derive(Default)]
pub(crate) struct Settled {
    early: Vec<Sample>,
    late: VecDeque<Sample>,
}

// === impl Settled ===

impl Settled {
    /// Adds a sample, taken at this share of the whole time.
    pub(crate) fn put(&mut self, sample: Sample, share: f64) {
        if (WARM..EARLY).contains(&share) && self.early.len() < KEPT {
            self.early.push(sample);
        } else if share >= LATE {
            self.late.push_back(sample);
            if self.late.len() > KEPT {
                self.late.pop_front();
            }
        }
    }

    pub(crate) fn alike(&self) -> Option<(&Sample, &Sample)> {
        let pairs = self.early.iter().flat_map(|early| self.late.iter().map(move |late| (early, late)));
        let apart = |(early, late): &(&Sample, &Sample)| (early.all_streams() - late.all_streams()).abs();
        pairs.min_by(|one, other| apart(one).total_cmp(&apart(other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, streams: f64) -> Sample {
        Sample { seconds, streams: [("idle".to_owned(), streams)].into(), ..Sample::default() }
    }

    #[test]
    fn the_samples_with_the_most_similar_number_of_streams_are_compared() {
        let mut settled = Settled::default();
        for (share, streams) in [(0.05, 900.0), (0.2, 1500.0), (0.3, 1200.0), (0.5, 900.0), (0.8, 900.0), (1.0, 1190.0)]
        {
            settled.put(sample(share, streams), share);
        }
        let (early, late) = settled.alike().unwrap();
        assert_eq!((early.all_streams(), late.all_streams()), (1200.0, 1190.0));
    }

    #[test]
    fn the_number_of_stored_samples_is_limited() {
        let mut settled = Settled::default();
        assert!(settled.alike().is_none());
        for round in 0..10_000 {
            settled.put(sample(0.0, f64::from(round)), f64::from(round) / 10_000.0);
        }
        assert_eq!((settled.early.len(), settled.late.len()), (KEPT, KEPT));
    }
}
