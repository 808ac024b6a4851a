//! All reads and writes that a LinkerdConfig in effect takes, in the order in which they keep what must not be lost.
//!
//! In: the resource, the ConfigMap as it was looked at. Out: what came of it, however it ended. Always holds: a base is kept
//! before it is written over, and nothing is written for who is not in effect any more.

use std::{slice, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use tracing::{info, warn};

use super::{
    Context, active,
    apply::REVISION_ANNOTATION,
    base::Base,
    drift::FIELD_MANAGER,
    plan::{Input, Plan, Verdict, others, plan},
    status::{self, failed, good_revisions},
    values::Reading,
};
use crate::{
    api::linkerd_config::{DeletionPolicy, LinkerdConfigStatus, Mode, OnTimeout},
    cluster::kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    write::WriteError,
};

/// What came of taking care.
pub(super) struct Care {
    pub(super) plan: Plan,
    pub(super) written: bool,
    pub(super) base_revision: Option<i64>,
    /// The status, where it had to be told before something was written.
    pub(super) told: Option<Arc<LinkerdConfigStatus>>,
    /// The injection hash of the document that was there before it was ever written by us.
    pub(super) baseline: Option<String>,
    /// ExternalWorkloads failed with the document that is in effect, and there is one to go back to.
    pub(super) takes_back: bool,
}

// === impl Care ===

impl Default for Care {
    /// Nothing was looked at yet.
    fn default() -> Self {
        Self {
            plan: Plan::only(Verdict::Unknown),
            written: false,
            base_revision: None,
            told: None,
            baseline: None,
            takes_back: false,
        }
    }
}

// === impl Context ===

impl Context {
    /// All reads and writes that it takes; `care` says what came of them, however they ended.
    pub(super) async fn care(
        &self,
        config: &LinkerdConfig,
        before: &LinkerdConfigStatus,
        live: Option<&ConfigMap>,
        bundle: Option<&str>,
        truce: Option<Duration>,
        care: &mut Care,
    ) -> Result<(), WriteError> {
        let enforce = config.spec.mode == Mode::Enforce;
        if let Some(live) = live.filter(|live| live.owned && enforce) {
            info!(config_map = %live.key, "taking an owner reference away that would have it deleted");
            self.writer.disown(live).await?;
        }
        let wanted = enforce && config.spec.deletion_policy == DeletionPolicy::RestoreBase;
        if wanted != config.finalized {
            self.writer.finalize(&config.name, wanted).await?;
        }
        let base = match self.base(&config.target.name, live).await? {
            Ok(base) => base,
            Err(unreadable) => {
                care.plan = Plan::only(Verdict::InvalidBase(unreadable));
                return Ok(());
            }
        };
        care.base_revision = base.as_ref().map(|base| base.revision);
        let failed = failed(config, before);
        let good_revisions = good_revisions(before);
        let wants_rollback = self.rollouts.requires_rollback(config, before);
        let good = match &base {
            // Read only where it is needed: it seldom is.
            Some(base) if !failed.is_empty() || wants_rollback => {
                self.writer.declared_at(&good_revisions, base, &config.target.name).await?
            }
            _ => Vec::new(),
        };
        let text = live.and_then(|live| live.values.as_ref());
        let document = text.map(|text| self.records.read(&config.target.name, text));
        care.plan = plan(&Input {
            spec: &config.spec,
            live,
            document: document.as_deref(),
            base: base.as_deref(),
            bundle,
            first_time: before.revisions.is_none(),
            fought_over: truce.is_some(),
            failed,
            good: &good,
        });
        if before.rollout.as_ref().is_none_or(|rollout| rollout.baseline_hash.is_none()) {
            care.baseline = baseline(document.as_deref(), base.as_deref());
        }
        if let (true, Some(base), Some(marker)) = (wants_rollback, &base, &care.plan.marker) {
            let others = others(&good, &base.document, &[failed, slice::from_ref(marker)].concat());
            care.takes_back = care.plan.verdict == Verdict::Synced && others.is_some();
        }
        // Another may be in effect since it was looked at.
        if !self.is_in_effect(config) {
            return Err(WriteError::NotLeading);
        }
        let target = &config.target.name;
        if let Some(new) = &care.plan.new_base {
            let kept = Arc::new(self.writer.keep(new, target, &good_revisions).await?);
            care.base_revision = Some(kept.revision);
            info!(config_map = %config.target, revision = kept.revision, "kept what its installer wrote and what is declared");
            self.records.know_base(target, Some(kept));
        }
        if let (Some(write), Some(live)) = (&care.plan.write, live) {
            // Pods that were born meanwhile cannot be told from others afterwards, whatever becomes of this process.
            if care.plan.drift.as_ref().is_some_and(|drift| drift.shapes_pods)
                && let Some(status) = status::with_drift_window(before, drift_began(live))
            {
                care.told = Some(Arc::new(status.clone()));
                self.tell(config, before, status).await?;
            }
            let version = self.writer.write(live, write, care.base_revision.unwrap_or_default()).await?;
            care.written = true;
            self.records.wrote(target, version);
            if write.over_others {
                self.records.reverted(target);
            }
            info!(config_map = %config.target, linkerd_config = %config.name, hash = write.hash, over_others = write.over_others, "wrote the mesh's configuration");
        }
        Ok(())
    }

    /// What the installer wrote last, as far as it was kept; `Err` inside where it cannot be read.
    async fn base(
        &self,
        config_map: &Arc<str>,
        live: Option<&ConfigMap>,
    ) -> Result<Result<Option<Arc<Base>>, String>, WriteError> {
        // Another than us may have kept a newer one.
        let written = live.and_then(|live| live.annotations.get(REVISION_ANNOTATION)?.parse::<i64>().ok());
        let is_current = |base: &Option<Arc<Base>>| written <= base.as_ref().map(|base| base.revision);
        if let Some(known) = self.records.base(config_map).filter(is_current) {
            return Ok(Ok(known));
        }
        let base = match self.writer.base(config_map).await? {
            Ok(base) => base.map(Arc::new),
            Err(unreadable) => return Ok(Err(unreadable)),
        };
        self.records.know_base(config_map, base.clone());
        Ok(Ok(base))
    }

    fn is_in_effect(&self, config: &LinkerdConfig) -> bool {
        active::of(&self.gate.cluster.read().linkerd_configs, &config.target)
            .is_some_and(|winner| winner.name == config.name)
    }

    /// Once for each configuration that took too long, before that is said: whoever comes next does it again, which is nothing.
    pub(super) async fn restart_injector(
        &self,
        config: &LinkerdConfig,
        before: &LinkerdConfigStatus,
        after: &LinkerdConfigStatus,
    ) -> Result<(), WriteError> {
        let is_late = |status| status::reason(status, "InjectorSynced") == Some("Timeout");
        let is_new = !is_late(before) || before.observed_generation != after.observed_generation;
        let restarts = config.spec.injector_sync.on_timeout == OnTimeout::RestartInjector;
        let Some(marker) = after.injection_hash.as_deref().filter(|_| restarts && is_new && is_late(after)) else {
            return Ok(());
        };
        let roots = after.trust_roots_sha256.as_deref().and_then(|hash| hash.get(..8)).unwrap_or_default();
        match self.writer.restart_injector(&format!("{marker}-{roots}")).await {
            Ok(()) => info!(linkerd_config = %config.name, marker, "restarting the injectors, which took too long"),
            Err(error @ WriteError::Refused(_)) => {
                warn!(linkerd_config = %config.name, %error, "the injectors could not be restarted");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// What Pods without a marker run with: what was there, unless that is ours.
pub(crate) fn baseline(document: Option<&Reading>, base: Option<&Base>) -> Option<String> {
    match (document, base) {
        (Some(Ok((document, None))), None) => Some(document.injection_hash().to_string()),
        (_, Some(base)) => Some(base.document.injection_hash().to_string()),
        (Some(Ok((document, Some(_)))), None) => Some(document.injection_hash().to_string()),
        _ => None,
    }
}

/// When somebody else wrote what is there.
fn drift_began(live: &ConfigMap) -> Timestamp {
    let others = live.writers.iter().find(|writer| writer.manager != FIELD_MANAGER);
    others.and_then(|writer| writer.time).unwrap_or_else(Timestamp::now)
}
