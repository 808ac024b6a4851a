//! The inputs of a reconcile: the objects in the cache, the last status, the saved base.
//!
//! Always holds: the cached objects of a resource are read under one lock; only objects that are not cached take an API
//! request.

use std::sync::Arc;

use super::{
    LinkerdConfigReconciler,
    documents::base::Base,
    revert::predecessor::Predecessor,
    status::{attempt::failed_hashes, denials::without_past_denials},
    writer::written_revision,
};
use crate::{
    api::{CANARY_CONFIG_MAP, linkerd_config::LinkerdConfigStatus},
    cluster::{
        index::active_config,
        kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig, linkerd_trust::LinkerdTrust},
    },
    rollout::trust::TrustBundle,
    values::Reading,
    write::WriteError,
};

/// The cached objects that one reconcile reads.
pub(super) struct ReconcileInput {
    pub(super) config: Arc<LinkerdConfig>,
    /// The last status. If it says that the document failed, it may not be written yet.
    pub(super) before: Arc<LinkerdConfigStatus>,
    /// The resource that is active for the ConfigMap.
    pub(super) active: Option<Arc<LinkerdConfig>>,
    pub(super) live: Option<Arc<ConfigMap>>,
    /// The ConfigMap `linkerd-identity-trust-roots`.
    pub(super) trust_roots: Option<Arc<ConfigMap>>,
    /// The LinkerdTrust in effect.
    pub(super) trust: Option<Arc<LinkerdTrust>>,
    /// The ConfigMap `linkerd-config-canary`.
    pub(super) canary_map: Option<Arc<ConfigMap>>,
}

/// The input documents of the active resource's plan.
pub(super) struct PlanDocuments {
    /// The document in the ConfigMap.
    pub(super) live: Option<Arc<Reading>>,
    /// The saved base; `None` if no base was saved yet.
    pub(super) base: Option<Arc<Base>>,
    /// The document before the one in effect, if a rollback may restore it.
    pub(super) predecessor: Option<Predecessor>,
}

// === impl ReconcileInput ===

impl ReconcileInput {
    /// Returns the PEM bundle of the mesh's trust anchors.
    pub(super) fn bundle(&self) -> Option<&str> {
        self.trust_roots.as_ref()?.bundle.as_deref()
    }

    /// Returns the bundle that new proxies are injected with.
    pub(super) fn trust_bundle(&self) -> Option<TrustBundle> {
        let written = self.trust_roots.as_ref().and_then(|roots| roots.bundle_written);
        self.bundle().map(|bundle| TrustBundle::new(bundle, self.trust.as_deref(), written))
    }
}

// === impl LinkerdConfigReconciler ===

impl LinkerdConfigReconciler {
    /// Returns the cached objects; `None` if the resource was deleted.
    pub(super) fn input(&self, name: &str) -> Option<ReconcileInput> {
        let state = self.gate.cluster.read();
        let config = Arc::clone(state.linkerd_configs.by_name(name)?);
        let known = self.cache.unwritten_status(&config).or_else(|| self.cache.last_status(&config));
        let before = known.unwrap_or_else(|| Arc::clone(&config.status));
        let live = state.config_maps.get(&config.target).cloned();
        let ready = self.injectors.ready_templates(&state, &config.target.namespace);
        Some(ReconcileInput {
            before: without_past_denials(before, ready.as_ref()),
            active: active_config::of(&state.linkerd_configs, &config.target).cloned(),
            live,
            trust_roots: state.config_maps.trust_roots(&config.target.namespace).cloned(),
            trust: state.linkerd_trusts.in_effect(&config.target.namespace).cloned(),
            canary_map: state.config_maps.find(&config.target.namespace, CANARY_CONFIG_MAP).cloned(),
            config,
        })
    }

    /// Whether the resource is active now. Another resource may have become active since the reconcile began.
    pub(super) fn is_active(&self, config: &LinkerdConfig) -> bool {
        active_config::is_active(&self.gate.cluster.read().linkerd_configs, &config.target, &config.name)
    }

    /// Returns the documents of the plan.
    pub(super) async fn dereference(
        &self,
        input: &ReconcileInput,
        base: Option<Arc<Base>>,
        requires_rollback: bool,
    ) -> Result<PlanDocuments, WriteError> {
        let ReconcileInput { config, before, live, .. } = input;
        let target = &config.target.name;
        // The predecessor is rarely needed, and reading it takes an API request.
        let predecessor = match requires_rollback || !failed_hashes(config, before).is_empty() {
            true => self.writer.predecessor(before, target).await?,
            false => None,
        };
        let text = live.as_ref().and_then(|live| live.values.as_ref());
        let live = text.map(|text| self.cache.read(target, text));
        Ok(PlanDocuments { live, base, predecessor })
    }

    /// Returns the saved base; the inner `Err` is the reason why it cannot be read.
    pub(super) async fn base(
        &self,
        config_map: &Arc<str>,
        live: Option<&ConfigMap>,
    ) -> Result<Result<Option<Arc<Base>>, String>, WriteError> {
        // Another replica may have saved a newer base. An annotation of the ConfigMap holds its revision.
        let written = live.and_then(written_revision);
        let is_current = |base: &Option<Arc<Base>>| written <= base.as_ref().map(|base| base.revision);
        if let Some(known) = self.cache.base(config_map).filter(is_current) {
            return Ok(Ok(known));
        }
        let base = match self.writer.newest_base(config_map).await? {
            Ok(base) => base.map(Arc::new),
            Err(unreadable) => return Ok(Err(unreadable)),
        };
        self.cache.set_base(config_map, base.clone());
        Ok(Ok(base))
    }
}
