//! Summarizes a LinkerdConfig for a person: whether it is in effect, how far its rollout is, and what to do next. Pure.
//!
//! In: a LinkerdConfig with its status, whether it is the one in effect, the time. Out: a [`ConfigSummary`], which
//! `linkerd-operator status` prints and the dashboard shows. Always holds: the sentence states the worst fact; a remedy
//! comes from the catalogue of reasons.

mod duration;
#[cfg(test)]
mod tests;

use std::time::Duration;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde::Serialize;

pub use self::duration::rounded;
use crate::{
    api::linkerd_config::{
        ConditionReason,
        ConditionType::{self, Accepted, ConfigMapSynced, InjectorSynced, Ready, RolloutComplete, Stalled},
        ConfigState, LinkerdConfigSpec, Mode, RolloutFailure, RolloutPods, RolloutSkipped, RolloutSpec, RolloutStatus,
    },
    cluster::kinds::linkerd_config::LinkerdConfig,
    reasons,
    text::counted,
};

/// The degree of attention that a LinkerdConfig needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Attention {
    /// Everything that the resource requests is done.
    Done,
    /// The operator makes progress without help.
    Progressing,
    /// The operator waits for a person, a window or another program.
    Waiting,
    /// Something failed.
    Problem,
}

/// One LinkerdConfig.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigSummary {
    pub name: String,
    pub target: String,
    pub mode: Mode,
    pub in_effect: bool,
    /// The [`ConfigState`].
    pub state: &'static str,
    pub attention: Attention,
    /// The reason of the condition that the sentence is about; empty if no condition exists yet.
    pub reason: String,
    /// The meaning of the reason, without details; absent if the sentence is not about a condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<&'static str>,
    /// One sentence.
    pub sentence: String,
    /// What a person should do next; absent if nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The command for the next step, to copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutSummary>,
    /// The warnings that do not prevent Ready, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The rollout of the LinkerdConfig in effect.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutSummary {
    pub phase: String,
    pub selected: i64,
    pub updated: i64,
    pub updating: i64,
    pub pending: i64,
    pub failed: i64,
    /// The time that the remaining restarts take at least with the limits of spec.rollout, without the time until Pods
    /// are ready; absent if no restart remains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_window: Option<Timestamp>,
    pub pods: RolloutPods,
    /// The workloads that are being restarted, as `namespace/Kind/name`.
    pub restarting: Vec<String>,
    pub failures: Vec<RolloutFailure>,
    pub skipped: Vec<RolloutSkipped>,
}

/// The conditions that are warnings.
const WARNINGS: [ConditionType; 4] = [
    ConditionType::ControlPlaneMismatch,
    ConditionType::IneffectiveValues,
    ConditionType::SuspectBase,
    ConditionType::VersionSkew,
];

// === impl ConfigSummary ===

impl ConfigSummary {
    pub fn new(config: &LinkerdConfig, in_effect: bool, now: Timestamp) -> Self {
        let rollout = config.status.rollout.as_ref().filter(|_| in_effect);
        let warnings =
            WARNINGS.into_iter().filter_map(|type_| config.status.condition(type_)).filter(|it| it.status == "True");
        let summary = Self {
            name: config.name.to_string(),
            target: config.target.to_string(),
            mode: config.spec.mode,
            in_effect,
            state: ConfigState::of(&config.status).as_str(),
            attention: Attention::Done,
            reason: String::new(),
            title: None,
            sentence: String::new(),
            next: None,
            command: None,
            rollout: rollout.map(|rollout| RolloutSummary::new(&config.spec, rollout)),
            warnings: warnings.map(|it| format!("{}: {}", it.reason, it.message)).collect(),
        };
        summary.judged(config, now)
    }

    /// Adds the sentence, with its subject and the next step.
    fn judged(self, config: &LinkerdConfig, now: Timestamp) -> Self {
        let status = &config.status;
        if status.observed_generation.is_none_or(|seen| seen < config.generation) {
            let sentence = "the operator has not processed the last change of the resource yet";
            return Self {
                next: Some("If this persists, run linkerd-operator check.".to_owned()),
                ..self.with_sentence(Attention::Progressing, "", sentence)
            };
        }
        let accepted = status.condition(Accepted);
        let reason = status.reason(Accepted);
        if let Some(accepted) = accepted.filter(|_| reason == Some(ConditionReason::Conflicted)) {
            let sentence = format!("in reserve: {}", accepted.message);
            return Self { sentence, next: None, ..self.with_condition(Attention::Done, accepted, None) };
        }
        if !self.in_effect {
            return self.with_sentence(Attention::Done, "", "it is not in effect");
        }
        let run = |arguments: &str| Some(format!("linkerd-operator {arguments} {}", config.name));
        if let Some(stalled) = status.condition(Stalled) {
            let command = match ConditionReason::of(stalled) {
                Some(ConditionReason::RolloutHalted) => run("rollout retry"),
                Some(ConditionReason::RolledBack | ConditionReason::Denied | ConditionReason::CanaryFailed) => {
                    run("explain")
                }
                _ => None,
            };
            return self.with_condition(Attention::Problem, stalled, command);
        }
        if let Some(accepted) = accepted.filter(|it| it.status == "False") {
            return match reason == Some(ConditionReason::Suspended) {
                true => self.with_condition(Attention::Waiting, accepted, run("rollout resume")),
                false => self.with_condition(Attention::Problem, accepted, run("explain")),
            };
        }
        if let Some(ready) = status.condition(Ready).filter(|it| it.status != "True") {
            let attention = match ConditionReason::of(ready) {
                Some(ConditionReason::Propagating | ConditionReason::Canary) => Attention::Progressing,
                _ => Attention::Problem,
            };
            let cause = [ConfigMapSynced, InjectorSynced].into_iter().filter_map(|type_| status.condition(type_));
            let cause = cause.filter(|it| it.status != "True").find(|it| it.reason == ready.reason);
            return self.with_condition(attention, cause.unwrap_or(ready), None);
        }
        if config.spec.mode == Mode::Observe {
            return match status.condition(ConfigMapSynced) {
                Some(differs) if differs.status == "False" => {
                    let sentence = format!("it observes and writes nothing: {}", differs.message);
                    Self { sentence, ..self.with_condition(Attention::Done, differs, run("explain")) }
                }
                _ => self.with_sentence(
                    Attention::Done,
                    "Observing",
                    "it observes and writes nothing, and the ConfigMap holds the declared values",
                ),
            };
        }
        match status.condition(RolloutComplete) {
            Some(complete) => self.with_rollout(config, complete, now),
            None => self.with_sentence(Attention::Done, "Reconciled", "the declared configuration is in effect"),
        }
    }

    /// Adds the sentence of a condition.
    fn with_condition(self, attention: Attention, condition: &Condition, command: Option<String>) -> Self {
        Self {
            attention,
            reason: condition.reason.clone(),
            title: reasons::title(&condition.type_, &condition.reason),
            sentence: condition.message.clone(),
            next: reasons::remedy(&condition.type_, &condition.reason).map(str::to_owned),
            command,
            ..self
        }
    }

    fn with_sentence(self, attention: Attention, reason: &str, sentence: &str) -> Self {
        Self { attention, reason: reason.to_owned(), sentence: sentence.to_owned(), ..self }
    }

    /// Adds the sentence about a rollout. `complete` is the condition RolloutComplete.
    fn with_rollout(self, config: &LinkerdConfig, complete: &Condition, now: Timestamp) -> Self {
        if complete.status == "True" {
            return self.with_condition(Attention::Done, complete, None);
        }
        let run = |arguments: &str| Some(format!("linkerd-operator {arguments} {}", config.name));
        let reason = ConditionReason::of(complete);
        let command = match reason {
            Some(ConditionReason::Paused) => run("rollout resume"),
            Some(ConditionReason::WorkloadsFailed) => run("rollout retry"),
            Some(ConditionReason::WorkloadsSkipped | ConditionReason::NoProgress) => run("explain --workloads"),
            _ => None,
        };
        let attention = match reason {
            // These end without help.
            Some(
                ConditionReason::Progressing
                | ConditionReason::Canary
                | ConditionReason::WaitingForConfigMap
                | ConditionReason::WaitingForInjector,
            ) => Attention::Progressing,
            Some(
                ConditionReason::NoProgress
                | ConditionReason::Halted
                | ConditionReason::RolledBack
                | ConditionReason::WorkloadsFailed
                | ConditionReason::WriteFailed,
            ) => Attention::Problem,
            _ => Attention::Waiting,
        };
        let summary = self.with_condition(attention, complete, command);
        let window = config.status.rollout.as_ref().and_then(|rollout| rollout.next_window.as_ref());
        match window.filter(|_| reason == Some(ConditionReason::OutsideWindow)) {
            Some(opens) => {
                let wait = Duration::try_from(opens.0.duration_since(now)).unwrap_or_default();
                let next = format!("Wait: restarts begin in {}, at {}.", rounded(wait), opens.0);
                Self { next: Some(next), ..summary }
            }
            None => summary,
        }
    }
}

// === impl RolloutSummary ===

impl RolloutSummary {
    fn new(spec: &LinkerdConfigSpec, rollout: &RolloutStatus) -> Self {
        let counts = rollout.workloads.unwrap_or_default();
        let remaining = usize::try_from(counts.pending.saturating_add(counts.updating)).unwrap_or_default();
        let selected = usize::try_from(counts.selected).unwrap_or_default();
        let restarts = !matches!(rollout.phase.as_deref(), Some("Idle" | "Complete" | "RolledBack"));
        let at_least = at_least(&spec.rollout, remaining, selected).filter(|_| restarts);
        Self {
            phase: rollout.phase.clone().unwrap_or_default(),
            selected: counts.selected,
            updated: counts.updated,
            updating: counts.updating,
            pending: counts.pending,
            failed: counts.failed,
            at_least_seconds: at_least.map(|time| time.as_secs()),
            next_window: rollout.next_window.as_ref().map(|time| time.0),
            pods: rollout.pods.unwrap_or_default(),
            restarting: rollout.updating.iter().map(|it| format!("{}/{}/{}", it.namespace, it.kind, it.name)).collect(),
            failures: rollout.failures.clone(),
            skipped: rollout.skipped.clone(),
        }
    }

    /// Returns the counts in a few words, such as `69 of 167 workloads updated, 1 restarting, 97 pending`.
    pub fn progress(&self) -> String {
        let selected = counted(usize::try_from(self.selected).unwrap_or_default(), "workload");
        let mut text = format!("{} of {selected} updated", self.updated);
        for (count, what) in [(self.updating, "restarting"), (self.pending, "pending"), (self.failed, "failed")] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        text
    }
}

/// Returns the time that restarts of this number of workloads take at least: each begins `interval` after the one
/// before, and keeps one of the `maxConcurrent` places for `soak`. `None` if none remains.
pub fn at_least(spec: &RolloutSpec, remaining: usize, selected: usize) -> Option<Duration> {
    if remaining == 0 {
        return None;
    }
    let times = |time: Duration, count: usize| time.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
    let turns = remaining.div_ceil(spec.max_concurrent(selected));
    let by_places = times(spec.soak(), turns);
    let by_interval = times(spec.interval(), remaining - 1).saturating_add(spec.soak());
    Some(by_places.max(by_interval))
}
