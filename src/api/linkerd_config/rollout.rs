//! The rollout to running proxies: which workloads are restarted, when, how many at a time, and the action when one of
//! them fails.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::duration;
use crate::api::schema;

const INTERVAL: &str = "10s";
const SOAK: &str = "30s";
const PROGRESS_DEADLINE: &str = "10m";

/// How running proxies get the configuration. A proxy reads it only when its Pod is created, so workloads must be
/// restarted for it. Only workloads that opted in and have an outdated Pod are restarted.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutSpec {
    /// Whether workloads are restarted. Auto restarts them. "Off", which needs quotes in YAML, restarts none; status
    /// still counts what is out of date. The default is Auto.
    pub policy: RolloutPolicy,
    /// Whether restarts are paused. A restart that has begun is still monitored until it ends. The default is false.
    pub paused: bool,
    /// The workloads that may be restarted. Label selects those with the label config.linkerd.io/reconcile: auto on
    /// themselves, their Pod template or their namespace. All also selects workloads without this label, except in
    /// namespaces of Linkerd's extensions. Any other value of the label, such as disabled or observe, excludes a
    /// workload. kube-system, cert-manager, the control plane's namespace, the operator's namespace and namespaces that
    /// are exempt from Linkerd's webhooks are never selected. The default is Label.
    pub opt_in: OptIn,
    /// Restricts restarts to workloads in namespaces with matching labels. Unset, which is the default, and empty
    /// select all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub namespace_selector: Option<LabelSelector>,
    /// Restricts restarts to workloads whose own labels match. Unset, which is the default, and empty select
    /// all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub workload_selector: Option<LabelSelector>,
    /// The kinds of workloads that are restarted. The default is all three: Deployment, StatefulSet and DaemonSet.
    #[schemars(schema_with = "kinds")]
    pub kinds: Vec<RolloutKind>,
    /// The differences for which workloads are restarted. ProxyConfig is a configuration other than the one in effect,
    /// ProxyVersion another version, TrustRoots other trust anchors. Uninjected is a Pod that should have a proxy and has
    /// none. ProxyShape is a proxy that runs as a native sidecar or not, or whose network is set up by linkerd-init or by
    /// a CNI plugin, other than configured. Differences that are not listed are only counted. The default is ProxyConfig,
    /// ProxyVersion and TrustRoots.
    #[schemars(schema_with = "triggers")]
    pub triggers: Vec<RolloutTrigger>,
    /// How a workload is restarted. Restart annotates its Pod template, as kubectl rollout restart does: its controller
    /// replaces the Pods with the workload's own strategy. Evict evicts the outdated Pods, and changes no template. The
    /// default is Restart.
    pub method: RolloutMethod,
    /// The maximum number of workloads that are restarted at the same time: a number, or a percentage of the selected
    /// workloads, rounded up and at least 1. The default is 1.
    #[schemars(schema_with = "schema::number_or_percentage")]
    pub max_concurrent: IntOrString,
    /// The maximum number of workloads that are restarted at the same time in one namespace. The default is 1.
    #[schemars(schema_with = "schema::count")]
    pub max_concurrent_per_namespace: i64,
    /// The minimum time between the starts of two restarts. The default is 10s.
    #[schemars(schema_with = "schema::duration")]
    pub interval: String,
    /// The time that a restarted workload must stay ready before it counts as updated. The default is 30s.
    #[schemars(schema_with = "schema::duration")]
    pub soak: String,
    /// The time without progress after which a restarted workload counts as failed, as in a Deployment. Each Pod that is
    /// updated or becomes ready is progress. A workload may extend it, by its minReadySeconds and by a longer
    /// progressDeadlineSeconds of a Deployment than the default of 600, up to one hour in total. The default is 10m.
    #[schemars(schema_with = "schema::some_time")]
    pub progress_deadline: String,
    /// The number of failed workloads that triggers onFailure: a number, or a percentage of the selected workloads,
    /// rounded up and at least 1. The default is 1: then one workload that fails holds up all others.
    #[schemars(schema_with = "schema::number_or_percentage")]
    pub max_failures: IntOrString,
    /// The action after maxFailures workloads failed. Halt restarts no other workload until the declared
    /// values or the annotation config.linkerd.io/retry change. Rollback also restores the declared values from before
    /// the failed ones. Continue restarts the other workloads. The default is Halt.
    pub on_failure: OnFailure,
    /// Whether a workload waits while a PodDisruptionBudget allows no disruption of its Pods. The default is true.
    #[serde(rename = "respectPDB")]
    pub respect_pdb: bool,
    /// The times when restarts may begin. A restart that has begun may end after a window closes. If unset, which is
    /// the default, restarts may begin at any time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<WindowSpec>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum RolloutPolicy {
    #[default]
    Auto,
    Off,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum OptIn {
    #[default]
    Label,
    All,
}

#[derive(
    Clone,
    Copy,
    Debug,
    Deserialize,
    Eq,
    PartialEq,
    Serialize,
    strum::IntoStaticStr,
    strum::VariantArray,
    strum::VariantNames,
)]
pub enum RolloutKind {
    Deployment,
    StatefulSet,
    DaemonSet,
}

#[derive(
    Clone,
    Copy,
    Debug,
    Deserialize,
    Eq,
    PartialEq,
    Serialize,
    strum::IntoStaticStr,
    strum::VariantArray,
    strum::VariantNames,
)]
pub enum RolloutTrigger {
    ProxyConfig,
    ProxyVersion,
    TrustRoots,
    Uninjected,
    ProxyShape,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum RolloutMethod {
    #[default]
    Restart,
    Evict,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum OnFailure {
    #[default]
    Halt,
    Rollback,
    Continue,
}

/// The times when restarts may begin.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WindowSpec {
    /// The time zone of allow, as a name of the IANA database, such as Europe/Berlin. The default is UTC.
    #[schemars(schema_with = "schema::time_zone")]
    pub time_zone: String,
    /// The windows in which restarts may begin. If the list is empty, they may begin at any time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "atomic"))]
    pub allow: Vec<AllowedWindow>,
    /// The periods in which no restart begins, even within a window of allow: a change freeze, such as the last days of
    /// a year.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50), extend("x-kubernetes-list-type" = "atomic"))]
    pub deny: Vec<DeniedWindow>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AllowedWindow {
    /// The opening times of the window, as the five fields of cron: minute, hour, day of month, month and day of week
    /// (0 or 7 is Sunday), in timeZone. For example, 0 2 * * 1-5 is Monday to Friday at 02:00. If daylight saving skips
    /// a local time, the window opens at the moment after it; if a local time occurs twice, the first counts. As in
    /// cron, a day must match both day fields, or, if neither begins with *, one of them.
    #[schemars(schema_with = "schema::cron")]
    pub cron: String,
    /// The duration of the window, such as 4h; at most seven days, 168h.
    #[schemars(schema_with = "schema::window_duration")]
    pub duration: String,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = schema::denied_rules()))]
pub struct DeniedWindow {
    /// The start of the period, such as 2026-12-20T00:00:00Z.
    #[schemars(schema_with = "schema::time")]
    pub from: String,
    /// The end of the period, such as 2027-01-02T00:00:00+01:00. From this moment on, restarts may begin again.
    #[schemars(schema_with = "schema::time")]
    pub to: String,
}

// === impl RolloutSpec ===

impl Default for RolloutSpec {
    fn default() -> Self {
        Self {
            policy: RolloutPolicy::default(),
            paused: false,
            opt_in: OptIn::default(),
            namespace_selector: None,
            workload_selector: None,
            kinds: <RolloutKind as strum::VariantArray>::VARIANTS.to_vec(),
            triggers: RolloutTrigger::DEFAULT.to_vec(),
            method: RolloutMethod::default(),
            max_concurrent: IntOrString::Int(1),
            max_concurrent_per_namespace: 1,
            interval: INTERVAL.to_owned(),
            soak: SOAK.to_owned(),
            progress_deadline: PROGRESS_DEADLINE.to_owned(),
            max_failures: IntOrString::Int(1),
            on_failure: OnFailure::default(),
            respect_pdb: true,
            window: None,
        }
    }
}

impl RolloutSpec {
    /// Returns the limit for this number of selected workloads; at least one.
    pub fn max_concurrent(&self, selected: usize) -> usize {
        number_of(&self.max_concurrent, selected)
    }

    pub fn max_concurrent_per_namespace(&self) -> usize {
        at_least_one(self.max_concurrent_per_namespace)
    }

    /// Returns the number of failures that triggers the failure policy, for this number of selected workloads; at least
    /// one.
    pub fn max_failures(&self, selected: usize) -> usize {
        number_of(&self.max_failures, selected)
    }

    pub fn interval(&self) -> Duration {
        duration(&self.interval, INTERVAL)
    }

    pub fn soak(&self) -> Duration {
        duration(&self.soak, SOAK)
    }

    pub fn progress_deadline(&self) -> Duration {
        let deadline = duration(&self.progress_deadline, PROGRESS_DEADLINE);
        // With a deadline of zero every workload would fail.
        if deadline.is_zero() { duration(PROGRESS_DEADLINE, PROGRESS_DEADLINE) } else { deadline }
    }
}

// === impl RolloutKind ===

impl RolloutKind {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

// === impl RolloutTrigger ===

impl RolloutTrigger {
    /// Missing proxies and proxies of another shape are no consequence of a change of the configuration, so restarts
    /// for them are enabled explicitly.
    const DEFAULT: [Self; 3] = [Self::ProxyConfig, Self::ProxyVersion, Self::TrustRoots];

    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

// === impl WindowSpec ===

impl Default for WindowSpec {
    fn default() -> Self {
        Self { time_zone: "UTC".to_owned(), allow: Vec::new(), deny: Vec::new() }
    }
}

/// Returns a number, or a percentage of the selected workloads, rounded up; at least one.
fn number_of(value: &IntOrString, selected: usize) -> usize {
    match value {
        IntOrString::Int(number) => at_least_one((*number).into()),
        IntOrString::String(text) => {
            let percent = text.strip_suffix('%').and_then(|digits| digits.parse().ok()).unwrap_or(0usize).min(100);
            selected.saturating_mul(percent).div_ceil(100).max(1)
        }
    }
}

fn at_least_one(number: i64) -> usize {
    usize::try_from(number).unwrap_or_default().max(1)
}

fn kinds(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schema::some_of(<RolloutKind as strum::VariantNames>::VARIANTS)
}

fn triggers(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schema::some_of(<RolloutTrigger as strum::VariantNames>::VARIANTS)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(spec: Value) -> RolloutSpec {
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn a_percentage_is_of_the_selected_workloads_rounded_up_and_at_least_one() {
        for (percentage, selected, expected) in
            [("10%", 100, 10), ("10%", 101, 11), ("1%", 3, 1), ("100%", 7, 7), ("50%", 0, 1), ("25%", 1000, 250)]
        {
            assert_eq!(of(json!({"maxConcurrent": percentage})).max_concurrent(selected), expected, "{percentage}");
            assert_eq!(of(json!({"maxFailures": percentage})).max_failures(selected), expected, "{percentage}");
        }
        assert_eq!(of(json!({"maxConcurrent": 10})).max_concurrent(3), 10);
    }

    #[test]
    fn invalid_values_are_the_defaults() {
        for invalid in [json!(0), json!(-3), json!("many"), json!("12"), json!("-5%"), json!("%"), json!("")] {
            assert_eq!(of(json!({"maxConcurrent": invalid})).max_concurrent(40), 1, "{invalid}");
        }
        assert_eq!(of(json!({"maxConcurrent": "900%"})).max_concurrent(40), 40);
        let spec = of(json!({"maxFailures": 0, "maxConcurrentPerNamespace": -1, "interval": "soon", "soak": "-1s",
            "progressDeadline": "0s"}));
        assert_eq!((spec.max_failures(40), spec.max_concurrent_per_namespace()), (1, 1));
        assert_eq!((spec.interval(), spec.soak()), (Duration::from_secs(10), Duration::from_secs(30)));
        assert_eq!(spec.progress_deadline(), Duration::from_secs(600));
    }

    #[test]
    fn restarts_for_missing_proxies_and_for_their_shape_are_not_a_default() {
        let names: Vec<&str> = of(json!({})).triggers.iter().map(|trigger| trigger.as_str()).collect();
        assert_eq!(names, ["ProxyConfig", "ProxyVersion", "TrustRoots"]);
        let all = ["ProxyConfig", "ProxyVersion", "TrustRoots", "Uninjected", "ProxyShape"];
        assert_eq!(of(json!({ "triggers": all })).triggers.len(), 5);
    }

    #[test]
    fn valid_values_are_used() {
        let spec = of(json!({"interval": "0s", "soak": "1m", "progressDeadline": "5s", "maxFailures": 3,
            "maxConcurrentPerNamespace": 2, "kinds": ["DaemonSet"], "respectPDB": false, "optIn": "All",
            "window": {"allow": [{"cron": "0 2 * * 1-5", "duration": "4h"}]}}));
        assert_eq!((spec.interval(), spec.soak()), (Duration::ZERO, Duration::from_secs(60)));
        assert_eq!((spec.progress_deadline(), spec.max_failures(40)), (Duration::from_secs(5), 3));
        assert_eq!((spec.max_concurrent_per_namespace(), spec.kinds.as_slice()), (2, &[RolloutKind::DaemonSet][..]));
        assert_eq!((spec.respect_pdb, spec.opt_in), (false, OptIn::All));
        assert_eq!(spec.window.unwrap().time_zone, "UTC");
    }
}
