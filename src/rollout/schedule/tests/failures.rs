//! Tests of how a workload fails, what is retried, and how a failure ends.

use super::*;

#[test]
fn a_workload_with_outdated_pods_is_retried_once_and_then_fails_or_is_given_up() {
    for (state, health, controlled, wanted) in [
        (RolloutState::Updating, Health::StillOutdated, false, "retry"),
        (RolloutState::Updating, Health::StillOutdated, true, "retry"),
        (RolloutState::Retrying, Health::StillOutdated, false, "fail"),
        (RolloutState::Updating, Health::Reverted, false, "retry"),
        (RolloutState::Updating, Health::Reverted, true, "give up"),
        (RolloutState::Retrying, Health::Reverted, false, "give up"),
    ] {
        let (mut schedule, name) = (RolloutSchedule::default(), workload("a", "1"));
        schedule.set(&name, but(in_progress(state, health.clone()), |it| it.controlled = controlled), at(110));
        assert!(schedule.next(&LIMITS, at(114)).steps.is_empty(), "two watches may disagree for some seconds");
        let is = match &schedule.next(&LIMITS, at(115)).steps[0].action {
            StepAction::Retry(value) if value == "key.2" => "retry",
            StepAction::Fail { reason: "StillOutdated", .. } => "fail",
            StepAction::GiveUp => "give up",
            other => panic!("{other:?}"),
        };
        assert_eq!(is, wanted, "{state:?} {health:?} {controlled}");
    }
    // No retry while injectors use another configuration.
    let (mut schedule, name) = (RolloutSchedule::default(), workload("a", "1"));
    schedule.set(&name, in_progress(RolloutState::Updating, Health::StillOutdated), at(0));
    assert!(schedule.next(&RolloutLimits { may_inject: false, ..LIMITS }, at(60)).steps.is_empty());
}

#[test]
fn a_failure_is_lifted_after_the_soak() {
    let failed = |recovered| {
        let weight = if recovered { FailureWeight::Reported } else { FailureWeight::Counted };
        let (reason, message) = ("ProgressDeadlineExceeded".to_owned(), "x".to_owned());
        of(WorkloadState::Failed(WorkloadFailure { reason, message, started: Some(at(0)), weight, recovered }))
    };
    let (mut schedule, name) = (RolloutSchedule::default(), workload("a", "1"));
    schedule.set(&name, failed(false), at(100));
    assert_eq!(schedule.next(&LIMITS, at(500)), NextSteps::default());
    schedule.set(&name, failed(true), at(500));
    assert_eq!(schedule.totals.counted_failures, 1, "it counts during the soak");
    assert_eq!(schedule.next(&LIMITS, at(529)), NextSteps { steps: vec![], look_again: Some(at(530)) });
    let step = schedule.next(&LIMITS, at(530)).steps.remove(0);
    assert_eq!(step.action, StepAction::Finish { since: Some(at(0)) });
    schedule.record_sent(&step, "7", at(530));
    assert_eq!((schedule.totals.counted_failures, schedule.totals.workloads.updated), (0, 1));
    // A record that was never seen with its failure counts for nothing.
    let mut schedule = RolloutSchedule::default();
    schedule.set(&name, failed(true), at(500));
    assert_eq!(schedule.totals.counted_failures, 0);
}

#[test]
fn a_missing_proxy_that_may_be_one_of_an_old_pod_and_a_shape_that_stays_fail_only_if_they_last() {
    for (health, reason) in [
        (Health::Uninjected("p".into()), "Uninjected"),
        (Health::SeemsUninjected("p".into()), "Uninjected"),
        (Health::StillUncovered, "StillOutdated"),
    ] {
        let is_certain = matches!(health, Health::Uninjected(_));
        let (mut schedule, name) = (RolloutSchedule::default(), workload("a", "1"));
        let set = |schedule: &mut RolloutSchedule, health: &Health, now| {
            schedule.set(&name, in_progress(RolloutState::Updating, health.clone()), at(now));
        };
        set(&mut schedule, &health, 110);
        if is_certain {
            assert_eq!(failure(&mut schedule, 110), Some(reason));
            continue;
        }
        assert_eq!((failure(&mut schedule, 110), schedule.next(&LIMITS, at(114)).look_again), (None, Some(at(115))));
        // The deletion of the old Pod arrives in time.
        set(&mut schedule, &Health::Healthy, 114);
        assert_eq!(failure(&mut schedule, 116), None);
        set(&mut schedule, &health, 120);
        assert_eq!(failure(&mut schedule, 124), None);
        assert_eq!(failure(&mut schedule, 125), Some(reason));
    }
}
