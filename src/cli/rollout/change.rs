//! The change that each command makes to a LinkerdConfig. Pure.

use anyhow::{Result, bail};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{
    api::linkerd_config::{
        CanaryPhase, ConditionType, LinkerdConfigStatus, Mode,
        annotations::{PROMOTE_ANNOTATION, RETRY_ANNOTATION},
    },
    cluster::kinds::linkerd_config::LinkerdConfig,
    values::InjectionHashes,
};

/// The writes of a command.
#[derive(Debug, PartialEq)]
pub(super) enum Steps {
    /// Nothing, for this reason.
    None(&'static str),
    One(ConfigChange),
    /// The operator must see the first change before the second one.
    RemoveFirst(ConfigChange, ConfigChange),
}

/// A merge patch.
#[derive(Debug, PartialEq)]
pub(super) struct ConfigChange {
    pub patch: Value,
    /// A description of the change, such as `spec.rollout.paused: false -> true`.
    pub what: String,
    /// Whether it changes spec, which a GitOps tool may own, and not an annotation.
    pub is_desired_state: bool,
}

pub(super) fn pause(config: &LinkerdConfig, _: Timestamp) -> Result<Steps> {
    if config.spec.rollout.paused {
        return Ok(Steps::None("spec.rollout.paused is true already"));
    }
    Ok(Steps::One(ConfigChange::spec(
        &json!({"rollout": {"paused": true}}),
        "spec.rollout.paused: false -> true".to_owned(),
    )))
}

pub(super) fn resume(config: &LinkerdConfig, _: Timestamp) -> Result<Steps> {
    let mut spec = Map::new();
    let mut what = Vec::new();
    if config.spec.rollout.paused {
        spec.insert("rollout".to_owned(), json!({"paused": false}));
        what.push("spec.rollout.paused: true -> false");
    }
    if config.spec.mode == Mode::Suspend {
        spec.insert("mode".to_owned(), json!(Mode::Enforce));
        what.push("spec.mode: Suspend -> Enforce");
    }
    if what.is_empty() {
        return Ok(Steps::None("it is neither paused nor suspended"));
    }
    Ok(Steps::One(ConfigChange::spec(&Value::Object(spec), what.join(", "))))
}

pub(super) fn abort(config: &LinkerdConfig, _: Timestamp) -> Result<Steps> {
    match config.spec.mode {
        Mode::Suspend => Ok(Steps::None("spec.mode is Suspend already")),
        mode => Ok(Steps::One(ConfigChange::spec(
            &json!({"mode": Mode::Suspend}),
            format!("spec.mode: {mode:?} -> Suspend"),
        ))),
    }
}

pub(super) fn retry(config: &LinkerdConfig, now: Timestamp) -> Result<Steps> {
    let status = &config.status;
    let is_current = status.observed_generation == Some(config.generation);
    if is_current && !has_failed(status) {
        return Ok(Steps::None("nothing failed; to restart a workload: linkerd-operator rollout restart"));
    }
    Ok(Steps::One(ConfigChange::annotation(RETRY_ANNOTATION, &json!(now.to_string()))))
}

pub(super) fn promote(config: &LinkerdConfig, _: Timestamp) -> Result<Steps> {
    let Some(canary) = config.status.canary.as_ref().filter(|canary| !canary.hash.is_empty()) else {
        bail!("LinkerdConfig {} has no canary: status.canary is absent", config.name);
    };
    if !InjectionHashes::is_hash(&canary.hash) {
        bail!("status.canary.hash of LinkerdConfig {} is not a hash, so the operator did not write it", config.name);
    }
    match canary.phase {
        CanaryPhase::Promoted => return Ok(Steps::None("its canary is promoted already")),
        CanaryPhase::Failed | CanaryPhase::Unsupported => bail!(
            "the canary of LinkerdConfig {} is {:?} and cannot be promoted: {}",
            config.name,
            canary.phase,
            canary.message
        ),
        CanaryPhase::Waiting | CanaryPhase::Progressing | CanaryPhase::Soaking | CanaryPhase::AwaitingPromotion => {}
    }
    let promotion = ConfigChange::annotation(PROMOTE_ANNOTATION, &json!(canary.hash));
    let before = config.annotations.get(PROMOTE_ANNOTATION).map(|hash| &**hash);
    match before {
        Some(hash) if *hash == *canary.hash && canary.promote_ignored == Some(true) => {
            Ok(Steps::RemoveFirst(ConfigChange::annotation(PROMOTE_ANNOTATION, &Value::Null), promotion))
        }
        Some(hash) if *hash == *canary.hash => Ok(Steps::None("the annotation that promotes it is set already")),
        _ => Ok(Steps::One(promotion)),
    }
}

// === impl ConfigChange ===

impl ConfigChange {
    fn spec(spec: &Value, what: String) -> Self {
        Self { patch: json!({ "spec": spec }), what, is_desired_state: true }
    }

    /// Sets an annotation, or removes it with null.
    fn annotation(key: &str, value: &Value) -> Self {
        let what = match value.as_str() {
            Some(value) => format!("annotation {key}: {value}"),
            None => format!("annotation {key} removed"),
        };
        Self { patch: json!({"metadata": {"annotations": {key: value}}}), what, is_desired_state: false }
    }
}

/// Whether a status names anything that a retry tries again.
fn has_failed(status: &LinkerdConfigStatus) -> bool {
    let revisions = status.revisions.as_ref();
    let rollout = status.rollout.clone().unwrap_or_default();
    status.condition(ConditionType::Stalled).is_some()
        || revisions.is_some_and(|revisions| !revisions.failed.is_empty())
        || rollout.rolled_back.is_some()
        || !rollout.failures.is_empty()
        || rollout.workloads.is_some_and(|workloads| workloads.failed > 0)
        || status.canary.as_ref().is_some_and(|canary| canary.phase == CanaryPhase::Failed)
        || !status.holds(ConditionType::RolloutComplete)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cluster::{Problems, Projected};

    fn config(spec: &Value, canary: &Value, annotations: &Value) -> LinkerdConfig {
        let metadata = json!({"name": "mesh", "annotations": annotations});
        let object = json!({"metadata": metadata, "spec": spec, "status": {"canary": canary}});
        LinkerdConfig::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
    }

    fn now() -> Timestamp {
        "2026-11-27T12:00:00Z".parse().unwrap()
    }

    fn one(steps: Steps) -> (Value, String) {
        match steps {
            Steps::One(change) => (change.patch, change.what),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pause_and_resume_change_only_the_switch() {
        let running = config(&json!({}), &json!(null), &json!({}));
        let paused = config(&json!({"rollout": {"paused": true}}), &json!(null), &json!({}));
        let (patch, what) = one(pause(&running, now()).unwrap());
        assert_eq!(patch, json!({"spec": {"rollout": {"paused": true}}}));
        assert_eq!(what, "spec.rollout.paused: false -> true");
        assert_eq!(one(resume(&paused, now()).unwrap()).0, json!({"spec": {"rollout": {"paused": false}}}));
        assert!(matches!(pause(&paused, now()).unwrap(), Steps::None(_)));
        assert!(matches!(resume(&running, now()).unwrap(), Steps::None(_)));
    }

    #[test]
    fn resume_ends_what_abort_began() {
        let running = config(&json!({}), &json!(null), &json!({}));
        assert_eq!(one(abort(&running, now()).unwrap()).0, json!({"spec": {"mode": "Suspend"}}));
        let aborted = config(&json!({"mode": "Suspend"}), &json!(null), &json!({}));
        assert_eq!(one(resume(&aborted, now()).unwrap()).0, json!({"spec": {"mode": "Enforce"}}));
    }

    #[test]
    fn retry_changes_nothing_where_nothing_failed() {
        let complete = json!({"type": "RolloutComplete", "status": "True", "reason": "UpToDate", "message": "",
            "lastTransitionTime": "2026-11-27T12:00:00Z"});
        let mut healthy = config(&json!({}), &json!(null), &json!({}));
        healthy.status = Arc::new(
            serde_json::from_value(json!({"observedGeneration": healthy.generation, "conditions": [complete]}))
                .unwrap(),
        );
        assert!(matches!(retry(&healthy, now()).unwrap(), Steps::None(_)));
        let mut failed = LinkerdConfigStatus::clone(&healthy.status);
        failed.rollout = Some(serde_json::from_value(json!({"workloads": {"failed": 1}})).unwrap());
        healthy.status = Arc::new(failed);
        assert!(matches!(retry(&healthy, now()).unwrap(), Steps::One(_)));
    }

    #[test]
    fn retry_sets_the_annotation_to_the_time() {
        let (patch, _) = one(retry(&config(&json!({}), &json!(null), &json!({})), now()).unwrap());
        assert_eq!(patch, json!({"metadata": {"annotations": {"config.linkerd.io/retry": "2026-11-27T12:00:00Z"}}}));
    }

    #[test]
    fn promote_sets_the_annotation_to_the_hash_of_the_canary() {
        let canary = json!({"phase": "Soaking", "hash": "abc"});
        let annotation = |value: Value| json!({"metadata": {"annotations": {"config.linkerd.io/promote": value}}});
        let begun = config(&json!({}), &canary, &json!({}));
        assert_eq!(one(promote(&begun, now()).unwrap()).0, annotation(json!("abc")));
        let earlier = config(&json!({}), &canary, &json!({"config.linkerd.io/promote": "xyz"}));
        assert_eq!(one(promote(&earlier, now()).unwrap()).0, annotation(json!("abc")));
        let promoted = config(&json!({}), &canary, &json!({"config.linkerd.io/promote": "abc"}));
        assert!(matches!(promote(&promoted, now()).unwrap(), Steps::None(_)));
    }

    #[test]
    fn an_annotation_from_before_the_canary_is_removed_before_it_is_set_again() {
        let canary = json!({"phase": "Soaking", "hash": "abc", "promoteIgnored": true});
        let ignored = config(&json!({}), &canary, &json!({"config.linkerd.io/promote": "abc"}));
        let Steps::RemoveFirst(removal, promotion) = promote(&ignored, now()).unwrap() else { panic!("no removal") };
        assert_eq!(removal.patch, json!({"metadata": {"annotations": {"config.linkerd.io/promote": null}}}));
        assert_eq!(promotion.patch, json!({"metadata": {"annotations": {"config.linkerd.io/promote": "abc"}}}));
    }

    #[test]
    fn a_canary_that_failed_or_does_not_exist_is_not_promoted() {
        for canary in [
            json!(null),
            json!({"phase": "Failed", "hash": "abc", "message": "2 workloads failed"}),
            json!({"phase": "Soaking", "hash": "abc\nLeader      forged"}),
        ] {
            assert!(promote(&config(&json!({}), &canary, &json!({})), now()).is_err());
        }
    }
}
