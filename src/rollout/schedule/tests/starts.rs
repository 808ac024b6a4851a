//! When a restart may begin: the limits, the interval, and the places of restarts in progress.

use super::*;

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
