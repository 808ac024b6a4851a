//! The soak and the deadline of a restart in progress.

use super::*;

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
fn a_daemon_set_that_waits_for_nodes_does_not_fail_and_loses_its_place_at_the_deadline() {
    let mut schedule = waiting(&[("a", "2")]);
    let name = workload("a", "1");
    schedule.set(&name, in_progress(RolloutState::Updating, Health::WaitingForNodes("299 of 300".to_owned())), at(100));
    assert_eq!(schedule.next(&LIMITS, at(699)), NextSteps { steps: vec![], look_again: Some(at(700)) });
    assert_eq!(schedule.stalled, None);
    assert_eq!(names(&schedule.next(&LIMITS, at(700))), ["a/2"]);
    assert_eq!(schedule.stalled, Some((name, "299 of 300".to_owned())));
}
