//! The situations of a rotation, with real certificates and the verification of proxies.

mod rotation;
mod walk;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::{
    behind::BehindState,
    problems::TrustVerdict,
    report::ProxyTotals,
    seen::{LeafSettings, NotSeen, RenewedRoot, SeenIssuer, SeenProxies},
    testing::{Mesh, Pki, at, declaring, presenting, reports, root_of, workload},
};
use crate::{
    values::Document,
    x509::{
        anchor_set::AnchorSet,
        testing::{DAY, TestCa, valid},
    },
};

#[test]
fn a_mesh_with_one_root_has_nothing_to_do_until_two_months_before_its_end() {
    let pki = Pki::new();
    let mesh = Mesh::new(&[&pki.new], &[&pki.new_issuer]).pods("web", 3, &[&pki.new]);
    assert_eq!(mesh.verdict(), TrustVerdict::Good);
    // The root ends 399 days after 2027-01-01.
    mesh.next("nothing to do now; replace the root new");
    mesh.next("before 2027-12-06");
    let report = mesh.report();
    let [row] = &report.roots[..] else { panic!("{report:#?}") };
    assert_eq!((&*row.name, row.in_bundle, row.trusted_by, row.reached), ("new", true, 3, Some(true)));

    let mut late = Mesh::new(&[&pki.new], &[&pki.new_issuer]).pods("web", 3, &[&pki.new]);
    late.0.now = at(345 * DAY);
    late.next("replace the root new");
    assert_eq!(
        late.report().next_step.commands,
        ["linkerd-operator trust new ./pki --bridge-from ca.crt --old-key ca.key"]
    );
}

/// Section 2 of the design: which leaves proxies with which roots accept.
#[test]
fn the_proxies_that_refuse_new_certificates_are_those_of_the_table() {
    let pki = Pki::new();
    let (old, new, both) = ([&pki.old], [&pki.new], [&pki.old, &pki.new]);
    let second = pki.old.signs_again(&pki.new_issuer, |_| {});
    let below = pki.old_issuer.signs_again(&pki.new_issuer, |_| {});
    let ended = pki.old.signs_again(&pki.new, |params| valid(params, -10 * DAY, -DAY));
    for (chain, accepted) in [
        (&[&pki.old_issuer][..], [true, true, false]),
        (&[&pki.new_issuer], [false, true, true]),
        (&[&pki.new_issuer, &pki.bridge], [true, true, true]),
        (&[&pki.new_issuer, &second], [true, true, true]),
        (&[&second, &pki.new_issuer], [true, true, true]),
        (&[&pki.new_issuer, &below, &pki.old_issuer], [true, true, true]),
        (&[&pki.new_issuer, &ended], [false, true, true]),
    ] {
        for (trusts, is_accepted) in [&old[..], &both, &new].into_iter().zip(accepted) {
            // Other Pods with both roots keep all of them in one mesh.
            let mesh = Mesh::new(&both, chain).pods("web", 5, trusts).pods("others", 1, &both);
            let report = mesh.report();
            assert_eq!(report.proxies.refusing, if is_accepted { 0 } else { 5 }, "{report:#?}");
            assert_eq!(report.verdict == TrustVerdict::Broken, !is_accepted);
        }
    }
}

#[test]
fn a_root_that_has_expired_is_still_trusted_by_proxies() {
    let pki = Pki::new();
    let mut mesh = Mesh::new(&[&pki.old], &[&pki.old_issuer]).pods("web", 1, &[&pki.old]);
    mesh.0.now = at(101 * DAY);
    let report = mesh.report();
    assert_eq!(report.proxies.refusing, 0);
    reports(&report, TrustVerdict::Broken, "Proxies ignore this, but Linkerd's identity issues no certificates");
}

/// Section 4: with a bridge, three writes and no restart.
#[test]
fn a_rotation_with_a_bridge_is_guided_step_by_step_and_restarts_nothing() {
    let pki = Pki::new();
    let both = [&pki.new, &pki.old];
    let chain = [&pki.new_issuer, &pki.bridge];

    let added = Mesh::new(&both, &[&pki.old_issuer]).pods("web", 4, &[&pki.old]);
    assert_eq!(added.verdict(), TrustVerdict::Good);
    added.next("4 proxies do not trust new");
    added.next("with a bridge nothing has to restart");

    let mut switched = Mesh::new(&both, &chain).pods("web", 4, &[&pki.old]);
    switched.0.issuer.as_mut().unwrap().written = Some(at(-3600));
    assert_eq!(switched.verdict(), TrustVerdict::Good);
    switched.next("wait until all proxies have renewed their certificates, at the latest in 23 h; then remove old");

    let renewed = Mesh::new(&both, &chain).pods("web", 4, &[&pki.old]);
    renewed.next("the certificates of the issuer before have ended: remove old (");

    let retired = Mesh::new(&[&pki.new], &chain).pods("web", 3, &[&pki.old]).pods("db", 1, &[&pki.new]);
    assert_eq!(retired.verdict(), TrustVerdict::Good);
    retired.next("nothing is urgent: 3 proxies trust only an older root");

    let complete = Mesh::new(&[&pki.new], &chain).pods("web", 4, &[&pki.new]);
    complete.next("nothing to do");
    let cleaned = Mesh::new(&[&pki.new], &[&pki.new_issuer]).pods("web", 4, &[&pki.new]);
    cleaned.next("nothing to do");
}

#[test]
fn a_rotation_without_a_bridge_restarts_each_workload_once_and_before_the_issuer_changes() {
    without_a_bridge(&Pki::new());
}

/// Which root is the next one does not depend on the dates.
#[test]
fn a_root_may_be_replaced_by_one_that_ends_earlier() {
    let (old, new) = (root_of("old", -DAY), root_of("new", -300 * DAY));
    let [old_issuer, new_issuer] = [&old, &new].map(|root| root.signs("issuer", |_| {}));
    let bridge = old.signs_again(&new, |_| {});
    without_a_bridge(&Pki { old, new, old_issuer, new_issuer, bridge });
}

fn without_a_bridge(pki: &Pki) {
    let both = [&pki.new, &pki.old];
    let spreading = Mesh::new(&both, &[&pki.old_issuer]).pods("web", 2, &[&pki.old]).pods("db", 1, &both);
    let report = spreading.report();
    assert_eq!(report.next_step.commands, [] as [&str; 0], "with a bridge, nothing has to restart");
    assert_eq!(report.behind[0].what_to_do, "kubectl -n app rollout restart deployment/web");
    assert_eq!((report.workloads_behind, report.behind[0].pods, report.behind[0].state), (1, 2, BehindState::Behind));
    assert!(report.behind[0].lacks[0].starts_with("new ("), "{report:#?}");

    let spread = Mesh::new(&both, &[&pki.old_issuer]).pods("web", 2, &both).pods("db", 1, &both);
    spread.next("every proxy trusts new");
    spread.next("If it is the next root, write an issuer of it");
    let switched = Mesh::new(&both, &[&pki.new_issuer]).pods("web", 2, &both);
    switched.next("every proxy trusts old");
    switched.next("If it was the root before and nothing else uses it, remove it from the bundle");

    // The issuer came too early.
    let early = Mesh::new(&both, &[&pki.new_issuer]).pods("web", 2, &[&pki.old]).pods("db", 1, &both);
    reports(&early.report(), TrustVerdict::Broken, "2 proxies refuse new certificates");
    early.next("restart these workloads: their proxies refuse new certificates. Or put the previous issuer back");
}

#[test]
fn a_bundle_without_the_root_of_the_issuer_is_broken_whoever_came_first() {
    let pki = Pki::new();
    let bundle_first = Mesh::new(&[&pki.new], &[&pki.old_issuer]).pods("web", 2, &[&pki.old]);
    reports(&bundle_first.report(), TrustVerdict::Broken, "the bundle lacks the root of the issuer old issuer");
    bundle_first.next("put the root old (");
    assert_eq!(bundle_first.report().behind, [], "new Pods would be no better");
    let issuer_first = Mesh::new(&[&pki.old], &[&pki.new_issuer]).pods("web", 2, &[&pki.old]);
    reports(&issuer_first.report(), TrustVerdict::Broken, "2 proxies refuse new certificates");
    issuer_first.next("put the previous issuer back");
}

#[test]
fn an_issuer_that_no_proxy_accepts_is_reported_with_the_reason() {
    let pki = Pki::new();
    let ends_soon = pki.new.signs("issuer", |params| valid(params, -DAY, DAY));
    let ended = pki.new.signs("issuer", |params| valid(params, -2 * DAY, -DAY));
    let constrained = pki.new.signs("above", |params| {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    });
    let too_deep = constrained.signs("issuer", |_| {});
    let of = |chain: &[&TestCa]| Mesh::new(&[&pki.new], chain).pods("web", 1, &[&pki.new]).report();
    reports(&of(&[&ends_soon]), TrustVerdict::Warning, "the issuer issuer ends in 24 h");
    let left = |begun: i64, left: i64| of(&[&pki.new.signs("issuer", |params| valid(params, -begun, left))]);
    reports(&left(340 * DAY, 30 * DAY), TrustVerdict::Warning, "the issuer issuer ends in 30 d");
    assert_eq!(left(339 * DAY, 31 * DAY).verdict, TrustVerdict::Good);
    // cert-manager renews it an hour later.
    assert_eq!(left(22 * DAY / 24, 26 * DAY / 24).verdict, TrustVerdict::Good);
    assert_eq!(left(5 * DAY, 20 * DAY).verdict, TrustVerdict::Good);
    // Its root ends a hundred days later.
    let ends = left(75 * DAY, 25 * DAY);
    reports(&ends, TrustVerdict::Warning, "the issuer issuer ends in 25 d");
    assert!(ends.next_step.sentence.starts_with("renew the issuer"), "{ends:#?}");
    let expired = of(&[&ended]);
    reports(&expired, TrustVerdict::Broken, "the issuer issuer has expired");
    assert_eq!(expired.problems.len(), 1, "the rest follows from it");
    assert!(expired.next_step.sentence.starts_with("sign a new issuer"), "{expired:#?}");
    reports(&of(&[&too_deep, &constrained]), TrustVerdict::Broken, "pathLenConstraint");
    let mut garbage = Mesh::new(&[&pki.new], &[&pki.new_issuer]).pods("web", 1, &[&pki.new]);
    garbage.0.issuer = SeenIssuer::read("garbage", None);
    reports(&garbage.report(), TrustVerdict::Broken, "the file of the issuer has no certificate");
}

/// Pods that are created from then on refuse the certificates that were not renewed yet.
#[test]
fn a_root_that_leaves_the_bundle_too_early_is_reported() {
    let pki = Pki::new();
    let mesh = |switched: i64, bundle: i64| {
        let mesh = Mesh::new(&[&pki.new], &[&pki.new_issuer, &pki.bridge]).pods("web", 3, &[&pki.old]);
        let mut mesh = mesh.pods("db", 1, &[&pki.new]);
        mesh.0.issuer.as_mut().unwrap().written = Some(at(switched));
        mesh.0.bundle.as_mut().unwrap().written = Some(at(bundle));
        mesh
    };
    let early = mesh(-7200, -3600);
    early.next("put the root old (");
    early.next("back into the bundle for 22 h");
    let report = early.report();
    reports(&report, TrustVerdict::Warning, "the root old (");
    reports(&report, TrustVerdict::Warning, "left the bundle although the issuer changed only 2 h ago");
    assert_eq!(mesh(-2 * DAY, -3600).verdict(), TrustVerdict::Good, "all have renewed");
    assert_eq!(mesh(-3600, -2 * DAY).verdict(), TrustVerdict::Good, "the issuer was renewed later");
    let mut by_operator = mesh(-7200, -3600);
    by_operator.0.bundle.as_mut().unwrap().is_by_operator = true;
    assert_eq!(by_operator.verdict(), TrustVerdict::Good, "it has asked all proxies");
}

/// Proxies treat two certificates with the same name and the same key as one root.
#[test]
fn a_twin_of_a_root_in_the_pod_of_a_tenant_changes_nothing() {
    let pki = Pki::new();
    let other = TestCa::root("other");
    for (begin, end) in [(-DAY, 9_000 * DAY), (-9_000 * DAY, DAY)] {
        for root in [&pki.old, &pki.new] {
            let twin = other.signs_again(root, |params| valid(params, begin, end));
            let both = [&pki.new, &pki.old];
            let mesh = || Mesh::new(&both, &[&pki.new_issuer, &pki.bridge]).pods("web", 20, &[&pki.old]);
            mesh().pods("evil", 1, &[&twin]).next("have ended: remove old (");
            let mut ending = Mesh::new(&[&pki.old], &[&pki.old_issuer]).pods("web", 20, &[&pki.old]);
            ending.0.now = at(90 * DAY);
            let report = ending.pods("evil", 1, &[&twin]).report();
            reports(&report, TrustVerdict::Warning, "the root old (");
        }
    }
}

/// webpki tries a bounded number of signatures.
#[test]
fn many_roots_with_the_name_of_the_real_one_change_nothing() {
    let pki = Pki::new();
    let same_name: Vec<_> = (0..120).map(|_| TestCa::root("new")).collect();
    let same_name: Vec<_> = same_name.iter().collect();
    let mesh = Mesh::new(&[&pki.new], &[&pki.new_issuer]).pods("web", 20, &[&pki.new]).pods("evil", 1, &same_name);
    let report = mesh.report();
    assert_eq!((report.verdict, report.proxies.cut_off), (TrustVerdict::Warning, 1), "{report:#?}");
    assert_eq!((report.roots[0].reached, report.roots.len()), (Some(true), 20));
    assert!(report.more_roots > 20, "{}", report.more_roots);
}

#[test]
fn with_too_many_different_sets_of_roots_no_step_is_advised() {
    let pki = Pki::new();
    let junk: Vec<_> = (0..510).map(|_| TestCa::root("junk")).collect();
    let mut mesh = Mesh::new(&[&pki.new, &pki.old], &[&pki.new_issuer, &pki.bridge]);
    for junk in &junk {
        mesh = mesh.pods("evil", 1, &[&pki.new, junk]);
    }
    let report = mesh.pods("web", 5, &[&pki.old]).report();
    assert_eq!(report.proxies.unread, 15);
    reports(&report, TrustVerdict::Warning, "15 proxies have too many different sets of roots to compare");
    assert!(report.next_step.sentence.contains("no step is safe"), "{:?}", report.next_step);
}

#[test]
fn a_root_that_no_certificate_reaches_is_removed_only_if_nothing_else_uses_it() {
    let pki = Pki::new();
    let mut of_other_cluster = TestCa::root("west");
    valid(&mut of_other_cluster.params, -DAY, 30 * DAY);
    of_other_cluster.pem = of_other_cluster.params.self_signed(&of_other_cluster.key).unwrap().pem();
    let bundle = [&pki.new, &of_other_cluster];
    let mesh = Mesh::new(&bundle, &[&pki.new_issuer]).pods("web", 2, &bundle);
    mesh.next("every proxy trusts west (");
    mesh.next("If it was the root before and nothing else uses it, remove it");
}

#[test]
fn a_bridge_in_front_of_the_issuer_is_noticed() {
    let pki = Pki::new();
    let turned = Mesh::new(&[&pki.old, &pki.new], &[&pki.bridge, &pki.new_issuer]).pods("web", 2, &[&pki.old]);
    reports(&turned.report(), TrustVerdict::Broken, "the file of the issuer begins with a bridge");
    turned.next("write the certificate of the issuer before the bridge");
}

#[test]
fn a_root_that_was_issued_again_with_its_key_is_the_same_root() {
    let pki = Pki::new();
    let mut params = pki.new.params.clone();
    valid(&mut params, -DAY, 9_000 * DAY);
    let again = TestCa {
        pem: params.self_signed(&pki.new.key).unwrap().pem(),
        key: rcgen::KeyPair::generate().unwrap(),
        params,
    };
    let mesh = Mesh::new(&[&again], &[&pki.new_issuer]).pods("web", 2, &[&pki.new]).pods("db", 1, &[&again]);
    let report = mesh.report();
    assert_eq!((report.verdict, report.proxies.current, report.roots.len()), (TrustVerdict::Good, 3, 1), "{report:#?}");
    mesh.next("nothing to do");
}

#[test]
fn a_command_has_no_text_that_a_shell_would_obey() {
    let pki = Pki::new();
    let mut mesh = Mesh::new(&[&pki.new, &pki.old], &[&pki.old_issuer]);
    for (kind, name) in
        [("Deployment", "web; reboot"), ("StatefulSet", "$(reboot)"), ("`reboot`", "a"), ("Pod", "a\nb")]
    {
        mesh.0.proxies.add(workload(kind, name), Some(&AnchorSet::of(&pki.old.pem)), 1);
    }
    let report = mesh.report();
    assert_eq!(report.behind.len(), 4);
    assert!(report.behind.iter().all(|row| row.what_to_do == "let its owner create the Pods again"), "{report:#?}");
    assert!(report.next_step.commands.iter().all(|command| !command.contains("reboot")), "{report:#?}");
    let mesh = declaring(presenting(mesh, &[(&[&pki.old_issuer], 4)], 0), &[&pki.new]);
    let held = mesh.report().held_by.unwrap();
    assert!(held.starts_with("a workload of namespace app, ") && !held.contains("reboot"), "{held}");
}

#[test]
fn what_cannot_be_read_is_said_and_the_rest_is_shown() {
    let pki = Pki::new();
    let mut mesh = Mesh::new(&[&pki.new], &[&pki.new_issuer]).pods("web", 2, &[&pki.new]);
    mesh.0.issuer = Err(NotSeen::Unread("Secret linkerd-identity-issuer: forbidden".to_owned()));
    let report = mesh.report();
    assert_eq!((report.verdict, report.roots[0].reached, report.roots[0].trusted_by), (TrustVerdict::Warning, None, 2));
    reports(&report, TrustVerdict::Warning, "it is unknown whether proxies accept new certificates: Secret");
    mesh.next("run this command as a user who can read the Secret");
    mesh.0.issuer = Err(NotSeen::Missing("Secret linkerd-identity-issuer does not exist".to_owned()));
    reports(&mesh.report(), TrustVerdict::Broken, "Secret linkerd-identity-issuer does not exist");
    mesh.next("restore the Secret");
    mesh.0.bundle = Err(NotSeen::Unread("ConfigMap linkerd-identity-trust-roots: forbidden".to_owned()));
    mesh.next("run this command as a user who can read the ConfigMaps");
    mesh.0.bundle = Err(NotSeen::no_bundle("linkerd", "does not exist"));
    reports(&mesh.report(), TrustVerdict::Broken, "ConfigMap linkerd/linkerd-identity-trust-roots does not exist");
    mesh.next("restore the bundle");
    mesh.0.proxies = SeenProxies::default();
    mesh.next("is linkerd the namespace of Linkerd? No mesh was found");
}

#[test]
fn a_proxy_with_roots_of_its_own_is_cut_off_and_holds_nothing() {
    let pki = Pki::new();
    let foreign = TestCa::root("foreign");
    let mesh = Mesh::new(&[&pki.new], &[&pki.new_issuer]).pods("web", 20, &[&pki.new]).pods("evil", 2, &[&foreign]);
    let report = mesh.report();
    reports(&report, TrustVerdict::Warning, "2 proxies trust no root of the mesh");
    assert_eq!(report.verdict, TrustVerdict::Warning);
    assert_eq!(report.proxies, ProxyTotals { total: 22, current: 20, cut_off: 2, ..ProxyTotals::default() });
    mesh.next("create these Pods again, or delete them: they trust no root of the mesh");
    assert_eq!(report.next_step.commands, ["kubectl -n app rollout restart deployment/evil"]);
}

/// The bridge was taken away while most proxies need it.
#[test]
fn most_proxies_are_the_mesh_also_when_nothing_reaches_them_any_more() {
    let pki = Pki::new();
    let mesh = Mesh::new(&[&pki.new], &[&pki.new_issuer]).pods("web", 3, &[&pki.old]).pods("db", 2, &[&pki.new]);
    let report = mesh.report();
    reports(&report, TrustVerdict::Broken, "3 proxies refuse new certificates");
    assert_eq!((report.proxies.refusing, report.proxies.cut_off), (3, 0));
    mesh.next("restart these workloads: their proxies refuse new certificates");
}

#[test]
fn proxies_are_counted_whatever_bundle_they_have() {
    let pki = Pki::new();
    let mut mesh = Mesh::new(&[&pki.new], &[&pki.new_issuer]).pods("web", 1, &[&pki.new]);
    mesh.0.proxies.add(workload("Deployment", "linkerd-destination"), None, 1);
    let spaced = format!("\n{}\n\n", pki.new.pem);
    mesh.0.proxies.add(workload("Job", "batch"), Some(&AnchorSet::of(&spaced)), 1);
    for number in 0..300 {
        mesh.0.proxies.add(workload("Pod", "hostile"), Some(&AnchorSet::of(&format!("garbage {number}"))), 1);
    }
    let proxies = mesh.report().proxies;
    assert_eq!((proxies.total, proxies.current, proxies.from_config_map), (303, 2, 1));
    assert_eq!(proxies.cut_off + proxies.unread, 300, "{proxies:?}");
}

#[test]
fn an_issuer_that_is_not_written_is_a_warning_also_at_rest() {
    let pki = Pki::new();
    let mut mesh = Mesh::new(&[&pki.new], &[&pki.new_issuer]).pods("web", 1, &[&pki.new]);
    for (status, reason, is_told) in
        [("False", "IssuerRefused", true), ("False", "IssuerHeld", false), ("True", "IssuerRefused", false)]
    {
        mesh.0.issuer_condition = Some(Condition {
            type_: "IssuerSynced".to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: "it has another key".to_owned(),
            observed_generation: None,
            last_transition_time: Time(at(0)),
        });
        let report = mesh.report();
        assert_eq!(report.verdict == TrustVerdict::Warning, is_told, "{report:#?}");
        assert_eq!(report.next_step.sentence == "it has another key", is_told, "{report:#?}");
    }
}

#[test]
fn a_root_that_cert_manager_renews_by_itself_is_a_danger() {
    let pki = Pki::new();
    let mut mesh = Mesh::new(&[&pki.new], &[&pki.new_issuer]).pods("web", 1, &[&pki.new]);
    let root_in = |days: i64, is_managed: bool| {
        let (certificate, renewal) = ("linkerd/linkerd-trust-anchor".to_owned(), Some(at(days * DAY)));
        Some(RenewedRoot { certificate, renewal, is_managed })
    };
    mesh.0.renewed_root = root_in(20, false);
    let text = "cert-manager replaces the root by itself in 20 d, on 2027-01-21, and the issuer follows";
    reports(&mesh.report(), TrustVerdict::Warning, text);
    mesh.0.renewed_root = root_in(100, false);
    assert_eq!(mesh.verdict(), TrustVerdict::Good, "there is time");
    mesh.0.renewed_root = root_in(20, true);
    reports(
        &mesh.report(),
        TrustVerdict::Warning,
        "and the operator then writes no issuer of it, so the present one ends",
    );
}

#[test]
fn a_step_that_others_could_notice_names_the_linked_clusters() {
    let pki = Pki::new();
    let both = [&pki.new, &pki.old];
    let named = |mut mesh: Mesh| {
        mesh.0.linked_clusters = ["west".to_owned(), "east".to_owned()].into();
        mesh.report().next_step.sentence.contains("The same must be true in the linked clusters east, west")
    };
    assert!(named(Mesh::new(&both, &[&pki.old_issuer]).pods("web", 1, &both)), "before the issuer changes");
    assert!(named(Mesh::new(&both, &[&pki.new_issuer]).pods("web", 1, &both)), "before a root is removed");
    assert!(!named(Mesh::new(&both, &[&pki.old_issuer]).pods("web", 1, &[&pki.old])), "restarts are of this cluster");
}

#[test]
fn a_bridge_that_ends_soon_is_reported() {
    let pki = Pki::new();
    let short = pki.old.signs_again(&pki.new, |params| valid(params, -DAY, 10 * DAY));
    let mesh = Mesh::new(&[&pki.new], &[&pki.new_issuer, &short]).pods("web", 1, &[&pki.old]);
    reports(&mesh.report(), TrustVerdict::Warning, "new, which is sent beside the issuer, ends in 10 d");
}

#[test]
fn the_settings_of_leaves_are_those_of_linkerds_configuration_and_else_those_of_its_chart() {
    let of = |values: &str| {
        let settings = LeafSettings::of(Document::parse(values).ok().as_ref());
        (settings.trust_domain, settings.lifetime.as_secs(), settings.clock_skew.as_secs())
    };
    let values =
        "identityTrustDomain: example.org\nidentity: {issuer: {issuanceLifetime: 1h30m, clockSkewAllowance: 5s}}";
    assert_eq!(of(values), ("example.org".to_owned(), 5400, 5));
    for values in
        ["{}", "identityTrustDomain: ''\nidentity: {issuer: {issuanceLifetime: -1h, clockSkewAllowance: x}}", "["]
    {
        assert_eq!(of(values), ("cluster.local".to_owned(), 86_400, 20));
    }
}
