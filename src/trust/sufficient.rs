//! The roots of which a proxy must trust one. Pure.
//!
//! In: the roots of a mesh, and the declared ones with their bridges. Out: the roots that are enough. Always holds: a proxy
//! that trusts one accepts what the issuer signs, or what an issuer of a declared root will sign, if the declared bridges are
//! written after it; while proxies present certificates that new Pods refuse, no root is enough, unless connections are
//! cut; and none is before that.

use std::collections::BTreeSet;

use super::{roots::MeshRoots, seen::SeenTrust};
use crate::{
    text::hex,
    x509::{
        anchor_set::Fingerprint,
        anchors::{AnchorBundle, RootCertificate},
    },
};

/// The maximum number of certificates.
const MAX_CERTIFICATES: usize = 20;

/// Returns the roots that certificates of the issuer reach; if it does not belong to a declared root, those that
/// certificates of the next one will reach. None if the issuer is not known.
pub(super) fn reached_by_desired_issuer(roots: &MeshRoots<'_>) -> BTreeSet<Fingerprint> {
    match &roots.issuer {
        Err(_) => BTreeSet::new(),
        Ok(issuer) if roots.is_issuer_desired() => issuer.reached.clone(),
        Ok(_) => with_bridges(roots),
    }
}

/// The root of the issuer, or of the next one, and those that its certificates reach over the declared bridges.
pub(super) fn with_bridges(roots: &MeshRoots<'_>) -> BTreeSet<Fingerprint> {
    let Some(target) = roots.target() else { return BTreeSet::new() };
    roots.over_bridges(&target.id).iter().copied().chain([target.id]).collect()
}

/// What proxies need: the SHA-256 of certificates.
#[derive(Debug, Default)]
pub(super) struct NeededCertificates {
    /// A proxy must trust one of these.
    pub(super) sufficient: Vec<String>,
    /// And each of these.
    pub(super) required: Vec<String>,
    /// And none of these.
    pub(super) distrusted: Vec<String>,
}

// === impl NeededCertificates ===

impl NeededCertificates {
    /// `reached` are the roots that certificates of the issuer, or of the next one, reach. Of the bundle and of the declaration:
    /// those of proxies do not count, because everyone who can create Pods can make certificates of any root.
    ///
    /// A tenant may renew first, and present its certificate without the bridge. So a declared bridge counts all the same.
    pub(super) fn of(
        seen: &SeenTrust,
        bundle: Option<&AnchorBundle>,
        roots: &MeshRoots<'_>,
        reached: &BTreeSet<Fingerprint>,
    ) -> Self {
        let (Some(declared), Some(bundle)) = (&seen.desired, bundle) else { return Self::default() };
        let are_refused = roots.leaves.as_ref().is_some_and(|leaves| leaves.without(&roots.in_bundle) > 0);
        // A workload that restarts now would restart once more for the removal.
        let awaits_cut = declared.distrusted.is_cut && roots.distrusted_in_bundle().next().is_some();
        if awaits_cut || !roots.is_cut(seen) && (are_refused || reached.is_empty()) {
            return Self::default();
        }
        // A proxy that was not observed may still present a certificate that only such a root verifies.
        let unobserved = roots.leaves.as_ref().is_none_or(|leaves| leaves.unobserved > 0);
        let may_lose = !(unobserved && seen.may_be_too_early());
        let enough: BTreeSet<_> = reached.union(&with_bridges(roots)).copied().collect();
        let all = bundle.roots().iter().chain(declared.bundle.roots()).chain(&declared.signers);
        // Another root, such as that of another cluster. Who signs with it is not seen.
        let is_required = |root: &&RootCertificate| {
            declared.has(root) && !enough.contains(&root.id) && roots.over_bridges(&root.id).is_empty()
        };
        Self {
            sufficient: listed(all.filter(|root| enough.contains(&root.id))),
            required: listed(bundle.roots().iter().filter(is_required)),
            distrusted: listed(roots.distrusted().iter().copied().filter(|_| may_lose).take(MAX_CERTIFICATES)),
        }
    }
}

/// Each certificate once, in one order.
fn listed<'a>(roots: impl Iterator<Item = &'a RootCertificate>) -> Vec<String> {
    let all: BTreeSet<_> = roots.map(|root| root.sha256).collect();
    all.into_iter().take(MAX_CERTIFICATES).map(hex).collect()
}

#[cfg(test)]
mod tests {
    use crate::{
        trust::{
            problems::TrustVerdict,
            testing::{Mesh, Pki, declaring, declaring_bridged, presenting, reports, root_of},
        },
        x509::testing::{DAY, TestCa, der, valid},
    };

    fn fingerprints(roots: &[&TestCa]) -> Vec<String> {
        let mut all: Vec<_> = roots.iter().map(|root| crate::text::sha256(der(&root.pem))).collect();
        all.sort();
        all
    }

    #[test]
    fn before_the_issuer_changes_its_root_is_enough_and_what_signed_the_declared_bridge() {
        let pki = Pki::new();
        let (old_issuer, old, new): (&[&TestCa], _, _) = (&[&pki.old_issuer], &[&pki.old][..], &[&pki.new][..]);
        let mesh = || presenting(Mesh::new(&[&pki.new, &pki.old], &[]).pods("web", 3, old), &[(old_issuer, 3)], 0);
        assert_eq!(declaring(mesh(), new).report().sufficient, fingerprints(new));
        let bridged = declaring_bridged(mesh(), new, &[&pki.bridge], old).report();
        assert_eq!(bridged.sufficient, fingerprints(&[&pki.old, &pki.new]));
        assert!(bridged.next_step.sentence.contains("and after it the declared bridge"), "{bridged:#?}");
        let ended = pki.old.signs_again(&pki.new, |params| valid(params, -2 * DAY, -DAY));
        let report = declaring_bridged(mesh(), new, &[&ended], old).report();
        assert_eq!(report.sufficient, fingerprints(new));
        reports(
            &report,
            TrustVerdict::Warning,
            "proxies would not accept certificates over the declared bridge to new (",
        );
        let narrow = pki.old.signs_again(&pki.new, |params| {
            let name = "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local";
            let permitted_subtrees = vec![rcgen::GeneralSubtree::DnsName(name.to_owned())];
            params.name_constraints =
                Some(rcgen::NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
        });
        let report = declaring_bridged(mesh(), new, &[&narrow], old).report();
        assert_eq!(report.sufficient, fingerprints(new), "proxies accept certificates of workloads, too");
        let ending = pki.old.signs_again(&pki.new, |params| valid(params, -DAY, 20 * DAY));
        let report = declaring_bridged(mesh(), new, &[&ending], old).report();
        reports(&report, TrustVerdict::Warning, "the bridge to new, which is declared, ends ");
        assert_eq!(mesh().report().sufficient, [""; 0], "no roots are declared");
        assert_eq!(declaring(mesh(), old).report().sufficient, fingerprints(old), "no other issuer comes");
    }

    #[test]
    fn after_the_issuer_has_changed_what_its_certificates_reach_is_enough() {
        let pki = Pki::new();
        let declared = |bundle: &[&TestCa], presented: &[(&[&TestCa], usize)], bridges: &[&TestCa]| {
            let mesh = Mesh::new(bundle, &[]).pods("web", 3, &[&pki.old]);
            declaring_bridged(presenting(mesh, presented, 0), &[&pki.new], bridges, &[&pki.old]).report()
        };
        let enough = |bundle: &[&TestCa], presented: &[(&[&TestCa], usize)]| {
            declared(bundle, presented, &[&pki.bridge]).sufficient
        };
        let (bridged, alone): (&[&TestCa], &[&TestCa]) = (&[&pki.new_issuer, &pki.bridge], &[&pki.new_issuer]);
        let (both, old_issuer): (_, &[&TestCa]) = (&[&pki.new, &pki.old][..], &[&pki.old_issuer]);
        assert_eq!(enough(both, &[(bridged, 3)]), fingerprints(both));
        assert_eq!(enough(&[&pki.new], &[(bridged, 3)]), fingerprints(both), "the old root has left the bundle");
        assert_eq!(enough(&[&pki.new], &[(bridged, 2), (old_issuer, 1)]), [""; 0], "new Pods refuse a certificate");
        assert_eq!(enough(both, &[]), [""; 0], "the issuer is not known");
        let report = declared(both, &[(alone, 3)], &[&pki.bridge]);
        assert_eq!(report.sufficient, fingerprints(both), "a tenant may leave the declared bridge out");
        assert!(!report.progress.is_bridged, "{report:#?}");
        assert_eq!(declared(both, &[(alone, 3)], &[]).sufficient, fingerprints(&[&pki.new]));
        assert_eq!(declared(both, &[(bridged, 3)], &[]).sufficient, fingerprints(both), "it is not declared, and used");
    }

    #[test]
    fn of_several_declared_roots_the_one_with_a_bridge_is_the_next() {
        let pki = Pki::new();
        let standby = root_of("standby", DAY);
        let (old_issuer, declared): (&[&TestCa], _) = (&[&pki.old_issuer], &[&pki.new, &standby][..]);
        let mesh = Mesh::new(&[&pki.old, &pki.new, &standby], &[]).pods("web", 3, &[&pki.old]);
        let mesh = declaring_bridged(presenting(mesh, &[(old_issuer, 3)], 0), declared, &[&pki.bridge], &[&pki.old]);
        assert_eq!(mesh.report().sufficient, fingerprints(&[&pki.old, &pki.new]));
    }

    #[test]
    fn a_further_declared_root_of_the_bundle_is_required_unless_it_has_a_bridge() {
        let pki = Pki::new();
        let (old_issuer, both): (&[&TestCa], _) = (&[&pki.old_issuer], &[&pki.old, &pki.new][..]);
        let needed = |bundle: &[&TestCa], bridges: &[&TestCa]| {
            let mesh = presenting(Mesh::new(bundle, &[]).pods("web", 3, &[&pki.old]), &[(old_issuer, 3)], 0);
            let report = declaring_bridged(mesh, both, bridges, &[]).report();
            (report.sufficient, report.required)
        };
        let old = || fingerprints(&[&pki.old]);
        assert_eq!(needed(both, &[]), (old(), fingerprints(&[&pki.new])), "the next root, or one of another cluster");
        assert_eq!(needed(&[&pki.old], &[]), (old(), vec![]), "the bundle does not have it yet");
        assert_eq!(needed(both, &[&pki.bridge]), (old(), vec![]), "the declared old root has signed a bridge to it");
    }

    #[test]
    fn pods_of_tenants_change_no_sufficient_certificate() {
        let pki = Pki::new();
        let chain: &[&TestCa] = &[&pki.new_issuer, &pki.bridge];
        let junk: Vec<_> = (0..12).map(|number| root_of(&format!("junk {number}"), -DAY)).collect();
        let again = pki.old.signs_again(&pki.old, |params| valid(params, -DAY, 900 * DAY));
        let mesh = Mesh::new(&[&pki.new], &[]).pods("web", 1, &[&pki.old]).pods("twin", 9, &[&again]);
        let mesh = mesh.pods("tenant", 50, &junk.iter().collect::<Vec<_>>());
        let mut mesh = declaring_bridged(presenting(mesh, &[(chain, 60)], 0), &[&pki.new], &[&pki.bridge], &[&pki.old]);
        assert_eq!(mesh.report().sufficient, fingerprints(&[&pki.old, &pki.new]));
        mesh.0.proxies.others = 1;
        assert_eq!(mesh.report().sufficient, fingerprints(&[&pki.old, &pki.new]), "too many sets of roots to compare");
    }
}
