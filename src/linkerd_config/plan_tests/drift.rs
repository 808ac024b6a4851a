//! Drift: changes by other writers are reverted, reported or adopted as the new base.

use super::*;

#[test]
fn an_edit_is_reverted_and_reported_and_an_installers_document_is_the_new_base() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    cluster.edit("kubectl-edit", &ACCESS_LOG, json!("apache"));
    let plan = cluster.reconcile();
    let drift = Drift {
        manager: "kubectl-edit".into(),
        paths: vec![Path::from(&ACCESS_LOG[..])],
        reverted: false,
        affects_injection: true,
    };
    assert_eq!(plan.drift, Some(drift));
    assert!(
        plan.base_change.is_none() && plan.write.is_some_and(|write| write.overwrites_others) && cluster.is_settled()
    );
    assert_ne!(cluster.value(&ACCESS_LOG), Some(json!("apache")));

    cluster.write("helm", &INSTALLED.replace("clusterDomain: cluster.local", "clusterDomain: other.local"));
    let plan = cluster.reconcile();
    assert_eq!((plan.base_change, plan.drift), (Some(BaseChange::Installed { manager: "helm".into() }), None));
    assert_eq!(cluster.value(&["clusterDomain"]), Some(json!("other.local")));
    assert_eq!(cluster.value(&LOG_LEVEL), Some(json!("debug")), "the declared value overrides the new base");
    assert!(cluster.is_settled());

    cluster.write("helm", INSTALLED);
    cluster.reconcile();
    cluster.write("helm", INSTALLED);
    let plan = cluster.reconcile();
    assert!(plan.base_change.is_none() && plan.drift.is_none(), "the same document is not a new base");
    assert!(cluster.is_settled());
}

#[test]
fn with_drift_action_report_changes_of_other_writers_are_reported_and_kept() {
    let mut cluster = Cluster::new(&json!({"proxy": {"logLevel": "debug"}, "drift": {"action": "Report"}}));
    cluster.reconcile();
    cluster.edit("kubectl-edit", &LOG_LEVEL, json!("trace"));
    let plan = cluster.reconcile();
    assert_eq!((plan.verdict, plan.write.is_none()), (PlanVerdict::Drifted, true));
    assert_eq!(plan.drift.unwrap().paths, [Path::from(&LOG_LEVEL[..])]);
    assert_eq!(cluster.value(&LOG_LEVEL), Some(json!("trace")));
    // A later declaration is written without reverting them, and does not count as drift.
    cluster.spec.proxy.access_log = Some("apache".to_owned());
    let plan = cluster.reconcile();
    assert_eq!((plan.verdict, plan.drift.unwrap().paths), (PlanVerdict::Drifted, vec![Path::from(&LOG_LEVEL[..])]));
    assert_eq!(cluster.value(&ACCESS_LOG), Some(json!("apache")));
    assert_eq!(cluster.value(&LOG_LEVEL), Some(json!("trace")));
    let plan = cluster.plan();
    assert_eq!((plan.verdict, plan.write.is_none(), plan.new_base.is_none()), (PlanVerdict::Drifted, true, true));
}

#[test]
fn a_change_of_the_resource_after_an_edit_is_not_drift() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    cluster.edit("kubectl-edit", &ACCESS_LOG, json!("apache"));
    cluster.spec.proxy.log_level = Some("info".to_owned());
    let drift = cluster.reconcile().drift.unwrap();
    assert_eq!(drift.paths, [Path::from(&ACCESS_LOG[..])]);
    assert_eq!(cluster.value(&LOG_LEVEL), Some(json!("info")));
}

#[test]
fn an_edit_that_undoes_a_declared_value_is_drift_and_an_installers_is_overwritten() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    cluster.write("kubectl-edit", INSTALLED);
    assert_eq!(cluster.reconcile().drift.unwrap().paths, [Path::from(&LOG_LEVEL[..])]);
    cluster.write("helm", INSTALLED);
    let plan = cluster.reconcile();
    assert!(plan.drift.is_none() && plan.write.is_some_and(|write| write.overwrites_others), "it counts as a revert");
}

#[test]
fn reverts_are_suspended_after_repeated_drift() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    for (manager, text) in
        [("kubectl-edit", INSTALLED.to_owned()), ("kubectl-patch", INSTALLED.replace("cluster.local", "other.local"))]
    {
        cluster.write(manager, &text);
        let plan = cluster.plan_while_reverts_are_suspended();
        assert_eq!(plan.verdict, PlanVerdict::RepeatedDrift, "{manager}");
        assert!(plan.write.is_none() && plan.new_base.is_none());
    }
}

#[test]
fn with_drift_scope_declared_only_declared_values_are_protected() {
    let mut cluster = Cluster::new(&json!({"proxy": {"logLevel": "debug"}, "drift": {"scope": "Declared"}}));
    cluster.reconcile();
    cluster.edit("kubectl-edit", &ACCESS_LOG, json!("apache"));
    let plan = cluster.reconcile();
    assert_eq!((plan.verdict, plan.drift), (PlanVerdict::Synced, None));
    assert_eq!(cluster.injection_hash(), plan.injection_hash, "the injection hash covers the edit");
    assert_eq!(cluster.value(&ACCESS_LOG), Some(json!("apache")));
    assert_eq!(
        plan.base_change,
        Some(BaseChange::Edited { manager: "kubectl-edit".into() }),
        "the edit is part of the base from now on"
    );
    assert!(cluster.is_settled());
    cluster.edit("kubectl-edit", &LOG_LEVEL, json!("trace"));
    let plan = cluster.reconcile();
    assert_eq!(plan.drift.unwrap().paths, [Path::from(&LOG_LEVEL[..])]);
    assert_eq!((cluster.value(&LOG_LEVEL), cluster.value(&ACCESS_LOG)), (Some(json!("debug")), Some(json!("apache"))));
    assert!(cluster.is_settled());
    cluster.spec = LinkerdConfigSpec { drift: cluster.spec.drift.clone(), ..LinkerdConfigSpec::default() };
    cluster.reconcile();
    assert_eq!(cluster.value(&ACCESS_LOG), Some(json!("apache")), "the edit stays when the resource declares nothing");
    assert_eq!(
        cluster.value(&LOG_LEVEL),
        Document::parse(INSTALLED).unwrap().get(&Path::from(&LOG_LEVEL[..])).cloned()
    );
}

#[test]
fn an_installer_that_keeps_restoring_its_document_is_named_instead_of_repeated_drift() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    for (manager, text, expected) in [
        ("argocd-controller", INSTALLED.to_owned(), PlanVerdict::InstallerReverts("argocd-controller".into())),
        (
            "terraform-provider-helm_v2.17.0_x5",
            INSTALLED.replace("cluster.local", "other.local"),
            PlanVerdict::InstallerReverts("terraform-provider-helm_v2.17.0_x5".into()),
        ),
        ("kubectl-edit", INSTALLED.to_owned(), PlanVerdict::RepeatedDrift),
    ] {
        cluster.write(manager, &text);
        let plan = cluster.plan_while_reverts_are_suspended();
        assert_eq!(plan.verdict, expected, "{manager}");
        assert!(plan.write.is_none() && plan.new_base.is_none(), "{manager}");
    }
}

#[test]
fn kubectl_apply_of_a_rendered_document_is_a_new_base_and_of_an_edited_copy_is_drift() {
    for manager in ["kubectl-client-side-apply", "kubectl"] {
        let mut cluster = Cluster::new(&debug());
        cluster.reconcile();
        cluster.write(manager, &INSTALLED.replace("cluster.local", "other.local"));
        let plan = cluster.reconcile();
        assert_eq!((plan.base_change, plan.drift), (Some(BaseChange::Installed { manager: manager.into() }), None));
        assert!(cluster.is_settled());
        // `kubectl get -o yaml`, an editor, `kubectl apply`.
        cluster.edit(manager, &ACCESS_LOG, json!("apache"));
        let plan = cluster.reconcile();
        assert_eq!((plan.base_change, plan.drift.unwrap().paths), (None, vec![Path::from(&ACCESS_LOG[..])]));
        assert!(cluster.is_settled());
        // A fragment, as of a person who expects that values are merged.
        cluster.write(manager, "proxy: {accessLog: apache}");
        let plan = cluster.reconcile();
        assert!(plan.base_change.is_none() && plan.drift.is_some() && cluster.is_settled(), "{manager}");
    }
}
