use super::*;
use crate::{
    api::linkerd_config::RolloutMethod,
    cluster::kinds::apps_workload::WorkloadPace,
    linkerd_config::rollout::{
        assess::workload_state::{SkipReason, Start},
        testing,
        trust::TrustCounts,
    },
};

fn workload(namespace: &str, name: &str) -> WorkloadKey {
    WorkloadKey { namespace: namespace.into(), kind: "Deployment".into(), name: name.into() }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn of(state: WorkloadState) -> Option<Assessment> {
    let pods = RolloutPods { meshed: 1, ..RolloutPods::default() };
    let (trust, pace) = (TrustCounts::new(), WorkloadPace::default());
    Some(Assessment { pods, suspects: 0, trust, state, rolling: None, is_canary: false, pace })
}

fn pending() -> Option<Assessment> {
    let method = RolloutMethod::Restart;
    of(WorkloadState::Pending(Start { value: "key".to_owned(), method, for_trust_roots: false }))
}

fn in_progress(state: RolloutState, health: Health) -> Option<Assessment> {
    of(WorkloadState::InProgress(InProgress {
        since: Some(at(100)),
        retry: "key.2".to_owned(),
        ..testing::in_progress(state, health)
    }))
}

/// Changes a restart in progress.
fn but(assessment: Option<Assessment>, change: impl FnOnce(&mut InProgress)) -> Option<Assessment> {
    let mut assessment = assessment.unwrap();
    let WorkloadState::InProgress(in_progress) = &mut assessment.state else { panic!("{assessment:?}") };
    change(in_progress);
    Some(assessment)
}

fn progressing() -> Option<Assessment> {
    in_progress(RolloutState::Updating, Health::Progressing("1 of 3".to_owned()))
}

fn updated(number: i64) -> Option<Assessment> {
    but(progressing(), |it| it.marks.updated = number)
}

/// Returns the reason of the failure that is due.
fn failure(schedule: &mut RolloutSchedule, now: i64) -> Option<&'static str> {
    match &schedule.next(&LIMITS, at(now)).steps.first()?.action {
        StepAction::Fail { reason, .. } => Some(*reason),
        other => panic!("{other:?}"),
    }
}

const LIMITS: RolloutLimits = RolloutLimits {
    may_start: true,
    may_inject: true,
    at_once: 1,
    at_once_in_namespace: 10,
    interval: Duration::ZERO,
    soak: Duration::from_secs(30),
    deadline: Duration::from_secs(600),
};

fn names(next: &NextSteps) -> Vec<String> {
    next.steps.iter().map(|step| format!("{}/{}", step.workload.namespace, step.workload.name)).collect()
}

fn waiting(all: &[(&str, &str)]) -> RolloutSchedule {
    let mut schedule = RolloutSchedule::default();
    for (namespace, name) in all {
        schedule.set(&workload(namespace, name), pending(), at(0));
    }
    schedule
}

#[test]
fn the_limits_apply_overall_and_per_namespace() {
    let mut schedule = waiting(&[("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("c", "1")]);
    for (at_once, at_once_in_namespace, begin) in [
        (1, 10, vec!["a/1"]),
        (2, 10, vec!["a/1", "a/2"]),
        (3, 1, vec!["a/1", "b/1", "c/1"]),
        (9, 2, vec!["a/1", "a/2", "b/1", "c/1"]),
        (0, 1, vec![]),
    ] {
        let limits = RolloutLimits { at_once, at_once_in_namespace, ..LIMITS };
        assert_eq!(names(&schedule.next(&limits, at(0))), begin);
    }
    assert!(schedule.next(&RolloutLimits { may_start: false, ..LIMITS }, at(0)).steps.is_empty());
}

#[test]
fn a_restart_counts_against_the_limits_before_the_watch_shows_it() {
    let mut schedule = waiting(&[("a", "1"), ("a", "2")]);
    let step = schedule.next(&LIMITS, at(0)).steps.remove(0);
    schedule.record_sent(&step, "7", at(0));
    assert!(schedule.next(&LIMITS, at(0)).steps.is_empty());
    assert!(schedule.is_unseen(&step.workload, "6", at(1)) && !schedule.is_unseen(&step.workload, "7", at(1)));
    assert!(!schedule.is_unseen(&step.workload, "6", at(31)), "the wait for the watch is bounded");
    assert_eq!((schedule.totals.workloads.updating, schedule.totals.workloads.pending), (1, 1));
}

#[test]
fn restarts_keep_the_interval() {
    let mut schedule = waiting(&[("a", "1"), ("a", "2")]);
    let limits = RolloutLimits { at_once: 2, interval: Duration::from_secs(10), ..LIMITS };
    let next = schedule.next(&limits, at(0));
    assert_eq!((names(&next).len(), next.look_again), (1, Some(at(10))));
    schedule.record_sent(&next.steps[0], "7", at(0));
    let next = schedule.next(&limits, at(9));
    assert_eq!((names(&next).len(), next.look_again), (0, Some(at(10))));
    assert_eq!(names(&schedule.next(&limits, at(10))), ["a/2"]);
    // A new leader derives the last start from the workloads in progress.
    let mut schedule = waiting(&[("a", "2")]);
    schedule.set(&workload("a", "1"), in_progress(RolloutState::Updating, Health::Healthy), at(100));
    assert!(names(&schedule.next(&limits, at(105))).is_empty());
    assert_eq!(names(&schedule.next(&limits, at(110))), ["a/2"]);
}

#[test]
fn a_workload_is_finished_when_it_was_healthy_for_its_soak() {
    let (mut schedule, name) = (RolloutSchedule::default(), workload("a", "1"));
    let healthy = || in_progress(RolloutState::Updating, Health::Healthy);
    schedule.set(&name, healthy(), at(110));
    let next = schedule.next(&LIMITS, at(139));
    assert_eq!((next.steps.len(), next.look_again), (0, Some(at(140))));
    schedule.set(&name, healthy(), at(139));
    for may_start in [true, false] {
        let next = schedule.next(&RolloutLimits { may_start, ..LIMITS }, at(140));
        assert_eq!(next.steps[0].action, StepAction::Finish { since: Some(at(100)) }, "{may_start}");
    }
    // An interruption restarts the soak.
    schedule.set(&name, in_progress(RolloutState::Updating, Health::Progressing("x".to_owned())), at(141));
    schedule.set(&name, healthy(), at(142));
    assert_eq!(schedule.next(&LIMITS, at(160)).look_again, Some(at(172)));
    assert_eq!(schedule.next(&RolloutLimits { soak: Duration::ZERO, ..LIMITS }, at(142)).steps.len(), 1);
}

#[test]
fn a_workload_that_exceeds_its_deadline_fails_with_what_is_missing() {
    let (mut schedule, name) = (RolloutSchedule::default(), workload("a", "1"));
    schedule.set(&name, in_progress(RolloutState::Updating, Health::Progressing("1 of 3".to_owned())), at(110));
    let next = schedule.next(&LIMITS, at(699));
    assert_eq!((next.steps.len(), next.look_again), (0, Some(at(700))));
    let fails = |action: &StepAction| matches!(action, StepAction::Fail { reason: "ProgressDeadlineExceeded", message, .. } if message == "1 of 3");
    let step = schedule.next(&LIMITS, at(700)).steps.remove(0);
    assert!(fails(&step.action));
    schedule.record_sent(&step, "7", at(700));
    assert_eq!(
        (schedule.failed.len(), schedule.totals.workloads.failed, schedule.totals.workloads.updating),
        (1, 1, 0)
    );
    schedule.set(&name, None, at(701));
    assert!(schedule.failed.is_empty() && schedule.totals == RolloutTotals::default());
}

/// The seconds of the workload's own `minReadySeconds` and `progressDeadlineSeconds`.
fn at_its_pace(min_ready: u32, progress_deadline: Option<u32>, assessment: Option<Assessment>) -> Option<Assessment> {
    Some(Assessment { pace: WorkloadPace { min_ready, progress_deadline }, ..assessment? })
}

#[test]
fn a_workload_has_the_time_that_it_asks_for_up_to_one_hour_more_than_others() {
    const HOUR: u32 = 3600;
    for (min_ready, progress_deadline, due) in [
        (0, None, 600),
        (45, None, 645),
        // The deadline of the rollout, if it is longer than that of the workload.
        (45, Some(601), 646),
        (45, Some(900), 945),
        (900, Some(1800), 2700),
        (HOUR, None, 4200),
        (HOUR, Some(HOUR), 4200),
        (u32::MAX, Some(u32::MAX), 4200),
    ] {
        let (mut schedule, name) = (RolloutSchedule::default(), workload("a", "1"));
        let with = |assessment| at_its_pace(min_ready, progress_deadline, assessment);
        schedule.set(&name, with(but(progressing(), |it| it.since = Some(at(0)))), at(0));
        assert_eq!(failure(&mut schedule, due - 1), None, "{min_ready} {progress_deadline:?}");
        assert_eq!(failure(&mut schedule, due), Some("ProgressDeadlineExceeded"), "{min_ready} {progress_deadline:?}");
        // A tenant who asks for more time meanwhile gets no more than the maximum.
        schedule.set(&name, at_its_pace(u32::MAX, None, but(progressing(), |it| it.since = Some(at(0)))), at(due));
        assert_eq!(failure(&mut schedule, 4200), Some("ProgressDeadlineExceeded"));
    }
}

#[test]
fn a_place_is_kept_for_the_time_that_a_workload_asks_for() {
    let nodes = || in_progress(RolloutState::Updating, Health::WaitingForNodes("1 of 9".to_owned()));
    let older = || Some(Assessment { rolling: Some(at(0)), ..of(WorkloadState::UpToDate).unwrap() });
    for (assessment, is_stalled) in [(nodes(), true), (older(), false)] {
        let mut schedule = waiting(&[("b", "1")]);
        schedule.set(&workload("a", "1"), at_its_pace(300, None, assessment), at(100));
        let end = if is_stalled { 1000 } else { 900 };
        assert!(schedule.next(&LIMITS, at(end - 1)).steps.is_empty());
        assert_eq!(names(&schedule.next(&LIMITS, at(end))), ["b/1"]);
        assert_eq!(schedule.stalled.is_some(), is_stalled);
    }
}

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
fn a_workload_that_still_rolls_for_another_target_is_restarted_in_its_own_place() {
    let mut schedule = waiting(&[("a", "1"), ("a", "2")]);
    let mut rolling = pending().unwrap();
    rolling.rolling = Some(at(0));
    schedule.set(&workload("b", "1"), Some(rolling.clone()), at(0));
    assert_eq!(names(&schedule.next(&LIMITS, at(0))), ["b/1"], "the limit allows no other workload");
    // A skipped workload keeps its place as well, until its deadline.
    rolling.state = WorkloadState::Skipped(SkipReason::BlockedByPDB);
    schedule.set(&workload("b", "1"), Some(rolling), at(0));
    assert!(schedule.next(&LIMITS, at(599)).steps.is_empty());
    assert_eq!(names(&schedule.next(&LIMITS, at(600))), ["a/1"]);
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
fn a_later_start_that_others_write_does_not_replace_that_of_our_own_write() {
    let mut schedule = waiting(&[("a", "1"), ("a", "2")]);
    let step = schedule.next(&LIMITS, at(100)).steps.remove(0);
    schedule.record_sent(&step, "7", at(100));
    // The restart is not complete, and the workload waits for another one.
    schedule.set(&step.workload, Some(Assessment { rolling: Some(at(500)), ..pending().unwrap() }), at(500));
    assert_eq!(names(&schedule.next(&LIMITS, at(600))), ["a/1"], "it has the only place");
    schedule.record_failure(&step.workload, "refused".to_owned(), false, at(600), |_| Duration::from_secs(900));
    assert!(schedule.next(&LIMITS, at(699)).steps.is_empty());
    assert_eq!(names(&schedule.next(&LIMITS, at(700))), ["a/2"], "its place is free 600 s after our write");
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
fn the_deadline_counts_from_the_last_progress() {
    let (mut schedule, name) = (RolloutSchedule::default(), workload("a", "1"));
    for (number, now) in [(1, 200), (2, 700), (3, 1200)] {
        schedule.set(&name, updated(number), at(now));
    }
    assert_eq!(failure(&mut schedule, 1799), None);
    assert_eq!(failure(&mut schedule, 1800), Some("ProgressDeadlineExceeded"));
    // Counts that rise to an earlier height are no progress.
    for (number, now) in [(0, 1300), (3, 1400), (1, 1500), (3, 1600)] {
        schedule.set(&name, updated(number), at(now));
    }
    assert_eq!(failure(&mut schedule, 1800), Some("ProgressDeadlineExceeded"));
}

#[test]
fn times_that_others_write_do_not_extend_a_deadline() {
    let (mut schedule, name) = (RolloutSchedule::default(), workload("a", "1"));
    for now in (100..700).step_by(100) {
        schedule.set(&name, but(progressing(), |it| it.since = Some(at(now))), at(now));
    }
    assert_eq!(failure(&mut schedule, 700), Some("ProgressDeadlineExceeded"));
    // A start in the future counts as now. The newest Pod is evidence of progress.
    for (since, newest_pod, due) in [
        (at(4_102_444_800), None, 1600),
        (at(4_102_444_800), Some(at(900)), 1500),
        (at(800), None, 1400),
        (at(800), Some(at(900)), 1500),
    ] {
        let mut schedule = RolloutSchedule::default();
        let seen = but(progressing(), |it| (it.since, it.newest_pod) = (Some(since), newest_pod));
        schedule.set(&name, seen, at(1000));
        assert_eq!(
            (failure(&mut schedule, due - 1), failure(&mut schedule, due)),
            (None, Some("ProgressDeadlineExceeded"))
        );
    }
}

#[test]
fn an_interruption_of_a_long_soak_has_the_whole_deadline() {
    let (mut schedule, name) = (RolloutSchedule::default(), workload("a", "1"));
    let limits = RolloutLimits { soak: Duration::from_secs(10_000), ..LIMITS };
    schedule.set(&name, progressing(), at(100));
    schedule.set(&name, in_progress(RolloutState::Updating, Health::Healthy), at(600));
    schedule.set(&name, progressing(), at(5000));
    assert_eq!(schedule.next(&limits, at(5599)), NextSteps { steps: vec![], look_again: Some(at(5600)) });
    assert_eq!(schedule.next(&limits, at(5600)).steps.len(), 1);
    // A workload that is ready now and then fails as well: only the time that it is not ready counts.
    schedule.set(&name, in_progress(RolloutState::Updating, Health::Healthy), at(5500));
    schedule.set(&name, progressing(), at(6000));
    assert_eq!(schedule.next(&limits, at(6099)).steps.len(), 0);
    assert_eq!(schedule.next(&limits, at(6100)).steps.len(), 1);
}

#[test]
fn restarts_of_others_in_the_future_or_without_end_delay_no_start() {
    let limits = RolloutLimits { at_once: 100, interval: Duration::from_secs(10), ..LIMITS };
    let mut schedule = waiting(&[("a", "1")]);
    schedule.begin_term(at(100));
    let started = |time| but(progressing(), |it| it.since = Some(time));
    schedule.set(&workload("b", "1"), started(at(4_102_444_800)), at(100));
    schedule.set(&workload("b", "2"), started(at(105)), at(106));
    assert_eq!(names(&schedule.next(&limits, at(106))), ["a/1"]);
    // An unfinished restart for an older target keeps its place until its first deadline, however often its start is
    // written.
    let mut schedule = waiting(&[("a", "1")]);
    for now in (100..=700).step_by(100) {
        let mut rolling = of(WorkloadState::UpToDate).unwrap();
        rolling.rolling = Some(at(now));
        schedule.set(&workload("b", "1"), Some(rolling), at(now));
    }
    assert_eq!(names(&schedule.next(&LIMITS, at(699))), Vec::<String>::new());
    assert_eq!(names(&schedule.next(&LIMITS, at(700))), ["a/1"]);
    let mut rolling = of(WorkloadState::UpToDate).unwrap();
    rolling.rolling = Some(at(4_102_444_800));
    let mut schedule = waiting(&[("a", "1")]);
    schedule.set(&workload("b", "1"), Some(rolling), at(0));
    assert_eq!(names(&schedule.next(&LIMITS, at(0))), ["a/1"]);
}

#[test]
fn a_start_by_a_clock_that_was_ahead_delays_others_by_the_interval() {
    let limits = RolloutLimits { at_once: 100, interval: Duration::from_secs(10), ..LIMITS };
    let mut schedule = waiting(&[("a", "1"), ("a", "2")]);
    let step = schedule.next(&limits, at(7_200)).steps.remove(0);
    schedule.record_sent(&step, "7", at(7_200));
    assert_eq!(names(&schedule.next(&limits, at(7_205))), Vec::<String>::new(), "the interval");
    assert_eq!(names(&schedule.next(&limits, at(5))), Vec::<String>::new(), "the clock was corrected");
    assert_eq!(names(&schedule.next(&limits, at(14))), Vec::<String>::new());
    assert_eq!(names(&schedule.next(&limits, at(15))), ["a/2"]);
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

#[test]
fn a_daemon_set_that_waits_for_nodes_does_not_fail_and_loses_its_place_at_the_deadline() {
    let mut schedule = waiting(&[("a", "2")]);
    let name = workload("a", "1");
    schedule.set(&name, in_progress(RolloutState::Updating, Health::WaitingForNodes("299 of 300".to_owned())), at(100));
    assert_eq!(schedule.next(&LIMITS, at(699)), NextSteps { steps: vec![], look_again: Some(at(700)) });
    assert_eq!(schedule.stalled, None);
    assert_eq!(names(&schedule.next(&LIMITS, at(700))), ["a/2"]);
    assert_eq!(schedule.stalled, Some((name, "299 of 300".to_owned())));
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
