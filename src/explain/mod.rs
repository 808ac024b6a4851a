//! Explains what a LinkerdConfig changes, where each value is from, and what the rollout decides about each workload.
//!
//! In: the objects that the controller works on. Out: a document, and its text. Always holds: the controller's own
//! functions decide; nothing is written; no secret is shown.

mod canary;
pub mod output;
pub mod print;
#[cfg(test)]
pub(crate) mod testing;
pub mod workloads;

use std::sync::Arc;

use k8s_openapi::{api::apps::v1::ControllerRevision, jiff::Timestamp};

use crate::{
    api::NamespacedName,
    cluster::{
        State,
        index::active_config,
        kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig, linkerd_trust::LinkerdTrust},
    },
    linkerd_config::{documents::base::Base, revert::predecessor::Predecessor},
};

/// The cached objects that one LinkerdConfig is explained with.
pub struct CachedObjects {
    winner: Option<Arc<LinkerdConfig>>,
    live: Option<Arc<ConfigMap>>,
    bundle: Option<Arc<str>>,
    trust: Option<Arc<LinkerdTrust>>,
}

/// The objects of one LinkerdConfig.
pub struct ExplainInput {
    pub config: Arc<LinkerdConfig>,
    /// The resource in effect for the ConfigMap; with a manifest, the one after the manifest is applied.
    pub winner: Option<Arc<LinkerdConfig>>,
    /// Whether the resource is from the API server and not from a manifest.
    pub applied: bool,
    pub live: Option<Arc<ConfigMap>>,
    /// `Err` is the reason why the newest base cannot be read.
    pub base: Result<Option<Base>, String>,
    pub bundle: Option<Arc<str>>,
    /// The LinkerdTrust in effect.
    pub trust: Option<Arc<LinkerdTrust>>,
    /// The document that a rollback would restore.
    pub predecessor: Option<Predecessor>,
    /// Set to explain the workloads, too.
    pub workloads: Option<WorkloadsInput>,
    pub now: Timestamp,
}

/// The objects that rollouts work on.
pub struct WorkloadsInput {
    pub state: State,
    pub operator_namespace: Arc<str>,
}

// === impl CachedObjects ===

impl CachedObjects {
    /// Returns the objects for the ConfigMap that a LinkerdConfig configures. Only copies references, because the state
    /// may be locked.
    pub fn of(state: &State, target: &NamespacedName) -> Self {
        Self {
            winner: active_config::of(&state.linkerd_configs, target).cloned(),
            live: state.config_maps.get(target).cloned(),
            bundle: state.config_maps.trust_roots(&target.namespace).and_then(|roots| roots.bundle.clone()),
            trust: state.linkerd_trusts.in_effect(&target.namespace).cloned(),
        }
    }
}

// === impl ExplainInput ===

impl ExplainInput {
    /// Returns the input for a resource; `revisions` are the saved bases of its ConfigMap.
    pub fn new(config: &Arc<LinkerdConfig>, cached: CachedObjects, revisions: &[ControllerRevision]) -> Self {
        let CachedObjects { winner, live, bundle, trust } = cached;
        Self {
            predecessor: Predecessor::find(&config.status, revisions),
            winner,
            applied: true,
            live,
            base: Base::newest(revisions),
            bundle,
            trust,
            config: Arc::clone(config),
            workloads: None,
            now: Timestamp::now(),
        }
    }

    fn is_in_effect(&self) -> bool {
        self.winner.as_ref().is_some_and(|winner| winner.name == self.config.name)
    }
}
