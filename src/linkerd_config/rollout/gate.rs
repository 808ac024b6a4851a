//! Conditions that have to hold before any restart begins. Pure.
//!
//! In: a LinkerdConfig and its status. Out: the first [`Gate`] that is closed, if any. The engine adds the gates that
//! depend on the time and on the cluster.

use k8s_openapi::jiff::Timestamp;

use super::key::RolloutKey;
use crate::{
    api::{
        INJECTORS_CONFIG_MAP, LinkerdConfigStatus,
        linkerd_config::{
            ConditionReason,
            ConditionType::{ConfigMapSynced, InjectorSynced, Stalled},
            DriftAction, Mode, OnTimeout, RolloutPolicy,
        },
    },
    cluster::kinds::linkerd_config::LinkerdConfig,
};

/// Whether this reason of RolloutComplete says that the document in force is not the declared one.
pub fn is_undeclared(reason: ConditionReason) -> bool {
    matches!(reason, ConditionReason::Canary | ConditionReason::RolledBack | ConditionReason::WaitingForConfigMap)
}

/// A closed gate: the reason and the message of the condition RolloutComplete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    pub reason: ConditionReason,
    pub message: String,
}

/// The gates of a target that the controller can evaluate. They do not affect the assessment of workloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    /// The gate that blocks restarts, if any.
    pub closed: Option<Gate>,
    /// Why the document in force is not the declared one, if it is another one. Workloads may be restarted for it, but
    /// that does not complete the rollout of the declared document.
    pub undeclared: Option<Gate>,
    /// When the bundle of trust anchors was written: the control plane has to be restarted after that.
    pub trust_roots_written: Option<Timestamp>,
}

// === impl Gates ===

impl Gates {
    /// Returns the closed gate if the configuration disables rollouts.
    pub fn disabled(&self) -> Option<&Gate> {
        self.closed.as_ref().filter(|gate| gate.reason == ConditionReason::RolloutDisabled)
    }
}

/// Returns why the document in force is not the declared one.
pub(super) fn undeclared(status: &LinkerdConfigStatus) -> Option<Gate> {
    let gate = |reason, message: &str| Some(Gate { reason, message: message.to_owned() });
    match status.reason(ConfigMapSynced) {
        _ if status.holds(ConfigMapSynced) => None,
        Some(ConditionReason::Canary) => gate(
            ConditionReason::Canary,
            "only the canary namespaces get the declared configuration: see status.canary",
        ),
        Some(ConditionReason::Restored) => {
            gate(ConditionReason::RolledBack, "the declared configuration was rolled back: see the condition Stalled")
        }
        _ => gate(
            ConditionReason::WaitingForConfigMap,
            "the ConfigMap does not have the declared configuration: see the conditions Accepted and ConfigMapSynced",
        ),
    }
}

/// Returns the first closed gate. `trust` is the trust anchors' part of the key.
pub(super) fn closed_gate(config: &LinkerdConfig, status: &LinkerdConfigStatus, trust: Option<&str>) -> Option<Gate> {
    let gate = |reason, message: String| Some(Gate { reason, message });
    let disabled = |message| gate(ConditionReason::RolloutDisabled, message);
    let waits = |message: &str| gate(ConditionReason::WaitingForConfigMap, message.to_owned());
    if config.spec.mode != Mode::Enforce {
        return disabled(format!("mode is {:?}", config.spec.mode));
    }
    if config.spec.rollout.policy == RolloutPolicy::Off {
        return disabled("spec.rollout.policy is Off".to_owned());
    }
    if *config.target.name != *INJECTORS_CONFIG_MAP {
        return disabled("no injector reads this ConfigMap".to_owned());
    }
    // A change that is only reported stays in the document, which the injectors use. After a rollback, workloads return
    // to the document that the ConfigMap has. During a canary, the ConfigMap has the document of all other namespaces.
    let reports_drift = config.spec.drift.action == DriftAction::Report && status.condition(Stalled).is_none();
    let has_document = status.holds(ConfigMapSynced)
        || match status.reason(ConfigMapSynced) {
            Some(ConditionReason::Restored | ConditionReason::Canary) => true,
            Some(ConditionReason::Drifted) => reports_drift,
            _ => false,
        };
    if !has_document {
        return waits("the ConfigMap does not have the declared configuration: see the condition ConfigMapSynced");
    }
    // Pods that are created while another writer keeps restoring its document would be out of date again.
    if status.reason(Stalled).is_some_and(ConditionReason::is_contested) {
        return waits("another writer keeps changing the ConfigMap: see the condition Stalled");
    }
    let rolled_back = status.rollout.as_ref().and_then(|rollout| rollout.rolled_back.as_deref());
    let injection_hash = status.injection_hash.as_deref().unwrap_or_default();
    if rolled_back.is_some_and(|key| *key == *RolloutKey::of(injection_hash, trust, None).as_str()) {
        return waits("the configuration is being rolled back");
    }
    // After a denial, InjectorSynced shows the answer to the declared document. The restored one has its own answers.
    let counts = status.injector.as_ref().map(|injector| (injector.ready.unwrap_or_default(), injector.synced));
    let is_restored = status.reason(ConfigMapSynced) == Some(ConditionReason::Restored);
    if is_restored && counts.is_some_and(|(ready, synced)| ready > 0 && synced == Some(ready)) {
        return None;
    }
    let proceeds = config.spec.injector_sync.on_timeout == OnTimeout::Proceed;
    let is_late = status.reason(InjectorSynced) == Some(ConditionReason::Timeout);
    match status.condition(InjectorSynced) {
        Some(synced) if synced.status != "False" || is_late && proceeds => None,
        Some(synced) => gate(ConditionReason::WaitingForInjector, synced.message.clone()),
        None => gate(ConditionReason::WaitingForInjector, "the state of the injectors is unknown".to_owned()),
    }
}
