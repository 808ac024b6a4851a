//! What a LinkerdConfig is told about its rollout. Pure.
//!
//! In: how far it is, the status as it was and as it is without that. Out: `status.rollout`, the condition RolloutComplete, which
//! document all workloads ran with. Always holds: what was true of another hash is not said of this one.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{
    goal::{Goal, RolloutKey},
    verdict::{Complete, DISABLED, Phase, Progress},
};
use crate::{
    api::linkerd_config::{LinkerdConfigStatus, RolloutStatus},
    linkerd_config::status::{Told, condition},
};

const TYPE: &str = "RolloutComplete";

/// `after`: all else that the resource is told. `revision`: of what is declared now.
pub fn tell(
    after: &mut LinkerdConfigStatus,
    before: &LinkerdConfigStatus,
    goal: &Goal,
    progress: Option<&Progress>,
    revision: Option<i64>,
    now: Timestamp,
) {
    let rollout = after.rollout.take().unwrap_or_default();
    let known = before.rollout.clone().unwrap_or_default();
    let hash =
        goal.marker.as_deref().map(|marker| RolloutKey::of(marker, goal.trust_roots.as_deref(), None).to_string());
    // Whatever was told of the same try.
    let same = Some(&known).filter(|known| known.hash == hash && known.retry == rollout.retry);
    let complete = match progress {
        Some(progress) => Some(progress.complete.clone()),
        None => unknown(goal),
    };
    let generation = after.observed_generation.unwrap_or_default();
    let told = match complete {
        Some(Complete { holds, reason, message }) => {
            condition(&Told(TYPE, Some(holds), reason, message), before, generation, now)
        }
        None => match before.conditions.iter().find(|it| it.type_ == TYPE && same.is_some()) {
            // Somebody else has led until now: it is as it was until it was looked at.
            Some(known) => {
                let mut known = known.clone();
                known.observed_generation = Some(generation);
                known
            }
            None => {
                let message =
                    "the workloads are being looked at; if that lasts, /ready says what cannot be watched".to_owned();
                condition(&Told(TYPE, Some(false), "Progressing", message), before, generation, now)
            }
        },
    };
    let of_same = same.cloned().unwrap_or_default();
    let holds = told.status == "True";
    let phase = match progress {
        Some(progress) => progress.phase.as_str().to_owned(),
        None if goal.closed.as_ref().is_some_and(|closed| closed.reason == DISABLED) => Phase::Idle.as_str().to_owned(),
        None => of_same.phase.clone().unwrap_or_else(|| Phase::Waiting.as_str().to_owned()),
    };
    let is_progressing = progress.is_some_and(|progress| progress.workloads.updating > 0);
    let started_at = of_same.started_at.clone().or_else(|| is_progressing.then_some(Time(now)));
    let is_complete = phase == Phase::Complete.as_str();
    let completed_at = match &started_at {
        Some(_) if is_complete => of_same.completed_at.clone().or(Some(Time(now))),
        _ => None,
    };
    if phase == Phase::Halted.as_str() && !after.conditions.iter().any(|condition| condition.type_ == "Stalled") {
        let stalled = Told("Stalled", Some(true), "RolloutHalted", told.message.clone());
        after.conditions.push(condition(&stalled, before, generation, now));
    }
    let at = after.conditions.iter().position(|it| it.type_ == "Stalled").unwrap_or(after.conditions.len());
    after.conditions.insert(at, told);
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
        None => of_same,
    };
    let RolloutStatus { adopted_at, baseline_hash, rolled_back, retry, .. } = rollout;
    after.rollout = Some(RolloutStatus {
        phase: Some(phase),
        hash,
        started_at,
        completed_at,
        adopted_at,
        baseline_hash,
        rolled_back,
        retry,
        ..counts
    });
    let is_of_this = |progress: &&Progress| progress.goal.rolled_back.is_none() && goal.rolled_back.is_none();
    if holds && progress.filter(is_of_this).is_some() && goal.closed.is_none() {
        let revisions = after.revisions.get_or_insert_default();
        revisions.last_rolled_out = revision.or(revisions.last_rolled_out);
    }
    if let (Some(drift), Some(progress)) = (&mut after.drift, progress.filter(|progress| !progress.suspects)) {
        let is_judged = |from: Option<Timestamp>, to: Option<Timestamp>| {
            to.is_some() && progress.goal.drift.iter().any(|span| Some(span.from) == from && span.to == to)
        };
        let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
        drift.windows.retain(|window| !is_judged(time(&window.from), time(&window.to)));
    }
}

/// What is known without a look.
fn unknown(goal: &Goal) -> Option<Complete> {
    let closed = goal.closed.as_ref().filter(|closed| closed.reason == DISABLED)?;
    Some(Complete { holds: false, reason: closed.reason, message: closed.message.clone() })
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
