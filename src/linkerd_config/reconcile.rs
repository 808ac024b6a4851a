//! The reconcile of one LinkerdConfig, in stages.
//!
//! ```text
//! input ─▶ inactive? ─▶ report_inactive
//!   └────▶ prepare ─▶ dereference ─▶ plan (pure) ─▶ apply ─▶ status (pure) ─▶ Events, metrics, PUT of the status
//! ```
//!
//! Always holds: the status is written after the writes that it describes, so that a reconcile after a crash repeats
//! those that are missing. Only facts that the next leader cannot find out are written earlier: the time of a drift,
//! before its revert, and the document that failed, before its rollback. Neither the revert nor the rollback depends on
//! the success of that write.

use std::{slice, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;

use super::{
    LinkerdConfigReconciler,
    apply::ReconcileOutcome,
    canary::{CanaryAction, active_canary, decides, kept_canary, next_canary},
    dereference::{PlanDocuments, ReconcileInput},
    documents::base::baseline,
    events::{EventInput, events_for},
    plan::{ConfigPlan, PlanInput, plan},
    rollout_target::{RolloutContext, rollout_target},
    status::{
        Facts, active_status, attempt::failed_hashes, conditions::KEPT_WITH_DRIFT, conflicted_status,
        foreign_namespace_status, rollout_status::RolloutPart, within_limit,
    },
    verdict::PlanVerdict,
};
use crate::{
    api::{
        INJECTORS_CONFIG_MAP, NamespacedName,
        linkerd_config::{ConditionType, LinkerdConfigStatus, Mode, RolloutPolicy},
    },
    cluster::kinds::linkerd_config::LinkerdConfig,
    controller::NextReconcile,
    injection_probe::{ExpectedInjection, SyncRequest, SyncStatus},
    retry::backoff,
    text::sha256,
    write::WriteError,
};

/// The number of consecutive conflicts after which the status shows them.
const MAX_CONFLICTS: u32 = 5;
const CONFLICT_RETRY: Duration = Duration::from_millis(100);
/// The managers that metrics show by name. All others count as `other`, because a manager may have any name.
const KNOWN_MANAGERS: [&str; 5] = ["kubectl", "kubectl-edit", "kubectl-patch", "kubectl-client-side-apply", "helm"];
/// The interval at which each resource is reconciled without a change.
const RESYNC_INTERVAL: Duration = Duration::from_secs(600);

impl LinkerdConfigReconciler {
    pub(super) async fn reconcile_resource(&self, name: &str) -> Result<NextReconcile, WriteError> {
        if !self.gate.may_act() {
            return Ok(NextReconcile::OnChange);
        }
        let Some(input) = self.input(name) else { return Ok(NextReconcile::OnChange) };
        let ReconcileInput { config, before, active, live, canary_map, .. } = &input;
        let is_in_effect = active.as_ref().is_some_and(|active| active.name == config.name)
            && config.target.namespace == self.namespaces.control_plane;
        if !is_in_effect {
            self.stand_down(name);
        }
        if config.target.namespace != self.namespaces.control_plane {
            // If the operator of that namespace serves the resource, it manages the status and the finalizer.
            let served = before.target.as_ref().and_then(|target| target.namespace.as_deref());
            if config.deleting || before.active == Some(true) && served == Some(&*config.target.namespace) {
                return Ok(NextReconcile::OnChange);
            }
            let status = foreign_namespace_status(config, before, &self.namespaces.control_plane, Timestamp::now());
            return self.report_inactive(config, before, status).await;
        }
        if config.deleting {
            return self.finalize(&input).await;
        }
        if let Some(active) = active.as_ref().filter(|active| active.name != config.name) {
            self.take_back_canary(config, canary_map.as_deref()).await?;
            // If the active resource does not enforce, the ConfigMap keeps the document of this one, and its deletion
            // restores the base.
            if config.finalized && active.enforces() {
                self.writer.set_finalizer(&config.name, false).await?;
            }
            let status = conflicted_status(config, before, active, Timestamp::now());
            return self.report_inactive(config, before, status).await;
        }
        if let Some(live) = live
            && let Some(wait) = self.cache.own_write_pending(&live.key.name, &live.version)
        {
            return Ok(NextReconcile::After(wait));
        }
        self.reconcile_active(&input).await
    }

    /// Ends the rollout and the probes for a resource that is deleted or no longer in effect.
    pub(super) fn stand_down(&self, name: &str) {
        self.rollouts.end(name);
        self.injectors.stop(name);
    }

    async fn reconcile_active(&self, input: &ReconcileInput) -> Result<NextReconcile, WriteError> {
        let config = &input.config;
        let revert_backoff = self.cache.revert_backoff(&config.target.name);
        let mut outcome = ReconcileOutcome::default();
        let failure = match self.plan_and_apply(input, revert_backoff.is_some(), &mut outcome).await {
            Ok(()) => None,
            Err(error @ (WriteError::NotLeading | WriteError::TimedOut | WriteError::Transport(_))) => {
                return Err(error);
            }
            // The cache is stale, and the watch will soon update it. The status shows a conflict only if it repeats.
            Err(error) if is_conflict(&error) => {
                self.cache.forget_base(&config.target.name);
                if self.gate.queue.count_failure(&NamespacedName::cluster_scoped(&config.name)) < MAX_CONFLICTS {
                    return Ok(NextReconcile::After(CONFLICT_RETRY));
                }
                Some(error)
            }
            Err(error) => Some(error),
        };
        if let Some(drift) = &mut outcome.plan.drift {
            drift.reverted = outcome.written && outcome.plan.verdict != PlanVerdict::Drifted;
        }
        let before = outcome.written_status.clone().unwrap_or_else(|| input.before.clone());
        let now = Timestamp::now();
        let canary = match failure {
            Some(_) => kept_canary(config, &before),
            None => next_canary(config, &before, &outcome.plan, outcome.canary.as_ref(), now),
        };
        let facts = Facts { input, before: &before, outcome: &outcome, failure: failure.as_ref(), canary, now };
        let sync_status = self.sync_status(&facts);
        let after = self.next_status(&facts, sync_status.as_ref());
        self.restart_late_injectors(config, &before, &after).await?;
        let plan = &outcome.plan;
        let live = input.live.as_deref();
        let event_input = EventInput { config, live, before: &before, after: &after, outcome: Some(&outcome) };
        for event in events_for(&event_input) {
            self.events.publish(event);
        }
        self.count_drift(&before, &after, plan);
        let is_denied = sync_status.as_ref().is_some_and(|sync_status| sync_status.is_denied);
        let has_failed_now = failed_hashes(config, &before) != failed_hashes(config, &after);
        if (outcome.rolls_back || is_denied) && has_failed_now {
            // The next reconcile rolls the failed document back, and then writes the status.
            self.cache.set_unwritten_status(&config.name, &config.uid, Arc::new(after));
            return Ok(NextReconcile::After(Duration::ZERO));
        }
        self.update_status(config, &before, after).await?;
        if let Some(error) = failure {
            return Err(error);
        }
        self.gate.queue.forget_failures(&NamespacedName::cluster_scoped(&config.name));
        let revert_backoff = revert_backoff
            .filter(|_| matches!(plan.verdict, PlanVerdict::RepeatedDrift | PlanVerdict::InstallerReverts(_)));
        let delay = revert_backoff.or_else(|| sync_status?.recheck_after);
        let delay = delay.unwrap_or_else(|| backoff(0, RESYNC_INTERVAL, RESYNC_INTERVAL));
        let contested = self.cache.contested_for(&config.target.name);
        let canary = outcome.canary.as_ref().map(|canary| canary.recheck_after);
        Ok(NextReconcile::After([contested, canary].into_iter().flatten().fold(delay, Duration::min)))
    }

    /// Runs the stages up to the write of the ConfigMap. After an error, `outcome` contains the results of the
    /// completed stages.
    async fn plan_and_apply(
        &self,
        input: &ReconcileInput,
        revert_suspended: bool,
        outcome: &mut ReconcileOutcome,
    ) -> Result<(), WriteError> {
        let ReconcileInput { config, before, live, canary_map, .. } = input;
        self.prepare(config, live.as_deref()).await?;
        if !config.enforces() {
            self.take_back_canary(config, canary_map.as_deref()).await?;
        }
        let requires_rollback = self.rollouts.requires_rollback(config, before);
        let base = match self.base(&config.target.name, live.as_deref()).await? {
            Ok(base) => base,
            Err(unreadable) => {
                // A person may suspend the resource to repair its base.
                let is_suspended = config.spec.mode == Mode::Suspend;
                let verdict = if is_suspended { PlanVerdict::Suspended } else { PlanVerdict::InvalidBase(unreadable) };
                outcome.plan = ConfigPlan::only(verdict);
                return Ok(());
            }
        };
        outcome.base_revision = base.as_ref().map(|base| base.revision);
        let documents = self.dereference(input, base, requires_rollback).await?;
        let PlanDocuments { live: document, base, predecessor } = &documents;
        let plan_input = PlanInput {
            live: live.as_deref(),
            document: document.as_deref(),
            base: base.as_deref(),
            bundle: input.bundle(),
            revert_suspended,
            predecessor: predecessor.as_ref(),
            ..PlanInput::of(config, before)
        };
        outcome.plan = plan(&plan_input);
        outcome.canary = match &outcome.plan.canary {
            Some(document) => self.decide_canary(input, document, Timestamp::now()),
            None => None,
        };
        if outcome.canary.as_ref().is_some_and(|canary| canary.action == CanaryAction::Promote) {
            outcome.plan = plan(&PlanInput { holds_back: false, ..plan_input });
            if !decides(&outcome.plan.verdict) {
                // The document cannot be written for all namespaces, so the canary stays as it is.
                outcome.canary = None;
            }
        }
        if before.rollout.as_ref().is_none_or(|rollout| rollout.baseline_hash.is_none()) {
            outcome.baseline = baseline(plan_input.document, plan_input.base);
        }
        if requires_rollback {
            judge_rollback(before, &plan_input, outcome);
        }
        if !self.is_active(config) {
            return Err(WriteError::NotLeading);
        }
        self.apply(input, outcome).await?;
        self.apply_canary(input, &outcome.plan, outcome.canary.as_ref()).await
    }

    /// Returns whether the injectors use the document of the plan; `None` if the plan has no such document or was not
    /// applied.
    fn sync_status(&self, facts: &Facts<'_>) -> Option<SyncStatus> {
        let Facts { input, before, outcome, failure, ref canary, now } = *facts;
        let ReconcileInput { config, live, .. } = input;
        let ReconcileOutcome { plan, written, .. } = outcome;
        let Some(hash) = plan.injection_hash.as_ref().filter(|_| failure.is_none()) else {
            self.injectors.stop(&config.name);
            return None;
        };
        let expected = ExpectedInjection { injection_hash: hash.clone(), trust_roots: input.bundle().map(sha256) };
        let good = before.revisions.as_ref().and_then(|revisions| revisions.last_known_good_hash.as_ref());
        // A denial of a document with changes of other writers is not the resource's fault.
        let in_force_before = [PlanVerdict::Restored, PlanVerdict::Drifted, PlanVerdict::Canary];
        let is_proven = in_force_before.contains(&plan.verdict) || good == Some(hash);
        let live = live.as_deref();
        let canary = self.canary_probe(config, canary.as_ref());
        let advanced = injectors_advanced(before, now);
        let request = SyncRequest { config, advanced, live, expected, canary, written: *written, is_proven, now };
        Some(self.injectors.sync_status(&self.gate.cluster, request))
    }

    /// Returns the next status, and gives the rollout its target.
    fn next_status(&self, facts: &Facts<'_>, sync_status: Option<&SyncStatus>) -> LinkerdConfigStatus {
        let Facts { input, before, outcome, now, .. } = *facts;
        let config = &input.config;
        let trust_bundle = input.trust_bundle();
        let trust_key = trust_bundle.as_ref().map(|bundle| &*bundle.hash);
        let is_contested = self.cache.contested_for(&config.target.name).is_some();
        let mut after = active_status(facts, sync_status, is_contested, trust_key);
        if *config.target.name == *INJECTORS_CONFIG_MAP {
            let context = RolloutContext {
                term: self.gate.term(),
                operator_namespace: self.namespaces.operator.clone(),
                trust_bundle,
                canary: active_canary(config, &after, outcome.plan.canary.as_ref()),
            };
            let target = rollout_target(config, &after, &context);
            let progress = self.rollouts.progress(&target);
            let part = RolloutPart {
                before,
                target: &target,
                progress: progress.as_deref(),
                // Workloads that run with another document do not prove the declared one.
                revision: facts.base_revision().filter(|_| outcome.plan.verdict == PlanVerdict::Synced),
                rollback_refused: outcome.rollback_refused.as_deref(),
                now,
            };
            after = part.add_to(after);
            self.rollouts.set_target(target);
        }
        within_limit(after)
    }

    /// Publishes the Events and writes the status of a resource that is not active.
    async fn report_inactive(
        &self,
        config: &LinkerdConfig,
        before: &LinkerdConfigStatus,
        after: LinkerdConfigStatus,
    ) -> Result<NextReconcile, WriteError> {
        let event_input = EventInput { config, live: None, before, after: &after, outcome: None };
        for event in events_for(&event_input) {
            self.events.publish(event);
        }
        self.update_status(config, before, after).await?;
        self.gate.queue.forget_failures(&NamespacedName::cluster_scoped(&config.name));
        Ok(NextReconcile::OnChange)
    }

    fn count_drift(&self, before: &LinkerdConfigStatus, after: &LinkerdConfigStatus, plan: &ConfigPlan) {
        let Some(drift) = &plan.drift else { return };
        let count = |status: &LinkerdConfigStatus| status.drift.as_ref().and_then(|drift| drift.count);
        if count(before) == count(after) {
            return;
        }
        let manager = KNOWN_MANAGERS.into_iter().find(|known| *known == drift.manager).unwrap_or("other");
        let action = if drift.reverted { "reverted" } else { "reported" };
        self.drifts.with_label_values(&[manager, action]).inc();
    }
}

/// Decides whether the document that workloads failed with is rolled back.
fn judge_rollback(before: &LinkerdConfigStatus, input: &PlanInput<'_>, outcome: &mut ReconcileOutcome) {
    let plan = &outcome.plan;
    // Workloads failed with the document in the status. Another one, such as a correction, was not tried yet.
    if plan.injection_hash != before.injection_hash {
        return;
    }
    outcome.rollback_refused = match plan.verdict {
        PlanVerdict::Drifted => Some(KEPT_WITH_DRIFT.to_owned()),
        PlanVerdict::Synced => rollback_refused(before, input, plan),
        _ => return,
    };
    outcome.rolls_back = outcome.rollback_refused.is_none();
}

/// Returns why the document of the plan is not rolled back, although workloads failed with it.
fn rollback_refused(before: &LinkerdConfigStatus, input: &PlanInput<'_>, plan: &ConfigPlan) -> Option<String> {
    if input.spec.rollout.policy == RolloutPolicy::Off {
        return Some("not rolled back, because spec.rollout.policy is Off".to_owned());
    }
    let base = plan.new_base.as_ref().or(input.base);
    let rolled_out = before.revisions.as_ref().and_then(|revisions| revisions.last_rolled_out);
    let is_rolled_out = rolled_out.is_some() && rolled_out == base.map(|base| base.revision);
    let Some(predecessor) = input.predecessor.filter(|_| !is_rolled_out) else {
        let why = "not rolled back, because the failed restart was not one for a new declared document";
        return Some(why.to_owned());
    };
    let (Some(base), Some(effective), Some(hash)) = (base, &plan.effective, &plan.injection_hash) else {
        return Some("not rolled back, because the document is unknown".to_owned());
    };
    let failed = [input.failed, slice::from_ref(hash)].concat();
    let fallback = predecessor.fallback(&base.document, effective, &failed, &base.injection_hashes);
    fallback.err().map(|reason| format!("not rolled back, because {}", reason.why()))
}

/// Returns when the injectors last came closer to the configuration: a change of the counts, or the time when the
/// condition became False.
fn injectors_advanced(before: &LinkerdConfigStatus, now: Timestamp) -> Timestamp {
    let condition = before.condition(ConditionType::InjectorSynced).filter(|it| it.status == "False");
    let waiting = condition.map_or(now, |condition| condition.last_transition_time.0);
    let counted = before.injector.as_ref().and_then(|injector| Some(injector.last_probe_time.as_ref()?.0));
    counted.map_or(waiting, |counted| counted.max(waiting))
}

/// Whether the write failed because the cached object is stale.
fn is_conflict(error: &WriteError) -> bool {
    matches!(error.label(), "conflict" | "already_exists" | "not_found")
}
