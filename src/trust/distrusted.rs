//! The trust anchors that no proxy may trust any longer. Pure.
//!
//! In: what a LinkerdTrust distrusts. Out: whether a root is meant. Always holds: each root with the key of a distrusted one is
//! meant, because who has the key can sign with the name of any of them.

use crate::x509::anchors::{AnchorBundle, RootCertificate};

/// What a LinkerdTrust distrusts.
#[derive(Clone, Debug, Default)]
pub(crate) struct DistrustedRoots {
    bundle: Option<AnchorBundle>,
    /// Whether connections may be refused until all proxies have restarted.
    pub(crate) is_cut: bool,
}

// === impl DistrustedRoots ===

impl DistrustedRoots {
    pub(crate) fn new(bundle: AnchorBundle, is_cut: bool) -> Self {
        Self { bundle: Some(bundle), is_cut }
    }

    /// The declared ones.
    pub(crate) fn roots(&self) -> &[RootCertificate] {
        self.bundle.as_ref().map(AnchorBundle::roots).unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.roots().is_empty()
    }

    /// Whether this root is meant.
    pub(crate) fn mean(&self, root: &RootCertificate) -> bool {
        self.bundle.as_ref().is_some_and(|bundle| bundle.has_key_of(root))
    }
}

#[cfg(test)]
mod tests {
    use DistrustConnections::{Cut, Keep};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

    use super::*;
    use crate::{
        api::{
            LinkerdTrustSpec,
            linkerd_trust::{
                DistrustConnections, DistrustedAnchors, IssuerManagement, IssuerOrigin, PublicCertificates, TrustMode,
                TrustPhase,
            },
        },
        text::sha256,
        trust::{
            TrustReport,
            behind::{BehindRow, BehindState},
            bundle_change::cut,
            declared::declared_roots,
            problems::TrustVerdict,
            testing::{Mesh, Pki, at, declaring, declaring_bridged, presenting, reports, workload},
        },
        x509::testing::{DAY, TestCa, der, now, pem_of, valid},
    };

    fn hash(root: &TestCa) -> String {
        sha256(der(&root.pem))
    }

    fn distrusting(mut mesh: Mesh, root: &TestCa, connections: DistrustConnections) -> Mesh {
        let bundle = AnchorBundle::parse(root.pem.as_bytes()).unwrap();
        mesh.0.desired.as_mut().unwrap().distrusted = DistrustedRoots::new(bundle, connections == Cut);
        mesh
    }

    /// The process that writes the issuer has written the next one.
    fn written(mut mesh: Mesh) -> Mesh {
        mesh.0.issuer_condition = Some(Condition {
            type_: "IssuerSynced".to_owned(),
            status: "True".to_owned(),
            reason: "Synced".to_owned(),
            message: "the issuer is new".to_owned(),
            observed_generation: Some(1),
            last_transition_time: Time(now()),
        });
        mesh
    }

    fn rows(report: &TrustReport) -> Vec<(&str, BehindState)> {
        report.behind.iter().map(|row| (&*row.name, row.state)).collect()
    }

    #[test]
    fn after_a_rotation_over_a_bridge_each_proxy_with_the_distrusted_root_must_restart() {
        let pki = Pki::new();
        let sent: &[&TestCa] = &[&pki.new_issuer, &pki.bridge];
        let mesh = |bundle: &[&TestCa]| {
            let mesh = Mesh::new(bundle, &[]).pods("web", 8, &[&pki.old]).pods("api", 2, &[&pki.new, &pki.old]);
            let mesh = presenting(mesh.pods("db", 1, &[&pki.new]), &[(sent, 11)], 0);
            let mesh = declaring_bridged(mesh, &[&pki.new], &[&pki.bridge], &[&pki.old]);
            distrusting(mesh, &pki.old, Keep)
        };
        let before = mesh(&[&pki.new, &pki.old]).report();
        assert_eq!((before.progress.phase, before.proxies.exposed), (TrustPhase::Retiring, 10));
        assert!(before.distrusted.is_empty(), "a new Pod would trust it, too");
        assert_eq!(rows(&before), [("db", BehindState::Behind), ("web", BehindState::Behind)]);
        assert!(before.behind[1].what_to_do.starts_with("wait until the distrusted root has left"));
        reports(&before, TrustVerdict::Warning, "10 proxies trust a root that spec.distrust names");

        let after = mesh(&[&pki.new]).report();
        assert_eq!((after.progress.phase, after.is_exposed), (TrustPhase::Complete, true));
        assert_eq!(after.distrusted, [hash(&pki.old)]);
        assert_eq!(rows(&after), [("api", BehindState::Exposed), ("web", BehindState::Exposed)]);
        assert!(
            after.next_step.sentence.starts_with("create the Pods of Deployment app/api, Deployment app/web again")
        );
        assert_eq!(
            after.next_step.commands,
            ["api", "web"].map(|name| format!("kubectl -n app rollout restart deployment/{name}"))
        );
    }

    #[test]
    fn a_root_that_was_issued_again_with_the_stolen_key_is_distrusted_too() {
        let pki = Pki::new();
        let again = pki.old.signs_again(&pki.old, |params| valid(params, -DAY, 900 * DAY));
        let other_name = pki.old.renamed("other name");
        let mesh = Mesh::new(&[&pki.new], &[]).pods("web", 3, &[&again, &pki.new]);
        let mesh = mesh.pods("db", 2, &[&other_name, &pki.new]);
        let mesh = declaring(presenting(mesh, &[(&[&pki.new_issuer], 5)], 0), &[&pki.new]);
        let report = distrusting(mesh, &pki.old, Keep).report();
        assert_eq!(report.proxies.exposed, 5);
        let mut expected = [&again, &other_name].map(hash);
        expected.sort();
        assert_eq!(report.distrusted, expected);
    }

    #[test]
    fn a_distrusted_root_that_nothing_has_is_reported_because_it_may_be_a_mistake_or_gone() {
        let pki = Pki::new();
        let report = |trusted: &[&TestCa]| {
            let mesh = presenting(Mesh::new(&[&pki.new], &[]).pods("web", 1, trusted), &[(&[&pki.new_issuer], 1)], 0);
            distrusting(declaring(mesh, &[&pki.new]), &pki.old, Keep).report()
        };
        let part = ", which spec.distrust has: remove it";
        let gone = report(&[&pki.new]);
        assert!(!gone.is_exposed);
        assert!(gone.next_step.sentence.starts_with("remove spec.distrust, "), "{gone:#?}");
        reports(&gone, TrustVerdict::Warning, part);
        assert!(report(&[&pki.new, &pki.old]).problems.iter().all(|it| !it.message.contains(part)));
    }

    #[test]
    fn forged_certificates_of_a_few_proxies_hold_neither_the_removal_nor_a_restart() {
        let pki = Pki::new();
        let chains: &[(&[&TestCa], usize)] = &[(&[&pki.new_issuer], 10), (&[&pki.old_issuer], 1)];
        let mesh = |bundle: &[&TestCa], signing_since, distrusted| {
            let mesh = presenting(Mesh::new(bundle, &[]).pods("web", 11, &[&pki.new, &pki.old]), chains, 0);
            let mut mesh = distrusting(declaring(mesh, &[&pki.new]), distrusted, Keep);
            mesh.0.signing_since = signing_since;
            mesh.0.bundle.as_mut().unwrap().is_by_operator = true;
            mesh.report()
        };
        let both: &[&TestCa] = &[&pki.new, &pki.old];
        let phase = |since| mesh(both, since, &pki.old).progress.phase;
        assert_eq!(phase(None), TrustPhase::Renewing);
        assert_eq!(phase(Some(at(-23 * 3600))), TrustPhase::Renewing, "a proxy may not have renewed yet");
        assert_eq!(phase(Some(at(-25 * 3600))), TrustPhase::Retiring);
        let other = TestCa::root("other");
        assert_eq!(mesh(both, Some(at(-25 * 3600)), &other).progress.phase, TrustPhase::Renewing);
        let after = mesh(&[&pki.new], None, &pki.old);
        assert_eq!((after.distrusted.len(), after.verdict), (1, TrustVerdict::Warning), "{after:#?}");
        reports(&after, TrustVerdict::Warning, "certificates of 1 proxy. They may be forged");
    }

    #[test]
    fn a_forged_certificate_with_a_later_time_names_no_issuer_and_delays_nothing_that_is_counted_from_the_issuer() {
        let pki = Pki::new();
        let mesh = |new: usize, written: bool, distrusted: &TestCa| {
            let (old_chain, new_chain): (&[&TestCa], &[&TestCa]) = (&[&pki.old_issuer], &[&pki.new_issuer]);
            // The first is the newest.
            let mut chains = vec![(old_chain, 1), (new_chain, new)];
            chains.retain(|(_, proxies)| *proxies > 0);
            let mesh = Mesh::new(&[&pki.new, &pki.old], &[]).pods("web", 11, &[&pki.new, &pki.old]);
            let mesh = distrusting(declaring(presenting(mesh, &chains, 0), &[&pki.new]), distrusted, Keep);
            let report = if written { self::written(mesh) } else { mesh }.report();
            (report.issuer.name.unwrap(), report.progress.phase, report.progress.newest_old.is_some())
        };
        let (new, old) = ("new issuer".to_owned(), "old issuer".to_owned());
        assert_eq!(mesh(10, false, &pki.old), (new.clone(), TrustPhase::Renewing, false));
        assert_eq!(
            mesh(9, false, &pki.old),
            (old.clone(), TrustPhase::AwaitingIssuer, false),
            "a tenth may be of the mesh"
        );
        assert_eq!(mesh(9, true, &pki.old), (new, TrustPhase::Renewing, false), "the operator has written the issuer");
        assert_eq!(mesh(0, true, &pki.old).0, old, "no proxy has renewed its certificate yet");
        let other = TestCa::root("other");
        assert_eq!(mesh(10, false, &other), (old, TrustPhase::AwaitingIssuer, true), "the old root is not distrusted");
    }

    #[test]
    fn a_root_that_left_the_bundle_is_distrusted_also_while_another_one_is_in_it_and_not_while_its_key_is() {
        let (pki, other) = (Pki::new(), TestCa::root("other"));
        let again = pki.old.signs_again(&pki.old, |params| valid(params, -DAY, 900 * DAY));
        let distrusted = |bundle: &[&TestCa]| {
            let mesh = Mesh::new(bundle, &[]).pods("web", 3, &[&pki.new, &pki.old]);
            let mesh = declaring(presenting(mesh, &[(&[&pki.new_issuer], 3)], 0), &[&pki.new]);
            let mut mesh = distrusting(mesh, &pki.old, Keep);
            let both = AnchorBundle::parse(pem_of(&[&pki.old, &other]).as_bytes()).unwrap();
            mesh.0.desired.as_mut().unwrap().distrusted = DistrustedRoots::new(both, false);
            mesh.report().distrusted
        };
        assert_eq!(distrusted(&[&pki.new, &other]), [hash(&pki.old)]);
        assert_eq!(distrusted(&[&pki.new, &again]), [""; 0], "new Pods would trust the key");
    }

    #[test]
    fn no_step_goes_back_to_what_may_be_distrusted() {
        let pki = Pki::new();
        let mesh = |bundle: &[&TestCa], chain: &[&TestCa], distrusted: &TestCa| {
            let mesh = presenting(Mesh::new(bundle, &[]).pods("web", 8, &[&pki.old, &pki.new]), &[(chain, 8)], 0);
            distrusting(declaring(mesh, &[&pki.new]), distrusted, Keep)
        };
        let unknown = TestCa::root("unknown");
        let stray = unknown.signs("stray", |_| {});
        mesh(&[&pki.old, &pki.new], &[&stray], &pki.old).next("write an issuer of new (");
        let mut managed = mesh(&[&pki.old, &pki.new], &[&stray], &pki.old);
        managed.0.desired.as_mut().unwrap().manages_issuer = true;
        managed.next("into the Secret linkerd-identity-issuer-next: the present one is not under a root of the mesh");
        mesh(&[&pki.new], &[&pki.old_issuer], &pki.old)
            .next("to Cut, with spec.mode Enforce and spec.issuer.manage Secret:");
        // Another root is distrusted than the one that certificates need.
        mesh(&[&pki.new], &[&pki.old_issuer], &unknown).next("put the root old (");
    }

    #[test]
    fn people_who_remove_a_root_themselves_wait_for_proxies_that_are_not_observed() {
        let pki = Pki::new();
        let both: &[&TestCa] = &[&pki.new, &pki.old];
        let distrusted = |written, unobserved, is_by_operator| {
            let mesh = Mesh::new(&[&pki.new], &[]).pods("web", 3, both);
            let mesh = presenting(mesh, &[(&[&pki.new_issuer], 3 - unobserved)], unobserved);
            let mut mesh = distrusting(declaring(mesh, &[&pki.new]), &pki.old, Keep);
            let bundle = mesh.0.bundle.as_mut().unwrap();
            (bundle.written, bundle.is_by_operator) = (Some(at(written)), is_by_operator);
            mesh.0.desired.as_mut().unwrap().is_enforced = true;
            mesh.report().distrusted.len()
        };
        assert_eq!(distrusted(-3600, 1, false), 0);
        assert_eq!([distrusted(-3600, 0, false), distrusted(-3600, 1, true), distrusted(-25 * 3600, 1, false)], [1; 3]);
    }

    #[test]
    fn the_control_plane_restarts_first_if_it_read_the_bundle_with_the_distrusted_root() {
        let pki = Pki::new();
        let both: &[&TestCa] = &[&pki.new, &pki.old];
        let mesh = |roots: &[&TestCa], distrusted| {
            let mesh = presenting(Mesh::new(&[&pki.new], &[]).pods("web", 1, roots), &[(&[&pki.new_issuer], 1)], 0);
            let mut mesh = distrusting(declaring(mesh, &[&pki.new]), distrusted, Keep);
            mesh.0.proxies.behind_config_map.insert(workload("Deployment", "linkerd-identity"));
            mesh.report()
        };
        let control_plane = "kubectl -n linkerd rollout restart deployment/linkerd-identity";
        let exposed = mesh(both, &pki.old);
        assert_eq!(exposed.next_step.commands, [control_plane, "kubectl -n app rollout restart deployment/web"]);
        let last = mesh(&[&pki.new], &pki.old);
        assert!(last.is_exposed && last.proxies.exposed == 0);
        assert_eq!(last.next_step.commands, [control_plane]);
    }

    #[test]
    fn while_connections_are_cut_the_issuer_comes_first_then_the_bundle_and_then_the_restarts() {
        let pki = Pki::new();
        let old: &[(&[&TestCa], usize)] = &[(&[&pki.old_issuer], 8)];
        let mesh = |bundle: &[&TestCa], chains: &[(&[&TestCa], usize)], connections| {
            let mesh = presenting(Mesh::new(bundle, &[]).pods("web", 8, &[&pki.old]), chains, 0);
            let mut mesh = distrusting(declaring(mesh, &[&pki.new]), &pki.old, connections);
            let desired = mesh.0.desired.as_mut().unwrap();
            (desired.is_enforced, desired.manages_issuer) = (true, true);
            mesh
        };
        let both: &[&TestCa] = &[&pki.new, &pki.old];
        mesh(&[&pki.old], old, Cut).next("add new (");
        let waiting = mesh(both, old, Cut);
        waiting.next("write an issuer of new (");
        let report = waiting.report();
        assert!(
            report.distrusted.is_empty() && report.sufficient.is_empty(),
            "no workload restarts twice: {report:#?}"
        );
        written(mesh(both, old, Cut)).next("remove old (");

        let cut = written(mesh(&[&pki.new], old, Cut)).report();
        assert!(cut.sufficient.contains(&hash(&pki.new)), "{cut:#?}");
        reports(&cut, TrustVerdict::Warning, "refuse each other until each workload has restarted");
        assert_eq!(cut.verdict, TrustVerdict::Warning, "nothing is to be put back: {cut:#?}");
        assert_eq!((cut.distrusted, rows_of(&cut.behind)), (vec![hash(&pki.old)], vec!["web".to_owned()]));
        assert_eq!(cut.next_step.commands, ["kubectl -n app rollout restart deployment/web"]);
        let half: &[(&[&TestCa], usize)] = &[(&[&pki.new_issuer], 4), (&[&pki.old_issuer], 4)];
        let half = written(mesh(&[&pki.new], half, Cut)).report();
        assert_eq!(half.next_step.commands, ["kubectl -n app rollout restart deployment/web"]);

        let kept = mesh(&[&pki.new], old, Keep).report();
        assert!(kept.sufficient.is_empty() && kept.distrusted.is_empty(), "new Pods refuse what all present");
        let sentence = kept.next_step.sentence;
        assert!(
            sentence.starts_with("the bundle lost the distrusted old (") && sentence.contains("to Cut"),
            "{sentence}"
        );
    }

    fn rows_of(behind: &[BehindRow]) -> Vec<String> {
        behind.iter().map(|row| row.name.clone()).collect()
    }

    #[test]
    fn only_distrusted_roots_leave_the_bundle_at_once_and_not_before_the_declared_ones_are_there() {
        let pki = Pki::new();
        let other = TestCa::root("other");
        let again = pki.old.signs_again(&pki.old, |params| valid(params, -DAY, 900 * DAY));
        let mesh = distrusting(declaring(Mesh::new(&[], &[]), &[&pki.new]), &pki.old, Cut);
        let declared = mesh.0.desired.unwrap();
        let removed = |bundle: &[&TestCa]| {
            cut(&pem_of(bundle), &declared).unwrap().map(|change| {
                assert!(change.is_urgent);
                change.text
            })
        };
        assert_eq!(removed(&[&pki.old, &other, &again, &pki.new]), Some(pem_of(&[&other, &pki.new])));
        assert_eq!(removed(&[&pki.old, &other]), None, "no declared root is there");
        let one_of_two = {
            let mesh = declaring(Mesh::new(&[], &[]), &[&pki.new, &TestCa::root("unusable")]);
            distrusting(mesh, &pki.old, Cut).0.desired.unwrap()
        };
        let text = cut(&pem_of(&[&pki.old, &pki.new]), &one_of_two).unwrap().map(|change| change.text);
        assert_eq!(text, Some(pem_of(&[&pki.new])), "a declared root that cannot be added holds nothing");
        assert_eq!(removed(&[&other, &pki.new]), None);
    }

    #[test]
    fn a_distrusted_root_is_not_declared_and_connections_are_cut_only_by_the_writer_of_bundle_and_issuer() {
        let pki = Pki::new();
        let twin = pki.new.signs_again(&pki.new, |params| valid(params, -DAY, 900 * DAY));
        let declared = |anchor: Option<&TestCa>, distrusted: &str, connections, mode, manage| {
            let anchors = anchor.map(|root| PublicCertificates { pem: root.pem.clone() });
            let distrust = Some(DistrustedAnchors { pem: distrusted.to_owned(), connections });
            let issuer = IssuerManagement { manage };
            let spec = LinkerdTrustSpec { anchors, mode, distrust, issuer, ..LinkerdTrustSpec::default() };
            declared_roots("mesh", &spec).map(drop)
        };
        let (new, old) = (Some(&pki.new), pki.old.pem.as_str());
        let observing = |anchor, distrusted, connections| {
            declared(anchor, distrusted, connections, TrustMode::Observe, IssuerOrigin::None)
        };
        assert!(observing(None, old, Keep).unwrap_err().contains("set spec.anchors.pem"));
        assert!(observing(new, &twin.pem, Keep).unwrap_err().starts_with("spec.anchors.pem has new ("));
        assert!(observing(new, "3f2a", Keep).unwrap_err().starts_with("spec.distrust.pem cannot be used: "));
        assert_eq!(observing(new, old, Keep), Ok(()));
        for (mode, manage) in [(TrustMode::Observe, IssuerOrigin::None), (TrustMode::Enforce, IssuerOrigin::None)] {
            let why = declared(new, old, Cut, mode, manage).unwrap_err();
            assert!(why.starts_with("spec.distrust.connections Cut needs spec.mode Enforce and"), "{why}");
        }
        assert_eq!(declared(new, old, Cut, TrustMode::Enforce, IssuerOrigin::Secret), Ok(()));
    }
}
