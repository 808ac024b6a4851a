//! The plan for the ConfigMap of the active LinkerdConfig. Pure.
//!
//! In: the resource, the ConfigMap, the saved base, the mesh's trust anchors. Out: a base to save, a document to write,
//! a verdict. Always holds: a document that cannot be parsed exactly is overwritten only from a saved base; a document
//! with problems is not written, unless they are the installer's and the injectors are probed; drift is computed against
//! the configuration that was in force at our last write, not against the current one; after a plan was applied,
//! planning again writes nothing.

use super::{
    base::Base,
    canary::{
        self,
        document::{CanaryDocument, HeldInput, held},
    },
    control_plane::skew::{self, VersionSkew},
    drift::Drift,
    overlay::{self, Overlay, ValueSource},
    resolve_base::{BaseChange, BaseInput, ResolvedBase, copy_paths, describe_unreadable, repair, resolve_base},
    revert::predecessor::{NoFallback, Predecessor},
    rollout,
    trust_anchors::bundles::TrustBundles,
};
use crate::{
    api::linkerd_config::{
        DriftAction, InjectorSyncMethod, LinkerdConfigSpec, Mode, ProxyShapeStatus, annotations::CONFIG_HASH_ANNOTATION,
    },
    cluster::kinds::config_map::ConfigMap,
    values::{Document, InjectionHashes, LONGEST, Path, Problem, Reading, control_plane_mismatch},
};

const BY_INSTALLER: &str = "the installer set it: correct it there";
const BY_RESOURCE: &str = "the resource sets it";

#[derive(Clone, Copy)]
pub struct PlanInput<'a> {
    pub spec: &'a LinkerdConfigSpec,
    /// `None` if the ConfigMap does not exist.
    pub live: Option<&'a ConfigMap>,
    /// The parsed document of the ConfigMap.
    pub document: Option<&'a Reading>,
    /// `None` if no base was saved for this ConfigMap yet.
    pub base: Option<&'a Base>,
    /// The PEM bundle of `linkerd-identity-trust-roots`.
    pub bundle: Option<&'a str>,
    /// The bundles of trust anchors to save with the base.
    pub trust_bundles: &'a TrustBundles,
    /// Whether the resource was never active before. Earlier changes are then not drift.
    pub first_time: bool,
    /// Whether reverts are suspended, because other writers keep undoing them.
    pub revert_suspended: bool,
    /// The injection hashes of documents that the injectors denied, or that workloads failed with. If there is any, the
    /// declared values failed, whatever the installer's document is by now.
    pub failed: &'a [String],
    /// The document before the one in effect, if a rollback may restore it.
    pub predecessor: Option<&'a Predecessor>,
    /// Whether a declared document that affects injection is held back, because canary namespaces get it first.
    pub holds_back: bool,
}

#[derive(Debug)]
pub struct ConfigPlan {
    /// The base to save before the ConfigMap is written.
    pub new_base: Option<Base>,
    /// How the base changed.
    pub base_change: Option<BaseChange>,
    pub write: Option<ConfigMapWrite>,
    pub verdict: PlanVerdict,
    /// The declared document, if it is known.
    pub effective: Option<Document>,
    /// The changes of another writer.
    pub drift: Option<Drift>,
    /// The paths at which proxies get another value than the control plane uses.
    pub control_plane_mismatch: Vec<Path>,
    /// Where the trust anchors of the document come from.
    pub anchors: Option<ValueSource>,
    /// The injection hash of the document that the ConfigMap holds once the plan is applied, if that document is ours.
    pub injection_hash: Option<String>,
    /// How the versions of the declared document differ from that of the control plane.
    pub skew: Option<VersionSkew>,
    /// The problems of the installer's own document that do not prevent a write, because the injectors are probed.
    pub base_problems: Vec<Problem>,
    /// The version of the proxy in the document that the ConfigMap holds once the plan is applied.
    pub proxy_version: Option<String>,
    /// The shape of the proxies that are injected with that document.
    pub proxy_shape: Option<ProxyShapeStatus>,
    /// The injection hash of the installer's document.
    pub installed_hash: Option<String>,
    /// The revision of the declared document that is restored; 0 is the installer's.
    pub restored_revision: Option<i64>,
    /// The declared document, if it is held back. `effective` is then the document that stays in force.
    pub canary: Option<CanaryDocument>,
}

#[derive(Debug)]
pub struct ConfigMapWrite {
    pub values: String,
    /// The hash of the declared document, without the reported changes of other writers.
    pub hash: String,
    /// Whether the write overwrites a change of another writer.
    pub overwrites_others: bool,
}

/// The state of the ConfigMap once the plan is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanVerdict {
    Synced,
    /// The resource cannot be applied.
    Invalid(Vec<Problem>),
    /// Linkerd cannot use the document that is in the ConfigMap, or that would be written.
    ValidationFailed(Vec<Problem>),
    TargetNotFound,
    UnsupportedLayout,
    /// The installed Linkerd is too old; the text says why.
    UnsupportedVersion(String),
    Immutable,
    /// The installer's document is unknown, so the present document is not overwritten.
    InvalidBase(String),
    /// The declared document failed: the ConfigMap holds the document before it.
    Restored,
    /// The declared document is held back: the ConfigMap holds the document before it.
    Canary,
    /// Changes of other writers are kept, because drift.action is Report.
    Drifted,
    /// Changes of other writers are kept for now, because they recur after each revert.
    RepeatedDrift,
    /// The document of this installer is kept for now, because the installer keeps writing.
    InstallerReverts(String),
    /// Nothing is written, because mode is Observe; these paths would change.
    Observing(Vec<Path>),
    Suspended,
    /// The reconcile failed before a plan was made.
    Unknown,
}

// === impl ConfigPlan ===

impl ConfigPlan {
    /// Returns a plan with only a verdict, which writes nothing.
    pub fn only(verdict: PlanVerdict) -> Self {
        Self {
            new_base: None,
            base_change: None,
            write: None,
            verdict,
            effective: None,
            drift: None,
            control_plane_mismatch: Vec::new(),
            anchors: None,
            injection_hash: None,
            skew: None,
            base_problems: Vec::new(),
            proxy_version: None,
            proxy_shape: None,
            installed_hash: None,
            restored_revision: None,
            canary: None,
        }
    }
}

// === impl ConfigMapWrite ===

impl ConfigMapWrite {
    fn new(document: &Document, injection_hash: &str, effective: &Document, overwrites_others: bool) -> Self {
        Self {
            values: document.with_injection_hash(injection_hash).to_yaml(),
            hash: effective.hash().to_string(),
            overwrites_others,
        }
    }
}

/// Plans the writes of one reconcile of the active resource.
pub fn plan(input: &PlanInput<'_>) -> ConfigPlan {
    let plan = plan_writes(input);
    // Without a write, the document in the ConfigMap stays in force.
    let found = input.document.and_then(|document| Some(&document.as_ref().ok()?.0));
    ConfigPlan {
        proxy_version: plan.proxy_version.or_else(|| overlay::proxy_version(found?)),
        proxy_shape: plan.proxy_shape.or_else(|| found.map(overlay::proxy_shape)),
        ..plan
    }
}

fn plan_writes(input: &PlanInput<'_>) -> ConfigPlan {
    if input.spec.mode == Mode::Suspend {
        return ConfigPlan::only(PlanVerdict::Suspended);
    }
    let overlay = match validate(input) {
        Ok(overlay) => overlay,
        Err(problems) => return ConfigPlan::only(PlanVerdict::Invalid(problems)),
    };
    let Some(live) = input.live else { return ConfigPlan::only(PlanVerdict::TargetNotFound) };
    let PlanInput { spec, base, first_time, predecessor, .. } = *input;
    let base_input = BaseInput { live, base, drift: &spec.drift, first_time, predecessor };
    let broken = match (live.values.as_deref(), input.document) {
        (Some(text), Some(Ok((document, injection_hash)))) => {
            let secrets = document.private_keys();
            if secrets.is_empty() {
                return match resolve_base(&base_input, &overlay, text, document) {
                    Ok(resolved) => {
                        plan_document(input, &overlay, live, resolved, Some((document, injection_hash.as_ref())))
                    }
                    Err(reason) => ConfigPlan::only(PlanVerdict::InvalidBase(reason)),
                };
            }
            // A private key must not be copied into a ControllerRevision, which may have other readers than the
            // ConfigMap.
            let note = format!("it is in {}", live.describe_values());
            PlanVerdict::ValidationFailed(secrets.into_iter().map(|problem| noted(problem, &note)).collect())
        }
        (_, Some(Err(error))) => PlanVerdict::InvalidBase(describe_unreadable(&base_input, error)),
        _ => PlanVerdict::UnsupportedLayout,
    };
    let problems = match &broken {
        PlanVerdict::ValidationFailed(problems) => problems.as_slice(),
        _ => &[],
    };
    match repair(&base_input, problems) {
        Some(resolved) => plan_document(input, &overlay, live, resolved, None),
        None => ConfigPlan::only(broken),
    }
}

/// Returns the overlay of a valid resource, or all problems of the resource.
fn validate(input: &PlanInput<'_>) -> Result<Overlay, Vec<Problem>> {
    let PlanInput { spec, document, base, bundle, .. } = *input;
    let of_canary = canary::problems(spec);
    let known = base.map(|base| &base.document).or_else(|| Some(&document?.as_ref().ok()?.0));
    let of_rollout = [rollout::problems(spec), of_canary].concat();
    match Overlay::new(spec, bundle, known) {
        Ok(overlay) if of_rollout.is_empty() => Ok(overlay),
        Ok(overlay) => {
            let of_values = known.map(|document| overlay.problems_over(document)).unwrap_or_default();
            Err([of_values, of_rollout].concat())
        }
        Err(problems) => Err([problems, of_rollout].concat()),
    }
}

/// Plans the document over a resolved base. `found` is the document in the ConfigMap with its injection hash; `None` if
/// it is missing or unusable.
fn plan_document(
    input: &PlanInput<'_>,
    overlay: &Overlay,
    live: &ConfigMap,
    resolved: ResolvedBase,
    found: Option<(&Document, Option<&String>)>,
) -> ConfigPlan {
    let ResolvedBase { mut base, base_change, drift, overwrites_others, installer } = resolved;
    let (found, found_hash) = found.map_or((None, None), |(document, hash)| (Some(document), hash));
    let spec = input.spec;
    if let Some(reason) = skew::unsupported_linkerd(&base.document) {
        return ConfigPlan::only(PlanVerdict::UnsupportedVersion(reason));
    }
    let declared = overlay.effective(&base.effective, &base.document);
    let version_problems = skew::problems(&declared, &base.document);
    let version_skew = skew::version_skew(&declared, &base.document);
    let mut hashes = injection_hashes(input.base, found, found_hash);
    let held = held_back(input, &declared, &base.document, live, found, &hashes);
    let canary = held.as_ref().map(|_| CanaryDocument::new(&declared, hashes.of(&declared)));
    if held.is_none() {
        base.replaces_environment = overlay.replaces_environment();
    }
    let effective = held.unwrap_or_else(|| declared.clone());
    base.effective = effective.clone();
    base.trust_bundles = input.trust_bundles.clone();
    let predecessor = input.predecessor.filter(|_| !input.failed.is_empty());
    let fallback = predecessor.map(|known| known.fallback(&base.document, &effective, input.failed, &hashes));
    let (is_restored, in_force) = match fallback {
        Some(Ok(fallback)) => (true, fallback),
        // A document that failed is not written again.
        Some(Err(reason @ (NoFallback::Unusable(_) | NoFallback::Lost(_)))) if found != Some(&effective) => {
            return ConfigPlan::only(PlanVerdict::InvalidBase(format!(
                "the declared configuration failed, and {}",
                reason.why()
            )));
        }
        _ => (false, effective.clone()),
    };
    let mut wanted = in_force.clone();
    // With drift.action Report, the changes of other writers stay in the document.
    let reported = drift.as_ref().filter(|_| spec.drift.action == DriftAction::Report);
    if let (Some(drift), Some(found)) = (reported, found) {
        copy_paths(&mut wanted, found, &drift.paths);
    }
    let is_reported = reported.is_some();
    let affects_injection = found.is_some_and(|found| found.injection_hash() != wanted.injection_hash());
    let drift = drift.map(|drift| Drift { affects_injection, ..drift });
    let differences = found.map(|found| found.differences(&wanted));
    let is_equal = differences.as_ref().is_some_and(Vec::is_empty);
    let injection_hash = match found_hash {
        // A reported change may be one of the injection hash itself.
        Some(found_hash) if is_reported && is_equal && InjectionHashes::is_hash(found_hash) => found_hash.clone(),
        _ => hashes.of(&wanted),
    };
    let installed_hash = Some(hashes.of(&base.document));
    let is_synced = is_equal && found_hash == Some(&injection_hash);
    // Removing only the injection hash is reverted like any other change.
    let is_ours = live.annotations.get(CONFIG_HASH_ANNOTATION) == Some(&wanted.hash().to_string());
    let overwrites_others = overwrites_others || is_ours && is_equal && !is_synced;
    for document in [&base.document, &effective] {
        let hash = hashes.of(document);
        hashes.learn(document, &hash);
    }
    base.injection_hashes = hashes;
    let is_new_base = input.base.is_none_or(|known| !known.eq_ignoring_version(&base));
    let control_plane_mismatch = control_plane_mismatch(&base.document, &wanted);
    // A rule may be wrong about an installer's document. The injectors are probed after every write.
    let (base_problems, problems): (Vec<_>, Vec<_>) = match spec.injector_sync.method {
        InjectorSyncMethod::Probe | InjectorSyncMethod::DryRun => {
            let known = base.document.problems();
            declared.problems().into_iter().partition(|problem| known.contains(problem))
        }
        InjectorSyncMethod::Delay => (Vec::new(), declared.problems()),
    };
    let problems = [problems, version_problems].concat();
    let without_writes = |verdict| ConfigPlan {
        effective: Some(effective.clone()),
        drift: drift.clone(),
        control_plane_mismatch: control_plane_mismatch.clone(),
        anchors: overlay.anchors_source(),
        skew: version_skew.clone(),
        base_problems: base_problems.clone(),
        ..ConfigPlan::only(verdict)
    };
    if !problems.is_empty() {
        let is_declared = |problem: &Problem| overlay.source(&problem.path, &declared) != ValueSource::Base;
        let (own, of_installer): (Vec<_>, Vec<_>) = problems.into_iter().partition(is_declared);
        let of_installer: Vec<_> = of_installer.into_iter().map(|problem| noted(problem, BY_INSTALLER)).collect();
        return without_writes(match (own.is_empty(), of_installer.is_empty()) {
            (true, _) => PlanVerdict::ValidationFailed(of_installer),
            (false, true) => PlanVerdict::Invalid(own),
            (false, false) => {
                let own = own.into_iter().map(|problem| noted(problem, BY_RESOURCE));
                PlanVerdict::Invalid(own.chain(of_installer).collect())
            }
        });
    }
    if spec.mode == Mode::Observe {
        return without_writes(match is_equal {
            true => PlanVerdict::Synced,
            false => PlanVerdict::Observing(differences.unwrap_or_default()),
        });
    }
    if input.revert_suspended && overwrites_others {
        return without_writes(installer.map_or(PlanVerdict::RepeatedDrift, PlanVerdict::InstallerReverts));
    }
    let verdict = match (is_restored, is_reported) {
        (true, _) => PlanVerdict::Restored,
        (false, true) => PlanVerdict::Drifted,
        (false, false) if canary.is_some() => PlanVerdict::Canary,
        (false, false) => PlanVerdict::Synced,
    };
    let new_base = is_new_base.then_some(base);
    let plan = ConfigPlan {
        new_base,
        base_change,
        injection_hash: Some(injection_hash),
        installed_hash,
        restored_revision: predecessor.filter(|_| is_restored).map(Predecessor::revision),
        proxy_version: overlay::proxy_version(&wanted),
        proxy_shape: Some(overlay::proxy_shape(&wanted)),
        canary,
        ..without_writes(verdict)
    };
    if let Some(problem) = plan.canary.as_ref().and_then(|canary| too_long(&canary.values)) {
        return without_writes(PlanVerdict::ValidationFailed(vec![problem]));
    }
    if is_synced {
        return plan;
    }
    if live.immutable {
        // A document that lacks only the injection hash counts as synced.
        return match is_equal {
            true => {
                let found_hash = found_hash.filter(|hash| InjectionHashes::is_hash(hash)).cloned();
                ConfigPlan { injection_hash: found_hash.or_else(|| plan.injection_hash.clone()), ..plan }
            }
            false => without_writes(PlanVerdict::Immutable),
        };
    }
    let injection_hash = plan.injection_hash.as_deref().unwrap_or_default();
    let write = ConfigMapWrite::new(&wanted, injection_hash, &in_force, overwrites_others);
    if let Some(problem) = too_long(&write.values) {
        return without_writes(PlanVerdict::ValidationFailed(vec![problem]));
    }
    ConfigPlan { write: Some(write), ..plan }
}

/// Adds who wrote the value to the reason of a problem.
fn noted(problem: Problem, note: &str) -> Problem {
    Problem { reason: format!("{}; {note}", problem.reason), ..problem }
}

/// Returns the problem of a text that no reader would parse.
fn too_long(values: &str) -> Option<Problem> {
    let length = values.len();
    let reason = format!("it would have {length} bytes; the limit is {LONGEST} bytes");
    (length > LONGEST).then(|| Problem { path: Path::default(), value: String::new(), reason })
}

/// Returns the document that stays in force while canary namespaces get the declared one; `None` if the declared one is
/// not held back. A document that failed is not a canary: the predecessor replaces it.
fn held_back(
    input: &PlanInput<'_>,
    declared: &Document,
    installed: &Document,
    live: &ConfigMap,
    found: Option<&Document>,
    hashes: &InjectionHashes,
) -> Option<Document> {
    let hash = hashes.of(declared);
    if !input.holds_back || !input.failed.is_empty() {
        return None;
    }
    let PlanInput { base: saved, first_time, .. } = *input;
    let in_force = held(&HeldInput { saved, live, found, first_time, installed, declared });
    (hashes.of(&in_force) != hash).then_some(in_force)
}

/// Returns the known injection hashes. Bases of earlier versions of the operator do not have them, but the ConfigMap has
/// the hash of the document that the operator wrote.
fn injection_hashes(known: Option<&Base>, found: Option<&Document>, found_hash: Option<&String>) -> InjectionHashes {
    let mut hashes = known.map(|base| base.injection_hashes.clone()).unwrap_or_default();
    if let (Some(found), Some(found_hash)) = (found, found_hash)
        && known.is_none_or(|base| base.effective == *found)
    {
        hashes.learn_found(found, found_hash);
    }
    hashes
}

#[cfg(test)]
#[path = "plan_tests/mod.rs"]
mod tests;
