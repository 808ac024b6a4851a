//! A status can always be written: it stays small, whatever other writers put into the objects that it is about.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::{
    api::linkerd_config::{DriftWindow, RolloutFailure, RolloutWorkload, annotations::RETRY_ANNOTATION},
    cluster::{Problems, Projected},
    linkerd_config::documents::drift::{Drift, with_drift_window},
    values::{Path, Problem},
};

/// A text that JSON makes six times as long.
fn hostile(length: usize) -> String {
    "\u{1}".repeat(length)
}

fn config() -> LinkerdConfig {
    let metadata =
        json!({"name": "mesh", "uid": "uid", "generation": 1, "annotations": {RETRY_ANNOTATION: hostile(200_000)}});
    LinkerdConfig::project(
        serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap(),
        &mut Problems::default(),
    )
}

fn bytes(status: &LinkerdConfigStatus) -> usize {
    serde_json::to_vec(status).unwrap().len()
}

fn status_of(plan: ConfigPlan, failure: Option<String>) -> LinkerdConfigStatus {
    let mut before = LinkerdConfigStatus::default();
    for _ in 0..20 {
        before = with_drift_window(&before, Timestamp::UNIX_EPOCH).unwrap_or(before);
        let windows = &mut before.drift.get_or_insert_default().windows;
        windows.iter_mut().for_each(|window: &mut DriftWindow| window.to = Some(Time(Timestamp::UNIX_EPOCH)));
    }
    let certificate = "-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----\n".repeat(1000);
    let roots = json!({"metadata": {"name": "linkerd-identity-trust-roots"}, "data": {"ca-bundle.crt": certificate}});
    let roots = ConfigMap::project(serde_json::from_value(roots).unwrap(), &mut Problems::default());
    let input = ReconcileInput {
        config: Arc::new(config()),
        before: Arc::default(),
        active: None,
        live: None,
        trust_roots: Some(Arc::new(roots)),
        trust: None,
        canary_map: None,
    };
    let outcome = ReconcileOutcome { plan, base_revision: Some(1), ..ReconcileOutcome::default() };
    let failure = failure.map(|message| {
        let status = json!({"status": "Failure", "message": message, "reason": "InternalError", "code": 500});
        WriteError::Refused(serde_json::from_value(status).unwrap())
    });
    let (failure, now) = (failure.as_ref(), Timestamp::UNIX_EPOCH);
    let facts = Facts { input: &input, before: &before, outcome: &outcome, failure, canary: None, now };
    active_status(&facts, None, false, Some("0123abcd"))
}

#[test]
fn a_status_of_hostile_texts_is_small() {
    let path = |number: usize| -> Path {
        let keys: Vec<String> = (0..60).map(|_| format!("{number}{}", hostile(5000))).collect();
        keys.iter().map(String::as_str).collect()
    };
    let problem = |number| Problem { path: path(number), value: hostile(100_000), reason: hostile(100_000) };
    let drift =
        Drift { manager: hostile(128), paths: (0..100).map(path).collect(), reverted: true, affects_injection: true };
    for verdict in [
        PlanVerdict::Invalid((0..100).map(problem).collect()),
        PlanVerdict::ValidationFailed((0..100).map(problem).collect()),
        PlanVerdict::Observing((0..100).map(path).collect()),
        PlanVerdict::InvalidBase(hostile(1_000_000)),
        PlanVerdict::RepeatedDrift,
    ] {
        for failure in [None, Some(hostile(1_000_000))] {
            let plan = ConfigPlan {
                drift: Some(drift.clone()),
                proxy_version: Some(hostile(400_000)),
                ..ConfigPlan::only(verdict.clone())
            };
            let status = status_of(plan, failure);
            assert!(bytes(&status) < 128 << 10, "{} bytes", bytes(&status));
            assert_eq!(status.drift.unwrap().windows.len(), 5);
        }
    }
}

#[test]
fn a_status_that_is_too_large_loses_its_lists_of_workloads() {
    let workload = RolloutWorkload { kind: "Deployment".to_owned(), namespace: hostile(63), name: hostile(253) };
    let failure = |message| RolloutFailure { message, ..RolloutFailure::default() };
    let status = |message: String| {
        let rollout = RolloutStatus {
            updating: vec![workload.clone(); 20],
            failures: vec![failure(message); 20],
            ..RolloutStatus::default()
        };
        LinkerdConfigStatus { rollout: Some(rollout), ..LinkerdConfigStatus::default() }
    };
    let ordinary = status(hostile(512));
    assert_eq!(within_limit(ordinary.clone()), ordinary);
    let bounded = within_limit(status(hostile(100_000)));
    assert!(bytes(&bounded) < 1024 && bounded.rollout.is_some(), "{} bytes", bytes(&bounded));
}

#[test]
fn a_retry_annotation_that_is_too_long_is_recognized_again() {
    let config = config();
    let status = status_of(ConfigPlan::only(PlanVerdict::Synced), None);
    assert!(is_current(&config, &status));
    let mut other = config;
    other.annotations = Arc::new([(RETRY_ANNOTATION.into(), hostile(200_001).into())].into_iter().collect());
    assert!(!is_current(&other, &status));
}
