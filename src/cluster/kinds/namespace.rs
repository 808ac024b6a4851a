//! Namespaces: the labels and annotations that decide about injection and restarts of the workloads in them.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1 as core;

use super::inject::Inject;
use crate::{
    api::{ADMISSION_WEBHOOKS_LABEL, EXTENSION_LABEL, MetadataOf, NamespacedName},
    cluster::{
        Problems, Projected,
        index::{selector::Labels, store::Stored},
    },
};

/// The prefixes of the annotations that the injector copies from a namespace to its Pods, or warns about.
const INHERITED: [&str; 4] =
    ["config.linkerd.io/", "config.alpha.linkerd.io/", "config.beta.linkerd.io/", "linkerd.io/"];

/// A Namespace, of which only the metadata is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    pub name: Arc<str>,
    pub labels: Labels,
    pub deleting: bool,
    pub inject: Inject,
    /// Whether it belongs to an extension of Linkerd.
    pub extension: bool,
    /// Whether a label excludes it from admission webhooks, so that the API server does not call the injector.
    pub admission_webhooks_disabled: bool,
    /// The annotations of Linkerd, which the injector reads.
    pub inherited_annotations: BTreeMap<Box<str>, Box<str>>,
}

// === impl Namespace ===

impl Projected for Namespace {
    type Wire = MetadataOf<core::Namespace>;

    fn project(wire: Self::Wire, _: &mut Problems) -> Self {
        let metadata = wire.metadata;
        let labels: Labels = metadata.labels.iter().flatten().collect();
        Self {
            name: metadata.name.unwrap_or_default().into(),
            deleting: metadata.deletion_timestamp.is_some(),
            inject: Inject::of(metadata.annotations.as_ref()),
            extension: labels.get(EXTENSION_LABEL).is_some(),
            admission_webhooks_disabled: labels.get(ADMISSION_WEBHOOKS_LABEL).is_some_and(|it| &**it == "disabled"),
            inherited_annotations: inherited(metadata.annotations),
            labels,
        }
    }
}

impl Stored for Namespace {
    type NamespaceIndex = ();
    type ClusterIndex = ();

    fn key(&self) -> NamespacedName {
        NamespacedName::cluster_scoped(&self.name)
    }
}

fn inherited(annotations: Option<BTreeMap<String, String>>) -> BTreeMap<Box<str>, Box<str>> {
    let is_inherited = |key: &str| INHERITED.into_iter().any(|prefix| key.starts_with(prefix));
    let inherited = annotations.into_iter().flatten().filter(|(key, _)| is_inherited(key));
    inherited.map(|(key, value)| (key.into(), value.into())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn namespace(metadata: &Value) -> Namespace {
        let mut object = json!({"metadata": {"name": "ns"}});
        object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        Namespace::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
    }

    #[test]
    fn labels_and_annotations_of_linkerd_are_read() {
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
}
