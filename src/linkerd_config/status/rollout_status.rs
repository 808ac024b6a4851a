//! The rollout part of a LinkerdConfig's status. Pure.
//!
//! In: the progress, the previous status, and the rest of the new status. Out: `status.rollout`, the condition
//! RolloutComplete, the last revision that was rolled out. Always holds: no result of another hash, and no success of
//! another generation, is reported for the current one.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use super::conditions::{ConditionRow, MAX_MESSAGE_BYTES, to_condition};
use crate::{
    api::linkerd_config::{
        ConditionReason,
        ConditionType::{InjectorSynced, RolloutComplete, Stalled},
        DriftWindow, LinkerdConfigStatus, RolloutStatus,
    },
    rollout::{
        gate::Gate,
        key::RolloutKey,
        progress::{CompleteCondition, RolloutPhase, RolloutProgress},
        target::RolloutTarget,
    },
    text::truncated,
};

/// The inputs of the rollout part of a status, besides the rest of the status.
pub(in crate::linkerd_config) struct RolloutPart<'a> {
    pub(in crate::linkerd_config) before: &'a LinkerdConfigStatus,
    pub(in crate::linkerd_config) target: &'a RolloutTarget,
    /// `None` until the engine has assessed the workloads for this target.
    pub(in crate::linkerd_config) progress: Option<&'a RolloutProgress>,
    /// The declared revision, if the ConfigMap has its document.
    pub(in crate::linkerd_config) revision: Option<i64>,
    /// Why a required rollback restores nothing.
    pub(in crate::linkerd_config) rollback_refused: Option<&'a str>,
    pub(in crate::linkerd_config) now: Timestamp,
}

/// The previous rollout and its condition, as far as they are about the same target.
struct KnownRollout {
    rollout: Option<RolloutStatus>,
    condition: Option<Condition>,
}

// === impl RolloutPart ===

impl RolloutPart<'_> {
    /// Returns the status with its rollout part. `after` has the rest.
    pub(in crate::linkerd_config) fn add_to(&self, mut after: LinkerdConfigStatus) -> LinkerdConfigStatus {
        let rollout = after.rollout.take().unwrap_or_default();
        let generation = after.observed_generation.unwrap_or_default();
        let known = self.known(&rollout, generation);
        let complete = self.complete(known.condition.as_ref(), generation);
        let holds = complete.status == "True";
        let phase = self.phase(&known, holds);
        if phase == RolloutPhase::Halted.as_str() && after.condition(Stalled).is_none() {
            let halted = ConditionReason::RolloutHalted;
            let stalled = ConditionRow::new(Stalled, Some(true), halted, complete.message.clone());
            after.conditions.push(to_condition(&stalled, self.before, generation, self.now));
        }
        let at = after.conditions.iter().position(|it| it.type_ == Stalled.as_str()).unwrap_or(after.conditions.len());
        after.conditions.insert(at, complete);
        after.rollout = Some(self.rollout(rollout, known, phase));
        if holds {
            self.note_proof(&mut after);
        }
        if let Some(progress) = self.progress {
            if let Some(anchors) = &mut after.trust_anchors {
                anchors.replaced.clone_from(&progress.replaced);
            }
            if let Some(drift) = &mut after.drift {
                drift.windows.retain(|window| !is_judged(window, progress));
            }
        }
        after
    }

    fn hash(&self) -> Option<String> {
        let proxies = &self.target.proxies;
        let key = |hash| RolloutKey::of(hash, proxies.trust.key(), None).to_string();
        proxies.injection_hash.as_deref().map(key)
    }

    /// Returns the parts of the previous status that are about the same hash and retry. Until the engine has assessed
    /// the workloads for this target, the condition of another leader or of the previous generation stays, with its
    /// observedGeneration. Success of another generation is not kept, and neither is a statement about the document in
    /// force that is no longer true.
    fn known(&self, rollout: &RolloutStatus, generation: i64) -> KnownRollout {
        let known = self.before.rollout.clone().unwrap_or_default();
        let same = Some(known).filter(|known| known.hash == self.hash() && known.retry == rollout.retry);
        let is_declared = self.target.gates.undeclared.is_none();
        let is_kept = |condition: &&Condition| match condition.status.as_str() {
            "True" => condition.observed_generation == Some(generation) && is_declared,
            _ => !(is_declared && ConditionReason::of(condition).is_some_and(ConditionReason::is_undeclared)),
        };
        let condition = self.before.condition(RolloutComplete).filter(|_| same.is_some()).filter(is_kept).cloned();
        KnownRollout { rollout: same, condition }
    }

    /// Returns the condition RolloutComplete. `known` is the previous one, if it may stay.
    fn complete(&self, known: Option<&Condition>, generation: i64) -> Condition {
        let row = match (self.progress, self.target.gates.disabled(), known) {
            (Some(progress), ..) => declared_only(&progress.complete, self.target),
            // A disabled rollout needs no assessment.
            (None, Some(Gate { reason, message }), _) => incomplete(*reason, message),
            (None, None, Some(known)) => {
                let message = self.with_refusal(ConditionReason::of(known), &known.message);
                return Condition { message: truncated(message, MAX_MESSAGE_BYTES), ..known.clone() };
            }
            (None, None, None) => {
                let message = "the workloads are being assessed; if this persists, see /ready for failing watches";
                incomplete(ConditionReason::Progressing, message)
            }
        };
        let CompleteCondition { holds, reason, message } = row;
        let message = self.with_refusal(Some(reason), &message);
        let row = ConditionRow::new(RolloutComplete, Some(holds), reason, message);
        to_condition(&row, self.before, generation, self.now)
    }

    /// Returns the message; for a halted rollout, with the reason why nothing was rolled back.
    fn with_refusal(&self, reason: Option<ConditionReason>, message: &str) -> String {
        let is_halted = reason == Some(ConditionReason::Halted);
        match self.rollback_refused.filter(|why| is_halted && !message.starts_with(why)) {
            Some(why) => format!("{why}; {message}"),
            None => message.to_owned(),
        }
    }

    fn phase(&self, known: &KnownRollout, holds: bool) -> String {
        let phase = match self.progress {
            Some(progress) if progress.phase == RolloutPhase::Complete && !holds => RolloutPhase::Waiting,
            Some(progress) => progress.phase,
            None if self.target.gates.disabled().is_some() => RolloutPhase::Idle,
            None => {
                let kept = known.rollout.as_ref().filter(|_| known.condition.is_some());
                return match kept.and_then(|kept| kept.phase.clone()) {
                    Some(phase) => phase,
                    None => RolloutPhase::Waiting.as_str().to_owned(),
                };
            }
        };
        phase.as_str().to_owned()
    }

    /// Returns `status.rollout`. `base` has the fields that are computed with the rest of the status.
    fn rollout(&self, base: RolloutStatus, known: KnownRollout, phase: String) -> RolloutStatus {
        let previous = known.rollout.unwrap_or_default();
        let is_progressing = self.progress.is_some_and(|progress| progress.workloads.updating > 0);
        let started_at = previous.started_at.clone().or_else(|| is_progressing.then_some(Time(self.now)));
        let completed_at = match &started_at {
            Some(_) if phase == RolloutPhase::Complete.as_str() => {
                previous.completed_at.clone().or(Some(Time(self.now)))
            }
            // A rollout that turns out to be complete after the assessment does not complete a second time.
            Some(_) if self.progress.is_none() => previous.completed_at.clone(),
            _ => None,
        };
        let counts = match self.progress {
            Some(progress) => counts(progress),
            None if known.condition.is_some() => previous,
            None => RolloutStatus::default(),
        };
        let RolloutStatus { adopted_at, baseline_hash, installed_hash, rolled_back, retry, declared_hash, .. } = base;
        RolloutStatus {
            phase: Some(phase),
            hash: self.hash(),
            started_at,
            completed_at,
            adopted_at,
            baseline_hash,
            installed_hash,
            rolled_back,
            retry,
            declared_hash,
            ..counts
        }
    }

    /// Notes that all workloads run with the declared document.
    fn note_proof(&self, after: &mut LinkerdConfigStatus) {
        let is_of_this =
            |progress: &RolloutProgress| progress.target.rolled_back.is_none() && self.target.rolled_back.is_none();
        if !self.progress.is_some_and(is_of_this) {
            return;
        }
        let is_unproven = after.fails(InjectorSynced);
        let revisions = after.revisions.get_or_insert_default();
        revisions.last_rolled_out = self.revision.or(revisions.last_rolled_out);
        // The injectors may have accepted the document, and now deny Pods for another reason.
        let is_accepted =
            revisions.last_known_good_hash.is_some() && revisions.last_known_good_hash == after.injection_hash;
        if self.revision.is_some() && (is_accepted || !is_unproven) {
            // The document is proven: a later failure has another cause, so it must not take the document back.
            revisions.previous = None;
        }
    }
}

fn counts(progress: &RolloutProgress) -> RolloutStatus {
    RolloutStatus {
        workloads: Some(progress.workloads),
        pods: Some(progress.pods),
        summary: Some(format!("{}/{}", progress.workloads.updated, progress.workloads.selected)),
        updating: progress.updating.clone(),
        failures: progress.failures.clone(),
        skipped: progress.skipped.clone(),
        next_window: progress.next_window.map(Time),
        ..RolloutStatus::default()
    }
}

/// Whether every Pod from this window of drift was found to be replaced.
fn is_judged(window: &DriftWindow, progress: &RolloutProgress) -> bool {
    let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
    let (from, to) = (time(&window.from), time(&window.to));
    let mut ranges = progress.target.proxies.drift.iter();
    !progress.suspects && to.is_some() && ranges.any(|range| Some(range.from) == from && range.to == to)
}

/// Returns the condition of a rollout, which is not True while the document in force is not the declared one.
fn declared_only(complete: &CompleteCondition, target: &RolloutTarget) -> CompleteCondition {
    match target.gates.undeclared.as_ref().filter(|_| complete.holds) {
        Some(Gate { reason, message }) => incomplete(*reason, &format!("{message}; {}", complete.message)),
        None => complete.clone(),
    }
}

fn incomplete(reason: ConditionReason, message: &str) -> CompleteCondition {
    CompleteCondition { holds: false, reason, message: message.to_owned() }
}

#[cfg(test)]
#[path = "rollout_status_tests.rs"]
mod tests;
