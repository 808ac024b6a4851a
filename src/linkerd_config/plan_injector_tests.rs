//! The marker by which injected Pods say what they were injected with, and what follows when injectors refuse a document.

use serde_json::json;

use super::{
    tests::{ACCESS_LOG, Cluster, LOG_LEVEL, debug},
    *,
};
use crate::linkerd_config::{drift::FIELD_MANAGER, values::MARKER};

const ENVIRONMENT: [&str; 2] = ["proxy", "additionalEnv"];

fn hash_of(document: &Document) -> Option<String> {
    Some(document.injection_hash().to_string())
}

#[test]
fn the_marker_is_the_hash_of_what_shapes_pods_and_stands_behind_the_variables_of_others() {
    let variables = json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]);
    let mut cluster = Cluster::new(&json!({"values": {"proxy": {"additionalEnv": variables}}}));
    let plan = cluster.reconcile();
    assert_eq!(plan.marker, hash_of(&cluster.document()));
    assert_eq!(cluster.marker(), plan.marker);
    let written = Document::parse(cluster.live.as_ref().unwrap().values.as_deref().unwrap()).unwrap();
    let names: Vec<_> = written.get(&Path::from(&ENVIRONMENT[..])).unwrap().as_array().unwrap().to_vec();
    let names: Vec<_> = names.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["A", "B", MARKER]);
    assert!(cluster.is_settled());
    // What is only the control plane's changes the document, and not the marker.
    let marker = cluster.marker();
    cluster.spec.values = json!({"controllerReplicas": 3}).as_object().cloned();
    cluster.spec.values.as_mut().unwrap().insert("proxy".into(), json!({"additionalEnv": variables}));
    assert!(cluster.reconcile().write.is_some());
    assert_eq!(cluster.marker(), marker);
}

#[test]
fn a_marker_that_somebody_takes_away_or_changes_is_put_back_and_counts_as_undoing_ours() {
    for others in [json!(null), json!([{"name": MARKER, "value": "0"}])] {
        let mut cluster = Cluster::new(&debug());
        let marker = cluster.reconcile().marker;
        cluster.edit("kubectl-edit", &ENVIRONMENT, others);
        let plan = cluster.reconcile();
        assert!(plan.write.is_some_and(|write| write.over_others) && plan.drift.is_none());
        assert_eq!(cluster.marker(), marker);
        assert!(cluster.is_settled());
    }
}

#[test]
fn a_variable_that_somebody_adds_is_drift_like_any_other_edit() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    let marker = cluster.marker().unwrap();
    let variables = json!([{"name": "A", "value": "1"}, {"name": MARKER, "value": marker}]);
    cluster.edit("kubectl-edit", &ENVIRONMENT, variables);
    let drift = cluster.reconcile().drift.unwrap();
    assert_eq!(drift.paths, [Path::from(&ENVIRONMENT[..])]);
    assert!(cluster.value(&ENVIRONMENT).is_none() && cluster.is_settled());
}

#[test]
fn where_drift_is_reported_the_marker_is_left_as_well() {
    let mut cluster = Cluster::new(&json!({"proxy": {"logLevel": "debug"}, "drift": {"action": "Report"}}));
    let marker = cluster.reconcile().marker;
    cluster.edit("kubectl-edit", &ACCESS_LOG, json!("apache"));
    let plan = cluster.reconcile();
    assert_eq!((plan.verdict, plan.write.is_none(), plan.marker), (Verdict::Drifted, true, marker));
}

/// The last good document, and one that the injectors refuse.
fn refused() -> (Cluster, Document) {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    let good = cluster.document();
    cluster.spec.proxy.access_log = Some("json".to_owned());
    let marker = cluster.reconcile().marker.unwrap();
    cluster.good = Some(good.clone());
    cluster.failed = vec![marker];
    (cluster, good)
}

#[test]
fn a_refused_document_makes_way_for_the_last_good_one_and_is_not_tried_again() {
    let (mut cluster, good) = refused();
    let plan = cluster.reconcile();
    assert_eq!((plan.verdict, plan.marker), (Verdict::Restored, hash_of(&good)));
    assert_eq!((cluster.document(), cluster.marker()), (good.clone(), hash_of(&good)));
    let again = cluster.plan();
    assert!(again.write.is_none() && again.new_base.is_none() && again.verdict == Verdict::Restored);
    // Something else is.
    cluster.spec.proxy.access_log = Some("apache".to_owned());
    let plan = cluster.reconcile();
    assert!(plan.verdict == Verdict::Synced && plan.write.is_some() && plan.drift.is_none());
    assert_eq!(cluster.value(&ACCESS_LOG), Some(json!("apache")));
}

#[test]
fn an_edit_of_the_restored_document_is_told_by_what_is_restored() {
    let (mut cluster, good) = refused();
    cluster.reconcile();
    cluster.edit("kubectl-edit", &LOG_LEVEL, json!("trace"));
    let plan = cluster.reconcile();
    assert_eq!(plan.drift.map(|drift| drift.paths), Some(vec![Path::from(&LOG_LEVEL[..])]));
    assert_eq!((plan.verdict, cluster.document()), (Verdict::Restored, good));
}

#[test]
fn without_a_document_that_was_seen_to_work_the_installers_is_put_back_unless_that_was_refused_too() {
    let (mut cluster, _) = refused();
    cluster.good = None;
    let installed = cluster.base.as_ref().unwrap().document.clone();
    assert_eq!(cluster.reconcile().verdict, Verdict::Restored);
    assert_eq!(cluster.document(), installed);

    let mut cluster = Cluster::new(&json!({}));
    let marker = cluster.reconcile().marker.unwrap();
    cluster.failed = vec![marker];
    let plan = cluster.plan();
    assert!(plan.verdict == Verdict::Synced && plan.write.is_none(), "nothing is better");
}

#[test]
fn an_upgrade_while_restored_is_tried() {
    let (mut cluster, _) = refused();
    cluster.reconcile();
    let next = crate::linkerd_config::plan::tests::INSTALLED.replace("  logFormat: plain", "  logFormat: json");
    cluster.write("helm", &next);
    let plan = cluster.reconcile();
    assert!(matches!(plan.news, Some(News::Installed { .. })));
    assert_eq!((plan.verdict, cluster.value(&ACCESS_LOG)), (Verdict::Synced, Some(json!("json"))));
    assert!(cluster.live.as_ref().unwrap().writers.iter().any(|writer| writer.manager == FIELD_MANAGER));
}
