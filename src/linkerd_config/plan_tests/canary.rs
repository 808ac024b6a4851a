//! Documents that are held back for a canary.

use super::*;

/// A mesh with the log level `debug`, which then declares `trace` for a canary.
fn held() -> Cluster {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    cluster.holds_back = true;
    cluster.spec = serde_json::from_value(json!({"proxy": {"logLevel": "trace"}})).unwrap();
    cluster
}

fn level(text: &str) -> Option<Value> {
    Document::parse(text).unwrap().get(&Path::from(&LOG_LEVEL[..])).cloned()
}

#[test]
fn a_document_that_is_held_back_changes_nothing_until_it_is_promoted() {
    let mut cluster = held();
    let before = cluster.injection_hash();
    let plan = cluster.reconcile();
    assert_eq!(plan.verdict, PlanVerdict::Canary);
    assert!(plan.write.is_none() && plan.new_base.is_none(), "{plan:?}");
    assert_eq!((plan.injection_hash.as_ref(), cluster.value(&LOG_LEVEL)), (before.as_ref(), Some(json!("debug"))));
    let canary = plan.canary.unwrap();
    assert_eq!(level(&canary.values), Some(json!("trace")));
    let marker = Document::parse(&canary.values).unwrap().split_injection_hash().1;
    assert_eq!(marker.as_ref(), Some(&canary.hash));
    assert_ne!(Some(&canary.hash), before.as_ref());
    // The promoted document has the hash that the Pods of the canary have.
    cluster.holds_back = false;
    let plan = cluster.reconcile();
    assert_eq!((plan.verdict, plan.injection_hash), (PlanVerdict::Synced, Some(canary.hash)));
    assert_eq!(cluster.value(&LOG_LEVEL), Some(json!("trace")));
    cluster.holds_back = true;
    assert!(cluster.is_settled() && cluster.plan().canary.is_none());
}

#[test]
fn a_change_that_does_not_affect_pods_is_not_held_back() {
    let mut cluster = held();
    cluster.spec =
        serde_json::from_value(json!({"proxy": {"logLevel": "debug"}, "values": {"controllerReplicas": 3}})).unwrap();
    let plan = cluster.reconcile();
    assert!(plan.verdict == PlanVerdict::Synced && plan.canary.is_none(), "{:?}", plan.verdict);
    assert_eq!(cluster.value(&["controllerReplicas"]), Some(json!(3)));
}

#[test]
fn the_first_declared_document_is_held_back_behind_the_installers() {
    let mut cluster = Cluster::new(&debug());
    cluster.holds_back = true;
    let plan = cluster.reconcile();
    assert!(plan.verdict == PlanVerdict::Canary && plan.canary.is_some(), "{:?}", plan.verdict);
    assert_eq!(cluster.document(), Document::parse(INSTALLED).unwrap().split_injection_hash().0);
    // All Pods get a hash, so that rollouts can compare them.
    assert_eq!(cluster.injection_hash(), plan.injection_hash);
    let again = cluster.plan();
    assert!(again.write.is_none() && again.new_base.is_none() && again.canary == plan.canary, "{again:?}");
}

#[test]
fn drift_is_reverted_to_the_document_in_force_and_never_to_the_one_that_is_held_back() {
    let mut cluster = held();
    cluster.edit("kubectl-edit", &LOG_LEVEL, json!("error"));
    let plan = cluster.reconcile();
    assert_eq!(plan.drift.map(|drift| drift.paths), Some(vec![Path::from(&LOG_LEVEL[..])]));
    assert_eq!(cluster.value(&LOG_LEVEL), Some(json!("debug")));
    assert!(plan.canary.is_some());
}

#[test]
fn an_upgrade_of_the_installer_is_in_force_for_all_namespaces_with_the_values_declared_before() {
    let mut cluster = held();
    cluster.write("helm", &INSTALLED.replace("linkerdVersion: edge-26.8.3", "linkerdVersion: edge-26.9.1"));
    let plan = cluster.reconcile();
    assert_eq!(plan.base_change, Some(BaseChange::Installed { manager: "helm".into() }));
    assert_eq!(cluster.value(&["linkerdVersion"]), Some(json!("edge-26.9.1")));
    assert_eq!(cluster.value(&LOG_LEVEL), Some(json!("debug")));
    let canary = plan.canary.unwrap();
    assert_eq!((level(&canary.values), canary.proxy_version.as_deref()), (Some(json!("trace")), Some("edge-26.9.1")));
    let again = cluster.plan();
    assert!(again.write.is_none() && again.new_base.is_none() && again.verdict == PlanVerdict::Canary, "{again:?}");
}

#[test]
fn a_held_document_that_is_too_long_for_the_injector_is_refused_although_nothing_else_is_written() {
    let mut cluster = held();
    // A variable is not longer than 128 KiB.
    let env: Vec<_> = (0..5).map(|at| json!({"name": format!("A{at}"), "value": "x".repeat(LONGEST / 5)})).collect();
    let long = json!({"proxy": {"logLevel": "trace", "additionalEnv": env}});
    cluster.spec = serde_json::from_value(long).unwrap();
    let plan = cluster.plan();
    let PlanVerdict::ValidationFailed(problems) = &plan.verdict else { panic!("{:?}", plan.verdict) };
    assert!(problems.iter().any(|problem| problem.reason.contains("the limit is")), "{problems:?}");
    assert!(plan.canary.is_none() && plan.write.is_none());
}

#[test]
fn a_document_that_failed_is_replaced_and_is_no_canary() {
    let mut cluster = held();
    let hash = cluster.plan().canary.unwrap().hash;
    cluster.failed = vec![hash];
    cluster.predecessor = Some(Predecessor::Installer);
    let plan = cluster.plan();
    assert!(plan.verdict == PlanVerdict::Restored && plan.canary.is_none(), "{:?}", plan.verdict);
}

#[test]
fn an_invalid_canary_is_refused_with_its_reasons() {
    let refused = |spec: Value| match Cluster::new(&spec).plan().verdict {
        PlanVerdict::Invalid(problems) => problems.iter().map(|it| it.path.to_string()).collect::<Vec<_>>(),
        verdict => panic!("{verdict:?}"),
    };
    let selector = json!({"matchLabels": {"canary": "yes"}});
    assert_eq!(refused(json!({"canary": {}})), ["spec.canary.namespaceSelector"]);
    let unknown = json!({"matchExpressions": [{"key": "a", "operator": "Like"}]});
    assert_eq!(refused(json!({"canary": {"namespaceSelector": unknown}})), ["spec.canary.namespaceSelector"]);
    for method in ["Delay", "DryRun"] {
        let spec = json!({"canary": {"namespaceSelector": selector}, "injectorSync": {"method": method}});
        assert_eq!(refused(spec), ["spec.canary"], "{method}");
    }
    let valid = Cluster::new(&json!({"canary": {"namespaceSelector": selector}})).plan().verdict;
    assert_eq!(valid, PlanVerdict::Synced);
}
