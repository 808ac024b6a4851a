//! The report about the trust of a mesh. Pure.

use jiff::Timestamp;
use serde::Serialize;

use super::{
    behind::{BehindRow, BehindState, workloads_behind},
    next_step::{RotationStep, next_step},
    problems::{TrustProblem, TrustVerdict, problems},
    roots::{MeshRoots, ProxyStanding, pods},
    rotation::RotationProgress,
    seen::{NotSeen, SeenTrust},
    sufficient::NeededCertificates,
    words::named_by,
};
use crate::{
    text::{and_more, hex, sha256},
    x509::anchors::{AnchorBundle, RootCertificate},
};

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
    pub bundle_written: Option<Timestamp>,
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
    pub before_bundle: usize,
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
            bundle_written: seen.bundle.as_ref().ok().and_then(|bundle| bundle.written),
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
        before_bundle: seen.proxies.behind_config_map.len(),
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
