//! A set of short texts that takes little more memory than the texts.

use std::{cmp::Ordering, collections::BTreeSet};

/// Sorted texts, in two allocations. Equal sets are compared as one text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TextSet {
    text: Box<str>,
    /// The start and the end of each text.
    ranges: Box<[(u32, u32)]>,
}

// === impl TextSet ===

impl From<&BTreeSet<String>> for TextSet {
    fn from(texts: &BTreeSet<String>) -> Self {
        let position = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let mut text = String::new();
        let mut ranges = Vec::with_capacity(texts.len());
        for one in texts {
            let start = text.len();
            text.push_str(one);
            ranges.push((position(start), position(text.len())));
        }
        Self { text: text.into(), ranges: ranges.into() }
    }
}

impl TextSet {
    pub(in crate::cluster) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn contains(&self, text: &str) -> bool {
        self.contains_by(|known| known.cmp(text))
    }

    /// Returns whether the set contains the text with which this compares a text of the set.
    pub(super) fn contains_by(&self, mut compare: impl FnMut(&str) -> Ordering) -> bool {
        let found = self.ranges.binary_search_by(|(start, end)| {
            compare(self.text.get(*start as usize..*end as usize).unwrap_or_default())
        });
        found.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_hundred_thousand_short_texts_take_little_more_memory_than_the_texts() {
        let texts: BTreeSet<String> = (0..100_000).map(|number| format!("{number:06}")).collect();
        let set = TextSet::from(&texts);
        assert_eq!((set.len(), set.text.len(), size_of_val(&*set.ranges)), (100_000, 600_000, 800_000));
    }

    proptest! {
        #[test]
        fn a_set_contains_its_texts_and_no_other(
            texts in prop::collection::btree_set("[abü]{0,3}", 0..20),
            others in prop::collection::vec("[abü]{0,3}", 0..20),
        ) {
            let set = TextSet::from(&texts);
            for text in texts.iter().chain(&others) {
                prop_assert_eq!(set.contains(text), texts.contains(text), "{}", text);
            }
        }
    }
}
