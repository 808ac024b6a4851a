//! Counts events by text.
//!
//! * In: short texts from a small set. Out: their counts.
//! * Always: at most [`KINDS`] texts, so that memory does not grow with the duration; further ones are counted as
//!   "other".

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

const KINDS: usize = 40;
/// A limit, because an error may contain a whole object.
const LONGEST: usize = 160;

#[derive(Default)]
pub(crate) struct Tally(Mutex<BTreeMap<String, u64>>);

// === impl Tally ===

impl Tally {
    pub(crate) fn count(&self, what: &str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let what: String = what.chars().take(LONGEST).collect();
        let has_room = counts.len() < KINDS || counts.contains_key(&what);
        *counts.entry(if has_room { what } else { "other".to_owned() }).or_default() += 1;
    }

    pub(crate) fn total(&self) -> u64 {
        self.counts().values().sum()
    }

    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The counts as a text for the report.
    pub(crate) fn text(&self) -> String {
        let counts: Vec<String> = self.counts().iter().map(|(what, count)| format!("{count} {what}")).collect();
        if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_and_length_of_texts_is_limited() {
        let tally = Tally::default();
        for number in 0..1000 {
            tally.count(&format!("{number} {}", "x".repeat(1000)));
            tally.count("0 again");
        }
        assert_eq!(tally.counts().len(), KINDS + 1);
        assert_eq!(tally.total(), 2000);
        assert!(tally.counts().keys().all(|what| what.len() <= LONGEST));
    }
}
