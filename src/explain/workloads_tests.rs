//! The output for workloads, as text and as JSON.

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{
        Problems, Watched,
        kinds::{
            apps_workload::AppsWorkloadOf, disruption_budget::DisruptionBudget, linkerd_config::LinkerdConfig,
            namespace::Namespace, pod::Pod,
        },
    },
    explain::{
        WorkloadsInput,
        output::ExplainOutput,
        print::text,
        testing::{INSTALLED, config, input},
    },
    values::Document,
    x509::testing::anchors,
};

const RESTARTED: &str = "2026-11-21T10:00:00Z";

fn put<T: Watched>(state: &mut State, object: &Value) {
    let wire = T::Wire::deserialize(object).unwrap();
    T::project(wire, &mut Problems::default()).apply(state);
}

/// Adds a workload in namespace `app` that opted in, with a Pod for each of these proxies; `""` is a Pod without a
/// proxy.
fn workload<T: Watched>(state: &mut State, kind: &str, name: &str, over: &Value, proxies: &[&str]) {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "app", "uid": name, "resourceVersion": "1", "generation": 1,
            "labels": {"config.linkerd.io/reconcile": "auto"}},
        "spec": {"replicas": proxies.len(), "template": {"metadata": {"annotations": {"linkerd.io/inject": "enabled"}}}},
        "status": {"observedGeneration": 1, "replicas": proxies.len(), "updatedReplicas": proxies.len(),
            "availableReplicas": proxies.len()},
    });
    merge(&mut object, over);
    put::<T>(state, &object);
    for (number, proxy) in proxies.iter().enumerate() {
        let owner = json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name}]);
        put::<Pod>(state, &pod(&format!("{name}-{number}"), &json!({"ownerReferences": owner}), proxy));
    }
}

fn deployment(state: &mut State, name: &str, over: &Value, proxies: &[&str]) {
    workload::<AppsWorkloadOf<Deployment>>(state, "Deployment", name, over, proxies);
}

fn pod(name: &str, over: &Value, proxy: &str) -> Value {
    let container = json!({"name": "linkerd-proxy", "image": "proxy:edge-1", "env": [{"name": "LINKERD_CONFIG_HASH", "value": proxy}]});
    let mut metadata = json!({
        "name": name, "namespace": "app", "creationTimestamp": RESTARTED,
        "labels": {"linkerd.io/control-plane-ns": "linkerd", "app": name.rsplit_once('-').map(|(app, _)| app)},
        "annotations": {"linkerd.io/inject": "enabled"},
    });
    merge(&mut metadata, over);
    let containers = if proxy.is_empty() { json!([]) } else { json!([container]) };
    json!({"metadata": metadata, "spec": {"containers": containers}, "status": {"phase": "Running"}})
}

fn merge(into: &mut Value, over: &Value) {
    match (into, over) {
        (Value::Object(into), Value::Object(over)) => {
            over.iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
            into.retain(|_, value| !value.is_null());
        }
        (into, over) => *into = over.clone(),
    }
}

/// A state with the namespace `app`, which is empty.
fn empty() -> State {
    let mut state = State::default();
    put::<Namespace>(&mut state, &json!({"metadata": {"name": "app"}}));
    state
}

/// The input for a resource in effect whose marker is `new`.
fn with(state: State, spec: &Value, conditions: &Value) -> ExplainInput {
    let mut input = input(spec);
    let status = json!({"observedGeneration": 0, "active": true, "injectionHash": "new", "revisions": {"base": 1},
        "conditions": conditions, "rollout": {"hash": "new-none"}});
    let mut config = LinkerdConfig::clone(&input.config);
    config.status = Arc::new(serde_json::from_value(status).unwrap());
    input.config = Arc::new(config);
    input.winner = Some(Arc::clone(&input.config));
    input.workloads = Some(WorkloadsInput { state, operator_namespace: "operator".into() });
    input
}

fn complete(reason: &str, message: &str) -> Value {
    json!([{"type": "RolloutComplete", "status": "False", "reason": reason, "message": message, "lastTransitionTime": RESTARTED}])
}

/// The text after the unmanaged values.
fn table(output: &ExplainOutput) -> String {
    let text = text(output);
    text.split_once("\nunmanaged: ").unwrap().1.split_once('\n').unwrap().1.to_owned()
}

fn rollout(state: &str, more: &Value) -> Value {
    let mut annotations = json!({"config.linkerd.io/rollout-hash": "new-none", "config.linkerd.io/rollout-state": state,
        "config.linkerd.io/rollout-started-at": RESTARTED, "config.linkerd.io/rollout-previous": ""});
    merge(&mut annotations, more);
    let template = json!({"metadata": {"annotations": {"config.linkerd.io/restarted-for": "new-none"}}});
    json!({"metadata": {"annotations": annotations}, "spec": {"template": template}})
}

#[test]
fn each_workload_has_a_line_with_the_decision_and_its_reason() {
    let mut state = empty();
    let none = json!({});
    let label = |value: Value| json!({"metadata": {"labels": {"config.linkerd.io/reconcile": value}}});
    deployment(&mut state, "web", &none, &["new", "new"]);
    deployment(&mut state, "api", &none, &["old", "new"]);
    deployment(&mut state, "stranger", &label(json!(null)), &["old"]);
    deployment(&mut state, "watched", &label(json!("observe")), &["old"]);
    deployment(&mut state, "paused", &json!({"spec": {"paused": true}}), &["old"]);
    deployment(&mut state, "guarded", &none, &["old"]);
    deployment(&mut state, "unmeshed", &json!({"spec": {"template": null}}), &[]);
    deployment(&mut state, "bald", &none, &[""]);
    let rolling = json!({"status": {"updatedReplicas": 1, "availableReplicas": 2}});
    let mut in_progress = rollout("updating", &none);
    merge(&mut in_progress, &rolling);
    deployment(&mut state, "rolling", &in_progress, &["new", "old"]);
    let message = json!({"config.linkerd.io/rollout-message": "ProgressDeadlineExceeded: 0 of 1 Pods are updated"});
    deployment(&mut state, "broken", &rollout("failed", &message), &["old"]);
    let on_delete = json!({"spec": {"updateStrategy": {"type": "OnDelete"}}});
    workload::<AppsWorkloadOf<StatefulSet>>(&mut state, "StatefulSet", "store", &on_delete, &["old"]);
    let labelled = json!({"labels": {"config.linkerd.io/reconcile": "auto"}});
    put::<Pod>(&mut state, &pod("alone", &labelled, "old"));
    let selector = json!({"selector": {"matchLabels": {"app": "guarded"}}});
    put::<DisruptionBudget>(&mut state, &json!({"metadata": {"name": "guard", "namespace": "app"}, "spec": selector}));
    let input = with(state, &json!({}), &complete("Progressing", "1 of 7 workloads run with the configuration"));
    let output = ExplainOutput::new(&input, false);
    assert!(
        text(&output).contains("Rollout:        Progressing: 1 of 7 workloads run with the configuration\n"),
        "{}",
        text(&output)
    );
    let expected = "
NAMESPACE   KIND          NAME       PODS   DECISION      WHY
app         Deployment    api        1/2    Pending       to be restarted for new-none: 1 Pod with another configuration
app         Deployment    bald       0/0    Nothing       1 Pod without a proxy
app         Deployment    broken     0/1    Failed        ProgressDeadlineExceeded: 0 of 1 Pods are updated
app         Deployment    guarded    0/1    Skipped       BlockedByPDB: a PodDisruptionBudget for its Pods allows no disruption
app         Deployment    paused     0/1    Skipped       Paused: the Deployment is paused: resume it
app         Deployment    rolling    1/2    Updating      1 of 2 Pods are updated, 2 are available
app         Deployment    stranger   0/1    NotSelected   NotOptedIn: no label config.linkerd.io/reconcile: auto on it, its template or its namespace
app         Deployment    watched    0/1    Observed      its label config.linkerd.io/reconcile is observe: it is reported, but not restarted
app         Deployment    web        2/2    UpToDate      its Pods run with the configuration
app         Pod           alone      0/1    Skipped       NoController: no controller would recreate these Pods: delete and recreate them yourself
app         StatefulSet   store      0/1    Skipped       OnDelete: its update strategy is OnDelete: delete its Pods, or annotate it with config.linkerd.io/rollout-method: evict

NAMESPACE   POD      PROBLEM      WHY
app         bald-0   Uninjected   it requests a proxy and was created without one: the injector did not respond, or injection was enabled later; spec.rollout.triggers does not include Uninjected

workloads: 1 of 7 selected are up to date, 1 updating, 1 pending, 1 failed, 4 skipped; Pods: 13 meshed, 4 current, 9 outdated, 1 without a proxy
remaining restarts: at least 1 min by the limits of spec.rollout, and the time until Pods are ready
";
    assert_eq!(table(&output), expected);
}

#[test]
fn the_json_has_the_workloads_and_the_counts_of_the_status() {
    let mut state = empty();
    deployment(&mut state, "web", &json!({"spec": {"paused": true}}), &["old", "new"]);
    let input = with(state, &json!({}), &complete("WorkloadsSkipped", "skipped: Paused 1"));
    let output = serde_json::to_value(ExplainOutput::new(&input, false)).unwrap();
    let row = json!({
        "namespace": "app", "kind": "Deployment", "name": "web", "decision": "Skipped", "reason": "Paused",
        "message": "the Deployment is paused: resume it",
        "pods": {"meshed": 2, "current": 1, "outdated": 1, "pinned": 0, "unknown": 0, "uninjected": 0, "completed": 0,
            "waitingForNetwork": 0, "otherShape": 0},
    });
    assert_eq!(output["workloads"], json!([row]));
    let rollout = &output["rollout"];
    assert_eq!((&rollout["hash"], &rollout["reason"]), (&json!("new-none"), &json!("WorkloadsSkipped")));
    let counts = json!({"selected": 1, "updated": 0, "updating": 0, "pending": 0, "failed": 0, "skipped": 1});
    assert_eq!((&rollout["workloads"], &rollout["pods"]["meshed"]), (&counts, &json!(2)));
    let without = serde_json::to_value(ExplainOutput::new(&self::input(&json!({})), false)).unwrap();
    assert_eq!((without.get("workloads"), without.get("rollout")), (None, None));
}

#[test]
fn only_enabled_triggers_are_named_as_causes() {
    let mut state = empty();
    deployment(&mut state, "web", &json!({}), &["old", "old"]);
    let owner =
        json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "web"}]});
    let mut third = pod("web-2", &owner, "new");
    let roots = json!({"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": anchors("ab")});
    third["spec"]["containers"][0]["env"].as_array_mut().unwrap().push(roots);
    put::<Pod>(&mut state, &third);
    let mut input = with(state, &json!({}), &complete("Progressing", ""));
    let mut config = LinkerdConfig::clone(&input.config);
    let mut status = LinkerdConfigStatus::clone(&config.status);
    let windows = json!({"windows": [{"from": "2026-11-21T09:59:00Z", "to": "2026-11-21T10:01:00Z"}]});
    status.drift = Some(serde_json::from_value(windows).unwrap());
    config.status = Arc::new(status);
    input.config = Arc::new(config);
    input.bundle = Some(anchors("a").into());
    let why =
        |input: &ExplainInput| ExplainOutput::new(input, false).workloads.unwrap().workloads.remove(0).decision.message;
    assert_eq!(
        why(&input),
        "to be restarted for new-9b60e669: 3 Pods with another configuration, 1 Pod with other trust anchors, \
         3 Pods created during drift"
    );
    let mut config = LinkerdConfig::clone(&input.config);
    let spec = json!({"rollout": {"triggers": ["TrustRoots"], "method": "Evict"}});
    config.spec = Arc::new(serde_json::from_value(spec).unwrap());
    input.config = Arc::new(config);
    let why = why(&input);
    assert!(why.starts_with("its Pods are to be evicted for new-9b60e669: 1 Pod with other trust anchors, "), "{why}");
}

#[test]
fn a_resource_that_is_not_in_effect_shows_the_rollout_that_would_begin() {
    let mut state = empty();
    deployment(&mut state, "web", &json!({}), &["old"]);
    // Without a resource, a Pod without a marker counts as up to date with the installed document.
    let mut installed = pod(
        "db-0",
        &json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "db", "uid": "db"}]}),
        "x",
    );
    installed["spec"]["containers"][0] = json!({"name": "linkerd-proxy", "image": "proxy:edge-26.8.3"});
    deployment(&mut state, "db", &json!({}), &[]);
    put::<Pod>(&mut state, &installed);
    let mut input = input(&json!({}));
    input.applied = false;
    input.workloads = Some(WorkloadsInput { state, operator_namespace: "operator".into() });
    let output = ExplainOutput::new(&input, false);
    let workloads = output.workloads.as_ref().unwrap();
    let hash = workloads.rollout.hash.clone().unwrap();
    let decisions: Vec<(&str, &str)> =
        workloads.workloads.iter().map(|row| (&*row.name, row.decision.decision)).collect();
    assert_eq!(decisions, [("db", "UpToDate"), ("web", "Pending")]);
    assert!(workloads.workloads[1].decision.message.contains(&hash), "{workloads:?}");
    let line = "Rollout:        would begin once the resource is in effect and the injectors use it\n";
    assert!(text(&output).contains(line), "{}", text(&output));

    // With another configuration that Pod is out of date, too.
    input.config = config("mesh", &json!({"proxy": {"logLevel": "debug"}}));
    let workloads = ExplainOutput::new(&input, false).workloads.unwrap();
    assert!(workloads.workloads.iter().all(|row| row.decision.decision == "Pending"), "{workloads:?}");
    assert_ne!(workloads.rollout.hash, Some(hash));

    for (spec, line, rows) in [
        (json!({"rollout": {"policy": "Off"}}), "RolloutDisabled: spec.rollout.policy is Off", 2),
        (json!({"rollout": {"paused": true}}), "Paused: spec.rollout.paused is true", 2),
        (json!({"mode": "Observe"}), "RolloutDisabled: mode is Observe", 2),
        (json!({"values": {"proxy": {"await": 1}}}), "the target configuration of Pods is unknown, because", 0),
        (json!({"global": {"configMap": "other"}}), "RolloutDisabled: no injector reads this ConfigMap", 0),
    ] {
        input.config = config("mesh", &spec);
        let output = ExplainOutput::new(&input, false);
        let text = text(&output);
        assert!(text.contains(&format!("Rollout:        {line}")), "{spec}: {text}");
        assert_eq!(output.workloads.as_ref().unwrap().workloads.len(), rows, "{spec}");
        assert_eq!(text.ends_with("\nworkloads: none\n"), rows == 0, "{text}");
    }
}

#[test]
fn workloads_in_the_operators_namespace_are_not_restarted() {
    let mut state = empty();
    deployment(&mut state, "web", &json!({}), &["old"]);
    let mut input = with(state, &json!({}), &complete("Progressing", ""));
    input.workloads.as_mut().unwrap().operator_namespace = "app".into();
    let workloads = ExplainOutput::new(&input, false).workloads.unwrap();
    assert_eq!(workloads.workloads[0].decision.reason.as_deref(), Some("ExcludedNamespace"));
}

#[test]
fn pods_without_a_proxy_as_configured_are_named_with_the_reason_and_the_decision() {
    let mut state = empty();
    let none = json!({});
    deployment(&mut state, "bald", &none, &["", "new"]);
    deployment(&mut state, "native", &none, &["new"]);
    deployment(&mut state, "stuck", &none, &[]);
    let owner =
        json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "stuck", "uid": "stuck"}]});
    let mut stuck = pod("stuck-0", &owner, "new");
    let validator = json!([{"name": "linkerd-network-validator", "restartCount": 4, "state": {"waiting": {}}}]);
    merge(&mut stuck, &json!({"status": {"initContainerStatuses": validator}}));
    put::<Pod>(&mut state, &stuck);
    let triggers = ["ProxyConfig", "ProxyVersion", "TrustRoots", "Uninjected", "ProxyShape"];
    let template = json!({"spec": {"template": {"metadata": {"annotations": {"config.linkerd.io/proxy-enable-native-sidecar": "true"}}}}});
    workload::<AppsWorkloadOf<StatefulSet>>(&mut state, "StatefulSet", "store", &template, &["new"]);
    let mut input = with(state, &json!({"rollout": {"triggers": triggers}}), &complete("Progressing", "so far"));
    let mut config = LinkerdConfig::clone(&input.config);
    let mut status = LinkerdConfigStatus::clone(&config.status);
    status.proxy_shape =
        Some(serde_json::from_value(json!({"nativeSidecar": false, "tokenProjection": true})).unwrap());
    config.status = Arc::new(status);
    input.config = Arc::new(config);
    let output = ExplainOutput::new(&input, false);
    let expected = "
NAMESPACE   KIND          NAME     PODS   DECISION   WHY
app         Deployment    bald     1/1    Pending    to be restarted for new-none: 1 Pod without a proxy
app         Deployment    native   1/1    UpToDate   its Pods run with the configuration
app         Deployment    stuck    1/1    UpToDate   1 Pod waiting for the network
app         StatefulSet   store    0/1    Pending    to be restarted for new-none: 1 Pod with a proxy of another shape

NAMESPACE   POD       PROBLEM             WHY
app         bald-0    Uninjected          it requests a proxy and was created without one: the injector did not respond, or injection was enabled later
app         stuck-0   WaitingForNetwork   linkerd-network-validator fails: check Linkerd's CNI plugin on the Pod's node; once it works there, delete the Pod unless the repair controller does
app         store-0   ProxyShape          its proxy is a container, and a native sidecar is configured

workloads: 2 of 4 selected are up to date, 2 pending; Pods: 4 meshed, 3 current, 1 outdated, 1 without a proxy, 1 waiting for the network, 1 of another shape
remaining restarts: at least 1 min by the limits of spec.rollout, and the time until Pods are ready
";
    assert_eq!(table(&output), expected);
    let json = serde_json::to_value(&output).unwrap();
    let row = json!({"pod": "store-0", "reason": "ProxyShape", "message": "its proxy is a container, and a native sidecar is configured"});
    assert_eq!(json["workloads"][3]["uncovered"], json!([row]));
    assert_eq!(json["workloads"][1].get("uncovered"), None);
}

#[test]
fn the_table_of_pods_is_limited_and_the_rest_is_counted() {
    let mut state = empty();
    deployment(&mut state, "bald", &json!({}), &[""; 102]);
    let output = ExplainOutput::new(&with(state, &json!({}), &complete("Progressing", "")), false);
    let text = table(&output);
    assert_eq!(text.matches("Uninjected   it requests").count(), 100);
    assert!(text.contains("\nand 2 more: see the output as JSON\n"), "{text}");
}

#[test]
fn a_manifest_with_a_canary_restarts_only_the_workloads_of_its_namespaces() {
    let decision = |label: &str| {
        let mut state = State::default();
        put::<Namespace>(&mut state, &json!({"metadata": {"name": "app", "labels": {"canary": label}}}));
        let marker = Document::parse(INSTALLED).unwrap().injection_hash().to_string();
        deployment(&mut state, "web", &json!({}), &[&marker]);
        let canary = json!({"namespaceSelector": {"matchLabels": {"canary": "yes"}}});
        let spec = json!({"proxy": {"logLevel": "debug"}, "canary": canary});
        let input = ExplainInput { applied: false, ..with(state, &spec, &json!([])) };
        ExplainOutput::new(&input, false).workloads.unwrap().workloads.remove(0).decision.decision
    };
    assert_eq!((decision("yes"), decision("no")), ("Pending", "UpToDate"));
}

#[test]
fn the_workloads_of_a_namespace_are_counted_by_their_decisions() {
    let mut output = ExplainOutput::new(&with(empty(), &json!({}), &json!([])), false);
    let row = |namespace: &str, name: &str, decision: &'static str, current: i64, meshed: i64| WorkloadRow {
        namespace: namespace.to_owned(),
        kind: "Deployment".to_owned(),
        name: name.to_owned(),
        pods: RolloutPods { current, meshed, ..RolloutPods::default() },
        decision: Decision { decision, reason: None, message: String::new() },
        uncovered: Vec::new(),
    };
    output.workloads.as_mut().unwrap().workloads = vec![
        row("shop", "web", "UpToDate", 2, 2),
        row("ads", "bid", "Pending", 0, 3),
        row("shop", "api", "Failed", 1, 4),
        row("shop", "old", "Nothing", 0, 0),
        row("shop", "db", "UpToDate", 1, 1),
    ];
    let text = crate::explain::print::text_by_namespace(&output);
    let rows = "\
NAMESPACE   WORKLOADS   PODS   DECISIONS
ads         1           0/3    1 Pending
shop        4           4/7    1 Failed, 2 UpToDate, 1 Nothing
";
    assert!(text.contains(rows), "{text}");
    assert!(text.contains("\nworkloads: "), "{text}");
}
