//! Settings that are accepted and dangerous. Pure.
//!
//! In: a spec, the bundle of the mesh's trust anchors, the time. Out: one sentence for each such setting. Always holds:
//! a resource with only default settings has none.

use k8s_openapi::{
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
    jiff::{SignedDuration, Timestamp},
};
use serde_json::json;

use super::expiry::first_expiry;
use crate::{
    api::{
        TRUST_ROOTS,
        linkerd_config::{
            InjectorSyncMethod, InjectorSyncSpec, LinkerdConfigSpec, OnFailure, OnTimeout, OptIn, RolloutPolicy,
            RolloutSpec, WindowSpec,
        },
    },
    linkerd_config::documents::overlay::Overlay,
    rollout::window::{MaintenanceWindows, WindowState},
    values::Document,
};

/// A rollout that cannot begin for this long may be a mistake.
const LONG_CLOSED: SignedDuration = SignedDuration::from_hours(90 * 24);
/// The time in which trust anchors can be replaced without haste.
const SOON_EXPIRED: SignedDuration = SignedDuration::from_hours(60 * 24);

const DENY: &str = "proxies refuse every request to Pods for which no policy allows it";
/// The values that are dangerous, with the reason.
const DANGEROUS_VALUES: [(&[&str], &str, &str); 3] = [
    (&["proxy", "logHTTPHeaders"], "insecure", "proxies log headers, which may contain credentials"),
    (&["proxy", "defaultInboundPolicy"], "deny", DENY),
    (
        &["identity", "serviceAccountTokenProjection"],
        "false",
        "Pods that mount no token of their ServiceAccount get no proxy",
    ),
];

/// Returns a sentence for each dangerous setting.
pub fn dangers(spec: &LinkerdConfigSpec, bundle: Option<&str>, now: Timestamp) -> Vec<String> {
    let mut found = Vec::new();
    if spec.rollout.policy == RolloutPolicy::Auto {
        found.extend(of_rollout(&spec.rollout));
        found.extend(spec.rollout.window.as_ref().and_then(|window| of_window(window, now)));
    }
    found.extend(of_injector_sync(&spec.injector_sync));
    if spec.drift.trusted_managers.iter().any(|manager| manager == "*") {
        found.push(
            "spec.drift.trustedManagers has *: no change to the ConfigMap is drift, and none is reverted".to_owned(),
        );
    }
    if spec.proxy.default_inbound_policy.as_deref() == Some("deny") {
        found.push(format!("spec.proxy.defaultInboundPolicy is deny: {DENY}"));
    }
    for (path, dangerous, reason) in DANGEROUS_VALUES {
        let value = path.iter().try_fold(&json!(spec.values), |value, key| value.get(*key)).cloned();
        let value = value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        if value.as_deref() == Some(dangerous) {
            found.push(format!("spec.values: {} is {dangerous}: {reason}", path.join(".")));
        }
    }
    if let Ok(overlay) = Overlay::new(spec, None, None) {
        found.extend(overlay.apply_to(&Document::default()).doubtful_values().iter().map(ToString::to_string));
    }
    let declared = spec.global.identity_context.trust_anchors_pem.as_deref();
    let config_map = format!("the ConfigMap {TRUST_ROOTS}");
    for (where_, pem) in [("spec.global.identityContext.trustAnchorsPEM", declared), (&config_map, bundle)] {
        if let Some(expiry) = pem.and_then(first_expiry).filter(|expiry| expiry.duration_since(now) < SOON_EXPIRED) {
            let expires = if expiry < now { "expired" } else { "expires" };
            found.push(format!(
                "a trust anchor in {where_} {expires} at {expiry}: proxies that trust no other cannot connect then"
            ));
        }
    }
    found
}

fn of_rollout(rollout: &RolloutSpec) -> Vec<String> {
    let RolloutSpec { opt_in, namespace_selector, workload_selector, on_failure, respect_pdb, window, .. } = rollout;
    let is_all = |limit: &IntOrString| *limit == IntOrString::String("100%".to_owned());
    let is_empty = |selector: &LabelSelector| {
        let LabelSelector { match_labels, match_expressions } = selector;
        match_labels.as_ref().is_none_or(std::collections::BTreeMap::is_empty)
            && match_expressions.as_ref().is_none_or(Vec::is_empty)
    };
    let selects_all = |selector: &Option<LabelSelector>| selector.as_ref().is_none_or(is_empty);
    let has_no_limit = window.as_ref().is_none_or(|window| window.allow.is_empty())
        && selects_all(namespace_selector)
        && selects_all(workload_selector);
    [
        (
            *on_failure == OnFailure::Continue,
            "spec.rollout.onFailure is Continue: a configuration that proxies do not start with reaches every selected \
             workload",
        ),
        (
            *on_failure != OnFailure::Continue && is_all(&rollout.max_failures),
            "spec.rollout.maxFailures is 100%: the rollout goes on until every selected workload has failed",
        ),
        (
            is_all(&rollout.max_concurrent),
            "spec.rollout.maxConcurrent is 100%: workloads of all namespaces are restarted at the same time",
        ),
        (
            *opt_in == OptIn::All && has_no_limit,
            "spec.rollout.optIn is All, without a window or a selector: every meshed workload of the cluster may be \
             restarted at any time",
        ),
        (
            !respect_pdb,
            "spec.rollout.respectPDB is false: workloads are restarted although their PodDisruptionBudgets allow no \
             disruption",
        ),
        (
            namespace_selector.as_ref().is_some_and(is_empty),
            "spec.rollout.namespaceSelector is empty: it selects all namespaces",
        ),
        (
            workload_selector.as_ref().is_some_and(is_empty),
            "spec.rollout.workloadSelector is empty: it selects all workloads",
        ),
    ]
    .into_iter()
    .filter(|(is_dangerous, _)| *is_dangerous)
    .map(|(_, sentence)| sentence.to_owned())
    .collect()
}

fn of_window(window: &WindowSpec, now: Timestamp) -> Option<String> {
    let WindowState { open, changes } = MaintenanceWindows::parse(window).ok()?.at(now);
    match changes {
        _ if open => None,
        None => Some("spec.rollout.window: no restart can begin within the next five years".to_owned()),
        Some(opens) if opens.duration_since(now) > LONG_CLOSED => {
            Some(format!("spec.rollout.window: no restart can begin before {opens}"))
        }
        Some(_) => None,
    }
}

fn of_injector_sync(sync: &InjectorSyncSpec) -> Vec<String> {
    let mut found = Vec::new();
    if sync.method == InjectorSyncMethod::Delay {
        let sentence = "spec.injectorSync.method is Delay: a configuration that the proxy injector denies is not detected and \
                        not rolled back";
        found.push(sentence.to_owned());
    }
    if sync.on_timeout == OnTimeout::Proceed {
        let sentence = "spec.injectorSync.onTimeout is Proceed: workloads may be restarted while a replica of the proxy \
                        injector uses another configuration";
        found.push(sentence.to_owned());
    }
    found
}
