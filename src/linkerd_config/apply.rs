//! Applies a plan: saves the base, then writes the ConfigMap.
//!
//! In: the plan of the active resource. Out: the completed writes, also after a failure. Always holds: the base is
//! saved before the first write of the ConfigMap, so that no document is lost.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use tracing::{info, warn};

use super::{
    LinkerdConfigReconciler,
    canary::CanaryDecision,
    dereference::ReconcileInput,
    documents::{drift::with_drift_window, resolve_base::BaseChange},
    plan::ConfigPlan,
    status::consistency::contradiction,
    verdict::PlanVerdict,
    writer::written_revision,
};
use crate::{
    api::{
        FIELD_MANAGER,
        linkerd_config::{ConditionReason, ConditionType, DeletionPolicy, LinkerdConfigStatus, Mode, OnTimeout},
    },
    cluster::kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    write::WriteError,
};

/// The outcome of planning and applying; partial after a failure.
#[derive(Default)]
pub(super) struct ReconcileOutcome {
    pub(super) plan: ConfigPlan,
    pub(super) written: bool,
    /// The reverted document of another writer; `None` if nothing was reverted.
    pub(super) reverted: Option<RevertedDocument>,
    pub(super) base_revision: Option<i64>,
    /// The status, if it had to be written before the ConfigMap.
    pub(super) written_status: Option<Arc<LinkerdConfigStatus>>,
    /// The injection hash of Pods without LINKERD_CONFIG_HASH, if the status does not have it yet.
    pub(super) baseline: Option<String>,
    /// Whether workloads failed with the active document and the document before it is restored.
    pub(super) rolls_back: bool,
    /// Why a required rollback restores nothing.
    pub(super) rollback_refused: Option<String>,
    /// The decision about the document that the plan holds back or promotes.
    pub(super) canary: Option<CanaryDecision>,
}

/// Whether the document that a revert overwrote was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RevertedDocument {
    /// The name of its ControllerRevision.
    Kept(String),
    /// The ConfigMap had no text, or the text must not be kept.
    NotKept,
    /// The reason why the API server did not keep it.
    Failed(String),
}

// === impl LinkerdConfigReconciler ===

impl LinkerdConfigReconciler {
    /// Removes the owner references that would delete the ConfigMap together with the resource. Adds our finalizer if
    /// the deletion of the resource must restore the base, and removes it otherwise.
    pub(super) async fn prepare(&self, config: &LinkerdConfig, live: Option<&ConfigMap>) -> Result<(), WriteError> {
        let enforce = config.spec.mode == Mode::Enforce;
        if let Some(live) = live.filter(|live| live.owned && enforce) {
            info!(config_map = %live.key, "removing the owner reference that would delete the ConfigMap together with the LinkerdConfig");
            self.writer.remove_owner_references(live).await?;
        }
        let finalized = enforce && config.spec.deletion_policy == DeletionPolicy::RestoreBase;
        if finalized != config.finalized {
            self.writer.set_finalizer(&config.name, finalized).await?;
        }
        Ok(())
    }

    /// Saves the base of the plan, then writes its document.
    pub(super) async fn apply(&self, input: &ReconcileInput, outcome: &mut ReconcileOutcome) -> Result<(), WriteError> {
        let ReconcileInput { config, before, live, .. } = input;
        let target = &config.target.name;
        let written = live.as_deref().and_then(written_revision);
        let keep = [kept_revisions(before), written.into_iter().collect()].concat();
        if let Some(base) = &outcome.plan.new_base {
            let saved = Arc::new(self.writer.save_base(base, target, &keep).await?);
            outcome.base_revision = Some(saved.revision);
            info!(config_map = %config.target, revision = saved.revision, "saved the installer's document and the declared document");
            self.cache.set_base(target, Some(saved));
        }
        let (Some(write), Some(live)) = (&outcome.plan.write, live) else { return Ok(()) };
        // The drift window must survive a crash after the write, because Pods that were injected in it look like all
        // other Pods.
        if outcome.plan.drift.as_ref().is_some_and(|drift| drift.affects_injection)
            && let Some(status) = with_drift_window(before, drift_began(live))
        {
            outcome.written_status = Some(Arc::new(status.clone()));
            match self.update_status(config, before, status.clone()).await {
                Ok(()) => {}
                Err(WriteError::NotLeading) => return Err(WriteError::NotLeading),
                // The document of another writer may prevent the creation of every Pod, so the revert does not wait.
                Err(error) => {
                    warn!(linkerd_config = %config.name, %error, "could not write the drift window into the status before the revert");
                    self.cache.set_unwritten_status(&config.name, &config.uid, Arc::new(status));
                }
            }
        }
        if let Some(drift) = outcome.plan.drift.as_ref().filter(|_| outcome.plan.verdict != PlanVerdict::Drifted) {
            outcome.reverted = Some(self.keep_reverted(live, &drift.manager).await?);
        }
        // The annotation keeps the revision that the next change replaces, even if the status names another one by
        // then.
        let revision = outcome.plan.restored_revision.or(outcome.base_revision).unwrap_or_default();
        if outcome.plan.verdict == PlanVerdict::Restored {
            self.record_failure(config).await?;
        }
        let version = self.writer.write_config_map(live, write, revision).await?;
        outcome.written = true;
        self.cache.note_own_write(target, version);
        if write.overwrites_others {
            let installed = matches!(outcome.plan.base_change, Some(BaseChange::Installed { .. }));
            let installed = outcome.plan.new_base.as_ref().filter(|_| installed).map(|base| &*base.text);
            self.cache.note_revert(target, installed);
        }
        info!(config_map = %config.target, linkerd_config = %config.name, hash = write.hash, over_others = write.overwrites_others, "wrote the mesh's configuration");
        Ok(())
    }

    /// Writes the failure into the status before the fallback document is written: the next leader would otherwise
    /// write the failed document again. The failed document may prevent the creation of every Pod, so the rollback
    /// happens even if this write fails.
    async fn record_failure(&self, config: &LinkerdConfig) -> Result<(), WriteError> {
        let Some(known) = self.cache.unwritten_status(config) else { return Ok(()) };
        let stored = self.cache.last_status(config).unwrap_or_else(|| Arc::clone(&config.status));
        let status = with_failure(&stored, &known);
        let version = self.cache.newest_version(config);
        match self.writer.update_status(&config.name, &config.uid, &version, &status).await {
            Ok(Some(version)) => {
                self.cache.set_last_status(&config.name, &config.uid, version, Arc::new(status));
                self.cache.set_unwritten_status(&config.name, &config.uid, known);
            }
            Ok(None) => {}
            Err(WriteError::NotLeading) => return Err(WriteError::NotLeading),
            Err(error) => {
                warn!(linkerd_config = %config.name, %error, "could not write the failure into the status before the rollback");
            }
        }
        Ok(())
    }

    /// Keeps the document of another writer before it is overwritten. If the API server rejects that, the document is
    /// reverted nevertheless: it may prevent the creation of every Pod.
    async fn keep_reverted(&self, live: &ConfigMap, manager: &str) -> Result<RevertedDocument, WriteError> {
        let Some(text) = &live.values else { return Ok(RevertedDocument::NotKept) };
        match self.writer.keep_reverted(&live.key.name, text, manager).await {
            Ok(Some(name)) => Ok(RevertedDocument::Kept(name)),
            Ok(None) => Ok(RevertedDocument::NotKept),
            Err(error @ WriteError::Refused(_)) => {
                warn!(config_map = %live.key, %error, "could not keep the document of another writer; it is reverted nevertheless");
                Ok(RevertedDocument::Failed(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes a status, unless it equals the previous one and that one was written.
    pub(super) async fn update_status(
        &self,
        config: &LinkerdConfig,
        before: &LinkerdConfigStatus,
        after: LinkerdConfigStatus,
    ) -> Result<(), WriteError> {
        if after == *before && self.cache.unwritten_status(config).is_none() {
            return Ok(());
        }
        debug_assert_eq!(contradiction(&after), None, "{after:?}");
        let known = self.cache.newest_version(config);
        if let Some(version) = self.writer.update_status(&config.name, &config.uid, &known, &after).await? {
            self.cache.set_last_status(&config.name, &config.uid, version, Arc::new(after));
        }
        Ok(())
    }

    /// Restarts the injectors once for each configuration that they did not use in time, before the status shows the
    /// timeout. The restart is idempotent, so that the next leader may repeat it.
    pub(super) async fn restart_late_injectors(
        &self,
        config: &LinkerdConfig,
        before: &LinkerdConfigStatus,
        after: &LinkerdConfigStatus,
    ) -> Result<(), WriteError> {
        let is_late = |status: &LinkerdConfigStatus| {
            status.reason(ConditionType::InjectorSynced) == Some(ConditionReason::Timeout)
        };
        let is_new = !is_late(before) || before.observed_generation != after.observed_generation;
        let restarts = config.spec.injector_sync.on_timeout == OnTimeout::RestartInjector;
        let Some(hash) = after.injection_hash.as_deref().filter(|_| restarts && is_new && is_late(after)) else {
            return Ok(());
        };
        let roots = after.trust_roots_sha256.as_deref().and_then(|hash| hash.get(..8)).unwrap_or_default();
        match self.writer.restart_injector(&format!("{hash}-{roots}")).await {
            Ok(()) => {
                info!(linkerd_config = %config.name, marker = hash, "restarting the injectors, because they did not use the configuration in time");
            }
            Err(error @ WriteError::Refused(_)) => {
                warn!(linkerd_config = %config.name, %error, "could not restart the injectors");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Returns the stored status with the failures of a later one. The stored conditions stay: they still describe the
/// ConfigMap.
fn with_failure(stored: &LinkerdConfigStatus, known: &LinkerdConfigStatus) -> LinkerdConfigStatus {
    let mut status = stored.clone();
    status.observed_generation = known.observed_generation;
    status.revisions.clone_from(&known.revisions);
    let of = known.rollout.clone().unwrap_or_default();
    let rollout = status.rollout.get_or_insert_default();
    (rollout.rolled_back, rollout.retry, rollout.declared_hash) = (of.rolled_back, of.retry, of.declared_hash);
    status
}

/// Returns the time of the last write by another writer.
fn drift_began(live: &ConfigMap) -> Timestamp {
    let others = live.writers.iter().find(|writer| writer.manager != FIELD_MANAGER);
    others.and_then(|writer| writer.time).unwrap_or_else(Timestamp::now)
}

/// Returns the revisions that the status refers to. They must not be deleted.
fn kept_revisions(before: &LinkerdConfigStatus) -> Vec<i64> {
    let revisions = before.revisions.clone().unwrap_or_default();
    [revisions.previous, revisions.last_rolled_out, revisions.last_known_good].into_iter().flatten().collect()
}
