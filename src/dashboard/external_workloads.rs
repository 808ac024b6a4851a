//! Counts the ExternalWorkloads, and how many of them need attention.
//!
//! In: the cached ExternalWorkloads and Services. Out: counts. Always holds: there is one computation at a time, whose
//! result serves all viewers for [`FRESH`]; the lock of the state is held for a bounded number of ExternalWorkloads.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use tokio::{sync::Mutex, task::yield_now, time::Instant};

use crate::cluster::{Cluster, Kind, kinds::external_workload::ExternalWorkload};

/// The time for which a result is used again. A cluster may have many thousand ExternalWorkloads.
const FRESH: Duration = Duration::from_secs(3);
/// The number of ExternalWorkloads whose Services are looked up while the state is locked.
const AT_ONCE: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExternalWorkloadCounts {
    pub(super) total: usize,
    pub(super) not_ready: usize,
    /// The ExternalWorkloads that no Service selects: they are not endpoints.
    pub(super) without_service: usize,
}

/// Counts ExternalWorkloads, and keeps the latest result.
#[derive(Default)]
pub(super) struct ExternalWorkloadCounter {
    kept: Mutex<Option<(Instant, ExternalWorkloadCounts)>>,
}

// === impl ExternalWorkloadCounter ===

impl ExternalWorkloadCounter {
    /// Returns the counts; `None` if ExternalWorkloads or Services are not watched, or were not listed yet.
    pub(super) async fn count(&self, cluster: &Cluster) -> Option<ExternalWorkloadCounts> {
        let reports = cluster.watch_reports();
        let is_listed = |kind| reports.iter().any(|report| report.kind == kind && report.is_listed);
        if !is_listed(Kind::ExternalWorkload) || !is_listed(Kind::Service) {
            return None;
        }
        let mut kept = self.kept.lock().await;
        if let Some((_, counts)) = kept.filter(|(since, _)| since.elapsed() < FRESH) {
            return Some(counts);
        }
        let counts = counted(cluster).await;
        *kept = Some((Instant::now(), counts));
        Some(counts)
    }
}

async fn counted(cluster: &Cluster) -> ExternalWorkloadCounts {
    let namespaces: Vec<Arc<str>> = cluster.read().external_workloads.namespaces().cloned().collect();
    let mut counts = ExternalWorkloadCounts::default();
    for namespace in namespaces {
        let workloads: Vec<Arc<ExternalWorkload>> =
            cluster.read().external_workloads.in_namespace(&namespace).cloned().collect();
        for some in workloads.chunks(AT_ONCE) {
            {
                let state = cluster.read();
                let is_selected =
                    |it: &&Arc<ExternalWorkload>| state.services.selecting(&namespace, &it.labels).next().is_some();
                counts.total += some.len();
                counts.not_ready += some.iter().filter(|it| !it.ready).count();
                counts.without_service += some.len() - some.iter().filter(is_selected).count();
            }
            yield_now().await;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::{cluster::testing::Feed, external_workload::ExternalWorkloadObserver};

    fn workload(name: &str, app: &str, ready: bool) -> Value {
        let status = if ready { "True" } else { "False" };
        json!({
            "metadata": {"name": name, "namespace": "mixed", "labels": {"app": app}},
            "spec": {"workloadIPs": [{"ip": "192.0.2.1"}]},
            "status": {"conditions": [{"type": "Ready", "status": status}]},
        })
    }

    #[tokio::test(start_paused = true)]
    async fn workloads_are_counted_with_those_that_no_service_selects_and_the_result_is_used_again() {
        let observer = ExternalWorkloadObserver::new(&prometheus::Registry::new()).unwrap();
        let kinds = [Kind::ExternalWorkload, Kind::Service];
        let mut feed = Feed::unlisted(&kinds, observer);
        let counter = ExternalWorkloadCounter::default();
        feed.list(
            Kind::Service,
            [json!({"metadata": {"name": "web", "namespace": "mixed"}, "spec": {"selector": {"app": "web"}}})],
        );
        assert_eq!(counter.count(&feed.cluster).await, None, "ExternalWorkloads were not listed");
        let many = (0..100).map(|number| workload(&format!("web-{number}"), "web", number > 1));
        feed.list(Kind::ExternalWorkload, many.chain([workload("db", "db", true)]));
        let expected = ExternalWorkloadCounts { total: 101, not_ready: 2, without_service: 1 };
        assert_eq!(counter.count(&feed.cluster).await, Some(expected));

        feed.apply(Kind::ExternalWorkload, Event::Delete(workload("db", "db", true)));
        assert_eq!(counter.count(&feed.cluster).await, Some(expected), "the result is fresh");
        tokio::time::advance(FRESH).await;
        let expected = ExternalWorkloadCounts { total: 100, not_ready: 2, without_service: 0 };
        assert_eq!(counter.count(&feed.cluster).await, Some(expected));
    }
}
