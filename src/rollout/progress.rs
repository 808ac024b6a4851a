//! The progress of a rollout, for the status. Pure.
//!
//! In: the [`RolloutSchedule`], the [`RolloutTarget`], the closed gate. Out: a [`RolloutProgress`]. Always holds:
//! RolloutComplete is True only when every selected workload runs with the target; otherwise the condition explains
//! what is missing.

use std::sync::Arc;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use strum::{EnumIter, IntoStaticStr};

use super::{
    assess::workload_state::{FailureWeight, WorkloadFailure},
    gate::Gate,
    schedule::RolloutSchedule,
    target::RolloutTarget,
    totals::{CanaryTotals, RolloutTotals},
};
use crate::{
    api::linkerd_config::{
        ConditionReason, OnFailure, RolloutFailure, RolloutPods, RolloutSkipped, RolloutWorkload, RolloutWorkloads,
    },
    cluster::index::workload_key::WorkloadKey,
    text::and_more,
};

/// Maximum number of entries of each list in a status.
const LISTED: usize = 20;
/// Maximum number of workloads that a message names.
const NAMED: usize = 3;

/// `status.rollout.phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumIter, IntoStaticStr)]
pub enum RolloutPhase {
    Idle,
    Waiting,
    Progressing,
    Paused,
    Halted,
    RolledBack,
    Complete,
}

/// The condition RolloutComplete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompleteCondition {
    pub holds: bool,
    pub reason: ConditionReason,
    pub message: String,
}

/// The progress of the rollout of one target.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutProgress {
    pub target: Arc<RolloutTarget>,
    pub phase: RolloutPhase,
    pub complete: CompleteCondition,
    pub workloads: RolloutWorkloads,
    pub pods: RolloutPods,
    pub updating: Vec<RolloutWorkload>,
    pub failures: Vec<RolloutFailure>,
    pub skipped: Vec<RolloutSkipped>,
    pub next_window: Option<Timestamp>,
    /// The hash of the bundle in effect, if live Pods trust none of its anchors.
    pub replaced: Option<String>,
    /// Whether Pods exist that were created while the document had changes by other writers.
    pub suspects: bool,
    /// Whether the rollout could continue, and has not advanced for too long.
    pub no_progress: bool,
    /// Whether too many workloads failed and the policy is to roll back the configuration.
    pub requires_rollback: bool,
    /// The selected workloads of the canary namespaces.
    pub canary: CanaryTotals,
}

/// Whether failures block new restarts.
pub fn is_halted(schedule: &RolloutSchedule, target: &RolloutTarget) -> bool {
    // Pods without a proxy are worse than outdated ones, so they halt the rollout under every failure policy.
    let totals = &schedule.totals;
    let failed = has_failed(schedule, target, totals.counted_failures);
    totals.uninjected > 0 || failed && target.rollout.on_failure != OnFailure::Continue
}

/// Whether the failures require a rollback of the configuration. A Pod without a proxy says nothing about it: the API
/// server created the Pod without the injector, or the owner of the workload arranged that.
fn requires_rollback(schedule: &RolloutSchedule, target: &RolloutTarget) -> bool {
    let RolloutTotals { counted_failures, uninjected, .. } = schedule.totals;
    target.rollout.on_failure == OnFailure::Rollback
        && target.rolled_back.is_none()
        && has_failed(schedule, target, counted_failures - uninjected)
}

/// Whether this number of failures reaches `maxFailures`.
fn has_failed(schedule: &RolloutSchedule, target: &RolloutTarget, failures: i64) -> bool {
    let selected = usize::try_from(schedule.totals.workloads.selected).unwrap_or_default();
    usize::try_from(failures).unwrap_or_default() >= target.rollout.max_failures(selected)
}

/// Returns the progress. `gate` is the closed gate; `next_window` is when the maintenance window opens.
pub fn rollout_progress(
    schedule: &RolloutSchedule,
    target: &Arc<RolloutTarget>,
    gate: Option<&Gate>,
    next_window: Option<Timestamp>,
) -> RolloutProgress {
    let totals = &schedule.totals;
    let (phase, complete) = phase_and_condition(schedule, target, gate);
    let failure = |(workload, failure): (&WorkloadKey, &WorkloadFailure)| RolloutFailure {
        kind: workload.kind.to_string(),
        namespace: workload.namespace.to_string(),
        name: workload.name.to_string(),
        reason: failure.reason.clone(),
        message: failure.message.clone(),
        time: failure.started.map(Time),
    };
    RolloutProgress {
        target: Arc::clone(target),
        phase,
        complete,
        workloads: totals.workloads,
        pods: totals.pods,
        updating: schedule.in_progress().take(LISTED).map(reference).collect(),
        failures: by_weight(schedule).take(LISTED).map(failure).collect(),
        skipped: totals
            .skipped
            .iter()
            .map(|(skip, count)| RolloutSkipped { reason: skip.as_str().to_owned(), count: *count })
            .collect(),
        next_window: next_window.filter(|_| gate.is_some_and(|gate| gate.reason == ConditionReason::OutsideWindow)),
        replaced: target.proxies.trust.replaced(&totals.trust).map(|(hash, _)| hash.to_owned()),
        suspects: totals.suspects > 0,
        no_progress: false,
        requires_rollback: requires_rollback(schedule, target),
        canary: totals.canary,
    }
}

fn phase_and_condition(
    schedule: &RolloutSchedule,
    target: &RolloutTarget,
    gate: Option<&Gate>,
) -> (RolloutPhase, CompleteCondition) {
    let totals = &schedule.totals;
    let RolloutWorkloads { selected, updated, updating, pending, failed, .. } = totals.workloads;
    let because = |phase, reason, message: String| (phase, CompleteCondition { holds: false, reason, message });
    let holds = |phase, reason, message: String| (phase, CompleteCondition { holds: true, reason, message });
    let so_far = format!("{updated} of {selected} workloads run with the configuration");
    if let Some(gate) = gate.filter(|gate| gate.reason == ConditionReason::RolloutDisabled) {
        return because(RolloutPhase::Idle, gate.reason, gate.message.clone());
    }
    if target.rolled_back.is_some() {
        let message = format!(
            "the configuration failed and was rolled back: see the condition Stalled, and change the declared values; {updated} \
             of {selected} workloads run with the previous configuration"
        );
        return because(RolloutPhase::RolledBack, ConditionReason::RolledBack, message);
    }
    if selected == 0 {
        return holds(RolloutPhase::Idle, ConditionReason::NothingSelected, "no meshed workload opted in".to_owned());
    }
    if updated == selected {
        let message = match selected {
            1 => "the only workload runs with the configuration".to_owned(),
            _ => format!("all {selected} workloads run with the configuration"),
        };
        return holds(RolloutPhase::Complete, ConditionReason::UpToDate, message);
    }
    if is_halted(schedule, target) {
        let is_kept = target.rollout.on_failure == OnFailure::Rollback && !requires_rollback(schedule, target);
        let why = "not rolled back, because a Pod without a proxy says nothing about the configuration; ";
        let message = format!(
            "{}{}; to retry, change the declared values or the annotation config.linkerd.io/retry; {so_far}",
            if is_kept { why } else { "" },
            failures(schedule)
        );
        return because(RolloutPhase::Halted, ConditionReason::Halted, message);
    }
    if let Some(gate) = gate.filter(|_| pending > 0 || updating > 0) {
        let phase = if gate.reason == ConditionReason::Paused { RolloutPhase::Paused } else { RolloutPhase::Waiting };
        return because(phase, gate.reason, format!("{}; {so_far}", gate.message));
    }
    if updating > 0 || schedule.is_startable() {
        // Restarts that wait without progress are named, because they may hold up the others.
        let blocked = refused(schedule).or_else(|| waiting_for_nodes(schedule)).map(|blocked| format!("{blocked}; "));
        let message = format!("{}{so_far}", blocked.unwrap_or_default());
        return because(RolloutPhase::Progressing, ConditionReason::Progressing, message);
    }
    if let Some(refused) = refused(schedule) {
        return because(RolloutPhase::Waiting, ConditionReason::WriteFailed, format!("{refused}; {so_far}"));
    }
    if totals.blocked > 0 {
        let message = format!("workloads blocked by PodDisruptionBudgets: {}; {so_far}", totals.blocked);
        return because(RolloutPhase::Waiting, ConditionReason::BlockedByPDB, message);
    }
    if failed > 0 {
        return because(
            RolloutPhase::Waiting,
            ConditionReason::WorkloadsFailed,
            format!("{}; {so_far}", failures(schedule)),
        );
    }
    let reasons: Vec<String> =
        totals.skipped.iter().map(|(skip, count)| format!("{} {count}", skip.as_str())).collect();
    let unhealthy = and_more(schedule.unhealthy.iter().take(NAMED), schedule.unhealthy.len(), ", ");
    let unhealthy = if unhealthy.is_empty() { unhealthy } else { format!("; not healthy: {unhealthy}") };
    let message = format!("skipped: {}{unhealthy}; {so_far}", reasons.join(", "));
    because(RolloutPhase::Waiting, ConditionReason::WorkloadsSkipped, message)
}

fn failures(schedule: &RolloutSchedule) -> String {
    let named = by_weight(schedule).take(NAMED);
    let named = named.map(|(workload, failure)| format!("{workload}: {}: {}", failure.reason, failure.message));
    and_more(named, schedule.failed.len(), "; ")
}

/// Returns the failed workloads; those that only have the record of a failure come last.
fn by_weight(schedule: &RolloutSchedule) -> impl Iterator<Item = (&WorkloadKey, &WorkloadFailure)> {
    let of_weight = |is_reported: bool| {
        let is = move |failure: &WorkloadFailure| (failure.weight == FailureWeight::Reported) == is_reported;
        schedule.failed.iter().filter(move |(_, failure)| is(failure))
    };
    of_weight(false).chain(of_weight(true))
}

fn refused(schedule: &RolloutSchedule) -> Option<String> {
    let (workload, message) = schedule.refused()?;
    Some(format!("could not update {workload}: {message}; retrying"))
}

fn waiting_for_nodes(schedule: &RolloutSchedule) -> Option<String> {
    let (workload, missing) = schedule.stalled.as_ref()?;
    Some(format!("{workload} waits for nodes: {missing}; check for nodes that are not ready or have new taints"))
}

fn reference(workload: &WorkloadKey) -> RolloutWorkload {
    RolloutWorkload {
        kind: workload.kind.to_string(),
        namespace: workload.namespace.to_string(),
        name: workload.name.to_string(),
    }
}

// === impl RolloutPhase ===

impl RolloutPhase {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
