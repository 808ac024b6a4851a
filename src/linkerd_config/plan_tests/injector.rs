//! Tests of the injection hash in the environment of proxies, and the fallback when injectors deny a document.

use serde_json::json;

use super::{ACCESS_LOG, Cluster, INSTALLED, LOG_LEVEL, debug, *};
use crate::{api::FIELD_MANAGER, values::CONFIG_HASH_ENV};

const ENVIRONMENT: [&str; 2] = ["proxy", "additionalEnv"];

fn hash_of(document: &Document) -> Option<String> {
    Some(document.injection_hash().to_string())
}

#[test]
fn the_injection_hash_is_the_last_environment_variable() {
    let variables = json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]);
    let mut cluster = Cluster::new(&json!({"values": {"proxy": {"additionalEnv": variables}}}));
    let plan = cluster.reconcile();
    assert_eq!(plan.injection_hash, hash_of(&cluster.document()));
    assert_eq!(cluster.injection_hash(), plan.injection_hash);
    let written = Document::parse(cluster.live.as_ref().unwrap().values.as_deref().unwrap()).unwrap();
    let names: Vec<_> = written.get(&Path::from(&ENVIRONMENT[..])).unwrap().as_array().unwrap().to_vec();
    let names: Vec<_> = names.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["A", "B", CONFIG_HASH_ENV]);
    assert!(cluster.is_settled());
    // A value that only the control plane reads changes the document, but not the injection hash.
    let injection_hash = cluster.injection_hash();
    cluster.spec.values = json!({"controllerReplicas": 3}).as_object().cloned();
    cluster.spec.values.as_mut().unwrap().insert("proxy".into(), json!({"additionalEnv": variables}));
    assert!(cluster.reconcile().write.is_some());
    assert_eq!(cluster.injection_hash(), injection_hash);
}

#[test]
fn an_injection_hash_that_is_removed_or_changed_is_restored_and_counts_as_a_revert() {
    for others in [json!(null), json!([{"name": CONFIG_HASH_ENV, "value": "0"}])] {
        let mut cluster = Cluster::new(&debug());
        let injection_hash = cluster.reconcile().injection_hash;
        cluster.edit("kubectl-edit", &ENVIRONMENT, others);
        let plan = cluster.reconcile();
        assert!(plan.write.is_some_and(|write| write.overwrites_others) && plan.drift.is_none());
        assert_eq!(cluster.injection_hash(), injection_hash);
        assert!(cluster.is_settled());
    }
}

#[test]
fn a_variable_that_is_added_by_hand_is_drift_like_any_other_edit() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    let injection_hash = cluster.injection_hash().unwrap();
    let variables = json!([{"name": "A", "value": "1"}, {"name": CONFIG_HASH_ENV, "value": injection_hash}]);
    cluster.edit("kubectl-edit", &ENVIRONMENT, variables);
    let drift = cluster.reconcile().drift.unwrap();
    assert_eq!(drift.paths, [Path::from(&ENVIRONMENT[..])]);
    assert!(cluster.value(&ENVIRONMENT).is_none() && cluster.is_settled());
}

#[test]
fn with_drift_action_report_the_injection_hash_is_kept_too() {
    let mut cluster = Cluster::new(&json!({"proxy": {"logLevel": "debug"}, "drift": {"action": "Report"}}));
    let injection_hash = cluster.reconcile().injection_hash;
    cluster.edit("kubectl-edit", &ACCESS_LOG, json!("apache"));
    let plan = cluster.reconcile();
    assert_eq!((plan.verdict, plan.write.is_none(), plan.injection_hash), (PlanVerdict::Drifted, true, injection_hash));
}

/// Returns a cluster with a declared document that the injectors deny, and the document before it.
fn denied() -> (Cluster, Document) {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    let good = cluster.document();
    cluster.predecessor = cluster.base.clone().map(|base| Predecessor::Declared(Box::new(base)));
    cluster.spec.proxy.access_log = Some("json".to_owned());
    let injection_hash = cluster.reconcile().injection_hash.unwrap();
    cluster.failed = vec![injection_hash];
    (cluster, good)
}

#[test]
fn a_denied_document_is_rolled_back_to_the_last_good_one_and_not_retried() {
    let (mut cluster, good) = denied();
    let plan = cluster.reconcile();
    assert_eq!((plan.verdict, plan.injection_hash), (PlanVerdict::Restored, hash_of(&good)));
    assert_eq!((cluster.document(), cluster.injection_hash()), (good.clone(), hash_of(&good)));
    let again = cluster.plan();
    assert!(again.write.is_none() && again.new_base.is_none() && again.verdict == PlanVerdict::Restored);
    // Another document is tried: failures count for the declared values only.
    cluster.failed.clear();
    cluster.spec.proxy.access_log = Some("apache".to_owned());
    let plan = cluster.reconcile();
    assert!(plan.verdict == PlanVerdict::Synced && plan.write.is_some() && plan.drift.is_none());
    assert_eq!(cluster.value(&ACCESS_LOG), Some(json!("apache")));
}

#[test]
fn a_resource_that_observes_is_compared_with_what_it_declares_although_that_failed() {
    let (mut cluster, good) = denied();
    cluster.reconcile();
    cluster.spec.mode = Mode::Observe;
    let plan = cluster.plan();
    assert_eq!(plan.verdict, PlanVerdict::Observing(vec![Path::from(&ACCESS_LOG[..])]));
    cluster.spec.mode = Mode::Enforce;
    let plan = cluster.reconcile();
    assert!(plan.verdict == PlanVerdict::Restored && plan.write.is_none(), "{plan:?}");
    assert_eq!(cluster.document(), good);
}

#[test]
fn an_edit_of_a_restored_document_is_drift_from_the_restored_document() {
    let (mut cluster, good) = denied();
    cluster.reconcile();
    cluster.edit("kubectl-edit", &LOG_LEVEL, json!("trace"));
    let plan = cluster.reconcile();
    assert_eq!(plan.drift.map(|drift| drift.paths), Some(vec![Path::from(&LOG_LEVEL[..])]));
    assert_eq!((plan.verdict, cluster.document()), (PlanVerdict::Restored, good));
}

#[test]
fn a_reported_edit_of_a_restored_document_stays_and_brings_no_rejected_value_back() {
    let (mut cluster, _) = denied();
    cluster.spec.drift.action = DriftAction::Report;
    cluster.reconcile();
    cluster.edit("kubectl-edit", &LOG_LEVEL, json!("trace"));
    let plan = cluster.reconcile();
    assert_eq!(plan.drift.map(|drift| drift.paths), Some(vec![Path::from(&LOG_LEVEL[..])]));
    assert_eq!((plan.verdict, plan.write.is_none()), (PlanVerdict::Restored, true));
    assert_eq!([&LOG_LEVEL, &ACCESS_LOG].map(|keys| cluster.value(keys)), [Some(json!("trace")), Some(json!(""))]);
}

#[test]
fn the_first_declared_document_is_rolled_back_to_the_installers_and_no_later_one_is() {
    let mut cluster = Cluster::new(&debug());
    let injection_hash = cluster.reconcile().injection_hash.unwrap();
    cluster.failed = vec![injection_hash];
    cluster.predecessor = Some(Predecessor::Installer);
    let installed = cluster.base.as_ref().unwrap().document.clone();
    assert_eq!(cluster.reconcile().verdict, PlanVerdict::Restored);
    assert_eq!(cluster.document(), installed);

    let (mut cluster, _) = denied();
    cluster.predecessor = None;
    let declared = cluster.document();
    let plan = cluster.reconcile();
    assert!(plan.verdict == PlanVerdict::Synced && plan.write.is_none(), "without a predecessor nothing is restored");
    assert_eq!(cluster.document(), declared);
}

#[test]
fn an_upgrade_that_fails_keeps_the_overlay_and_the_new_version() {
    let (mut cluster, _) = denied();
    cluster.failed.clear();
    cluster.predecessor = cluster.base.clone().map(|base| Predecessor::Declared(Box::new(base)));
    cluster.write("helm", &INSTALLED.replace("linkerdVersion: edge-26.8.3", "linkerdVersion: edge-26.9.1"));
    cluster.failed = vec![cluster.reconcile().injection_hash.unwrap()];
    let plan = cluster.reconcile();
    assert!(plan.verdict == PlanVerdict::Synced && plan.write.is_none());
    assert_eq!((cluster.value(&ACCESS_LOG), cluster.value(&LOG_LEVEL)), (Some(json!("json")), Some(json!("debug"))));
    assert_eq!(plan.proxy_version.as_deref(), Some("edge-26.9.1"));
}

#[test]
fn the_version_of_the_proxy_is_the_one_in_force() {
    let mut cluster = Cluster::new(&json!({}));
    cluster.reconcile();
    cluster.predecessor = Some(Predecessor::Installer);
    cluster.spec.proxy.proxy_version = Some("edge-99".to_owned());
    let plan = cluster.reconcile();
    assert_eq!(plan.proxy_version.as_deref(), Some("edge-99"));
    cluster.failed = plan.injection_hash.into_iter().collect();
    let plan = cluster.reconcile();
    assert_eq!((plan.verdict, plan.proxy_version.as_deref()), (PlanVerdict::Restored, Some("edge-26.8.3")));
    cluster.spec.mode = crate::api::linkerd_config::Mode::Observe;
    assert_eq!(cluster.plan().proxy_version.as_deref(), Some("edge-26.8.3"));
}

#[test]
fn an_upgrade_after_a_rollback_brings_no_rejected_document_back() {
    let (mut cluster, _) = denied();
    cluster.reconcile();
    let next = INSTALLED.replace("  logFormat: plain", "  logFormat: json");
    cluster.write("helm", &next);
    let plan = cluster.reconcile();
    assert!(matches!(plan.base_change, Some(BaseChange::Installed { .. })));
    assert_eq!(plan.verdict, PlanVerdict::Restored);
    let values = [&ACCESS_LOG, &LOG_LEVEL, &["proxy", "logFormat"]].map(|keys| cluster.value(keys));
    assert_eq!(values, ["", "debug", "json"].map(|value| Some(json!(value))));
    // Neither does a predecessor that was deleted meanwhile.
    cluster.predecessor = Some(Predecessor::Lost(3));
    cluster.write("helm", INSTALLED);
    let plan = cluster.reconcile();
    assert!(matches!(&plan.verdict, PlanVerdict::InvalidBase(why) if why.contains("revision 3")), "{plan:?}");
    assert_eq!(cluster.value(&ACCESS_LOG), Some(json!("")));
}

#[test]
fn a_denial_of_an_upgrade_ends_with_a_further_change_of_the_installer() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    cluster.predecessor = cluster.base.clone().map(|base| Predecessor::Declared(Box::new(base)));
    cluster.write("helm", &INSTALLED.replace("  logFormat: plain", "  logFormat: json"));
    cluster.failed = vec![cluster.reconcile().injection_hash.unwrap()];
    assert_eq!(cluster.reconcile().verdict, PlanVerdict::Synced, "there is nothing to take back");
    cluster.write("helm", INSTALLED);
    assert_eq!(cluster.reconcile().verdict, PlanVerdict::Synced);
    assert_eq!(cluster.value(&LOG_LEVEL), Some(json!("debug")));
}

/// Gives the ConfigMap and the base the hashes that another version of the operator would have computed.
fn as_another_version(cluster: &mut Cluster, hash: &str, installed: &str) {
    let base = cluster.base.as_mut().unwrap();
    base.injection_hashes = InjectionHashes::default();
    base.injection_hashes.learn(&base.effective.clone(), hash);
    base.injection_hashes.learn(&base.document.clone(), installed);
    let text = cluster.document().with_injection_hash(hash).to_yaml();
    cluster.write(FIELD_MANAGER, &text);
}

#[test]
fn another_version_of_the_operator_keeps_the_hash_of_an_unchanged_document() {
    const GIVEN: &str = "v2_0123456789abcdef";
    const INSTALLED_HASH: &str = "v2_fedcba9876543210";
    // Whether the zero of a key counts depends on whether the version knows the key.
    let spec = json!({"proxy": {"logLevel": "debug"}, "values": {"proxy": {"aNewFlag": false}}});
    let mut cluster = Cluster::new(&spec);
    cluster.reconcile();
    as_another_version(&mut cluster, GIVEN, INSTALLED_HASH);
    let plan = cluster.plan();
    assert!(cluster.is_settled(), "nothing is written");
    assert_eq!(plan.injection_hash.as_deref(), Some(GIVEN));
    assert_eq!(plan.installed_hash.as_deref(), Some(INSTALLED_HASH));
    assert_eq!(crate::linkerd_config::baseline(None, cluster.base.as_ref()).as_deref(), Some(INSTALLED_HASH));

    // A revert gives the document the same hash again.
    cluster.edit("kubectl-edit", &LOG_LEVEL, json!("trace"));
    assert_eq!(cluster.reconcile().injection_hash.as_deref(), Some(GIVEN));
    // Another document has a new hash, until the former one is declared again.
    cluster.spec.proxy.log_level = Some("warn".to_owned());
    let other = cluster.reconcile().injection_hash;
    assert!(other == hash_of(&cluster.document()) && other.as_deref() != Some(GIVEN));
    cluster.spec.proxy.log_level = Some("debug".to_owned());
    assert_eq!(cluster.reconcile().injection_hash.as_deref(), Some(GIVEN));
    cluster.spec = LinkerdConfigSpec::default();
    assert_eq!(cluster.reconcile().injection_hash.as_deref(), Some(INSTALLED_HASH));
}

#[test]
fn a_base_without_hashes_keeps_the_hash_that_the_config_map_has_from_another_version() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    as_another_version(&mut cluster, "v2_0123456789abcdef", "v2_fedcba9876543210");
    cluster.base.as_mut().unwrap().injection_hashes = InjectionHashes::default();
    assert!(cluster.is_settled());
    // The ControllerRevisions are lost, and the present document is adopted.
    cluster.base = None;
    cluster.live.as_mut().unwrap().annotations.remove(CONFIG_HASH_ANNOTATION);
    assert_eq!(cluster.reconcile().injection_hash.as_deref(), Some("v2_0123456789abcdef"));
}

#[test]
fn a_document_that_failed_before_an_upgrade_of_the_operator_is_not_retried_after_it() {
    let (mut cluster, good) = denied();
    let denied = cluster.document();
    cluster.failed = vec!["v2_0123456789abcdef".to_owned()];
    cluster.base.as_mut().unwrap().injection_hashes = InjectionHashes::default();
    cluster.base.as_mut().unwrap().injection_hashes.learn(&denied, "v2_0123456789abcdef");
    assert_eq!(cluster.reconcile().verdict, PlanVerdict::Restored);
    assert_eq!(cluster.document(), good);
}
