//! Namespaces: what holds for the injection and the restarts of all that is in one.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1 as core;

use super::inject::Inject;
use crate::api::MetadataOf;
use crate::api::{ADDITIONAL_ENV_ANNOTATION, ADMISSION_WEBHOOKS_LABEL, EXTENSION_LABEL};
use crate::{
    api::NamespacedName,
    cluster::{Affected, Kind, Problems, Projected, State, index::selector::Labels},
};

/// The annotations that the injector copies from a namespace to its Pods.
const INHERITED: [&str; 2] = ["config.linkerd.io/", "config.alpha.linkerd.io/"];

/// A Namespace, of which only the metadata is watched. Two that compare equal are the same to rollouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    pub name: Arc<str>,
    pub labels: Labels,
    pub deleting: bool,
    pub inject: Inject,
    /// It belongs to an extension of Linkerd.
    pub extension: bool,
    /// The injector is not asked about what is in it.
    pub admission_webhooks_disabled: bool,
    /// The annotation with which what the injector answers cannot be applied: Pods come up without a proxy, or not at all.
    pub breaks_injection: Option<Box<str>>,
}

/// All Namespaces of a cluster.
#[derive(Default)]
pub struct Namespaces(HashMap<Arc<str>, Arc<Namespace>>);

// === impl Namespace ===

impl Projected for Namespace {
    type Wire = MetadataOf<core::Namespace>;
    const KIND: Kind = Kind::Namespace;

    fn project(wire: Self::Wire, _: &mut Problems) -> Self {
        let metadata = wire.metadata;
        let labels: Labels = metadata.labels.iter().flatten().collect();
        Self {
            name: metadata.name.unwrap_or_default().into(),
            deleting: metadata.deletion_timestamp.is_some(),
            inject: Inject::of(metadata.annotations.as_ref()),
            extension: labels.get(EXTENSION_LABEL).is_some(),
            admission_webhooks_disabled: labels.get(ADMISSION_WEBHOOKS_LABEL).is_some_and(|it| &**it == "disabled"),
            breaks_injection: metadata.annotations.as_ref().and_then(breaks_injection),
            labels,
        }
    }

    fn apply(self, state: &mut State) -> Affected {
        let name = Arc::clone(&self.name);
        if state.namespaces.get(&name).is_some_and(|known| **known == self) {
            return Affected::default();
        }
        state.namespaces.0.insert(Arc::clone(&name), Arc::new(self));
        Affected::rolled(state.workloads_in(&name))
    }

    fn remove(key: &NamespacedName, state: &mut State) -> Affected {
        match state.namespaces.0.remove(&key.name) {
            Some(_) => Affected::rolled(state.workloads_in(&key.name)),
            None => Affected::default(),
        }
    }

    fn keys(state: &State) -> Vec<NamespacedName> {
        state.namespaces.0.keys().map(|name| NamespacedName::new("", Arc::clone(name))).collect()
    }
}

/// The injector writes inherited values into JSON as they are, and cannot add to variables that are not there yet.
fn breaks_injection(annotations: &BTreeMap<String, String>) -> Option<Box<str>> {
    let is_inherited = |key: &str| INHERITED.into_iter().any(|prefix| key.starts_with(prefix));
    let breaks = |key: &str, value: &str| key == ADDITIONAL_ENV_ANNOTATION || is_inherited(key) && value.contains('"');
    annotations.iter().find(|(key, value)| breaks(key, value)).map(|(key, _)| key.as_str().into())
}

// === impl Namespaces ===

impl Namespaces {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, name: &str) -> Option<&Arc<Namespace>> {
        self.0.get(name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::{
        index::workload_key::WorkloadKey,
        kinds::{
            apps_workload::{WorkloadKind, tests::workload},
            pod::tests::pod,
        },
    };

    fn namespace(metadata: &Value) -> Namespace {
        let mut object = json!({"metadata": {"name": "ns"}});
        object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        Namespace::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
    }

    #[test]
    fn labels_and_annotations_of_linkerd_are_understood() {
        let labels =
            json!({"linkerd.io/extension": "viz", "config.linkerd.io/admission-webhooks": "disabled", "team": "a"});
        let all = namespace(&json!({"labels": labels, "annotations": {"linkerd.io/inject": "enabled"}}));
        assert!(all.extension && all.admission_webhooks_disabled && !all.deleting);
        assert_eq!((all.inject, all.labels.get("team").map(|team| &**team)), (Inject::Enabled, Some("a")));
        let none = namespace(&json!({"labels": {"config.linkerd.io/admission-webhooks": "enabled"}}));
        assert!(!none.extension && !none.admission_webhooks_disabled);
        assert_eq!(none.inject, Inject::Absent);
        assert!(namespace(&json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})).deleting);
    }

    #[test]
    fn the_annotation_that_breaks_the_injection_is_named() {
        for (annotations, expected) in [
            (json!(null), None),
            (json!({"config.linkerd.io/opaque-ports": "80", "note": "a \"quote\""}), None),
            (json!({"config.linkerd.io/proxy-additional-env": "[]"}), Some("config.linkerd.io/proxy-additional-env")),
            (json!({"config.linkerd.io/access-log": "a\"b"}), Some("config.linkerd.io/access-log")),
            (
                json!({"config.alpha.linkerd.io/proxy-wait-before-exit-seconds": "\""}),
                Some("config.alpha.linkerd.io/proxy-wait-before-exit-seconds"),
            ),
        ] {
            let found = namespace(&json!({ "annotations": annotations })).breaks_injection;
            assert_eq!(found.as_deref(), expected, "{annotations}");
        }
    }

    #[test]
    fn a_change_concerns_every_workload_in_the_namespace_and_a_touch_none() {
        let mut state = State { rolls: true, ..State::default() };
        pod(&json!({}), &json!({})).0.apply(&mut state);
        state.apps_workloads.insert(workload(WorkloadKind::StatefulSet, &json!({}), &json!({}), &json!({})));
        let all = [WorkloadKey::new("ns", "Pod", "web-1"), WorkloadKey::new("ns", "StatefulSet", "web")];
        let all = Affected::rolled(all.into());
        let labelled = json!({"labels": {"config.linkerd.io/reconcile": "auto"}});
        assert_eq!(namespace(&labelled).apply(&mut state), all);
        assert_eq!(namespace(&labelled).apply(&mut state), Affected::default());
        assert_eq!(Namespace::remove(&NamespacedName::new("", "ns"), &mut state), all);
        assert!(state.namespaces.is_empty());
    }
}
