//! Whether a Pod runs on Windows. Linkerd's proxy and its init container run on Linux only.
//!
//! In: `os`, `nodeSelector` and `affinity` of a Pod. Out: flags, because every Pod of the cluster has them.

use std::collections::BTreeMap;

use serde::Deserialize;

const WINDOWS: &str = "windows";
/// The labels of nodes with their operating system.
const OS_LABELS: [&str; 2] = ["kubernetes.io/os", "beta.kubernetes.io/os"];

/// Whether `spec.os` of a Pod is Windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Option<OsField>")]
pub struct RunsWindows(bool);

/// Whether `spec.nodeSelector` of a Pod selects only Windows nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Option<BTreeMap<String, String>>")]
pub struct SelectsWindows(bool);

/// Whether `spec.affinity` of a Pod requires a Windows node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Option<AffinityField>")]
pub struct RequiresWindows(bool);

#[derive(Default, Deserialize)]
#[serde(default)]
struct OsField {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AffinityField {
    node_affinity: Option<NodeAffinityField>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeAffinityField {
    required_during_scheduling_ignored_during_execution: Option<NodeSelectorField>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeSelectorField {
    node_selector_terms: Option<Vec<NodeSelectorTermField>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeSelectorTermField {
    match_expressions: Option<Vec<RequirementField>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RequirementField {
    key: String,
    operator: String,
    values: Option<Vec<String>>,
}

/// Returns whether a Pod runs on Windows nodes only.
pub fn is_for_windows(os: RunsWindows, selector: SelectsWindows, affinity: RequiresWindows) -> bool {
    os.0 || selector.0 || affinity.0
}

impl From<Option<OsField>> for RunsWindows {
    fn from(os: Option<OsField>) -> Self {
        Self(os.is_some_and(|os| os.name == WINDOWS))
    }
}

impl From<Option<BTreeMap<String, String>>> for SelectsWindows {
    fn from(labels: Option<BTreeMap<String, String>>) -> Self {
        let labels = labels.unwrap_or_default();
        Self(OS_LABELS.into_iter().any(|label| labels.get(label).is_some_and(|os| os == WINDOWS)))
    }
}

impl From<Option<AffinityField>> for RequiresWindows {
    fn from(affinity: Option<AffinityField>) -> Self {
        let terms = || {
            let required = affinity?.node_affinity?.required_during_scheduling_ignored_during_execution?;
            required.node_selector_terms
        };
        // A node must match one of the terms.
        let terms = terms().unwrap_or_default();
        Self(!terms.is_empty() && terms.iter().all(NodeSelectorTermField::is_for_windows))
    }
}

// === impl NodeSelectorTermField ===

impl NodeSelectorTermField {
    fn is_for_windows(&self) -> bool {
        self.match_expressions.iter().flatten().any(|it| {
            let is_os = OS_LABELS.contains(&it.key.as_str()) && it.operator == "In";
            is_os && it.values.as_deref().is_some_and(|values| values == [WINDOWS])
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn affinity(terms: &Value) -> RequiresWindows {
        let required = json!({ "nodeSelectorTerms": terms });
        let of_nodes = json!({"requiredDuringSchedulingIgnoredDuringExecution": required});
        serde_json::from_value(json!({ "nodeAffinity": of_nodes })).unwrap()
    }

    #[test]
    fn a_pod_is_for_windows_by_its_os_its_node_selector_or_its_affinity() {
        let os = |value: Value| serde_json::from_value::<RunsWindows>(value).unwrap().0;
        assert!(os(json!({"name": "windows"})));
        assert!(!os(json!({"name": "linux"})) && !os(json!({})) && !os(json!(null)));
        let selector = |value: Value| serde_json::from_value::<SelectsWindows>(value).unwrap().0;
        assert!(
            selector(json!({"kubernetes.io/os": "windows"})) && selector(json!({"beta.kubernetes.io/os": "windows"}))
        );
        assert!(!selector(json!({"kubernetes.io/os": "linux", "pool": "windows"})) && !selector(json!(null)));
        let requires = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}, {"key": key, "operator": operator, "values": values}]});
        let windows = requires("kubernetes.io/os", "In", &["windows"]);
        assert!(affinity(&json!([windows])).0 && affinity(&json!([windows, windows])).0);
        for other in [
            json!([]),
            json!(null),
            json!([windows, requires("kubernetes.io/os", "In", &["linux"])]),
            json!([requires("kubernetes.io/os", "In", &["windows", "linux"])]),
            json!([requires("kubernetes.io/os", "NotIn", &["windows"])]),
            json!([requires("pool", "In", &["windows"])]),
            json!([{}]),
        ] {
            assert!(!affinity(&other).0, "{other}");
        }
        assert!(!serde_json::from_value::<RequiresWindows>(json!({"podAffinity": {}})).unwrap().0);
    }
}
