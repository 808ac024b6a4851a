//! The reconcile of one LinkerdConfig, in stages.
//!
//! ```text
//! input ─▶ inactive? ─▶ report_inactive
//!   └────▶ prepare ─▶ dereference ─▶ plan (pure) ─▶ apply ─▶ status (pure) ─▶ Events, metrics, PUT of the status
//! ```
//!
//! Always holds: what the status says is done before it is written, so that a reconcile after a crash repeats the other
//! writes. Before, only what the next leader cannot find out is written: the time of a drift before its revert, and which
//! document failed before it is rolled back. Neither waits for that write to succeed.

use std::{slice, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;

use super::{
    LinkerdConfigReconciler,
    apply::ReconcileOutcome,
    base::baseline,
    canary::{CanaryAction, active_canary, decides, holds_back, kept_canary, next_status},
    conditions::{KEPT_WITH_DRIFT, explain_refused_rollback},
    dereference::{PlanDocuments, ReconcileInput},
    events::{EventInput, events_for},
    injector::{ExpectedInjection, SyncRequest, SyncStatus},
    plan::{ConfigPlan, PlanInput, PlanVerdict, plan},
    rollout::{
        self,
        target::{RolloutContext, RolloutTarget},
    },
    sha256,
    status::{
        ActiveStatusInput, active_status, conflicted_status, failed_hashes, foreign_namespace_status, within_limit,
    },
    trust_anchors::bundles::TrustBundles,
    writer::written_revision,
};
use crate::{
    api::{
        INJECTORS_CONFIG_MAP, NamespacedName,
        linkerd_config::{ConditionReason, LinkerdConfigStatus, Mode, RolloutPolicy, TargetStatus},
    },
    cluster::kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    controller::NextReconcile,
    retry::backoff,
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
            // Otherwise the ConfigMap keeps what this resource wrote, and its deletion restores the base.
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

    /// Ends what this process does on behalf of a resource that is deleted, or not in effect any more.
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
        let sync_status = self.sync_status(input, &before, &outcome, failure.as_ref(), now);
        let after = self.next_status(input, &before, &outcome, failure.as_ref(), sync_status.as_ref(), now);
        self.restart_late_injectors(config, &before, &after).await?;
        let ReconcileOutcome { plan, written, reverted, .. } = &outcome;
        let event_input = EventInput {
            config,
            live: input.live.as_deref(),
            before: &before,
            after: &after,
            plan: Some(plan),
            written: *written,
            reverted: reverted.as_ref(),
        };
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
                outcome.plan = ConfigPlan::only(PlanVerdict::InvalidBase(unreadable));
                return Ok(());
            }
        };
        outcome.base_revision = base.as_ref().map(|base| base.revision);
        let trust_bundles = self.observe_trust_bundles(input, base.as_deref());
        let documents = self.dereference(input, base, requires_rollback).await?;
        let plan_input = PlanContext {
            input,
            documents: &documents,
            trust_bundles: &trust_bundles,
            revert_suspended,
            requires_rollback,
        };
        make_plan(&plan_input, holds_back(&config.spec), outcome);
        outcome.canary = match &outcome.plan.canary {
            Some(document) => self.decide_canary(input, document, Timestamp::now()),
            None => None,
        };
        if outcome.canary.as_ref().is_some_and(|canary| canary.action == CanaryAction::Promote) {
            make_plan(&plan_input, false, outcome);
            if !decides(&outcome.plan.verdict) {
                // The ConfigMap cannot have the document, so the canary stays as it is.
                outcome.canary = None;
            }
        }
        if !self.is_active(config) {
            return Err(WriteError::NotLeading);
        }
        self.apply(input, outcome).await?;
        self.apply_canary(input, &outcome.plan, outcome.canary.as_ref()).await
    }

    /// Returns whether the injectors use the document of the plan; `None` if the plan has no such document or was not
    /// applied.
    fn sync_status(
        &self,
        input: &ReconcileInput,
        before: &LinkerdConfigStatus,
        outcome: &ReconcileOutcome,
        failure: Option<&WriteError>,
        now: Timestamp,
    ) -> Option<SyncStatus> {
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
        let canary = next_status(config, before, plan, outcome.canary.as_ref(), now);
        let canary = self.canary_probe(config, canary.as_ref());
        let request = SyncRequest { config, before, live, expected, canary, written: *written, is_proven, now };
        Some(self.injectors.sync_status(&self.gate.cluster, request))
    }

    /// Returns the next status, and gives the rollout its target.
    fn next_status(
        &self,
        input: &ReconcileInput,
        before: &LinkerdConfigStatus,
        outcome: &ReconcileOutcome,
        failure: Option<&WriteError>,
        sync_status: Option<&SyncStatus>,
        now: Timestamp,
    ) -> LinkerdConfigStatus {
        let config = &input.config;
        let enforce = config.spec.mode == Mode::Enforce;
        let base_revision = outcome.base_revision.filter(|_| enforce);
        let trust_bundles = self.cache.trust_bundles(&config.target.name).unwrap_or_default();
        let trust_bundle = trust_bundles.in_effect(input.bundle());
        let canary = match failure {
            Some(_) => kept_canary(config, before),
            None => next_status(config, before, &outcome.plan, outcome.canary.as_ref(), now),
        };
        let mut after = active_status(ActiveStatusInput {
            config,
            before,
            plan: &outcome.plan,
            rolls_back: outcome.rolls_back && failure.is_none(),
            baseline: outcome.baseline.clone().filter(|_| enforce),
            failure: failure.map(|error| (reason_of(error), error.to_string())),
            target: target_status(config, input.live.as_deref()),
            base_revision,
            written_revision: input.live.as_deref().and_then(written_revision),
            sync_status,
            canary,
            is_contested: self.cache.contested_for(&config.target.name).is_some(),
            bundle: input.bundle(),
            trust_key: trust_bundle.as_ref().map(|bundle| bundle.key.as_str()),
            now,
        });
        if *config.target.name == *INJECTORS_CONFIG_MAP {
            let context = RolloutContext {
                term: self.gate.term(),
                operator_namespace: self.namespaces.operator.clone(),
                trust_bundle,
                trust_bundles,
                canary: active_canary(config, &after, outcome.plan.canary.as_ref()),
            };
            let target = RolloutTarget::of(config, &after, &context);
            let progress = self.rollouts.progress(&target);
            let progress = progress.as_deref();
            // Workloads that run with another document do not prove the declared one.
            let declared = base_revision.filter(|_| outcome.plan.verdict == PlanVerdict::Synced);
            rollout::status::set_rollout_status(&mut after, before, &target, progress, declared, now);
            if let Some(why) = &outcome.rollback_refused {
                explain_refused_rollback(&mut after, why);
            }
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
        let event_input =
            EventInput { config, live: None, before, after: &after, plan: None, written: false, reverted: None };
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

/// What every plan of one reconcile has in common.
struct PlanContext<'a> {
    input: &'a ReconcileInput,
    documents: &'a PlanDocuments,
    trust_bundles: &'a TrustBundles,
    revert_suspended: bool,
    requires_rollback: bool,
}

fn make_plan(context: &PlanContext<'_>, holds_back: bool, outcome: &mut ReconcileOutcome) {
    let PlanContext { input, documents, trust_bundles, revert_suspended, requires_rollback } = *context;
    let ReconcileInput { config, before, live, .. } = input;
    let PlanDocuments { live: document, base, predecessor } = documents;
    let failed = failed_hashes(config, before);
    let plan = plan(&PlanInput {
        spec: &config.spec,
        live: live.as_deref(),
        document: document.as_deref(),
        base: base.as_deref(),
        bundle: input.bundle(),
        trust_bundles,
        first_time: before.revisions.is_none(),
        revert_suspended,
        failed,
        predecessor: predecessor.as_ref(),
        holds_back,
    });
    if before.rollout.as_ref().is_none_or(|rollout| rollout.baseline_hash.is_none()) {
        outcome.baseline = baseline(document.as_deref(), base.as_deref());
    }
    // Workloads failed with the document in the status. Another one, such as a correction, was not tried yet.
    let is_tried = plan.injection_hash == before.injection_hash;
    if requires_rollback && is_tried && plan.verdict == PlanVerdict::Drifted {
        outcome.rollback_refused = Some(KEPT_WITH_DRIFT.to_owned());
    }
    if requires_rollback && is_tried && plan.verdict == PlanVerdict::Synced {
        let refused = rollback_refused(input, documents, &plan);
        (outcome.rolls_back, outcome.rollback_refused) = (refused.is_none(), refused);
    }
    outcome.plan = plan;
}

/// Returns why the document of the plan is not rolled back, although workloads failed with it.
fn rollback_refused(input: &ReconcileInput, documents: &PlanDocuments, plan: &ConfigPlan) -> Option<String> {
    let ReconcileInput { config, before, .. } = input;
    if config.spec.rollout.policy == RolloutPolicy::Off {
        return Some("not rolled back, because spec.rollout.policy is Off".to_owned());
    }
    let base = plan.new_base.as_ref().or(documents.base.as_deref());
    let rolled_out = before.revisions.as_ref().and_then(|revisions| revisions.last_rolled_out);
    let is_rolled_out = rolled_out.is_some() && rolled_out == base.map(|base| base.revision);
    let Some(predecessor) = documents.predecessor.as_ref().filter(|_| !is_rolled_out) else {
        let why = "not rolled back, because the failed restart was not one for a new declared document";
        return Some(why.to_owned());
    };
    let (Some(base), Some(effective), Some(hash)) = (base, &plan.effective, &plan.injection_hash) else {
        return Some("not rolled back, because the document is unknown".to_owned());
    };
    let failed = [failed_hashes(config, before), slice::from_ref(hash)].concat();
    let fallback = predecessor.fallback(&base.document, effective, &failed, &base.injection_hashes);
    fallback.err().map(|reason| format!("not rolled back, because {}", reason.why()))
}

/// Whether the write failed because the cached object is stale.
fn is_conflict(error: &WriteError) -> bool {
    matches!(error.label(), "conflict" | "already_exists" | "not_found")
}

/// Returns the reason of ConfigMapSynced for a plan that was not applied.
fn reason_of(error: &WriteError) -> ConditionReason {
    match error.label() {
        "forbidden" => ConditionReason::WriteForbidden,
        "conflict" | "already_exists" => ConditionReason::WriteConflict,
        _ => ConditionReason::WriteFailed,
    }
}

fn target_status(config: &LinkerdConfig, live: Option<&ConfigMap>) -> TargetStatus {
    TargetStatus {
        namespace: Some(config.target.namespace.to_string()),
        name: Some(config.target.name.to_string()),
        uid: live.map(|live| live.uid.to_string()),
    }
}
