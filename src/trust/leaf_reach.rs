//! What the certificates of proxies reach. Pure.
//!
//! In: the chains that proxies presented, the roots. Out: how many proxies reach which roots. Always holds: certificates that
//! no root of the mesh verifies, and those that may be forged, hold no step.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{
    roots::MAX_TESTED,
    seen::{NotSeen, PresentedChain, SeenIssuer, SeenLeaves, SeenTrust},
};
use crate::x509::{anchor_set::Fingerprint, anchors::RootCertificate, chain::UnsignedLeaf};

/// A smaller part of all proxies may be those of tenants.
const FEW: usize = 10;

/// What the certificates of proxies reach.
pub(super) struct LeafReach<'a> {
    groups: Vec<LeafGroup<'a>>,
    /// The number of proxies whose certificates reach no root of the mesh. Everyone who can create a Pod can present such
    /// ones, so they hold no step.
    pub(super) unaccepted: usize,
    /// The number of proxies whose certificates only distrusted roots verify, long after the identity service signed such ones.
    pub(super) forged: usize,
    pub(super) unobserved: usize,
}

/// The proxies that present one chain.
struct LeafGroup<'a> {
    /// The roots that their certificates reach.
    reached: BTreeSet<Fingerprint>,
    presented: &'a PresentedChain,
    /// Whether a root of the bundle, or a declared one, is among these.
    is_of_bundle: bool,
    /// Whether only distrusted roots verify them, so that their times, and their number, may be forged.
    is_doubtful: bool,
}

// === impl LeafReach ===

impl<'a> LeafReach<'a> {
    pub(super) fn of(
        leaves: &'a SeenLeaves,
        of_bundle: &[&RootCertificate],
        others: &[&RootCertificate],
        of_mesh: &BTreeSet<Fingerprint>,
        seen: &SeenTrust,
    ) -> Self {
        let name = seen.identity_service();
        let reached = |presented: &PresentedChain| -> BTreeSet<Fingerprint> {
            let leaf = UnsignedLeaf::new(&presented.chain, &name, seen.now);
            let tested = of_bundle.iter().chain(others.iter().take(MAX_TESTED));
            let reaches = |root: &&&RootCertificate| leaf.as_ref().is_some_and(|leaf| leaf.reaches(root));
            tested.filter(reaches).map(|root| root.id).collect()
        };
        let declared = seen.desired.iter().flat_map(|declared| declared.bundle.roots());
        let known: BTreeSet<_> = of_bundle.iter().copied().chain(declared).map(|root| root.id).collect();
        let group = |presented| {
            let reached = reached(presented);
            LeafGroup { is_of_bundle: !reached.is_disjoint(&known), reached, presented, is_doubtful: false }
        };
        let all = leaves.chains.iter().map(group);
        let (groups, refused): (Vec<_>, Vec<_>) = all.partition(|group| !group.reached.is_disjoint(of_mesh));
        let unaccepted = refused.into_iter().map(|group| group.presented.proxies).sum();
        Self { groups, unaccepted, forged: 0, unobserved: leaves.unobserved }
    }

    /// Marks the certificates that only distrusted roots verify: the owner of the key can sign one for any time. Leaves them out
    /// if no proxy can have one of the identity service.
    pub(super) fn without_forged(
        mut self,
        distrusted: &[&RootCertificate],
        in_bundle: &BTreeSet<Fingerprint>,
        seen: &SeenTrust,
    ) -> Self {
        let ids: BTreeSet<_> = distrusted.iter().map(|root| root.id).collect();
        for group in &mut self.groups {
            group.is_doubtful = group.reached.is_subset(&ids);
        }
        let has_left = ids.is_disjoint(in_bundle) && !seen.may_be_too_early() && self.has_few_doubtful();
        if has_left || seen.older_end().is_some_and(|end| end <= seen.now) {
            self.forged = self.doubtful();
            self.groups.retain(|group| !group.is_doubtful);
        }
        self
    }

    fn doubtful(&self) -> usize {
        self.groups.iter().filter(|group| group.is_doubtful).map(|group| group.presented.proxies).sum()
    }

    fn has_few_doubtful(&self) -> bool {
        self.doubtful() * FEW < self.observed()
    }

    /// Whether most proxies present certificates of no root of the mesh. A proxy keeps the certificate that it has while its
    /// own roots do not verify a new one, so a few such proxies are those of tenants.
    pub(super) fn is_issuer_refused(&self) -> bool {
        self.unaccepted * 2 > self.observed() + self.unaccepted + self.unobserved
    }

    /// Returns the issuer of the newest certificate, with the chain that most of its proxies send: each can send any other
    /// certificates beside its own. Tenants may have certificates of a root of their own, which counts only if no proxy has one of
    /// a root of the bundle, or of a declared one. A doubtful one may have any time, so it does not count if there are few, or if the operator
    /// has written the issuer, as long as there are others.
    pub(super) fn issuer(&self, is_written: bool) -> Result<SeenIssuer, NotSeen> {
        let has_others = self.groups.iter().any(|group| !group.is_doubtful);
        let without_doubtful = has_others && (is_written || self.has_few_doubtful());
        let has_known = self.groups.iter().any(|group| group.is_of_bundle);
        let counts =
            |group: &&LeafGroup<'_>| !(group.is_doubtful && without_doubtful) && (group.is_of_bundle || !has_known);
        let all = || self.groups.iter().filter(counts).map(|group| group.presented);
        let key = |presented: &PresentedChain| presented.chain.first().map(|own| own.key_info.clone());
        let newest = all().max_by_key(|presented| presented.newest).map(key);
        let sent = all().filter(|presented| Some(key(presented)) == newest);
        sent.max_by_key(|presented| (presented.proxies, presented.newest))
            .map(|presented| SeenIssuer { chain: presented.chain.clone(), written: None })
            .ok_or_else(|| NotSeen::Unread("no proxy has shown a certificate of the mesh".to_owned()))
    }

    pub(super) fn with(&self, is_meant: impl Fn(&BTreeSet<Fingerprint>) -> bool) -> usize {
        self.groups.iter().filter(|group| is_meant(&group.reached)).map(|group| group.presented.proxies).sum()
    }

    /// The number of proxies with certificates of the mesh.
    pub(super) fn observed(&self) -> usize {
        self.with(|_| true)
    }

    /// When the newest certificate was issued that reaches none of these roots, by the ones whose time cannot be forged.
    pub(super) fn newest_without(&self, roots: &BTreeSet<Fingerprint>) -> Option<Timestamp> {
        let without = self.groups.iter().filter(|group| !group.is_doubtful && group.reached.is_disjoint(roots));
        without.map(|group| group.presented.newest).max()
    }

    /// The number of proxies whose certificate reaches none of these roots.
    pub(super) fn without(&self, roots: &BTreeSet<Fingerprint>) -> usize {
        self.with(|reached| reached.is_disjoint(roots))
    }
}
