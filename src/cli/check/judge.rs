//! Decides which checks succeed.
//!
//! In: [`CheckFacts`] or [`PreflightFacts`], or why there is no client. Out: a [`CheckReport`]. Always holds: the
//! report fails if a check fails; a warning does not fail it, except for what was not looked at; only what was read
//! succeeds; each failure says what to do or where to look.

use std::collections::BTreeMap;

use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde::Serialize;

use super::{
    identity,
    metrics::CheckedCluster,
    policies,
    read::{CheckFacts, CheckedConfig, CheckedReplica, PreflightFacts, ReplicaRole, UnlistedPods},
    unread::{Known, Unread},
};
use crate::{
    api::linkerd_config::{ConditionReason, ConditionType},
    text::and_more,
};

/// The oldest minor version of Kubernetes that the operator was tested with.
const OLDEST_MINOR: u32 = 34;
/// The start of the reason why nothing is known.
const NOT_LOOKED_AT: &str = "not looked at: ";
/// The maximum number of problems of one kind in a message.
const SHOWN: usize = 10;
/// The conditions of a LinkerdConfig that are present only while something is wrong.
const WARNING_CONDITIONS: [ConditionType; 5] = [
    ConditionType::Stalled,
    ConditionType::ControlPlaneMismatch,
    ConditionType::IneffectiveValues,
    ConditionType::SuspectBase,
    ConditionType::VersionSkew,
];

/// The results of all checks, in the form that `linkerd check` reads from its extensions.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct CheckReport {
    pub(super) success: bool,
    pub(super) categories: Vec<CheckCategory>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CheckCategory {
    pub(super) category_name: String,
    pub(super) checks: Vec<InstallationCheck>,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct InstallationCheck {
    pub(super) description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    pub(super) result: CheckResult,
    /// Whether the user may not read what the check is about.
    #[serde(skip)]
    pub(super) is_unread: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CheckResult {
    Success,
    Warning,
    Error,
}

// === impl InstallationCheck ===

impl InstallationCheck {
    pub(super) fn success(description: impl Into<String>) -> Self {
        Self { description: description.into(), error: None, result: CheckResult::Success, is_unread: false }
    }

    pub(super) fn warning(description: impl Into<String>, error: impl Into<String>) -> Self {
        let error = Some(error.into());
        Self { description: description.into(), error, result: CheckResult::Warning, is_unread: false }
    }

    pub(super) fn error(description: impl Into<String>, error: impl Into<String>) -> Self {
        let error = Some(error.into());
        Self { description: description.into(), error, result: CheckResult::Error, is_unread: false }
    }

    /// The result of what could not be read: a missing permission is no fault of the installation, and no success.
    pub(super) fn unread(description: impl Into<String>, unread: &Unread) -> Self {
        match unread.is_denied {
            true => {
                let warning = Self::warning(description, format!("{NOT_LOOKED_AT}{}", unread.reason));
                Self { is_unread: true, ..warning }
            }
            false => Self::error(description, &*unread.reason),
        }
    }

    /// Fails with all problems, or succeeds without any.
    fn of(description: &str, problems: &[String]) -> Self {
        match problems {
            [] => Self::success(description),
            problems => Self::error(description, listed(problems)),
        }
    }
}

// === impl CheckReport ===

impl CheckReport {
    fn new(categories: impl IntoIterator<Item = (&'static str, Vec<InstallationCheck>)>) -> Self {
        let categories = categories.into_iter().filter(|(_, checks)| !checks.is_empty());
        let categories: Vec<_> =
            categories.map(|(name, checks)| CheckCategory { category_name: name.to_owned(), checks }).collect();
        let mut checks = categories.iter().flat_map(|category| &category.checks);
        let success = checks.all(|check| check.result != CheckResult::Error && !check.is_unread);
        Self { success, categories }
    }

    /// The mark of the whole report. Without a failure, a report that is no success has something that was not read.
    pub(super) fn worst(&self) -> CheckResult {
        let mut checks = self.categories.iter().flat_map(|category| &category.checks);
        match self.success {
            true => CheckResult::Success,
            false if checks.any(|check| check.result == CheckResult::Error) => CheckResult::Error,
            false => CheckResult::Warning,
        }
    }
}

/// The report if the API server cannot be reached at all.
pub(super) fn without_client(reason: &str) -> CheckReport {
    CheckReport::new([(
        "linkerd-operator-api",
        vec![InstallationCheck::error("can create a client of the API server", reason)],
    )])
}

/// Judges a cluster before the operator is installed.
pub(super) fn preflight(facts: &PreflightFacts) -> CheckReport {
    let mut linkerd = vec![match &facts.linkerd_config {
        Ok(true) => InstallationCheck::success("Linkerd's control plane is installed"),
        // ExternalWorkloads and discovery do not need it, and the operator waits for it.
        Ok(false) => InstallationCheck::warning(
            "Linkerd's control plane is installed",
            "there is no ConfigMap linkerd-config: LinkerdConfigs are applied once Linkerd is installed",
        ),
        Err(unread) => InstallationCheck::unread("Linkerd's control plane is installed", unread),
    }];
    linkerd.extend(crds(&facts.linkerd_crds));
    let permissions = facts.permissions.iter().map(|(what, allowed)| {
        let description = format!("can {what}");
        match allowed {
            Ok(true) => InstallationCheck::success(description),
            Ok(false) => {
                InstallationCheck::error(description, "you do not have this permission, which the manifests need")
            }
            Err(unread) => InstallationCheck::unread(description, unread),
        }
    });
    CheckReport::new([
        ("linkerd-operator-api", vec![api_server(&facts.version)]),
        ("linkerd-operator-linkerd", linkerd),
        ("linkerd-operator-permissions", permissions.collect()),
    ])
}

/// Judges an installed operator.
pub(super) fn installation(facts: &CheckFacts) -> CheckReport {
    // If its Pods may not be read, it may be installed.
    let has_manager = facts.replicas.iter().any(|replica| replica.role == ReplicaRole::Manager)
        || facts.unlisted.iter().any(|pods| pods.role == ReplicaRole::Manager);
    let (leases, configs, policies) = match has_manager {
        true => (
            facts.leases.iter().map(|(name, lease)| held(name, lease, facts.now)).collect(),
            configs(&facts.configs),
            policies::judge(&facts.policies, &facts.operator_namespace),
        ),
        // The identity service and the containers that replace Linkerd's have no Lease, no policy and no LinkerdConfig.
        false => (Vec::new(), Vec::new(), Vec::new()),
    };
    CheckReport::new([
        ("linkerd-operator-api", vec![api_server(&facts.version)]),
        ("linkerd-operator-crds", if has_manager { crds(&facts.crds) } else { Vec::new() }),
        ("linkerd-operator", replicas_checks(facts)),
        ("linkerd-operator-admission-policies", policies),
        ("linkerd-operator-leases", leases),
        ("linkerd-operator-linkerdconfig", configs),
        ("linkerd-operator-identity", identity::judge(&facts.replicas, facts.now)),
        ("linkerd-operator-multicluster", remote_clusters(&facts.replicas)),
    ])
}

fn api_server(version: &Known<String>) -> InstallationCheck {
    let description = "can query the API server";
    let version = match version {
        Ok(version) => version,
        Err(unread) => return InstallationCheck::unread(description, unread),
    };
    let minor = version.trim_start_matches('v').split('.').nth(1);
    let minor = minor.map(|minor| minor.trim_end_matches(|c: char| !c.is_ascii_digit()));
    match minor.and_then(|minor| minor.parse::<u32>().ok()) {
        Some(minor) if minor < OLDEST_MINOR => InstallationCheck::warning(
            description,
            format!("Kubernetes {version} was never tested: the operator is tested with 1.{OLDEST_MINOR} or later"),
        ),
        _ => InstallationCheck::success(description),
    }
}

fn crds(crds: &[(&'static str, Known<bool>)]) -> Vec<InstallationCheck> {
    let check = |(name, exists): &(&'static str, Known<bool>)| {
        let description = format!("the CRD {name} exists");
        match exists {
            Ok(true) => InstallationCheck::success(description),
            Ok(false) if name.ends_with(".config.linkerd.io") => InstallationCheck::error(
                description,
                "apply the operator's CRD: kubectl apply --server-side -f crd/linkerdconfigs.yaml",
            ),
            Ok(false) => InstallationCheck::warning(description, "install Linkerd's CRDs: linkerd install --crds"),
            Err(unread) => InstallationCheck::unread(description, unread),
        }
    };
    crds.iter().map(check).collect()
}

fn replicas_checks(facts: &CheckFacts) -> Vec<InstallationCheck> {
    let of_list = |pods: &UnlistedPods| InstallationCheck::unread(format!("can list {}", pods.pods), &pods.unread);
    let mut checks: Vec<_> = facts.unlisted.iter().map(of_list).collect();
    // Only its answer tells whether a container of Linkerd's Pods is the operator's.
    let is_known = |it: &&CheckedReplica| it.is_own() || it.ready.is_ok();
    let (replicas, unknown): (Vec<_>, Vec<_>) = facts.replicas.iter().partition(is_known);
    checks.extend(unknown_containers(&unknown));
    if replicas.is_empty() {
        if !checks.iter().any(|check| check.is_unread) {
            checks.push(InstallationCheck::error(
                "the operator is installed",
                "there is no Pod of the operator: deploy it, or set --operator-namespace and --linkerd-namespace",
            ));
        }
        return checks;
    }
    let (mut not_running, mut not_ready, mut waiting, mut denied) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for replica in &replicas {
        let name = replica.name();
        if let Some(problem) = &replica.pod_problem {
            not_running.push(format!("Pod {name} {problem}"));
            continue;
        }
        match &replica.ready {
            Ok(ready) if ready.is_ready => {
                waiting.extend(ready.waiting_for.iter().map(|line| format!("{name}: {line}")));
            }
            Ok(ready) => not_ready.extend(ready.waiting_for.iter().map(|line| format!("{name}: {line}"))),
            Err(unread) if unread.is_denied => denied.push(format!("{name}: {}", unread.reason)),
            Err(unread) => not_ready.push(format!("{name}: {}", unread.reason)),
        }
    }
    // Without the answer of each replica, nothing can be said about all of them.
    let are_listed = facts.unlisted.is_empty() && unknown.is_empty();
    let are_known = are_listed && replicas.iter().all(|replica| replica.ready.is_ok());
    if are_listed || !not_running.is_empty() {
        checks.push(InstallationCheck::of("all Pods of the operator are running", &not_running));
    }
    let description = "all replicas are ready";
    if !not_ready.is_empty() {
        not_ready.extend(denied.iter().map(|line| format!("{NOT_LOOKED_AT}{line}")));
        checks.push(InstallationCheck::error(description, listed(&not_ready)));
    } else if !denied.is_empty() {
        checks.push(InstallationCheck::unread(description, &Unread::denied(listed(&denied))));
    } else if are_known {
        checks.push(InstallationCheck::success(description));
    }
    match waiting.as_slice() {
        [] if are_known => checks.push(InstallationCheck::success("no replica waits for anything")),
        [] => {}
        waiting => checks.push(InstallationCheck::warning("no replica waits for anything", listed(waiting))),
    }
    checks.extend(single(&replicas));
    checks
}

/// Warns about containers of Linkerd's Pods, each of which is Linkerd's own or the operator's.
fn unknown_containers(unknown: &[&CheckedReplica]) -> Option<InstallationCheck> {
    let reasons: Vec<_> = unknown
        .iter()
        .filter_map(|it| it.ready.as_ref().err().map(|unread| format!("{}: {}", it.name(), unread.reason)))
        .collect();
    let is_denied = unknown.iter().any(|it| it.ready.as_ref().is_err_and(|unread| unread.is_denied));
    let description = "the containers in place of Linkerd's are known";
    (!reasons.is_empty()).then(|| match is_denied {
        true => InstallationCheck::unread(description, &Unread::denied(listed(&reasons))),
        // Linkerd's own container may be broken, which `linkerd check` says.
        false => InstallationCheck::warning(description, format!("{NOT_LOOKED_AT}{}", listed(&reasons))),
    })
}

/// Warns about each Deployment of the operator with one replica.
fn single(replicas: &[&CheckedReplica]) -> Vec<InstallationCheck> {
    let mut counts = BTreeMap::<&str, usize>::new();
    for replica in replicas.iter().filter(|replica| replica.is_own()) {
        *counts.entry(&replica.app).or_default() += 1;
    }
    let single = counts.into_iter().filter(|(_, count)| *count == 1);
    let warning = |(app, _): (&str, usize)| {
        InstallationCheck::warning(
            "a replica can fail without an interruption",
            format!("{app} has one replica: run at least two"),
        )
    };
    single.map(warning).collect()
}

/// Judges whether a replica leads.
fn held(name: &str, lease: &Known<Option<Lease>>, now: Timestamp) -> InstallationCheck {
    let description = format!("a replica holds the Lease {name}");
    let lease = match lease {
        Ok(Some(lease)) => lease,
        Ok(None) => {
            return InstallationCheck::warning(
                description,
                "it does not exist: the job of this Lease is disabled, or no replica may create it",
            );
        }
        Err(unread) => return InstallationCheck::unread(description, unread),
    };
    let spec = lease.spec.as_ref();
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).filter(|holder| !holder.is_empty());
    let Some(holder) = holder else {
        return InstallationCheck::error(description, "no replica holds it: read the logs of the replicas");
    };
    let age = spec.and_then(|spec| spec.renew_time.as_ref()).map(|renewed| now.duration_since(renewed.0).as_secs());
    let duration = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
    match age {
        // Clocks may differ by a few seconds, so this is not exact.
        Some(age) if age <= 2 * i64::from(duration) => InstallationCheck::success(description),
        Some(age) => {
            InstallationCheck::error(description, format!("{holder} renewed it {age} s ago: is that replica running?"))
        }
        None => InstallationCheck::error(description, format!("{holder} never renewed it")),
    }
}

fn configs(configs: &Known<Vec<CheckedConfig>>) -> Vec<InstallationCheck> {
    let configs = match configs {
        Ok(configs) => configs,
        Err(unread) => return vec![InstallationCheck::unread("can list LinkerdConfigs", unread)],
    };
    let mut checks = Vec::new();
    for config in configs {
        let status = &config.status;
        let is_active = status.active == Some(true);
        let explained = |it: &Condition| format!("{}: {}", it.reason, it.message);
        let is_in_reserve = status.reason(ConditionType::Accepted) == Some(ConditionReason::Conflicted);
        if config.is_observed && !is_active && is_in_reserve {
            checks.push(InstallationCheck::success(format!("LinkerdConfig {} is in reserve", config.name)));
            continue;
        }
        let description = format!("LinkerdConfig {} is ready", config.name);
        checks.push(match status.condition(ConditionType::Ready) {
            _ if !config.is_observed => InstallationCheck::error(
                description,
                "the operator has not processed its last change yet: is the job enabled?",
            ),
            Some(ready) if ready.status == "True" => InstallationCheck::success(description),
            Some(ready) if is_active => InstallationCheck::error(description, explained(ready)),
            // It is for the control plane of another operator.
            Some(ready) => InstallationCheck::warning(description, explained(ready)),
            None => InstallationCheck::error(description, "it has no condition Ready: is the job enabled?"),
        });
        let present = WARNING_CONDITIONS.into_iter().filter_map(|type_| status.condition(type_));
        let present = present.filter(|it| it.status == "True");
        checks.extend(present.map(|it| {
            InstallationCheck::warning(
                format!("LinkerdConfig {} has no condition {}", config.name, it.type_),
                explained(it),
            )
        }));
    }
    checks
}

/// Judges each other cluster, as all replicas see it.
fn remote_clusters(replicas: &[CheckedReplica]) -> Vec<InstallationCheck> {
    let mut clusters = BTreeMap::<&str, Vec<(String, CheckedCluster)>>::new();
    let (mut unread, mut unseen) = (Vec::new(), Vec::new());
    for replica in replicas {
        match (&replica.ready, &replica.remote_clusters) {
            (Err(_), _) if replica.role != ReplicaRole::Manager => {}
            (Err(reason), _) => unseen.push(format!("{}: {}", replica.name(), reason.reason)),
            (Ok(_), Err(reason)) => unread.push(format!("{}: {}", replica.name(), reason.reason)),
            (Ok(_), Ok(states)) => {
                for (cluster, state) in states {
                    clusters.entry(cluster).or_default().push((replica.name(), *state));
                }
            }
        }
    }
    // A replica that did not answer at all is named elsewhere, too.
    if !clusters.is_empty() {
        unread.append(&mut unseen);
    }
    let check = |(cluster, views): (&str, Vec<(String, CheckedCluster)>)| {
        let description = format!("the cluster {cluster} can be watched");
        let not_synced: Vec<_> = views.iter().filter(|(_, state)| !state.is_synced).collect();
        let failing: Vec<_> = views.iter().filter(|(_, state)| state.failing_seconds > 0.0).collect();
        if !not_synced.is_empty() {
            let names = not_synced.iter().take(SHOWN).map(|(name, _)| name.as_str());
            let names = and_more(names, not_synced.len(), ", ");
            let have = if not_synced.len() == 1 { "has" } else { "have" };
            return InstallationCheck::error(
                description,
                format!("{names} {have} not listed it: read the log, and renew the link: linkerd multicluster link"),
            );
        }
        if !failing.is_empty() {
            let lines =
                failing.iter().map(|(name, it)| format!("{name}: a watch fails for {:.0} s", it.failing_seconds));
            let lines: Vec<_> = lines.collect();
            return InstallationCheck::warning(
                description,
                format!("{}\nits last known endpoints stay in use", listed(&lines)),
            );
        }
        InstallationCheck::success(description)
    };
    let mut checks: Vec<_> = clusters.into_iter().map(check).collect();
    if !unread.is_empty() {
        // The answers of some replicas say nothing about the other replicas.
        checks.retain(|check| check.result != CheckResult::Success);
        checks.push(InstallationCheck::unread("other clusters can be watched", &Unread::denied(listed(&unread))));
    }
    checks
}

pub(super) fn listed(problems: &[String]) -> String {
    and_more(problems.iter().take(SHOWN), problems.len(), "\n")
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
