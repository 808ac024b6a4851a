use serde_json::{Value, json};

use super::*;
use crate::{
    linkerd_config::{plan::ConfigPlan, revert::next_predecessor::next_previous, verdict::PlanVerdict},
    values::Path,
};

const OLD: &str = "linkerdVersion: v1\nidentityTrustAnchorsPEM: old\nproxy: {logLevel: warn, opaquePorts: '25'}";
const NEW: &str = "linkerdVersion: v2\nidentityTrustAnchorsPEM: old\nproxy: {logLevel: warn, opaquePorts: '25,26'}";
/// The document in effect: it has newer trust anchors.
const CURRENT: &str =
    "linkerdVersion: v2\nidentityTrustAnchorsPEM: new\nproxy: {logLevel: trace, opaquePorts: '25,26'}";

fn document(text: &str) -> Document {
    Document::parse(text).unwrap()
}

/// A revision with these values declared over a base.
fn declared(base: &str, values: &[(&[&str], Value)]) -> Predecessor {
    let mut base = Base::new(1, base, None).unwrap();
    for (keys, value) in values {
        base.effective.set(&Path::from(*keys), value.clone());
    }
    Predecessor::Declared(Box::new(base))
}

#[test]
fn only_declared_values_are_taken_back_and_the_installers_and_the_trust_anchors_stay() {
    let debug = [(&["proxy", "logLevel"][..], json!("debug"))];
    for base in [OLD, NEW] {
        let document = declared(base, &debug).over(&document(NEW), &document(CURRENT)).unwrap();
        let expected =
            "linkerdVersion: v2\nidentityTrustAnchorsPEM: new\nproxy: {logLevel: debug, opaquePorts: '25,26'}";
        assert_eq!(document, super::tests::document(expected));
    }
}

#[test]
fn a_version_is_taken_back_only_if_it_was_declared() {
    let version = |predecessor: &Predecessor| {
        let document = predecessor.over(&document(NEW), &document(CURRENT)).unwrap();
        document.get(&Path::from(&["linkerdVersion"][..])).cloned()
    };
    assert_eq!(version(&declared(OLD, &[])), Some(json!("v2")));
    assert_eq!(version(&declared(OLD, &[(&["linkerdVersion"], json!("v0"))])), Some(json!("v0")));
    assert_eq!(version(&Predecessor::Installer), Some(json!("v2")));
}

#[test]
fn declared_variables_are_restored_without_those_of_another_base() {
    let list = [(&["proxy", "additionalEnv"][..], json!([{"name": "OF_BASE"}, {"name": "DECLARED"}]))];
    let predecessor = declared("proxy: {additionalEnv: [{name: OF_BASE}]}", &list);
    let over = |base: &str| predecessor.over(&document(base), &document(base)).unwrap();
    let both = "proxy: {additionalEnv: [{name: OF_BASE}, {name: DECLARED}]}";
    assert_eq!(over("proxy: {additionalEnv: [{name: OF_BASE}]}"), document(both));
    assert_eq!(over("proxy: {}"), document("proxy: {additionalEnv: [{name: DECLARED}]}"));
}

#[test]
fn a_document_that_is_lost_the_same_failed_or_unusable_is_not_restored() {
    let installed = include_str!("../../values/testdata/installed.yaml");
    let base = document(installed);
    let current = declared(installed, &[(&["proxy", "logLevel"], json!("trace"))]).over(&base, &base).unwrap();
    let hash = base.injection_hash().to_string();
    let fallback = |predecessor: &Predecessor, failed: &[String]| {
        predecessor.fallback(&base, &current, failed, &InjectionHashes::default())
    };
    assert_eq!(fallback(&Predecessor::Installer, &[]), Ok(base.clone()));
    assert_eq!(fallback(&Predecessor::Installer, &[hash]), Err(NoFallback::Failed));
    let same = declared(installed, &[(&["proxy", "logLevel"], json!("trace"))]);
    assert_eq!(fallback(&same, &[]), Err(NoFallback::Same));
    let invalid = declared(installed, &[(&["proxy", "uid"], json!("many"))]);
    assert!(matches!(fallback(&invalid, &[]), Err(NoFallback::Unusable(problems)) if problems.len() == 1));
    assert_eq!(fallback(&Predecessor::Lost(7), &[]), Err(NoFallback::Lost(7)));
}

/// Returns the revision of the predecessor after a plan for the document with this injection hash.
fn next(before: &Value, hash: Option<&str>, change: impl FnOnce(&mut ConfigPlan), written: Option<i64>) -> Option<i64> {
    let mut plan = ConfigPlan::only(PlanVerdict::Synced);
    plan.injection_hash = hash.map(str::to_owned);
    change(&mut plan);
    next_previous(&serde_json::from_value(before.clone()).unwrap(), &plan, written, Some("roots"))
}

fn writes(plan: &mut ConfigPlan) {
    use crate::linkerd_config::plan::ConfigMapWrite;
    plan.write = Some(ConfigMapWrite { values: String::new(), hash: String::new(), overwrites_others: false });
}

#[test]
fn the_predecessor_is_the_document_in_effect_before_the_new_one() {
    let before = json!({"injectionHash": "a", "trustRootsSHA256": "roots", "revisions": {"base": 3}});
    assert_eq!(next(&before, Some("b"), writes, Some(3)), Some(3));
    assert_eq!(next(&before, Some("a"), |_| {}, Some(3)), None, "the same document");
    // The first declared document replaces the installer's, or that of another resource.
    assert_eq!(next(&json!({}), Some("b"), writes, None), Some(INSTALLER));
    assert_eq!(next(&json!({}), Some("b"), writes, Some(7)), Some(7));
    assert_eq!(next(&json!({}), Some("b"), |_| {}, Some(7)), None, "a former leader wrote it over an unknown document");
}

#[test]
fn the_predecessor_stays_while_the_document_is_not_proven() {
    let mut before =
        json!({"injectionHash": "b", "trustRootsSHA256": "roots", "revisions": {"base": 4, "previous": 3}});
    assert_eq!(next(&before, Some("b"), |_| {}, Some(4)), Some(3));
    assert_eq!(next(&before, None, |_| {}, Some(4)), Some(3), "a plan without a document");
    assert_eq!(next(&before, Some("a"), |plan| plan.verdict = PlanVerdict::Restored, Some(4)), Some(3));
    // b was in force, so a rollback of c restores it, even if workloads failed with it.
    before["rollout"] = json!({"workloads": {"failed": 1}});
    assert_eq!(next(&before, Some("c"), writes, Some(4)), Some(4));
    // Restarts for new trust anchors say nothing about the document.
    before["trustRootsSHA256"] = json!("other roots");
    assert_eq!(next(&before, Some("b"), |_| {}, Some(4)), None);
}

#[test]
fn a_document_that_the_injectors_have_not_accepted_is_no_predecessor() {
    let before = |reason: &str, good: &str| {
        let condition = json!({"type": "InjectorSynced", "status": "False", "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        json!({"injectionHash": "b", "trustRootsSHA256": "roots", "conditions": [condition],
            "revisions": {"base": 4, "previous": 3, "lastKnownGoodHash": good}})
    };
    for reason in ["Propagating", "ProbeFailed", "NoReadyReplicas", "Denied"] {
        assert_eq!(next(&before(reason, "a"), Some("c"), writes, Some(4)), Some(3), "{reason}");
        assert_eq!(next(&before(reason, "b"), Some("c"), writes, Some(4)), Some(4), "accepted, and {reason} since");
    }
    // A document with a timeout was not denied. Without probes, no document is ever recorded as accepted.
    assert_eq!(next(&before("Timeout", "a"), Some("c"), writes, Some(4)), Some(4));
    assert_eq!(next(&before("ProbeDisabled", "a"), Some("c"), writes, Some(4)), Some(4));
    // New trust anchors end the trial of an accepted document only.
    let mut rotated = before("Propagating", "a");
    rotated["trustRootsSHA256"] = json!("other roots");
    assert_eq!(next(&rotated, Some("b"), |_| {}, Some(4)), Some(3));
}

#[test]
fn the_config_map_says_which_document_is_in_force_whatever_the_status_says() {
    // After a rollback from 4 to 3, the resource was suspended, or had a typo.
    let before = json!({"injectionHash": "a", "trustRootsSHA256": "roots", "revisions": {"base": 4, "previous": 3}});
    assert_eq!(next(&before, Some("c"), writes, Some(3)), Some(3));
    assert_eq!(next(&before, Some("c"), writes, Some(INSTALLER)), Some(INSTALLER));
    assert_eq!(next(&before, Some("c"), writes, None), Some(3), "the ConfigMap was installed again");
    assert_eq!(next(&before, Some("c"), |_| {}, Some(5)), Some(4), "a former leader wrote 5 and no status");
}

#[test]
fn after_a_rollback_the_predecessor_stays() {
    let condition = json!({"type": "ConfigMapSynced", "status": "False", "reason": "Restored", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let before = |revisions: Value| json!({"injectionHash": "a", "revisions": revisions, "conditions": [condition]});
    let restored = |plan: &mut ConfigPlan| plan.verdict = PlanVerdict::Restored;
    assert_eq!(next(&before(json!({"base": 4, "previous": 3})), Some("c"), writes, Some(4)), Some(3));
    assert_eq!(next(&before(json!({"base": 4, "previous": 3})), Some("a"), restored, Some(4)), Some(3));
    // The status of an older version of the operator.
    let older = json!({"base": 4, "lastKnownGood": 2, "lastRolledOut": 1});
    assert_eq!(next(&before(older), Some("a"), restored, Some(4)), Some(1));
    assert_eq!(next(&before(json!({"base": 4})), Some("a"), restored, Some(4)), Some(INSTALLER));
}
