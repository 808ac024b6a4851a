//! A document in the ConfigMap that cannot be read.

use super::*;

#[test]
fn an_unreadable_document_is_repaired_only_from_a_base_and_not_if_an_installer_broke_it() {
    let mut cluster = Cluster::new(&debug());
    cluster.write("helm", "proxy: [");
    let plan = cluster.reconcile();
    assert!(plan.write.is_none() && plan.new_base.is_none());
    let PlanVerdict::InvalidBase(first) = plan.verdict else { panic!("{:?}", plan.verdict) };
    let begin = "key values of ConfigMap linkerd/linkerd-config (last written by helm) cannot be read: not YAML that Go can \
                 parse: line 1, column ";
    let end = "; correct it with the installer (helm upgrade)";
    assert!(first.starts_with(begin) && first.ends_with(end), "{first}");
    cluster.write("helm", INSTALLED);
    cluster.reconcile();
    for (broken, why) in [
        ("proxy: [", "not YAML that Go can parse: line 1, column "),
        ("- a", "not a map"),
        ("a: 1\na: 2\n", "line 2, column 1: duplicate key a"),
    ] {
        cluster.write("helm", broken);
        let PlanVerdict::InvalidBase(message) = cluster.reconcile().verdict else { panic!("its installer broke it") };
        let end = format!("{end}, or restore it from ControllerRevision linkerd-config-base-1");
        assert!(message.contains(&format!(" cannot be read: {why}")) && message.ends_with(&end), "{message}");
    }
    cluster.write("helm", INSTALLED);
    cluster.reconcile();
    cluster.write("kubectl-edit", "proxy: [");
    let plan = cluster.reconcile();
    assert!(plan.write.is_some() && plan.drift.is_some_and(|drift| drift.manager == "kubectl-edit"));
    assert!(cluster.is_settled());
}
