//! The problems of `spec.canary` that the schema does not detect. Pure.
//!
//! In: the spec. Out: its problems, and the filter of the canary namespaces.

use crate::{
    api::linkerd_config::{CanarySpec, InjectorSyncMethod, LinkerdConfigSpec, RolloutTrigger},
    rollout::assess::selection::LabelFilter,
    values::{Path, Problem},
};

/// Returns the problems of `spec.canary` that the schema does not detect.
pub(in crate::linkerd_config) fn problems(spec: &LinkerdConfigSpec) -> Vec<Problem> {
    let Some(canary) = &spec.canary else { return Vec::new() };
    let problem = |keys: &[&str], reason: &str| Problem {
        path: Path::from(keys),
        value: String::new(),
        reason: reason.to_owned(),
    };
    let is_valid = matches!(namespaces_of(canary), LabelFilter::Matching(selector) if !selector.is_empty());
    let selector = (!is_valid).then(|| {
        problem(&["spec", "canary", "namespaceSelector"], "it is not a valid label selector, or it selects everything")
    });
    let method = (spec.injector_sync.method != InjectorSyncMethod::Probe).then(|| {
        problem(
            &["spec", "canary"],
            "it needs injectorSync.method Probe: only the answers of the replicas show which injector they are",
        )
    });
    let is_trigger = |trigger: &RolloutTrigger| spec.rollout.triggers.contains(trigger);
    let triggers = (![RolloutTrigger::ProxyConfig, RolloutTrigger::ProxyVersion].iter().all(is_trigger)).then(|| {
        problem(
            &["spec", "rollout", "triggers"],
            "spec.canary needs ProxyConfig and ProxyVersion: otherwise workloads that do not run with the configuration \
             count as up to date",
        )
    });
    selector.into_iter().chain(method).chain(triggers).collect()
}

pub(super) fn namespaces_of(canary: &CanarySpec) -> LabelFilter {
    LabelFilter::of(Some(&canary.namespace_selector))
}
