//! Label selectors with expressions, such as those of Servers, and the lookup of the selectors that match some labels.
//!
//! Unlike the selector of a Service, a label selector may be empty; it then selects everything. Always holds: matching
//! takes time in proportion to the labels of the object, not to the requirements and values of the selector, which can
//! be a hundred thousand.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    selector::{BySelector, Labels, Pair, Selector},
    text_set::TextSet,
};
use crate::api::{LONGEST_KEY, LONGEST_LABEL, LabelSelectorObject, LabelSelectorRequirementObject};

/// A valid label selector. Two selectors are equal if they have the same requirements in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    /// `matchLabels`; `None` if empty.
    equal: Option<Selector>,
    /// The labels that an object must have: `In` and `Exists`.
    required: LabelConditions,
    /// The labels that an object must not have: `NotIn` and `DoesNotExist`.
    forbidden: LabelConditions,
}

/// The values of labels by key, sorted. A key occurs once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct LabelConditions(Box<[(Box<str>, LabelCondition)]>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LabelCondition {
    AnyValue,
    OneOf(TextSet),
}

/// The requirements of a selector while it is parsed. Those with the same key are merged. `None` for any value.
#[derive(Default)]
struct Requirements {
    required: BTreeMap<String, Option<BTreeSet<String>>>,
    forbidden: BTreeMap<String, Option<BTreeSet<String>>>,
}

/// An index of the objects of one namespace: from their label selectors to their names.
#[derive(Debug, Default)]
pub struct ByLabelSelector {
    equal: BySelector,
    /// The objects without `matchLabels`: they are candidates for all labels.
    rest: BTreeSet<Arc<str>>,
}

// === impl LabelSelector ===

impl LabelSelector {
    /// # Errors
    /// The selector is invalid, and therefore selects nothing. The error is a text for a person.
    pub fn parse(object: LabelSelectorObject) -> Result<Self, String> {
        let equal = object.match_labels.unwrap_or_default();
        for (key, value) in &equal {
            check_length(key, [value])?;
        }
        let mut requirements = Requirements::default();
        for expression in object.match_expressions.into_iter().flatten() {
            requirements.add(expression)?;
        }
        Ok(Self {
            equal: Selector::new(equal.iter().collect()),
            required: requirements.required.into_iter().collect(),
            forbidden: requirements.forbidden.into_iter().collect(),
        })
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        #[cfg(test)]
        counters::count_evaluation();
        // Each pair and each required key is another key. After one key for each label of the object, the next key is
        // missing.
        self.equal.as_ref().is_none_or(|selector| selector.matches(labels))
            && self.required.0.iter().all(|(key, condition)| labels.get(key).is_some_and(|value| condition.has(value)))
            && !labels.iter().any(|(key, value)| self.forbidden.get(key).is_some_and(|condition| condition.has(value)))
    }

    /// Returns whether the selector selects everything.
    pub fn is_empty(&self) -> bool {
        self.equal.is_none() && self.required.0.is_empty() && self.forbidden.0.is_empty()
    }

    /// Returns the keys that decide whether the selector matches.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let pairs = self.equal.iter().flat_map(Selector::pairs).map(|(key, _)| &**key);
        pairs.chain([&self.required, &self.forbidden].into_iter().flat_map(|it| it.0.iter().map(|(key, _)| &**key)))
    }

    /// Returns a label that every selected object has; `None` if `matchLabels` is empty.
    pub fn pair(&self) -> Option<&Pair> {
        self.equal.as_ref()?.first()
    }
}

/// The API server accepts no longer keys and values of labels, so Kubernetes rejects a selector with one.
fn check_length<'a>(key: &str, values: impl IntoIterator<Item = &'a String>) -> Result<(), String> {
    if key.len() > LONGEST_KEY {
        return Err(format!("a key is longer than {LONGEST_KEY} characters"));
    }
    match values.into_iter().any(|value| value.len() > LONGEST_LABEL) {
        true => Err(format!("a value of {key:?} is longer than {LONGEST_LABEL} characters")),
        false => Ok(()),
    }
}

// === impl Requirements ===

impl Requirements {
    fn add(&mut self, object: LabelSelectorRequirementObject) -> Result<(), String> {
        let values = object.values.unwrap_or_default();
        let (key, operator) = (object.key, object.operator);
        check_length(&key, &values)?;
        match (operator.as_str(), values.is_empty()) {
            ("In", false) => self.require(key, Some(values.into_iter().collect())),
            ("NotIn", false) => self.forbid(key, Some(values.into_iter().collect())),
            ("Exists", true) => self.require(key, None),
            ("DoesNotExist", true) => self.forbid(key, None),
            ("In" | "NotIn", true) => return Err(format!("{operator} of {key:?} needs values")),
            ("Exists" | "DoesNotExist", false) => return Err(format!("{operator} of {key:?} takes no values")),
            _ => return Err(format!("{operator:?} of {key:?} is not an operator")),
        }
        Ok(())
    }

    /// The value must be in each of the sets.
    fn require(&mut self, key: String, values: Option<BTreeSet<String>>) {
        let known = self.required.entry(key).or_default();
        *known = match (known.take(), values) {
            (Some(mut known), Some(values)) => {
                known.retain(|value| values.contains(value));
                Some(known)
            }
            (known, values) => known.or(values),
        };
    }

    /// The value must be in none of the sets.
    fn forbid(&mut self, key: String, values: Option<BTreeSet<String>>) {
        match self.forbidden.entry(key).or_insert_with(|| Some(BTreeSet::new())) {
            Some(known) if values.is_some() => known.extend(values.into_iter().flatten()),
            known => *known = None,
        }
    }
}

// === impl LabelConditions ===

impl FromIterator<(String, Option<BTreeSet<String>>)> for LabelConditions {
    /// The keys must be sorted.
    fn from_iter<I: IntoIterator<Item = (String, Option<BTreeSet<String>>)>>(conditions: I) -> Self {
        let condition =
            |values: Option<_>| values.map_or(LabelCondition::AnyValue, |it| LabelCondition::OneOf(TextSet::from(&it)));
        Self(conditions.into_iter().map(|(key, values)| (key.into(), condition(values))).collect())
    }
}

impl LabelConditions {
    fn get(&self, key: &str) -> Option<&LabelCondition> {
        let found = self.0.binary_search_by(|(it, _)| compare(it, key));
        self.0.get(found.ok()?).map(|(_, condition)| condition)
    }
}

impl LabelCondition {
    fn has(&self, value: &str) -> bool {
        match self {
            Self::AnyValue => true,
            Self::OneOf(values) => values.contains_by(|it| compare(it, value)),
        }
    }
}

/// Compares two keys or two values.
fn compare(one: &str, other: &str) -> Ordering {
    #[cfg(test)]
    counters::count_comparison();
    one.cmp(other)
}

// === impl ByLabelSelector ===

impl ByLabelSelector {
    pub fn insert(&mut self, selector: &LabelSelector, name: &Arc<str>) {
        match &selector.equal {
            Some(equal) => self.equal.insert(equal, name),
            None => _ = self.rest.insert(Arc::clone(name)),
        }
    }

    pub fn remove(&mut self, selector: &LabelSelector, name: &str) {
        match &selector.equal {
            Some(equal) => self.equal.remove(equal, name),
            None => _ = self.rest.remove(name),
        }
    }

    /// Returns the names of objects whose selector may match the labels; the caller must check each.
    pub fn candidates<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = &'a Arc<str>> {
        self.equal.candidates(labels).chain(&self.rest)
    }
}

/// Counts the work of this thread.
#[cfg(test)]
pub(crate) mod counters {
    use std::cell::Cell;

    thread_local! {
        static EVALUATIONS: Cell<usize> = const { Cell::new(0) };
        static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn count_evaluation() {
        EVALUATIONS.set(EVALUATIONS.get() + 1);
    }

    pub(super) fn count_comparison() {
        COMPARISONS.set(COMPARISONS.get() + 1);
    }

    /// Runs `body`, and returns the number of its evaluations of selectors and of its comparisons of keys and values.
    pub(crate) fn counted<R>(body: impl FnOnce() -> R) -> (R, usize, usize) {
        let (evaluations, comparisons) = (EVALUATIONS.get(), COMPARISONS.get());
        let result = body();
        (result, EVALUATIONS.get() - evaluations, COMPARISONS.get() - comparisons)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn parse(value: Value) -> Result<LabelSelector, String> {
        LabelSelector::parse(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn all_labels_and_expressions_must_match() {
        let labels: Labels = [("app", "web"), ("tier", "front")].into_iter().collect();
        let expression = |operator: &str, key: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (selector, selected) in [
            (json!({}), true),
            (json!({"matchLabels": null, "matchExpressions": null}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "web", "tier": "back"}}), false),
            (expression("In", "app", json!(["db", "web"])), true),
            (expression("In", "none", json!(["web"])), false),
            (expression("NotIn", "app", json!(["db"])), true),
            (expression("NotIn", "none", json!(["db"])), true),
            (expression("NotIn", "app", json!(["web"])), false),
            (expression("Exists", "app", json!(null)), true),
            (expression("Exists", "none", json!([])), false),
            (expression("DoesNotExist", "none", json!(null)), true),
            (expression("DoesNotExist", "app", json!(null)), false),
        ] {
            assert_eq!(parse(selector.clone()).unwrap().matches(&labels), selected, "{selector}");
        }
        let both =
            json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]});
        assert!(!parse(both).unwrap().matches(&labels));
    }

    #[test]
    fn a_selector_that_kubernetes_rejects_is_rejected_with_the_reason() {
        for (operator, values, reason) in [
            ("In", json!([]), "needs values"),
            ("NotIn", json!(null), "needs values"),
            ("Exists", json!(["a"]), "takes no values"),
            ("DoesNotExist", json!(["a"]), "takes no values"),
            ("Like", json!(["a"]), "is not an operator"),
        ] {
            let selector = json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]});
            let error = parse(selector).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_selector_with_texts_longer_than_labels_can_be_is_rejected() {
        let (key, value) = ("k".repeat(317), "v".repeat(63));
        let equal = |key: &str, value: &str| json!({"matchLabels": {key: value}});
        let not_in = |key: &str, value: &str| json!({"matchExpressions": [{"key": key, "operator": "NotIn", "values": ["a", value]}]});
        for (key, value, is_valid) in [
            (key.clone(), value.clone(), true),
            (key.clone() + "k", value.clone(), false),
            (key.clone(), value.clone() + "v", false),
        ] {
            assert_eq!(parse(equal(&key, &value)).is_ok(), is_valid);
            assert_eq!(parse(not_in(&key, &value)).is_ok(), is_valid);
        }
    }

    #[test]
    fn selectors_with_the_same_requirements_in_another_order_are_equal() {
        let expressions = |all: Value| parse(json!({ "matchExpressions": all })).unwrap();
        let one = expressions(
            json!([{"key": "a", "operator": "In", "values": ["x", "y"]}, {"key": "b", "operator": "Exists"}]),
        );
        let other = expressions(
            json!([{"key": "b", "operator": "Exists"}, {"key": "a", "operator": "In", "values": ["y", "x", "x"]}]),
        );
        assert_eq!(one, other);
        assert_ne!(one, expressions(json!([{"key": "a", "operator": "In", "values": ["x", "y"]}])));
    }

    #[test]
    fn matching_a_hundred_thousand_values_or_requirements_takes_few_comparisons() {
        let values: Vec<String> = (0..100_000).map(|number| format!("v{number}")).collect();
        let labels: Labels = [("app", "web"), ("tier", "v70000")].into_iter().collect();
        let requirement =
            |operator: &str, key: &str, values: &[String]| json!({"key": key, "operator": operator, "values": values});
        let expressions = |all: Vec<Value>| parse(json!({ "matchExpressions": all })).unwrap();
        let same_key = |operator: &str, value: &str| {
            expressions(
                (0..10_000).map(|n| requirement(operator, "tier", &[format!("v{n}x"), value.to_owned()])).collect(),
            )
        };
        for (selector, expected) in [
            (expressions(vec![requirement("In", "tier", &values)]), true),
            (expressions(vec![requirement("NotIn", "tier", &values)]), false),
            (expressions(vec![requirement("In", "app", &values)]), false),
            (expressions(vec![requirement("NotIn", "app", &values)]), true),
            (same_key("In", "v70000"), true),
            (same_key("NotIn", "v70000"), false),
            (expressions(values.iter().map(|key| requirement("NotIn", key, &values[..1])).collect()), true),
        ] {
            let (matches, _, comparisons) = counters::counted(|| selector.matches(&labels));
            assert_eq!(matches, expected);
            assert!(comparisons <= 60, "{comparisons}");
        }
    }

    /// Kubernetes' definition of a requirement, one by one.
    fn is_met(labels: &BTreeMap<String, String>, key: &str, operator: &str, values: &[String]) -> bool {
        match (operator, labels.get(key)) {
            ("In", value) => value.is_some_and(|value| values.contains(value)),
            ("NotIn", value) => !value.is_some_and(|value| values.contains(value)),
            ("Exists", value) => value.is_some(),
            (_, value) => value.is_none(),
        }
    }

    proptest! {
        #[test]
        fn a_selector_matches_the_labels_that_meet_each_of_its_requirements(
            labels in prop::collection::btree_map("[a-e]", "[v-z]{0,1}", 0..5),
            equal in prop::collection::btree_map("[a-e]", "[v-z]{0,1}", 0..2),
            expressions in prop::collection::vec(
                ("[a-e]", 0..4usize, prop::collection::vec("[v-z]{0,1}", 1..5)), 0..5),
        ) {
            let operators = ["In", "NotIn", "Exists", "DoesNotExist"];
            let values = |operator: usize, values: &[String]| if operator < 2 { values.to_vec() } else { Vec::new() };
            let object: Vec<Value> = expressions.iter().map(|(key, operator, all)| {
                json!({"key": key, "operator": operators[*operator], "values": values(*operator, all)})
            }).collect();
            let expected = equal.iter().all(|(key, value)| labels.get(key) == Some(value))
                && expressions.iter().all(|(key, operator, all)| is_met(&labels, key, operators[*operator], all));
            let selector = parse(json!({"matchLabels": equal, "matchExpressions": object})).unwrap();
            let (is_empty, all) = (equal.is_empty() && expressions.is_empty(), labels.iter().collect::<Labels>());
            prop_assert_eq!(selector.matches(&all), expected);
            prop_assert_eq!(selector.is_empty(), is_empty);
            let looked_at = all.only(|key| selector.keys().any(|it| it == key));
            prop_assert_eq!(selector.matches(&looked_at), expected, "only the keys of the selector count");
            prop_assert!(!expected || selector.pair().is_none_or(|(key, value)| all.get(key) == Some(value)));
        }
    }

    #[test]
    fn selectors_that_may_match_are_found_with_and_without_match_labels() {
        let mut index = ByLabelSelector::default();
        let selectors = [
            ("equal", json!({"matchLabels": {"app": "web"}})),
            ("other", json!({"matchLabels": {"app": "db"}})),
            ("all", json!({})),
        ];
        for (name, selector) in &selectors {
            index.insert(&parse(selector.clone()).unwrap(), &Arc::from(*name));
        }
        let labels: Labels = [("app", "web")].into_iter().collect();
        let found = |index: &ByLabelSelector| index.candidates(&labels).map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found(&index), ["equal", "all"]);
        for (name, selector) in selectors {
            index.remove(&parse(selector).unwrap(), name);
        }
        assert!(found(&index).is_empty());
    }
}
