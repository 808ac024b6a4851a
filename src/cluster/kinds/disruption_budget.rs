//! PodDisruptionBudgets: whether Pods may be taken away now.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::{api::policy::v1 as policy, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::Deserialize;

use crate::{
    api::{LabelSelectorObject, NamespacedName, lean_metadata},
    cluster::{
        Affected, Kind, Problems, Projected, State,
        index::{
            label_selector::{ByLabelSelector, LabelSelector},
            selector::Labels,
            workload_key::WorkloadKey,
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
    selector: Option<LabelSelector>,
}

/// A PodDisruptionBudget as the API server sends it.
#[derive(Clone, Debug, Deserialize, kube::Resource)]
#[resource(inherit = "policy::PodDisruptionBudget")]
pub struct DisruptionBudgetObject {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Option<Spec>,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    selector: Option<LabelSelectorObject>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    disruptions_allowed: Option<i64>,
    observed_generation: Option<i64>,
}

/// All PodDisruptionBudgets of a cluster.
#[derive(Default)]
pub struct DisruptionBudgets {
    namespaces: HashMap<Arc<str>, Namespace>,
    count: usize,
}

#[derive(Default)]
struct Namespace {
    by_name: HashMap<Arc<str>, Arc<DisruptionBudget>>,
    by_selector: ByLabelSelector,
}

// === impl DisruptionBudget ===

impl Projected for DisruptionBudget {
    type Wire = DisruptionBudgetObject;
    const KIND: Kind = Kind::PodDisruptionBudget;

    fn project(wire: DisruptionBudgetObject, problems: &mut Problems) -> Self {
        let DisruptionBudgetObject { metadata, spec, status } = wire;
        let Status { disruptions_allowed, observed_generation } = status.unwrap_or_default();
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

    fn apply(self, state: &mut State) -> Affected {
        let known = state.disruption_budgets.get(&self.key).cloned();
        if known.as_deref() == Some(&self) {
            return Affected::default();
        }
        let mut affected = Affected::rolled(self.concerned(state));
        affected.extend(Self::remove(&self.key, state));
        state.disruption_budgets.insert(self);
        affected
    }

    fn remove(key: &NamespacedName, state: &mut State) -> Affected {
        match state.disruption_budgets.remove(key) {
            Some(old) => Affected::rolled(old.concerned(state)),
            None => Affected::default(),
        }
    }

    fn keys(state: &State) -> Vec<NamespacedName> {
        let namespaces = state.disruption_budgets.namespaces.values();
        namespaces.flat_map(|namespace| namespace.by_name.values()).map(|budget| budget.key.clone()).collect()
    }
}

impl DisruptionBudget {
    /// The workloads of the Pods that it selects.
    fn concerned(&self, state: &State) -> BTreeSet<WorkloadKey> {
        let pods = self.selector.iter().flat_map(|selector| state.pods.selected(&self.key.namespace, selector));
        state.workloads_of(pods.map(|pod| &**pod))
    }
}

// === impl DisruptionBudgets ===

impl DisruptionBudgets {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Those that Pods with these labels count for.
    pub fn selecting<'a>(
        &'a self,
        namespace: &str,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a Arc<DisruptionBudget>> + use<'a> {
        let namespace = self.namespaces.get(namespace);
        let names = namespace.into_iter().flat_map(|it| it.by_selector.candidates(labels));
        let budgets = names.filter_map(move |name| namespace?.by_name.get(name));
        budgets.filter(|budget| budget.selector.as_ref().is_some_and(|selector| selector.matches(labels)))
    }

    fn get(&self, key: &NamespacedName) -> Option<&Arc<DisruptionBudget>> {
        self.namespaces.get(&key.namespace)?.by_name.get(&key.name)
    }

    fn insert(&mut self, budget: DisruptionBudget) {
        self.count += 1;
        let namespace = self.namespaces.entry(Arc::clone(&budget.key.namespace)).or_default();
        let name = Arc::clone(&budget.key.name);
        if let Some(selector) = &budget.selector {
            namespace.by_selector.insert(selector, &name);
        }
        namespace.by_name.insert(name, Arc::new(budget));
    }

    fn remove(&mut self, key: &NamespacedName) -> Option<Arc<DisruptionBudget>> {
        let namespace = self.namespaces.get_mut(&key.namespace)?;
        let old = namespace.by_name.remove(&key.name)?;
        self.count -= 1;
        if let Some(selector) = &old.selector {
            namespace.by_selector.remove(selector, &key.name);
        }
        if namespace.by_name.is_empty() {
            self.namespaces.remove(&key.namespace);
        }
        Some(old)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::kinds::pod::tests::pod;

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
        assert!(state.disruption_budgets.is_empty() && state.disruption_budgets.namespaces.is_empty());
    }

    #[test]
    fn a_change_concerns_what_it_selected_and_what_it_selects_and_a_touch_nothing() {
        let mut state = State { rolls: true, ..State::default() };
        for app in ["web", "db", "mq"] {
            pod(&json!({"name": app, "labels": {"app": app}}), &json!({})).0.apply(&mut state);
        }
        let selecting = |app: &str, allowed: i64| {
            let status = json!({"disruptionsAllowed": allowed, "observedGeneration": 2, "currentHealthy": allowed});
            budget("a", &json!({"selector": {"matchLabels": {"app": app}}}), &status).0
        };
        let pods =
            |names: &[&str]| Affected::rolled(names.iter().map(|name| WorkloadKey::new("ns", "Pod", *name)).collect());
        assert_eq!(selecting("web", 1).apply(&mut state), pods(&["web"]));
        assert_eq!(selecting("web", 2).apply(&mut state), pods(&[]));
        assert_eq!(selecting("web", 0).apply(&mut state), pods(&["web"]));
        assert_eq!(selecting("db", 0).apply(&mut state), pods(&["web", "db"]));
        assert_eq!(DisruptionBudget::remove(&NamespacedName::new("ns", "a"), &mut state), pods(&["db"]));
    }
}
