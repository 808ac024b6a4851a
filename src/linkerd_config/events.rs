//! The Events of a LinkerdConfig: one for each transition. Pure.

use k8s_openapi::api::core::v1::ObjectReference;

use super::{
    apply::{ReconcileOutcome, RevertedDocument},
    documents::{drift::Drift, resolve_base::BaseChange},
    status::conditions::drift_paths,
    verdict::PlanVerdict,
};
use crate::{
    api::{
        LinkerdConfigStatus, TRUST_ROOTS,
        linkerd_config::{
            CanaryPhase, ConditionReason,
            ConditionType::{self, Accepted, ConfigMapSynced, InjectorSynced, Ready, RolloutComplete, Stalled},
        },
    },
    cluster::kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    events::{Notice, Reason, linkerd_config_reference, object_reference},
    text::and_more,
};

/// The inputs of the Events of a reconcile.
pub(super) struct EventInput<'a> {
    pub(super) config: &'a LinkerdConfig,
    pub(super) live: Option<&'a ConfigMap>,
    pub(super) before: &'a LinkerdConfigStatus,
    pub(super) after: &'a LinkerdConfigStatus,
    /// `None` if the reconcile made no plan.
    pub(super) outcome: Option<&'a ReconcileOutcome>,
}

pub(super) fn events_for(input: &EventInput<'_>) -> Vec<Notice> {
    let EventInput { config, live, before, after, outcome } = input;
    let mut found = condition_events(input);
    found.extend(canary_event(before, after));
    found.extend(rollout_events(before, after));
    found.extend(outcome.iter().flat_map(|outcome| base_events(input, outcome)));
    let reverted = outcome.and_then(reverted_note).map(|note| (Reason::DriftReverted, note));
    found.extend(reverted.clone());
    let of_resource = |(reason, note)| {
        let regarding = linkerd_config_reference(&config.name, &config.uid);
        Notice { reason, regarding, related: live.map(config_map_reference), note }
    };
    let of_config_map = |(reason, note)| {
        let related = Some(linkerd_config_reference(&config.name, &config.uid));
        live.map(|live| Notice { reason, regarding: config_map_reference(live), related, note })
    };
    let updated = updated_event(input).map(of_resource);
    found.into_iter().map(of_resource).chain(reverted.and_then(of_config_map)).chain(updated).collect()
}

/// Returns the Events about conditions that changed, except those of rollouts.
fn condition_events(input: &EventInput<'_>) -> Vec<(Reason, String)> {
    let EventInput { config, before, after, .. } = input;
    let mut found = Vec::new();
    let became = |type_, wanted| became(before, after, type_, wanted);
    if became(Accepted, ConditionReason::Conflicted) {
        found.push((Reason::Conflicted, after.message(Accepted).to_owned()));
    }
    if before.active == Some(false) && after.active == Some(true) {
        let note = format!("This LinkerdConfig is now in effect for ConfigMap {}", config.target);
        found.push((Reason::Activated, note));
    }
    // The conditions of the resource and of the document list problems in the same words.
    for (type_, subject) in [(Accepted, "The resource is invalid: "), (ConfigMapSynced, "")] {
        let invalid = [ConditionReason::Invalid, ConditionReason::ValidationFailed, ConditionReason::InvalidBase];
        if invalid.into_iter().any(|wanted| became(type_, wanted)) {
            found.push((Reason::ValidationFailed, format!("{subject}{}", after.message(type_))));
        }
    }
    if became(Stalled, ConditionReason::InstallerReverts) {
        found.push((Reason::InstallerReverts, after.message(Stalled).to_owned()));
    }
    let hash = after.injection_hash.as_deref().unwrap_or_default();
    for (sync_reason, reason, outcome) in [
        (ConditionReason::AllReplicasCurrent, Reason::InjectorSynced, format!("Injectors use configuration {hash}")),
        (ConditionReason::Timeout, Reason::InjectorSyncTimeout, format!("Injectors do not use configuration {hash}")),
        (ConditionReason::Denied, Reason::InjectorDenied, format!("Injectors deny configuration {hash}")),
    ] {
        if became(InjectorSynced, sync_reason) {
            found.push((reason, format!("{outcome}: {}", after.message(InjectorSynced))));
        }
    }
    found
}

/// Returns the Events about the trust anchors, the base, and the document in the ConfigMap.
fn base_events(input: &EventInput<'_>, outcome: &ReconcileOutcome) -> Vec<(Reason, String)> {
    let EventInput { config, before, after, .. } = input;
    let ReconcileOutcome { plan, written, .. } = outcome;
    let target = &config.target;
    let mut found = Vec::new();
    let reuses = |status: &LinkerdConfigStatus| {
        status.trust_anchors.as_ref().is_some_and(|anchors| anchors.source.as_deref() == Some(TRUST_ROOTS))
    };
    if reuses(after) && !reuses(before) {
        let note = format!("The mesh keeps the trust anchors of ConfigMap {TRUST_ROOTS}");
        found.push((Reason::TrustAnchorsReused, note));
    }
    found.extend(match &plan.base_change {
        Some(BaseChange::Adopted) | None => None,
        Some(BaseChange::Installed { manager }) => {
            let note = format!("{manager} installed another document in ConfigMap {target}; it is the new base");
            Some((Reason::BaseUpdated, note))
        }
        Some(BaseChange::Edited { manager }) => {
            let note = format!("The changes by {manager} to ConfigMap {target} are now part of the base");
            Some((Reason::BaseUpdated, note))
        }
    });
    let bundles = (&before.trust_roots_sha256, &after.trust_roots_sha256);
    if let (Some(was), Some(is)) = bundles
        && was != is
    {
        let note = format!("The trust bundle in ConfigMap {TRUST_ROOTS} changed: SHA-256 {is}");
        found.push((Reason::TrustRootsChanged, note));
    }
    let count = |status: &LinkerdConfigStatus| status.drift.as_ref().and_then(|drift| drift.count);
    match &plan.drift {
        Some(drift) if drift.reverted || count(before) != count(after) => {
            let note = format!("{} changed {} in ConfigMap {target}", drift.manager, drift_paths(drift));
            found.push((Reason::DriftDetected, note));
        }
        None if *written && plan.verdict == PlanVerdict::Restored => {
            let note = format!("Restored the document from before the declared one in ConfigMap {target}");
            found.push((Reason::ConfigRolledBack, note));
        }
        None if *written => {
            let hash = plan.write.as_ref().map(|write| write.hash.as_str()).unwrap_or_default();
            let note = format!("Wrote the declared configuration to ConfigMap {target}: hash {hash}");
            found.push((Reason::ConfigMapUpdated, note));
        }
        Some(_) | None => {}
    }
    found
}

/// Returns the note about drift that was reverted.
fn reverted_note(outcome: &ReconcileOutcome) -> Option<String> {
    let drift = outcome.plan.drift.as_ref().filter(|drift| drift.reverted)?;
    let Drift { manager, paths, .. } = drift;
    let kept = match &outcome.reverted {
        Some(RevertedDocument::Kept(name)) => format!("; ControllerRevision {name} has the reverted document"),
        Some(RevertedDocument::Failed(why)) => format!("; the reverted document could not be kept: {why}"),
        Some(RevertedDocument::NotKept) | None => String::new(),
    };
    Some(match paths.is_empty() {
        true => format!("Reverted a change by {manager}: the document was missing or could not be parsed{kept}"),
        false => format!("Reverted changes by {manager} to {}{kept}", drift_paths(drift)),
    })
}

/// Whether a condition has this reason, and had another one.
fn became(
    before: &LinkerdConfigStatus,
    after: &LinkerdConfigStatus,
    type_: ConditionType,
    wanted: ConditionReason,
) -> bool {
    after.reason(type_) == Some(wanted) && before.reason(type_) != Some(wanted)
}

/// Returns the Event of a canary whose phase changed.
fn canary_event(before: &LinkerdConfigStatus, after: &LinkerdConfigStatus) -> Option<(Reason, String)> {
    let canary = after.canary.as_ref()?;
    let known = before.canary.as_ref().filter(|known| known.hash == canary.hash).map(|known| known.phase);
    if known == Some(canary.phase) {
        return None;
    }
    let (hash, message) = (&canary.hash, &canary.message);
    match canary.phase {
        CanaryPhase::Progressing if known.is_none_or(|known| !known.is_active()) => {
            let namespaces = and_more(&canary.namespaces, canary.namespaces.len(), ", ");
            Some((Reason::CanaryStarted, format!("Namespaces {namespaces} get configuration {hash} before all others")))
        }
        CanaryPhase::Promoted => {
            Some((Reason::CanaryPromoted, format!("All namespaces get configuration {hash}: {message}")))
        }
        CanaryPhase::Failed => Some((Reason::CanaryFailed, format!("Configuration {hash} was taken back: {message}"))),
        _ => None,
    }
}

/// Returns the Events of the rollout. While canary namespaces are restarted, the Events of the canary describe it.
fn rollout_events(before: &LinkerdConfigStatus, after: &LinkerdConfigStatus) -> Vec<(Reason, String)> {
    let Some(rollout) = &after.rollout else { return Vec::new() };
    let known = before.rollout.clone().unwrap_or_default();
    let hash = rollout.hash.as_deref().unwrap_or_default();
    let so_far = || after.message(RolloutComplete).to_owned();
    let mut notices = Vec::new();
    let in_canary = |status: &LinkerdConfigStatus| status.canary.as_ref().is_some_and(|it| it.phase.is_active());
    let of_canary = in_canary(before) || in_canary(after);
    // The rollout of a fallback document has a separate Event.
    if !of_canary
        && rollout.started_at.is_some()
        && rollout.started_at != known.started_at
        && rollout.rolled_back.is_none()
    {
        notices.push((Reason::RolloutStarted, format!("Restarting workloads for configuration {hash}: {}", so_far())));
    }
    if became(before, after, RolloutComplete, ConditionReason::Paused) {
        notices.push((Reason::RolloutPaused, so_far()));
    }
    if became(after, before, RolloutComplete, ConditionReason::Paused) {
        notices.push((Reason::RolloutResumed, so_far()));
    }
    if became(before, after, RolloutComplete, ConditionReason::Halted) {
        notices.push((Reason::RolloutHalted, so_far()));
    }
    if !of_canary && rollout.completed_at.is_some() && rollout.completed_at != known.completed_at {
        notices.push((Reason::RolloutCompleted, format!("Rolled out configuration {hash}: {}", so_far())));
    }
    notices
}

/// Returns LinkerdConfigUpdated, once for each generation that takes effect.
fn updated_event(input: &EventInput<'_>) -> Option<(Reason, String)> {
    let EventInput { config, before, after, outcome, .. } = input;
    let plan = outcome.map(|outcome| &outcome.plan).filter(|plan| plan.verdict == PlanVerdict::Synced)?;
    let ready = |status: &LinkerdConfigStatus| status.reason(Ready) == Some(ConditionReason::Reconciled);
    let is_new = before.observed_generation != after.observed_generation;
    // Neither a revert nor a replica that catches up is an update: the generation was already in effect.
    let good = |status: &LinkerdConfigStatus| status.revisions.as_ref().and_then(|revisions| revisions.last_known_good);
    let was_in_effect =
        after.reason(InjectorSynced) == Some(ConditionReason::AllReplicasCurrent) && good(before) == good(after);
    let became_ready = !ready(before) && !was_in_effect && plan.drift.is_none();
    let is_update = ready(after) && (is_new || became_ready);
    is_update.then(|| (Reason::LinkerdConfigUpdated, format!("Generation {} is in effect", config.generation)))
}

/// Returns the Event about the restore of the base for the deletion of a resource.
pub(super) fn restore_event(config: &LinkerdConfig, reason: Reason, note: String) -> Notice {
    Notice { reason, regarding: linkerd_config_reference(&config.name, &config.uid), related: None, note }
}

fn config_map_reference(live: &ConfigMap) -> ObjectReference {
    object_reference("v1", "ConfigMap", &live.key, &live.uid)
}
