//! Labels, equality selectors, and lookups in both directions without a scan.
//!
//! A selector matches labels that contain all of its pairs. [`ByLabel`] indexes an object by each of its labels; the
//! objects that a selector matches are among those with its rarest pair. [`BySelector`] indexes a selector by one of
//! its pairs; the selectors that match some labels are found by a lookup of each label.

use std::sync::Arc;

use super::names::NamesBy;

/// One label: key and value.
pub type Pair = (Arc<str>, Arc<str>);

/// The labels of an object, sorted by key: a few strings in one allocation, which equal labels can share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels(Arc<[Pair]>);

/// A selector with at least one pair. An empty selector, which would match everything, cannot be constructed: a Service
/// with an empty selector has endpoints that another controller or a user manages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selector(Labels);

/// The names of the objects of one namespace, by each of their labels.
#[derive(Debug, Default)]
pub struct ByLabel(NamesBy<Pair>);

/// The names of the objects of one namespace that have a selector, by the first pair of the selector.
#[derive(Debug, Default)]
pub struct BySelector(NamesBy<Pair>);

// === impl Labels ===

impl Labels {
    pub fn get(&self, key: &str) -> Option<&Arc<str>> {
        let at = self.0.binary_search_by(|(k, _)| (**k).cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Pair> {
        self.0.iter()
    }

    pub(in crate::cluster) fn len(&self) -> usize {
        self.0.len()
    }

    /// The allocation, to be replaced by an equal one.
    pub(in crate::cluster) fn pairs_mut(&mut self) -> &mut Arc<[Pair]> {
        &mut self.0
    }

    /// Returns the labels with these keys. They share the texts.
    pub fn only(&self, is_kept: impl Fn(&str) -> bool) -> Self {
        Self(self.iter().filter(|(key, _)| is_kept(key)).cloned().collect())
    }
}

impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut pairs: Vec<Pair> =
            pairs.into_iter().map(|(k, v)| (Arc::from(k.as_ref()), Arc::from(v.as_ref()))).collect();
        pairs.sort();
        pairs.dedup_by(|a, b| a.0 == b.0);
        Self(pairs.into())
    }
}

// === impl Selector ===

impl Selector {
    /// Returns `None` for an empty selector.
    pub fn new(labels: Labels) -> Option<Self> {
        (!labels.0.is_empty()).then_some(Self(labels))
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|(key, value)| labels.get(key) == Some(value))
    }

    pub fn pairs(&self) -> impl Iterator<Item = &Pair> {
        self.0.iter()
    }

    /// Returns the first pair by key.
    pub fn first(&self) -> Option<&Pair> {
        self.0.0.first()
    }
}

// === impl ByLabel ===

impl ByLabel {
    pub fn insert(&mut self, labels: &Labels, name: &Arc<str>) {
        for pair in labels.iter() {
            self.0.insert(pair.clone(), name);
        }
    }

    pub fn remove(&mut self, labels: &Labels, name: &str) {
        for pair in labels.iter() {
            self.0.remove(pair, name);
        }
    }

    /// Returns the names of the objects with this label, sorted.
    pub fn with(&self, pair: &Pair) -> impl Iterator<Item = &Arc<str>> {
        self.0.get(pair)
    }

    /// Returns the names of the objects with the rarest pair of the selector. They include all matching objects; the
    /// caller must check each.
    pub fn candidates<'a>(&'a self, selector: &Selector) -> impl Iterator<Item = &'a Arc<str>> + use<'a> {
        // If no object has one of the pairs, its count is 0 and no object matches.
        let rarest = selector.0.iter().min_by_key(|pair| self.0.count(pair));
        rarest.map(|pair| self.0.get(pair)).into_iter().flatten()
    }
}

// === impl BySelector ===

impl BySelector {
    pub fn insert(&mut self, selector: &Selector, name: &Arc<str>) {
        if let Some(pair) = selector.first() {
            self.0.insert(pair.clone(), name);
        }
    }

    pub fn remove(&mut self, selector: &Selector, name: &str) {
        if let Some(pair) = selector.first() {
            self.0.remove(pair, name);
        }
    }

    /// Returns the names of objects whose selector may match the labels; the caller must check each.
    pub fn candidates<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = &'a Arc<str>> {
        labels.iter().flat_map(|pair| self.0.get(pair))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(pairs: &[(u8, u8)]) -> Labels {
        pairs.iter().map(|(k, v)| (format!("k{k}"), format!("v{v}"))).collect()
    }

    #[test]
    fn an_empty_selector_cannot_be_constructed() {
        assert_eq!(Selector::new(labels(&[])), None);
    }

    proptest! {
        #[test]
        fn the_lookups_find_all_matches_of_a_scan(
            objects in prop::collection::vec(prop::collection::vec((0..4u8, 0..3u8), 0..4), 0..12),
            selectors in prop::collection::vec(prop::collection::vec((0..4u8, 0..3u8), 1..3), 0..6),
        ) {
            let objects: Vec<(Arc<str>, Labels)> =
                objects.iter().enumerate().map(|(i, l)| (format!("o{i}").into(), labels(l))).collect();
            let selectors: Vec<(Arc<str>, Selector)> = selectors.iter().enumerate()
                .map(|(i, l)| (format!("s{i}").into(), Selector::new(labels(l)).unwrap())).collect();
            let (mut by_label, mut by_selector) = (ByLabel::default(), BySelector::default());
            for (name, labels) in &objects { by_label.insert(labels, name); }
            for (name, selector) in &selectors { by_selector.insert(selector, name); }
            for (selector_name, selector) in &selectors {
                for (name, labels) in &objects {
                    let matches = selector.matches(labels);
                    prop_assert!(!matches || by_label.candidates(selector).any(|n| n == name));
                    prop_assert!(!matches || by_selector.candidates(labels).any(|n| n == selector_name));
                }
            }
            for (name, labels) in &objects { by_label.remove(labels, name); }
            for (name, selector) in &selectors { by_selector.remove(selector, name); }
            prop_assert!(by_label.0.is_empty() && by_selector.0.is_empty());
        }
    }
}
