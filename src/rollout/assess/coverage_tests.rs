use serde_json::{Value, json};

use super::*;
use crate::{
    api::linkerd_config::{ProxyShapeStatus, RolloutMethod},
    cluster::index::workload_key::WorkloadKey,
    rollout::{
        assess::workload_state::{FailureWeight, Health, SkipReason, WorkloadState},
        assess_workload,
        key::RolloutKey,
        testing::{BEFORE, WANTED, World, with},
    },
};

const DEFAULT: [&str; 3] = ["ProxyConfig", "ProxyVersion", "TrustRoots"];

fn key() -> String {
    RolloutKey::of(WANTED, Some("roots"), None).to_string()
}

/// A cluster in which workloads are restarted also for these triggers.
fn world(triggers: &[&str]) -> World {
    let triggers = [&DEFAULT[..], triggers].concat();
    World::new(&json!({ "triggers": triggers }))
}

/// A Pod without a proxy.
fn bare() -> Value {
    json!({"spec": {"initContainers": []}})
}

fn annotated(key: &str, value: &Value) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

fn created(at: &str) -> Value {
    json!({"metadata": {"creationTimestamp": format!("2026-01-01T{at}Z")}})
}

/// The Deployment `web` after a restart at noon, in this state.
fn restarted(world: &mut World, state: &str, over: &Value) {
    let record = json!({
        "metadata": {"annotations": {
            "config.linkerd.io/rollout-state": state, "config.linkerd.io/rollout-hash": key(),
            "config.linkerd.io/rollout-started-at": "2026-01-01T12:00:00Z", "config.linkerd.io/rollout-previous": "",
        }},
        "spec": {"template": {"metadata": {"annotations": {"config.linkerd.io/restarted-for": key()}}}},
    });
    world.deployment("web", &with(record, over));
}

fn health(world: &World) -> Health {
    match world.state("Deployment", "web") {
        WorkloadState::InProgress(in_progress) => in_progress.health,
        other => panic!("{other:?}"),
    }
}

fn is_pending(world: &World) -> bool {
    matches!(world.state("Deployment", "web"), WorkloadState::Pending(_))
}

/// The number of Pods of `web` that should have a proxy and have none, waits for its network, and has another shape.
fn counts(world: &World) -> [i64; 3] {
    let pods = world.assess("Deployment", "web").pods;
    [pods.uninjected, pods.waiting_for_network, pods.other_shape]
}

#[test]
fn a_pod_without_a_proxy_counts_unless_the_injector_skips_it() {
    let inject = |value: Value| annotated("linkerd.io/inject", &value);
    let label = |key: &str| json!({"metadata": {"labels": {key: "x"}}});
    let of_namespace = |value: &str| json!({"annotations": {"linkerd.io/inject": value}});
    let none = json!({});
    let exempt = json!({"labels": {"config.linkerd.io/admission-webhooks": "disabled"}});
    let sidecar = json!({"spec": {"containers": [{"name": "app"}, {"name": "istio-proxy"}]}});
    let image = json!({"spec": {"initContainers": [{"name": "mine", "image": "cr.l5d.io/linkerd/proxy-init:v2"}]}});
    for (over, namespace, expected, why) in [
        (json!({}), &none, 1, "it requests a proxy"),
        (inject(json!("ingress")), &none, 1, "it requests a proxy for ingress traffic"),
        (inject(json!(null)), &of_namespace("enabled"), 1, "its namespace requests a proxy"),
        (inject(json!("")), &of_namespace("enabled"), 1, "an empty annotation counts as absent"),
        (inject(json!(null)), &none, 0, "nothing requests a proxy"),
        (inject(json!("disabled")), &of_namespace("enabled"), 0, "it refuses a proxy"),
        (inject(json!("yes")), &of_namespace("enabled"), 0, "its annotation is invalid"),
        (json!({}), &of_namespace("yes"), 0, "the annotation of its namespace is invalid"),
        (json!({}), &exempt, 0, "the webhook excludes its namespace"),
        (json!({"spec": {"hostNetwork": true}}), &none, 0, "it uses the network of the host"),
        (label("linkerd.io/control-plane-component"), &none, 0, "it belongs to a control plane"),
        (label("linkerd.io/cni-resource"), &none, 0, "it belongs to the CNI plugin"),
        (sidecar, &none, 0, "it has the sidecar of another mesh"),
        (image, &none, 0, "it has an init container of Linkerd"),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), &none, 0, "it is terminating"),
        (json!({"status": {"phase": "Succeeded"}}), &none, 0, "it has completed"),
    ] {
        let mut world = world(&[]);
        world.namespace("ns", namespace);
        world.deployment("web", &json!({}));
        let has_init_containers = over.pointer("/spec/initContainers").is_some();
        let pod = if has_init_containers { over.clone() } else { with(over.clone(), &bare()) };
        world.pod("web-1", "web", None, &pod);
        assert_eq!(counts(&world), [expected, 0, 0], "{why}: {over}");
    }
}

#[test]
fn an_annotation_of_a_pod_requests_nothing_against_its_template() {
    for (of_template, expected) in [("enabled", 1), ("", 1), ("disabled", 0), ("bogus", 0)] {
        let mut world = world(&[]);
        let template = annotated("linkerd.io/inject", &json!(of_template));
        world.deployment("web", &json!({"spec": {"template": template}}));
        world.pod("web-1", "web", None, &with(annotated("linkerd.io/inject", &json!("enabled")), &bare()));
        assert_eq!(counts(&world), [expected, 0, 0], "{of_template}");
    }
}

#[test]
fn without_projected_tokens_a_pod_needs_the_token_of_its_service_account() {
    let token = json!([{"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "token"}]);
    let with_token = json!({"spec": {"containers": [{"name": "app", "volumeMounts": token}]}});
    let disabled = with(with_token.clone(), &json!({"spec": {"automountServiceAccountToken": false}}));
    for (over, projects, expected) in [
        (json!({}), Some(true), 1),
        (json!({}), None, 1),
        (json!({}), Some(false), 0),
        (with_token, Some(false), 1),
        (disabled, Some(false), 0),
    ] {
        let mut world = world(&[]);
        let shape = world.target.proxies.shape.take();
        world.target.proxies.shape =
            projects.and_then(|token_projection| Some(ProxyShapeStatus { token_projection, ..shape? }));
        world.deployment("web", &json!({}));
        world.pod("web-1", "web", None, &with(bare(), &over));
        assert_eq!(counts(&world)[0], expected, "{projects:?} {over}");
    }
}

#[test]
fn namespaces_that_linkerds_webhooks_exclude_have_no_gaps() {
    for (namespace, expected) in [("kube-system", 0), ("cert-manager", 0), ("app", 1)] {
        let mut world = world(&[]);
        world.namespace(namespace, &json!({}));
        world.pod_of("", "", "alone", None, &with(bare(), &json!({"metadata": {"namespace": namespace}})));
        let workload = WorkloadKey::new(namespace, "Pod", "alone");
        let assessment = assess_workload(&world.feed.cluster.read(), &workload, &world.target).unwrap();
        assert_eq!(assessment.pods.uninjected, expected, "{namespace}");
    }
}

#[test]
fn a_pod_behind_its_network_validator_is_counted_and_never_a_reason_to_restart() {
    let statuses = |state: Value, restarts: i64| json!({"status": {"initContainerStatuses": [{"name": "linkerd-network-validator", "restartCount": restarts, "state": state}]}});
    for (over, expected) in [
        (statuses(json!({"running": {}}), 0), Some("it waits until")),
        (statuses(json!({"waiting": {"reason": "CrashLoopBackOff"}}), 3), Some("check Linkerd's CNI plugin")),
        (statuses(json!({"terminated": {"exitCode": 95}}), 0), Some("check Linkerd's CNI plugin")),
        (statuses(json!({"terminated": {"exitCode": 0}}), 1), None),
        (json!({"metadata": {"labels": {"linkerd.io/control-plane-ns": "other"}}}), None),
    ] {
        let mut world = world(&["Uninjected", "ProxyShape"]);
        world.deployment("web", &json!({}));
        world.pod("web-1", "web", Some(WANTED), &over);
        assert_eq!(counts(&world), [0, i64::from(expected.is_some()), 0], "{over}");
        assert!(!is_pending(&world), "{over}");
        let state = world.feed.cluster.read();
        let pod = state.pods.iter().next().unwrap();
        let why: Vec<&str> =
            gaps(pod, true, InjectionContext::default(), &world.target).map(CoverageGap::why).collect();
        assert!(expected.is_none_or(|expected| why.len() == 1 && why[0].contains(expected)), "{why:?}");
    }
}

#[test]
fn the_shape_of_a_proxy_is_compared_with_the_annotations_and_the_configuration() {
    const STABLE: &str = "config.linkerd.io/proxy-enable-native-sidecar";
    let init = |name: &str| json!({"name": name});
    let proxy = json!({"name": "linkerd-proxy", "env": [{"name": "LINKERD_CONFIG_HASH", "value": WANTED}]});
    let native = |first: &str| json!({"spec": {"initContainers": [init(first), proxy]}});
    let plain = |last: &str| json!({"spec": {"initContainers": [init(last)], "containers": [proxy, {"name": "app"}]}});
    let template = |value: &str| json!({"spec": {"template": {"metadata": {"annotations": {STABLE: value}}}}});
    let (none, stale) = (json!({}), annotated(STABLE, &json!("false")));
    let of_namespace = json!({"annotations": {STABLE: "false"}});
    // The configuration is a native sidecar, without a CNI plugin.
    for (pod, deployment, namespace, expected, why) in [
        (native("linkerd-init"), &none, &none, None, "it is as configured"),
        (native("mine"), &none, &none, None, "nothing shows how its network is set up"),
        (plain("linkerd-init"), &none, &none, Some(CoverageGap::NotNativeSidecar), "it is a container"),
        (plain("linkerd-init"), &template("false"), &none, None, "its template selects a container"),
        (plain("linkerd-init"), &none, &of_namespace, None, "its namespace selects a container"),
        (native("linkerd-init"), &template("false"), &none, Some(CoverageGap::NativeSidecar), "its template differs"),
        (native("linkerd-init"), &none, &of_namespace, Some(CoverageGap::NativeSidecar), "its namespace differs"),
        (native("linkerd-init"), &template("true"), &of_namespace, None, "its template comes before its namespace"),
        (
            with(plain("linkerd-init"), &stale),
            &none,
            &none,
            Some(CoverageGap::NotNativeSidecar),
            "it inherited an annotation that its namespace does not have anymore",
        ),
        (
            native("linkerd-network-validator"),
            &none,
            &none,
            Some(CoverageGap::CniPlugin),
            "no CNI plugin is configured",
        ),
    ] {
        for triggers in [&[][..], &["ProxyShape"]] {
            let mut world = world(triggers);
            world.namespace("ns", namespace);
            world.deployment("web", deployment);
            world.pod("web-1", "web", Some(WANTED), &pod);
            assert_eq!(counts(&world), [0, 0, i64::from(expected.is_some())], "{why}");
            let pods = world.assess("Deployment", "web").pods;
            let is_restarted = expected.is_some() && !triggers.is_empty();
            assert_eq!((pods.outdated, is_pending(&world)), (i64::from(is_restarted), is_restarted), "{why}");
            let state = world.feed.cluster.read();
            let found = state.namespaces.find("", "ns").map(|namespace| &**namespace);
            let resource = state.apps_workload(&WorkloadKey::new("ns", "Deployment", "web")).unwrap();
            let context = InjectionContext { namespace: found, template: Some(&resource.template) };
            let pod = state.pods.iter().next().unwrap();
            let gaps: Vec<_> = gaps(pod, true, context, &world.target).collect();
            assert_eq!(gaps, expected.into_iter().collect::<Vec<_>>(), "{why}");
        }
    }
    let mut world = world(&[]);
    world.deployment("web", &json!({}));
    world.pod("web-1", "web", Some(WANTED), &native("linkerd-init"));
    let shape = world.target.proxies.shape.as_mut().unwrap();
    shape.cni_enabled = true;
    assert_eq!(counts(&world), [0, 0, 1], "a CNI plugin is configured");
    world.target.proxies.shape = None;
    assert_eq!(counts(&world), [0, 0, 0], "the configuration is unknown");
    // The owner of this Pod is unknown, so its own annotations decide.
    world.pod_of("CloneSet", "set", "set-1", Some(WANTED), &with(plain("linkerd-init"), &stale));
    assert_eq!(world.assess("CloneSet", "set").pods.other_shape, 0);
}

#[test]
fn a_workload_without_proxies_is_restarted_only_with_the_trigger_and_by_the_rules_of_all_restarts() {
    let with_pod = |triggers: &[&str], over: &Value| {
        let mut world = world(triggers);
        world.deployment("web", over);
        world.pod("web-1", "web", None, &with(bare(), &created("11:00:00")));
        world
    };
    assert_eq!(with_pod(&[], &json!({})).state("Deployment", "web"), WorkloadState::Unmeshed);
    assert_eq!(with_pod(&["ProxyShape"], &json!({})).state("Deployment", "web"), WorkloadState::Unmeshed);
    let mut world = with_pod(&["Uninjected"], &json!({}));
    let WorkloadState::Pending(start) = world.state("Deployment", "web") else { panic!() };
    assert_eq!((start.value, start.method), (key(), RolloutMethod::Restart));
    for (over, expected) in [
        (json!({"metadata": {"labels": {"config.linkerd.io/reconcile": null}}}), WorkloadState::Unmeshed),
        (json!({"spec": {"paused": true}}), WorkloadState::Skipped(SkipReason::Paused)),
        (json!({"status": {"availableReplicas": 0}}), WorkloadState::Skipped(SkipReason::Unhealthy)),
    ] {
        assert_eq!(with_pod(&["Uninjected"], &over).state("Deployment", "web"), expected, "{over}");
    }
    let budget = json!({"metadata": {"name": "pdb", "namespace": "ns", "generation": 1},
        "spec": {"selector": {}}, "status": {"disruptionsAllowed": 0, "observedGeneration": 1}});
    world.feed.apply(crate::cluster::Kind::PodDisruptionBudget, kube::runtime::watcher::Event::Apply(budget));
    assert_eq!(world.state("Deployment", "web"), WorkloadState::Skipped(SkipReason::BlockedByPDB));
    // One of two Pods has no proxy.
    for (triggers, is_restarted) in [(&[][..], false), (&["Uninjected"], true)] {
        let mut world = with_pod(triggers, &json!({}));
        world.pod("web-2", "web", Some(WANTED), &json!({}));
        let state = world.state("Deployment", "web");
        assert_eq!(matches!(state, WorkloadState::Pending(_)), is_restarted, "{state:?}");
        assert_eq!(state == WorkloadState::UpToDate, !is_restarted, "{state:?}");
    }
}

#[test]
fn after_a_restart_for_missing_proxies_old_pods_do_not_count_as_its_result() {
    let is_rolling = json!({"status": {"updatedReplicas": 0}});
    for (at, over, expected, why) in [
        ("11:00:00", &is_rolling, None, "it is an old Pod"),
        ("12:00:00", &is_rolling, None, "it may be an old Pod of the same second"),
        ("12:00:10", &is_rolling, None, "the clocks may differ"),
        ("12:00:11", &is_rolling, Some(Health::Uninjected("web-1".into())), "it is newer than the restart"),
        ("11:00:00", &json!({}), Some(Health::SeemsUninjected("web-1".into())), "no old Pod is left"),
    ] {
        let mut world = world(&["Uninjected"]);
        restarted(&mut world, "updating", over);
        world.pod("web-1", "web", None, &with(bare(), &created(at)));
        match expected {
            Some(expected) => assert_eq!(health(&world), expected, "{why}"),
            None => assert!(matches!(health(&world), Health::Progressing(_)), "{why}: {:?}", health(&world)),
        }
    }
    let mut world = world(&["Uninjected"]);
    restarted(&mut world, "updating", &json!({}));
    world.pod("web-1", "web", Some(WANTED), &created("12:00:05"));
    assert_eq!(health(&world), Health::Healthy);
}

#[test]
fn a_restart_that_left_pods_without_a_proxy_is_not_repeated_for_the_same_configuration() {
    let mut world = world(&["Uninjected"]);
    restarted(&mut world, "failed", &json!({}));
    world.pod("web-1", "web", None, &with(bare(), &created("12:00:05")));
    let WorkloadState::Failed(failure) = world.state("Deployment", "web") else { panic!() };
    assert_eq!((failure.weight, failure.recovered), (FailureWeight::LostProxies, false));
    // A request for a retry is another key.
    world.target.key = RolloutKey::of(WANTED, Some("roots"), Some("please"));
    assert!(is_pending(&world));
    world.target.key = RolloutKey::from(&*key());
    // After a success, a later outage of the injector is another cause. The number of restarts stays bounded.
    restarted(&mut world, "updated", &json!({}));
    let WorkloadState::Pending(start) = world.state("Deployment", "web") else { panic!() };
    assert_eq!(start.value, format!("{}.2", key()));
    let fifth = format!("{}.5", key());
    let over = json!({"metadata": {"annotations": {"config.linkerd.io/rollout-hash": fifth}}});
    restarted(&mut world, "updated", &over);
    assert_eq!(world.state("Deployment", "web"), WorkloadState::Skipped(SkipReason::TooManyAttempts));
}

#[test]
fn a_restart_that_leaves_the_shape_is_not_retried() {
    let plain = json!({"spec": {"initContainers": [], "containers": [
        {"name": "linkerd-proxy", "env": [{"name": "LINKERD_CONFIG_HASH", "value": WANTED}]}, {"name": "app"}]}});
    let mut with_shape = world(&["ProxyShape"]);
    restarted(&mut with_shape, "updating", &json!({}));
    with_shape.pod("web-1", "web", Some(WANTED), &with(plain.clone(), &created("12:00:05")));
    assert_eq!(health(&with_shape), Health::StillUncovered);
    // With another configuration as well, a second restart may help.
    with_shape.pod("web-1", "web", Some(BEFORE), &json!({}));
    assert_eq!(health(&with_shape), Health::StillOutdated);
    // With the method Evict, the new Pod is not evicted again.
    for (at, expected) in [("11:00:00", Health::Evicting), ("12:00:05", Health::StillUncovered)] {
        let mut world = world(&["ProxyShape"]);
        restarted(&mut world, "updating", &annotated("config.linkerd.io/rollout-previous", &json!(null)));
        world.pod("web-1", "web", Some(WANTED), &with(plain.clone(), &created(at)));
        assert_eq!(health(&world), expected, "{at}");
    }
}
