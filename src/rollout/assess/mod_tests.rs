use serde_json::{Value, json};

use super::{workload_state::Health, *};
use crate::{
    api::linkerd_config::{OptIn, RolloutPods},
    cluster::Kind,
    rollout::{
        key::RolloutKey,
        target::{Baseline, TimeRange},
        testing::{BEFORE, WANTED, World, injected_with, time, with},
    },
    x509::testing::anchors,
};

fn key() -> String {
    RolloutKey::of(WANTED, Some("roots"), None).to_string()
}

/// Returns the annotations of a restarted workload.
fn annotated(state: &str, hash: &str, template: Option<&str>) -> Value {
    json!({
        "metadata": {"annotations": {
            "config.linkerd.io/rollout-state": state, "config.linkerd.io/rollout-hash": hash,
            "config.linkerd.io/rollout-started-at": "2026-01-01T12:00:00Z", "config.linkerd.io/rollout-previous": "",
        }},
        "spec": {"template": {"metadata": {"annotations": {"config.linkerd.io/restarted-for": template}}}},
    })
}

fn classes(world: &World) -> RolloutPods {
    world.assess("Deployment", "web").pods
}

#[test]
fn a_pod_is_classified_by_its_injected_values_and_its_creation_time() {
    let ns = |changes: Value| changes;
    let created = |at: &str| json!({"metadata": {"creationTimestamp": format!("2026-01-01T{at}Z")}});
    let annotation = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
    let current = RolloutPods { meshed: 1, current: 1, ..RolloutPods::default() };
    let outdated = RolloutPods { meshed: 1, outdated: 1, ..RolloutPods::default() };
    let pinned = RolloutPods { meshed: 1, pinned: 1, ..RolloutPods::default() };
    let nothing = RolloutPods::default();
    for (marker, over, expected, why) in [
        (Some(WANTED), json!({}), current, "it has the marker"),
        (Some(BEFORE), json!({}), outdated, "it has another marker"),
        (None, created("11:00:00"), outdated, "it was created with another document"),
        (None, created("12:00:01"), outdated, "it was created with an installer's document"),
        (Some(WANTED), annotation("linkerd.io/proxy-version", "edge-0"), current, "another webhook rewrites images"),
        (Some(WANTED), injected_with(Some(WANTED), Some(&anchors("ab"))), outdated, "its trust anchors differ"),
        (Some(WANTED), injected_with(Some(WANTED), None), current, "its trust anchors are unknown"),
        (Some(WANTED), annotation("linkerd.io/trust-root-sha256", "others"), current, "anyone may write an annotation"),
        (
            Some(WANTED),
            annotation("config.linkerd.io/proxy-version", "edge-9"),
            pinned,
            "its annotation pins the version",
        ),
        (
            Some(BEFORE),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            nothing,
            "it is terminating",
        ),
        (
            Some(BEFORE),
            json!({"metadata": {"labels": {"linkerd.io/control-plane-ns": "other"}}}),
            nothing,
            "it belongs to another mesh",
        ),
        (
            Some(BEFORE),
            json!({"metadata": {"labels": {"linkerd.io/control-plane-component": "identity"}}}),
            nothing,
            "it belongs to the control plane",
        ),
        (
            Some(BEFORE),
            json!({"status": {"phase": "Succeeded"}}),
            RolloutPods { completed: 1, ..nothing },
            "it has completed",
        ),
        (
            Some(WANTED),
            json!({"spec": {"initContainers": []}}),
            RolloutPods { uninjected: 1, ..nothing },
            "it has no proxy",
        ),
        (
            None,
            ns(json!({"spec": {"initContainers": [], "hostNetwork": true}})),
            nothing,
            "it uses the network of the host",
        ),
        (
            None,
            json!({"metadata": {"annotations": {"linkerd.io/inject": "disabled"}}, "spec": {"initContainers": []}}),
            nothing,
            "it disables injection",
        ),
    ] {
        let mut world = World::new(&json!({}));
        world.deployment("web", &json!({}));
        world.pod("web-1", "web", marker, &over);
        assert_eq!(classes(&world), expected, "{why}: {over}");
    }
}

#[test]
fn a_pod_without_a_marker_is_classified_by_the_adoption() {
    let mut world = World::new(&json!({}));
    world.deployment("web", &json!({}));
    world.pod("web-1", "web", None, &json!({}));
    let mut class = |hash: &str, adopted: Option<&str>, version: &str| {
        let adopted = adopted.map(time);
        world.target.proxies.baseline =
            Some(crate::rollout::target::Baseline { hash: hash.into(), installed: None, adopted });
        world.target.proxies.proxy_version = Some(version.into());
        let RolloutPods { current, outdated, .. } = classes(&world);
        (current, outdated)
    };
    assert_eq!(class(WANTED, None, "edge-1"), (1, 0), "adoption alone restarts no workload");
    assert_eq!(class(WANTED, Some("12:00:00"), "edge-1"), (1, 0));
    assert_eq!(class(WANTED, Some("12:00:00"), "edge-2"), (0, 1), "another proxy version is out of date");
    assert_eq!(class(BEFORE, None, "edge-1"), (0, 1), "the adopted document differs from the target");
    world.target.proxies.baseline = None;
    assert_eq!(classes(&world).unknown, 1);
}

#[test]
fn a_pod_that_was_created_during_a_drift_is_out_of_date_with_any_marker() {
    let mut world = World::new(&json!({}));
    world.deployment("web", &json!({}));
    world.pod("web-1", "web", Some(WANTED), &json!({"metadata": {"creationTimestamp": "2026-01-01T13:00:00Z"}}));
    for (from, to, is_outdated) in [
        ("12:59:59", Some("13:00:00"), true),
        ("13:00:00", None, true),
        ("13:00:01", None, false),
        ("12:00:00", Some("12:59:59"), false),
    ] {
        world.target.proxies.drift = vec![TimeRange { from: time(from), to: to.map(time) }];
        let seen = world.assess("Deployment", "web");
        assert_eq!((seen.pods.outdated == 1, seen.suspects == 1), (is_outdated, is_outdated), "{from} {to:?}");
    }
}

#[test]
fn only_declared_triggers_restart_a_workload() {
    let (version, roots) = ("edge-1", "a");
    let (older, others) = ("edge-0", "ab");
    for (triggers, marker, version, roots, restarts) in [
        (json!(["ProxyConfig"]), BEFORE, version, roots, true),
        (json!(["ProxyVersion", "TrustRoots"]), BEFORE, version, roots, false),
        (json!(["ProxyVersion"]), BEFORE, older, roots, true),
        (json!(["ProxyConfig", "TrustRoots"]), BEFORE, older, roots, false),
        (json!(["TrustRoots"]), WANTED, version, others, true),
        (json!(["ProxyConfig", "ProxyVersion"]), WANTED, version, others, false),
    ] {
        let mut world = World::new(&json!({ "triggers": triggers }));
        world.deployment("web", &json!({}));
        let annotation = json!({"metadata": {"annotations": {"linkerd.io/proxy-version": version}}});
        let over = with(annotation, &injected_with(Some(marker), Some(&anchors(roots))));
        world.pod("web-1", "web", Some(marker), &over);
        let seen = world.assess("Deployment", "web");
        assert_eq!(matches!(seen.state, WorkloadState::Pending(_)), restarts, "{triggers}");
        assert_eq!(seen.pods.outdated, 1, "the Pod is counted with any triggers");
    }
}

#[test]
fn a_workload_is_restarted_for_the_key_and_then_for_its_next_attempt() {
    let started = |world: &World| match world.state("Deployment", "web") {
        WorkloadState::Pending(start) => start.value,
        other => panic!("{other:?}"),
    };
    assert_eq!(started(&World::outdated(&json!({}))), key());
    assert_eq!(started(&World::outdated(&annotated("updated", "old", Some("old")))), key());
    // The workload was up to date, and has outdated Pods again.
    assert_eq!(started(&World::outdated(&annotated("updated", &key(), Some(&key())))), format!("{}.2", key()));
    let fifth = format!("{}.5", key());
    let world = World::outdated(&annotated("updated", &fifth, Some(&fifth)));
    assert_eq!(world.state("Deployment", "web"), WorkloadState::Skipped(SkipReason::TooManyAttempts));
}

#[test]
fn a_restart_in_progress_is_read_from_the_annotations() {
    let health = |state: &str, hash: &str, template: Option<&str>, marker: &str, over: Value| {
        let mut world = World::new(&json!({}));
        world.deployment("web", &with(annotated(state, hash, template), &over));
        world.pod("web-1", "web", Some(marker), &json!({}));
        match world.state("Deployment", "web") {
            WorkloadState::InProgress(in_progress) => in_progress.health,
            other => panic!("{other:?}"),
        }
    };
    let (key, none) = (key(), json!({}));
    let now = Some(key.as_str());
    assert_eq!(health("updating", &key, now, WANTED, none.clone()), Health::Healthy);
    assert_eq!(health("updating", &key, now, BEFORE, none.clone()), Health::StillOutdated);
    assert_eq!(health("updating", &key, None, BEFORE, none.clone()), Health::Reverted);
    assert_eq!(health("retrying", &key, None, BEFORE, none.clone()), Health::Reverted);
    assert_eq!(health("retrying", &key, None, WANTED, none.clone()), Health::Healthy, "its Pods are up to date");
    let quota = json!([{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: small"}]);
    let missing = json!({"status": {"availableReplicas": 0, "conditions": quota}});
    let Health::Progressing(text) = health("updating", &key, now, WANTED, missing) else { panic!() };
    assert_eq!(text, "1 of 1 Pods are updated, 0 are available: exceeded quota: small");
    // The counts of a Deployment include its old Pods, which stay until the new ones are available.
    for (min_ready, total, ready, available, expected) in [
        (
            30,
            2,
            2,
            1,
            "1 of 1 Pods are updated, 1 of 2 with old Pods are available: its new Pod must be ready for 30 s (minReadySeconds)",
        ),
        (
            30,
            3,
            3,
            1,
            "1 of 1 Pods are updated, 1 of 3 with old Pods are available: its new Pods must be ready for 30 s (minReadySeconds)",
        ),
        (30, 1, 1, 0, "1 of 1 Pods are updated, 0 are available: its new Pod must be ready for 30 s (minReadySeconds)"),
        (
            30,
            2,
            1,
            1,
            "1 of 1 Pods are updated, 1 of 2 with old Pods are available: its new Pod must get ready, and stay so for 30 s (minReadySeconds)",
        ),
        (0, 2, 1, 1, "1 of 1 Pods are updated, 1 of 2 with old Pods are available: its new Pod is not ready"),
        (0, 2, 2, 2, "1 of 1 Pods are updated, 2 of 2 with old Pods are available"),
        (0, 1, 0, 0, "1 of 1 Pods are updated, 0 are available"),
    ] {
        let status = json!({"replicas": total, "readyReplicas": ready, "availableReplicas": available});
        let over = json!({"spec": {"minReadySeconds": min_ready}, "status": status});
        let Health::Progressing(text) = health("updating", &key, now, WANTED, over) else { panic!("{expected}") };
        assert_eq!(text, expected);
    }
    let scaled = json!({"spec": {"replicas": 2}});
    assert!(matches!(health("updating", &key, now, WANTED, scaled), Health::Progressing(_)), "a Pod is missing");
    let unobserved = json!({"metadata": {"generation": 2}});
    assert!(matches!(health("updating", &key, now, WANTED, unobserved), Health::Progressing(_)));
    // A workload that still rolls for another key is pending, and keeps its place.
    let mut world =
        World::outdated(&with(annotated("updating", "old", Some("old")), &json!({"status": {"availableReplicas": 0}})));
    assert!(matches!(world.state("Deployment", "web"), WorkloadState::Pending(_)));
    assert_eq!(world.assess("Deployment", "web").rolling, Some(time("12:00:00")));
    world.deployment("web", &annotated("updating", "old", Some("old")));
    assert_eq!(world.assess("Deployment", "web").rolling, None, "the rollout is complete");
}

#[test]
fn a_new_pod_without_a_proxy_is_reported_and_an_older_one_is_not() {
    let health_of_pod_created_at = |at: &str| {
        let over = annotated("updating", &key(), Some(&key()));
        let mut world = World::new(&json!({}));
        world.deployment("web", &with(over, &json!({"status": {"updatedReplicas": 0}})));
        let bare =
            json!({"metadata": {"creationTimestamp": format!("2026-01-01T{at}Z")}, "spec": {"initContainers": []}});
        world.pod("web-1", "web", None, &bare);
        match world.state("Deployment", "web") {
            WorkloadState::InProgress(in_progress) => in_progress.health,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(health_of_pod_created_at("12:00:00"), Health::Uninjected("web-1".into()));
    assert!(matches!(health_of_pod_created_at("11:59:59"), Health::Progressing(_)));
}

#[test]
fn a_restart_or_failure_of_a_deleted_workload_is_neither_monitored_nor_reverted_nor_counted() {
    let unavailable = json!({"status": {"updatedReplicas": 0, "availableReplicas": 0}});
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T12:01:00Z"}});
    for state in ["updating", "retrying", "failed", "rolled-back"] {
        for rolled_back in [None, Some(RolloutKey::of(WANTED, Some("roots"), None))] {
            let object = with(annotated(state, &key(), Some(&key())), &unavailable);
            let mut world = World::outdated(&object);
            world.target.rolled_back.clone_from(&rolled_back);
            world.namespace("ns", &deleted["metadata"]);
            assert_eq!(world.state("Deployment", "web"), WorkloadState::Skipped(SkipReason::Deleting), "{state}");

            let mut world = World::outdated(&with(object.clone(), &deleted));
            world.target.rolled_back.clone_from(&rolled_back);
            assert_eq!(world.state("Deployment", "web"), WorkloadState::Skipped(SkipReason::Deleting), "{state}");

            // Its Pods are deleted first.
            let mut world = World::new(&json!({}));
            world.target.rolled_back = rolled_back;
            world.deployment("web", &with(object, &deleted));
            assert_eq!(world.state("Deployment", "web"), WorkloadState::Unmeshed, "{state}");
        }
    }
}

#[test]
fn a_failure_lasts_until_the_key_changes() {
    let mut failed = annotated("failed", &key(), Some(&key()));
    failed["metadata"]["annotations"]["config.linkerd.io/rollout-message"] = json!("StillOutdated: twice: so");
    let mut world = World::outdated(&failed);
    let WorkloadState::Failed(failure) = world.state("Deployment", "web") else { panic!() };
    assert_eq!((&*failure.reason, &*failure.message), ("StillOutdated", "twice: so"));
    world.target.key = RolloutKey::of(WANTED, Some("roots"), Some("please"));
    assert!(matches!(world.state("Deployment", "web"), WorkloadState::Pending(_)));
}

#[test]
fn a_workload_that_cannot_or_must_not_be_restarted_is_skipped_with_a_reason() {
    let strategy = |kind: &str| json!({"spec": {"updateStrategy": {"type": kind}}});
    for (kind, over, skip) in [
        (Kind::Deployment, json!({"spec": {"paused": true}}), SkipReason::Paused),
        (Kind::Deployment, json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), SkipReason::Deleting),
        (
            Kind::Deployment,
            json!({"spec": {"template": {"metadata": {"annotations": {"linkerd.io/inject": "disabled"}}}}}),
            SkipReason::InjectionDisabled,
        ),
        (
            Kind::Deployment,
            json!({"spec": {"template": {"spec": {"containers": [{"name": "app"}, {"name": "linkerd-proxy"}]}}}}),
            SkipReason::ProxyInTemplate,
        ),
        (
            Kind::StatefulSet,
            json!({"spec": {"template": {"spec": {"initContainers": [{"name": "linkerd-proxy"}]}}}}),
            SkipReason::ProxyInTemplate,
        ),
        (Kind::StatefulSet, strategy("OnDelete"), SkipReason::OnDelete),
        (Kind::DaemonSet, strategy("OnDelete"), SkipReason::OnDelete),
        (
            Kind::StatefulSet,
            json!({"spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}}}),
            SkipReason::Partition,
        ),
    ] {
        let mut world = World::new(&json!({}));
        world.workload(kind, "web", &over);
        match kind {
            Kind::Deployment => world.pod("web-1", "web", Some(BEFORE), &json!({})),
            Kind::StatefulSet => world.pod_of("StatefulSet", "web", "web-1", Some(BEFORE), &json!({})),
            _ => world.pod_of("DaemonSet", "web", "web-1", Some(BEFORE), &json!({})),
        }
        let name = kind.resource().split('.').next().unwrap_or_default();
        let kind = ["Deployment", "StatefulSet", "DaemonSet"]
            .into_iter()
            .find(|it| name.starts_with(&it.to_lowercase()))
            .unwrap();
        assert_eq!(world.state(kind, "web"), WorkloadState::Skipped(skip), "{over}");
    }
    for (kind, owner, skip) in [
        ("Job", "batch", SkipReason::Job),
        ("Node", "node-1", SkipReason::StaticPod),
        ("CloneSet", "set", SkipReason::UnknownOwner),
        ("ReplicaSet", "lonely", SkipReason::UnknownOwner),
    ] {
        let mut world = World::new(&json!({"optIn": "All"}));
        world.target.selection.opt_in = OptIn::All;
        world.pod_of(kind, owner, "pod-1", Some(BEFORE), &json!({}));
        assert_eq!(world.state(kind, owner), WorkloadState::Unsupported(skip), "{kind}");
        world.pod_of("", "", "bare", Some(BEFORE), &json!({}));
        assert_eq!(world.state("Pod", "bare"), WorkloadState::Unsupported(SkipReason::NoController));
    }
}

#[test]
fn a_restart_is_complete_only_when_the_old_pods_are_gone() {
    for (replicas, is_complete) in [(1, true), (2, false)] {
        let over = with(annotated("updating", &key(), Some(&key())), &json!({"status": {"replicas": replicas}}));
        let mut world = World::new(&json!({}));
        world.deployment("web", &over);
        world.pod("web-1", "web", Some(WANTED), &json!({}));
        let WorkloadState::InProgress(in_progress) = world.state("Deployment", "web") else { panic!("{replicas}") };
        assert_eq!(in_progress.health == Health::Healthy, is_complete, "{replicas}: {:?}", in_progress.health);
    }
}

#[test]
fn a_workload_whose_pods_request_a_proxy_by_another_webhook_is_restarted_unless_its_template_refuses_one() {
    for (inject, is_skipped) in [(json!(null), false), (json!("disabled"), true)] {
        let over = json!({"spec": {"template": {"metadata": {"annotations": {"linkerd.io/inject": inject}}}}});
        let state = World::outdated(&over).state("Deployment", "web");
        assert_eq!(state == WorkloadState::Skipped(SkipReason::InjectionDisabled), is_skipped, "{inject}: {state:?}");
    }
}

#[test]
fn a_restart_of_a_stateful_set_replaces_the_pods_from_the_partition_on() {
    for (partition, is_skipped) in [(0, false), (1, false), (2, true)] {
        let over =
            json!({"spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}}});
        let mut world = World::new(&json!({}));
        world.workload(Kind::StatefulSet, "web", &over);
        world.pod_of("StatefulSet", "web", "web-1", Some(BEFORE), &json!({}));
        let state = world.state("StatefulSet", "web");
        assert_eq!(state == WorkloadState::Skipped(SkipReason::Partition), is_skipped, "{partition}: {state:?}");
    }
}

#[test]
fn a_namespace_that_breaks_injection_and_an_exhausted_budget_block_a_restart() {
    let mut world = World::outdated(&json!({}));
    world.namespace("ns", &json!({"annotations": {"config.linkerd.io/proxy-additional-env": "[]"}}));
    assert_eq!(world.state("Deployment", "web"), WorkloadState::Skipped(SkipReason::NamespaceBreaksInjection));
    world.namespace("ns", &json!({}));
    let budget = |allowed: i32| {
        json!({"metadata": {"name": "pdb", "namespace": "ns", "generation": 1},
        "spec": {"selector": {}}, "status": {"disruptionsAllowed": allowed, "observedGeneration": 1}})
    };
    world.feed.apply(Kind::PodDisruptionBudget, kube::runtime::watcher::Event::Apply(budget(0)));
    assert_eq!(world.state("Deployment", "web"), WorkloadState::Skipped(SkipReason::BlockedByPDB));
    world.target.rollout.respect_pdb = false;
    assert!(matches!(world.state("Deployment", "web"), WorkloadState::Pending(_)), "the budget is ignored");
    world.target.rollout.respect_pdb = true;
    world.feed.apply(Kind::PodDisruptionBudget, kube::runtime::watcher::Event::Apply(budget(1)));
    assert!(matches!(world.state("Deployment", "web"), WorkloadState::Pending(_)));
}

#[test]
fn a_workload_with_a_rolled_back_configuration_is_reverted_first() {
    let bad = RolloutKey::of("bad", Some("roots"), None);
    for state in ["updating", "retrying", "failed"] {
        let mut world = World::outdated(&annotated(state, bad.as_str(), Some(bad.as_str())));
        world.target.rolled_back = Some(bad.clone());
        let WorkloadState::InProgress(in_progress) = world.state("Deployment", "web") else { panic!("{state}") };
        assert_eq!(in_progress.health, Health::ToBeReverted);
    }
    // The revert is in progress, and the Pod that blocks the StatefulSet is evicted.
    let stuck = json!({"status": {"availableReplicas": 0}});
    let over = with(annotated("rolled-back", bad.as_str(), None), &stuck);
    let mut world = World::new(&json!({}));
    world.target.rolled_back = Some(bad.clone());
    world.workload(Kind::StatefulSet, "web", &over);
    world.pod_of("StatefulSet", "web", "web-0", Some("bad"), &json!({}));
    let WorkloadState::InProgress(in_progress) = world.state("StatefulSet", "web") else { panic!() };
    assert_eq!(in_progress.evict.as_deref(), Some("web-0"));
    // After the revert, the workload is restarted like any other.
    let mut world = World::outdated(&annotated("rolled-back", bad.as_str(), None));
    world.target.rolled_back = Some(bad);
    assert!(matches!(world.state("Deployment", "web"), WorkloadState::Pending(_)));
}

#[test]
fn with_the_evict_method_pods_are_evicted_one_after_the_other() {
    let mut world = World::new(&json!({"method": "Evict"}));
    let evicted = json!({"metadata": {"annotations": {"config.linkerd.io/rollout-state": "updating", "config.linkerd.io/rollout-hash": key(),
        "config.linkerd.io/rollout-started-at": "2026-01-01T12:00:00Z"}}, "spec": {"replicas": 2},
        "status": {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2}});
    world.deployment("web", &evicted);
    world.pod("web-1", "web", Some(BEFORE), &json!({}));
    world.pod("web-2", "web", Some(WANTED), &json!({"metadata": {"creationTimestamp": "2026-01-01T12:30:00Z"}}));
    let WorkloadState::InProgress(in_progress) = world.state("Deployment", "web") else { panic!() };
    assert_eq!(
        (in_progress.health, in_progress.evict.as_deref(), in_progress.since),
        (Health::Evicting, Some("web-1"), Some(time("12:00:00")))
    );
    assert_eq!((in_progress.newest_pod, in_progress.marks.current), (Some(time("12:30:00")), 1));
    world.pod("web-1", "web", Some(WANTED), &json!({}));
    let WorkloadState::InProgress(in_progress) = world.state("Deployment", "web") else { panic!() };
    assert_eq!(in_progress.health, Health::Healthy);
}

#[test]
fn a_pod_without_hash_is_compared_with_the_document_of_its_time() {
    const OTHER_VERSION: &str = "v2_0123456789abcdef";
    let current = RolloutPods { meshed: 1, current: 1, ..RolloutPods::default() };
    let outdated = RolloutPods { meshed: 1, outdated: 1, ..RolloutPods::default() };
    let unknown = RolloutPods { meshed: 1, unknown: 1, ..RolloutPods::default() };
    let (before, after) = ("11:00:00", "12:00:01");
    for (created, baseline, installed, expected, why) in [
        (before, WANTED, None, current, "the document before the adoption"),
        (before, BEFORE, Some(WANTED), outdated, "the document before the adoption"),
        ("12:00:00", BEFORE, Some(WANTED), outdated, "the document before the adoption, in the second of the adoption"),
        (after, BEFORE, Some(WANTED), current, "the installer's document"),
        (after, WANTED, Some(BEFORE), outdated, "the installer's document"),
        (after, WANTED, None, outdated, "an unknown document of the installer"),
        (before, OTHER_VERSION, Some(WANTED), unknown, "a document whose hash cannot be compared"),
        (before, OTHER_VERSION, Some(OTHER_VERSION), outdated, "the document of the base"),
    ] {
        let mut world = World::new(&json!({}));
        let adopted = Some(time("12:00:00"));
        let baseline = Baseline { hash: baseline.into(), installed: installed.map(Arc::from), adopted };
        world.target.proxies.baseline = Some(baseline);
        world.deployment("web", &json!({}));
        let over = json!({"metadata": {"creationTimestamp": format!("2026-01-01T{created}Z")}});
        world.pod("web-1", "web", None, &over);
        assert_eq!(classes(&world), expected, "it was created with {why}");
    }
}
