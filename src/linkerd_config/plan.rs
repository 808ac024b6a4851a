//! The plan for the ConfigMap of the active LinkerdConfig. Pure.
//!
//! In: the resource, the ConfigMap, the saved base, the mesh's trust anchors. Out: a base to save, a document to write,
//! a verdict. Always holds: a document that cannot be parsed exactly is overwritten only from a saved base; a document
//! with problems is not written, unless they are the installer's and the injectors are probed; drift is computed
//! against the configuration that was in force at our last write, not against the current one; after a plan was
//! applied, planning again writes nothing.

use super::{
    canary::{
        document::{CanaryDocument, HeldInput, held},
        problems::problems as canary_problems,
    },
    documents::{
        base::Base,
        drift::Drift,
        overlay::{self, Overlay, ValueSource},
        resolve_base::{BaseChange, BaseInput, ResolvedBase, describe_unreadable, repair, resolve_base},
        skew::{self, VersionSkew},
    },
    revert::predecessor::{NoFallback, Predecessor},
    status::attempt::failed_hashes,
    verdict::PlanVerdict,
};
use crate::{
    api::linkerd_config::{
        ConditionReason, ConditionType, DriftAction, InjectorSyncMethod, LinkerdConfigSpec, LinkerdConfigStatus, Mode,
        ProxyShapeStatus, annotations::CONFIG_HASH_ANNOTATION,
    },
    cluster::kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    rollout,
    values::{Document, InjectionHashes, LONGEST, Path, Problem, Reading, control_plane_mismatch},
};

const BY_INSTALLER: &str = "the installer set it: correct it there";
const BY_RESOURCE: &str = "the resource sets it";

/// The inputs of a plan.
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
    /// Whether the resource was never active before. Earlier changes are then not drift.
    pub first_time: bool,
    /// Whether reverts are suspended, because other writers keep undoing them.
    pub revert_suspended: bool,
    /// The injection hashes of documents that the injectors denied, or that workloads failed with. If there is any, the
    /// declared values failed, also over another document of the installer.
    pub failed: &'a [String],
    /// The document before the one in effect, if a rollback may restore it.
    pub predecessor: Option<&'a Predecessor>,
    /// Whether a declared document that affects injection is held back, because canary namespaces get it first.
    pub holds_back: bool,
}

/// The planned writes, and the facts about them for the status.
#[derive(Debug, Default)]
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

/// A planned write of the ConfigMap.
#[derive(Debug)]
pub struct ConfigMapWrite {
    pub values: String,
    /// The hash of the document in force, without the reported changes of other writers.
    pub hash: String,
    /// Whether the write overwrites a change of another writer.
    pub overwrites_others: bool,
}

// === impl PlanInput ===

impl<'a> PlanInput<'a> {
    /// Returns the inputs that a resource and its status determine. The caller adds the objects that it read.
    pub fn of(config: &'a LinkerdConfig, status: &'a LinkerdConfigStatus) -> Self {
        Self {
            spec: &config.spec,
            live: None,
            document: None,
            base: None,
            bundle: None,
            first_time: status.revisions.is_none(),
            revert_suspended: status.reason(ConditionType::Stalled).is_some_and(ConditionReason::is_contested),
            failed: failed_hashes(config, status),
            predecessor: None,
            holds_back: config.spec.canary.is_some() && config.spec.mode == Mode::Enforce,
        }
    }
}

// === impl ConfigPlan ===

impl ConfigPlan {
    /// Returns a plan with only a verdict, which writes nothing.
    pub fn only(verdict: PlanVerdict) -> Self {
        Self { verdict, ..Self::default() }
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
                let found = FoundDocument { document: Some(document), injection_hash: injection_hash.as_ref() };
                return match resolve_base(&base_input, &overlay, text, document) {
                    Ok(resolved) => plan_document(input, &overlay, live, resolved, found),
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
        Some(resolved) => plan_document(input, &overlay, live, resolved, FoundDocument::default()),
        None => ConfigPlan::only(broken),
    }
}

/// Returns the overlay of a valid resource, or all problems of the resource.
fn validate(input: &PlanInput<'_>) -> Result<Overlay, Vec<Problem>> {
    let PlanInput { spec, document, base, bundle, .. } = *input;
    let of_canary = canary_problems(spec);
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

/// The documents of a plan.
struct PlannedDocuments {
    declared: Document,
    /// The declared document, or the one that stays in force during a canary.
    effective: Document,
    /// The document for the ConfigMap, without reported changes: the effective one, or the fallback after a failure.
    in_force: Document,
    is_restored: bool,
    canary: Option<CanaryDocument>,
}

/// The document in the ConfigMap with its injection hash; both `None` if it is missing or unusable.
#[derive(Clone, Copy, Default)]
struct FoundDocument<'a> {
    document: Option<&'a Document>,
    injection_hash: Option<&'a String>,
}

/// Plans the document over a resolved base.
fn plan_document(
    input: &PlanInput<'_>,
    overlay: &Overlay,
    live: &ConfigMap,
    resolved: ResolvedBase,
    found: FoundDocument<'_>,
) -> ConfigPlan {
    let ResolvedBase { mut base, base_change, drift, overwrites_others, installer } = resolved;
    let spec = input.spec;
    if let Some(reason) = skew::unsupported_linkerd(&base.document) {
        return ConfigPlan::only(PlanVerdict::UnsupportedVersion(reason));
    }
    let mut hashes = injection_hashes(input.base, found);
    let documents = match choose_documents(input, overlay, &base, live, found, &hashes) {
        Ok(documents) => documents,
        Err(verdict) => return ConfigPlan::only(verdict),
    };
    let PlannedDocuments { declared, effective, in_force, is_restored, canary } = documents;
    if canary.is_none() {
        base.replaces_environment = overlay.replaces_environment();
    }
    base.effective = effective.clone();
    let mut wanted = in_force.clone();
    // With drift.action Report, the changes of other writers stay in the document.
    let reported = drift.as_ref().filter(|_| spec.drift.action == DriftAction::Report);
    if let (Some(drift), Some(found)) = (reported, found.document) {
        wanted.copy_paths(found, &drift.paths);
    }
    let is_reported = reported.is_some();
    let affects_injection = found.document.is_some_and(|found| found.injection_hash() != wanted.injection_hash());
    let differences = found.document.map(|found| found.differences(&wanted));
    let is_equal = differences.as_ref().is_some_and(Vec::is_empty);
    let injection_hash = match found.injection_hash {
        // A reported change may be one of the injection hash itself.
        Some(hash) if is_reported && is_equal && InjectionHashes::is_hash(hash) => hash.clone(),
        _ => hashes.of(&wanted),
    };
    let installed_hash = Some(hashes.of(&base.document));
    let is_synced = is_equal && found.injection_hash == Some(&injection_hash);
    // Removing only the injection hash is reverted like any other change.
    let is_ours = live.annotations.get(CONFIG_HASH_ANNOTATION) == Some(&wanted.hash().to_string());
    let overwrites_others = overwrites_others || is_ours && is_equal && !is_synced;
    for document in [&base.document, &effective] {
        let hash = hashes.of(document);
        hashes.learn(document, &hash);
    }
    base.injection_hashes = hashes;
    let (base_problems, refused) = judge_problems(spec, overlay, &declared, &base.document);
    let without_writes = ConfigPlan {
        drift: drift.map(|drift| Drift { affects_injection, ..drift }),
        control_plane_mismatch: control_plane_mismatch(&base.document, &wanted),
        anchors: overlay.anchors_source(),
        skew: skew::version_skew(&declared, &base.document),
        base_problems,
        effective: Some(effective),
        ..ConfigPlan::only(PlanVerdict::Synced)
    };
    let verdict = match refused {
        Some(refused) => Some(refused),
        _ if spec.mode == Mode::Observe && is_equal && is_reported => Some(PlanVerdict::Drifted),
        _ if spec.mode == Mode::Observe && is_equal => Some(PlanVerdict::Synced),
        _ if spec.mode == Mode::Observe => Some(PlanVerdict::Observing(differences.unwrap_or_default())),
        _ if input.revert_suspended && overwrites_others => {
            Some(installer.map_or(PlanVerdict::RepeatedDrift, PlanVerdict::InstallerReverts))
        }
        _ => canary.as_ref().and_then(|canary| too_long(&canary.values)),
    };
    if let Some(verdict) = verdict {
        return ConfigPlan { verdict, ..without_writes };
    }
    // A document that lacks only the injection hash counts as synced.
    let is_kept = is_synced || live.immutable && is_equal;
    let write = || ConfigMapWrite::new(&wanted, &injection_hash, &in_force, overwrites_others);
    let write = (!is_kept).then(write);
    let unwritable = match &write {
        Some(_) if live.immutable => Some(PlanVerdict::Immutable),
        Some(write) => too_long(&write.values),
        None => None,
    };
    if let Some(verdict) = unwritable {
        return ConfigPlan { verdict, ..without_writes };
    }
    let found_hash = found.injection_hash.filter(|hash| live.immutable && InjectionHashes::is_hash(hash)).cloned();
    let is_new_base = input.base.is_none_or(|known| !known.eq_ignoring_version(&base));
    let predecessor = input.predecessor.filter(|_| is_restored);
    ConfigPlan {
        new_base: is_new_base.then_some(base),
        base_change,
        write,
        verdict: in_force_verdict(is_restored, is_reported, canary.is_some()),
        injection_hash: found_hash.or(Some(injection_hash)),
        installed_hash,
        restored_revision: predecessor.map(Predecessor::revision),
        proxy_version: overlay::proxy_version(&wanted),
        proxy_shape: Some(overlay::proxy_shape(&wanted)),
        canary,
        ..without_writes
    }
}

fn in_force_verdict(is_restored: bool, is_reported: bool, is_held_back: bool) -> PlanVerdict {
    match (is_restored, is_reported, is_held_back) {
        (true, ..) => PlanVerdict::Restored,
        (false, true, _) => PlanVerdict::Drifted,
        (false, false, true) => PlanVerdict::Canary,
        (false, false, false) => PlanVerdict::Synced,
    }
}

/// Chooses the document for the ConfigMap: the declared one, the one from before a canary, or the one from before a
/// failure.
///
/// # Errors
/// When the declared document failed, and the one from before it cannot be restored.
fn choose_documents(
    input: &PlanInput<'_>,
    overlay: &Overlay,
    base: &Base,
    live: &ConfigMap,
    found: FoundDocument<'_>,
    hashes: &InjectionHashes,
) -> Result<PlannedDocuments, PlanVerdict> {
    let declared = overlay.effective(&base.effective, &base.document);
    let held = held_back(input, &declared, &base.document, live, found.document, hashes);
    let canary = held.as_ref().map(|_| CanaryDocument::new(&declared, hashes.of(&declared)));
    let effective = held.unwrap_or_else(|| declared.clone());
    // A resource that observes is compared with what it declares, whether that failed or not.
    let restores = input.spec.mode == Mode::Enforce && !input.failed.is_empty();
    let predecessor = input.predecessor.filter(|_| restores);
    let fallback = predecessor.map(|known| known.fallback(&base.document, &effective, input.failed, hashes));
    let (is_restored, in_force) = match fallback {
        Some(Ok(fallback)) => (true, fallback),
        // A document that failed is not written again.
        Some(Err(reason @ (NoFallback::Unusable(_) | NoFallback::Lost(_)))) if found.document != Some(&effective) => {
            let why = format!("the declared configuration failed, and {}", reason.why());
            return Err(PlanVerdict::InvalidBase(why));
        }
        _ => (false, effective.clone()),
    };
    Ok(PlannedDocuments { declared, effective, in_force, is_restored, canary })
}

/// Returns the problems of the installer's document that do not prevent a write, and the verdict if there are others. A
/// rule may be wrong about an installer's document, but the injectors are probed after every write.
fn judge_problems(
    spec: &LinkerdConfigSpec,
    overlay: &Overlay,
    declared: &Document,
    installed: &Document,
) -> (Vec<Problem>, Option<PlanVerdict>) {
    let (of_base, problems): (Vec<_>, Vec<_>) = match spec.injector_sync.method {
        InjectorSyncMethod::Probe | InjectorSyncMethod::DryRun => {
            let known = installed.problems();
            declared.problems().into_iter().partition(|problem| known.contains(problem))
        }
        InjectorSyncMethod::Delay => (Vec::new(), declared.problems()),
    };
    let is_declared = |problem: &Problem| overlay.source(&problem.path, declared) != ValueSource::Base;
    let problems = problems.into_iter().chain(skew::problems(declared, installed));
    let (own, of_installer): (Vec<_>, Vec<_>) = problems.partition(is_declared);
    let of_installer: Vec<_> = of_installer.into_iter().map(|problem| noted(problem, BY_INSTALLER)).collect();
    let verdict = match (own.is_empty(), of_installer.is_empty()) {
        (true, true) => None,
        (true, false) => Some(PlanVerdict::ValidationFailed(of_installer)),
        (false, true) => Some(PlanVerdict::Invalid(own)),
        (false, false) => {
            let own = own.into_iter().map(|problem| noted(problem, BY_RESOURCE));
            Some(PlanVerdict::Invalid(own.chain(of_installer).collect()))
        }
    };
    (of_base, verdict)
}

/// Adds a note about the writer of the value to the reason of a problem.
fn noted(problem: Problem, note: &str) -> Problem {
    Problem { reason: format!("{}; {note}", problem.reason), ..problem }
}

/// Returns the verdict about a text that is longer than a reader accepts.
fn too_long(values: &str) -> Option<PlanVerdict> {
    let length = values.len();
    let reason = format!("it would have {length} bytes; the limit is {LONGEST} bytes");
    let problem = || Problem { path: Path::default(), value: String::new(), reason };
    (length > LONGEST).then(|| PlanVerdict::ValidationFailed(vec![problem()]))
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

/// Returns the known injection hashes. Bases of earlier versions of the operator do not have them, but the ConfigMap
/// has the hash of the document that the operator wrote.
fn injection_hashes(known: Option<&Base>, found: FoundDocument<'_>) -> InjectionHashes {
    let mut hashes = known.map(|base| base.injection_hashes.clone()).unwrap_or_default();
    if let (Some(document), Some(hash)) = (found.document, found.injection_hash)
        && known.is_none_or(|base| base.effective == *document)
    {
        hashes.learn_found(document, hash);
    }
    hashes
}

#[cfg(test)]
#[path = "plan_tests/mod.rs"]
mod tests;
