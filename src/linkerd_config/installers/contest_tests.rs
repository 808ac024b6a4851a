//! Tests of the gate of rollouts and the condition Stalled while another writer keeps changing the ConfigMap.

use serde_json::json;

use super::*;
use crate::{
    api::linkerd_config::Mode,
    cluster::{Problems, Projected},
    linkerd_config::rollout_target::{RolloutContext, rollout_target},
};

const NOW: &str = "2026-01-01T00:00:00Z";

/// The status with the conditions of a verdict, after a status with these conditions.
fn status(before: &LinkerdConfigStatus, verdict: &PlanVerdict, is_contested: bool) -> LinkerdConfigStatus {
    let target = NamespacedName::new("linkerd", "linkerd-config");
    let mut rows = condition_rows(&target, Mode::Enforce, verdict, None, None);
    rows.insert(
        2,
        ConditionRow::new(ConditionType::InjectorSynced, Some(true), ConditionReason::AllReplicasCurrent, ""),
    );
    let rows = if is_contested { add_contest(rows, before, verdict) } else { rows };
    LinkerdConfigStatus {
        conditions: to_conditions(&rows, before, 1, NOW.parse().unwrap()),
        ..LinkerdConfigStatus::default()
    }
}

#[test]
fn a_resource_that_observes_says_that_nothing_is_written_whatever_the_document_is() {
    let target = NamespacedName::new("linkerd", "linkerd-config");
    for (mode, verdict, expected) in [
        (Mode::Enforce, PlanVerdict::Synced, "the resource is in effect"),
        (
            Mode::Observe,
            PlanVerdict::Synced,
            "mode is Observe: the ConfigMap is compared with the resource, and nothing is written",
        ),
        (
            Mode::Observe,
            PlanVerdict::Observing(Vec::new()),
            "mode is Observe: the ConfigMap is compared with the resource, and nothing is written",
        ),
    ] {
        let rows = condition_rows(&target, mode, &verdict, None, None);
        let conditions = to_conditions(&rows, &LinkerdConfigStatus::default(), 1, NOW.parse().unwrap());
        assert_eq!((&*conditions[0].type_, &*conditions[0].message), ("Accepted", expected), "{verdict:?}");
    }
}

fn reason_of(status: &LinkerdConfigStatus, type_: ConditionType) -> Option<&str> {
    status.condition(type_).map(|condition| condition.reason.as_str())
}

fn gate(status: &LinkerdConfigStatus) -> Option<&'static str> {
    gate_of(&json!({}), status)
}

fn gate_of(spec: &serde_json::Value, status: &LinkerdConfigStatus) -> Option<&'static str> {
    let object = json!({"metadata": {"name": "mesh"}, "spec": spec});
    let config = LinkerdConfig::project(serde_json::from_value(object).unwrap(), &mut Problems::default());
    let context = RolloutContext { term: 1, operator_namespace: "operator".into(), trust_bundle: None, canary: None };
    rollout_target(&config, status, &context).gates.closed.map(|gate| gate.reason.as_str())
}

#[test]
fn a_contested_config_map_stays_stalled_and_restarts_wait_although_the_declared_document_is_in_place() {
    let new = LinkerdConfigStatus::default();
    for (verdict, reason) in [
        (PlanVerdict::InstallerReverts("argocd-controller".into()), "InstallerReverts"),
        (PlanVerdict::RepeatedDrift, "RepeatedDrift"),
    ] {
        let paused = status(&new, &verdict, true);
        assert_eq!(reason_of(&paused, ConditionType::Stalled), Some(reason));
        assert_eq!(gate(&paused), Some("WaitingForConfigMap"));
        let between = status(&paused, &PlanVerdict::Synced, true);
        assert_eq!(reason_of(&between, ConditionType::ConfigMapSynced), Some("Synced"));
        assert_eq!(reason_of(&between, ConditionType::Stalled), Some(reason));
        assert_eq!(between.message(ConditionType::Stalled), paused.message(ConditionType::Stalled));
        assert_eq!(gate(&between), Some("WaitingForConfigMap"));
        let over = status(&between, &PlanVerdict::Synced, false);
        assert_eq!((reason_of(&over, ConditionType::Stalled), gate(&over)), (None, None));
    }
}

#[test]
fn a_contest_is_not_reported_for_another_reason_to_stall_or_another_mode() {
    let paused = status(&LinkerdConfigStatus::default(), &PlanVerdict::InstallerReverts("helm".into()), true);
    for verdict in [PlanVerdict::Suspended, PlanVerdict::Observing(Vec::new()), PlanVerdict::Drifted] {
        assert_eq!(reason_of(&status(&paused, &verdict, true), ConditionType::Stalled), None, "{verdict:?}");
    }
    let invalid = status(&paused, &PlanVerdict::InvalidBase("unreadable".into()), true);
    assert_eq!(reason_of(&invalid, ConditionType::Stalled), Some("InvalidBase"));
    let other = status(&invalid, &PlanVerdict::Synced, true);
    assert_eq!(reason_of(&other, ConditionType::Stalled), None, "the reason before was another one");
}

#[test]
fn the_condition_of_a_contest_names_the_installer_and_the_setting() {
    let verdict = PlanVerdict::InstallerReverts("argocd-controller".into());
    let status = status(&LinkerdConfigStatus::default(), &verdict, true);
    let message = status.message(ConditionType::Ready);
    assert_eq!(
        message,
        "argocd-controller keeps writing its own document to ConfigMap linkerd/linkerd-config, so the declared values \
         do not stay in effect: add /data/values of this ConfigMap to spec.ignoreDifferences of the Argo CD Application; \
         see docs/src/guides/gitops.md"
    );
}

#[test]
fn restarts_wait_until_the_injectors_use_the_declared_document() {
    let with = |conditions: &[(&str, &str, &str)]| -> LinkerdConfigStatus {
        let condition = |(of, status, reason): &(&str, &str, &str)| json!({"type": of, "status": status, "reason": reason, "message": "", "lastTransitionTime": NOW});
        serde_json::from_value(json!({"conditions": conditions.iter().map(condition).collect::<Vec<_>>()})).unwrap()
    };
    let (synced, drifted) = (("ConfigMapSynced", "True", "Synced"), ("ConfigMapSynced", "False", "Drifted"));
    let (current, late) = (("InjectorSynced", "True", "AllReplicasCurrent"), ("InjectorSynced", "False", "Timeout"));
    for (spec, conditions, expected) in [
        (json!({}), [synced, current], None),
        (json!({"rollout": {"policy": "Off"}}), [synced, current], Some("RolloutDisabled")),
        (json!({"mode": "Observe"}), [synced, current], Some("RolloutDisabled")),
        (json!({}), [drifted, current], Some("WaitingForConfigMap")),
        (json!({"drift": {"action": "Report"}}), [drifted, current], None),
        (json!({}), [synced, late], Some("WaitingForInjector")),
        (json!({"injectorSync": {"onTimeout": "Proceed"}}), [synced, late], None),
    ] {
        assert_eq!(gate_of(&spec, &with(&conditions)), expected, "{spec} {conditions:?}");
    }
}
