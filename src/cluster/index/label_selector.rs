//! Label selectors with expressions, such as those of Servers, and the lookup of the selectors that match some labels.
//!
//! Unlike the selector of a Service, a label selector may be empty; it then selects everything.

use std::{collections::BTreeSet, sync::Arc};

use super::selector::{BySelector, Labels, Selector};
use crate::api::{LabelSelectorObject, LabelSelectorRequirementObject};

/// A valid label selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelSelector {
    /// `matchLabels`; `None` if empty.
    equal: Option<Selector>,
    expressions: Box<[Expression]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Expression {
    key: Box<str>,
    requirement: Requirement,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(Box<[String]>),
    NotIn(Box<[String]>),
    Exists,
    DoesNotExist,
}

/// The names of the objects of one namespace, by their label selector.
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
        let expressions = object.match_expressions.into_iter().flatten().map(Expression::parse);
        Ok(Self {
            equal: Selector::new(object.match_labels.unwrap_or_default().iter().collect()),
            expressions: expressions.collect::<Result<_, _>>()?,
        })
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.equal.as_ref().is_none_or(|selector| selector.matches(labels))
            && self.expressions.iter().all(|expression| expression.matches(labels))
    }

    /// The labels that every selected object has, from `matchLabels`; `None` if empty.
    pub fn equal(&self) -> Option<&Selector> {
        self.equal.as_ref()
    }
}

impl Expression {
    fn parse(object: LabelSelectorRequirementObject) -> Result<Self, String> {
        let values = object.values.unwrap_or_default();
        let (key, operator) = (object.key, object.operator);
        let requirement = match (operator.as_str(), values.is_empty()) {
            ("In", false) => Requirement::In(values.into()),
            ("NotIn", false) => Requirement::NotIn(values.into()),
            ("Exists", true) => Requirement::Exists,
            ("DoesNotExist", true) => Requirement::DoesNotExist,
            ("In" | "NotIn", true) => return Err(format!("{operator} of {key:?} needs values")),
            ("Exists" | "DoesNotExist", false) => return Err(format!("{operator} of {key:?} takes no values")),
            _ => return Err(format!("{operator:?} of {key:?} is not an operator")),
        };
        Ok(Self { key: key.into(), requirement })
    }

    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let among = |values: &[String]| value.is_some_and(|value| values.iter().any(|it| **it == **value));
        match &self.requirement {
            Requirement::In(values) => among(values),
            // As in Kubernetes, an absent label is not in any set.
            Requirement::NotIn(values) => !among(values),
            Requirement::Exists => value.is_some(),
            Requirement::DoesNotExist => value.is_none(),
        }
    }
}

// === impl ByLabelSelector ===

impl ByLabelSelector {
    pub fn insert(&mut self, selector: &LabelSelector, name: &Arc<str>) {
        match selector.equal() {
            Some(equal) => self.equal.insert(equal, name),
            None => _ = self.rest.insert(Arc::clone(name)),
        }
    }

    pub fn remove(&mut self, selector: &LabelSelector, name: &str) {
        match selector.equal() {
            Some(equal) => self.equal.remove(equal, name),
            None => _ = self.rest.remove(name),
        }
    }

    /// Returns the names of objects whose selector may match the labels; the caller must check each.
    pub fn candidates<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = &'a Arc<str>> {
        self.equal.candidates(labels).chain(&self.rest)
    }
}

#[cfg(test)]
mod tests {
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
