//! The steps that lead a mesh to declared roots. Pure.
//!
//! In: what was seen, with the declared roots. Out: the steps that are left, and the restarts that they need with a bridge
//! and without. Always holds: nothing is left at the end of a rotation.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{
    bundle_change::addition,
    roots::{MeshRoots, pods},
    rotation::RotationProgress,
    seen::{MeshedWorkload, NotSeen, SeenTrust},
    words::{named, proxies, rounded},
};
use crate::{
    api::{ISSUER, NEXT_ISSUER, linkerd_trust::TrustPhase},
    text::and_more,
    x509::anchors::{AnchorBundle, RootCertificate},
};

/// The maximum number of roots in a sentence.
const SHOWN: usize = 5;
/// The maximum number of namespaces in a plan.
const MAX_NAMESPACES: usize = 50;

/// The way to the declared roots.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TrustPlan {
    pub phase: TrustPhase,
    pub steps: Vec<String>,
    /// The workloads that must restart before the issuer changes, if there is no bridge: those whose proxies do not trust
    /// the root of that issuer. With a bridge none must. At most 50 namespaces.
    pub restarts_without_bridge: Vec<PlannedRestarts>,
    /// The number of further namespaces.
    pub more_namespaces: usize,
    /// Whether a bridge to the root of the next issuer is declared, and can be used.
    pub has_bridge: bool,
    /// If roots are distrusted: how proxies lose them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distrusted: Option<PlannedDistrust>,
}

/// What it takes until no proxy trusts a distrusted root.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedDistrust {
    /// The distrusted roots, for people.
    pub roots: String,
    /// The workloads with proxies that trust one, and these proxies.
    pub workloads: usize,
    pub pods: usize,
    pub way: DistrustWay,
    /// The lifetime of a certificate, for people: until then, all are renewed.
    pub renewed_within: String,
}

/// How proxies lose a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum DistrustWay {
    /// Over a bridge, or if all proxies trust the next root: one restart of each workload after the rotation.
    OneRestart,
    /// One restart before the issuer changes, and one after the rotation.
    TwoRestarts,
    /// One restart at once. Until the last, proxies refuse each other.
    Cut,
}

/// The restarts in a namespace.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedRestarts {
    pub namespace: String,
    pub workloads: usize,
    pub pods: usize,
}

// === impl TrustPlan ===

impl TrustPlan {
    /// # Errors
    /// When the bundle or the issuer is not known.
    pub fn new(seen: &SeenTrust) -> Result<Self, String> {
        let known = |why: &NotSeen| match why {
            NotSeen::Unread(why) | NotSeen::Missing(why) => why.clone(),
        };
        let bundle = seen.bundle.as_ref().map_err(known)?;
        let bundle = AnchorBundle::parse(bundle.pem.as_bytes())?;
        let roots = MeshRoots::of(seen, Some(&bundle));
        let issuer = roots.issuer.as_ref().map_err(known)?;
        // The present one may, because proxies ignore it.
        let has_expired =
            |root: &&RootCertificate| root.not_after.is_some_and(|end| end <= seen.now) && issuer.home != Some(root.id);
        let mut desired = seen.desired.iter().flat_map(|declared| declared.bundle.roots());
        if let Some(root) = desired.find(has_expired) {
            return Err(format!("the declared root {} has expired: declare another one", named(root)));
        }
        let added = seen.desired.as_ref().filter(|declared| declared.is_enforced).zip(seen.bundle.as_ref().ok());
        if let Some((declared, present)) = added.filter(|(_, present)| present.source.is_none()) {
            // Where the operator would add nothing, the reason is the answer.
            addition(&present.pem, declared)?;
        }
        let progress = RotationProgress::of(seen, &roots);
        let list = |is_meant: &dyn Fn(&[u8; 32]) -> bool| {
            let found: Vec<_> = roots.all.iter().filter(|root| is_meant(&root.id)).map(|root| named(root)).collect();
            and_more(found.iter().take(SHOWN), found.len(), ", ")
        };
        let mut steps = Vec::new();
        let declared = seen.desired.as_ref();
        let is_enforced = declared.is_some_and(|declared| declared.is_enforced);
        let manages_issuer = declared.is_some_and(|declared| declared.manages_issuer);
        let has_bridge = roots.target().is_some_and(|target| !roots.over_bridges(&target.id).is_empty());
        if !roots.missing.is_empty() {
            let missing = roots.missing.iter().take(SHOWN).map(|root| named(root));
            let missing = and_more(missing, roots.missing.len(), ", ");
            steps.push(format!(
                "{}: new Pods then trust it",
                by(is_enforced, "add", &format!("{missing} to the bundle"))
            ));
        }
        let is_issuer_desired = roots.is_issuer_desired();
        let refusing = pods(roots.mesh().filter(|group| !group.accepts(&roots.reached())));
        if refusing > 0 {
            steps.push(format!("repair the mesh before: {} refuse the present certificates", proxies(refusing)));
        }
        let (restarts, more_namespaces) =
            if is_issuer_desired && refusing == 0 { (Vec::new(), 0) } else { restarts(&roots) };
        let is_cut = declared.is_some_and(|declared| declared.distrusted.is_cut);
        if !is_issuer_desired && !has_bridge && !is_cut && !restarts.is_empty() {
            steps.push("restart the control plane and the workloads below, unless there is a bridge".to_owned());
        }
        if !is_issuer_desired {
            let desired = roots.target().map_or_else(|| list(&|id| roots.desired.contains(id)), named);
            let bridge = if has_bridge { "the declared bridge after it" } else { "a bridge after it if there is one" };
            steps.push(match manages_issuer {
                true => format!(
                    "write an issuer of {desired} into {NEXT_ISSUER}: the operator makes it the issuer once all proxies accept it"
                ),
                false => format!("write an issuer of {desired}, and {bridge}, into {ISSUER}"),
            });
        }
        let lifetime = rounded(seen.settings.lifetime);
        let has_others = !roots.in_bundle.is_subset(&roots.desired);
        if !is_cut && (!is_issuer_desired || progress.phase == TrustPhase::Renewing) {
            steps.push(format!("wait until all proxies have renewed their certificates, within {lifetime}"));
        }
        if has_others {
            let others = list(&|id| roots.in_bundle.contains(id) && !roots.desired.contains(id));
            let removed = by(is_enforced, "remove", &format!("{others} from the bundle"));
            steps.push(format!("{removed}: new Pods then do not trust it any more"));
        }
        let distrusted = PlannedDistrust::of(seen, &roots, progress.is_bridged);
        if let Some(PlannedDistrust { roots, workloads: 1.., .. }) = &distrusted {
            steps.push(format!(
                "restart the workloads whose proxies trust {roots}: a LinkerdConfig does, for those that opted in"
            ));
        }
        Ok(Self {
            phase: progress.phase,
            steps,
            restarts_without_bridge: restarts,
            more_namespaces,
            has_bridge: has_bridge && progress.is_bridged,
            distrusted,
        })
    }
}

// === impl PlannedDistrust ===

impl PlannedDistrust {
    fn of(seen: &SeenTrust, roots: &MeshRoots<'_>, is_bridged: bool) -> Option<Self> {
        let declared = seen.desired.as_ref().filter(|declared| !declared.distrusted.is_empty())?;
        let exposed = || roots.groups.iter().filter(|group| roots.is_exposed(group));
        let workloads: BTreeSet<_> = exposed().flat_map(|group| group.workloads.keys().copied()).collect();
        let names: Vec<_> = declared.distrusted.roots().iter().map(named).collect();
        Some(Self {
            roots: and_more(names.iter().take(SHOWN), names.len(), ", "),
            workloads: workloads.len(),
            pods: pods(exposed()),
            way: match declared.distrusted.is_cut {
                true => DistrustWay::Cut,
                false if is_bridged => DistrustWay::OneRestart,
                false => DistrustWay::TwoRestarts,
            },
            renewed_within: rounded(seen.settings.lifetime),
        })
    }
}

/// Returns a step of people, or of the operator.
fn by(is_of_operator: bool, verb: &str, object: &str) -> String {
    if is_of_operator { format!("the operator {verb}s {object}") } else { format!("{verb} {object}") }
}

/// Returns what must restart without a bridge, and the number of further namespaces.
fn restarts(roots: &MeshRoots<'_>) -> (Vec<PlannedRestarts>, usize) {
    let mut found = BTreeMap::<&str, (BTreeSet<&MeshedWorkload>, usize)>::new();
    let target = roots.target();
    for group in roots.mesh().filter(|group| target.is_none_or(|target| !group.trusts.contains(&target.id))) {
        for (workload, pods) in &group.workloads {
            let (workloads, count) = found.entry(&workload.namespace).or_default();
            workloads.insert(workload);
            *count += pods;
        }
    }
    let row = |(namespace, (workloads, pods)): (&str, (BTreeSet<_>, usize))| PlannedRestarts {
        namespace: namespace.to_owned(),
        workloads: workloads.len(),
        pods,
    };
    let more = found.len().saturating_sub(MAX_NAMESPACES);
    (found.into_iter().take(MAX_NAMESPACES).map(row).collect(), more)
}
