//! Services whose endpoints are in other clusters: they are marked for remote discovery, or federated. They are not
//! served yet. Requests for them are refused, so their traffic is lost, and users who replace Linkerd's destination
//! must be warned.
//!
//! In: the cluster's state. Out: the number of these Services as a metric, and one log line if they exist.

use std::time::Duration;

use prometheus::{
    IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use strum::VariantArray;
use tokio::time::sleep;
use tracing::warn;

use super::{
    get::request::{UnsupportedKind, unsupported_kind},
    wait_for_caches,
};
use crate::cluster::{Cluster, State};

/// Each check visits all Services, and Services rarely change their kind.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

pub(super) struct MulticlusterCollector {
    cluster: Cluster,
    services: IntGaugeVec,
}

impl MulticlusterCollector {
    pub(super) fn new(cluster: &Cluster) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "linkerd_operator_unsupported_services",
            "Services whose endpoints are in other clusters, which are not served yet",
        );
        Ok(Self { cluster: cluster.clone(), services: IntGaugeVec::new(opts, &["kind"])? })
    }
}

impl Collector for MulticlusterCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.services.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let state = self.cluster.read();
        for kind in UnsupportedKind::VARIANTS {
            let count = count(&state, *kind);
            self.services.with_label_values(&[kind.into_str()]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        drop(state);
        self.services.collect()
    }
}

fn count(state: &State, kind: UnsupportedKind) -> usize {
    state.services.iter().filter(|service| unsupported_kind(service) == Some(kind)).count()
}

/// Logs one warning when the first such Service exists.
pub(super) async fn warn_once(cluster: Cluster) {
    wait_for_caches(&cluster).await;
    let (remote, federated) = loop {
        let (remote, federated) = {
            let state = cluster.read();
            (count(&state, UnsupportedKind::RemoteDiscovery), count(&state, UnsupportedKind::Federated))
        };
        if remote + federated > 0 {
            break (remote, federated);
        }
        sleep(CHECK_INTERVAL).await;
    };
    warn!(
        remote,
        federated,
        "Services whose endpoints are in other clusters are not served yet, and requests of proxies for them are refused; keep \
         Linkerd's own destination server"
    );
    std::future::pending::<()>().await;
}
