//! The wire shape of a label selector.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A label selector as the API server sends it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelectorObject {
    pub match_labels: Option<BTreeMap<String, String>>,
    pub match_expressions: Option<Vec<LabelSelectorRequirementObject>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LabelSelectorRequirementObject {
    pub key: String,
    pub operator: String,
    pub values: Option<Vec<String>>,
}
