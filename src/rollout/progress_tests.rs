use serde_json::{Value, json};

use super::*;
use crate::{
    api::linkerd_config::{RolloutMethod, RolloutPods},
    cluster::kinds::apps_workload::WorkloadPace,
    rollout::{
        assess::{
            annotations::RolloutState,
            workload_state::{Assessment, FailureWeight, Health, SkipReason, Start, WorkloadFailure, WorkloadState},
        },
        testing::{self, rollout_target, time},
        trust::TrustCounts,
    },
};

fn schedule(states: &[WorkloadState]) -> RolloutSchedule {
    let mut schedule = RolloutSchedule::default();
    for (number, state) in states.iter().enumerate() {
        let pods = RolloutPods { meshed: 1, ..RolloutPods::default() };
        let assessment = Assessment {
            pods,
            suspects: 0,
            trust: TrustCounts::new(),
            state: state.clone(),
            rolling: None,
            is_canary: false,
            pace: WorkloadPace::default(),
        };
        schedule.set(&WorkloadKey::new("ns", "Deployment", number.to_string()), Some(assessment), time("12:00:00"));
    }
    schedule
}

fn pending() -> WorkloadState {
    WorkloadState::Pending(Start { value: "key".to_owned(), method: RolloutMethod::Restart, for_trust_roots: false })
}

fn in_progress() -> WorkloadState {
    WorkloadState::InProgress(testing::in_progress(RolloutState::Updating, Health::Healthy))
}

fn failed(reason: &str) -> WorkloadState {
    let weight = if reason == "Uninjected" { FailureWeight::LostProxies } else { FailureWeight::Counted };
    failure(reason, "so", weight)
}

fn failure(reason: &str, message: &str, weight: FailureWeight) -> WorkloadState {
    let (reason, message) = (reason.to_owned(), message.to_owned());
    WorkloadState::Failed(WorkloadFailure { reason, message, started: None, weight, recovered: false })
}

fn outcome(states: &[WorkloadState], rollout: &Value, gate: Option<&str>) -> (&'static str, &'static str, bool) {
    let gates = ["Paused", "OutsideWindow", "RolloutDisabled", "WaitingForInjector"];
    let gate = gate.and_then(|wanted| gates.into_iter().find(|it| *it == wanted));
    let gate = gate.map(|reason| Gate { reason: reason.parse().unwrap(), message: "why".to_owned() });
    let progress =
        rollout_progress(&schedule(states), &Arc::new(rollout_target(rollout)), gate.as_ref(), Some(time("13:00:00")));
    assert_eq!(progress.next_window.is_some(), gate.is_some_and(|gate| gate.reason.as_str() == "OutsideWindow"));
    (progress.phase.as_str(), progress.complete.reason.as_str(), progress.complete.holds)
}

#[test]
fn a_rollout_is_complete_only_when_every_selected_workload_is_up_to_date() {
    use WorkloadState::{Observed, Skipped, Unsupported, UpToDate};
    let skipped = |skip| Skipped(skip);
    for (states, expected) in [
        (vec![], ("Idle", "NothingSelected", true)),
        (vec![Observed, Unsupported(SkipReason::Job)], ("Idle", "NothingSelected", true)),
        (vec![UpToDate, Unsupported(SkipReason::NoController)], ("Complete", "UpToDate", true)),
        (vec![UpToDate, in_progress()], ("Progressing", "Progressing", false)),
        (vec![UpToDate, pending()], ("Progressing", "Progressing", false)),
        (vec![UpToDate, failed("StillOutdated"), pending()], ("Halted", "Halted", false)),
        (
            vec![UpToDate, skipped(SkipReason::BlockedByPDB), skipped(SkipReason::Paused)],
            ("Waiting", "BlockedByPDB", false),
        ),
        (vec![UpToDate, skipped(SkipReason::OnDelete)], ("Waiting", "WorkloadsSkipped", false)),
    ] {
        assert_eq!(outcome(&states, &json!({}), None), expected, "{states:?}");
    }
}

#[test]
fn a_closed_gate_is_reported_while_workloads_wait_for_it() {
    for (gate, phase) in [("Paused", "Paused"), ("OutsideWindow", "Waiting"), ("WaitingForInjector", "Waiting")] {
        assert_eq!(outcome(&[pending()], &json!({}), Some(gate)), (phase, gate, false));
        assert_eq!(outcome(&[WorkloadState::UpToDate], &json!({}), Some(gate)), ("Complete", "UpToDate", true));
    }
    let disabled = ("Idle", "RolloutDisabled", false);
    assert_eq!(outcome(&[WorkloadState::UpToDate], &json!({}), Some("RolloutDisabled")), disabled);
}

#[test]
fn the_failure_policy_applies_and_lost_proxies_always_halt() {
    let failures = [failed("StillOutdated"), pending()];
    let requires_rollback = |states: &[WorkloadState], rollout: Value| {
        rollout_progress(&schedule(states), &Arc::new(rollout_target(&rollout)), None, None).requires_rollback
    };
    for (rollout, expected, rolls_back) in [
        (json!({}), "Halted", false),
        (json!({"maxFailures": 2}), "Progressing", false),
        (json!({"maxFailures": "50%"}), "Halted", false),
        (json!({"maxFailures": "51%"}), "Progressing", false),
        (json!({"onFailure": "Continue"}), "Progressing", false),
        (json!({"onFailure": "Rollback"}), "Halted", true),
    ] {
        assert_eq!(outcome(&failures, &rollout, None).0, expected, "{rollout}");
        assert_eq!(requires_rollback(&failures, rollout.clone()), rolls_back, "{rollout}");
    }
    for rollout in [json!({"maxFailures": 9}), json!({"onFailure": "Continue"})] {
        assert_eq!(outcome(&[failed("Uninjected"), pending()], &rollout, None).0, "Halted", "{rollout}");
    }
    assert_eq!(outcome(&[failed("StillOutdated")], &json!({"onFailure": "Continue"}), None).1, "WorkloadsFailed");
}

#[test]
fn lists_are_bounded_and_counts_are_not() {
    let many = vec![failed("StillOutdated"); 30];
    let progress = rollout_progress(&schedule(&many), &Arc::new(rollout_target(&json!({}))), None, None);
    assert_eq!((progress.failures.len(), progress.workloads.failed), (20, 30));
    assert!(progress.complete.message.contains("and 27 more"), "{}", progress.complete.message);
}

#[test]
fn the_mere_record_of_a_failure_halts_nothing_and_is_listed_last() {
    let forged = failure("Uninjected", "forged", FailureWeight::Reported);
    let states = [vec![forged; 30], vec![failed("StillOutdated"), pending()]].concat();
    let rollout = json!({"maxFailures": 2, "onFailure": "Rollback"});
    let target = Arc::new(rollout_target(&rollout));
    let progress = rollout_progress(&schedule(&states), &target, None, None);
    assert_eq!((progress.phase, progress.requires_rollback), (RolloutPhase::Progressing, false));
    assert_eq!((progress.workloads.failed, progress.failures.len()), (31, 20));
    assert_eq!(progress.failures[0].reason, "StillOutdated");
}

#[test]
fn what_is_not_healthy_or_blocks_a_restart_is_named() {
    let message = |states: &[WorkloadState]| {
        rollout_progress(&schedule(states), &Arc::new(rollout_target(&json!({}))), None, None).complete.message
    };
    assert_eq!(
        message(&[WorkloadState::UpToDate, WorkloadState::Skipped(SkipReason::Unhealthy)]),
        "skipped: Unhealthy 1; not healthy: ns/Deployment/1; 1 of 2 workloads run with the configuration"
    );
    assert_eq!(message(&[WorkloadState::UpToDate]), "the only workload runs with the configuration");
    assert_eq!(message(&[const { WorkloadState::UpToDate }; 2]), "all 2 workloads run with the configuration");
    let mut schedule = schedule(&[in_progress()]);
    let workload = WorkloadKey::new("ns", "Deployment", "0");
    for _ in 0..3 {
        let why = "Cannot evict pod as it would violate the pod's disruption budget.".to_owned();
        schedule.record_failure(&workload, why, false, time("12:00:00"), |_| std::time::Duration::ZERO);
    }
    let progress = rollout_progress(&schedule, &Arc::new(rollout_target(&json!({}))), None, None);
    assert_eq!(
        (progress.complete.reason.as_str(), progress.complete.message.as_str()),
        (
            "Progressing",
            "could not update ns/Deployment/0: Cannot evict pod as it would violate the pod's disruption budget.; \
             retrying; 0 of 1 workloads run with the configuration"
        )
    );
    // No other workload can be restarted.
    let mut refused = self::schedule(&[pending()]);
    for _ in 0..3 {
        let pause = |_| std::time::Duration::from_secs(60);
        refused.record_failure(&workload, "denied".to_owned(), false, time("12:00:00"), pause);
    }
    let progress = rollout_progress(&refused, &Arc::new(rollout_target(&json!({}))), None, None);
    assert_eq!((progress.phase, progress.complete.reason.as_str()), (RolloutPhase::Waiting, "WriteFailed"));
    assert!(progress.complete.message.contains("ns/Deployment/0: denied"), "{}", progress.complete.message);
}

#[test]
fn the_largest_status_of_a_rollout_has_less_than_256_kib() {
    // In JSON, each byte of this text is escaped with six.
    let worst = |length| "\u{1}".repeat(length);
    let mut schedule = RolloutSchedule::default();
    for number in 0..100 {
        let name = |length: usize| format!("{number}{}", worst(length - 2));
        let workload = WorkloadKey::new(name(63), name(63), name(253));
        let state = match number % 2 {
            0 => failure(&worst(63), &worst(512), FailureWeight::Counted),
            _ => in_progress(),
        };
        let assessment = Assessment {
            pods: RolloutPods::default(),
            suspects: 0,
            trust: TrustCounts::new(),
            state,
            rolling: None,
            is_canary: false,
            pace: WorkloadPace::default(),
        };
        schedule.set(&workload, Some(assessment), time("12:00:00"));
        schedule.record_failure(&workload, worst(1 << 20), false, time("12:00:00"), |_| std::time::Duration::ZERO);
    }
    let progress = rollout_progress(&schedule, &Arc::new(rollout_target(&json!({}))), None, None);
    let RolloutProgress { updating, failures, skipped, complete, .. } = progress;
    let lists = json!({"updating": updating, "failures": failures, "skipped": skipped, "message": complete.message});
    let bytes = serde_json::to_string(&lists).unwrap().len();
    assert!((100_000..256 * 1024).contains(&bytes), "{bytes} bytes");
}

#[test]
fn pods_without_a_proxy_halt_the_rollout_and_roll_nothing_back() {
    for (max_failures, states, expected) in [
        (json!(1), &[failed("ProgressDeadlineExceeded")][..], true),
        (json!(1), &[failed("Uninjected")], false),
        (json!(2), &[failed("ProgressDeadlineExceeded"), failed("Uninjected")], false),
        (json!(1), &[failed("ProgressDeadlineExceeded"), failed("Uninjected")], true),
        (json!("100%"), &[failed("Uninjected"), pending()], false),
    ] {
        let target = Arc::new(rollout_target(&json!({"onFailure": "Rollback", "maxFailures": max_failures})));
        let progress = rollout_progress(&schedule(states), &target, None, None);
        assert_eq!((progress.phase, progress.requires_rollback), (RolloutPhase::Halted, expected), "{states:?}");
        let says_why = progress.complete.message.starts_with("not rolled back, because a Pod without a proxy");
        assert_eq!(says_why, !expected, "{}", progress.complete.message);
    }
}
