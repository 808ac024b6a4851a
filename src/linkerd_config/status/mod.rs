//! The status of a LinkerdConfig. Pure.
//!
//! In: the outcome of a reconcile, the previous status. Out: the new status. Always holds: without a change the new
//! status equals the previous one, so that it is not written again.

pub mod attempt;
pub mod conditions;
pub(super) mod consistency;
pub(super) mod denials;
pub(super) mod rollout_status;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use self::{
    attempt::{declared_hash, failed_hashes, is_current, retry},
    conditions::{
        ConditionRow, add_canary, add_contest, add_injector_condition, condition_rows, conflicted,
        ineffective_values_row, mismatch_row, not_accepted, suspect_base_row, to_conditions, version_skew_row,
    },
    denials::add_denial,
};
use super::{
    apply::ReconcileOutcome,
    dereference::ReconcileInput,
    documents::{drift::drift_status, overlay, trust_anchors},
    plan::ConfigPlan,
    revert::next_predecessor::next_previous,
    validation::ineffective_values,
    verdict::PlanVerdict,
    writer::written_revision,
};
use crate::{
    api::linkerd_config::{
        CanaryPhase, CanaryStatus, ConditionReason, DriftStatus, InjectorStatus, LinkerdConfigStatus, Mode,
        RevisionsStatus, RolloutStatus, TargetStatus,
    },
    cluster::kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    injection_probe::{SyncReason, SyncStatus},
    rollout::key::RolloutKey,
    text::{sha256, truncated},
    write::WriteError,
};

/// The maximum number of hashes of failed documents in the status.
const MAX_FAILED_HASHES: usize = 5;

/// The maximum length of a status as JSON. An object of the API server has at most 1.5 MiB.
const MAX_STATUS_BYTES: usize = 512 << 10;
/// The maximum length of the version of the proxy in the status.
const MAX_VERSION_BYTES: usize = 256;

/// The facts of a reconcile of the active resource, besides the answers of the injectors.
pub(super) struct Facts<'a> {
    pub(super) input: &'a ReconcileInput,
    /// The status that was written last.
    pub(super) before: &'a LinkerdConfigStatus,
    pub(super) outcome: &'a ReconcileOutcome,
    /// Why the plan was not applied.
    pub(super) failure: Option<&'a WriteError>,
    /// The next `status.canary`.
    pub(super) canary: Option<CanaryStatus>,
    pub(super) now: Timestamp,
}

// === impl Facts ===

impl Facts<'_> {
    /// Returns the revision of the base, if the operator writes documents over it.
    pub(super) fn base_revision(&self) -> Option<i64> {
        self.outcome.base_revision.filter(|_| self.input.config.spec.mode == Mode::Enforce)
    }
}

/// Returns the status of the active resource. Without `sync_status`, the injectors are not checked. `is_contested` is
/// whether another writer keeps undoing our writes of the ConfigMap, `trust_key` the trust anchors' part of the key of a
/// rollout.
pub(super) fn active_status(
    facts: &Facts<'_>,
    sync_status: Option<&SyncStatus>,
    is_contested: bool,
    trust_key: Option<&str>,
) -> LinkerdConfigStatus {
    let Facts { input, before, outcome, failure, ref canary, now } = *facts;
    let ReconcileInput { config, live, .. } = input;
    let (plan, bundle, live) = (&outcome.plan, input.bundle(), live.as_deref());
    let bundle_hash = bundle.map(sha256);
    let is_satisfied = sync_status.is_some_and(|sync_status| sync_status.is_satisfied(&config.spec.injector_sync));
    let effective = plan.effective.as_ref();
    let anchors = effective.map(|_| trust_anchors::status(plan.anchors, bundle, bundle_hash.as_deref(), before));
    // The hash of the document that workloads now fail with.
    let rejected = plan.injection_hash.as_ref().filter(|_| outcome.rolls_back && failure.is_none());
    let taken_back = canary.as_ref().filter(|canary| canary.phase == CanaryPhase::Failed);
    let given_up = rejected.or_else(|| taken_back.map(|canary| &canary.hash));
    let rolled_back = before.rollout.as_ref().and_then(|rollout| rollout.rolled_back.clone());
    let rolled_back = rolled_back
        .filter(|_| is_current(config, before) && plan.verdict != PlanVerdict::Synced)
        .or_else(|| Some(RolloutKey::of(given_up?, trust_key, None).to_string()));
    let proxy_version = match failure {
        Some(_) => before.proxy_version.clone(),
        None => plan.proxy_version.clone().map(|version| truncated(version, MAX_VERSION_BYTES)),
    };
    let proxy_shape = if failure.is_some() { before.proxy_shape } else { plan.proxy_shape };
    let failure = failure.map(|error| (reason_of(error), error.to_string()));
    let rows = condition_rows(&config.target, config.spec.mode, &plan.verdict, plan.drift.as_ref(), failure);
    let rows = add_injector_condition(rows, config, before, &plan.verdict, sync_status, rolled_back.as_deref());
    let mut rows = if is_contested { add_contest(rows, before, &plan.verdict) } else { rows };
    rows.extend(plan.skew.as_ref().filter(|_| !matches!(plan.verdict, PlanVerdict::Invalid(_))).map(version_skew_row));
    if !matches!(plan.verdict, PlanVerdict::Invalid(_) | PlanVerdict::Observing(_)) {
        rows.extend(mismatch_row(&plan.control_plane_mismatch));
    }
    rows.extend(suspect_base_row(&plan.base_problems));
    rows.extend(ineffective_values_row(&ineffective_values(&config.spec, bundle)));
    if let Some(canary) = canary.as_ref().filter(|_| plan.canary.is_some()) {
        add_canary(&mut rows, canary);
    }
    let mut revisions = revisions_status(config, before, plan, facts.base_revision(), sync_status);
    revisions.previous = next_previous(before, plan, live.and_then(written_revision), bundle_hash.as_deref());
    if let Some(hash) = rejected {
        add_failed_hash(&mut revisions.failed, hash);
    }
    let known = before.rollout.clone().unwrap_or_default();
    let is_adopted = is_satisfied && plan.injection_hash.is_some();
    let baseline = outcome.baseline.clone().filter(|_| config.spec.mode == Mode::Enforce);
    let rollout = RolloutStatus {
        adopted_at: known.adopted_at.clone().or_else(|| is_adopted.then_some(Time(now))),
        baseline_hash: known.baseline_hash.clone().or(baseline),
        installed_hash: plan.installed_hash.clone().or_else(|| known.installed_hash.clone()),
        rolled_back,
        retry: retry(config),
        declared_hash: Some(declared_hash(config)),
        ..known
    };
    LinkerdConfigStatus {
        observed_generation: Some(config.generation),
        active: Some(plan.verdict != PlanVerdict::Suspended),
        conditions: to_conditions(&rows, before, config.generation, now),
        target: Some(target_status(config, live)),
        config_hash: effective.map(|document| document.hash().to_string()).or_else(|| before.config_hash.clone()),
        trust_roots_sha256: bundle_hash,
        proxy_version,
        proxy_shape,
        revisions: Some(revisions).filter(|revisions| *revisions != RevisionsStatus::default()),
        injection_hash: plan.injection_hash.clone().or_else(|| before.injection_hash.clone()),
        injector: sync_status.and_then(|sync_status| injector_status(sync_status, before.injector.as_ref(), now)),
        drift: next_drift(before, plan, is_satisfied, now),
        rollout: Some(rollout),
        canary: canary.clone(),
        deprecated_fields: overlay::deprecated(&config.spec),
        trust_anchors: anchors.or_else(|| before.trust_anchors.clone()),
    }
}

/// Returns the reason of ConfigMapSynced for a plan that was not applied.
fn reason_of(error: &WriteError) -> ConditionReason {
    match error.label() {
        "forbidden" => ConditionReason::WriteForbidden,
        "conflict" | "already_exists" => ConditionReason::WriteConflict,
        _ => ConditionReason::WriteFailed,
    }
}

fn target_status(config: &LinkerdConfig, live: Option<&ConfigMap>) -> TargetStatus {
    TargetStatus {
        namespace: Some(config.target.namespace.to_string()),
        name: Some(config.target.name.to_string()),
        uid: live.map(|live| live.uid.to_string()),
    }
}

/// Returns the status without its lists of workloads if it is too large: the API server would reject it as a whole.
pub(super) fn within_limit(mut status: LinkerdConfigStatus) -> LinkerdConfigStatus {
    let is_too_large = serde_json::to_vec(&status).is_ok_and(|bytes| bytes.len() > MAX_STATUS_BYTES);
    if let Some(rollout) = status.rollout.as_mut().filter(|_| is_too_large) {
        rollout.updating.clear();
        rollout.failures.clear();
        rollout.skipped.clear();
    }
    status
}

/// Returns the drift status. Its open windows end once the injectors use our document again.
fn next_drift(
    before: &LinkerdConfigStatus,
    plan: &ConfigPlan,
    is_satisfied: bool,
    now: Timestamp,
) -> Option<DriftStatus> {
    let drift = plan.drift.as_ref().map(|drift| drift_status(drift, before.drift.as_ref(), now));
    let mut drift = drift.or_else(|| before.drift.clone())?;
    for window in drift.windows.iter_mut().filter(|window| is_satisfied && window.to.is_none()) {
        window.to = Some(Time(now));
    }
    Some(drift)
}

/// Returns the revisions of good documents and the hashes of failed ones. The base revision is never removed, so that
/// drift can be computed when the resource becomes active again.
fn revisions_status(
    config: &LinkerdConfig,
    before: &LinkerdConfigStatus,
    plan: &ConfigPlan,
    base_revision: Option<i64>,
    sync_status: Option<&SyncStatus>,
) -> RevisionsStatus {
    let mut failed = failed_hashes(config, before).to_vec();
    let known = before.revisions.as_ref();
    let mut denied = known.map(|revisions| revisions.denied.clone()).unwrap_or_default();
    let mut last_known_good = known.and_then(|revisions| revisions.last_known_good);
    let mut last_known_good_hash = known.and_then(|revisions| revisions.last_known_good_hash.clone());
    let last_rolled_out = known.and_then(|revisions| revisions.last_rolled_out);
    if let (Some(sync_status), Some(hash)) = (sync_status, &plan.injection_hash) {
        if sync_status.is_denied {
            add_failed_hash(&mut failed, hash);
            add_denial(&mut denied, hash, &sync_status.denied_by);
        }
        if sync_status.reason == SyncReason::AllReplicasCurrent && plan.verdict == PlanVerdict::Synced {
            failed.clear();
            last_known_good = base_revision.or(last_known_good);
            last_known_good_hash = Some(hash.clone());
        }
    }
    let base = base_revision.or_else(|| known?.base);
    denied.retain(|denial| failed.contains(&denial.hash));
    RevisionsStatus { base, last_known_good, last_known_good_hash, last_rolled_out, failed, denied, previous: None }
}

fn add_failed_hash(failed: &mut Vec<String>, hash: &String) {
    if !failed.contains(hash) {
        failed.push(hash.clone());
        failed.drain(..failed.len().saturating_sub(MAX_FAILED_HASHES));
    }
}

fn injector_status(
    sync_status: &SyncStatus,
    before: Option<&InjectorStatus>,
    now: Timestamp,
) -> Option<InjectorStatus> {
    let (ready, synced) = sync_status.counts?;
    let number = |count| i64::try_from(count).ok();
    let (ready, synced) = (number(ready), number(synced));
    // The time changes only with the counts. Otherwise each reconcile would write the status.
    let same = before.filter(|before| (before.ready, before.synced) == (ready, synced));
    let last_probe_time = same.and_then(|same| same.last_probe_time.clone()).or(Some(Time(now)));
    Some(InjectorStatus { ready, synced, last_probe_time })
}

/// Returns the status of a resource that is not active for its ConfigMap.
pub(super) fn conflicted_status(
    config: &LinkerdConfig,
    before: &LinkerdConfigStatus,
    active: &LinkerdConfig,
    now: Timestamp,
) -> LinkerdConfigStatus {
    let message = conflict_message(config, active);
    inactive_status(config, before, &conflicted(message), now)
}

/// Returns why a resource is not in effect while another one is active for its ConfigMap.
pub(super) fn conflict_message(config: &LinkerdConfig, active: &LinkerdConfig) -> String {
    let LinkerdConfig { name, spec, .. } = active;
    let is = match spec.mode {
        Mode::Suspend => "is suspended and keeps its place",
        Mode::Enforce | Mode::Observe => "is in effect",
    };
    format!("LinkerdConfig {name} {is} for {}: it has a higher priority, is older, or is first by name", config.target)
}

/// Returns the status of a resource with a ConfigMap in the namespace of another control plane.
pub(super) fn foreign_namespace_status(
    config: &LinkerdConfig,
    before: &LinkerdConfigStatus,
    namespace: &str,
    now: Timestamp,
) -> LinkerdConfigStatus {
    let message = foreign_namespace_message(config, namespace);
    inactive_status(config, before, &not_accepted(ConditionReason::TargetNotFound, message), now)
}

/// Returns why a resource for the namespace of another control plane is not accepted.
pub(super) fn foreign_namespace_message(config: &LinkerdConfig, namespace: &str) -> String {
    format!(
        "this operator manages namespace {namespace} (--controller-namespace), but the resource targets ConfigMap {}",
        config.target
    )
}

fn inactive_status(
    config: &LinkerdConfig,
    before: &LinkerdConfigStatus,
    rows: &[ConditionRow],
    now: Timestamp,
) -> LinkerdConfigStatus {
    LinkerdConfigStatus {
        observed_generation: Some(config.generation),
        active: Some(false),
        conditions: to_conditions(rows, before, config.generation, now),
        deprecated_fields: overlay::deprecated(&config.spec),
        revisions: before
            .revisions
            .clone()
            .map(|known| RevisionsStatus { failed: failed_hashes(config, before).to_vec(), ..known }),
        // When the resource becomes active again, a configuration that failed is not tried again.
        canary: before
            .canary
            .clone()
            .filter(|canary| canary.phase == CanaryPhase::Failed && is_current(config, before)),
        // The baseline of Pods without LINKERD_CONFIG_HASH is computed only once, so it must not be lost.
        rollout: before.rollout.as_ref().map(|known| RolloutStatus {
            adopted_at: known.adopted_at.clone(),
            baseline_hash: known.baseline_hash.clone(),
            rolled_back: known.rolled_back.clone().filter(|_| is_current(config, before)),
            retry: retry(config),
            declared_hash: Some(declared_hash(config)),
            ..RolloutStatus::default()
        }),
        ..LinkerdConfigStatus::default()
    }
}

#[cfg(test)]
#[path = "size_tests.rs"]
mod size_tests;
#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
