//! What people are told of a LinkerdConfig in Events: each once, when it happens. Pure.

use k8s_openapi::api::core::v1::ObjectReference;

use super::{
    plan::{News, Plan, Verdict},
    status::{reason, shown},
};
use crate::{
    api::{CONFIG_GROUP, LINKERD_CONFIG_KIND, LinkerdConfigStatus, NamespacedName, TRUST_ROOTS},
    cluster::kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    events::{Notice, Reason, object_reference},
};

/// What has happened.
pub(super) struct Happened<'a> {
    pub(super) config: &'a LinkerdConfig,
    pub(super) live: Option<&'a ConfigMap>,
    pub(super) before: &'a LinkerdConfigStatus,
    pub(super) after: &'a LinkerdConfigStatus,
    /// `None` where nothing was planned.
    pub(super) plan: Option<&'a Plan>,
    pub(super) written: bool,
}

pub(super) fn notices(happened: &Happened<'_>) -> Vec<Notice> {
    let Happened { config, live, before, after, plan, written } = happened;
    let target = &config.target;
    let mut notices = Vec::new();
    let mut tell = |reason, note: String| {
        let regarding = reference(&config.name, &config.uid);
        notices.push(Notice { reason, regarding, related: live.map(config_map), note });
    };
    let became = |type_: &str, wanted: &str| {
        let (was, is) = (reason(before, type_), reason(after, type_));
        is == Some(wanted) && was != Some(wanted)
    };
    if became("Accepted", "Conflicted") {
        tell(Reason::Conflicted, message(after, "Accepted"));
    }
    if before.active == Some(false) && after.active == Some(true) {
        tell(Reason::Activated, format!("In effect for ConfigMap {target} now"));
    }
    for type_ in ["Accepted", "ConfigMapSynced"] {
        if ["Invalid", "ValidationFailed", "InvalidBase"].into_iter().any(|wanted| became(type_, wanted)) {
            tell(Reason::ValidationFailed, message(after, type_));
        }
    }
    let hash = after.injection_hash.as_deref().unwrap_or_default();
    for (reason, told, what) in [
        ("AllReplicasCurrent", Reason::InjectorSynced, format!("Injectors use configuration {hash}")),
        ("Timeout", Reason::InjectorSyncTimeout, format!("Injectors do not use configuration {hash}")),
        ("Denied", Reason::InjectorDenied, format!("Injectors refuse configuration {hash}")),
    ] {
        if became("InjectorSynced", reason) {
            tell(told, format!("{what}: {}", message(after, "InjectorSynced")));
        }
    }
    for (reason, note) in of_rollout(before, after) {
        tell(reason, note);
    }
    let Some(plan) = plan else { return notices };
    let reuses = |status: &LinkerdConfigStatus| {
        status.trust_anchors.as_ref().is_some_and(|anchors| anchors.source.as_deref() == Some(TRUST_ROOTS))
    };
    if reuses(after) && !reuses(before) {
        let note = format!("The trust anchors of the mesh stay as they are: {TRUST_ROOTS}");
        tell(Reason::TrustAnchorsReused, note);
    }
    match &plan.news {
        Some(News::Adopted) | None => {}
        Some(News::Installed { manager }) => {
            tell(
                Reason::BaseUpdated,
                format!("{manager} installed another document in ConfigMap {target}: it is the base now"),
            );
        }
        Some(News::Edited { manager }) => {
            tell(Reason::BaseUpdated, format!("What {manager} changed in ConfigMap {target} is part of the base now"));
        }
    }
    let bundles = (&before.trust_roots_sha256, &after.trust_roots_sha256);
    if let (Some(was), Some(is)) = bundles
        && was != is
    {
        tell(Reason::TrustRootsChanged, format!("{TRUST_ROOTS} holds another bundle: SHA-256 {is}"));
    }
    if let Some(drift) = &plan.drift {
        let count = |status: &LinkerdConfigStatus| status.drift.as_ref().and_then(|drift| drift.count);
        if drift.reverted || count(before) != count(after) {
            tell(Reason::DriftDetected, format!("{} changed {} in ConfigMap {target}", drift.manager, shown(drift)));
        }
        if drift.reverted && *written {
            let note = match drift.paths.is_empty() {
                true => format!("The document is as declared again: what {} wrote could not be read", drift.manager),
                false => format!("What {} changed is as declared again: {}", drift.manager, shown(drift)),
            };
            tell(Reason::DriftReverted, note.clone());
            if let Some(live) = live {
                let related = Some(reference(&config.name, &config.uid));
                notices.push(Notice { reason: Reason::DriftReverted, regarding: config_map(live), related, note });
                return with_update(notices, happened);
            }
        }
    } else if *written && plan.verdict == Verdict::Restored {
        tell(Reason::ConfigRolledBack, format!("ConfigMap {target} holds the last good document again"));
    } else if *written {
        let hash = plan.write.as_ref().map(|write| write.hash.as_str()).unwrap_or_default();
        tell(Reason::ConfigMapUpdated, format!("Wrote ConfigMap {target} as declared: hash {hash}"));
    }
    with_update(notices, happened)
}

/// What the rollout came to.
fn of_rollout(before: &LinkerdConfigStatus, after: &LinkerdConfigStatus) -> Vec<(Reason, String)> {
    const TYPE: &str = "RolloutComplete";
    let Some(rollout) = &after.rollout else { return Vec::new() };
    let known = before.rollout.clone().unwrap_or_default();
    let hash = rollout.hash.as_deref().unwrap_or_default();
    let became = |wanted| reason(after, TYPE) == Some(wanted) && reason(before, TYPE) != Some(wanted);
    let was = |wanted| reason(before, TYPE) == Some(wanted) && reason(after, TYPE) != Some(wanted);
    let so_far = || message(after, TYPE);
    let mut told = Vec::new();
    // To bring back what was good is told as what it is.
    if rollout.started_at.is_some() && rollout.started_at != known.started_at && rollout.rolled_back.is_none() {
        told.push((Reason::RolloutStarted, format!("Restarting workloads for configuration {hash}: {}", so_far())));
    }
    if became("Paused") {
        told.push((Reason::RolloutPaused, so_far()));
    }
    if was("Paused") {
        told.push((Reason::RolloutResumed, so_far()));
    }
    if became("Halted") {
        told.push((Reason::RolloutHalted, so_far()));
    }
    if rollout.completed_at.is_some() && rollout.completed_at != known.completed_at {
        told.push((Reason::RolloutCompleted, format!("Configuration {hash}: {}", so_far())));
    }
    told
}

/// That a generation is in effect is said once, and last.
fn with_update(mut notices: Vec<Notice>, happened: &Happened<'_>) -> Vec<Notice> {
    let Happened { config, live, before, after, plan, .. } = happened;
    let ready = |status: &LinkerdConfigStatus| reason(status, "Ready") == Some("Reconciled");
    let synced = plan.is_some_and(|plan| plan.verdict == Verdict::Synced);
    let is_new = before.observed_generation != after.observed_generation;
    // A revert is no update, nor is a replica that catches up: what is declared was in effect before.
    let good = |status: &LinkerdConfigStatus| status.revisions.as_ref().and_then(|revisions| revisions.last_known_good);
    let was_seen_before = reason(after, "InjectorSynced") == Some("AllReplicasCurrent") && good(before) == good(after);
    let became_ready = !ready(before) && !was_seen_before && plan.is_some_and(|plan| plan.drift.is_none());
    if synced && ready(after) && (is_new || became_ready) {
        let note = format!("Generation {} is in effect", config.generation);
        let related = live.map(config_map);
        let regarding = reference(&config.name, &config.uid);
        notices.push(Notice { reason: Reason::LinkerdConfigUpdated, regarding, related, note });
    }
    notices
}

fn message(status: &LinkerdConfigStatus, type_: &str) -> String {
    let condition = status.conditions.iter().find(|condition| condition.type_ == type_);
    condition.map(|condition| condition.message.clone()).unwrap_or_default()
}

pub(super) fn reference(name: &str, uid: &str) -> ObjectReference {
    object_reference(&format!("{CONFIG_GROUP}/v1alpha1"), LINKERD_CONFIG_KIND, &NamespacedName::new("", name), uid)
}

fn config_map(live: &ConfigMap) -> ObjectReference {
    object_reference("v1", "ConfigMap", &live.key, &live.uid)
}
