//! The part of the dashboard that is always shown: what is wrong, the LinkerdConfigs, the ExternalWorkloads, the last
//! Events, and the state of the process.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde::Serialize;

use super::{
    DashboardParts,
    external_workloads::ExternalWorkloadCounts,
    headlines::{Headline, ProcessState, headlines},
    tiles::{self, Tile},
};
use crate::{
    api::NamespacedName,
    cluster::{
        Cluster, Kind, WatchReport,
        index::active_config,
        kinds::{linkerd_config::LinkerdConfig, pod::PodPhase},
    },
    destination::RemoteReport,
    events::{RecentEvent, RecentEvents},
    lease::Leadership,
    summary::ConfigSummary,
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
    /// The findings that need attention, worst first; never empty.
    headlines: Vec<Headline>,
    /// The state of the process and of ExternalWorkloads.
    tiles: [Tile; 3],
    /// The tiles that the page shows while no LinkerdConfig exists.
    absent_tiles: [Tile; 3],
    /// Whether this process has a Destination API.
    serves_destination: bool,
    watches: Vec<WatchRow>,
    clusters: Vec<ClusterRow>,
    leases: Vec<LeaseRow>,
    certificates: Vec<CertificateRow>,
    /// The number of running replicas; absent if this process is not in a Pod of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    replicas: Option<usize>,
    /// The last Events that this process wrote, the latest one first.
    events: Vec<RecentEvent>,
    /// The LinkerdConfigs that are in effect come first, and of these the worst.
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
pub(super) struct LeaseRow {
    pub(super) namespace: String,
    pub(super) name: &'static str,
    /// Absent if there is no Lease, and empty if the last holder released it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) holder: Option<String>,
    pub(super) leads: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CertificateRow {
    name: String,
    /// Absent before the first certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_after: Option<Timestamp>,
}

/// A LinkerdConfig.
#[derive(Serialize)]
pub(super) struct ConfigRow {
    #[serde(flatten)]
    pub(super) summary: ConfigSummary,
    pub(super) conditions: Vec<Condition>,
    pub(super) tiles: [Tile; 3],
}

// === impl Overview ===

impl Overview {
    pub(super) fn new(
        dashboard: &DashboardParts,
        ready: bool,
        waiting_for: Vec<String>,
        external_workloads: Option<ExternalWorkloadCounts>,
    ) -> Self {
        let (cluster, now) = (dashboard.cluster.as_ref(), Timestamp::now());
        let (linkerd_configs, more_linkerd_configs) = cluster.map(|cluster| configs(cluster, now)).unwrap_or_default();
        let watches = cluster.map(Cluster::watch_reports).unwrap_or_default();
        let process = ProcessState {
            ready,
            waiting_for: &waiting_for,
            watches: &watches,
            not_after: dashboard.certificate.as_ref().and_then(|certificate| certificate.not_after()),
            has_configs: watches.iter().any(|watch| watch.kind == Kind::LinkerdConfig),
        };
        let trusts =
            cluster.map(|cluster| cluster.read().linkerd_trusts.iter().take(SHOWN).cloned().collect::<Vec<_>>());
        let headlines = headlines(&process, &linkerd_configs, &trusts.unwrap_or_default(), now);
        let leases: Vec<LeaseRow> = dashboard.leases.iter().map(LeaseRow::from).collect();
        let replicas = cluster.zip(dashboard.pod.as_ref()).and_then(|(cluster, pod)| replicas(cluster, pod));
        let tiles = [
            tiles::of_replicas(replicas, &leases, &dashboard.identity),
            tiles::of_external_workloads(external_workloads),
            tiles::of_certificate(dashboard.certificate.is_some(), process.not_after, now),
        ];
        let remotes = dashboard.multicluster.as_ref().map(|multicluster| multicluster.reports()).unwrap_or_default();
        Self {
            version: version::VERSION,
            commit: version::COMMIT,
            identity: dashboard.identity.clone(),
            now,
            ready,
            waiting_for,
            headlines,
            tiles,
            absent_tiles: tiles::without_config(),
            serves_destination: dashboard.destination.is_some(),
            watches: watches.into_iter().map(WatchRow::from).collect(),
            clusters: remotes.into_iter().map(ClusterRow::from).collect(),
            leases,
            certificates: certificates(dashboard),
            replicas,
            events: dashboard.events.as_ref().map(RecentEvents::latest_first).unwrap_or_default(),
            linkerd_configs,
            more_linkerd_configs,
        }
    }
}

/// Returns the first LinkerdConfigs, those in effect before the others, and the number of the rest.
fn configs(cluster: &Cluster, now: Timestamp) -> (Vec<ConfigRow>, usize) {
    let (first, more) = {
        let state = cluster.read();
        let configs = &state.linkerd_configs;
        let winners: BTreeSet<&str> = configs
            .targets()
            .filter_map(|target| active_config::of(configs, target))
            .map(|config| &*config.name)
            .collect();
        let mut all: Vec<(bool, &Arc<LinkerdConfig>)> =
            configs.iter().map(|config| (winners.contains(&*config.name), config)).collect();
        all.sort_unstable_by_key(|(in_effect, config)| (!in_effect, &config.name));
        let first: Vec<_> =
            all.iter().take(SHOWN).map(|(in_effect, config)| (*in_effect, Arc::clone(config))).collect();
        (first, all.len().saturating_sub(SHOWN))
    };
    let row = |(in_effect, config): (bool, Arc<LinkerdConfig>)| {
        ConfigRow::new(ConfigSummary::new(&config, in_effect, now), config.status.conditions.clone(), now)
    };
    let mut rows: Vec<ConfigRow> = first.into_iter().map(row).collect();
    rows.sort_by_key(|row| (!row.summary.in_effect, Reverse(row.summary.attention)));
    (rows, more)
}

impl ConfigRow {
    pub(super) fn new(summary: ConfigSummary, conditions: Vec<Condition>, now: Timestamp) -> Self {
        let tiles = tiles::of_config(&summary, &conditions, now);
        Self { summary, conditions, tiles }
    }
}

/// Returns the certificates that this process presents or signs with, and the trust anchors.
fn certificates(dashboard: &DashboardParts) -> Vec<CertificateRow> {
    let webhooks = dashboard.certificate.iter().map(|it| ("webhooks".to_owned(), it.not_after()));
    let identity = dashboard.issuer.iter().flat_map(|issuer| issuer.expiries());
    webhooks.chain(identity).map(|(name, not_after)| CertificateRow { name, not_after }).collect()
}

/// Returns the number of running Pods of the workload that this Pod is of.
fn replicas(cluster: &Cluster, pod: &NamespacedName) -> Option<usize> {
    let state = cluster.read();
    let own = state.pods.get(pod)?;
    let pods = state.pods_of(&state.workload_of(own));
    Some(pods.filter(|pod| pod.phase == PodPhase::Running && !pod.terminating).count())
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
