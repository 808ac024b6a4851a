//! What is broken in the trust of a mesh, or will break. Pure.
//!
//! In: what was seen, and its roots. Out: the problems, each with its urgency. Always holds: while connections are cut, what the
//! next step repairs is no reason to put anything back.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::{
    leaf_reach::LeafReach,
    roots::{IssuerReach, MeshRoots, ProxyStanding, pods},
    seen::{NotSeen, RenewedRoot, SeenTrust},
    words::{day, named, proxies, proxies_trust, rounded},
};
use crate::{
    text::and_more,
    x509::{anchors::RootCertificate, certificate::ChainCertificate, chain::UnsignedLeaf, verify::sentence},
};

/// A certificate that ends earlier is reported.
const SOON: SignedDuration = SignedDuration::from_hours(30 * 24);
/// If this part of the time of an issuer is less, this counts: a program renews those of a few days.
const SHORT: i32 = 4;
/// The same for a root that cert-manager replaces, which people must do before.
const RENEWED_SOON: SignedDuration = SignedDuration::from_hours(90 * 24);
/// A smaller part of all proxies may be those of a tenant.
const FEW: usize = 10;
/// The maximum number of roots in a sentence.
const SHOWN: usize = 5;

/// How urgent a report is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum TrustVerdict {
    Good,
    /// A certificate ends soon or changes by itself, or proxies have roots of their own.
    Warning,
    /// Connections are refused, or soon will be.
    Broken,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct TrustProblem {
    pub verdict: TrustVerdict,
    pub message: String,
    /// Whether it is the end of a certificate, which comes by itself.
    #[serde(skip)]
    pub is_end: bool,
}

#[derive(Default)]
struct ProblemList(Vec<TrustProblem>);

// === impl ProblemList ===

impl ProblemList {
    fn add(&mut self, verdict: TrustVerdict, message: String) {
        self.0.push(TrustProblem { verdict, message, is_end: false });
    }

    fn end(&mut self, verdict: TrustVerdict, message: String) {
        self.0.push(TrustProblem { verdict, message, is_end: true });
    }
}

/// Returns what is broken or will break, in the order of its kinds.
pub(super) fn problems(seen: &SeenTrust, roots: &MeshRoots<'_>, unreadable: Option<&NotSeen>) -> Vec<TrustProblem> {
    let mut found = ProblemList::default();
    match unreadable {
        Some(NotSeen::Missing(why)) => {
            found.add(TrustVerdict::Broken, why.clone());
        }
        Some(NotSeen::Unread(why)) => {
            found.add(TrustVerdict::Warning, format!("it is unknown what new Pods trust: {why}"));
        }
        None => {}
    }
    match &roots.issuer {
        Ok(issuer) => of_issuer(seen, roots, issuer, &mut found),
        Err(NotSeen::Missing(why)) => found.add(TrustVerdict::Broken, why.clone()),
        Err(NotSeen::Unread(why)) => {
            found.add(TrustVerdict::Warning, format!("it is unknown whether proxies accept new certificates: {why}"));
        }
    }
    of_declared_bridge(seen, roots, &mut found);
    let of_mesh = |root: &&&RootCertificate| roots.in_bundle.contains(&root.id) || roots.desired.contains(&root.id);
    for root in roots.all.iter().filter(of_mesh) {
        let Some(expires) = root.not_after else { continue };
        // A root that nothing needs may end.
        let is_needed = roots.issuer.as_ref().map_or(true, |issuer| issuer.home == Some(root.id));
        if is_needed && expires <= seen.now {
            let message = format!(
                "the root {} has expired. Proxies ignore this, but Linkerd's identity issues no certificates; the \
                 operator's does",
                named(root)
            );
            found.end(TrustVerdict::Broken, message);
        } else if expires <= seen.now && seen.desired.is_some() && roots.desired.contains(&root.id) {
            let message = format!(
                "the declared root {} has expired: Linkerd's identity would issue nothing under it",
                named(root)
            );
            found.end(TrustVerdict::Warning, message);
        } else if is_needed && expires.duration_since(seen.now) <= SOON {
            found.end(TrustVerdict::Warning, format!("the root {} ends {}", named(root), seen.when(expires)));
        }
    }
    let cut_off = pods(roots.groups.iter().filter(|group| group.standing == ProxyStanding::CutOff));
    if cut_off > 0 {
        let message = format!("{} no root of the mesh: create their Pods again", proxies_trust(cut_off, true));
        found.add(TrustVerdict::Warning, message);
    }
    of_distrusted_roots(seen, roots, &mut found);
    if let Some(leaves) = roots.leaves.as_ref().filter(|leaves| leaves.unaccepted > 0) {
        let verdict = if leaves.is_issuer_refused() { TrustVerdict::Broken } else { TrustVerdict::Warning };
        let message =
            format!("{} of the proxies present certificates that no root of the mesh verifies", leaves.unaccepted);
        found.add(verdict, message);
    }
    if let Some(leaves) = seen.leaves.as_ref().filter(|leaves| leaves.ended > 0) {
        let verdict = if leaves.has_ended() { TrustVerdict::Broken } else { TrustVerdict::Warning };
        let message = format!("the certificates of {} have ended: nothing connects to them", proxies(leaves.ended));
        found.add(verdict, message);
    }
    if roots.issuer.is_err() && roots.shares_no_root() {
        found.add(TrustVerdict::Broken, "new Pods trust no root that running proxies trust".to_owned());
    }
    if let Some(held) = &seen.held {
        found.add(TrustVerdict::Warning, held.clone());
    }
    if let Some(why) = seen.unwritten_issuer() {
        found.add(TrustVerdict::Warning, format!("the next issuer is not written: {why}"));
    }
    if seen.proxies.others > 0 {
        let message = format!(
            "{} have too many different sets of roots to compare, so nothing is known about them",
            proxies(seen.proxies.others)
        );
        found.add(TrustVerdict::Warning, message);
    }
    let is_soon =
        |renewed: &&RenewedRoot| renewed.renewal.is_none_or(|renewal| renewal.duration_since(seen.now) <= RENEWED_SOON);
    if let Some(renewed) = seen.renewed_root.as_ref().filter(is_soon) {
        let date = renewed.renewal.map_or_else(
            || "on a date that it does not show".to_owned(),
            |date| format!("{}, on {}", seen.when(date), day(date)),
        );
        let follows = match renewed.is_managed {
            true => "the operator then writes no issuer of it, so the present one ends",
            false => "the issuer follows although proxies do not know the new root",
        };
        let message = format!(
            "cert-manager replaces the root by itself {date}, and {follows}: replace it before, with a root of another \
             Certificate than {}",
            renewed.certificate
        );
        found.add(TrustVerdict::Warning, message);
    }
    found.0
}

/// Whether the issuer ends soon. One that ends with its root is replaced with it.
pub(super) fn must_be_renewed(seen: &SeenTrust, roots: &MeshRoots<'_>, issuer: &IssuerReach) -> bool {
    let left = |end: Timestamp| end.duration_since(seen.now);
    let (ends, home) = (issuer.own.not_after, issuer.home.and_then(|home| roots.find(&home)?.not_after));
    let soon = SOON.min(ends.duration_since(issuer.own.not_before) / SHORT);
    left(ends) <= seen.settings.lifetime || (left(ends) <= soon && home.is_none_or(|home| home > ends))
}

fn of_issuer(seen: &SeenTrust, roots: &MeshRoots<'_>, issuer: &IssuerReach, found: &mut ProblemList) {
    let ends = issuer.own.not_after;
    if ends <= seen.now {
        let message = format!("the issuer {} has expired: no proxy gets a certificate", issuer.own.name());
        found.end(TrustVerdict::Broken, message);
        return;
    }
    if must_be_renewed(seen, roots, issuer) {
        let message = format!("the issuer {} ends {}, and must be renewed before", issuer.own.name(), seen.when(ends));
        found.end(TrustVerdict::Warning, message);
    }
    if issuer.begins_with_bridge {
        let message =
            "the file of the issuer begins with a bridge: write the certificate of the issuer first".to_owned();
        found.add(TrustVerdict::Broken, message);
        return;
    }
    let refusing = pods(roots.mesh().filter(|group| !group.accepts(&issuer.reached)));
    let needs_more = roots.leaves.as_ref().map_or(0, |leaves| leaves.without(&roots.in_bundle));
    if roots.is_cut(seen) {
        if refusing > 0 || needs_more > 0 {
            let message = "proxies with the distrusted roots and those without them refuse each other until each workload has \
                           restarted, because spec.distrust.connections is Cut";
            found.add(TrustVerdict::Warning, message.to_owned());
        }
    } else {
        of_refused_certificates(seen, roots, issuer, (refusing, needs_more), found);
    }
    if let Some(left) = roots.left_too_early(seen) {
        let message = format!(
            "the root {} left the bundle although the issuer changed only {}. If the issuer before was under it, Pods that \
             are created now refuse proxies that have not renewed, until {}",
            named(left.root),
            seen.when(left.switched),
            left.renewed
        );
        found.add(TrustVerdict::Warning, message);
    }
    let ends_soon = |certificate: &&ChainCertificate| certificate.not_after.duration_since(seen.now) <= SOON;
    for sent in issuer.others.iter().filter(ends_soon) {
        let end = seen.when(sent.not_after);
        found.end(TrustVerdict::Warning, format!("{}, which is sent beside the issuer, ends {end}", sent.name()));
    }
    // One that has ended is reported below.
    let declared = seen.desired.iter().flat_map(|declared| &declared.bridges).filter(|it| it.not_after > seen.now);
    for bridge in declared.filter(ends_soon).filter(|bridge| !issuer.others.contains(bridge)) {
        let end = seen.when(bridge.not_after);
        found.end(TrustVerdict::Warning, format!("the bridge to {}, which is declared, ends {end}", bridge.name()));
    }
}

/// `refusing`: the number of proxies that refuse new certificates. `needs_more`: of those whose certificates new Pods refuse.
fn of_refused_certificates(
    seen: &SeenTrust,
    roots: &MeshRoots<'_>,
    issuer: &IssuerReach,
    (refusing, needs_more): (usize, usize),
    found: &mut ProblemList,
) {
    if let Some(why) = issuer.refused.as_ref().filter(|_| !roots.in_bundle.is_empty()) {
        let name = issuer.own.name();
        let message = match issuer.reached.is_empty() {
            true => format!("new Pods refuse the certificates of the issuer {name}: {why}"),
            false => format!(
                "the bundle lacks the root of the issuer {name}, so new Pods refuse the certificates of all proxies"
            ),
        };
        found.add(TrustVerdict::Broken, message);
    }
    // Only the command reads the Secret; what proxies present shows the issuer that signs.
    if refusing > 0 && seen.is_guarded && seen.desired.is_some() && seen.leaves.is_none() {
        let message = format!(
            "{} would refuse the certificates of the issuer in the Secret. The identity service holds it with --identity-watch",
            proxies(refusing)
        );
        found.add(TrustVerdict::Warning, message);
    } else if refusing > 0 {
        let verb = if refusing == 1 { "refuses" } else { "refuse" };
        let message = format!(
            "{} {verb} new certificates, because they trust none of their roots: they lose connections as the others \
             renew, within {}",
            proxies(refusing),
            rounded(seen.settings.lifetime)
        );
        found.add(TrustVerdict::Broken, message);
    }
    if needs_more > 0 && !roots.in_bundle.is_empty() {
        let message =
            format!("new Pods refuse the certificates of {}: a root left the bundle too early", proxies(needs_more));
        found.add(TrustVerdict::Broken, message);
    }
    let refused = roots.refused_leaves();
    if refused > 0 && refusing == 0 && needs_more == 0 {
        let message = format!(
            "some proxies refuse the certificates of {}, whose chains lack a bridge: they connect again when these have \
             renewed",
            proxies(refused)
        );
        let all = roots.leaves.as_ref().map_or(0, LeafReach::observed);
        let verdict = if refused * FEW >= all { TrustVerdict::Broken } else { TrustVerdict::Warning };
        found.add(verdict, message);
    }
}

fn of_distrusted_roots(seen: &SeenTrust, roots: &MeshRoots<'_>, found: &mut ProblemList) {
    let exposed: Vec<_> = roots.groups.iter().filter(|group| roots.is_exposed(group)).collect();
    if !exposed.is_empty() {
        let message = format!(
            "{} a root that spec.distrust names: the owner of its key can deceive them until their Pods are created again",
            proxies_trust(exposed.iter().map(|group| group.pods).sum(), true)
        );
        found.add(TrustVerdict::Warning, message);
    }
    let unknown: Vec<_> = roots.unknown_distrusted(seen).into_iter().map(named).collect();
    if !unknown.is_empty() && roots.exposed_control_plane(seen).is_none() {
        let message = format!(
            "neither the bundle nor a proxy trusts {}, which spec.distrust has: remove it if all proxies have lost it, or correct \
             it",
            and_more(unknown.iter().take(SHOWN), unknown.len(), ", ")
        );
        found.add(TrustVerdict::Warning, message);
    }
    if let Some(leaves) = roots.leaves.as_ref().filter(|leaves| leaves.forged > 0) {
        let message = format!(
            "only a distrusted root verifies the certificates of {}. They may be forged, so nothing waits for them",
            proxies(leaves.forged)
        );
        found.add(TrustVerdict::Warning, message);
    }
}

/// Reports a declared bridge with which no proxy would accept the certificates of the next issuer.
fn of_declared_bridge(seen: &SeenTrust, roots: &MeshRoots<'_>, found: &mut ProblemList) {
    let (Some(target), Some(declared)) = (roots.target(), &seen.desired) else { return };
    let Some(bridge) = declared.bridges.iter().find(|bridge| bridge.has_name_and_key_of(&target.anchor)) else {
        return;
    };
    if !roots.over_bridges(&target.id).is_empty() {
        return;
    }
    let signers = declared.signers.iter().chain(declared.bundle.roots()).filter(|signer| signer.id != target.id);
    let (name, signers) = (seen.identity_service(), signers.cloned().collect::<Vec<_>>());
    let leaf = UnsignedLeaf::new(std::slice::from_ref(bridge), &name, seen.now);
    let Some(error) = leaf.and_then(|leaf| leaf.reached(&signers).err()) else { return };
    let (name, why) = (named(target), sentence(&error));
    let message = format!("proxies would not accept certificates over the declared bridge to {name}: {why}");
    found.add(TrustVerdict::Warning, message);
}
