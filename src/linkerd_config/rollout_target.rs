//! Derives the target of the rollout engine from a LinkerdConfig. Pure.
//!
//! In: a LinkerdConfig in effect, its status, a [`RolloutContext`]. Out: a [`RolloutTarget`], with the first gate that
//! is closed, if any. Always holds: no other code derives a target from a status, so `explain` shows the target that
//! the engine gets.

use std::sync::Arc;

use crate::{
    api::{
        INJECTORS_CONFIG_MAP, LinkerdConfigStatus,
        linkerd_config::{
            ConditionReason,
            ConditionType::{ConfigMapSynced, InjectorSynced, Stalled},
            DriftAction, DriftWindow, Mode, OnTimeout, RolloutPolicy,
            annotations::{APPROVE_ANNOTATION, RETRY_ANNOTATION},
        },
    },
    cluster::kinds::linkerd_config::LinkerdConfig,
    rollout::{
        assess::selection::{LabelFilter, SelectionPolicy},
        gate::{Gate, Gates},
        key::RolloutKey,
        target::{ActiveCanary, Baseline, ConfigReference, DesiredProxies, RolloutTarget, TimeRange},
        trust::{DesiredTrust, TrustBundle},
    },
};

/// The inputs of a target besides a LinkerdConfig and its status.
#[derive(Clone, Debug)]
pub struct RolloutContext {
    /// The term of leadership.
    pub term: u64,
    pub operator_namespace: Arc<str>,
    /// The bundle of trust anchors in effect.
    pub trust_bundle: Option<TrustBundle>,
    pub canary: Option<ActiveCanary>,
}

/// Derives the target from a LinkerdConfig in effect and its status.
pub fn rollout_target(config: &LinkerdConfig, status: &LinkerdConfigStatus, context: &RolloutContext) -> RolloutTarget {
    let rollout = status.rollout.clone().unwrap_or_default();
    let enforces = config.spec.mode == Mode::Enforce;
    let injection_hash = status.injection_hash.as_deref().filter(|_| enforces);
    let approved = config.annotations.get(APPROVE_ANNOTATION).map(|hash| &**hash);
    let trust = DesiredTrust {
        is_approved: context.trust_bundle.as_ref().is_some_and(|wanted| approved == Some(&wanted.hash)),
        wanted: context.trust_bundle.clone(),
    };
    let retry = config.annotations.get(RETRY_ANNOTATION).map(|retry| &**retry);
    let adopted = rollout.adopted_at.map(|time| time.0);
    let windows = status.drift.iter().flat_map(|drift| &drift.windows);
    let range = |window: &DriftWindow| {
        let from = window.from.as_ref()?.0;
        Some(TimeRange { from, to: window.to.as_ref().map(|to| to.0) })
    };
    let spec = &config.spec.rollout;
    let closed = closed_gate(config, status, trust.key());
    let gates = Gates { closed, undeclared: undeclared(status) };
    let target = RolloutTarget {
        config: ConfigReference::of(config),
        term: context.term,
        key: RolloutKey::of(injection_hash.unwrap_or("none"), trust.key(), retry),
        rolled_back: rollout.rolled_back.as_deref().map(RolloutKey::from),
        rollout: spec.clone(),
        selection: SelectionPolicy {
            namespaces: LabelFilter::of(spec.namespace_selector.as_ref()),
            workloads: LabelFilter::of(spec.workload_selector.as_ref()),
            opt_in: spec.opt_in,
            operator_namespace: Arc::clone(&context.operator_namespace),
        },
        proxies: DesiredProxies {
            injection_hash: injection_hash.map(Arc::from),
            proxy_version: status.proxy_version.as_deref().map(Arc::from),
            shape: status.proxy_shape,
            baseline: rollout.baseline_hash.map(|hash| Baseline {
                hash: hash.into(),
                installed: rollout.installed_hash.map(Arc::from),
                adopted,
            }),
            drift: windows.filter_map(range).collect(),
            trust,
        },
        gates,
        canary: None,
    };
    let canary = context.canary.as_ref().map(|canary| Box::new(target.for_canary(canary, retry)));
    RolloutTarget { canary, ..target }
}

/// Returns why the document in force is not the declared one.
fn undeclared(status: &LinkerdConfigStatus) -> Option<Gate> {
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
fn closed_gate(config: &LinkerdConfig, status: &LinkerdConfigStatus, trust: Option<&str>) -> Option<Gate> {
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
