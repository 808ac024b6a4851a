//! PodDisruptionBudgets: whether they allow a disruption now.

use std::sync::Arc;

use k8s_openapi::{api::policy::v1 as policy, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::Deserialize;

use crate::{
    api::{LabelSelectorObject, NamespacedName, metadata_without_annotations},
    cluster::{
        Problems, Projected,
        index::{
            label_selector::{ByLabelSelector, LabelSelector},
            selector::Labels,
            store::{Store, Stored},
        },
    },
};

/// A PodDisruptionBudget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisruptionBudget {
    pub key: NamespacedName,
    /// Whether the status allows at least one disruption, and is for the current generation.
    pub allows: bool,
    /// An absent selector selects no Pods, an empty one selects all.
    pub selector: Option<LabelSelector>,
}

/// A PodDisruptionBudget as the API server sends it.
#[derive(Clone, Debug, Deserialize, kube::Resource)]
#[resource(inherit = "policy::PodDisruptionBudget")]
pub struct DisruptionBudgetObject {
    #[serde(deserialize_with = "metadata_without_annotations")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Option<DisruptionBudgetSpec>,
    #[serde(default)]
    status: Option<DisruptionBudgetStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct DisruptionBudgetSpec {
    selector: Option<LabelSelectorObject>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DisruptionBudgetStatus {
    disruptions_allowed: Option<i64>,
    observed_generation: Option<i64>,
}

// === impl DisruptionBudget ===

impl Projected for DisruptionBudget {
    type Wire = DisruptionBudgetObject;

    fn project(wire: DisruptionBudgetObject, problems: &mut Problems) -> Self {
        let DisruptionBudgetObject { metadata, spec, status } = wire;
        let DisruptionBudgetStatus { disruptions_allowed, observed_generation } = status.unwrap_or_default();
        let observed = observed_generation.unwrap_or_default() >= metadata.generation.unwrap_or_default();
        let selector = spec.unwrap_or_default().selector.map(LabelSelector::parse).transpose();
        Self {
            key: NamespacedName::of(&metadata),
            allows: observed && disruptions_allowed.unwrap_or_default() > 0,
            selector: selector.unwrap_or_else(|error| {
                problems.add(format_args!("its selector is invalid and selects no Pods: {error}"));
                None
            }),
        }
    }
}

impl Stored for DisruptionBudget {
    type NamespaceIndex = ByLabelSelector;
    type ClusterIndex = ();

    fn key(&self) -> NamespacedName {
        self.key.clone()
    }

    fn index(self: &Arc<Self>, by_selector: &mut ByLabelSelector, (): &mut ()) {
        if let Some(selector) = &self.selector {
            by_selector.insert(selector, &self.key.name);
        }
    }

    fn unindex(self: &Arc<Self>, by_selector: &mut ByLabelSelector, (): &mut ()) {
        if let Some(selector) = &self.selector {
            by_selector.remove(selector, &self.key.name);
        }
    }
}

impl Store<DisruptionBudget> {
    /// The PodDisruptionBudgets of a namespace that select Pods with these labels.
    pub fn selecting<'a>(
        &'a self,
        namespace: &str,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a Arc<DisruptionBudget>> {
        let budgets = self.select(namespace, |index| index.candidates(labels));
        budgets.filter(|budget| budget.selector.as_ref().is_some_and(|selector| selector.matches(labels)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::{State, Watched};

    fn budget(name: &str, spec: &Value, status: &Value) -> (DisruptionBudget, usize) {
        let metadata = json!({"name": name, "namespace": "ns", "generation": 2});
        let object = json!({"metadata": metadata, "spec": spec, "status": status});
        let mut problems = Problems::default();
        let budget = DisruptionBudget::project(serde_json::from_value(object).unwrap(), &mut problems);
        (budget, problems.len())
    }

    #[test]
    fn only_a_status_of_the_current_generation_allows_disruptions() {
        for (status, expected) in [
            (json!({"disruptionsAllowed": 1, "observedGeneration": 2}), true),
            (json!({"disruptionsAllowed": 0, "observedGeneration": 2}), false),
            (json!({"disruptionsAllowed": 1, "observedGeneration": 1}), false),
            (json!({"disruptionsAllowed": 1}), false),
            (json!(null), false),
        ] {
            assert_eq!(budget("a", &json!({}), &status).0.allows, expected, "{status}");
        }
    }

    #[test]
    fn an_absent_selector_selects_no_pods_an_empty_one_all_and_an_invalid_one_is_a_problem() {
        let mut state = State::default();
        let nonsense = json!({"matchExpressions": [{"key": "app", "operator": "Like"}]});
        for (name, selector, problems) in [
            ("none", json!(null), 0),
            ("all", json!({}), 0),
            ("web", json!({"matchLabels": {"app": "web"}}), 0),
            ("db", json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db"]}]}), 0),
            ("nonsense", nonsense, 1),
        ] {
            let (budget, found) = budget(name, &json!({ "selector": selector }), &json!({}));
            assert_eq!(found, problems, "{name}");
            budget.apply(&mut state);
        }
        let selecting = |state: &State, namespace: &str, app: &str| {
            let labels: Labels = [("app", app)].into_iter().collect();
            let found = state.disruption_budgets.selecting(namespace, &labels);
            let mut names: Vec<_> = found.map(|budget| budget.key.name.to_string()).collect();
            names.sort();
            names.join(" ")
        };
        assert_eq!(selecting(&state, "ns", "web"), "all web");
        assert_eq!(selecting(&state, "ns", "db"), "all db");
        assert_eq!(selecting(&state, "other", "web"), "");
        for key in state.disruption_budgets.keys().collect::<Vec<_>>() {
            DisruptionBudget::remove(&key, &mut state);
        }
        assert!(state.disruption_budgets.is_empty());
    }
}
