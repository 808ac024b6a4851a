//! Writes that fail, and evictions.

use super::*;

#[test]
fn a_failed_write_is_retried_later_and_other_workloads_proceed() {
    let mut schedule = waiting(&[("a", "1"), ("a", "2")]);
    schedule.record_failure(&workload("a", "1"), "denied".to_owned(), false, at(0), |count| {
        Duration::from_secs(10 << count)
    });
    assert_eq!(names(&schedule.next(&LIMITS, at(0))), ["a/2"]);
    assert_eq!(names(&schedule.next(&LIMITS, at(10))), ["a/1"]);
    schedule.record_failure(&workload("a", "1"), "denied".to_owned(), false, at(10), |count| {
        Duration::from_secs(10 << count)
    });
    assert_eq!(names(&schedule.next(&LIMITS, at(29))), ["a/2"]);
    schedule.set(&workload("a", "2"), of(WorkloadState::UpToDate), at(29));
    assert!(schedule.is_startable() && schedule.refused().is_none(), "two failures are not reported");
    schedule.record_failure(&workload("a", "1"), "denied".to_owned(), false, at(30), |_| Duration::from_secs(1));
    assert!(!schedule.is_startable());
    assert_eq!(
        schedule.refused().map(|(workload, why)| (workload.to_string(), why.to_owned())),
        Some(("a/Deployment/1".to_owned(), "denied".to_owned()))
    );
}

#[test]
fn pods_are_evicted_one_after_the_other() {
    let (mut schedule, name) = (RolloutSchedule::default(), workload("a", "1"));
    let evicting =
        |pod: &str| but(in_progress(RolloutState::Updating, Health::Evicting), |it| it.evict = Some(pod.into()));
    schedule.set(&name, evicting("web-2"), at(100));
    assert!(schedule.next(&LIMITS, at(101)).steps.is_empty());
    let step = schedule.next(&LIMITS, at(102)).steps.remove(0);
    assert_eq!(step.action, StepAction::Evict("web-2".into()));
    schedule.record_sent(&step, "", at(102));
    assert!(schedule.next(&LIMITS, at(103)).steps.is_empty());
    schedule.set(&name, evicting("web-1"), at(103));
    assert_eq!(schedule.next(&LIMITS, at(104)).steps.len(), 1);
}

#[test]
fn a_new_leader_does_not_wait_for_the_retries_of_an_earlier_term() {
    let mut schedule = waiting(&[("a", "1")]);
    schedule.record_failure(&workload("a", "1"), "refused".to_owned(), true, at(0), |_| Duration::from_secs(60));
    assert!(schedule.next(&LIMITS, at(1)).steps.is_empty());
    schedule.begin_term(at(1));
    assert_eq!(names(&schedule.next(&LIMITS, at(1))), ["a/1"]);
}

#[test]
fn a_write_with_an_unknown_outcome_keeps_its_place_until_the_retry() {
    let mut schedule = waiting(&[("a", "1"), ("a", "2")]);
    let pause = |_| Duration::from_secs(10);
    schedule.record_failure(&workload("a", "1"), "no answer".to_owned(), true, at(0), pause);
    assert!(schedule.next(&LIMITS, at(9)).steps.is_empty());
    assert_eq!(names(&schedule.next(&LIMITS, at(10))), ["a/1"]);
    schedule.record_failure(&workload("a", "1"), "conflict".to_owned(), false, at(10), pause);
    assert_eq!(names(&schedule.next(&LIMITS, at(11))), ["a/2"]);
}

#[test]
fn a_blocked_eviction_fails_with_the_last_refusal() {
    let (mut schedule, name) = (RolloutSchedule::default(), workload("a", "1"));
    let evicting = || but(in_progress(RolloutState::Updating, Health::Evicting), |it| it.evict = Some("web-1".into()));
    schedule.set(&name, evicting(), at(100));
    let refuse = |schedule: &mut RolloutSchedule, now| {
        let next = schedule.next(&LIMITS, at(now));
        assert!(matches!(next.steps[..], [RolloutStep { action: StepAction::Evict(_), .. }]), "{next:?}");
        let why = "This pod has more than one PodDisruptionBudget".to_owned();
        schedule.record_failure(&name, why, false, at(now), |_| Duration::from_secs(60));
    };
    for now in (110..=710).step_by(60) {
        refuse(&mut schedule, now);
    }
    let next = schedule.next(&LIMITS, at(770));
    let [RolloutStep { action: StepAction::Fail { reason, message, .. }, .. }] = &next.steps[..] else {
        panic!("{next:?}")
    };
    assert_eq!(*reason, "EvictionBlocked");
    assert_eq!(message, "could not evict Pod web-1: This pod has more than one PodDisruptionBudget");
    // While a gate is closed, no Pod is evicted and the time does not count. A Pod that was replaced is progress.
    let closed = RolloutLimits { may_inject: false, ..LIMITS };
    assert!(schedule.next(&closed, at(5000)).steps.is_empty());
    let mut schedule = RolloutSchedule::default();
    schedule.set(&name, evicting(), at(100));
    refuse(&mut schedule, 110);
    refuse(&mut schedule, 10_000);
    refuse(&mut schedule, 10_060);
    schedule.set(&name, but(evicting(), |it| it.marks.current = 1), at(10_100));
    for now in (10_200..10_800).step_by(60) {
        refuse(&mut schedule, now);
    }
}
