//! Declares the values of an earlier document over another base. Pure.
//!
//! In: an earlier document of the installer, the document that was declared over it, the present base. Out: the present
//! base with the values that were declared then. Always holds: the installer's present values stay, including its
//! changes to `proxy.additionalEnv`, unless the whole list was declared in `spec.values`; the trust anchors are those
//! of the current document, because they are never taken back.

use serde_json::Value;

use crate::{
    linkerd_config::documents::overlay::{anchors_path, environment_path, merge_env},
    values::Document,
};

/// Returns `base` with the values that were `declared` over `installed`, and with the trust anchors of `current`.
/// `is_whole` is whether the whole list of variables was declared.
pub(in crate::linkerd_config) fn redeclare(
    base: &Document,
    installed: &Document,
    declared: &Document,
    current: &Document,
    is_whole: bool,
) -> Document {
    let mut document = base.clone();
    let environment = environment_path();
    let (extended, others): (Vec<_>, Vec<_>) =
        installed.differences(declared).into_iter().partition(|path| *path == environment);
    document.copy_paths(declared, &others);
    match (extended.is_empty() || is_whole, variables(declared)) {
        (false, Some(declared)) => {
            let [then, now] = [installed, base].map(|document| variables(document).unwrap_or_default());
            document.set(&environment, extend_like(now, &then, &declared));
        }
        _ => document.copy_paths(declared, &extended),
    }
    document.copy_paths(current, &[anchors_path()]);
    document
}

fn variables(document: &Document) -> Option<Vec<Value>> {
    document.get(&environment_path()).and_then(Value::as_array).cloned()
}

/// Applies the difference between `then` and `declared` to `now`: removes the variables that `declared` lacks, and adds
/// or replaces those that it adds or changes.
fn extend_like(now: Vec<Value>, then: &[Value], declared: &[Value]) -> Value {
    let name = |variable: &Value| variable.get("name").cloned();
    let is_removed = |variable: &Value| {
        let is_same = |other: &Value| name(other) == name(variable);
        then.iter().any(is_same) && !declared.iter().any(is_same)
    };
    let kept = now.into_iter().filter(|variable| !is_removed(variable)).collect();
    let changed = declared.iter().filter(|variable| !then.contains(variable)).cloned();
    merge_env(Some(Value::Array(kept)), changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(base: &str, installed: &str, declared: &str) -> Document {
        let document = |text| Document::parse(text).unwrap();
        redeclare(&document(base), &document(installed), &document(declared), &document("proxy: {}"), false)
    }

    #[test]
    fn a_declared_variable_is_added_to_the_installers_present_variables() {
        let installed = "proxy: {additionalEnv: [{name: A, value: '1'}, {name: OLD, value: '1'}]}";
        let declared =
            "proxy: {additionalEnv: [{name: A, value: '2'}, {name: OLD, value: '1'}, {name: MINE, value: '1'}]}";
        let base = "proxy: {additionalEnv: [{name: NEW, value: '1'}, {name: A, value: '3'}]}";
        let expected =
            "proxy: {additionalEnv: [{name: NEW, value: '1'}, {name: A, value: '2'}, {name: MINE, value: '1'}]}";
        assert_eq!(over(base, installed, declared), Document::parse(expected).unwrap());
        let only_declared = "proxy: {additionalEnv: [{name: A, value: '2'}, {name: MINE, value: '1'}]}";
        assert_eq!(over("proxy: {}", installed, declared), Document::parse(only_declared).unwrap());
        assert_eq!(over(installed, "proxy: {}", only_declared), {
            let merged =
                "proxy: {additionalEnv: [{name: A, value: '2'}, {name: OLD, value: '1'}, {name: MINE, value: '1'}]}";
            Document::parse(merged).unwrap()
        });
    }

    #[test]
    fn a_variable_that_was_removed_stays_removed() {
        let installed = "proxy: {additionalEnv: [{name: A, value: '1'}, {name: B, value: '1'}]}";
        let declared = "proxy: {additionalEnv: [{name: A, value: '1'}]}";
        let base = "proxy: {additionalEnv: [{name: B, value: '2'}, {name: C, value: '1'}]}";
        let expected = "proxy: {additionalEnv: [{name: C, value: '1'}]}";
        assert_eq!(over(base, installed, declared), Document::parse(expected).unwrap());
    }
}
