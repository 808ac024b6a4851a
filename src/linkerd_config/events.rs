//! The Events of a LinkerdConfig: one for each transition. Pure.

use k8s_openapi::api::core::v1::ObjectReference;

use super::{
    apply::RevertedDocument,
    conditions::drift_paths,
    plan::{ConfigPlan, PlanVerdict},
    resolve_base::BaseChange,
};
use crate::{
    api::{
        CONFIG_GROUP, LINKERD_CONFIG_KIND, LinkerdConfigStatus, NamespacedName, TRUST_ROOTS,
        linkerd_config::{
            CanaryPhase, ConditionReason,
            ConditionType::{self, Accepted, ConfigMapSynced, InjectorSynced, Ready, RolloutComplete, Stalled},
        },
    },
    cluster::kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    events::{Notice, Reason, object_reference},
    text::and_more,
};

/// The inputs of the Events of a reconcile.
pub(super) struct EventInput<'a> {
    pub(super) config: &'a LinkerdConfig,
    pub(super) live: Option<&'a ConfigMap>,
    pub(super) before: &'a LinkerdConfigStatus,
    pub(super) after: &'a LinkerdConfigStatus,
    /// `None` if the reconcile made no plan.
    pub(super) plan: Option<&'a ConfigPlan>,
    pub(super) written: bool,
    /// The reverted document of another writer.
    pub(super) reverted: Option<&'a RevertedDocument>,
}

pub(super) fn events_for(input: &EventInput<'_>) -> Vec<Notice> {
    let EventInput { config, live, before, after, plan, written, reverted } = input;
    let target = &config.target;
    let mut notices = Vec::new();
    let mut add = |reason, note: String| {
        let regarding = linkerd_config_reference(&config.name, &config.uid);
        notices.push(Notice { reason, regarding, related: live.map(config_map_reference), note });
    };
    let became = |type_, wanted| became(before, after, type_, wanted);
    if became(Accepted, ConditionReason::Conflicted) {
        add(Reason::Conflicted, after.message(Accepted).to_owned());
    }
    if before.active == Some(false) && after.active == Some(true) {
        add(Reason::Activated, format!("This LinkerdConfig is now in effect for ConfigMap {target}"));
    }
    // The conditions of the resource and of the document list problems in the same words.
    for (type_, subject) in [(Accepted, "The resource is invalid: "), (ConfigMapSynced, "")] {
        let invalid = [ConditionReason::Invalid, ConditionReason::ValidationFailed, ConditionReason::InvalidBase];
        if invalid.into_iter().any(|wanted| became(type_, wanted)) {
            add(Reason::ValidationFailed, format!("{subject}{}", after.message(type_)));
        }
    }
    if became(Stalled, ConditionReason::InstallerReverts) {
        add(Reason::InstallerReverts, after.message(Stalled).to_owned());
    }
    let hash = after.injection_hash.as_deref().unwrap_or_default();
    for (sync_reason, reason, outcome) in [
        (ConditionReason::AllReplicasCurrent, Reason::InjectorSynced, format!("Injectors use configuration {hash}")),
        (ConditionReason::Timeout, Reason::InjectorSyncTimeout, format!("Injectors do not use configuration {hash}")),
        (ConditionReason::Denied, Reason::InjectorDenied, format!("Injectors deny configuration {hash}")),
    ] {
        if became(InjectorSynced, sync_reason) {
            add(reason, format!("{outcome}: {}", after.message(InjectorSynced)));
        }
    }
    for (reason, note) in canary_event(before, after).into_iter().chain(rollout_events(before, after)) {
        add(reason, note);
    }
    let Some(plan) = plan else { return notices };
    let reuses = |status: &LinkerdConfigStatus| {
        status.trust_anchors.as_ref().is_some_and(|anchors| anchors.source.as_deref() == Some(TRUST_ROOTS))
    };
    if reuses(after) && !reuses(before) {
        let note = format!("The mesh keeps the trust anchors of ConfigMap {TRUST_ROOTS}");
        add(Reason::TrustAnchorsReused, note);
    }
    match &plan.base_change {
        Some(BaseChange::Adopted) | None => {}
        Some(BaseChange::Installed { manager }) => {
            add(
                Reason::BaseUpdated,
                format!("{manager} installed another document in ConfigMap {target}; it is the new base"),
            );
        }
        Some(BaseChange::Edited { manager }) => {
            add(
                Reason::BaseUpdated,
                format!("The changes by {manager} to ConfigMap {target} are now part of the base"),
            );
        }
    }
    let bundles = (&before.trust_roots_sha256, &after.trust_roots_sha256);
    if let (Some(was), Some(is)) = bundles
        && was != is
    {
        add(Reason::TrustRootsChanged, format!("The trust bundle in ConfigMap {TRUST_ROOTS} changed: SHA-256 {is}"));
    }
    if let Some(drift) = &plan.drift {
        let count = |status: &LinkerdConfigStatus| status.drift.as_ref().and_then(|drift| drift.count);
        if drift.reverted || count(before) != count(after) {
            add(
                Reason::DriftDetected,
                format!("{} changed {} in ConfigMap {target}", drift.manager, drift_paths(drift)),
            );
        }
        if drift.reverted && *written {
            let kept = match reverted {
                Some(RevertedDocument::Kept(name)) => format!("; ControllerRevision {name} has the reverted document"),
                Some(RevertedDocument::Failed(why)) => format!("; the reverted document could not be kept: {why}"),
                Some(RevertedDocument::NotKept) | None => String::new(),
            };
            let note = match drift.paths.is_empty() {
                true => {
                    format!(
                        "Reverted a change by {}: the document was missing or could not be parsed{kept}",
                        drift.manager
                    )
                }
                false => format!("Reverted changes by {} to {}{kept}", drift.manager, drift_paths(drift)),
            };
            add(Reason::DriftReverted, note.clone());
            if let Some(live) = live {
                let related = Some(linkerd_config_reference(&config.name, &config.uid));
                notices.push(Notice {
                    reason: Reason::DriftReverted,
                    regarding: config_map_reference(live),
                    related,
                    note,
                });
                return add_updated_event(notices, input);
            }
        }
    } else if *written && plan.verdict == PlanVerdict::Restored {
        add(
            Reason::ConfigRolledBack,
            format!("Restored the document from before the declared one in ConfigMap {target}"),
        );
    } else if *written {
        let hash = plan.write.as_ref().map(|write| write.hash.as_str()).unwrap_or_default();
        add(Reason::ConfigMapUpdated, format!("Wrote the declared configuration to ConfigMap {target}: hash {hash}"));
    }
    add_updated_event(notices, input)
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

/// Adds LinkerdConfigUpdated as the last Event, once for each generation that takes effect.
fn add_updated_event(mut notices: Vec<Notice>, input: &EventInput<'_>) -> Vec<Notice> {
    let EventInput { config, live, before, after, plan, .. } = input;
    let ready = |status: &LinkerdConfigStatus| status.reason(Ready) == Some(ConditionReason::Reconciled);
    let synced = plan.is_some_and(|plan| plan.verdict == PlanVerdict::Synced);
    let is_new = before.observed_generation != after.observed_generation;
    // Neither a revert nor a replica that catches up is an update: the generation was already in effect.
    let good = |status: &LinkerdConfigStatus| status.revisions.as_ref().and_then(|revisions| revisions.last_known_good);
    let was_in_effect =
        after.reason(InjectorSynced) == Some(ConditionReason::AllReplicasCurrent) && good(before) == good(after);
    let became_ready = !ready(before) && !was_in_effect && plan.is_some_and(|plan| plan.drift.is_none());
    if synced && ready(after) && (is_new || became_ready) {
        let note = format!("Generation {} is in effect", config.generation);
        let related = live.map(config_map_reference);
        let regarding = linkerd_config_reference(&config.name, &config.uid);
        notices.push(Notice { reason: Reason::LinkerdConfigUpdated, regarding, related, note });
    }
    notices
}

/// Returns the Event about the restore of the base for the deletion of a resource.
pub(super) fn restore_event(config: &LinkerdConfig, reason: Reason, note: String) -> Notice {
    Notice { reason, regarding: linkerd_config_reference(&config.name, &config.uid), related: None, note }
}

pub(super) fn linkerd_config_reference(name: &str, uid: &str) -> ObjectReference {
    object_reference(&format!("{CONFIG_GROUP}/v1alpha1"), LINKERD_CONFIG_KIND, &NamespacedName::new("", name), uid)
}

fn config_map_reference(live: &ConfigMap) -> ObjectReference {
    object_reference("v1", "ConfigMap", &live.key, &live.uid)
}
