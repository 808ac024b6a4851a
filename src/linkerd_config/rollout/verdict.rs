//! How far the rollout is, for the status. Pure.
//!
//! In: the [`Board`], the [`Goal`], what keeps restarts from beginning. Out: a [`Progress`]. Always holds: RolloutComplete is true
//! only when every selected workload runs with what is wanted; whatever is left is explained.

use std::sync::Arc;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{
    board::Board,
    goal::{Gate, Goal},
};
use crate::{
    api::linkerd_config::{OnFailure, RolloutFailure, RolloutPods, RolloutSkipped, RolloutWorkload, RolloutWorkloads},
    cluster::index::workload_key::WorkloadKey,
};

/// Of each list in a status.
const LISTED: usize = 20;
/// Of workloads in a message.
const NAMED: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
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
pub struct Complete {
    pub holds: bool,
    pub reason: &'static str,
    pub message: String,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Of which goal.
    pub goal: Arc<Goal>,
    pub phase: Phase,
    pub complete: Complete,
    pub workloads: RolloutWorkloads,
    pub pods: RolloutPods,
    pub updating: Vec<RolloutWorkload>,
    pub failures: Vec<RolloutFailure>,
    pub skipped: Vec<RolloutSkipped>,
    pub next_window: Option<Timestamp>,
    /// Pods are left that were born while others had edited the document.
    pub suspects: bool,
    /// Too many failed, and the resource wants the configuration taken back.
    pub wants_rollback: bool,
}

/// Whether failures keep restarts from beginning.
pub fn is_halted(board: &Board, goal: &Goal) -> bool {
    // Pods without proxies are worse than old ones, whatever the resource says about failures.
    let failed = board.failed.len() >= goal.rollout().max_failures();
    board.totals.uninjected > 0 || failed && goal.rollout().on_failure != OnFailure::Continue
}

/// `gate`: why nothing may begin; `next_window`: when the window opens.
pub fn progress(board: &Board, goal: &Arc<Goal>, gate: Option<&Gate>, next_window: Option<Timestamp>) -> Progress {
    let totals = &board.totals;
    let (phase, complete) = judged(board, goal, gate);
    let wants_rollback =
        is_halted(board, goal) && goal.rollout().on_failure == OnFailure::Rollback && goal.rolled_back.is_none();
    let failure = |(workload, failure): (&WorkloadKey, &super::assess::Failure)| RolloutFailure {
        kind: workload.kind.to_string(),
        namespace: workload.namespace.to_string(),
        name: workload.name.to_string(),
        reason: failure.reason.clone(),
        message: failure.message.clone(),
        time: failure.started.map(Time),
    };
    Progress {
        goal: Arc::clone(goal),
        phase,
        complete,
        workloads: totals.workloads,
        pods: totals.pods,
        updating: board.in_flight().take(LISTED).map(reference).collect(),
        failures: board.failed.iter().take(LISTED).map(failure).collect(),
        skipped: totals
            .skipped
            .iter()
            .map(|(skip, count)| RolloutSkipped { reason: skip.as_str().to_owned(), count: *count })
            .collect(),
        next_window: next_window.filter(|_| gate.is_some_and(|gate| gate.reason == OUTSIDE_WINDOW)),
        suspects: totals.suspects > 0,
        wants_rollback,
    }
}

pub const OUTSIDE_WINDOW: &str = "OutsideWindow";
pub const PAUSED: &str = "Paused";
pub const DISABLED: &str = "RolloutDisabled";

fn judged(board: &Board, goal: &Goal, gate: Option<&Gate>) -> (Phase, Complete) {
    let totals = &board.totals;
    let RolloutWorkloads { selected, updated, updating, pending, failed, .. } = totals.workloads;
    let because = |phase, reason, message: String| (phase, Complete { holds: false, reason, message });
    let holds = |phase, reason, message: String| (phase, Complete { holds: true, reason, message });
    let so_far = format!("{updated} of {selected} workloads run with the configuration");
    if let Some(gate) = gate.filter(|gate| gate.reason == DISABLED) {
        return because(Phase::Idle, gate.reason, gate.message.clone());
    }
    if goal.rolled_back.is_some() {
        let message = format!(
            "workloads failed with the configuration, and it was taken back: change the resource; {so_far} before it"
        );
        return because(Phase::RolledBack, "RolledBack", message);
    }
    if selected == 0 {
        return holds(Phase::Idle, "NothingSelected", "no meshed workload opted in".to_owned());
    }
    if updated == selected {
        return holds(Phase::Complete, "UpToDate", format!("all {selected} workloads run with the configuration"));
    }
    if is_halted(board, goal) {
        let message = format!(
            "{}; change the resource, or its annotation config.linkerd.io/retry to try again; {so_far}",
            failures(board)
        );
        return because(Phase::Halted, "Halted", message);
    }
    if let Some(gate) = gate.filter(|_| pending > 0 || updating > 0) {
        let phase = if gate.reason == PAUSED { Phase::Paused } else { Phase::Waiting };
        return because(phase, gate.reason, format!("{}; {so_far}", gate.message));
    }
    if updating > 0 || board.is_startable() {
        return because(Phase::Progressing, "Progressing", so_far);
    }
    if let Some((workload, message)) = board.refused() {
        let message = format!("{workload} cannot be restarted: {message}; {so_far}");
        return because(Phase::Waiting, "WriteFailed", message);
    }
    if totals.blocked > 0 {
        let message = format!("waiting for PodDisruptionBudgets: {}; {so_far}", totals.blocked);
        return because(Phase::Waiting, "BlockedByPDB", message);
    }
    if failed > 0 {
        return because(Phase::Waiting, "WorkloadsFailed", format!("{}; {so_far}", failures(board)));
    }
    let reasons: Vec<String> =
        totals.skipped.iter().map(|(skip, count)| format!("{} {count}", skip.as_str())).collect();
    because(Phase::Waiting, "WorkloadsSkipped", format!("left alone: {}; {so_far}", reasons.join(", ")))
}

fn failures(board: &Board) -> String {
    let named = board.failed.iter().take(NAMED);
    let named = named.map(|(workload, failure)| format!("{workload}: {}: {}", failure.reason, failure.message));
    let named = named.collect::<Vec<_>>().join("; ");
    match board.failed.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named}; and {more} more"),
    }
}

fn reference(workload: &WorkloadKey) -> RolloutWorkload {
    RolloutWorkload {
        kind: workload.kind.to_string(),
        namespace: workload.namespace.to_string(),
        name: workload.name.to_string(),
    }
}

// === impl Phase ===

impl Phase {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::Waiting => "Waiting",
            Self::Progressing => "Progressing",
            Self::Paused => "Paused",
            Self::Halted => "Halted",
            Self::RolledBack => "RolledBack",
            Self::Complete => "Complete",
        }
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
