//! LinkerdConfigs, and which of those for one ConfigMap is in effect.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;
use kube::{
    core::{ObjectMeta, PartialObjectMeta, PartialObjectMetaExt},
    runtime::{
        reflector::{Store, store::Writer},
        watcher,
    },
};

use super::config_annotations;
use crate::api::{self, LinkerdConfigSpec, LinkerdConfigStatus, RESTORE_BASE_FINALIZER};
use crate::{
    api::NamespacedName,
    cluster::{Affected, Kind, Problems, Projected, State},
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
    /// Its deletion waits for us.
    pub finalized: bool,
    /// The ConfigMap that it configures.
    pub target: NamespacedName,
    /// Those of its group: what people ask for that is no wish to be kept.
    pub annotations: Arc<BTreeMap<Box<str>, Box<str>>>,
    pub spec: Arc<LinkerdConfigSpec>,
    pub status: Arc<LinkerdConfigStatus>,
}

/// What a Controller keeps of one. All else is read from the [`State`] when it reconciles.
pub type LinkerdConfigName = PartialObjectMeta<api::LinkerdConfig>;

/// The order in which those for one ConfigMap are in effect: by priority, then the oldest, then by name.
type Rank = (Reverse<i32>, Option<Timestamp>, Arc<str>);

/// All LinkerdConfigs of a cluster.
pub struct LinkerdConfigs {
    by_name: BTreeMap<Arc<str>, Arc<LinkerdConfig>>,
    by_target: HashMap<NamespacedName, BTreeSet<Rank>>,
    names: Writer<LinkerdConfigName>,
    listed: bool,
}

// === impl LinkerdConfig ===

impl LinkerdConfig {
    fn rank(&self) -> Rank {
        (Reverse(self.spec.priority), self.created, Arc::clone(&self.name))
    }

    /// Whether both ask for the same.
    fn eq_ignoring_status(&self, other: &Self) -> bool {
        let Self { name, uid, version: _, generation, created, deleting, finalized, .. } = self;
        let Self { target, annotations, spec, status: _, .. } = self;
        (name, uid, generation, created, deleting, finalized)
            == (&other.name, &other.uid, &other.generation, &other.created, &other.deleting, &other.finalized)
            && (target, annotations, spec) == (&other.target, &other.annotations, &other.spec)
    }
}

impl Projected for LinkerdConfig {
    type Wire = api::LinkerdConfig;
    const KIND: Kind = Kind::LinkerdConfig;

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
            target: NamespacedName::new(&*spec.global.linkerd_namespace, &*spec.global.config_map),
            spec: Arc::new(spec),
            status: Arc::new(status.unwrap_or_default()),
        }
    }

    fn apply(self, state: &mut State) -> Affected {
        let configs = &mut state.linkerd_configs;
        let known = configs.by_name.get(&self.name).cloned();
        if known.as_ref().is_some_and(|known| known.eq_ignoring_status(&self)) {
            configs.by_name.insert(Arc::clone(&self.name), Arc::new(self));
            return Affected::default();
        }
        let mut affected = Affected::configured(Arc::clone(&self.name));
        let targets: Vec<NamespacedName> =
            known.iter().map(|known| &known.target).chain([&self.target]).cloned().collect();
        let before: Vec<_> = targets.iter().map(|target| configs.winner(target).cloned()).collect();
        configs.insert(self);
        for (target, before) in targets.iter().zip(before) {
            affected.configured.extend(configs.handed_over(target, before.as_ref()));
        }
        affected
    }

    fn remove(key: &NamespacedName, state: &mut State) -> Affected {
        let configs = &mut state.linkerd_configs;
        let Some(target) = configs.by_name.get(&key.name).map(|config| config.target.clone()) else {
            return Affected::default();
        };
        let before = configs.winner(&target).cloned();
        configs.remove(&key.name);
        // Itself too: what is remembered of it is to go.
        let mut affected = Affected::configured(Arc::clone(&key.name));
        affected.configured.extend(configs.handed_over(&target, before.as_ref()));
        affected
    }

    fn keys(state: &State) -> Vec<NamespacedName> {
        state.linkerd_configs.by_name.keys().map(|name| NamespacedName::new("", Arc::clone(name))).collect()
    }

    fn listed(state: &mut State) {
        state.linkerd_configs.listed();
    }
}

// === impl LinkerdConfigs ===

impl Default for LinkerdConfigs {
    fn default() -> Self {
        Self { by_name: BTreeMap::new(), by_target: HashMap::new(), names: Writer::new(()), listed: false }
    }
}

impl LinkerdConfigs {
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub fn get(&self, name: &str) -> Option<&Arc<LinkerdConfig>> {
        self.by_name.get(name)
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<LinkerdConfig>> {
        self.by_name.values()
    }

    /// The one in effect for a ConfigMap. One that is being deleted is not.
    pub fn winner(&self, target: &NamespacedName) -> Option<&Arc<LinkerdConfig>> {
        let (_, _, name) = self.by_target.get(target)?.first()?;
        self.by_name.get(name)
    }

    pub(in crate::cluster) fn in_effect(&self) -> impl Iterator<Item = &Arc<LinkerdConfig>> {
        self.by_target.keys().filter_map(|target| self.winner(target))
    }

    /// The names of all, for kube-runtime's Controller; ready once they were listed.
    pub fn names(&self) -> Store<LinkerdConfigName> {
        self.names.as_reader()
    }

    /// Who has to be looked at because another is in effect for the ConfigMap than before. All of them: each says which.
    fn handed_over(&self, target: &NamespacedName, before: Option<&Arc<LinkerdConfig>>) -> Vec<Arc<str>> {
        let now = self.winner(target);
        if before.map(|it| &it.name) == now.map(|it| &it.name) {
            return Vec::new();
        }
        let ranked = self.by_target.get(target).into_iter().flatten();
        ranked.map(|(_, _, name)| Arc::clone(name)).collect()
    }

    fn insert(&mut self, config: LinkerdConfig) {
        let is_new = self.by_name.get(&config.name).is_none_or(|known| known.uid != config.uid);
        self.unrank(&config.name);
        if !config.deleting {
            self.by_target.entry(config.target.clone()).or_default().insert(config.rank());
        }
        if is_new {
            let name = name_of(&config);
            // Until the first list is complete the store collects, and swaps all of it in at the end.
            self.names.apply_watcher_event(&if self.listed {
                watcher::Event::Apply(name)
            } else {
                watcher::Event::InitApply(name)
            });
        }
        self.by_name.insert(Arc::clone(&config.name), Arc::new(config));
    }

    fn remove(&mut self, name: &str) {
        self.unrank(name);
        if let Some(old) = self.by_name.remove(name) {
            self.names.apply_watcher_event(&watcher::Event::Delete(name_of(&old)));
        }
    }

    fn unrank(&mut self, name: &str) {
        let Some(known) = self.by_name.get(name) else { return };
        if let Some(ranked) = self.by_target.get_mut(&known.target) {
            ranked.remove(&known.rank());
            if ranked.is_empty() {
                self.by_target.remove(&known.target);
            }
        }
    }

    fn listed(&mut self) {
        if !self.listed {
            self.listed = true;
            self.names.apply_watcher_event(&watcher::Event::InitDone);
        }
    }
}

fn name_of(config: &LinkerdConfig) -> LinkerdConfigName {
    ObjectMeta { name: Some(config.name.to_string()), uid: Some(config.uid.to_string()), ..ObjectMeta::default() }
        .into_response_partial()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(name: &str, priority: i32, created: &str, changes: &serde_json::Value) -> LinkerdConfig {
        let mut metadata = json!({"name": name, "uid": name, "creationTimestamp": created, "generation": 1});
        metadata.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let object = json!({"metadata": metadata, "spec": {"priority": priority}});
        LinkerdConfig::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
    }

    const OLD: &str = "2026-01-01T00:00:00Z";
    const NEW: &str = "2026-01-02T00:00:00Z";

    #[test]
    fn the_highest_priority_then_the_oldest_then_the_first_by_name_is_in_effect() {
        let mut state = State::default();
        let target = NamespacedName::new("linkerd", "linkerd-config");
        let winner = |state: &State| state.linkerd_configs.winner(&target).map(|it| it.name.to_string());
        let mut steps = Vec::new();
        for (name, priority, created) in [("b", 0, NEW), ("c", 0, OLD), ("a", 0, OLD), ("d", 7, NEW)] {
            let affected = config(name, priority, created, &json!({})).apply(&mut state);
            steps.push((winner(&state).unwrap(), affected.configured.len()));
        }
        let steps: Vec<_> = steps.iter().map(|(winner, affected)| (winner.as_str(), *affected)).collect();
        assert_eq!(steps, [("b", 1), ("c", 2), ("a", 3), ("d", 4)], "all are told who it is now");
        let affected = config("b", 1, NEW, &json!({"generation": 2})).apply(&mut state);
        assert_eq!((winner(&state).as_deref(), affected.configured.len()), (Some("d"), 1), "nobody else cares");
        config("d", 7, NEW, &json!({"deletionTimestamp": NEW})).apply(&mut state);
        assert_eq!(winner(&state).as_deref(), Some("b"));
        for name in ["b", "a", "c", "d"] {
            LinkerdConfig::remove(&NamespacedName::new("", name), &mut state);
        }
        assert!(winner(&state).is_none() && state.linkerd_configs.by_target.is_empty());
    }

    #[test]
    fn an_annotation_of_its_group_asks_for_something_and_another_does_not() {
        let mut state = State::default();
        let annotated = |key: &str, value: &str| config("a", 0, OLD, &json!({"annotations": {key: value}}));
        let asked = annotated("config.linkerd.io/retry", "1");
        assert_eq!(asked.annotations.get("config.linkerd.io/retry").map(|value| &**value), Some("1"));
        asked.apply(&mut state);
        let a = Affected::configured("a".into());
        assert_eq!(annotated("config.linkerd.io/retry", "1").apply(&mut state), Affected::default());
        assert_eq!(annotated("config.linkerd.io/retry", "2").apply(&mut state), a);
        assert_eq!(annotated("note", "1").apply(&mut state), a);
        assert_eq!(annotated("config.linkerd.iov/note", "2").apply(&mut state), Affected::default());
    }

    #[test]
    fn what_is_written_into_its_status_has_nobody_look_again() {
        let mut state = State::default();
        config("a", 0, OLD, &json!({"resourceVersion": "1"})).apply(&mut state);
        let mut next = config("a", 0, OLD, &json!({"resourceVersion": "2"}));
        next.status = Arc::new(LinkerdConfigStatus { active: Some(true), ..LinkerdConfigStatus::default() });
        assert_eq!(next.apply(&mut state), Affected::default());
        assert_eq!(state.linkerd_configs.get("a").unwrap().status.active, Some(true));
    }
}
