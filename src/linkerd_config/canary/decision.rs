//! Decides the next step of a canary: a declared document that the canary namespaces get first. Pure.
//!
//! In: the [`CanaryFacts`] from the API server, the injectors and the rollout. Out: the next action and
//! `status.canary`. Always holds: a document is promoted only after evidence that every selected workload of the canary
//! namespaces runs with it, or by the annotation; a document that failed is not tried again before a retry; the same
//! facts give the same decision, so that the next leader continues where the previous one stopped.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};

use crate::{
    api::{
        CANARY_CONFIG_MAP,
        linkerd_config::{
            CanaryPhase, CanaryPromotion, CanarySpec, CanaryStatus, OnFailure, RolloutSpec,
            annotations::PROMOTE_ANNOTATION,
        },
    },
    injection_probe::{CanaryAdoption, InjectorKind},
    rollout::totals::CanaryTotals,
};

use CanaryAction::{Hold, Promote, TakeBack, Write};
use CanaryPhase::{AwaitingPromotion, Failed, Progressing, Promoted, Soaking, Unsupported, Waiting};

/// The maximum number of namespaces in a status.
const MAX_NAMESPACES: usize = 10;
/// The interval at which a canary is decided again without a change: neither a change of namespaces nor a timeout of
/// the injectors triggers a reconcile.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The inputs of a decision.
pub(super) struct CanaryFacts<'a> {
    pub(super) spec: &'a CanarySpec,
    pub(super) rollout: &'a RolloutSpec,
    /// The injection hash of the declared document.
    pub(super) hash: &'a str,
    /// `status.canary`.
    pub(super) known: Option<&'a CanaryStatus>,
    /// Whether the declared values or the retry annotation changed since the status was written.
    pub(super) is_retried: bool,
    pub(super) written: WrittenCanary,
    pub(super) injectors: InjectorKind,
    /// The canary namespaces, by name.
    pub(super) namespaces: &'a [Arc<str>],
    /// The canary namespaces for which the injectors are probed; an error is the reason why no namespace is suitable.
    pub(super) probed: Result<Vec<Arc<str>>, String>,
    pub(super) adoption: CanaryAdoption,
    /// `None` before the workloads were compared with the document.
    pub(super) workloads: Option<CanaryWorkloads>,
    /// The value of [`PROMOTE_ANNOTATION`].
    pub(super) promote: Option<&'a str>,
    pub(super) now: Timestamp,
}

/// The ConfigMap of the canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrittenCanary {
    Absent,
    /// Another writer created it.
    Foreign,
    /// The operator created it, and it differs from the declared document.
    Outdated,
    Current,
}

/// The selected workloads of the canary namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CanaryWorkloads {
    pub(super) totals: CanaryTotals,
    /// The first failure, for people.
    pub(super) failure: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::linkerd_config) enum CanaryAction {
    /// Nothing is written.
    Hold,
    /// The ConfigMap of the canary is written.
    Write,
    /// All namespaces get the document.
    Promote,
    /// The ConfigMap of the canary is deleted.
    TakeBack,
}

#[derive(Clone, Debug, PartialEq)]
pub(in crate::linkerd_config) struct CanaryDecision {
    pub(in crate::linkerd_config) action: CanaryAction,
    pub(in crate::linkerd_config) status: CanaryStatus,
    /// When to decide again without a change.
    pub(in crate::linkerd_config) recheck_after: Duration,
}

/// The facts, and the values derived from them for this document.
struct Case<'a> {
    facts: &'a CanaryFacts<'a>,
    /// `status.canary`, if it is about this document and its phase is not Failed.
    known: Option<&'a CanaryStatus>,
    /// Whether the annotation that would promote the document is from before the canary.
    promote_ignored: Option<bool>,
}

/// Decides about a declared document that differs from the one in force.
pub(super) fn decide(facts: &CanaryFacts<'_>) -> CanaryDecision {
    let failed = facts.known.filter(|known| known.phase == Failed && !facts.is_retried);
    let known = facts.known.filter(|known| known.hash == facts.hash && known.phase != Failed);
    // An annotation from before the canary may be left over from an earlier canary of the same configuration.
    let annotated = facts.promote == Some(facts.hash);
    let promote_ignored = (annotated && known.is_none_or(|known| known.promote_ignored == Some(true))).then_some(true);
    let case = Case { facts, known, promote_ignored };
    // The declared values failed. The hash does not matter: another document of the installer changes it.
    if let Some(failed) = failed {
        return CanaryDecision { status: failed.clone(), ..case.next(TakeBack, Failed, String::new()) };
    }
    if annotated && promote_ignored.is_none() {
        let message = format!("the annotation {PROMOTE_ANNOTATION} promoted the configuration");
        return case.next(Promote, Promoted, message);
    }
    if let Some(waits) = case.waits_for_write() {
        return waits;
    }
    if let Some(failure) = facts.workloads.as_ref().and_then(|workloads| failure(workloads, facts.rollout)) {
        let message = format!("workloads failed with the configuration: {failure}; {RETRY}");
        return case.next(TakeBack, Failed, message);
    }
    if facts.written != WrittenCanary::Current {
        return case.next(Write, Progressing, "the canary namespaces get the configuration".to_owned());
    }
    if let Some(waits) = case.waits_for_injectors() {
        return waits;
    }
    match &facts.workloads {
        Some(workloads) => case.judge(workloads),
        None => case.unchanged_or("the workloads of the canary namespaces are being assessed"),
    }
}

// === impl Case ===

impl Case<'_> {
    fn next(&self, action: CanaryAction, phase: CanaryPhase, message: String) -> CanaryDecision {
        let Self { facts, known, promote_ignored } = *self;
        let since = known.filter(|known| known.phase == phase).and_then(|known| known.since.clone());
        let status = CanaryStatus {
            phase,
            hash: facts.hash.to_owned(),
            since: since.or(Some(Time(facts.now))),
            namespaces: facts.namespaces.iter().take(MAX_NAMESPACES).map(ToString::to_string).collect(),
            promote_ignored,
            message,
        };
        CanaryDecision { action, status, recheck_after: RECHECK_INTERVAL }
    }

    /// Leaves a canary as it is.
    fn keep(&self, known: &CanaryStatus) -> CanaryDecision {
        let status = CanaryStatus { promote_ignored: self.promote_ignored, ..known.clone() };
        CanaryDecision { status, ..self.next(Hold, known.phase, String::new()) }
    }

    fn progressing(&self, message: &str) -> CanaryDecision {
        self.next(Hold, Progressing, message.to_owned())
    }

    /// Keeps a soak that has begun: without evidence, as after a change of the leader, it neither ends nor begins
    /// again.
    fn unchanged_or(&self, message: &str) -> CanaryDecision {
        self.begun_soak().map_or_else(|| self.progressing(message), |known| self.keep(known))
    }

    fn begun_soak(&self) -> Option<&CanaryStatus> {
        self.known.filter(|known| matches!(known.phase, Soaking | AwaitingPromotion))
    }

    /// Returns the decision of a canary whose ConfigMap cannot be written yet.
    fn waits_for_write(&self) -> Option<CanaryDecision> {
        let facts = self.facts;
        // A former leader may have deleted the ConfigMap because of a failure that its status does not show yet.
        let is_unassessed = facts.injectors == InjectorKind::Unknown
            || facts.injectors == InjectorKind::Operators && facts.workloads.is_none() && facts.probed.is_ok();
        let active = self.known.filter(|known| known.phase.is_active());
        if let Some(active) = active.filter(|_| facts.written == WrittenCanary::Absent && is_unassessed) {
            return Some(self.keep(active));
        }
        let (phase, message) = match (facts.written, &facts.injectors) {
            (WrittenCanary::Foreign, _) => {
                let message = format!(
                    "another writer created ConfigMap {CANARY_CONFIG_MAP}, so the operator does not write it: delete it"
                );
                (Waiting, message)
            }
            (WrittenCanary::Absent, InjectorKind::Unknown) => {
                let message = "not every replica of the proxy injector has answered yet, so it is unknown whether they support a canary";
                (Waiting, message.to_owned())
            }
            (WrittenCanary::Absent, InjectorKind::Other(replica)) => (Unsupported, unsupported(replica)),
            (WrittenCanary::Absent, InjectorKind::Operators) => (Waiting, facts.probed.as_ref().err()?.clone()),
            (WrittenCanary::Outdated | WrittenCanary::Current, _) => return None,
        };
        Some(self.next(Hold, phase, message))
    }

    /// Returns the decision of a canary that the injectors have not adopted.
    fn waits_for_injectors(&self) -> Option<CanaryDecision> {
        let facts = self.facts;
        let probed = match &facts.probed {
            Ok(probed) => probed.join(", "),
            Err(why) => return Some(self.unchanged_or(why)),
        };
        match (&facts.adoption, &facts.injectors) {
            (CanaryAdoption::Refused(_), InjectorKind::Other(replica)) => {
                Some(self.next(TakeBack, Unsupported, unsupported(replica)))
            }
            (CanaryAdoption::Refused(replica), _) => {
                let message = format!(
                    "{replica} does not inject the configuration into Pods of these canary namespaces: {probed}; see its log, \
                     and the annotations of these namespaces; {RETRY}"
                );
                Some(self.next(TakeBack, Failed, message))
            }
            (CanaryAdoption::Waiting, _) => {
                Some(self.unchanged_or("waiting for the injectors to use the configuration for the canary namespaces"))
            }
            (CanaryAdoption::Adopted, _) => None,
        }
    }

    /// Decides by the workloads, after their failures were found not to end the canary.
    fn judge(&self, workloads: &CanaryWorkloads) -> CanaryDecision {
        let CanaryFacts { spec, rollout, now, .. } = *self.facts;
        let CanaryTotals { selected, updated, uninjected, .. } = workloads.totals;
        if selected == 0 {
            return self.progressing(&format!(
                "no meshed workload of the canary namespaces opted in, so nothing shows that the configuration works; to promote it \
                 nevertheless, {}",
                to_promote(self.promote_ignored)
            ));
        }
        if uninjected > 0 {
            let first = workloads.failure.as_deref().unwrap_or("see status.rollout.failures");
            return self.progressing(&format!("workloads of the canary namespaces have Pods without a proxy: {first}"));
        }
        if updated < selected {
            return self.progressing(&format!(
                "{updated} of {selected} selected workloads of the canary namespaces run with the configuration"
            ));
        }
        let all = format!("all {selected} selected workloads of the canary namespaces run with the configuration");
        let begun = self.begun_soak();
        let left = soak_left(spec, begun, now);
        match left.filter(|_| begun.is_none_or(|known| known.phase != AwaitingPromotion)) {
            Some(left) => {
                let decision = self.next(Hold, Soaking, format!("{all}; the soak takes {:?}", spec.soak()));
                CanaryDecision { recheck_after: left.min(RECHECK_INTERVAL), ..decision }
            }
            None => match spec.promotion {
                CanaryPromotion::Manual => {
                    let message = format!("{all}; to promote it, {}", to_promote(self.promote_ignored));
                    self.next(Hold, AwaitingPromotion, message)
                }
                CanaryPromotion::Automatic if rollout.paused => {
                    let message = format!("{all}; not promoted while spec.rollout.paused is true");
                    self.next(Hold, AwaitingPromotion, message)
                }
                CanaryPromotion::Automatic => self.next(Promote, Promoted, all),
            },
        }
    }
}

const RETRY: &str = "it was taken back; to retry, change the declared values or the annotation config.linkerd.io/retry";

/// Returns how to promote a canary at once, for people.
fn to_promote(is_ignored: Option<bool>) -> String {
    match is_ignored {
        Some(true) => format!(
            "remove the annotation {PROMOTE_ANNOTATION}, which is from before the canary, and set it again to its hash"
        ),
        _ => format!("set the annotation {PROMOTE_ANNOTATION} to its hash"),
    }
}

fn unsupported(replica: &str) -> String {
    format!(
        "a canary needs the operator's own proxy injector, because Linkerd's has one configuration for all namespaces, and {replica} \
         is not the operator's: enable the operator's injector, or remove spec.canary; the declared configuration waits"
    )
}

/// Returns why the workloads end the canary.
fn failure(workloads: &CanaryWorkloads, rollout: &RolloutSpec) -> Option<String> {
    let CanaryTotals { selected, failures, uninjected, .. } = workloads.totals;
    let limit = rollout.max_failures(usize::try_from(selected).unwrap_or_default());
    // A Pod without a proxy says nothing about the configuration. It holds the canary, and takes nothing back.
    let failures = failures - uninjected;
    let is_over = usize::try_from(failures).unwrap_or_default() >= limit && rollout.on_failure != OnFailure::Continue;
    is_over.then(|| {
        let first = workloads.failure.as_ref().map(|first| format!(", the first is {first}")).unwrap_or_default();
        format!("{failures} of {selected}{first}")
    })
}

/// Returns the rest of the soak; `None` if it has passed.
fn soak_left(spec: &CanarySpec, begun: Option<&CanaryStatus>, now: Timestamp) -> Option<Duration> {
    let since = begun.and_then(|known| known.since.as_ref()).map_or(now, |since| since.0);
    let passed = Duration::try_from(now.duration_since(since).max(SignedDuration::ZERO)).unwrap_or_default();
    spec.soak().checked_sub(passed).filter(|left| !left.is_zero())
}

/// Returns `status.canary` after a plan that holds no document back. `in_force` is the injection hash of the document
/// that all namespaces get.
pub(in crate::linkerd_config) fn without_held_document(
    known: Option<&CanaryStatus>,
    in_force: Option<&str>,
    now: Timestamp,
) -> Option<CanaryStatus> {
    let known = known.filter(|known| Some(&*known.hash) == in_force && known.phase != CanaryPhase::Failed)?;
    Some(match known.phase {
        CanaryPhase::Promoted => known.clone(),
        // The former leader promoted it, and could not write the status.
        _ => CanaryStatus {
            phase: CanaryPhase::Promoted,
            since: Some(Time(now)),
            message: "all namespaces get the configuration".to_owned(),
            ..known.clone()
        },
    })
}

#[cfg(test)]
#[path = "decision_tests.rs"]
mod tests;
