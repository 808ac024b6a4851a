//! Conditions that have to hold before any restart begins. Pure.
//!
//! In: a LinkerdConfig and its status. Out: the first [`Gate`] that is closed, if any. The engine adds the gates that
//! depend on the time and on the cluster.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use super::key::RolloutKey;
use crate::{
    api::{
        INJECTORS_CONFIG_MAP, LinkerdConfigStatus,
        linkerd_config::{DriftAction, Mode, OnTimeout, RolloutPolicy},
    },
    cluster::kinds::linkerd_config::LinkerdConfig,
    linkerd_config::conditions::{CANARY, CONFIG_MAP_SYNCED, CONTESTED, RESTORED},
};

/// Annotation of a LinkerdConfig. Its value is the hash of an approved bundle that has no trust anchor of some running
/// Pods.
pub const APPROVE_ANNOTATION: &str = "config.linkerd.io/approve-trust-roots";

pub const OUTSIDE_WINDOW: &str = "OutsideWindow";
pub const PAUSED: &str = "Paused";
pub const DISABLED: &str = "RolloutDisabled";
const ROLLED_BACK: &str = "RolledBack";
const WAITING_FOR_CONFIG_MAP: &str = "WaitingForConfigMap";
/// The reasons of RolloutComplete while the document in force is not the declared one.
pub const UNDECLARED: [&str; 3] = [CANARY, ROLLED_BACK, WAITING_FOR_CONFIG_MAP];

/// A closed gate: the reason and the message of the condition RolloutComplete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    pub reason: &'static str,
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
        self.closed.as_ref().filter(|gate| gate.reason == DISABLED)
    }
}

/// Returns why the document in force is not the declared one.
pub(super) fn undeclared(status: &LinkerdConfigStatus) -> Option<Gate> {
    let synced = status.conditions.iter().find(|condition| condition.type_ == CONFIG_MAP_SYNCED);
    let gate = |reason, message: &str| Some(Gate { reason, message: message.to_owned() });
    match synced {
        Some(synced) if synced.status == "True" => None,
        Some(synced) if synced.reason == CANARY => {
            gate(CANARY, "only the canary namespaces get the declared configuration: see status.canary")
        }
        Some(synced) if synced.reason == RESTORED => {
            gate(ROLLED_BACK, "the declared configuration was rolled back: see the condition Stalled")
        }
        _ => gate(
            WAITING_FOR_CONFIG_MAP,
            "the ConfigMap does not have the declared configuration: see the conditions Accepted and ConfigMapSynced",
        ),
    }
}

/// Returns the first closed gate. `trust` is the trust anchors' part of the key.
pub(super) fn closed_gate(config: &LinkerdConfig, status: &LinkerdConfigStatus, trust: Option<&str>) -> Option<Gate> {
    let gate = |reason, message: String| Some(Gate { reason, message });
    let condition = |type_: &str| status.conditions.iter().find(|condition| condition.type_ == type_);
    if config.spec.mode != Mode::Enforce {
        return gate(DISABLED, format!("mode is {:?}", config.spec.mode));
    }
    if config.spec.rollout.policy == RolloutPolicy::Off {
        return gate(DISABLED, "spec.rollout.policy is Off".to_owned());
    }
    if *config.target.name != *INJECTORS_CONFIG_MAP {
        return gate(DISABLED, "no injector reads this ConfigMap".to_owned());
    }
    // A change that is only reported stays in the document, which the injectors use. After a rollback, workloads return
    // to the document that the ConfigMap has. During a canary, the ConfigMap has the document of all other namespaces.
    let reports_drift = config.spec.drift.action == DriftAction::Report && condition("Stalled").is_none();
    let has_document = |synced: &Condition| {
        synced.status == "True"
            || [RESTORED, CANARY].contains(&&*synced.reason)
            || synced.reason == "Drifted" && reports_drift
    };
    if !condition("ConfigMapSynced").is_some_and(has_document) {
        return gate(
            WAITING_FOR_CONFIG_MAP,
            "the ConfigMap does not have the declared configuration: see the condition ConfigMapSynced".to_owned(),
        );
    }
    // Pods that are created while another writer keeps restoring its document would be out of date again.
    if condition("Stalled").is_some_and(|stalled| CONTESTED.contains(&&*stalled.reason)) {
        return gate(
            WAITING_FOR_CONFIG_MAP,
            "another writer keeps changing the ConfigMap: see the condition Stalled".to_owned(),
        );
    }
    let rolled_back = status.rollout.as_ref().and_then(|rollout| rollout.rolled_back.as_deref());
    let injection_hash = status.injection_hash.as_deref().unwrap_or_default();
    if rolled_back.is_some_and(|key| *key == *RolloutKey::of(injection_hash, trust, None).as_str()) {
        return gate(WAITING_FOR_CONFIG_MAP, "the configuration is being rolled back".to_owned());
    }
    let synced = condition("InjectorSynced");
    // After a denial, InjectorSynced shows the answer to the declared document. The restored one has its own answers.
    let counts = status.injector.as_ref().map(|injector| (injector.ready.unwrap_or_default(), injector.synced));
    let is_restored = condition(CONFIG_MAP_SYNCED).is_some_and(|synced| synced.reason == RESTORED);
    if is_restored && counts.is_some_and(|(ready, synced)| ready > 0 && synced == Some(ready)) {
        return None;
    }
    let proceeds = config.spec.injector_sync.on_timeout == OnTimeout::Proceed;
    let is_open = |synced: &&Condition| synced.status != "False" || synced.reason == "Timeout" && proceeds;
    match synced.filter(is_open) {
        Some(_) => None,
        None => {
            let message = synced.map_or("the state of the injectors is unknown", |synced| &synced.message);
            gate("WaitingForInjector", message.to_owned())
        }
    }
}
