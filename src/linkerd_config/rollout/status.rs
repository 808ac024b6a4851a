//! The rollout part of a LinkerdConfig's status. Pure.
//!
//! In: the progress, the previous status, and the rest of the new status. Out: `status.rollout`, the condition
//! RolloutComplete, the last revision that was rolled out. Always holds: no result of another hash, and no success of
//! another generation, is reported for the current one.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{
    gate::{Gate, is_undeclared},
    key::RolloutKey,
    progress::{CompleteCondition, RolloutPhase, RolloutProgress},
    target::RolloutTarget,
};
use crate::{
    api::linkerd_config::{
        ConditionReason,
        ConditionType::{InjectorSynced, RolloutComplete, Stalled},
        LinkerdConfigStatus, RolloutStatus,
    },
    linkerd_config::conditions::{ConditionRow, to_condition},
};

/// Sets the rollout part of the status. `after` has the rest of the new status; `revision` is the declared revision.
pub fn set_rollout_status(
    after: &mut LinkerdConfigStatus,
    before: &LinkerdConfigStatus,
    target: &RolloutTarget,
    progress: Option<&RolloutProgress>,
    revision: Option<i64>,
    now: Timestamp,
) {
    let rollout = after.rollout.take().unwrap_or_default();
    let known = before.rollout.clone().unwrap_or_default();
    let hash = target
        .proxies
        .injection_hash
        .as_deref()
        .map(|hash| RolloutKey::of(hash, target.proxies.trust.key(), None).to_string());
    // The previous status, if it is about the same hash and retry.
    let same = Some(&known).filter(|known| known.hash == hash && known.retry == rollout.retry);
    let complete = match progress {
        Some(progress) => Some(declared_only(&progress.complete, target)),
        None => disabled(target),
    };
    let generation = after.observed_generation.unwrap_or_default();
    let known_condition = before.condition(RolloutComplete).filter(|_| same.is_some());
    // Until the engine has assessed the workloads for this target, the condition stays as another leader, or the
    // previous generation, left it. It keeps its observedGeneration. Success of another generation is not kept, and
    // neither is a statement about the document that is not true any more.
    let is_declared = target.gates.undeclared.is_none();
    let is_kept = known_condition.is_some_and(|it| match it.status.as_str() {
        "True" => it.observed_generation == Some(generation) && is_declared,
        _ => !(is_declared && ConditionReason::of(it).is_some_and(is_undeclared)),
    });
    let rollout_complete = match complete {
        Some(CompleteCondition { holds, reason, message }) => {
            to_condition(&ConditionRow::new(RolloutComplete, Some(holds), reason, message), before, generation, now)
        }
        None => match known_condition.filter(|_| is_kept) {
            Some(known) => known.clone(),
            None => {
                let message =
                    "the workloads are being assessed; if this persists, see /ready for failing watches".to_owned();
                to_condition(
                    &ConditionRow::new(RolloutComplete, Some(false), ConditionReason::Progressing, message),
                    before,
                    generation,
                    now,
                )
            }
        },
    };
    let previous = same.cloned().unwrap_or_default();
    let holds = rollout_complete.status == "True";
    let phase = match progress {
        Some(progress) if progress.phase == RolloutPhase::Complete && !holds => {
            RolloutPhase::Waiting.as_str().to_owned()
        }
        Some(progress) => progress.phase.as_str().to_owned(),
        None if target.gates.disabled().is_some() => RolloutPhase::Idle.as_str().to_owned(),
        None => {
            let kept = previous.phase.clone().filter(|_| is_kept);
            kept.unwrap_or_else(|| RolloutPhase::Waiting.as_str().to_owned())
        }
    };
    let is_progressing = progress.is_some_and(|progress| progress.workloads.updating > 0);
    let started_at = previous.started_at.clone().or_else(|| is_progressing.then_some(Time(now)));
    let is_complete = phase == RolloutPhase::Complete.as_str();
    let completed_at = match &started_at {
        Some(_) if is_complete => previous.completed_at.clone().or(Some(Time(now))),
        // A rollout that turns out to be complete after the assessment does not complete a second time.
        Some(_) if progress.is_none() => previous.completed_at.clone(),
        _ => None,
    };
    if phase == RolloutPhase::Halted.as_str() && after.condition(Stalled).is_none() {
        let stalled =
            ConditionRow::new(Stalled, Some(true), ConditionReason::RolloutHalted, rollout_complete.message.clone());
        after.conditions.push(to_condition(&stalled, before, generation, now));
    }
    let at = after.conditions.iter().position(|it| it.type_ == Stalled.as_str()).unwrap_or(after.conditions.len());
    after.conditions.insert(at, rollout_complete);
    let counts = match progress {
        Some(progress) => RolloutStatus {
            workloads: Some(progress.workloads),
            pods: Some(progress.pods),
            summary: Some(format!("{}/{}", progress.workloads.updated, progress.workloads.selected)),
            updating: progress.updating.clone(),
            failures: progress.failures.clone(),
            skipped: progress.skipped.clone(),
            next_window: progress.next_window.map(Time),
            ..RolloutStatus::default()
        },
        None if is_kept => previous,
        None => RolloutStatus::default(),
    };
    let RolloutStatus { adopted_at, baseline_hash, installed_hash, rolled_back, retry, .. } = rollout;
    after.rollout = Some(RolloutStatus {
        phase: Some(phase),
        hash,
        started_at,
        completed_at,
        adopted_at,
        baseline_hash,
        installed_hash,
        rolled_back,
        retry,
        ..counts
    });
    if let (Some(anchors), Some(progress)) = (&mut after.trust_anchors, progress) {
        anchors.replaced.clone_from(&progress.replaced);
    }
    let is_of_this =
        |progress: &&RolloutProgress| progress.target.rolled_back.is_none() && target.rolled_back.is_none();
    let is_unproven = after.fails(InjectorSynced);
    if holds && progress.filter(is_of_this).is_some() {
        let revisions = after.revisions.get_or_insert_default();
        revisions.last_rolled_out = revision.or(revisions.last_rolled_out);
        // The injectors may have accepted the document, and deny Pods for another reason since.
        let is_accepted =
            revisions.last_known_good_hash.is_some() && revisions.last_known_good_hash == after.injection_hash;
        if revision.is_some() && (is_accepted || !is_unproven) {
            // The document is proven: a later failure has another cause, so it must not take the document back.
            revisions.previous = None;
        }
    }
    if let (Some(drift), Some(progress)) = (&mut after.drift, progress.filter(|progress| !progress.suspects)) {
        let is_judged = |from: Option<Timestamp>, to: Option<Timestamp>| {
            to.is_some() && progress.target.proxies.drift.iter().any(|range| Some(range.from) == from && range.to == to)
        };
        let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
        drift.windows.retain(|window| !is_judged(time(&window.from), time(&window.to)));
    }
}

/// Returns the condition of a rollout. The workloads may run with another document than the declared one.
fn declared_only(complete: &CompleteCondition, target: &RolloutTarget) -> CompleteCondition {
    match target.gates.undeclared.as_ref().filter(|_| complete.holds) {
        Some(Gate { reason, message }) => {
            CompleteCondition { holds: false, reason: *reason, message: format!("{message}; {}", complete.message) }
        }
        None => complete.clone(),
    }
}

/// Returns the condition of a rollout that is disabled, which needs no assessment.
fn disabled(target: &RolloutTarget) -> Option<CompleteCondition> {
    let gate = target.gates.disabled()?;
    Some(CompleteCondition { holds: false, reason: gate.reason, message: gate.message.clone() })
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
