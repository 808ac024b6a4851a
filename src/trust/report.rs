//! The report about the trust of a mesh. Pure.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::{
    behind::{BehindRow, BehindState, workloads_behind},
    leaf_reach::LeafReach,
    next_step::{RotationStep, next_step},
    roots::{IssuerReach, MeshRoots, ProxyStanding, pods},
    rotation::RotationProgress,
    seen::{NotSeen, RenewedRoot, SeenTrust},
    sufficient::NeededCertificates,
    words::{day, named, named_by, proxies, proxies_trust, rounded},
};
use crate::{
    text::{and_more, hex, sha256},
    x509::{
        anchors::{AnchorBundle, RootCertificate},
        certificate::ChainCertificate,
        chain::UnsignedLeaf,
        verify::sentence,
    },
};

/// A certificate that ends earlier is reported.
const SOON: SignedDuration = SignedDuration::from_hours(30 * 24);
/// The same for a root that cert-manager replaces, which people must do before.
const RENEWED_SOON: SignedDuration = SignedDuration::from_hours(90 * 24);
/// A smaller part of all proxies may be those of a tenant.
const FEW: usize = 10;
/// The maximum number of roots in the report.
const MAX_ROOTS: usize = 20;
/// The maximum number of workloads in the report.
const MAX_WORKLOADS: usize = 20;
/// The maximum number of workloads in a sentence.
const SHOWN: usize = 5;

/// The report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TrustReport {
    pub namespace: String,
    pub verdict: TrustVerdict,
    /// What is broken or will break, the worst first.
    pub problems: Vec<TrustProblem>,
    pub next_step: RotationStep,
    /// Those of the bundle, and then the others, the ones that most proxies trust first: at most 20.
    pub roots: Vec<RootRow>,
    /// The number of further roots, which a few proxies trust.
    pub more_roots: usize,
    /// If roots are declared: the SHA-256 of each certificate that is enough for a proxy.
    #[serde(skip)]
    pub sufficient: Vec<String>,
    /// The SHA-256 of each further certificate that a proxy must trust.
    #[serde(skip)]
    pub required: Vec<String>,
    /// The SHA-256 of each certificate that a proxy must not trust, and that the bundle does not have.
    #[serde(skip)]
    pub distrusted: Vec<String>,
    /// The SHA-256 of the bundle.
    #[serde(skip)]
    pub bundle_sha256: Option<String>,
    pub issuer: IssuerRow,
    pub proxies: ProxyTotals,
    /// The workloads with proxies that lack a root of the bundle, or that refuse new certificates: at most 20.
    pub behind: Vec<BehindRow>,
    /// The number of all such workloads.
    pub workloads_behind: usize,
    /// The SHA-256 of the root of the issuer, or of the next one.
    #[serde(skip)]
    pub next_anchor: Option<String>,
    /// The workloads that the next issuer waits for, for people.
    #[serde(skip)]
    pub held_by: Option<String>,
    /// Whether proxies trust a distrusted root, or those of the control plane may.
    #[serde(skip)]
    pub is_exposed: bool,
    #[serde(skip)]
    pub progress: RotationProgress,
}

/// How urgent a report is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum TrustVerdict {
    Good,
    /// A certificate ends within 30 days or changes by itself, or proxies have roots of their own.
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

/// A trust anchor.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RootRow {
    pub name: String,
    pub sha256: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    pub in_bundle: bool,
    #[serde(skip)]
    pub desired: bool,
    /// The number of proxies that trust it.
    pub trusted_by: usize,
    /// The number of proxies that present a certificate which reaches it, if they were asked.
    #[serde(skip)]
    pub presented_by: usize,
    /// Whether new certificates of proxies reach it; absent if the issuer is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reached: Option<bool>,
}

/// The issuer, or why it is not known.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IssuerRow {
    /// The SHA-256 of the certificate.
    #[serde(skip)]
    pub sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// When it was written: certificates that are older may have another issuer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<Timestamp>,
    /// The ends of the other certificates that are sent beside it, such as bridges.
    pub others: Vec<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

/// The proxies, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyTotals {
    pub total: usize,
    /// Those that trust all roots of the bundle.
    pub current: usize,
    /// Those that lack one.
    pub behind: usize,
    /// Those that refuse new certificates of others.
    pub refusing: usize,
    /// Those that read the bundle when they start, such as the control plane's: they do not show it.
    pub from_config_map: usize,
    /// Those that trust no root of the mesh. They hold no step.
    pub cut_off: usize,
    /// Those that may lack the root of the next issuer, by the LinkerdTrust. They hold no step.
    pub accepted: usize,
    /// Those that trust a distrusted root.
    pub exposed: usize,
    /// Those with one of too many different bundles.
    pub unread: usize,
}

// === impl TrustReport ===

impl TrustReport {
    pub fn new(seen: &SeenTrust) -> Self {
        let parse = |pem: &str| AnchorBundle::parse(pem.as_bytes()).map_err(NotSeen::Missing);
        let parsed = seen.bundle.as_ref().map_err(Clone::clone).and_then(|bundle| parse(&bundle.pem));
        let roots = MeshRoots::of(seen, parsed.as_ref().ok());
        let progress = RotationProgress::of(seen, &roots);
        let needed = NeededCertificates::of(seen, parsed.as_ref().ok(), &roots, &progress.reached);
        let behind = workloads_behind(seen, &roots, &progress);
        let mut problems = problems(seen, &roots, parsed.as_ref().err());
        problems.sort_by_key(|problem| std::cmp::Reverse(problem.verdict));
        let row = |root: &&RootCertificate| RootRow {
            name: root.name.clone(),
            sha256: hex(root.sha256),
            expires: root.not_after,
            in_bundle: roots.in_bundle.contains(&root.id),
            desired: roots.desired.contains(&root.id),
            presented_by: roots.presented_by(&root.id),
            trusted_by: pods(roots.groups.iter().filter(|group| group.trusts.contains(&root.id))),
            reached: roots.issuer.as_ref().ok().map(|issuer| issuer.reached.contains(&root.id)),
        };
        Self {
            namespace: seen.namespace.clone(),
            verdict: problems.first().map_or(TrustVerdict::Good, |problem| problem.verdict),
            next_step: next_step(seen, &roots, &behind, &progress),
            bundle_sha256: seen.bundle.as_ref().ok().map(|bundle| sha256(&bundle.pem)),
            sufficient: needed.sufficient,
            required: needed.required,
            distrusted: needed.distrusted,
            progress,
            problems,
            roots: roots.all.iter().take(MAX_ROOTS).map(row).collect(),
            more_roots: roots.all.len().saturating_sub(MAX_ROOTS),
            issuer: IssuerRow::of(&roots),
            is_exposed: roots.groups.iter().any(|group| roots.is_exposed(group))
                || roots.exposed_control_plane(seen).is_some(),
            proxies: totals(seen, &roots),
            workloads_behind: behind.len(),
            next_anchor: roots.target().map(|target| hex(target.sha256)),
            held_by: held_by(&behind),
            behind: behind.into_iter().take(MAX_WORKLOADS).collect(),
        }
    }
}

// === impl RootRow ===

impl RootRow {
    /// The root in a sentence.
    pub fn named(&self) -> String {
        named_by(&self.name, &self.sha256)
    }
}

// === impl ProblemList ===

impl ProblemList {
    fn add(&mut self, verdict: TrustVerdict, message: String) {
        self.0.push(TrustProblem { verdict, message, is_end: false });
    }

    fn end(&mut self, verdict: TrustVerdict, message: String) {
        self.0.push(TrustProblem { verdict, message, is_end: true });
    }
}

// === impl IssuerRow ===

impl IssuerRow {
    fn of(roots: &MeshRoots<'_>) -> Self {
        match &roots.issuer {
            Ok(issuer) => Self {
                sha256: Some(sha256(&issuer.own.der)),
                name: Some(issuer.own.name()),
                expires: Some(issuer.own.not_after),
                written: issuer.written,
                others: issuer.others.iter().map(|certificate| certificate.not_after).collect(),
                unknown: None,
            },
            Err(NotSeen::Unread(why) | NotSeen::Missing(why)) => Self { unknown: Some(why.clone()), ..Self::default() },
        }
    }
}

fn totals(seen: &SeenTrust, roots: &MeshRoots<'_>) -> ProxyTotals {
    let reached = roots.reached();
    let mut totals = ProxyTotals {
        from_config_map: seen.proxies.from_config_map,
        unread: seen.proxies.others,
        total: seen.proxies.from_config_map + seen.proxies.others,
        ..ProxyTotals::default()
    };
    for group in &roots.groups {
        let pods = group.pods;
        totals.total += pods;
        if roots.is_exposed(group) {
            totals.exposed += pods;
        }
        match group.standing {
            ProxyStanding::CutOff => totals.cut_off += pods,
            ProxyStanding::Accepted => totals.accepted += pods,
            ProxyStanding::OfMesh if roots.in_bundle.is_subset(&group.trusts) => totals.current += pods,
            ProxyStanding::OfMesh => totals.behind += pods,
        }
        if group.standing == ProxyStanding::OfMesh && !reached.is_empty() && !group.accepts(&reached) {
            totals.refusing += pods;
        }
    }
    totals
}

fn held_by(behind: &[BehindRow]) -> Option<String> {
    let held: Vec<_> = behind.iter().filter(|row| row.state == BehindState::Holds).collect();
    let shown = held.iter().take(SHOWN).map(|row| row.named());
    (!held.is_empty()).then(|| and_more(shown, held.len(), ", "))
}

fn problems(seen: &SeenTrust, roots: &MeshRoots<'_>, unreadable: Option<&NotSeen>) -> Vec<TrustProblem> {
    let mut found = ProblemList::default();
    match unreadable {
        Some(NotSeen::Missing(why)) => {
            found.add(TrustVerdict::Broken, format!("ConfigMap linkerd-identity-trust-roots: {why}"));
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

fn of_issuer(seen: &SeenTrust, roots: &MeshRoots<'_>, issuer: &IssuerReach, found: &mut ProblemList) {
    let ends = issuer.own.not_after;
    if ends <= seen.now {
        let message = format!("the issuer {} has expired: no proxy gets a certificate", issuer.own.name());
        found.end(TrustVerdict::Broken, message);
        return;
    }
    if ends.duration_since(seen.now) <= seen.settings.lifetime {
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
    if refusing > 0 {
        let verb = if refusing == 1 { "refuses" } else { "refuse" };
        let message = format!(
            "{} {verb} new certificates, because they trust none of their roots: they lose connections as the others \
             renew, within {}",
            proxies(refusing),
            rounded(seen.settings.lifetime)
        );
        found.add(TrustVerdict::Broken, message);
    }
    let needs_more = roots.leaves.as_ref().map_or(0, |leaves| leaves.without(&roots.in_bundle));
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
            "spec.distrust has {}, whose key neither the bundle nor a proxy trusts: correct it, or remove it if all proxies \
             have lost it",
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
