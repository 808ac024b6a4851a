use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::{
    api::linkerd_config::{RolloutPods, RolloutWorkloads},
    rollout::{
        gate::Gate,
        target::TimeRange,
        testing::{WANTED, rollout_target, time},
        totals::CanaryTotals,
    },
};

fn progress(
    target: &RolloutTarget,
    phase: RolloutPhase,
    reason: ConditionReason,
    workloads: RolloutWorkloads,
) -> RolloutProgress {
    RolloutProgress {
        target: Arc::new(target.clone()),
        phase,
        complete: CompleteCondition { holds: phase == RolloutPhase::Complete, reason, message: "so".to_owned() },
        workloads,
        pods: RolloutPods::default(),
        updating: Vec::new(),
        failures: Vec::new(),
        skipped: Vec::new(),
        next_window: None,
        replaced: None,
        suspects: false,
        no_progress: false,
        requires_rollback: false,
        canary: CanaryTotals::default(),
    }
}

fn add_rollout(
    after: LinkerdConfigStatus,
    before: &LinkerdConfigStatus,
    target: &RolloutTarget,
    progress: Option<&RolloutProgress>,
    revision: Option<i64>,
    now: Timestamp,
) -> LinkerdConfigStatus {
    RolloutPart { before, target, progress, revision, rollback_refused: None, now }.add_to(after)
}

fn status_after(
    before: &LinkerdConfigStatus,
    target: &RolloutTarget,
    progress: Option<&RolloutProgress>,
    now: &str,
) -> LinkerdConfigStatus {
    let after = LinkerdConfigStatus { conditions: Vec::new(), ..before.clone() };
    add_rollout(after, before, target, progress, Some(7), time(now))
}

fn complete(status: &LinkerdConfigStatus) -> (&str, &str) {
    let condition = status.conditions.iter().find(|condition| condition.type_ == "RolloutComplete").unwrap();
    (&condition.status, &condition.reason)
}

fn summary(status: &LinkerdConfigStatus) -> Option<&str> {
    status.rollout.as_ref()?.summary.as_deref()
}

#[test]
fn results_of_another_hash_are_not_reported() {
    let mut target = rollout_target(&json!({}));
    let workloads = RolloutWorkloads { selected: 3, updated: 3, ..RolloutWorkloads::default() };
    let done = progress(&target, RolloutPhase::Complete, ConditionReason::UpToDate, workloads);
    let status = status_after(&LinkerdConfigStatus::default(), &target, Some(&done), "12:00:00");
    assert_eq!(complete(&status), ("True", "UpToDate"));
    // A new leader has not assessed the workloads yet.
    let next = status_after(&status, &target, None, "12:01:00");
    assert_eq!((complete(&next), summary(&next)), (("True", "UpToDate"), Some("3/3")));
    target.proxies.injection_hash = Some("another".into());
    let other = status_after(&status, &target, None, "12:01:00");
    assert_eq!((complete(&other), summary(&other)), (("False", "Progressing"), None));
    target.gates.closed = Some(Gate { reason: ConditionReason::RolloutDisabled, message: "off".to_owned() });
    assert_eq!(complete(&status_after(&status, &target, None, "12:01:00")), ("False", "RolloutDisabled"));
}

#[test]
fn success_of_another_generation_is_not_reported_before_the_workloads_are_assessed() {
    let target = rollout_target(&json!({}));
    let workloads = RolloutWorkloads { selected: 3, updated: 3, updating: 1, ..RolloutWorkloads::default() };
    let of_generation =
        |generation| LinkerdConfigStatus { observed_generation: Some(generation), ..Default::default() };
    let status_of = |before: &LinkerdConfigStatus, generation, progress: Option<&RolloutProgress>, now| {
        let after = LinkerdConfigStatus { rollout: before.rollout.clone(), ..of_generation(generation) };
        add_rollout(after, before, &target, progress, Some(7), time(now))
    };
    let generation = |status: &LinkerdConfigStatus| {
        status.conditions.iter().find(|condition| condition.type_ == "RolloutComplete").unwrap().observed_generation
    };
    let done = progress(&target, RolloutPhase::Complete, ConditionReason::UpToDate, workloads);
    let status = status_of(&of_generation(1), 1, Some(&done), "12:00:00");
    let next = status_of(&status, 2, None, "12:01:00");
    assert_eq!((complete(&next), generation(&next), summary(&next)), (("False", "Progressing"), Some(2), None));
    let rollout = next.rollout.clone().unwrap();
    assert_eq!((rollout.phase.as_deref(), next.revisions.clone()), (Some("Waiting"), None));
    let assessed = status_of(&next, 2, Some(&done), "12:02:00");
    assert_eq!((complete(&assessed), generation(&assessed)), (("True", "UpToDate"), Some(2)));
    let completed = |status: &LinkerdConfigStatus| status.rollout.clone().unwrap().completed_at;
    assert_eq!(completed(&assessed), completed(&status), "it does not complete a second time");

    let paused = progress(&target, RolloutPhase::Paused, ConditionReason::Paused, workloads);
    let status = status_of(&of_generation(1), 1, Some(&paused), "12:00:00");
    let next = status_of(&status, 2, None, "12:01:00");
    assert_eq!((complete(&next), generation(&next), summary(&next)), (("False", "Paused"), Some(1), Some("3/3")));
}

#[test]
fn a_rollout_starts_once_and_completes_once() {
    let target = rollout_target(&json!({}));
    let workloads =
        |updated, updating| RolloutWorkloads { selected: 3, updated, updating, ..RolloutWorkloads::default() };
    let mut status = LinkerdConfigStatus::default();
    let mut times = Vec::new();
    for (phase, reason, workloads, now) in [
        (RolloutPhase::Waiting, ConditionReason::OutsideWindow, workloads(0, 0), "12:00:00"),
        (RolloutPhase::Progressing, ConditionReason::Progressing, workloads(0, 1), "12:00:01"),
        (RolloutPhase::Progressing, ConditionReason::Progressing, workloads(2, 1), "12:00:02"),
        (RolloutPhase::Complete, ConditionReason::UpToDate, workloads(3, 0), "12:00:03"),
        (RolloutPhase::Complete, ConditionReason::UpToDate, workloads(3, 0), "12:00:04"),
    ] {
        status = status_after(&status, &target, Some(&progress(&target, phase, reason, workloads)), now);
        let rollout = status.rollout.clone().unwrap();
        let second = |time: Option<Time>| time.map(|time| time.0.as_second() % 60);
        times.push((second(rollout.started_at), second(rollout.completed_at), rollout.summary.unwrap()));
    }
    let expected = [
        (None, None, "0/3"),
        (Some(1), None, "0/3"),
        (Some(1), None, "2/3"),
        (Some(1), Some(3), "3/3"),
        (Some(1), Some(3), "3/3"),
    ];
    assert_eq!(times, expected.map(|(started, completed, summary)| (started, completed, summary.to_owned())));
    assert_eq!(status.revisions.unwrap().last_rolled_out, Some(7));
}

#[test]
fn a_halted_or_rolled_back_rollout_does_not_update_the_last_revision() {
    let mut target = rollout_target(&json!({}));
    let halted = progress(&target, RolloutPhase::Halted, ConditionReason::Halted, RolloutWorkloads::default());
    let status = status_after(&LinkerdConfigStatus::default(), &target, Some(&halted), "12:00:00");
    assert_eq!(status.revisions, None);
    assert!(status.conditions.iter().any(|it| it.type_ == "Stalled" && it.reason == "RolloutHalted"), "{status:?}");
    target.rolled_back = Some(RolloutKey::from(WANTED));
    let done = progress(&target, RolloutPhase::Complete, ConditionReason::UpToDate, RolloutWorkloads::default());
    assert_eq!(status_after(&LinkerdConfigStatus::default(), &target, Some(&done), "12:00:00").revisions, None);
}

#[test]
fn a_complete_rollout_of_another_document_is_none_of_the_declared_one() {
    let mut target = rollout_target(&json!({}));
    let done = progress(&target, RolloutPhase::Complete, ConditionReason::UpToDate, RolloutWorkloads::default());
    let complete = |target: &RolloutTarget, progress, before: &LinkerdConfigStatus| {
        let after = LinkerdConfigStatus { observed_generation: Some(1), ..LinkerdConfigStatus::default() };
        add_rollout(after, before, target, progress, Some(7), time("12:00:00"))
    };
    let declared = complete(&target, Some(&done), &LinkerdConfigStatus::default());
    assert_eq!(declared.revisions.clone().and_then(|revisions| revisions.last_rolled_out), Some(7));
    for (reason, message) in
        [(ConditionReason::Canary, ""), (ConditionReason::RolledBack, ""), (ConditionReason::WaitingForConfigMap, "")]
    {
        target.gates.undeclared = Some(Gate { reason, message: message.to_owned() });
        // Also before the engine knows the new target.
        for progress in [Some(&done), None] {
            let after = complete(&target, progress, &declared);
            let condition = after.conditions.iter().find(|it| it.type_ == "RolloutComplete").unwrap();
            assert_eq!(condition.status, "False", "{after:?}");
            assert_eq!(after.rollout.unwrap().phase.as_deref(), Some("Waiting"));
            assert_eq!(after.revisions, None);
            assert!(progress.is_none() || condition.reason == reason.as_str(), "{condition:?}");
        }
    }
}

#[test]
fn a_rollback_is_forgotten_with_the_document_that_failed_also_before_the_workloads_are_assessed() {
    let mut target = rollout_target(&json!({}));
    let hash = RolloutKey::of(WANTED, target.proxies.trust.key(), None).to_string();
    let condition = json!({"type": "RolloutComplete", "status": "False", "reason": "RolledBack", "message": "",
        "observedGeneration": 1, "lastTransitionTime": "2026-01-01T12:00:00Z"});
    let before = json!({"conditions": [condition], "rollout": {"hash": hash}});
    let before: LinkerdConfigStatus = serde_json::from_value(before).unwrap();
    let mut reason = |undeclared| {
        target.gates.undeclared = undeclared;
        let after = LinkerdConfigStatus { observed_generation: Some(2), ..LinkerdConfigStatus::default() };
        let after = add_rollout(after, &before, &target, None, Some(7), time("12:00:00"));
        after.conditions.first().map(|condition| condition.reason.clone())
    };
    // The resource declares the restored values again.
    assert_eq!(reason(None).as_deref(), Some("Progressing"));
    let gate = Gate { reason: ConditionReason::RolledBack, message: String::new() };
    assert_eq!(reason(Some(gate)).as_deref(), Some("RolledBack"));
}

#[test]
fn a_drift_window_is_removed_when_no_pod_from_it_is_left() {
    let mut target = rollout_target(&json!({}));
    let window = json!({"from": "2026-01-01T12:00:00Z", "to": "2026-01-01T12:00:09Z"});
    let open = json!({"from": "2026-01-01T13:00:00Z"});
    let before = serde_json::from_value(json!({"drift": {"windows": [window, open]}})).unwrap();
    target.proxies.drift = vec![
        TimeRange { from: time("12:00:00"), to: Some(time("12:00:09")) },
        TimeRange { from: time("13:00:00"), to: None },
    ];
    let left = |suspects, target: &RolloutTarget| {
        let done = RolloutProgress {
            suspects,
            ..progress(target, RolloutPhase::Complete, ConditionReason::UpToDate, RolloutWorkloads::default())
        };
        status_after(&before, target, Some(&done), "13:00:00").drift.unwrap().windows.len()
    };
    assert_eq!((left(true, &target), left(false, &target)), (2, 1), "the open window stays");
    target.proxies.drift.clear();
    assert_eq!(left(false, &target), 2, "the progress does not cover these windows yet");
}

#[test]
fn a_complete_rollout_proves_the_document_unless_injectors_do_not_use_it() {
    let target = rollout_target(&json!({}));
    let workloads = RolloutWorkloads { selected: 1, updated: 1, ..RolloutWorkloads::default() };
    let done = progress(&target, RolloutPhase::Complete, ConditionReason::UpToDate, workloads);
    let previous = |injectors: &str, revision| {
        let condition = json!({"type": "InjectorSynced", "status": injectors, "reason": "", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let before = json!({"revisions": {"previous": 3}, "conditions": [condition]});
        let after: LinkerdConfigStatus = serde_json::from_value(before).unwrap();
        let before = after.clone();
        let after = add_rollout(after, &before, &target, Some(&done), revision, time("12:00:00"));
        after.revisions.unwrap().previous
    };
    assert_eq!(previous("True", Some(7)), None);
    assert_eq!(previous("Unknown", Some(7)), None);
    assert_eq!(previous("False", Some(7)), Some(3));
    assert_eq!(previous("True", None), Some(3), "workloads run with another document than the declared one");
}
