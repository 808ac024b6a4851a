//! PodDisruptionBudgets: whether Pods may be taken away now.

use std::sync::Arc;

use k8s_openapi::{api::policy::v1 as policy, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::Deserialize;

use crate::{
    api::{LabelSelectorObject, NamespacedName, lean_metadata},
    cluster::{
        Change, Kind, Problems, Projected, State,
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
    /// Whether one more Pod may be taken away, by what its controller said of the budget as it is now.
    pub allows: bool,
    /// An absent one selects nothing, and an empty one everything.
    pub selector: Option<LabelSelector>,
}

/// A PodDisruptionBudget as the API server sends it.
#[derive(Clone, Debug, Deserialize, kube::Resource)]
#[resource(inherit = "policy::PodDisruptionBudget")]
pub struct DisruptionBudgetObject {
    #[serde(deserialize_with = "lean_metadata")]
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
    type Object = Self;
    const KIND: Kind = Kind::PodDisruptionBudget;
    const RESOURCE: &'static str = "poddisruptionbudgets.policy";
    const CACHE_SIZE: &'static str = "poddisruptionbudget_cache_size";

    fn project(wire: DisruptionBudgetObject, problems: &mut Problems) -> Self {
        let DisruptionBudgetObject { metadata, spec, status } = wire;
        let DisruptionBudgetStatus { disruptions_allowed, observed_generation } = status.unwrap_or_default();
        let observed = observed_generation.unwrap_or_default() >= metadata.generation.unwrap_or_default();
        let selector = spec.unwrap_or_default().selector.map(LabelSelector::parse).transpose();
        Self {
            key: NamespacedName::of(&metadata),
            allows: observed && disruptions_allowed.unwrap_or_default() > 0,
            selector: selector.unwrap_or_else(|error| {
                problems.add(format_args!("its selector selects nothing: {error}"));
                None
            }),
        }
    }

    fn apply(self, state: &mut State) -> Option<Change> {
        state.disruption_budgets.apply(self).map(Change::PodDisruptionBudget)
    }

    fn remove(key: &NamespacedName, state: &mut State) -> Option<Change> {
        state.disruption_budgets.delete(key).map(Change::PodDisruptionBudget)
    }

    fn keys(state: &State) -> Vec<NamespacedName> {
        state.disruption_budgets.keys().collect()
    }

    fn count(state: &State) -> usize {
        state.disruption_budgets.len()
    }
}

impl Stored for DisruptionBudget {
    type NamespaceIndex = ByLabelSelector;
    type ClusterIndex = ();

    fn namespace(&self) -> &Arc<str> {
        &self.key.namespace
    }

    fn name(&self) -> &Arc<str> {
        &self.key.name
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

    fn budget(name: &str, spec: &Value, status: &Value) -> (DisruptionBudget, usize) {
        let metadata = json!({"name": name, "namespace": "ns", "generation": 2});
        let object = json!({"metadata": metadata, "spec": spec, "status": status});
        let mut problems = Problems::default();
        let budget = DisruptionBudget::project(serde_json::from_value(object).unwrap(), &mut problems);
        (budget, problems.len())
    }

    #[test]
    fn it_allows_what_its_controller_said_of_it_as_it_is_now() {
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
    fn no_selector_selects_nothing_an_empty_one_everything_and_an_invalid_one_is_a_problem() {
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
        for key in DisruptionBudget::keys(&state) {
            DisruptionBudget::remove(&key, &mut state);
        }
        assert!(state.disruption_budgets.is_empty());
    }
}
