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
    // A resource that only compares does not say that the ConfigMap has its values.
    cluster.spec.mode = Mode::Observe;
    let plan = cluster.plan();
    assert_eq!((plan.verdict, plan.write.is_none()), (PlanVerdict::Drifted, true));
    cluster.spec.mode = Mode::Enforce;
    // A later declaration is written without reverting them, and does not count as drift.
    cluster.spec.proxy.access_log = Some("apache".to_owned());
    let plan = cluster.reconcile();
    assert_eq!((plan.verdict, plan.drift.unwrap().paths), (PlanVerdict::Drifted, vec![Path::from(&LOG_LEVEL[..])]));
    assert_eq!(cluster.value(&ACCESS_LOG), Some(json!("apache")));
    assert_eq!(cluster.value(&LOG_LEVEL), Some(json!("trace")));
    let plan = cluster.plan();
    assert_eq!((plan.verdict, plan.write.is_none(), plan.new_base.is_none()), (PlanVerdict::Drifted, true, true));
    // A malformed document is kept, too, until the action is Revert.
    cluster.write("kubectl-edit", "proxy: [");
    let plan = cluster.plan();
    assert!(matches!(plan.verdict, PlanVerdict::InvalidBase(_)) && plan.write.is_none() && plan.new_base.is_none());
    cluster.spec.drift.action = DriftAction::Revert;
    cluster.reconcile();
    assert_eq!(cluster.value(&LOG_LEVEL), Some(json!("debug")));
    assert!(cluster.is_settled());
}

#[test]
fn with_drift_action_report_a_text_that_cannot_be_an_injection_hash_is_written_over() {
    let mut cluster = Cluster::new(&json!({"proxy": {"logLevel": "debug"}, "drift": {"action": "Report"}}));
    cluster.reconcile();
    // With a change of another value, which stays.
    cluster.edit("kubectl-edit", &LOG_LEVEL, json!("trace"));
    let hash = cluster.injection_hash().unwrap();
    let edited = |text: &str| cluster.whole_document().to_yaml().replace(&hash, text);
    let [known, long, words] = ["0123456789abcdef", &"x".repeat(100_000), "two words"].map(edited);
    cluster.write("kubectl-edit", &known);
    assert_eq!(cluster.plan().injection_hash.as_deref(), Some("0123456789abcdef"), "it is reported and stays");
    let computed = cluster.document().injection_hash().to_string();
    for not_a_hash in [long, words] {
        cluster.write("kubectl-edit", &not_a_hash);
        assert_eq!(cluster.plan().injection_hash.as_ref(), Some(&computed));
        cluster.live.as_mut().unwrap().immutable = true;
        assert_eq!(cluster.plan().injection_hash.as_ref(), Some(&computed), "nothing can be written");
        cluster.live.as_mut().unwrap().immutable = false;
        cluster.reconcile();
        assert_eq!(cluster.injection_hash().as_ref(), Some(&computed));
    }
}

#[test]
fn the_same_values_in_another_text_are_neither_drift_nor_written_again() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    let written = cluster.whole_document();
    for other in [json!(written.as_map()).to_string(), format!("# a comment\n{}# another", written.to_yaml())] {
        assert_eq!(Document::parse(&other).as_ref(), Ok(&written));
        cluster.write("kubectl-edit", &other);
        assert!(cluster.is_settled() && cluster.plan().drift.is_none(), "{other}");
    }
}

/// No Pod could be created with these documents.
#[test]
fn an_edit_that_linkerd_cannot_use_is_reverted_like_any_other() {
    for (keys, value) in [
        (["proxy", "uid"], json!("many")),
        (["proxy", "livenessProbe"], Value::Null),
        (["proxyInit", "iptablesMode"], json!("ebpf")),
    ] {
        let mut cluster = Cluster::new(&debug());
        cluster.reconcile();
        let declared = cluster.document();
        cluster.edit("kubectl-edit", &keys, value);
        assert!(cluster.document() != declared && cluster.reconcile().drift.is_some(), "{keys:?}");
        assert!(cluster.document() == declared && cluster.is_settled(), "{keys:?}");
    }
}

#[test]
fn an_upgrade_that_changes_only_a_declared_value_is_a_new_base() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    let upgraded = INSTALLED.replace("  logLevel: warn,linkerd=info,hickory=error", "  logLevel: trace");
    assert_ne!(upgraded, INSTALLED);
    cluster.write("helm", &upgraded);
    assert_eq!(cluster.reconcile().base_change, Some(BaseChange::Installed { manager: "helm".into() }));
    assert_eq!(cluster.value(&LOG_LEVEL), Some(json!("debug")));
    cluster.spec = LinkerdConfigSpec::default();
    cluster.reconcile();
    assert_eq!(cluster.value(&LOG_LEVEL), Some(json!("trace")));
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
    let copy = cluster.whole_document().to_yaml().replace("cluster.local", "other.local");
    for (manager, text, expected) in [
        ("argocd-controller", INSTALLED.to_owned(), PlanVerdict::InstallerReverts("argocd-controller".into())),
        (
            "terraform-provider-helm_v2.17.0_x5",
            INSTALLED.replace("cluster.local", "other.local"),
            PlanVerdict::InstallerReverts("terraform-provider-helm_v2.17.0_x5".into()),
        ),
        ("argocd-controller", copy, PlanVerdict::InstallerReverts("argocd-controller".into())),
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

/// The copy contains the declared log level. As a base, it would make that the installer's.
#[test]
fn an_edited_copy_of_our_document_with_another_version_is_drift_whoever_wrote_it() {
    const VERSION: [&str; 1] = ["cliVersion"];
    let created_by = |cluster: &mut Cluster, version: &str| {
        let annotations = &mut cluster.live.as_mut().unwrap().annotations;
        annotations.insert(CREATED_BY_ANNOTATION.to_owned(), version.to_owned());
    };
    for manager in ["kubectl-edit", "kubectl", "argocd-controller", "kustomize-controller", "helm", "unknown"] {
        let mut cluster = Cluster::new(&debug());
        let installed = cluster.document();
        cluster.reconcile();
        cluster.edit(manager, &VERSION, json!("linkerd/cli other"));
        let plan = cluster.reconcile();
        assert_eq!((plan.base_change, plan.drift.unwrap().paths), (None, vec![Path::from(&VERSION[..])]), "{manager}");
        assert!(cluster.is_settled(), "{manager}");
        // A copy from before an upgrade.
        created_by(&mut cluster, "linkerd/helm 0");
        cluster.edit(manager, &ACCESS_LOG, json!("apache"));
        assert_eq!(cluster.reconcile().drift.unwrap().paths, [Path::from(&ACCESS_LOG[..])], "{manager}");
        // The ConfigMap is deleted, and created from an edited copy.
        cluster.live.as_mut().unwrap().uid = "another".into();
        cluster.edit(manager, &ACCESS_LOG, json!("json"));
        assert_eq!(cluster.reconcile().drift.unwrap().paths, [Path::from(&ACCESS_LOG[..])], "{manager}");
        assert!(cluster.is_settled(), "{manager}");
        cluster.spec = LinkerdConfigSpec::default();
        cluster.reconcile();
        assert_eq!(cluster.document(), installed, "{manager}");

        // A document of Linkerd's chart is an installation, also with another field manager.
        let mut upgrade = Document::parse(INSTALLED).unwrap();
        upgrade.set(&Path::from(&VERSION[..]), json!("linkerd/cli other"));
        created_by(&mut cluster, "linkerd/helm 2");
        cluster.write(manager, &upgrade.to_yaml());
        let plan = cluster.reconcile();
        let expected = (Some(BaseChange::Installed { manager: manager.into() }), None);
        assert_eq!((plan.base_change, plan.drift), expected, "{manager}");
    }
}

/// Without the ControllerRevisions, nothing distinguishes the declared values from the installer's.
#[test]
fn an_edited_copy_of_our_document_is_not_adopted_when_the_base_is_lost() {
    let mut cluster = Cluster::new(&debug());
    cluster.reconcile();
    cluster.edit("kubectl-edit", &ACCESS_LOG, json!("apache"));
    cluster.base = None;
    let plan = cluster.plan();
    assert!(matches!(plan.verdict, PlanVerdict::InvalidBase(_)) && plan.new_base.is_none(), "{:?}", plan.verdict);
    cluster.write("helm", INSTALLED);
    assert_eq!(cluster.reconcile().base_change, Some(BaseChange::Adopted));
}

/// A backup tool creates the ConfigMap again with its annotations, and with another UID.
#[test]
fn a_config_map_that_is_restored_from_a_backup_keeps_its_base() {
    let mut cluster = Cluster::new(&debug());
    let installed = cluster.document();
    cluster.reconcile();
    let live = cluster.live.as_mut().unwrap();
    live.uid = "another".into();
    live.writers.clear();
    let plan = cluster.reconcile();
    assert_eq!((plan.verdict, plan.base_change, plan.drift), (PlanVerdict::Synced, None, None));
    assert_eq!(cluster.base.as_ref().map(|base| &*base.text), Some(INSTALLED));
    // A value that is no longer declared is the installer's again.
    cluster.spec = LinkerdConfigSpec::default();
    cluster.reconcile();
    assert_eq!(cluster.document(), installed);
}

/// The resource and the document are each valid, but not together.
#[test]
fn an_upgrade_that_conflicts_with_the_declared_values_is_not_changed() {
    let rooted = INSTALLED.replace("  runAsRoot: false", "  runAsRoot: true");
    assert_ne!(rooted, INSTALLED);
    let mut cluster = Cluster::new(&json!({"values": {"proxyInit": {"closeWaitTimeoutSecs": 5}}}));
    cluster.write("helm", &rooted);
    assert!(cluster.reconcile().write.is_some());
    cluster.write("helm", INSTALLED);
    let plan = cluster.reconcile();
    let PlanVerdict::Invalid(problems) = &plan.verdict else { panic!("{:?}", plan.verdict) };
    assert!(problems[0].reason.contains("runAsRoot"), "{problems:?}");
    assert!(plan.write.is_none() && plan.new_base.is_none());
    cluster.write("helm", &rooted);
    cluster.reconcile();
    assert!(cluster.is_settled());
}
