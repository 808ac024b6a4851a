//! Annotations that others write or copy, and what they affect.

use serde_json::{Value, json};

use super::{
    workload_state::{FailureWeight, Health, SkipReason, WorkloadFailure, WorkloadState},
    *,
};
use crate::{
    cluster::Kind,
    rollout::{
        key::RolloutKey,
        testing::{BEFORE, WANTED, World, time, with},
    },
};

fn key() -> String {
    RolloutKey::of(WANTED, Some("roots"), None).to_string()
}

/// Returns the record of a restart, and the template annotation.
fn record(state: &str, template: Option<&str>, more: &Value) -> Value {
    let annotations = json!({
        "config.linkerd.io/rollout-hash": key(), "config.linkerd.io/rollout-state": state,
        "config.linkerd.io/rollout-started-at": "2026-01-01T12:00:00Z", "config.linkerd.io/rollout-previous": "",
    });
    json!({
        "metadata": {"annotations": with(annotations, more)},
        "spec": {"template": {"metadata": {"annotations": {"config.linkerd.io/restarted-for": template}}}},
    })
}

/// One of two Pods is not available.
fn unavailable() -> Value {
    json!({"spec": {"replicas": 2}, "status": {"replicas": 2, "updatedReplicas": 1, "availableReplicas": 1}})
}

fn failure(world: &World) -> WorkloadFailure {
    match world.state("Deployment", "web") {
        WorkloadState::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

fn none() -> Value {
    json!({})
}

#[test]
fn a_forged_failure_counts_for_nothing() {
    let lost = json!({"config.linkerd.io/rollout-message": "Uninjected: x"});
    // A Deployment without Pods.
    let empty =
        json!({"spec": {"replicas": 0}, "status": {"replicas": 0, "updatedReplicas": 0, "availableReplicas": 0}});
    let mut world = World::new(&none());
    world.deployment("web", &with(record("failed", None, &lost), &empty));
    assert_eq!(world.state("Deployment", "web"), WorkloadState::Unmeshed);
    // An outdated one, which the operator never restarted.
    let mut world = World::new(&none());
    world.deployment("web", &record("failed", None, &lost));
    world.pod("web-1", "web", Some(BEFORE), &none());
    assert_eq!((failure(&world).weight, failure(&world).recovered), (FailureWeight::Reported, false));
    // An outdated one whose record pretends that Pods are evicted, or that it began long ago.
    let by_eviction = json!({"config.linkerd.io/rollout-previous": null,
        "config.linkerd.io/rollout-started-at": "2020-01-01T00:00:00Z"});
    let bare = json!({"spec": {"initContainers": []}});
    let mut world = World::new(&none());
    world.deployment("web", &record("failed", None, &with(lost.clone(), &by_eviction)));
    world.pod("web-1", "web", Some(BEFORE), &none());
    world.pod("web-2", "web", None, &bare);
    assert_eq!(failure(&world).weight, FailureWeight::Reported);
    // One that was restarted for this configuration and is up to date.
    let mut world = World::new(&none());
    world.deployment("web", &record("failed", Some(&key()), &lost));
    world.pod("web-1", "web", Some(WANTED), &none());
    assert_eq!((failure(&world).weight, failure(&world).recovered), (FailureWeight::Reported, true));
}

#[test]
fn a_real_failure_counts_until_the_workload_is_current() {
    let mut world = World::new(&none());
    world.deployment("web", &with(record("failed", Some(&key()), &none()), &unavailable()));
    world.pod("web-1", "web", Some(BEFORE), &none());
    assert_eq!(failure(&world).weight, FailureWeight::Counted);
    world.pod(
        "web-2",
        "web",
        None,
        &json!({"spec": {"initContainers": []},
        "metadata": {"creationTimestamp": "2026-01-01T12:00:01Z"}}),
    );
    assert_eq!(failure(&world).weight, FailureWeight::LostProxies);
    // With the method Evict, the evidence is the Pod that replaced the evicted one.
    let evicted = record("failed", None, &json!({"config.linkerd.io/rollout-previous": null}));
    let mut world = World::new(&none());
    world.deployment("web", &with(evicted.clone(), &unavailable()));
    world.pod("web-1", "web", Some(BEFORE), &none());
    assert_eq!(failure(&world).weight, FailureWeight::Reported, "no Pod was replaced");
    let new = json!({"metadata": {"creationTimestamp": "2026-01-01T12:00:01Z"}});
    world.pod("web-2", "web", Some(WANTED), &new);
    assert_eq!(failure(&world).weight, FailureWeight::Counted);
    world.pod("web-2", "web", None, &with(new, &json!({"spec": {"initContainers": []}})));
    assert_eq!(failure(&world).weight, FailureWeight::LostProxies);
}

#[test]
fn a_workload_that_failed_for_a_pod_without_a_proxy_says_nothing_about_the_configuration() {
    let message = json!({"config.linkerd.io/rollout-message": "Uninjected: web-2 has no proxy"});
    let mut world = World::new(&none());
    world.deployment("web", &with(record("failed", Some(&key()), &message), &unavailable()));
    world.pod("web-1", "web", Some(BEFORE), &none());
    assert_eq!(failure(&world).weight, FailureWeight::LostProxies, "the Pod is gone, and no other is available yet");
    world.deployment("web", &record("failed", Some(&key()), &message));
    world.pod("web-1", "web", Some(WANTED), &none());
    assert_eq!(failure(&world).weight, FailureWeight::Reported, "the workload has recovered");
}

#[test]
fn a_copied_or_restored_workload_starts_clean() {
    let states = ["updating", "retrying", "failed", "rolled-back", "reverted"];
    // The UID is that of another object. A record without a UID begins before its workload was created.
    let with_uid = json!({"config.linkerd.io/rollout-uid": "original"});
    let created = json!({"metadata": {"creationTimestamp": "2026-01-01T12:00:01Z"}});
    for (state, uid) in states.iter().flat_map(|state| [(state, true), (state, false)]) {
        let copied = record(state, Some(&key()), if uid { &with_uid } else { &with_uid["none"] });
        let mut world = World::new(&none());
        world.deployment("web", &with(with(copied.clone(), &created), &unavailable()));
        world.pod("web-1", "web", Some(WANTED), &none());
        assert_eq!(world.state("Deployment", "web"), WorkloadState::UpToDate, "{state} {uid}");
        let mut world = World::new(&none());
        world.target.rolled_back = Some(RolloutKey::from(&*key()));
        world.deployment("web", &with(copied, &created));
        world.pod("web-1", "web", Some(BEFORE), &none());
        let WorkloadState::Pending(start) = world.state("Deployment", "web") else { panic!("{state} {uid}") };
        assert_eq!(start.value, format!("{}.2", key()), "the template must change");
    }
}

#[test]
fn a_record_of_an_earlier_version_of_the_operator_is_continued() {
    for (created, uid) in [("2026-01-01T12:00:00Z", json!(null)), ("2027-01-01T00:00:00Z", json!("web"))] {
        let record = record("updating", Some(&key()), &json!({ "config.linkerd.io/rollout-uid": uid }));
        let mut world = World::new(&none());
        world.deployment("web", &with(record, &json!({"metadata": {"creationTimestamp": created}})));
        world.pod("web-1", "web", Some(WANTED), &none());
        let WorkloadState::InProgress(in_progress) = world.state("Deployment", "web") else { panic!("{created}") };
        assert_eq!(in_progress.health, Health::Healthy);
    }
}

#[test]
fn texts_of_a_record_are_bounded() {
    let long = "x".repeat(100_000);
    for message in [format!("{long}: {long}"), long.clone(), format!("Reason: {long}")] {
        let over = record("failed", None, &json!({ "config.linkerd.io/rollout-message": message }));
        let mut world = World::new(&none());
        world.deployment("web", &over);
        world.pod("web-1", "web", Some(BEFORE), &none());
        let WorkloadFailure { reason, message, .. } = failure(&world);
        assert!(reason.len() <= 63 && message.len() <= 512, "{} {}", reason.len(), message.len());
    }
    for (started, expected) in [("-002000-01-01T00:00:00Z", None), ("2026-01-01T12:00:00Z", Some(time("12:00:00")))] {
        let more = json!({"config.linkerd.io/rollout-started-at": started, "config.linkerd.io/rollout-uid": "web"});
        let mut world = World::new(&none());
        world.deployment("web", &record("failed", None, &more));
        world.pod("web-1", "web", Some(BEFORE), &none());
        assert_eq!(failure(&world).started, expected);
    }
    let huge = with(
        record("updating", None, &none()),
        &json!({"metadata": {"annotations": {
        "config.linkerd.io/rollout-hash": format!("{}.4294967295", key())}}}),
    );
    let mut world = World::new(&none());
    world.deployment("web", &huge);
    world.pod("web-1", "web", Some(BEFORE), &none());
    assert!(matches!(world.state("Deployment", "web"), WorkloadState::InProgress(_)));
}

#[test]
fn only_a_selected_workload_keeps_a_place_for_an_older_restart() {
    let old = json!({"config.linkerd.io/rollout-hash": "old"});
    for (label, expected) in [("auto", Some(time("12:00:00"))), ("observe", None), ("disabled", None)] {
        let mut world = World::new(&none());
        let label = json!({"metadata": {"labels": {"config.linkerd.io/reconcile": label}}});
        world.deployment("web", &with(with(record("updating", None, &old), &unavailable()), &label));
        world.pod("web-1", "web", Some(BEFORE), &none());
        assert_eq!(world.assess("Deployment", "web").rolling, expected, "{label}");
    }
}

#[test]
fn a_workload_that_was_not_healthy_before_is_skipped_until_it_is() {
    let mut world = World::new(&none());
    world.deployment("web", &unavailable());
    world.pod("web-1", "web", Some(BEFORE), &none());
    assert_eq!(world.state("Deployment", "web"), WorkloadState::Skipped(SkipReason::Unhealthy));
    world.deployment("web", &none());
    assert!(matches!(world.state("Deployment", "web"), WorkloadState::Pending(_)));
    // An unfinished restart for another configuration may be the cause, so this restart may repair it.
    let old = json!({"config.linkerd.io/rollout-hash": "old"});
    for (state, repairs) in
        [("updating", true), ("retrying", true), ("failed", true), ("rolled-back", true), ("updated", false)]
    {
        world.deployment("web", &with(record(state, None, &old), &unavailable()));
        let seen = world.state("Deployment", "web");
        assert_eq!(matches!(seen, WorkloadState::Pending(_)), repairs, "{state}: {seen:?}");
    }
}

#[test]
fn a_workload_whose_restarts_are_reverted_is_remembered_across_configurations() {
    let old = json!({"config.linkerd.io/rollout-hash": "old-none.2"});
    let mut world = World::new(&none());
    world.deployment("web", &record("reverted", None, &old));
    world.pod("web-1", "web", Some(BEFORE), &none());
    assert_eq!(world.state("Deployment", "web"), WorkloadState::Skipped(SkipReason::Reverted));
    // A request for a retry, another method, or the removal of the record ends that.
    let retry = RolloutKey::of(WANTED, Some("roots"), Some("please"));
    let is_pending = |world: &World| matches!(world.state("Deployment", "web"), WorkloadState::Pending(_));
    let key = std::mem::replace(&mut world.target.key, retry);
    assert!(is_pending(&world));
    world.target.key = key;
    world.deployment(
        "web",
        &record("reverted", None, &with(old, &json!({"config.linkerd.io/rollout-method": "evict"}))),
    );
    assert!(is_pending(&world));
    world.deployment("web", &none());
    assert!(is_pending(&world));
    // Pods that were replaced meanwhile need no restart.
    world.deployment("web", &record("reverted", None, &none()));
    world.pod("web-1", "web", Some(WANTED), &none());
    assert_eq!(world.state("Deployment", "web"), WorkloadState::UpToDate);
}

/// Returns the health of a DaemonSet that was restarted, with these numbers in its status and these Pods.
fn daemon_set_health(status: [i64; 4], outdated: usize, current: usize) -> Health {
    let [wanted, updated, available, misscheduled] = status;
    let over = json!({"status": {"desiredNumberScheduled": wanted, "currentNumberScheduled": wanted,
        "updatedNumberScheduled": updated, "numberAvailable": available, "numberMisscheduled": misscheduled}});
    let mut world = World::new(&none());
    world.workload(Kind::DaemonSet, "agent", &with(record("updating", Some(&key()), &none()), &over));
    for (count, marker) in [(outdated, BEFORE), (current, WANTED)] {
        for number in 0..count {
            world.pod_of("DaemonSet", "agent", &format!("{marker}-{number}"), Some(marker), &none());
        }
    }
    match world.state("DaemonSet", "agent") {
        WorkloadState::InProgress(in_progress) => in_progress.health,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_daemon_set_waits_for_nodes_where_its_other_pods_run_with_the_configuration() {
    let is_waiting = |health| matches!(health, Health::WaitingForNodes(_));
    // One of five nodes is not ready: its Pod is updated, or its old Pod is terminating.
    assert!(is_waiting(daemon_set_health([5, 5, 4, 0], 0, 5)));
    assert!(is_waiting(daemon_set_health([5, 4, 4, 0], 0, 4)));
    // The first updated Pod does not become ready: the configuration may be the cause.
    assert!(matches!(daemon_set_health([5, 1, 4, 0], 4, 1), Health::Progressing(_)));
    assert!(matches!(daemon_set_health([1, 1, 0, 0], 0, 1), Health::Progressing(_)));
    // A node got a taint: its Pod stays, and is not wanted anymore.
    assert_eq!(daemon_set_health([4, 4, 4, 1], 0, 5), Health::Healthy);
    assert!(is_waiting(daemon_set_health([4, 4, 4, 1], 1, 4)));
    assert_eq!(daemon_set_health([4, 4, 4, 0], 1, 3), Health::StillOutdated);
}

#[test]
fn a_daemon_set_is_not_restarted_for_pods_on_nodes_that_it_does_not_select() {
    let mut world = World::new(&none());
    world.workload(Kind::DaemonSet, "agent", &json!({"status": {"numberMisscheduled": 1}}));
    world.pod_of("DaemonSet", "agent", "agent-1", Some(BEFORE), &none());
    assert_eq!(world.state("DaemonSet", "agent"), WorkloadState::Skipped(SkipReason::WaitingForNodes));
    world.pod_of("DaemonSet", "agent", "agent-2", Some(BEFORE), &none());
    assert!(matches!(world.state("DaemonSet", "agent"), WorkloadState::Pending(_)));
}

#[test]
fn every_write_records_the_uid_of_the_workload() {
    use crate::rollout::{restart::patch, step::StepAction};

    let mut world = World::new(&none());
    world.deployment("web", &none());
    world.pod("web-1", "web", Some(BEFORE), &none());
    let WorkloadState::Pending(start) = world.state("Deployment", "web") else { panic!() };
    let weight = FailureWeight::Counted;
    for action in [
        StepAction::Start(start),
        StepAction::Retry(key()),
        StepAction::Finish { since: None },
        StepAction::Fail { reason: "StillOutdated", message: String::new(), weight },
        StepAction::GiveUp,
        StepAction::Revert,
    ] {
        let workload = WorkloadKey::new("ns", "Deployment", "web");
        let resource = world.feed.cluster.read().apps_workload(&workload).cloned().unwrap();
        let patch = patch(&resource, &action, &world.target.key, time("12:00:00"));
        assert_eq!(patch["metadata"]["annotations"]["config.linkerd.io/rollout-uid"], "web", "{action:?}");
    }
}
