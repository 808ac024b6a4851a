//! Fields that the schema of LinkerdConfig does not have.
//!
//! In: the message with which the API server rejects them. Out: each of them, with the field that may be meant.

use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::{api::LinkerdConfig, text::suggestion::meant_path};

/// The words before each field, which is quoted.
const UNKNOWN: &str = "unknown field \"";

/// Returns the unknown fields for which another one may be meant, with that one.
pub(super) fn meant(message: &str) -> Vec<(&str, String)> {
    let unknown: Vec<&str> = message.split(UNKNOWN).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0)).collect();
    if unknown.is_empty() {
        return Vec::new();
    }
    let known = known_fields();
    unknown.into_iter().filter_map(|field| Some((field, meant_path(field, &known)?))).collect()
}

/// Returns the paths of all fields of the spec. Items of lists have `[]`.
fn known_fields() -> Vec<String> {
    let schema = json!(LinkerdConfig::crd());
    let mut known = vec!["spec".to_owned()];
    let spec = schema.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
    spec.into_iter().for_each(|spec| collect("spec", spec, &mut known));
    known
}

fn collect(above: &str, schema: &Value, known: &mut Vec<String>) {
    for (name, schema) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = format!("{above}.{name}");
        known.push(path.clone());
        collect(&path, schema, known);
    }
    if let Some(items) = schema.get("items") {
        collect(&format!("{above}[]"), items, known);
    }
}
