use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::{
    api::linkerd_config::{RolloutPods, RolloutWorkloads},
    linkerd_config::rollout::{
        fixture::{WANTED, goal, time},
        goal::{Gate, Span},
    },
};

fn progress(goal: &Goal, phase: Phase, reason: &'static str, workloads: RolloutWorkloads) -> Progress {
    Progress {
        goal: Arc::new(goal.clone()),
        phase,
        complete: Complete { holds: phase == Phase::Complete, reason, message: "so".to_owned() },
        workloads,
        pods: RolloutPods::default(),
        updating: Vec::new(),
        failures: Vec::new(),
        skipped: Vec::new(),
        next_window: None,
        suspects: false,
        wants_rollback: false,
    }
}

fn told(before: &LinkerdConfigStatus, goal: &Goal, progress: Option<&Progress>, now: &str) -> LinkerdConfigStatus {
    let mut after = before.clone();
    after.conditions.clear();
    tell(&mut after, before, goal, progress, Some(7), time(now));
    after
}

fn complete(status: &LinkerdConfigStatus) -> (&str, &str) {
    let condition = status.conditions.iter().find(|condition| condition.type_ == TYPE).unwrap();
    (&condition.status, &condition.reason)
}

fn summary(status: &LinkerdConfigStatus) -> Option<&str> {
    status.rollout.as_ref()?.summary.as_deref()
}

#[test]
fn what_was_true_of_another_hash_is_not_said_of_this_one() {
    let mut goal = goal(&json!({}));
    let workloads = RolloutWorkloads { selected: 3, updated: 3, ..RolloutWorkloads::default() };
    let done = progress(&goal, Phase::Complete, "UpToDate", workloads);
    let status = told(&LinkerdConfigStatus::default(), &goal, Some(&done), "12:00:00");
    assert_eq!(complete(&status), ("True", "UpToDate"));
    // Another leads, who has not looked yet.
    let next = told(&status, &goal, None, "12:01:00");
    assert_eq!((complete(&next), summary(&next)), (("True", "UpToDate"), Some("3/3")));
    goal.marker = Some("another".into());
    let other = told(&status, &goal, None, "12:01:00");
    assert_eq!((complete(&other), summary(&other)), (("False", "Progressing"), None));
    goal.closed = Some(Gate { reason: DISABLED, message: "off".to_owned() });
    assert_eq!(complete(&told(&status, &goal, None, "12:01:00")), ("False", DISABLED));
}

#[test]
fn a_rollout_begins_once_and_ends_once() {
    let goal = goal(&json!({}));
    let workloads =
        |updated, updating| RolloutWorkloads { selected: 3, updated, updating, ..RolloutWorkloads::default() };
    let mut status = LinkerdConfigStatus::default();
    let mut times = Vec::new();
    for (phase, reason, workloads, now) in [
        (Phase::Waiting, "OutsideWindow", workloads(0, 0), "12:00:00"),
        (Phase::Progressing, "Progressing", workloads(0, 1), "12:00:01"),
        (Phase::Progressing, "Progressing", workloads(2, 1), "12:00:02"),
        (Phase::Complete, "UpToDate", workloads(3, 0), "12:00:03"),
        (Phase::Complete, "UpToDate", workloads(3, 0), "12:00:04"),
    ] {
        status = told(&status, &goal, Some(&progress(&goal, phase, reason, workloads)), now);
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
fn what_was_not_seen_to_run_is_not_what_one_goes_back_to() {
    let mut goal = goal(&json!({}));
    let halted = progress(&goal, Phase::Halted, "Halted", RolloutWorkloads::default());
    let status = told(&LinkerdConfigStatus::default(), &goal, Some(&halted), "12:00:00");
    assert_eq!(status.revisions, None);
    assert!(status.conditions.iter().any(|it| it.type_ == "Stalled" && it.reason == "RolloutHalted"), "{status:?}");
    goal.rolled_back = Some(RolloutKey::from(WANTED));
    let done = progress(&goal, Phase::Complete, "UpToDate", RolloutWorkloads::default());
    assert_eq!(told(&LinkerdConfigStatus::default(), &goal, Some(&done), "12:00:00").revisions, None);
}

#[test]
fn a_drift_is_forgotten_when_nobody_is_left_who_was_born_in_it() {
    let mut goal = goal(&json!({}));
    let window = json!({"from": "2026-01-01T12:00:00Z", "to": "2026-01-01T12:00:09Z"});
    let open = json!({"from": "2026-01-01T13:00:00Z"});
    let before = serde_json::from_value(json!({"drift": {"windows": [window, open]}})).unwrap();
    goal.drift =
        vec![Span { from: time("12:00:00"), to: Some(time("12:00:09")) }, Span { from: time("13:00:00"), to: None }];
    let left = |suspects, goal: &Goal| {
        let done = Progress { suspects, ..progress(goal, Phase::Complete, "UpToDate", RolloutWorkloads::default()) };
        told(&before, goal, Some(&done), "13:00:00").drift.unwrap().windows.len()
    };
    assert_eq!((left(true, &goal), left(false, &goal)), (2, 1), "the one that lasts stays");
    goal.drift.clear();
    assert_eq!(left(false, &goal), 2, "nobody has looked at it yet");
}
