//! The roots of a mesh: who trusts them, and whether certificates reach them. Pure.
//!
//! In: what was seen. Out: the roots, the issuer, the proxies in groups. Always holds: only the bundle's own roots decide
//! about the issuer, because tenants can write any certificates into a proxy; two certificates with one name and one key
//! are one root, as for proxies.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;

use super::seen::{BundleProxies, NotSeen, SeenTrust};
use crate::x509::{
    anchor_set::Fingerprint,
    anchors::{AnchorBundle, RootCertificate},
    certificate::ChainCertificate,
    chain::{self, UnsignedLeaf},
    verify::sentence,
};

/// The part of all proxies that makes a root one of the mesh, also within one namespace.
const SHARE: usize = 10;
/// The maximum number of roots outside the bundle that are tested for whether certificates reach them.
const MAX_TESTED: usize = 200;

/// The roots, the issuer and the proxies, put together.
pub(super) struct MeshRoots<'a> {
    /// Those of the bundle, the ones that end last first, and then the others, the ones that most proxies trust first.
    pub(super) all: Vec<&'a RootCertificate>,
    pub(super) in_bundle: BTreeSet<Fingerprint>,
    pub(super) issuer: Result<IssuerReach, NotSeen>,
    pub(super) groups: Vec<ProxyGroup<'a>>,
}

/// The issuer, and what its leaves reach.
pub(super) struct IssuerReach {
    pub(super) own: ChainCertificate,
    /// The certificates that are sent beside the issuer's own.
    pub(super) others: Vec<ChainCertificate>,
    pub(super) reached: BTreeSet<Fingerprint>,
    /// The root of the bundle that the issuer belongs to, without the help of a bridge.
    pub(super) home: Option<Fingerprint>,
    /// Whether the first certificate of the file is a bridge, whose key is not the issuer's.
    pub(super) begins_with_bridge: bool,
    /// Why proxies with the bundle refuse its leaves.
    pub(super) refused: Option<String>,
    pub(super) written: Option<Timestamp>,
}

/// A root that left the bundle, while proxies may have certificates that only it verifies.
pub(super) struct LeftTooEarly<'a> {
    pub(super) root: &'a RootCertificate,
    /// When the issuer changed.
    pub(super) switched: Timestamp,
    /// When all proxies have renewed.
    pub(super) renewed: Timestamp,
}

/// The proxies with one set of roots.
pub(super) struct ProxyGroup<'a> {
    pub(super) trusts: BTreeSet<Fingerprint>,
    pub(super) proxies: &'a BundleProxies,
    /// Whether it has no root of the mesh.
    pub(super) is_cut_off: bool,
}

// === impl MeshRoots ===

impl<'a> MeshRoots<'a> {
    pub(super) fn of(seen: &'a SeenTrust, bundle: Option<&'a AnchorBundle>) -> Self {
        let mut of_bundle: Vec<_> = bundle.map(AnchorBundle::roots).unwrap_or_default().iter().collect();
        of_bundle.sort_by_key(|root| std::cmp::Reverse((root.not_after, root.not_before)));
        let in_bundle: BTreeSet<_> = of_bundle.iter().map(|root| root.id).collect();
        let others = others(seen, &in_bundle);
        let issuer = match &seen.issuer {
            Ok(issuer) => IssuerReach::of(&issuer.pem, &of_bundle, &others, seen)
                .map(|reach| IssuerReach { written: issuer.written, ..reach })
                .map_err(NotSeen::Missing),
            Err(why) => Err(why.clone()),
        };
        let groups = seen.proxies.bundles.values().map(|proxies| ProxyGroup {
            trusts: proxies.roots.iter().map(|root| root.id).collect(),
            proxies,
            is_cut_off: false,
        });
        let groups = groups.collect();
        let mut roots = Self { all: [of_bundle, others].concat(), in_bundle, issuer, groups };
        roots.mark_cut_off();
        roots
    }

    pub(super) fn find(&self, id: &Fingerprint) -> Option<&'a RootCertificate> {
        self.all.iter().copied().find(|root| root.id == *id)
    }

    /// The groups that belong to the mesh.
    pub(super) fn mesh(&self) -> impl Iterator<Item = &ProxyGroup<'a>> {
        self.groups.iter().filter(|group| !group.is_cut_off)
    }

    /// The roots that leaves of the issuer reach; none if it is not known.
    pub(super) fn reached(&self) -> BTreeSet<Fingerprint> {
        self.issuer.as_ref().map(|issuer| issuer.reached.clone()).unwrap_or_default()
    }

    /// Whether new Pods accept the certificates of others.
    pub(super) fn bundle_accepts(&self) -> bool {
        self.issuer.as_ref().map_or(true, |issuer| !issuer.reached.is_disjoint(&self.in_bundle))
    }

    /// Returns a root that left the bundle before the certificates of an earlier issuer have ended. Certificates are not
    /// seen one by one, so it is not known whether the issuer before was under that root.
    pub(super) fn left_too_early(&self, seen: &SeenTrust) -> Option<LeftTooEarly<'a>> {
        let bundle = seen.bundle.as_ref().ok()?.written?;
        let switched = self.issuer.as_ref().ok()?.written?;
        let renewed = seen.settings.renewed(switched);
        let is_trusted = |root: &RootCertificate| self.mesh().any(|group| group.trusts.contains(&root.id));
        let has_left = |root: &&&RootCertificate| !self.in_bundle.contains(&root.id) && is_trusted(root);
        let root = self.all.iter().find(has_left)?;
        (bundle >= switched && seen.now < renewed).then_some(LeftTooEarly { root, switched, renewed })
    }

    /// Marks the groups without a root of the mesh. Everyone who can create a Pod can write such a proxy into it, so they
    /// hold nothing. A root of the mesh is one of the bundle, one that certificates reach and the issuer's file has, or one
    /// that proxies of two namespaces or a tenth of all proxies trust.
    fn mark_cut_off(&mut self) {
        let mut trusted = HashMap::<Fingerprint, (BTreeSet<&str>, usize)>::new();
        for group in &self.groups {
            for root in &group.trusts {
                let (namespaces, pods) = trusted.entry(*root).or_default();
                namespaces.extend(group.proxies.workloads.keys().map(|workload| workload.namespace.as_str()));
                *pods += group.proxies.pods;
            }
        }
        let all = pods(self.groups.iter());
        let is_common = |root: &Fingerprint| {
            trusted.get(root).is_some_and(|(namespaces, pods)| namespaces.len() > 1 || pods * SHARE >= all)
        };
        let reached = self.reached();
        for group in &mut self.groups {
            let is_of_mesh =
                |root: &Fingerprint| self.in_bundle.contains(root) || reached.contains(root) || is_common(root);
            group.is_cut_off = !group.trusts.iter().any(is_of_mesh);
        }
    }
}

/// Returns the roots that proxies trust beside the bundle's, the ones that most trust first.
fn others<'a>(seen: &'a SeenTrust, in_bundle: &BTreeSet<Fingerprint>) -> Vec<&'a RootCertificate> {
    let mut found = BTreeMap::<Fingerprint, (&RootCertificate, usize)>::new();
    for proxies in seen.proxies.bundles.values() {
        for root in proxies.roots.iter().filter(|root| !in_bundle.contains(&root.id)) {
            found.entry(root.id).or_insert((root, 0)).1 += proxies.pods;
        }
    }
    let mut found: Vec<_> = found.into_values().collect();
    found.sort_by_key(|(_, pods)| std::cmp::Reverse(*pods));
    found.into_iter().map(|(root, _)| root).collect()
}

pub(super) fn pods<'a>(groups: impl Iterator<Item = &'a ProxyGroup<'a>>) -> usize {
    groups.map(|group| group.proxies.pods).sum()
}

// === impl IssuerReach ===

impl IssuerReach {
    fn of(
        pem: &str,
        of_bundle: &[&RootCertificate],
        others: &[&RootCertificate],
        seen: &SeenTrust,
    ) -> Result<Self, String> {
        let (own, further) = chain::read(pem.as_bytes()).map_err(|why| format!("the file of the issuer {why}"))?;
        let name =
            format!("linkerd-identity.{0}.serviceaccount.identity.{0}.{1}", seen.namespace, seen.settings.trust_domain);
        let bundle: Vec<RootCertificate> = of_bundle.iter().map(|root| (*root).clone()).collect();
        let sent = chain::sent(own.clone(), further, seen.now);
        let leaf = UnsignedLeaf::new(&sent, &name, seen.now).ok_or("the file of the issuer has no certificate")?;
        let refused = leaf.reached(&bundle).err().map(|error| sentence(&error));
        let tested = of_bundle.iter().chain(others.iter().take(MAX_TESTED));
        let reached = tested.filter(|root| leaf.reaches(root)).map(|root| root.id).collect();
        // Without bridges: certificates with the name and the key of a root, signed by another one.
        let is_bridge = |certificate: &ChainCertificate| {
            let is_of = |root: &RootCertificate| certificate.has_name_and_key_of(&root.anchor);
            bundle.iter().any(is_of) && !certificate.is_signed_by(certificate)
        };
        let without: Vec<_> = sent.iter().filter(|certificate| !is_bridge(certificate)).cloned().collect();
        let home = UnsignedLeaf::new(&without, &name, seen.now);
        let home = home.and_then(|leaf| of_bundle.iter().find(|root| leaf.reaches(root)).map(|root| root.id));
        let begins_with_bridge = is_bridge(&own);
        let others = sent.into_iter().skip(1).collect();
        Ok(Self { own, others, reached, home, begins_with_bridge, refused, written: None })
    }
}
