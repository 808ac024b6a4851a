//! The annotation of a fallback document, which names the documents that failed. Pure.
//!
//! In: the resource, its status, the annotation of the ConfigMap. Out: the annotation; the status, completed from the
//! annotation. Always holds: a leader that finds a fallback document, and a status from before the rollback, does not
//! write the failed document again; the annotation decides only while a rollback may restore something, so that a
//! person who can write the ConfigMap cannot take back values that are proven.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    api::linkerd_config::{DeniedDocument, LinkerdConfigStatus, annotations::RESTORED_FROM_ANNOTATION},
    cluster::kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    linkerd_config::status::{failed_hashes, is_current, retry},
};

/// The value of the annotation `config.linkerd.io/restored-from`, as JSON.
#[derive(Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::linkerd_config) struct RestoredFrom {
    /// The UID and the generation of the resource with the declared values, and its retry annotation.
    uid: String,
    generation: i64,
    retry: Option<String>,
    /// The injection hashes of the documents that failed.
    failed: Vec<String>,
    denied: Vec<DeniedDocument>,
    /// The key that workloads failed with; `None` if the injectors denied the document.
    rolled_back: Option<String>,
}

// === impl RestoredFrom ===

impl RestoredFrom {
    /// Returns the annotation for a fallback document that is written for this status.
    pub(in crate::linkerd_config) fn new(config: &LinkerdConfig, status: &LinkerdConfigStatus) -> Self {
        let revisions = status.revisions.as_ref();
        Self {
            uid: config.uid.to_string(),
            generation: config.generation,
            retry: retry(config),
            failed: failed_hashes(config, status).to_vec(),
            denied: revisions.map(|revisions| revisions.denied.clone()).unwrap_or_default(),
            rolled_back: status.rollout.as_ref().and_then(|rollout| rollout.rolled_back.clone()),
        }
    }

    pub(in crate::linkerd_config) fn to_annotation(&self) -> String {
        json!(self).to_string()
    }

    /// Returns the annotation of the ConfigMap; `None` if its document is no fallback for the present declared values.
    fn find(config: &LinkerdConfig, live: &ConfigMap) -> Option<Self> {
        let found: Self = serde_json::from_str(live.annotations.get(RESTORED_FROM_ANNOTATION)?).ok()?;
        let is_of = *found.uid == *config.uid && found.generation == config.generation && found.retry == retry(config);
        is_of.then_some(found)
    }
}

/// Returns the status that the leader would have written that wrote the fallback document.
pub(in crate::linkerd_config) fn with_restored_from(
    status: Arc<LinkerdConfigStatus>,
    config: &LinkerdConfig,
    live: Option<&ConfigMap>,
) -> Arc<LinkerdConfigStatus> {
    let has_fallback = status.revisions.as_ref().is_some_and(|revisions| revisions.previous.is_some());
    let may_be_older = has_fallback && is_current(config, &status) && failed_hashes(config, &status).is_empty();
    let Some(found) = live.filter(|_| may_be_older).and_then(|live| RestoredFrom::find(config, live)) else {
        return status;
    };
    let mut status = Arc::unwrap_or_clone(status);
    let revisions = status.revisions.get_or_insert_default();
    (revisions.failed, revisions.denied) = (found.failed, found.denied);
    status.rollout.get_or_insert_default().rolled_back = found.rolled_back;
    Arc::new(status)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::cluster::{Problems, Projected};

    fn config(generation: i64, retry: &str) -> LinkerdConfig {
        let metadata = json!({"name": "mesh", "uid": "one", "generation": generation,
            "annotations": {"config.linkerd.io/retry": retry}});
        let object = json!({"metadata": metadata, "spec": {}});
        LinkerdConfig::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
    }

    fn live(annotation: &str) -> ConfigMap {
        let metadata = json!({"name": "linkerd-config", "namespace": "linkerd", "uid": "map",
            "annotations": {"config.linkerd.io/restored-from": annotation}});
        ConfigMap::project(serde_json::from_value(json!({ "metadata": metadata })).unwrap(), &mut Problems::default())
    }

    /// A status of generation 7 and retry `a`.
    fn status(revisions: &Value, rollout: &Value) -> Arc<LinkerdConfigStatus> {
        let mut status = json!({"observedGeneration": 7, "revisions": revisions, "rollout": {"retry": "a"}});
        json_patch::merge(&mut status["rollout"], rollout);
        Arc::new(serde_json::from_value(status).unwrap())
    }

    const FALLBACK: &str = r#"{"uid": "one", "generation": 7, "retry": "a", "failed": ["bad"], "denied": [],
        "rolledBack": "bad-key"}"#;

    #[test]
    fn a_leader_that_finds_a_fallback_document_and_an_older_status_knows_what_failed() {
        let before = status(&json!({"previous": 3}), &json!({}));
        let known = with_restored_from(before, &config(7, "a"), Some(&live(FALLBACK)));
        assert_eq!(*known, *status(&json!({"previous": 3, "failed": ["bad"]}), &json!({"rolledBack": "bad-key"})));
    }

    #[test]
    fn what_a_document_says_of_itself_counts_only_for_the_values_that_failed() {
        for (config, annotation) in [
            (config(8, "a"), FALLBACK),
            (config(7, "b"), FALLBACK),
            (config(7, "a"), &*FALLBACK.replace("one", "two")),
            (config(7, "a"), "no JSON"),
        ] {
            let before = status(&json!({"previous": 3}), &json!({}));
            assert_eq!(with_restored_from(Arc::clone(&before), &config, Some(&live(annotation))), before);
        }
    }

    #[test]
    fn a_proven_document_is_not_taken_back_by_an_annotation() {
        let before = status(&json!({"lastRolledOut": 3}), &json!({}));
        assert_eq!(with_restored_from(Arc::clone(&before), &config(7, "a"), Some(&live(FALLBACK))), before);
    }

    #[test]
    fn a_status_that_knows_the_failure_stays() {
        let before = status(&json!({"previous": 3, "failed": ["other"]}), &json!({}));
        assert_eq!(with_restored_from(Arc::clone(&before), &config(7, "a"), Some(&live(FALLBACK))), before);
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let known = status(&json!({"previous": 3, "failed": ["bad"]}), &json!({"rolledBack": "bad-key"}));
        let written = RestoredFrom::new(&config(7, "a"), &known).to_annotation();
        assert_eq!(written.parse::<Value>().unwrap(), FALLBACK.parse::<Value>().unwrap());
        assert_eq!(RestoredFrom::find(&config(7, "a"), &live(&written)).unwrap().failed, ["bad"]);
    }
}
