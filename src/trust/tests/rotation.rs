//! The phases of a rotation whose certificates are observed.

use super::super::{
    TrustPlan,
    problems::TrustVerdict,
    testing::{Mesh, Pki, at, declaring, presenting, reports, root_of},
};
use crate::{
    api::linkerd_trust::TrustPhase,
    x509::testing::{DAY, TestCa, valid},
};

#[test]
fn each_phase_of_a_rotation_to_the_declared_root_has_its_step() {
    use TrustPhase::{Adding, AwaitingIssuer, Complete, Renewing, Retiring, Spreading, Steady};
    let pki = Pki::new();
    let (old, new, both) = (&[&pki.old][..], &[&pki.new][..], &[&pki.new, &pki.old][..]);
    let (before, bridged, after): (&[&TestCa], &[&TestCa], &[&TestCa]) =
        (&[&pki.old_issuer], &[&pki.new_issuer, &pki.bridge], &[&pki.new_issuer]);
    // The bundle, what proxies trust, what they present (the newest first), how many were not observed.
    let rows = [
        (Adding, old, old, vec![(before, 3)], 0, "add new ("),
        (Spreading, both, old, vec![(before, 3)], 0, "3 proxies do not trust the root"),
        (AwaitingIssuer, both, both, vec![(before, 3)], 0, "write an issuer of new ("),
        (Renewing, both, old, vec![(bridged, 1), (before, 2)], 0, "wait until 2 proxies have renewed"),
        (Renewing, both, old, vec![(bridged, 2)], 1, "wait until the certificates of 1 proxy are observed"),
        (Retiring, both, old, vec![(bridged, 3)], 0, "remove old ("),
        (Retiring, both, both, vec![(after, 3)], 0, "remove old ("),
        (Complete, new, old, vec![(bridged, 3)], 0, "nothing is urgent: 3 proxies trust only an older root"),
        (Complete, new, both, vec![(after, 3)], 0, "nothing to do"),
        (Steady, new, new, vec![(after, 3)], 0, "nothing to do"),
        (Steady, new, new, vec![(after, 2)], 1, "nothing to do"),
    ];
    for (phase, bundle, trusted, presented, unobserved, step) in rows {
        let mesh = presenting(Mesh::new(bundle, &[]).pods("web", 3, trusted), &presented, unobserved);
        let report = declaring(mesh, new).report();
        assert_eq!(report.progress.phase, phase, "{report:#?}");
        assert!(report.next_step.sentence.contains(step), "{report:#?}");
        assert!(report.problems.iter().all(|problem| problem.verdict != TrustVerdict::Broken), "{report:#?}");
    }
}

#[test]
fn a_proxy_that_is_not_observed_delays_the_removal_for_the_lifetime_of_a_certificate() {
    let pki = Pki::new();
    let phase = |since: Option<i64>, presented: &[(&[&TestCa], usize)]| {
        let mesh = Mesh::new(&[&pki.new, &pki.old], &[]).pods("web", 3, &[&pki.old]);
        let mut mesh = declaring(presenting(mesh, presented, 1), &[&pki.new]);
        mesh.0.signing_since = since.map(at);
        let report = mesh.report();
        (report.progress.phase, report.next_step.sentence)
    };
    let bridged: &[&TestCa] = &[&pki.new_issuer, &pki.bridge];
    // The lifetime, the clock skew twice, and three minutes.
    let ended = -(DAY + 40 + 180);
    for (since, expected, part) in [
        (None, TrustPhase::Renewing, "wait until the certificates of 1 proxy are observed: "),
        (Some(ended + 1), TrustPhase::Renewing, "are observed, at the latest at "),
        (Some(ended), TrustPhase::Retiring, "remove old ("),
    ] {
        let (phase, sentence) = phase(since, &[(bridged, 2)]);
        assert_eq!(phase, expected, "{since:?}");
        assert!(sentence.contains(part), "{sentence}");
    }
    let (phase, _) = phase(Some(ended), &[(bridged, 1), (&[&pki.old_issuer], 1)]);
    assert_eq!(phase, TrustPhase::Renewing, "an older certificate was observed");
}

#[test]
fn a_root_that_was_issued_again_with_its_key_is_added_and_nothing_else_is_left_to_do() {
    let again = root_of("old", -DAY);
    let expired = again.signs_again(&again, |params| valid(params, -2 * DAY, -DAY));
    let issuer = again.signs("issuer", |_| {});
    let mesh =
        |bundle: &[&TestCa]| presenting(Mesh::new(bundle, &[]).pods("web", 3, &[&expired]), &[(&[&issuer], 3)], 0);
    let report = declaring(mesh(&[&expired]), &[&again]).report();
    assert_eq!((report.progress.phase, report.progress.is_bundle_synced), (TrustPhase::Adding, false), "{report:#?}");
    assert!(report.progress.missing.is_some_and(|names| names.starts_with("old (")));
    assert_eq!(report.verdict, TrustVerdict::Broken, "Linkerd's identity issues nothing");
    let report = declaring(mesh(&[&expired, &again]), &[&again]).report();
    assert_eq!(report.progress.phase, TrustPhase::Steady, "for proxies it is the same root: {report:#?}");
    assert_eq!(
        (report.verdict, report.roots.len()),
        (TrustVerdict::Good, 1),
        "the expired one is not used: {report:#?}"
    );
}

#[test]
fn an_issuer_that_two_roots_have_signed_belongs_to_the_declared_one() {
    let pki = Pki::new();
    let of_old = pki.old.signs_again(&pki.new_issuer, |_| {});
    let chain: &[&TestCa] = &[&pki.new_issuer, &of_old];
    for declared in [&pki.new, &pki.old] {
        let mesh = Mesh::new(&[&pki.new, &pki.old], &[]).pods("web", 3, &[&pki.old, &pki.new]);
        let report = declaring(presenting(mesh, &[(chain, 3)], 0), &[declared]).report();
        assert_eq!(report.progress.phase, TrustPhase::Retiring, "{report:#?}");
    }
}

#[test]
fn a_bundle_of_trust_manager_is_changed_at_its_sources() {
    let pki = Pki::new();
    let (before, bridged): (&[&TestCa], &[&TestCa]) = (&[&pki.old_issuer], &[&pki.new_issuer, &pki.bridge]);
    for (bundle, presented, step) in
        [(&[&pki.old][..], before, "add new ("), (&[&pki.new, &pki.old][..], bridged, "then remove old (")]
    {
        let mut mesh = presenting(Mesh::new(bundle, &[]).pods("web", 3, &[&pki.old]), &[(presented, 3)], 0);
        mesh.0.bundle.as_mut().unwrap().source = Some("roots".to_owned());
        let step_of = declaring(mesh, &[&pki.new]).report().next_step;
        let sentence = &step_of.sentence;
        assert!(sentence.contains(step) && sentence.contains("the sources of the Bundle roots"), "{sentence}");
        assert_eq!(step_of.commands, [""; 0], "trust-manager would undo them");
    }
}

#[test]
fn the_old_root_that_is_declared_again_leads_back_from_each_phase() {
    use TrustPhase::{Adding, Renewing, Retiring, Spreading, Steady};
    let pki = Pki::new();
    let (old, new, both) = (&[&pki.old][..], &[&pki.new][..], &[&pki.new, &pki.old][..]);
    let (before, after): (&[&TestCa], &[&TestCa]) = (&[&pki.old_issuer], &[&pki.new_issuer]);
    for (phase, bundle, trusted, presented) in [
        (Steady, old, old, vec![(before, 3)]),
        // Nothing needs the new root.
        (Retiring, both, both, vec![(before, 3)]),
        (Renewing, both, both, vec![(before, 1), (after, 2)]),
        (Adding, new, both, vec![(after, 3)]),
        (Spreading, both, new, vec![(after, 3)]),
    ] {
        let mesh = presenting(Mesh::new(bundle, &[]).pods("web", 3, trusted), &presented, 0);
        assert_eq!(declaring(mesh, old).report().progress.phase, phase);
    }
}

/// The bundle has both roots, and proxies trust only the new one: they would refuse certificates of the old issuer.
#[test]
fn the_way_back_has_no_bridge_although_the_way_there_had_one() {
    let pki = Pki::new();
    let (bridged, before): (&[&TestCa], &[&TestCa]) = (&[&pki.new_issuer, &pki.bridge], &[&pki.old_issuer]);
    for (presented, step) in [(bridged, "write an issuer of old ("), (before, "restart these workloads")] {
        let mesh = Mesh::new(&[&pki.new, &pki.old], &[]).pods("web", 3, &[&pki.new]);
        let report = declaring(presenting(mesh, &[(presented, 3)], 0), &[&pki.old]).report();
        assert_eq!((report.progress.phase, report.progress.is_bridged), (TrustPhase::Spreading, false), "{report:#?}");
        assert!(report.next_step.sentence.contains(step), "{report:#?}");
    }
}

/// As after `linkerd install`, where the issuer is the root.
#[test]
fn a_new_root_with_the_name_of_the_old_one_is_another_root() {
    let (old, new) = (TestCa::root("identity.linkerd.cluster.local"), TestCa::root("identity.linkerd.cluster.local"));
    let mesh = Mesh::new(&[&new, &old], &[]).pods("web", 3, &[&old]);
    let report = declaring(presenting(mesh, &[(&[&old], 3)], 0), &[&new]).report();
    assert_eq!((report.progress.phase, report.progress.not_renewed), (TrustPhase::Spreading, 3), "{report:#?}");
}

#[test]
fn an_issuer_that_no_proxy_accepts_is_broken_also_if_only_some_proxies_have_its_certificates() {
    let pki = Pki::new();
    let foreign = TestCa::root("foreign");
    let of_foreign = foreign.signs("issuer", |_| {});
    let (evil, good): (&[&TestCa], &[&TestCa]) = (&[&of_foreign], &[&pki.new_issuer]);
    for presented in [vec![(evil, 3), (good, 2)], vec![(evil, 5)]] {
        let report = presenting(Mesh::new(&[&pki.new], &[]).pods("web", 5, &[&pki.new]), &presented, 0).report();
        reports(&report, TrustVerdict::Broken, "present certificates that no root of the mesh verifies");
        assert!(report.next_step.sentence.starts_with("put the previous issuer back"), "{report:#?}");
    }
}

#[test]
fn a_bundle_that_shares_no_root_with_running_proxies_is_broken_also_if_no_certificate_is_observed() {
    let pki = Pki::new();
    let report = presenting(Mesh::new(&[&pki.new], &[]).pods("web", 5, &[&pki.old]), &[], 5).report();
    reports(&report, TrustVerdict::Broken, "new Pods trust no root that running proxies trust");
    assert!(report.next_step.sentence.starts_with("put the root old ("), "{report:#?}");
}

/// webpki would name any of them.
#[test]
fn the_root_to_put_back_is_a_declared_one() {
    let pki = Pki::new();
    let foreign = TestCa::root("foreign");
    let mesh = Mesh::new(&[&foreign], &[]).pods("web", 3, &[&pki.new, &pki.old]).pods("db", 2, &[&pki.new]);
    let report = declaring(presenting(mesh, &[(&[&pki.new_issuer, &pki.bridge], 5)], 0), &[&pki.new]).report();
    assert!(report.next_step.sentence.starts_with("put the root new ("), "{report:#?}");
}

#[test]
fn a_certificate_of_no_root_of_the_mesh_decides_nothing() {
    let pki = Pki::new();
    let foreign = TestCa::root("foreign");
    let of_foreign = foreign.signs("issuer", |_| {});
    let (evil, good): (&[&TestCa], &[&TestCa]) = (&[&of_foreign], &[&pki.new_issuer]);
    let mesh = || Mesh::new(&[&pki.new], &[]).pods("web", 20, &[&pki.new]).pods("evil", 1, &[&foreign]);
    let report = presenting(mesh(), &[(evil, 1), (good, 20)], 0).report();
    assert_eq!(report.issuer.name.as_deref(), Some("new issuer"), "also if it is the newest");
    reports(&report, TrustVerdict::Warning, "present certificates that no root of the mesh verifies");
    assert_eq!((report.progress.not_renewed, report.progress.phase), (0, TrustPhase::Steady));
}

#[test]
fn a_root_that_left_the_bundle_while_certificates_need_it_is_named() {
    let pki = Pki::new();
    let (before, after): (&[&TestCa], &[&TestCa]) = (&[&pki.old_issuer], &[&pki.new_issuer, &pki.bridge]);
    let mesh = presenting(Mesh::new(&[&pki.new], &[]).pods("web", 3, &[&pki.old]), &[(after, 1), (before, 2)], 0);
    reports(&mesh.report(), TrustVerdict::Broken, "new Pods refuse the certificates of 2 proxies");
    mesh.next(" back into the bundle until 2 proxies have renewed their certificates");
}

/// A tenant trusts a root of its own beside the mesh's, and presents a chain that reaches it, too.
#[test]
fn a_root_of_a_tenant_is_not_named_as_one_to_put_back() {
    let pki = Pki::new();
    let evil = TestCa::root("evil");
    let again = evil.signs_again(&pki.old_issuer, |_| {});
    let (before, forged): (&[&TestCa], &[&TestCa]) = (&[&pki.old_issuer], &[&pki.old_issuer, &again]);
    let mesh = Mesh::new(&[&pki.new], &[]).pods("web", 8, &[&pki.old, &pki.new]).pods("evil", 2, &[&pki.new, &evil]);
    let report = presenting(mesh, &[(forged, 2), (before, 8)], 0).report();
    let step = &report.next_step.sentence;
    assert!(step.starts_with("put ") && step.contains("old (") && !step.contains("evil"), "{step}");
    let mesh = Mesh::new(&[&pki.new], &[]).pods("web", 8, &[&pki.new]).pods("evil", 2, &[&pki.new, &evil]);
    let report = presenting(mesh, &[(forged, 2), (&[&pki.new_issuer], 8)], 0).report();
    assert!(!report.next_step.sentence.contains("evil"), "{report:#?}");
}

#[test]
fn certificates_of_a_root_of_tenants_name_no_issuer() {
    let pki = Pki::new();
    let own = TestCa::root("own");
    let issuer = own.signs("own issuer", |_| {});
    let (of_mesh, of_tenant): (&[&TestCa], &[&TestCa]) = (&[&pki.old_issuer], &[&issuer]);
    let report = |bundle: &[&TestCa], others: &[(&[&TestCa], usize)]| {
        let mesh = Mesh::new(bundle, &[]).pods("web", 3, &[&pki.old, &pki.new]).pods("own", others.len(), &[&own]);
        // The certificate of the tenant is the newest one.
        let chains = [others, &[(of_mesh, 3)]].concat();
        declaring(presenting(mesh, &chains, 0), &[&pki.new]).report()
    };
    let both: &[&TestCa] = &[&pki.new, &pki.old];
    let with = report(both, &[(of_tenant, 1)]);
    assert_eq!((with.issuer.name.as_deref(), with.proxies.refusing), (Some("old issuer"), 1), "the tenant's own");
    reports(&with, TrustVerdict::Broken, "new Pods refuse the certificates of 1 proxy");
    let lost = report(&[&pki.new], &[]);
    assert_eq!(lost.issuer.name.as_deref(), Some("old issuer"), "the bundle lost the root, and no other is known");
}

/// Each proxy can send any certificates beside its own.
#[test]
fn the_chain_of_the_issuer_is_the_one_that_most_of_its_proxies_send() {
    let pki = Pki::new();
    let (bridged, alone): (&[&TestCa], &[&TestCa]) = (&[&pki.new_issuer, &pki.bridge], &[&pki.new_issuer]);
    let mesh = Mesh::new(&[&pki.new, &pki.old], &[]).pods("web", 20, &[&pki.old]);
    let report = declaring(presenting(mesh, &[(alone, 1), (bridged, 19)], 0), &[&pki.new]).report();
    assert_eq!((report.progress.phase, report.progress.is_bridged), (TrustPhase::Retiring, true), "{report:#?}");
}

#[test]
fn certificates_that_have_ended_are_broken_and_those_of_a_few_proxies_only_reported() {
    let pki = Pki::new();
    let ended = |chains: &[(&[&TestCa], usize)], ended: usize, unobserved: usize| {
        let mut mesh = presenting(Mesh::new(&[&pki.new], &[]).pods("web", 5, &[&pki.new]), chains, unobserved);
        mesh.0.leaves.as_mut().unwrap().ended = ended;
        mesh.report()
    };
    let report = ended(&[], 4, 5);
    reports(&report, TrustVerdict::Broken, "the certificates of 4 proxies have ended: nothing connects to them");
    assert_eq!(report.next_step.commands, ["kubectl -n linkerd rollout restart deployment/linkerd-identity"]);
    for report in [ended(&[(&[&pki.new_issuer], 9)], 1, 1), ended(&[], 1, 5)] {
        reports(&report, TrustVerdict::Warning, "the certificates of 1 proxy have ended");
        assert!(report.verdict < TrustVerdict::Broken && report.next_step.commands.is_empty(), "{report:#?}");
    }
}

#[test]
fn without_a_certificate_of_any_proxy_the_phase_is_unknown() {
    let pki = Pki::new();
    let mesh = presenting(Mesh::new(&[&pki.new], &[]).pods("web", 3, &[&pki.new]), &[], 3);
    let report = mesh.report();
    assert_eq!((report.progress.phase, report.progress.unobserved), (TrustPhase::Unknown, 3));
    mesh.next("wait until a proxy has shown its certificate");
}

#[test]
fn a_plan_lists_the_steps_that_are_left_and_what_must_restart_without_a_bridge() {
    let pki = Pki::new();
    let (old, new, both) = (&[&pki.old][..], &[&pki.new][..], &[&pki.new, &pki.old][..]);
    let plan = |bundle: &[&TestCa], issuer: &[&TestCa], trusted: &[&TestCa]| {
        let mesh = declaring(Mesh::new(bundle, issuer).pods("web", 3, trusted).pods("db", 1, both), new);
        let plan = TrustPlan::new(&mesh.0).unwrap();
        let steps: Vec<_> =
            plan.steps.iter().map(|step| step.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
        let restarts: Vec<_> =
            plan.restarts_without_bridge.iter().map(|it| (it.namespace.clone(), it.workloads, it.pods)).collect();
        (steps.join(", "), restarts)
    };
    let restarts = vec![("app".to_owned(), 1, 3)];
    let all = "add new, restart the, write an, wait until, remove old";
    assert_eq!(plan(old, &[&pki.old_issuer], old), (all.to_owned(), restarts.clone()));
    let spreading = "write an, wait until, remove old";
    assert_eq!(plan(both, &[&pki.old_issuer], old), (format!("restart the, {spreading}"), restarts));
    assert_eq!(plan(both, &[&pki.old_issuer], both), (spreading.to_owned(), vec![]));
    assert_eq!(plan(both, &[&pki.new_issuer, &pki.bridge], old), ("remove old".to_owned(), vec![]));
    assert_eq!(plan(new, &[&pki.new_issuer, &pki.bridge], old), (String::new(), vec![]));
}

#[test]
fn a_declared_root_that_has_expired_is_reported_and_never_planned() {
    let pki = Pki::new();
    let mut mesh = declaring(Mesh::new(&[&pki.new], &[&pki.new_issuer]).pods("web", 3, &[&pki.new]), &[&pki.old]);
    mesh.0.now = at(101 * DAY);
    let report = mesh.report();
    assert!(
        report.problems.iter().any(|it| it.is_end && it.message.starts_with("the declared root old (")),
        "{report:#?}"
    );
    // Also while the bundle has it.
    let bundle = format!("{}{}", pki.new.pem, pki.old.pem);
    let why = TrustPlan::new(&mesh.0).unwrap_err();
    mesh.0.bundle.as_mut().unwrap().pem = bundle;
    assert_eq!(TrustPlan::new(&mesh.0).unwrap_err(), why);
    assert!(why.starts_with("the declared root old (") && why.ends_with("has expired: declare another one"), "{why}");
}

#[test]
fn after_the_rotation_another_issuer_may_come_only_when_each_proxy_trusts_the_declared_root() {
    let pki = Pki::new();
    let chain: &[&TestCa] = &[&pki.new_issuer, &pki.bridge];
    let progress = |trusts: &[&TestCa]| {
        let mesh = presenting(Mesh::new(&[&pki.new], &[]).pods("web", 3, trusts), &[(chain, 3)], 0);
        declaring(mesh, &[&pki.new]).report().progress
    };
    // These proxies accept the present issuer over a bridge that is not declared.
    let bridged = progress(&[&pki.old]);
    assert_eq!((bridged.phase, bridged.may_switch()), (TrustPhase::Complete, false));
    assert!(progress(&[&pki.new]).may_switch());
}
