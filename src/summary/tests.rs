use serde_json::{Value, json};

use super::*;
use crate::cluster::{Problems, Projected};

const NOW: &str = "2026-11-27T12:00:00Z";

fn config(spec: &Value, conditions: &Value, rollout: &Value) -> LinkerdConfig {
    let status = json!({"observedGeneration": 1, "active": true, "conditions": conditions, "rollout": rollout});
    let object = json!({"metadata": {"name": "mesh", "generation": 1}, "spec": spec, "status": status});
    LinkerdConfig::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    let time = "2026-11-27T11:00:00Z";
    json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": time})
}

fn summary(config: &LinkerdConfig) -> ConfigSummary {
    ConfigSummary::new(config, true, NOW.parse().unwrap())
}

#[test]
fn a_halted_rollout_is_the_sentence_although_ready_is_true() {
    let conditions = json!([
        condition("Accepted", "True", "Accepted", "the resource is in effect"),
        condition("Ready", "True", "Reconciled", "the declared configuration is in effect"),
        condition("RolloutComplete", "False", "Halted", "1 workload failed"),
        condition("Stalled", "True", "RolloutHalted", "1 workload failed: ads/Deployment/web"),
    ]);
    let rollout = json!({"phase": "Halted", "workloads": {"selected": 9, "updated": 3, "failed": 1, "pending": 5}});
    let summary = summary(&config(&json!({}), &conditions, &rollout));
    assert_eq!(summary.attention, Attention::Problem);
    assert_eq!(summary.sentence, "1 workload failed: ads/Deployment/web");
    assert_eq!(summary.command.as_deref(), Some("linkerd-operator rollout retry mesh"));
    assert_eq!(summary.rollout.unwrap().progress(), "3 of 9 workloads updated, 5 pending, 1 failed");
}

#[test]
fn a_paused_rollout_waits_for_its_resumption() {
    let conditions = json!([
        condition("Accepted", "True", "Accepted", "the resource is in effect"),
        condition("Ready", "True", "Reconciled", "the declared configuration is in effect"),
        condition("RolloutComplete", "False", "Paused", "spec.rollout.paused is true; 5 workloads wait"),
    ]);
    let summary = summary(&config(&json!({}), &conditions, &json!({"phase": "Paused"})));
    assert_eq!((summary.attention, &*summary.reason), (Attention::Waiting, "Paused"));
    assert_eq!(summary.command.as_deref(), Some("linkerd-operator rollout resume mesh"));
}

#[test]
fn a_closed_window_says_when_it_opens() {
    let conditions = json!([
        condition("Ready", "True", "Reconciled", "the declared configuration is in effect"),
        condition("RolloutComplete", "False", "OutsideWindow", "the maintenance window is closed"),
    ]);
    let rollout = json!({"phase": "Waiting", "nextWindow": "2026-11-28T02:00:00Z"});
    let summary = summary(&config(&json!({}), &conditions, &rollout));
    assert_eq!(summary.next.as_deref(), Some("Wait: restarts begin in 14 h, at 2026-11-28T02:00:00Z."));
}

#[test]
fn a_resource_that_observes_says_that_it_writes_nothing() {
    let conditions = json!([
        condition("Accepted", "True", "Accepted", "mode is Observe"),
        condition("ConfigMapSynced", "False", "Observing", "would change proxy.logLevel"),
        condition("Ready", "True", "Observing", "would change proxy.logLevel"),
    ]);
    let summary = summary(&config(&json!({"mode": "Observe"}), &conditions, &json!({})));
    assert_eq!(summary.attention, Attention::Done);
    assert_eq!(summary.sentence, "it observes and writes nothing: would change proxy.logLevel");
    assert_eq!(summary.command.as_deref(), Some("linkerd-operator explain mesh"));
}

#[test]
fn a_resource_in_reserve_needs_no_attention() {
    let conditions = json!([condition("Accepted", "False", "Conflicted", "LinkerdConfig a is in effect")]);
    let config = config(&json!({}), &conditions, &json!({}));
    let summary = ConfigSummary::new(&config, false, NOW.parse().unwrap());
    assert_eq!(summary.attention, Attention::Done);
    assert_eq!(summary.sentence, "in reserve: LinkerdConfig a is in effect");
    assert!(summary.rollout.is_none() && summary.next.is_none());
}

#[test]
fn a_change_that_was_not_processed_is_not_judged_by_the_conditions_of_the_one_before() {
    let mut config = config(&json!({}), &json!([condition("Ready", "True", "Reconciled", "in effect")]), &json!({}));
    config.generation = 2;
    let summary = summary(&config);
    assert_eq!(summary.attention, Attention::Progressing);
    assert!(summary.sentence.contains("has not processed"), "{}", summary.sentence);
}

#[test]
fn a_warning_stands_beside_the_sentence() {
    let conditions = json!([
        condition("Ready", "True", "Reconciled", "the declared configuration is in effect"),
        condition("IneffectiveValues", "True", "NoEffect", "spec.values.proxy.x has no effect"),
    ]);
    let summary = summary(&config(&json!({}), &conditions, &json!({})));
    assert_eq!(summary.attention, Attention::Done);
    assert_eq!(summary.warnings, ["NoEffect: spec.values.proxy.x has no effect"]);
}

#[test]
fn the_remaining_time_is_that_of_the_places_or_of_the_interval() {
    let seconds = |rollout: Value, remaining: usize| {
        let config = config(&json!({ "rollout": rollout }), &json!([]), &json!({}));
        at_least(&config.spec.rollout, remaining, 200).map(|time| time.as_secs())
    };
    // One place, for 30 s each.
    assert_eq!(seconds(json!({}), 167), Some(167 * 30));
    // Ten places for 30 s, but a start only each 10 s.
    assert_eq!(seconds(json!({"maxConcurrent": 10}), 167), Some(166 * 10 + 30));
    assert_eq!(seconds(json!({"maxConcurrent": "10%", "interval": "0s"}), 167), Some(9 * 30));
    assert_eq!(seconds(json!({}), 0), None);
}
