//! Two moments that can be compared: one early, one late, with about as many streams.
//!
//! * In: samples taken when every stream had what there was. Out: the two most alike. How many streams there are depends on
//!   the worlds, in which Services come and go, and on what the slow readers are at; the first sample and the last may differ by
//!   hundreds.
//! * Always: no more than [`KEPT`] early and as many late samples are kept.

use std::collections::VecDeque;

use crate::samples::Sample;

const KEPT: usize = 60;
/// Of the whole time: when it has warmed up, when early ends, and when late begins.
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
    /// One more, after this share of the whole time.
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
    fn the_moments_with_the_most_similar_streams_are_compared() {
        let mut settled = Settled::default();
        for (share, streams) in [(0.05, 900.0), (0.2, 1500.0), (0.3, 1200.0), (0.5, 900.0), (0.8, 900.0), (1.0, 1190.0)]
        {
            settled.put(sample(share, streams), share);
        }
        let (early, late) = settled.alike().unwrap();
        assert_eq!((early.all_streams(), late.all_streams()), (1200.0, 1190.0));
    }

    #[test]
    fn no_more_are_kept_the_longer_it_lasts() {
        let mut settled = Settled::default();
        assert!(settled.alike().is_none());
        for round in 0..10_000 {
            settled.put(sample(0.0, f64::from(round)), f64::from(round) / 10_000.0);
        }
        assert_eq!((settled.early.len(), settled.late.len()), (KEPT, KEPT));
    }
}
