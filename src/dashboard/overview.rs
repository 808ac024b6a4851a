//! The part of the dashboard that is always shown: readiness, watches, Leases, the webhooks' certificate, and the
//! LinkerdConfigs with their conditions.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde::Serialize;

use super::DashboardParts;
use crate::{
    api::linkerd_config::Mode,
    cluster::{Cluster, WatchReport, kinds::linkerd_config::LinkerdConfig},
    destination::RemoteReport,
    lease::Leadership,
    linkerd_config::active,
    version,
};

/// The largest number of LinkerdConfigs, and of namespaces of other clusters, on the page.
const SHOWN: usize = 100;

/// A Lease in whose election this process takes part.
#[derive(Clone)]
pub struct ElectedLease {
    pub namespace: String,
    pub name: &'static str,
    pub leadership: Leadership,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Overview {
    version: &'static str,
    commit: &'static str,
    identity: String,
    now: Timestamp,
    ready: bool,
    waiting_for: Vec<String>,
    /// Whether this process has a Destination API.
    serves_destination: bool,
    watches: Vec<WatchRow>,
    clusters: Vec<ClusterRow>,
    leases: Vec<LeaseRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<CertificateRow>,
    linkerd_configs: Vec<ConfigRow>,
    /// The number of LinkerdConfigs that are not listed.
    more_linkerd_configs: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WatchRow {
    resource: &'static str,
    state: &'static str,
    objects: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    failing_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// Another cluster.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterRow {
    name: String,
    problems: Vec<String>,
    namespaces: Vec<RemoteNamespaceRow>,
    /// The number of namespaces that are not listed.
    more_namespaces: usize,
}

#[derive(Serialize)]
struct RemoteNamespaceRow {
    name: String,
    state: &'static str,
    objects: usize,
}

#[derive(Serialize)]
struct LeaseRow {
    namespace: String,
    name: &'static str,
    /// Absent if there is no Lease, and empty if the last holder released it.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    leads: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CertificateRow {
    name: &'static str,
    /// Absent before the first certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_after: Option<Timestamp>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigRow {
    name: String,
    target: String,
    mode: Mode,
    in_effect: bool,
    conditions: Vec<Condition>,
}

// === impl Overview ===

impl Overview {
    pub(super) fn new(dashboard: &DashboardParts, ready: bool, waiting_for: Vec<String>) -> Self {
        let cluster = dashboard.cluster.as_ref();
        let (linkerd_configs, more_linkerd_configs) = cluster.map(configs).unwrap_or_default();
        let remotes = dashboard.multicluster.as_ref().map(|multicluster| multicluster.reports()).unwrap_or_default();
        Self {
            version: version::VERSION,
            commit: version::COMMIT,
            identity: dashboard.identity.clone(),
            now: Timestamp::now(),
            ready,
            waiting_for,
            serves_destination: dashboard.destination.is_some(),
            watches: cluster.map(Cluster::watch_reports).unwrap_or_default().into_iter().map(WatchRow::from).collect(),
            clusters: remotes.into_iter().map(ClusterRow::from).collect(),
            leases: dashboard.leases.iter().map(LeaseRow::from).collect(),
            certificate: dashboard
                .certificate
                .as_ref()
                .map(|certificate| CertificateRow { name: "webhooks", not_after: certificate.not_after() }),
            linkerd_configs,
            more_linkerd_configs,
        }
    }
}

/// Returns the first LinkerdConfigs by name, and the number of the others.
fn configs(cluster: &Cluster) -> (Vec<ConfigRow>, usize) {
    let state = cluster.read();
    let mut all: Vec<&Arc<LinkerdConfig>> = state.linkerd_configs.iter().collect();
    all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let row = |config: &&Arc<LinkerdConfig>| ConfigRow {
        name: config.name.to_string(),
        target: config.target.to_string(),
        mode: config.spec.mode,
        in_effect: active::of(&state.linkerd_configs, &config.target).is_some_and(|it| it.name == config.name),
        conditions: config.status.conditions.clone(),
    };
    (all.iter().take(SHOWN).map(row).collect(), all.len().saturating_sub(SHOWN))
}

/// Returns the state of a watch, in one word for a person.
fn state(is_listed: bool, is_not_served: bool, failing_for: Option<Duration>) -> &'static str {
    match (is_listed, is_not_served, failing_for) {
        (_, true, _) => "not served",
        (true, _, None) => "current",
        (true, _, Some(_)) => "outdated",
        (false, ..) => "not listed yet",
    }
}

impl From<WatchReport> for WatchRow {
    fn from(report: WatchReport) -> Self {
        Self {
            resource: report.kind.resource(),
            state: state(report.is_listed, report.is_not_served, report.failing_for),
            objects: report.objects,
            failing_seconds: report.failing_for.map(|time| time.as_secs()),
            problem: report.problem,
        }
    }
}

impl From<RemoteReport> for ClusterRow {
    fn from(report: RemoteReport) -> Self {
        let namespace = |(name, cluster): &(Arc<str>, Cluster)| {
            let watches = cluster.watch_reports();
            RemoteNamespaceRow {
                name: name.to_string(),
                state: state(
                    watches.iter().all(|watch| watch.is_listed || watch.is_not_served),
                    false,
                    watches.iter().filter(|watch| !watch.is_not_served).filter_map(|watch| watch.failing_for).max(),
                ),
                objects: watches.iter().map(|watch| watch.objects).sum(),
            }
        };
        let mut all: Vec<&(Arc<str>, Cluster)> = report.namespaces.iter().collect();
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Self {
            name: report.name.to_string(),
            problems: report.problems,
            namespaces: all.iter().take(SHOWN).copied().map(namespace).collect(),
            more_namespaces: all.len().saturating_sub(SHOWN),
        }
    }
}

impl From<&ElectedLease> for LeaseRow {
    fn from(ElectedLease { namespace, name, leadership }: &ElectedLease) -> Self {
        Self {
            namespace: namespace.clone(),
            name,
            holder: leadership.holder(),
            leads: leadership.term().is_some(),
            problem: leadership.problem(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_fails_after_its_first_list_has_outdated_objects() {
        let failing = Some(Duration::from_secs(3));
        assert_eq!(state(true, false, None), "current");
        assert_eq!(state(true, false, failing), "outdated");
        assert_eq!(state(false, false, failing), "not listed yet");
        assert_eq!(state(false, true, failing), "not served");
    }
}
