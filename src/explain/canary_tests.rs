use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::explain::{
    output::ExplainOutput,
    print::text,
    testing::{config, input},
};

const SINCE: &str = "2026-11-25T12:00:00Z";

fn spec(canary: &Value) -> Value {
    let mut whole = json!({"namespaceSelector": {"matchLabels": {"canary": "yes"}}, "soak": "30m"});
    json_patch::merge(&mut whole, canary);
    json!({"canary": whole, "proxy": {"logLevel": "debug"}})
}

/// The hash of the declared document.
fn hash(spec: &Value) -> String {
    ExplainOutput::new(&input(spec), false).canary.unwrap().hash
}

/// The output for a resource with this phase of its canary; `hash` is that of the document in the status.
fn output(spec: &Value, phase: &str, hash: &str) -> ExplainOutput {
    let mut input = input(spec);
    let mut explained = LinkerdConfig::clone(&config("mesh", spec));
    let status = json!({"revisions": {"base": 1}, "observedGeneration": 0, "rollout": {}, "canary": {
        "phase": phase, "hash": hash, "since": SINCE, "namespaces": ["app", "shop"], "message": "so far",
    }});
    explained.status = Arc::new(serde_json::from_value(status).unwrap());
    input.config = Arc::new(explained);
    ExplainOutput::new(&input, false)
}

fn line(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(&format!("{name}:"))).map(|line| line.trim().to_owned())
}

/// The lines about the canary.
fn lines(spec: &Value, phase: &str) -> [String; 4] {
    let text = text(&output(spec, phase, &hash(spec)));
    ["Canary", "Canary Pods", "Promotion", "New Pods"].map(|name| line(&text, name).unwrap())
}

#[test]
fn a_manifest_says_which_namespaces_would_get_it_first() {
    let expressions = json!([
        {"key": "team", "operator": "In", "values": ["a", "b"]},
        {"key": "tier", "operator": "NotIn", "values": ["db"]},
        {"key": "new", "operator": "Exists"},
        {"key": "old", "operator": "DoesNotExist"},
    ]);
    let spec = spec(&json!({"namespaceSelector": {"matchExpressions": expressions}}));
    let output = ExplainOutput::new(&input(&spec), false);
    let text = text(&output);
    let expected = "\
Verdict:        Canary: 1 value would change for all namespaces once promoted
Canary:         not begun: the configuration would be tried first in namespaces with the labels canary=yes,team in (a,b),tier notin (db),new,!old
Canary Pods:    their new Pods would get: proxy.logLevel \"debug\"; all other namespaces would keep the values in LIVE
Promotion:      automatic, once every selected workload of the canary namespaces has run with it for 30m
New Pods:       no change before the configuration is promoted

";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("~   proxy.logLevel"), "{text}");
    assert!(output.is_different() && output.is_accepted());
}

#[test]
fn an_active_canary_says_who_has_the_configuration_and_when_it_is_promoted() {
    let (automatic, manual) = (spec(&json!({})), spec(&json!({"promotion": "Manual"})));
    let command = "linkerd-operator rollout promote mesh".to_owned();
    let once = "every selected workload of the canary namespaces has run with it for 30m";
    for (spec, phase, promotion) in [
        (&automatic, "Progressing", format!("automatic, once {once}")),
        (&manual, "Progressing", format!("by hand, after {once}")),
        (&automatic, "Soaking", "automatic, not before 2026-11-25T12:30:00Z".to_owned()),
        (&manual, "Soaking", "by hand; the soak ends at 2026-11-25T12:30:00Z".to_owned()),
        (&automatic, "AwaitingPromotion", "automatic, once spec.rollout.paused is false".to_owned()),
        (&manual, "AwaitingPromotion", "by hand".to_owned()),
    ] {
        let expected = [
            format!("{phase} since {SINCE}: so far"),
            "only new Pods in app, shop get: proxy.logLevel \"debug\"; all other namespaces have the values in LIVE"
                .to_owned(),
            format!("{promotion}; at once with: {command}"),
            "no change before the configuration is promoted".to_owned(),
        ];
        assert_eq!(lines(spec, phase), expected);
    }
}

#[test]
fn an_ignored_annotation_is_named_with_the_command_that_replaces_it() {
    let spec = spec(&json!({}));
    let mut input = input(&spec);
    let mut explained = LinkerdConfig::clone(&config("mesh", &spec));
    let canary = json!({"phase": "Soaking", "hash": hash(&spec), "since": SINCE, "promoteIgnored": true});
    explained.status = Arc::new(serde_json::from_value(json!({"rollout": {}, "canary": canary})).unwrap());
    input.config = Arc::new(explained);
    let promotion = line(&text(&ExplainOutput::new(&input, false)), "Promotion");
    assert_eq!(
        promotion.as_deref(),
        Some(
            "automatic, not before 2026-11-25T12:30:00Z; the annotation is from before the canary and is ignored; at once \
             with: linkerd-operator rollout promote mesh"
        )
    );
}

#[test]
fn a_canary_that_no_namespace_has_says_so() {
    let spec = spec(&json!({}));
    let none = "no namespace has the configuration; all have the values in LIVE";
    for phase in ["Waiting", "Unsupported"] {
        let [state, pods, promotion, _] = lines(&spec, phase);
        assert_eq!((state, &*pods), (format!("{phase} since {SINCE}: so far"), none));
        assert!(
            promotion.starts_with("automatic, once") && promotion.contains("at once with: linkerd-operator"),
            "{promotion}"
        );
    }
    let [state, pods, promotion, _] = lines(&spec, "Failed");
    assert_eq!((state, &*pods), (format!("Failed since {SINCE}: so far"), none));
    assert_eq!(promotion, "none, unless the configuration is retried");
}

#[test]
fn a_status_about_another_configuration_is_not_shown() {
    let spec = spec(&json!({}));
    let other = output(&spec, "Soaking", "fedcba9876543210").canary.unwrap();
    assert_eq!((other.phase, other.active, other.since, other.namespaces), (None, false, None, Vec::new()));
    // Other declared values retry a configuration that failed. An earlier version of the operator stored no hash of them,
    // so any change of the resource does.
    let mut retried = input(&spec);
    let mut explained = LinkerdConfig::clone(&config("mesh", &spec));
    explained.generation = 7;
    let status = output(&spec, "Failed", &hash(&spec)).canary.unwrap();
    let canary = json!({"phase": "Failed", "hash": status.hash});
    explained.status =
        Arc::new(serde_json::from_value(json!({"observedGeneration": 6, "rollout": {}, "canary": canary})).unwrap());
    retried.config = Arc::new(explained);
    assert_eq!(ExplainOutput::new(&retried, false).canary.unwrap().phase, None);
}

#[test]
fn without_a_document_to_hold_back_there_is_no_canary() {
    let canary = spec(&json!({}))["canary"].clone();
    for spec in [
        json!({"proxy": {"logLevel": "debug"}}),
        json!({ "canary": canary }),
        json!({"canary": canary, "values": {"heartbeatSchedule": "0 0 * * *"}}),
        json!({"canary": canary, "mode": "Observe", "proxy": {"logLevel": "debug"}}),
        json!({"canary": canary, "mode": "Suspend", "proxy": {"logLevel": "debug"}}),
    ] {
        let output = ExplainOutput::new(&input(&spec), false);
        assert!(output.canary.is_none() && line(&text(&output), "Canary").is_none(), "{spec}");
    }
}

#[test]
fn the_json_has_what_the_text_has() {
    let spec = spec(&json!({}));
    let hash = hash(&spec);
    let output = serde_json::to_value(output(&spec, "Soaking", &hash)).unwrap();
    assert_eq!((&output["reason"], &output["newPods"]), (&json!("Canary"), &json!({"changes": []})));
    assert_eq!(
        output["canary"],
        json!({
            "phase": "Soaking", "active": true, "hash": hash, "since": SINCE, "message": "so far",
            "namespaces": ["app", "shop"], "namespaceSelector": {"matchLabels": {"canary": "yes"}}, "soak": "30m",
            "soaksUntil": "2026-11-25T12:30:00Z", "promotion": "Automatic",
            "promoteCommand": "linkerd-operator rollout promote mesh",
            "changes": [{"path": "proxy.logLevel", "value": "debug"}],
        })
    );
}
