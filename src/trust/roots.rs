//! The roots of a mesh: who trusts them, and whether certificates reach them. Pure.
//!
//! In: what was seen. Out: the roots, the issuer, the proxies in groups. Always holds: only the bundle's own roots decide
//! about the issuer, because tenants can write any certificates into a proxy; two certificates with one name and one key
//! are one root, as for proxies.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;

use super::{
    accepted::RotationWait,
    leaf_reach::LeafReach,
    seen::{DeclaredRoots, MeshedWorkload, NotSeen, SeenIssuer, SeenTrust},
};
use crate::{
    api::linkerd_trust::AcceptedStep,
    text::hex,
    x509::{
        anchor_set::Fingerprint,
        anchors::{AnchorBundle, RootCertificate},
        certificate::ChainCertificate,
        chain::{self, UnsignedLeaf},
        verify::sentence,
    },
};

/// The part of all proxies that makes a root one of the mesh, also within one namespace.
const SHARE: usize = 10;
/// The same within several namespaces.
const SHARE_OF_TWO: usize = 100;
/// The maximum number of roots outside the bundle that are tested for whether certificates reach them: tenants can have any
/// number, and present any chains.
pub(super) const MAX_TESTED: usize = 10;
/// Puts desired roots before those that any number of proxies trust.
const DESIRED: usize = usize::MAX / 2;

/// The roots, the issuer and the proxies, put together.
pub(super) struct MeshRoots<'a> {
    /// Those of the bundle, the ones that end last first, and then the others, the ones that most proxies trust first.
    pub(super) all: Vec<&'a RootCertificate>,
    pub(super) in_bundle: BTreeSet<Fingerprint>,
    /// The declared roots, or those of the bundle.
    pub(super) desired: BTreeSet<Fingerprint>,
    /// The declared certificates that the bundle lacks.
    pub(super) missing: Vec<&'a RootCertificate>,
    pub(super) issuer: Result<IssuerReach, NotSeen>,
    pub(super) groups: Vec<ProxyGroup<'a>>,
    /// The roots of the bundle, the declared ones, and those that a sizeable part of all proxies trust.
    of_mesh: BTreeSet<Fingerprint>,
    /// `None` if no proxy was asked for its certificate.
    pub(super) leaves: Option<LeafReach<'a>>,
    /// The declared root that the issuer belongs to, or that the next one should have.
    target: Option<Fingerprint>,
    /// The certificates of the bundle and of proxies with the key of a distrusted root: the declared ones first, then those of
    /// most namespaces.
    distrusted: Vec<&'a RootCertificate>,
    /// For each declared root the ones that its certificates reach over the declared bridges.
    over_bridges: BTreeMap<Fingerprint, BTreeSet<Fingerprint>>,
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

/// The proxies with one set of roots, and one standing.
pub(super) struct ProxyGroup<'a> {
    pub(super) trusts: BTreeSet<Fingerprint>,
    pub(super) pods: usize,
    /// The number of Pods of each workload; of the first ones only, if there are very many.
    pub(super) workloads: BTreeMap<&'a MeshedWorkload, usize>,
    pub(super) standing: ProxyStanding,
}

/// Whether proxies delay the steps of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyStanding {
    /// They belong to the mesh, and each step waits for them.
    OfMesh,
    /// They trust no root of the mesh. Everyone who can create a Pod can write such a proxy into it, so they delay nothing.
    CutOff,
    /// They lack the root of the next issuer, and the LinkerdTrust permits that.
    Accepted,
}

// === impl ProxyGroup ===

impl ProxyGroup<'_> {
    /// Whether its proxies accept certificates that reach these roots.
    pub(super) fn accepts(&self, reached: &BTreeSet<Fingerprint>) -> bool {
        !self.trusts.is_disjoint(reached)
    }
}

// === impl MeshRoots ===

impl<'a> MeshRoots<'a> {
    pub(super) fn of(seen: &'a SeenTrust, bundle: Option<&'a AnchorBundle>) -> Self {
        let in_text = bundle.map(AnchorBundle::roots).unwrap_or_default();
        let mut of_bundle: Vec<_> = in_text.iter().collect();
        of_bundle.sort_by_key(|root| std::cmp::Reverse((root.not_after, root.not_before)));
        // Of one root that was issued again, the certificate that ends last: Linkerd's identity uses any that is valid.
        let mut known = BTreeSet::new();
        of_bundle.retain(|root| known.insert(root.id));
        let in_bundle = known;
        let desired = seen.desired.as_ref().map_or_else(|| in_bundle.clone(), |declared| ids(&declared.bundle));
        let missing = seen.desired.as_ref().map(|declared| declared.missing_in(in_text)).unwrap_or_default();
        let others = others(seen, &in_bundle);
        let groups = seen.proxies.bundles.values().map(|proxies| ProxyGroup {
            trusts: proxies.roots.iter().map(|root| root.id).collect(),
            pods: proxies.pods,
            workloads: proxies.workloads.iter().map(|(workload, pods)| (workload, *pods)).collect(),
            standing: ProxyStanding::OfMesh,
        });
        let groups: Vec<_> = groups.collect();
        let mut of_mesh = common(&groups);
        of_mesh.extend(in_bundle.iter().chain(&desired));
        let distrusted = distrusted(seen, in_text);
        let reach = |leaves| {
            LeafReach::of(leaves, &of_bundle, &others, &of_mesh, seen).without_forged(&distrusted, &in_bundle, seen)
        };
        let leaves = seen.leaves.as_ref().map(reach);
        let issuer = match &leaves {
            Some(leaves) => leaves.issuer(seen.is_issuer_written()),
            None => seen.issuer.clone(),
        };
        let issuer = issuer
            .and_then(|issuer| IssuerReach::of(&issuer, &of_bundle, &others, &desired, seen).map_err(NotSeen::Missing));
        let all = [of_bundle, others].concat();
        let (over_bridges, target) = (over_bridges(seen), None);
        let mut roots = Self {
            all,
            in_bundle,
            desired,
            missing,
            issuer,
            groups,
            of_mesh,
            leaves,
            target,
            distrusted,
            over_bridges,
        };
        roots.mark_cut_off();
        roots.target = roots.best_target();
        if let Some(declared) = &seen.desired {
            roots.accept(declared);
        }
        roots
    }

    pub(super) fn find(&self, id: &Fingerprint) -> Option<&'a RootCertificate> {
        self.all.iter().copied().find(|root| root.id == *id)
    }

    /// Whether the issuer belongs to a declared root, without the help of a bridge.
    pub(super) fn is_issuer_desired(&self) -> bool {
        let home = self.issuer.as_ref().ok().and_then(|issuer| issuer.home);
        home.is_some_and(|home| self.desired.contains(&home))
    }

    /// Returns the declared root that the issuer belongs to, or that the next one should have.
    pub(super) fn target(&self) -> Option<&'a RootCertificate> {
        self.target.and_then(|id| self.find(&id))
    }

    /// An issuer of another declared root would be refused by more proxies. What is accepted does not change it: an acceptance
    /// is about one root.
    fn best_target(&self) -> Option<Fingerprint> {
        let home = self.issuer.as_ref().ok().and_then(|issuer| issuer.home).filter(|home| self.desired.contains(home));
        let accepts = |group: &ProxyGroup<'_>, id: &Fingerprint| {
            group.trusts.contains(id) || group.accepts(self.over_bridges(id))
        };
        let trusted = |id: &Fingerprint| pods(self.mesh().filter(|group| accepts(group, id)));
        let declared = self.all.iter().map(|root| root.id).filter(|id| self.desired.contains(id));
        // Of equal ones, the first, which ends last.
        home.or_else(|| declared.min_by_key(|id| std::cmp::Reverse(trusted(id))))
    }

    /// The roots that certificates of a declared root reach over the declared bridges.
    pub(super) fn over_bridges(&self, root: &Fingerprint) -> &BTreeSet<Fingerprint> {
        const NONE: &BTreeSet<Fingerprint> = &BTreeSet::new();
        self.over_bridges.get(root).unwrap_or(NONE)
    }

    /// The roots of the bundle that are not declared.
    pub(super) fn not_declared(&self) -> Vec<&'a RootCertificate> {
        let is_other = |root: &&RootCertificate| self.in_bundle.contains(&root.id) && !self.desired.contains(&root.id);
        self.all.iter().copied().filter(is_other).collect()
    }

    /// The roots that no proxy may trust any longer, and that new Pods do not get: the bundle does not have their key.
    pub(super) fn distrusted(&self) -> Vec<&'a RootCertificate> {
        let is_kept = |root: &&RootCertificate| self.distrusted_in_bundle().any(|it| it.has_key_of(root));
        self.distrusted.iter().copied().filter(|root| !is_kept(root)).collect()
    }

    /// Whether proxies lose distrusted roots at once: new Pods do not get them, and get certificates of another issuer.
    pub(super) fn is_cut(&self, seen: &SeenTrust) -> bool {
        let is_declared = seen.desired.as_ref().is_some_and(|declared| declared.distrusted.is_cut);
        is_declared && seen.is_issuer_written() && !self.distrusted().is_empty()
    }

    /// The distrusted roots of the bundle.
    pub(super) fn distrusted_in_bundle(&self) -> impl Iterator<Item = &'a RootCertificate> {
        self.distrusted.iter().copied().filter(|root| self.in_bundle.contains(&root.id))
    }

    /// The declared ones whose key neither the bundle nor a proxy has.
    pub(super) fn unknown_distrusted(&self, seen: &'a SeenTrust) -> Vec<&'a RootCertificate> {
        let declared = seen.desired.iter().flat_map(|declared| declared.distrusted.roots());
        declared.filter(|root| !self.distrusted.iter().any(|it| it.has_key_of(root))).collect()
    }

    /// Whether the owner of the key of a distrusted root can deceive these proxies.
    pub(super) fn is_exposed(&self, group: &ProxyGroup<'_>) -> bool {
        self.distrusted.iter().any(|root| group.trusts.contains(&root.id))
    }

    /// The command that restarts the control plane, if it read the bundle before the distrusted roots left it.
    pub(super) fn exposed_control_plane(&self, seen: &SeenTrust) -> Option<String> {
        let is_distrusting = seen.is_distrusting() && self.distrusted_in_bundle().next().is_none();
        seen.control_plane_restart().filter(|_| is_distrusting)
    }

    /// The groups for which each step waits.
    pub(super) fn mesh(&self) -> impl Iterator<Item = &ProxyGroup<'a>> {
        self.groups.iter().filter(|group| group.standing == ProxyStanding::OfMesh)
    }

    /// The roots that leaves of the issuer reach; none if it is not known.
    pub(super) fn reached(&self) -> BTreeSet<Fingerprint> {
        self.issuer.as_ref().map(|issuer| issuer.reached.clone()).unwrap_or_default()
    }

    /// Whether new Pods accept the certificates of others.
    pub(super) fn bundle_accepts(&self) -> bool {
        self.issuer.as_ref().map_or(true, |issuer| !issuer.reached.is_disjoint(&self.in_bundle))
    }

    /// Whether a root outside the bundle may be named as one to put back: it is declared, or most proxies trust it, and it
    /// is not distrusted. Everyone
    /// who can create Pods can make a few trust another one, which has any name.
    pub(super) fn may_return(&self, root: &RootCertificate) -> bool {
        let trusted = pods(self.groups.iter().filter(|group| group.trusts.contains(&root.id)));
        let is_distrusted = self.distrusted.iter().any(|it| it.id == root.id);
        self.desired.contains(&root.id) || !is_distrusted && trusted * 2 > pods(self.groups.iter())
    }

    /// Of these, the ones with a root of the mesh. A tenant can make a root of the name and the key of the issuer, which is
    /// reached.
    pub(super) fn with_root_of_mesh(&self) -> impl Iterator<Item = &ProxyGroup<'a>> {
        self.mesh().filter(|group| group.accepts(&self.of_mesh))
    }

    /// The number of proxies that present certificates which some proxies of the mesh refuse.
    pub(super) fn refused_leaves(&self) -> usize {
        let groups: Vec<_> = self.with_root_of_mesh().collect();
        let is_refused = |reached: &BTreeSet<Fingerprint>| groups.iter().any(|group| !group.accepts(reached));
        self.leaves.as_ref().map_or(0, |leaves| leaves.with(is_refused))
    }

    /// Whether no running proxy trusts a root of the bundle.
    pub(super) fn shares_no_root(&self) -> bool {
        !self.in_bundle.is_empty() && pods(self.mesh()) > 0 && self.mesh().all(|group| !group.accepts(&self.in_bundle))
    }

    /// Returns a root that left the bundle before the certificates of an earlier issuer have ended. Certificates are not
    /// seen one by one, so it is not known whether the issuer before was under that root.
    pub(super) fn left_too_early(&self, seen: &SeenTrust) -> Option<LeftTooEarly<'a>> {
        // The operator removes a root only when all proxies have renewed.
        let bundle = seen.bundle.as_ref().ok().filter(|bundle| !bundle.is_by_operator)?.written?;
        let switched = self.issuer.as_ref().ok()?.written?;
        let renewed = seen.settings.renewed(switched);
        let is_trusted = |root: &RootCertificate| self.mesh().any(|group| group.trusts.contains(&root.id));
        let has_left =
            |root: &&&RootCertificate| !self.in_bundle.contains(&root.id) && is_trusted(root) && self.may_return(root);
        let root = self.all.iter().find(has_left)?;
        (bundle >= switched && seen.now < renewed && !seen.is_renewed).then_some(LeftTooEarly {
            root,
            switched,
            renewed,
        })
    }

    /// The number of proxies that present a certificate which reaches the root.
    pub(super) fn presented_by(&self, root: &Fingerprint) -> usize {
        self.leaves.as_ref().map_or(0, |leaves| leaves.with(|reached| reached.contains(root)))
    }

    /// Marks the groups without a root of the mesh.
    fn mark_cut_off(&mut self) {
        let reached = self.reached();
        for group in &mut self.groups {
            if !group.accepts(&self.of_mesh) && !group.accepts(&reached) {
                group.standing = ProxyStanding::CutOff;
            }
        }
    }

    /// Divides the groups that lack the root of the next issuer: into proxies that may lack it, and the others.
    fn accept(&mut self, declared: &DeclaredRoots) {
        let Some(target) = self.target() else { return };
        let wait = RotationWait { step: AcceptedStep::Issuer, anchors: vec![hex(target.sha256)] };
        let mut divided = Vec::new();
        for group in &mut self.groups {
            if group.standing != ProxyStanding::OfMesh || group.trusts.contains(&target.id) {
                continue;
            }
            let workloads: BTreeMap<_, _> =
                group.workloads.extract_if(.., |workload, _| declared.accepted.cover(workload, &wait)).collect();
            let pods: usize = workloads.values().sum();
            if pods > 0 {
                group.pods -= pods;
                let (trusts, standing) = (group.trusts.clone(), ProxyStanding::Accepted);
                divided.push(ProxyGroup { trusts, pods, workloads, standing });
            }
        }
        self.groups.retain(|group| group.pods > 0);
        self.groups.extend(divided);
    }
}

fn over_bridges(seen: &SeenTrust) -> BTreeMap<Fingerprint, BTreeSet<Fingerprint>> {
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    let Some(declared) = &seen.desired else { return found };
    let names = seen.settings.tested_names(&seen.namespace);
    for bridge in &declared.bridges {
        let sent = std::slice::from_ref(bridge);
        let leaves: Vec<_> = names.iter().filter_map(|name| UnsignedLeaf::new(sent, name, seen.now)).collect();
        for root in declared.bundle.roots().iter().filter(|root| bridge.has_name_and_key_of(&root.anchor)) {
            let signers = declared.signers.iter().chain(declared.bundle.roots());
            let reached =
                signers.filter(|signer| signer.id != root.id && leaves.iter().all(|leaf| leaf.reaches(signer)));
            found.entry(root.id).or_default().extend(reached.map(|signer| signer.id));
        }
    }
    found
}

fn distrusted<'a>(seen: &'a SeenTrust, bundle: &'a [RootCertificate]) -> Vec<&'a RootCertificate> {
    let Some(distrusted) = seen.desired.as_ref().map(|declared| &declared.distrusted) else { return Vec::new() };
    let mut proxies: Vec<_> = seen.proxies.bundles.values().collect();
    // Everyone who can create Pods can make other certificates with the key of a root.
    proxies.sort_by_cached_key(|proxies| {
        let namespaces: BTreeSet<_> = proxies.workloads.keys().map(|workload| &workload.namespace).collect();
        std::cmp::Reverse((namespaces.len(), proxies.pods))
    });
    let (known, mut found) = (bundle.iter().chain(proxies.iter().flat_map(|proxies| &proxies.roots)), BTreeSet::new());
    let mut all: Vec<_> = known.filter(|root| distrusted.mean(root) && found.insert(root.sha256)).collect();
    all.sort_by_key(|root| !distrusted.roots().iter().any(|it| it.sha256 == root.sha256));
    all
}

/// Returns the roots that a hundredth of all proxies trust, in two namespaces, or a tenth of all: beside those of the
/// bundle, they are the roots of the mesh.
fn common(groups: &[ProxyGroup<'_>]) -> BTreeSet<Fingerprint> {
    let mut trusted = HashMap::<Fingerprint, (BTreeSet<&str>, usize)>::new();
    for group in groups {
        for root in &group.trusts {
            let (namespaces, pods) = trusted.entry(*root).or_default();
            namespaces.extend(group.workloads.keys().map(|workload| workload.namespace.as_str()));
            *pods += group.pods;
        }
    }
    let all = pods(groups.iter());
    let is_common = |namespaces: &BTreeSet<&str>, pods: usize| {
        pods * SHARE >= all || namespaces.len() > 1 && pods * SHARE_OF_TWO >= all
    };
    trusted.into_iter().filter(|(_, (namespaces, pods))| is_common(namespaces, *pods)).map(|(root, _)| root).collect()
}

fn ids(bundle: &AnchorBundle) -> BTreeSet<Fingerprint> {
    bundle.roots().iter().map(|root| root.id).collect()
}

/// Returns the roots beside the bundle's: the desired ones, and then those of proxies, the ones that most trust first.
fn others<'a>(seen: &'a SeenTrust, in_bundle: &BTreeSet<Fingerprint>) -> Vec<&'a RootCertificate> {
    let mut found = BTreeMap::<Fingerprint, (&RootCertificate, usize)>::new();
    let declared = seen.desired.iter().flat_map(|declared| declared.bundle.roots());
    for root in declared.filter(|root| !in_bundle.contains(&root.id)) {
        found.insert(root.id, (root, DESIRED));
    }
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
    groups.map(|group| group.pods).sum()
}

// === impl IssuerReach ===

impl IssuerReach {
    fn of(
        issuer: &SeenIssuer,
        of_bundle: &[&RootCertificate],
        others: &[&RootCertificate],
        desired: &BTreeSet<Fingerprint>,
        seen: &SeenTrust,
    ) -> Result<Self, String> {
        let empty = "the file of the issuer has no certificate";
        let (own, further) = issuer.chain.split_first().ok_or(empty)?;
        let name = seen.identity_service();
        let bundle: Vec<RootCertificate> = of_bundle.iter().map(|root| (*root).clone()).collect();
        let sent = chain::sent(own.clone(), further.to_vec(), seen.now);
        let leaf = UnsignedLeaf::new(&sent, &name, seen.now).ok_or(empty)?;
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
        let reached_alone = |leaf: UnsignedLeaf<'_>| -> Vec<Fingerprint> {
            of_bundle.iter().filter(|root| leaf.reaches(root)).map(|root| root.id).collect()
        };
        let homes = home.map(reached_alone).unwrap_or_default();
        // An intermediate certificate that two roots have signed belongs to the declared one.
        let home = homes.iter().find(|home| desired.contains(*home)).or(homes.first()).copied();
        // An anchor may be the issuer itself.
        let begins_with_bridge = is_bridge(own) && !bundle.iter().any(|root| *root.der == *own.der);
        let others = sent.iter().skip(1).cloned().collect();
        Ok(Self { own: own.clone(), others, reached, home, begins_with_bridge, refused, written: issuer.written })
    }
}
