use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{Problems, Projected},
    values::Path,
};

const OLD: &str = "linkerdVersion: v1\nidentityTrustAnchorsPEM: old\nproxy: {logLevel: warn}";
const NEW: &str = "linkerdVersion: v2\nidentityTrustAnchorsPEM: old\nproxy: {logLevel: warn}";

fn document(text: &str) -> Document {
    Document::parse(text).unwrap()
}

/// A ConfigMap whose annotation names the document that was written last.
fn live(written: Option<&Document>) -> ConfigMap {
    let annotations = written.map(|document| json!({CONFIG_HASH_ANNOTATION: document.hash().to_string()}));
    map(&json!({"annotations": annotations}))
}

fn map(metadata: &Value) -> ConfigMap {
    let mut object = json!({"metadata": {"name": "linkerd-config", "namespace": "linkerd"}});
    json_patch::merge(&mut object["metadata"], metadata);
    ConfigMap::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
}

/// A saved base with this level declared over it.
fn saved(text: &str, level: &str) -> Base {
    let mut base = Base::new(1, text, None).unwrap();
    base.effective.set(&Path::from(&["proxy", "logLevel"][..]), json!(level));
    base
}

const DECLARED: &str = "linkerdVersion: v2\nidentityTrustAnchorsPEM: new\nproxy: {logLevel: trace}";

#[test]
fn the_values_that_were_declared_stay_in_force_over_the_installers_present_document() {
    let base = saved(OLD, "debug");
    let in_force = |installed: &str, saved: Option<&Base>, written: Option<&Document>, found: &Document, first_time| {
        let (live, installed, declared) = (live(written), document(installed), document(DECLARED));
        held(&HeldInput {
            saved,
            live: &live,
            found: Some(found),
            first_time,
            installed: &installed,
            declared: &declared,
        })
    };
    let debug = "linkerdVersion: v1\nidentityTrustAnchorsPEM: new\nproxy: {logLevel: debug}";
    let (effective, other) = (base.effective.clone(), document("proxy: {logLevel: error}"));
    assert_eq!(in_force(OLD, Some(&base), Some(&effective), &effective, false), document(debug));
    assert_eq!(in_force(OLD, Some(&base), Some(&effective), &other, false), document(debug), "drift is not in force");
    let upgraded = debug.replace("v1", "v2");
    assert_eq!(in_force(NEW, Some(&base), Some(&effective), &document(NEW), false), document(&upgraded));
    // After a rollback the base has the document that failed.
    let restored = document(&OLD.replace("warn", "info"));
    let expected = document(&debug.replace("debug", "info"));
    assert_eq!(in_force(OLD, Some(&base), Some(&restored), &restored, false), expected);
    // The first write did not happen, or nothing was ever saved.
    let installed = document(&OLD.replace("old", "new"));
    assert_eq!(in_force(OLD, Some(&base), None, &document(OLD), true), installed);
    assert_eq!(in_force(OLD, None, None, &document(OLD), true), installed);
    // An installer that removed the annotation after the operator's first write does not end the declared values.
    assert_eq!(in_force(NEW, Some(&base), None, &document(NEW), false), document(&upgraded));
}

#[test]
fn a_config_map_of_another_writer_and_every_difference_are_recognized() {
    let document =
        CanaryDocument { hash: "h".to_owned(), values: "a: 1".to_owned(), proxy_version: None, proxy_shape: None };
    let selector: LabelSelector = serde_json::from_value(json!({"matchLabels": {"canary": "yes"}})).unwrap();
    let content = CanaryContent::new(&document, &selector, ("mesh".into(), "uid".into()));
    assert_eq!(content.compare(None), WrittenCanary::Absent);
    let annotations = json!({
        "config.linkerd.io/managed-by": "linkerd-operator",
        "config.linkerd.io/canary-namespaces": r#"{"matchLabels":{"canary":"yes"}}"#,
        "config.linkerd.io/canary-owner": "uid",
    });
    let found = |over: Value, values: &str| {
        let mut annotations = annotations.clone();
        json_patch::merge(&mut annotations, &over);
        ConfigMap { values: Some(values.into()), ..map(&json!({"annotations": annotations})) }
    };
    let same = found(json!({}), "a: 1");
    assert_eq!((content.compare(Some(&same)), content.must_replace(&same)), (WrittenCanary::Current, false));
    for (over, values, replaces) in [
        (json!({}), "a: 2", false),
        (json!({"config.linkerd.io/canary-namespaces": "{}"}), "a: 1", false),
        (json!({"config.linkerd.io/canary-owner": "another"}), "a: 1", true),
    ] {
        let found = found(over, values);
        assert_eq!((content.compare(Some(&found)), content.must_replace(&found)), (WrittenCanary::Outdated, replaces));
    }
    for other in [json!(null), json!("another")] {
        let foreign = found(json!({"config.linkerd.io/managed-by": other}), "a: 1");
        assert_eq!(content.compare(Some(&foreign)), WrittenCanary::Foreign);
    }
    assert!(content.must_replace(&ConfigMap { immutable: true, ..same }));
}
