//! Compares a status with the present attempt at a resource: its declared values and its retry annotation. Pure.
//!
//! In: a resource, its status. Out: whether the status is about that attempt, and the documents that failed in it.
//! Always holds: a failure of another attempt does not count; a change of how values are enforced, such as of the mode
//! or the rollout, begins no attempt, and neither does another document of the installer.

use serde_json::json;

use crate::{
    api::linkerd_config::{LinkerdConfigSpec, LinkerdConfigStatus, annotations::RETRY_ANNOTATION},
    cluster::kinds::linkerd_config::LinkerdConfig,
    text::sha256,
};

/// The maximum length of the retry annotation in the status.
const MAX_RETRY_BYTES: usize = 256;

/// Returns the hashes of the documents that failed in the present attempt. If there is any, the declared values are not
/// retried, even over another document of the installer.
pub fn failed_hashes<'a>(config: &LinkerdConfig, status: &'a LinkerdConfigStatus) -> &'a [String] {
    let revisions = status.revisions.as_ref().filter(|_| is_current(config, status));
    revisions.map(|revisions| revisions.failed.as_slice()).unwrap_or_default()
}

/// Whether the status belongs to the current declared values and the current retry annotation of the resource. One
/// generation declares the same values, also if another version of the operator hashed them, or none did.
pub(in crate::linkerd_config) fn is_current(config: &LinkerdConfig, status: &LinkerdConfigStatus) -> bool {
    let tried = status.rollout.clone().unwrap_or_default();
    let is_declared = || tried.declared_hash == Some(declared_hash(config));
    tried.retry == retry(config) && (status.observed_generation == Some(config.generation) || is_declared())
}

/// Returns the hash of the declared values for the status.
pub(in crate::linkerd_config) fn declared_hash(config: &LinkerdConfig) -> String {
    let LinkerdConfigSpec { global, proxy, values, .. } = &*config.spec;
    sha256(json!([global, proxy, values]).to_string())
}

/// Returns the retry annotation for the status. A text that is too long is replaced with its hash.
pub(in crate::linkerd_config) fn retry(config: &LinkerdConfig) -> Option<String> {
    let retry = config.annotations.get(RETRY_ANNOTATION)?;
    Some(if retry.len() <= MAX_RETRY_BYTES { retry.to_string() } else { sha256(&**retry) })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::cluster::{Problems, Projected};

    fn config(generation: i64, spec: &Value, retry: &str) -> LinkerdConfig {
        let metadata = json!({"name": "mesh", "generation": generation, "annotations": {RETRY_ANNOTATION: retry}});
        let object = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        LinkerdConfig::project(object, &mut Problems::default())
    }

    fn failed(declared_hash: Option<&str>) -> LinkerdConfigStatus {
        let rollout = json!({"retry": "1", "declaredHash": declared_hash});
        let status = json!({"observedGeneration": 1, "revisions": {"failed": ["failed"]}, "rollout": rollout});
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn a_failure_counts_until_the_declared_values_or_the_annotation_change() {
        let first = json!({"proxy": {"logLevel": "debug"}, "values": {"a": 1, "b": {"c": 2}}});
        let changed = |change: Value| {
            let mut spec = first.clone();
            json_patch::merge(&mut spec, &change);
            spec
        };
        let status = failed(Some(&declared_hash(&config(1, &first, "1"))));
        let counts = |spec: &Value, retry| !failed_hashes(&config(2, spec, retry), &status).is_empty();
        for change in [
            json!({}),
            json!({"mode": "Observe", "priority": 3, "deletionPolicy": "RestoreBase"}),
            json!({"rollout": {"policy": "Off", "paused": true, "maxConcurrent": 3, "onFailure": "Rollback"}}),
            json!({"drift": {"action": "Report"}, "injectorSync": {"method": "Delay"}}),
            json!({"canary": {"namespaceSelector": {"matchLabels": {"canary": "yes"}}}}),
        ] {
            assert!(counts(&changed(change.clone()), "1"), "{change}");
        }
        for change in [
            json!({"proxy": {"logLevel": "trace"}}),
            json!({"global": {"version": "edge-26.8.3"}}),
            json!({"values": {"b": {"c": 3}}}),
            json!({"values": null}),
        ] {
            assert!(!counts(&changed(change.clone()), "1"), "{change}");
        }
        assert!(!counts(&first, "2"), "a retry of the same values");
    }

    #[test]
    fn a_failure_without_a_hash_of_its_values_or_with_that_of_another_version_counts_for_one_generation() {
        for hash in [None, Some("of another version")] {
            let counts = |generation| !failed_hashes(&config(generation, &json!({}), "1"), &failed(hash)).is_empty();
            assert!(counts(1) && !counts(2), "{hash:?}");
        }
    }
}
