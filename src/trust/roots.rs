//! The roots of a mesh: who trusts them, and whether certificates reach them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::seen::{BundleProxies, SeenTrust};
use crate::x509::{
    anchor_set::Fingerprint,
    anchors::{AnchorBundle, RootCertificate},
    certificate::ChainCertificate,
    chain,
    verify::sentence,
};

/// The roots, the issuer and the proxies, put together.
pub(super) struct MeshRoots<'a> {
    /// All roots that the bundle has or that a proxy trusts, the newest first.
    pub(super) all: Vec<&'a RootCertificate>,
    pub(super) in_bundle: BTreeSet<Fingerprint>,
    pub(super) issuer: Result<IssuerReach, String>,
    pub(super) groups: Vec<ProxyGroup<'a>>,
}

/// The issuer, and what its leaves reach.
pub(super) struct IssuerReach {
    pub(super) own: ChainCertificate,
    /// The certificates that are sent beside the issuer's own.
    pub(super) others: Vec<ChainCertificate>,
    pub(super) reached: BTreeSet<Fingerprint>,
    /// The root that the issuer belongs to, without the help of a bridge.
    pub(super) home: Option<Fingerprint>,
    /// Why proxies refuse its leaves, whatever they trust.
    pub(super) refused: Option<String>,
    pub(super) written: Option<Timestamp>,
}

/// The proxies with one bundle.
pub(super) struct ProxyGroup<'a> {
    pub(super) trusts: BTreeSet<Fingerprint>,
    pub(super) proxies: &'a BundleProxies,
    /// Whether it has no root in common with the mesh, also not over other proxies.
    pub(super) is_cut_off: bool,
}

// === impl MeshRoots ===

impl<'a> MeshRoots<'a> {
    pub(super) fn of(seen: &'a SeenTrust, bundle: Option<&'a AnchorBundle>) -> Self {
        let of_bundle = bundle.map(AnchorBundle::roots).unwrap_or_default();
        let of_proxies = seen.proxies.bundles.values().filter_map(|proxies| proxies.anchors.as_ref());
        let roots: BTreeMap<Fingerprint, &RootCertificate> =
            of_bundle.iter().chain(of_proxies.flat_map(AnchorBundle::roots)).map(|root| (root.sha256, root)).collect();
        let mut all: Vec<_> = roots.into_values().collect();
        all.sort_by_key(|root| std::cmp::Reverse((root.not_before, root.not_after)));
        let issuer = match &seen.issuer {
            Ok(issuer) => {
                IssuerReach::of(&issuer.pem, &all, seen).map(|reach| IssuerReach { written: issuer.written, ..reach })
            }
            Err(why) => Err(why.clone()),
        };
        let groups = seen.proxies.bundles.values().map(|proxies| ProxyGroup {
            trusts: proxies.anchors.iter().flat_map(AnchorBundle::roots).map(|root| root.sha256).collect(),
            proxies,
            is_cut_off: false,
        });
        let in_bundle = of_bundle.iter().map(|root| root.sha256).collect();
        let mut roots = Self { all, in_bundle, issuer, groups: groups.collect() };
        roots.mark_cut_off();
        roots
    }

    pub(super) fn find(&self, fingerprint: &Fingerprint) -> Option<&'a RootCertificate> {
        self.all.iter().copied().find(|root| root.sha256 == *fingerprint)
    }

    /// The groups that belong to the mesh.
    pub(super) fn mesh(&self) -> impl Iterator<Item = &ProxyGroup<'a>> {
        self.groups.iter().filter(|group| !group.is_cut_off)
    }

    /// The roots that leaves of the issuer reach; none if it is not known.
    pub(super) fn reached(&self) -> BTreeSet<Fingerprint> {
        self.issuer.as_ref().map(|issuer| issuer.reached.clone()).unwrap_or_default()
    }

    /// Marks the groups that nothing connects with the bundle, the issuer or most proxies: they talk to nobody, so they
    /// hold nothing. Everyone who can create a Pod can write such a proxy into it.
    fn mark_cut_off(&mut self) {
        let mut mesh = self.connected(self.in_bundle.union(&self.reached()).copied().collect());
        let pods = |roots: &BTreeSet<Fingerprint>| -> usize {
            let of_roots = self.groups.iter().filter(|group| !group.trusts.is_disjoint(roots));
            of_roots.map(|group| group.proxies.pods).sum()
        };
        // A mesh whose issuer or bundle was replaced by a wrong one is still the mesh.
        let most = self.groups.iter().map(|group| self.connected(group.trusts.clone())).max_by_key(|roots| pods(roots));
        mesh.extend(most.filter(|most| pods(most) > pods(&mesh)).into_iter().flatten());
        for group in &mut self.groups {
            group.is_cut_off = group.trusts.is_disjoint(&mesh);
        }
    }

    /// Returns these roots, and all that are trusted beside one of them, also over several proxies.
    fn connected(&self, mut roots: BTreeSet<Fingerprint>) -> BTreeSet<Fingerprint> {
        loop {
            let before = roots.len();
            for group in &self.groups {
                if !group.trusts.is_disjoint(&roots) {
                    roots.extend(&group.trusts);
                }
            }
            if roots.len() == before {
                return roots;
            }
        }
    }
}

// === impl IssuerReach ===

impl IssuerReach {
    fn of(pem: &str, roots: &[&RootCertificate], seen: &SeenTrust) -> Result<Self, String> {
        let (own, others) = chain::read(pem.as_bytes()).map_err(|why| format!("the file of the issuer {why}"))?;
        let settings = &seen.settings;
        let name =
            format!("linkerd-identity.{0}.serviceaccount.identity.{0}.{1}", seen.namespace, settings.trust_domain);
        let roots: Vec<RootCertificate> = roots.iter().map(|root| (*root).clone()).collect();
        let sent = chain::sent(own.clone(), others, seen.now);
        let reach = |chain: &[ChainCertificate]| chain::reached(chain, &roots, &name, seen.now);
        let (reached, refused) = match reach(&sent) {
            Ok(reached) => (reached.iter().map(|root| root.sha256).collect(), None),
            Err(error) => (BTreeSet::new(), Some(sentence(&error))),
        };
        // Without bridges: certificates that have the name and the key of a root, and are signed by another one.
        let is_bridge = |certificate: &ChainCertificate| {
            certificate.is_twin_of(&own) || roots.iter().any(|root| certificate.has_name_and_key_of(&root.anchor))
        };
        let without: Vec<_> =
            sent.iter().enumerate().filter(|(at, it)| *at == 0 || !is_bridge(it)).map(|(_, it)| it.clone()).collect();
        let home = reach(&without).ok().and_then(|reached| reached.first().map(|root| root.sha256));
        let others = sent.into_iter().skip(1).collect();
        Ok(Self { own, others, reached, home, refused, written: None })
    }
}
