//! LinkerdConfigs, found by the ConfigMap that they configure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::jiff::Timestamp;

use crate::{
    api::{
        self, CONFIG_GROUP, INJECTORS_CONFIG_MAP, LinkerdConfigSpec, LinkerdConfigStatus, NamespacedName,
        RESTORE_BASE_FINALIZER, linkerd_config::Mode,
    },
    cluster::{
        Problems, Projected,
        index::{
            names::NamesBy,
            store::{Store, Stored},
        },
    },
};

/// A LinkerdConfig.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkerdConfig {
    pub name: Arc<str>,
    pub uid: Arc<str>,
    pub version: Arc<str>,
    pub generation: i64,
    pub created: Option<Timestamp>,
    pub deleting: bool,
    /// Whether our finalizer is set, so that the deletion waits for the controller.
    pub finalized: bool,
    /// The ConfigMap that it configures.
    pub target: NamespacedName,
    /// The annotations of its group: one-time requests, not desired state.
    pub annotations: Arc<BTreeMap<Box<str>, Box<str>>>,
    pub spec: Arc<LinkerdConfigSpec>,
    pub status: Arc<LinkerdConfigStatus>,
}

// === impl LinkerdConfig ===

impl LinkerdConfig {
    /// Whether the operator writes what the resource declares while it is active. Only such a resource supersedes
    /// another one, restores the base and has a canary.
    pub fn enforces(&self) -> bool {
        self.spec.mode == Mode::Enforce && !self.deleting
    }
}

impl Projected for LinkerdConfig {
    type Wire = api::LinkerdConfig;
    const IS_OPTIONAL: bool = true;

    fn project(wire: api::LinkerdConfig, _: &mut Problems) -> Self {
        let api::LinkerdConfig { metadata, spec, status } = wire;
        Self {
            name: metadata.name.as_deref().unwrap_or_default().into(),
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            version: metadata.resource_version.as_deref().unwrap_or_default().into(),
            generation: metadata.generation.unwrap_or_default(),
            created: metadata.creation_timestamp.map(|time| time.0),
            deleting: metadata.deletion_timestamp.is_some(),
            finalized: metadata.finalizers.iter().flatten().any(|it| it == RESTORE_BASE_FINALIZER),
            annotations: Arc::new(config_annotations(metadata.annotations)),
            target: NamespacedName::new(
                &*spec.global.linkerd_namespace,
                spec.global.config_map.as_deref().unwrap_or(INJECTORS_CONFIG_MAP),
            ),
            spec: Arc::new(spec),
            status: Arc::new(status.unwrap_or_default()),
        }
    }
}

impl Stored for LinkerdConfig {
    /// The names by the ConfigMap that they configure.
    type NamespaceIndex = NamesBy<NamespacedName>;
    type ClusterIndex = ();

    fn key(&self) -> NamespacedName {
        NamespacedName::cluster_scoped(&self.name)
    }

    /// Whether more than the status and the resourceVersion differs.
    fn is_change(&self, known: &Self) -> bool {
        let (version, status) = (Arc::clone(&known.version), Arc::clone(&known.status));
        Self { version, status, ..self.clone() } != *known
    }

    fn index(self: &Arc<Self>, by_target: &mut NamesBy<NamespacedName>, (): &mut ()) {
        by_target.insert(self.target.clone(), &self.name);
    }

    fn unindex(self: &Arc<Self>, by_target: &mut NamesBy<NamespacedName>, (): &mut ()) {
        by_target.remove(&self.target, &self.name);
    }
}

impl Store<LinkerdConfig> {
    pub fn by_name(&self, name: &str) -> Option<&Arc<LinkerdConfig>> {
        self.find("", name)
    }

    /// The LinkerdConfigs for one ConfigMap, by name.
    pub fn targeting<'a>(&'a self, target: &NamespacedName) -> impl Iterator<Item = &'a Arc<LinkerdConfig>> + use<'a> {
        self.select("", |index| index.get(target))
    }

    /// The ConfigMaps that LinkerdConfigs configure.
    pub fn targets(&self) -> impl Iterator<Item = &NamespacedName> {
        self.namespace_index("").into_iter().flat_map(|(_, index)| index.values())
    }
}

/// Returns the annotations of the LinkerdConfig group.
pub(in crate::cluster) fn config_annotations(
    annotations: Option<BTreeMap<String, String>>,
) -> BTreeMap<Box<str>, Box<str>> {
    let is_ours = |key: &str| key.strip_prefix(CONFIG_GROUP).is_some_and(|rest| rest.starts_with('/'));
    let ours = annotations.into_iter().flatten().filter(|(key, _)| is_ours(key));
    ours.map(|(key, value)| (key.into(), value.into())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::{State, Watched};

    fn config(changes: &Value) -> LinkerdConfig {
        let mut metadata = json!({"name": "a", "uid": "a", "generation": 1});
        metadata.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        LinkerdConfig::project(
            serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap(),
            &mut Problems::default(),
        )
    }

    #[test]
    fn an_annotation_of_its_group_is_a_change_and_any_other_is_not() {
        let mut state = State::default();
        let annotated = |key: &str, value: &str| config(&json!({"annotations": {key: value}}));
        let config = annotated("config.linkerd.io/retry", "1");
        assert_eq!(config.annotations.get("config.linkerd.io/retry").map(|value| &**value), Some("1"));
        let mut is_change = |key, value| annotated(key, value).apply(&mut state).is_some();
        assert!(is_change("config.linkerd.io/retry", "1"));
        assert!(!is_change("config.linkerd.io/retry", "1"));
        assert!(is_change("config.linkerd.io/retry", "2"));
        assert!(is_change("note", "1"), "the annotation of its group was removed");
        assert!(!is_change("config.linkerd.iov/note", "2"));
    }

    #[test]
    fn a_change_of_the_status_alone_is_stored_and_is_no_change() {
        let mut state = State::default();
        config(&json!({"resourceVersion": "1"})).apply(&mut state);
        let mut next = config(&json!({"resourceVersion": "2"}));
        next.status = Arc::new(LinkerdConfigStatus { active: Some(true), ..LinkerdConfigStatus::default() });
        assert!(next.apply(&mut state).is_none());
        assert_eq!(state.linkerd_configs.by_name("a").unwrap().status.active, Some(true));
    }

    #[test]
    fn a_resource_is_found_by_its_config_map_until_it_is_deleted() {
        let mut state = State::default();
        config(&json!({})).apply(&mut state);
        let target = NamespacedName::new("linkerd", "linkerd-config");
        assert_eq!(state.linkerd_configs.targeting(&target).count(), 1);
        assert_eq!(state.linkerd_configs.targets().collect::<Vec<_>>(), [&target]);
        assert!(LinkerdConfig::remove(&NamespacedName::new("", "a"), &mut state).is_some());
        assert_eq!((state.linkerd_configs.targeting(&target).count(), state.linkerd_configs.targets().count()), (0, 0));
    }
}
