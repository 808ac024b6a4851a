//! The conditions of a LinkerdConfig: their reasons and messages. Pure.
//!
//! In: a verdict, the state of the injectors, the previous conditions. Out: the new conditions. Always holds: the
//! transition time of a condition changes only with its status; a message is at most `MAX_MESSAGE_BYTES` long. It
//! shows only invalid values of a document, and redacts those that may be secret.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use crate::{
    api::{
        NamespacedName,
        linkerd_config::{CanaryPhase, CanaryStatus, ConditionReason, ConditionType, LinkerdConfigStatus, Mode},
    },
    cluster::kinds::linkerd_config::LinkerdConfig,
    injection_probe::{SyncReason, SyncStatus},
    linkerd_config::{
        documents::{drift::Drift, skew::VersionSkew},
        installers::remedy,
        verdict::{MAX_SHOWN, PlanVerdict, list_problems},
    },
    text::{and_more, truncated},
    values::{Path, Problem},
};

/// Why a document that failed stays while a change of another writer is reported.
pub(in crate::linkerd_config) const KEPT_WITH_DRIFT: &str =
    "not rolled back, because drift.action is Report and the ConfigMap has changes of another writer";

pub(in crate::linkerd_config) const MAX_MESSAGE_BYTES: usize = 2048;

/// A condition without its time.
pub(in crate::linkerd_config) struct ConditionRow {
    type_: ConditionType,
    /// `None` is the status Unknown.
    status: Option<bool>,
    reason: ConditionReason,
    message: String,
}

/// The reason and the message of the condition that shows a verdict.
pub struct VerdictCondition {
    pub reason: ConditionReason,
    pub message: String,
}

// === impl ConditionRow ===

impl ConditionRow {
    pub(in crate::linkerd_config) fn new(
        type_: ConditionType,
        status: Option<bool>,
        reason: ConditionReason,
        message: impl Into<String>,
    ) -> Self {
        Self { type_, status, reason, message: message.into() }
    }
}

/// Returns the condition that shows a verdict once its plan is applied: ConfigMapSynced, or Accepted for a resource
/// that cannot be applied at all.
pub fn verdict_condition(target: &NamespacedName, verdict: &PlanVerdict, drift: Option<&Drift>) -> VerdictCondition {
    let ConditionRow { reason, message, .. } = verdict_row(target, verdict, drift);
    VerdictCondition { reason, message }
}

/// Returns the conditions of the active resource, except those that depend on the injectors. `failure` is the reason
/// and the message if the plan was not applied.
pub(in crate::linkerd_config) fn condition_rows(
    target: &NamespacedName,
    mode: Mode,
    verdict: &PlanVerdict,
    drift: Option<&Drift>,
    failure: Option<(ConditionReason, String)>,
) -> Vec<ConditionRow> {
    let row = match failure {
        Some((reason, message)) => ConditionRow::new(ConditionType::ConfigMapSynced, Some(false), reason, message),
        None => verdict_row(target, verdict, drift),
    };
    let ready = match row.status {
        Some(true) => ConditionRow::new(
            ConditionType::Ready,
            Some(true),
            ConditionReason::Reconciled,
            "the declared configuration is in effect",
        ),
        // The operator does what the resource requests.
        _ if matches!(
            row.reason,
            ConditionReason::Observing | ConditionReason::Suspended | ConditionReason::Canary
        ) =>
        {
            ConditionRow::new(ConditionType::Ready, Some(true), row.reason, row.message.clone())
        }
        _ if *verdict == PlanVerdict::Restored && row.reason == ConditionReason::Restored => {
            ConditionRow::new(ConditionType::Ready, Some(false), ConditionReason::RolledBack, row.message.clone())
        }
        _ => ConditionRow::new(ConditionType::Ready, Some(false), row.reason, row.message.clone()),
    };
    if row.type_ == ConditionType::Accepted {
        return vec![row, ready];
    }
    let message = match mode {
        Mode::Observe => "mode is Observe: the ConfigMap is compared with the resource, and nothing is written",
        Mode::Enforce | Mode::Suspend => "the resource is in effect",
    };
    let accepted = ConditionRow::new(ConditionType::Accepted, Some(true), ConditionReason::Accepted, message);
    let mut rows = vec![accepted, row, ready];
    match verdict {
        PlanVerdict::InvalidBase(error) => {
            rows.push(ConditionRow::new(
                ConditionType::Stalled,
                Some(true),
                ConditionReason::InvalidBase,
                error.as_str(),
            ));
        }
        PlanVerdict::RepeatedDrift => {
            rows.push(ConditionRow::new(
                ConditionType::Stalled,
                Some(true),
                ConditionReason::RepeatedDrift,
                drift_sentence(drift),
            ));
        }
        PlanVerdict::InstallerReverts(manager) => {
            rows.push(ConditionRow::new(
                ConditionType::Stalled,
                Some(true),
                ConditionReason::InstallerReverts,
                installer_sentence(target, manager),
            ));
        }
        _ => {}
    }
    rows
}

/// Returns the only condition of a resource while another one is in effect. Ready is absent: `kubectl wait` waits for
/// it, and tools that follow kstatus consider a resource without it current, which suits a resource that is kept in
/// reserve.
pub(in crate::linkerd_config) fn conflicted(message: String) -> [ConditionRow; 1] {
    [ConditionRow::new(ConditionType::Accepted, Some(false), ConditionReason::Conflicted, message)]
}

/// Shows the state of a canary in the conditions of a held document. A canary that makes progress is what the resource
/// requests, so only the other phases prevent Ready. Beside a reported drift, which is the first problem, only the
/// messages show it: with Stalled, workloads would not be restarted, also to take the canary back.
pub(in crate::linkerd_config) fn add_canary(rows: &mut Vec<ConditionRow>, canary: &CanaryStatus) {
    let message = format!("configuration {} is {:?}: {}", canary.hash, canary.phase, canary.message);
    for row in rows.iter_mut().filter(|row| row.reason == ConditionReason::Canary) {
        row.message.clone_from(&message);
    }
    let mut drifted = rows.iter_mut().filter(|row| row.reason == ConditionReason::Drifted).peekable();
    if drifted.peek().is_some() {
        drifted.for_each(|row| row.message = format!("{}; {message}", row.message));
        return;
    }
    if !canary.phase.is_active()
        && let Some(ready) = rows.iter_mut().find(|row| row.type_ == ConditionType::Ready)
    {
        *ready = ConditionRow::new(ConditionType::Ready, Some(false), ConditionReason::Canary, message.as_str());
    }
    let stalled = match canary.phase {
        CanaryPhase::Failed => ConditionReason::CanaryFailed,
        CanaryPhase::Unsupported => ConditionReason::CanaryUnsupported,
        _ => return,
    };
    rows.push(ConditionRow::new(ConditionType::Stalled, Some(true), stalled, message));
}

/// Keeps the condition Stalled of a contested ConfigMap between two writes of the other writer: the declared document
/// is in place then, but not for long.
pub(in crate::linkerd_config) fn add_contest(
    mut rows: Vec<ConditionRow>,
    before: &LinkerdConfigStatus,
    verdict: &PlanVerdict,
) -> Vec<ConditionRow> {
    let reason = before.reason(ConditionType::Stalled).filter(|reason| reason.is_contested());
    let is_shown = *verdict != PlanVerdict::Synced || rows.iter().any(|row| row.type_ == ConditionType::Stalled);
    if let Some(reason) = reason.filter(|_| !is_shown) {
        rows.push(ConditionRow::new(
            ConditionType::Stalled,
            Some(true),
            reason,
            before.message(ConditionType::Stalled),
        ));
    }
    rows
}

/// Returns the conditions of a resource that is not applied.
pub(in crate::linkerd_config) fn not_accepted(reason: ConditionReason, message: String) -> [ConditionRow; 2] {
    [
        ConditionRow::new(ConditionType::Accepted, Some(false), reason, message.as_str()),
        ConditionRow::new(ConditionType::Ready, Some(false), reason, message),
    ]
}

fn verdict_row(target: &NamespacedName, verdict: &PlanVerdict, drift: Option<&Drift>) -> ConditionRow {
    let (type_, status, reason, message) = match verdict {
        PlanVerdict::Invalid(problems) => {
            (ConditionType::Accepted, false, ConditionReason::Invalid, list_problems(problems))
        }
        PlanVerdict::TargetNotFound => (
            ConditionType::Accepted,
            false,
            ConditionReason::TargetNotFound,
            format!("ConfigMap {target} does not exist: install Linkerd"),
        ),
        PlanVerdict::UnsupportedLayout => {
            let message = format!("ConfigMap {target} has no values: Linkerd is older than stable-2.9, upgrade it");
            (ConditionType::Accepted, false, ConditionReason::UnsupportedLayout, message)
        }
        PlanVerdict::UnsupportedVersion(why) => {
            (ConditionType::Accepted, false, ConditionReason::UnsupportedVersion, why.clone())
        }
        PlanVerdict::Suspended => (
            ConditionType::Accepted,
            false,
            ConditionReason::Suspended,
            "mode is Suspend: the ConfigMap is neither checked nor written".to_owned(),
        ),
        PlanVerdict::Unknown => (
            ConditionType::ConfigMapSynced,
            false,
            ConditionReason::WriteFailed,
            "the reconcile failed before it checked the ConfigMap".to_owned(),
        ),
        PlanVerdict::Synced => (
            ConditionType::ConfigMapSynced,
            true,
            ConditionReason::Synced,
            "the ConfigMap holds the declared configuration".to_owned(),
        ),
        PlanVerdict::Restored => {
            let message = "the declared configuration failed: the ConfigMap has the document from before it";
            (ConditionType::ConfigMapSynced, false, ConditionReason::Restored, message.to_owned())
        }
        PlanVerdict::Canary => {
            let message = "the declared configuration is tried in the canary namespaces first: see status.canary";
            (ConditionType::ConfigMapSynced, false, ConditionReason::Canary, message.to_owned())
        }
        PlanVerdict::ValidationFailed(problems) => {
            let message = format!("the proxy injector cannot use this configuration: {}", list_problems(problems));
            (ConditionType::ConfigMapSynced, false, ConditionReason::ValidationFailed, message)
        }
        PlanVerdict::Immutable => {
            let message = "the ConfigMap is immutable and cannot be updated: delete it and create it again";
            (ConditionType::ConfigMapSynced, false, ConditionReason::Immutable, message.to_owned())
        }
        PlanVerdict::InvalidBase(error) => (
            ConditionType::ConfigMapSynced,
            false,
            ConditionReason::InvalidBase,
            format!("the ConfigMap is not written: {error}"),
        ),
        PlanVerdict::Drifted => (
            ConditionType::ConfigMapSynced,
            false,
            ConditionReason::Drifted,
            format!("{}; not reverted, because drift.action is Report", drift_sentence(drift)),
        ),
        PlanVerdict::RepeatedDrift => {
            let message =
                format!("{}; not reverted for now, because earlier reverts were undone", drift_sentence(drift));
            (ConditionType::ConfigMapSynced, false, ConditionReason::Drifted, message)
        }
        PlanVerdict::InstallerReverts(manager) => (
            ConditionType::ConfigMapSynced,
            false,
            ConditionReason::InstallerReverts,
            installer_sentence(target, manager),
        ),
        PlanVerdict::Observing(paths) => {
            let shown = and_more(paths.iter().take(MAX_SHOWN), 0, ", ");
            let message = format!("mode is Observe: paths that would change ({}): {shown}", paths.len());
            (ConditionType::ConfigMapSynced, false, ConditionReason::Observing, message)
        }
    };
    ConditionRow::new(type_, Some(status), reason, message)
}

/// Adds InjectorSynced after ConfigMapSynced, and derives Ready and Stalled from it. `rolled_back` is the configuration
/// that workloads failed with.
pub(in crate::linkerd_config) fn add_injector_condition(
    mut rows: Vec<ConditionRow>,
    config: &LinkerdConfig,
    before: &LinkerdConfigStatus,
    verdict: &PlanVerdict,
    sync_status: Option<&SyncStatus>,
    rolled_back: Option<&str>,
) -> Vec<ConditionRow> {
    let Some(sync_status) = sync_status else { return rows };
    let is_denied = *verdict == PlanVerdict::Restored && rolled_back.is_none();
    let injectors = if is_denied {
        // The injectors accept the fallback document. The condition shows their answer to the declared one.
        let message = match before.reason(ConditionType::InjectorSynced) {
            Some(ConditionReason::Denied) => before.message(ConditionType::InjectorSynced),
            _ => "the injectors deny the declared configuration",
        };
        ConditionRow::new(ConditionType::InjectorSynced, Some(false), ConditionReason::Denied, message)
    } else {
        let status = match sync_status.reason {
            SyncReason::AllReplicasCurrent => Some(true),
            SyncReason::ProbeDisabled => None,
            _ => Some(false),
        };
        ConditionRow::new(
            ConditionType::InjectorSynced,
            status,
            sync_status.reason.into(),
            sync_status.message.as_str(),
        )
    };
    let is_satisfied = !is_denied && sync_status.is_satisfied(&config.spec.injector_sync);
    let ready = rows.iter_mut().find(|row| row.type_ == ConditionType::Ready && row.status == Some(true));
    if let Some(ready) = ready.filter(|_| !is_satisfied) {
        *ready = ConditionRow::new(ConditionType::Ready, Some(false), injectors.reason, injectors.message.as_str());
    }
    if *verdict == PlanVerdict::Restored {
        let failed = rolled_back.map(|hash| format!("workloads failed with {hash}"));
        let message = format!("{}; change the declared values", failed.as_ref().unwrap_or(&injectors.message));
        if let Some(ready) = rows.iter_mut().find(|row| row.type_ == ConditionType::Ready) {
            ready.message.clone_from(&message);
        }
        rows.push(ConditionRow::new(ConditionType::Stalled, Some(true), ConditionReason::RolledBack, message));
    } else if *verdict == PlanVerdict::Drifted && sync_status.reason == SyncReason::Denied {
        let message = format!("{}; {KEPT_WITH_DRIFT}", injectors.message);
        rows.push(ConditionRow::new(ConditionType::Stalled, Some(true), ConditionReason::Denied, message));
    } else if sync_status.is_denied {
        let message =
            format!("{}; no document from before it can be restored: change the declared values", injectors.message);
        rows.push(ConditionRow::new(ConditionType::Stalled, Some(true), ConditionReason::Denied, message));
    }
    let after = rows.iter().position(|row| row.type_ == ConditionType::ConfigMapSynced).map_or(0, |at| at + 1);
    rows.insert(after, injectors);
    rows
}

/// Returns the condition VersionSkew, which exists only while it is True.
pub(in crate::linkerd_config) fn version_skew_row(skew: &VersionSkew) -> ConditionRow {
    ConditionRow::new(ConditionType::VersionSkew, Some(true), skew.reason, skew.message.as_str())
}

/// Returns the condition that is present while the installer's document has values that the operator considers wrong.
pub(in crate::linkerd_config) fn suspect_base_row(problems: &[Problem]) -> Option<ConditionRow> {
    let message = suspect_base_warning(problems)?;
    Some(ConditionRow::new(ConditionType::SuspectBase, Some(true), ConditionReason::UnexpectedValues, message))
}

/// Returns the message of that condition; `None` without a problem.
pub fn suspect_base_warning(problems: &[Problem]) -> Option<String> {
    (!problems.is_empty()).then(|| {
        format!(
            "the installer's document has values that seem wrong; they are kept, and the injectors decide: {}",
            list_problems(problems)
        )
    })
}

/// Returns the condition that is present while the resource declares values without effect.
pub(in crate::linkerd_config) fn ineffective_values_row(sentences: &[String]) -> Option<ConditionRow> {
    let message = sentences.join("; ");
    (!sentences.is_empty())
        .then(|| ConditionRow::new(ConditionType::IneffectiveValues, Some(true), ConditionReason::NoEffect, message))
}

/// Returns the condition that is present while proxies get other values at these paths than the control plane uses.
pub(in crate::linkerd_config) fn mismatch_row(paths: &[Path]) -> Option<ConditionRow> {
    Some(ConditionRow::new(
        ConditionType::ControlPlaneMismatch,
        Some(true),
        ConditionReason::ValuesDiffer,
        mismatch_warning(paths)?,
    ))
}

/// Returns the message of that condition; `None` without a path.
pub fn mismatch_warning(paths: &[Path]) -> Option<String> {
    let named = and_more(paths, paths.len(), ", ");
    (!paths.is_empty()).then(|| {
        format!(
            "the control plane keeps the installer's values of {named}: set the same values with Helm, or remove them"
        )
    })
}

fn drift_sentence(drift: Option<&Drift>) -> String {
    let Some(drift) = drift else { return "another writer changed the document".to_owned() };
    format!("{} changed {}", drift.manager, drift_paths(drift))
}

fn installer_sentence(target: &NamespacedName, manager: &str) -> String {
    format!(
        "{manager} keeps writing its own document to ConfigMap {target}, so the declared values do not stay in effect: {}; \
         see docs/src/guides/gitops.md",
        remedy(manager)
    )
}

/// Lists the paths of a drift, never their values.
pub(in crate::linkerd_config) fn drift_paths(drift: &Drift) -> String {
    match drift.paths.len() {
        0 => "the document (it is missing or cannot be parsed)".to_owned(),
        total => and_more(drift.paths.iter().take(MAX_SHOWN), total, ", "),
    }
}

pub(in crate::linkerd_config) fn to_conditions(
    rows: &[ConditionRow],
    before: &LinkerdConfigStatus,
    generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    rows.iter().map(|row| to_condition(row, before, generation, now)).collect()
}

pub(in crate::linkerd_config) fn to_condition(
    row: &ConditionRow,
    before: &LinkerdConfigStatus,
    generation: i64,
    now: Timestamp,
) -> Condition {
    let ConditionRow { type_, status, reason, message } = row;
    let status = match status {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let known = before.conditions.iter().find(|known| known.type_ == type_.as_str() && known.status == status);
    Condition {
        type_: type_.as_str().to_owned(),
        status: status.to_owned(),
        reason: reason.as_str().to_owned(),
        message: truncated(message.clone(), MAX_MESSAGE_BYTES),
        observed_generation: Some(generation),
        last_transition_time: known.map_or(Time(now), |known| known.last_transition_time.clone()),
    }
}

#[cfg(test)]
#[path = "../installers/contest_tests.rs"]
mod tests;
