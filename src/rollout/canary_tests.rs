//! Workloads of canary namespaces are compared with the configuration of the canary, and all others are not.

use std::sync::Arc;

use serde_json::json;

use super::{
    Rollouts,
    assess::{selection::LabelFilter, workload_state::WorkloadState},
    gate::Gate,
    progress::rollout_progress,
    schedule::RolloutSchedule,
    target::{ActiveCanary, RolloutTarget},
    testing::{BEFORE, WANTED, World, rollout_target, with},
    totals::{CanaryTotals, RolloutTotals},
};
use crate::{
    api::linkerd_config::ConditionReason,
    cluster::{Problems, Projected, kinds::linkerd_config::LinkerdConfig},
};

const CANARY: &str = "aaaaaaaaaaaaaaaa";

fn canary(namespace_labels: &serde_json::Value) -> World {
    let mut world = World::new(&json!({}));
    world.namespace("ns", &json!({"labels": namespace_labels}));
    let selector = json!({"matchLabels": {"canary": "yes"}});
    let active = ActiveCanary {
        namespaces: LabelFilter::of(Some(&selector)),
        injection_hash: CANARY.into(),
        proxy_version: Some("edge-1".into()),
        shape: None,
    };
    world.target.canary = Some(Box::new(world.target.for_canary(&active, None)));
    world
}

fn state(namespace_labels: &serde_json::Value, marker: &str) -> (WorkloadState, RolloutTotals) {
    let mut world = canary(namespace_labels);
    world.deployment("web", &json!({}));
    world.pod("web-1", "web", Some(marker), &json!({}));
    let assessment = world.assess("Deployment", "web");
    let mut totals = RolloutTotals::default();
    totals.add(&assessment, 1);
    let mut none = totals.clone();
    none.add(&assessment, -1);
    assert_eq!(none, RolloutTotals::default());
    (assessment.state, totals)
}

#[test]
fn a_workload_is_up_to_date_with_the_configuration_of_its_namespace_and_restarted_for_it() {
    let included = json!({"canary": "yes"});
    for (labels, current, outdated, key) in [
        (&included, CANARY, WANTED, CANARY),
        (&json!({}), WANTED, CANARY, WANTED),
        (&json!({"canary": "no"}), WANTED, BEFORE, WANTED),
    ] {
        assert_eq!(state(labels, current).0, WorkloadState::UpToDate, "{labels}");
        match state(labels, outdated).0 {
            WorkloadState::Pending(start) => assert!(start.value.starts_with(key), "{labels}: {}", start.value),
            other => panic!("{labels}: {other:?}"),
        }
    }
}

#[test]
fn only_the_workloads_of_canary_namespaces_count_for_the_canary() {
    let included = json!({"canary": "yes"});
    let totals = |labels, marker| state(labels, marker).1.canary;
    let one = CanaryTotals { selected: 1, ..CanaryTotals::default() };
    assert_eq!(totals(&included, CANARY), CanaryTotals { updated: 1, ..one });
    assert_eq!(totals(&included, WANTED), one);
    assert_eq!(totals(&json!({}), WANTED), CanaryTotals::default());
}

#[test]
fn the_namespace_of_the_control_plane_and_kube_system_are_never_a_canary() {
    let mut world = canary(&json!({}));
    for name in ["linkerd", "kube-system", "app"] {
        world.namespace(name, &json!({"labels": {"canary": "yes"}}));
    }
    let state = world.feed.cluster.read();
    let hash = |name: &str| {
        let target = world.target.of_namespace(state.namespaces.find("", name).unwrap());
        target.proxies.injection_hash.clone().unwrap()
    };
    assert_eq!(["linkerd", "kube-system", "app"].map(hash).each_ref().map(|hash| &**hash), [WANTED, WANTED, CANARY]);
}

#[test]
fn workloads_are_assessed_again_for_another_canary_and_not_for_a_closed_gate() {
    let target = canary(&json!({})).target;
    let mut other = target.clone();
    other.gates.closed = Some(Gate { reason: ConditionReason::WaitingForInjector, message: String::new() });
    assert!(target.assesses_like(&other));
    let without = RolloutTarget { canary: None, ..target.clone() };
    assert!(!target.assesses_like(&without) && without.assesses_like(&rollout_target(&json!({}))));
}

#[test]
fn the_progress_of_a_canary_is_that_of_its_namespaces_and_its_rollout_policy() {
    let rollouts = Rollouts::for_test();
    let target = Arc::new(canary(&json!({})).target);
    rollouts.set_progress_for_test(rollout_progress(&RolloutSchedule::default(), &target, None, None));
    let has_progress = |over: &serde_json::Value, term: u64, hash: &str| {
        let selector = json!({"matchLabels": {"canary": "yes"}});
        let object = json!({
            "metadata": {"name": "mesh", "uid": "uid", "generation": 1},
            "spec": {"canary": {"namespaceSelector": selector}},
        });
        let object = serde_json::from_value(with(object, over)).unwrap();
        let config = LinkerdConfig::project(object, &mut Problems::default());
        rollouts.canary_progress(&config, term, hash).is_some()
    };
    assert!(has_progress(&json!({}), 1, CANARY));
    assert!(!has_progress(&json!({}), 2, CANARY) && !has_progress(&json!({}), 1, WANTED));
    let labels = json!({"canary": "no"});
    for over in [
        json!({"spec": {"canary": {"namespaceSelector": {"matchLabels": labels}}}}),
        json!({"spec": {"canary": null}}),
        json!({"spec": {"rollout": {"maxFailures": 3}}}),
        json!({"spec": {"global": {"linkerdNamespace": "other"}}}),
        json!({"metadata": {"uid": "another"}}),
    ] {
        assert!(!has_progress(&over, 1, CANARY), "{over}");
    }
}
