//! Federated Services while `--enable-multicluster` is off. Requests for them are refused, so their traffic is lost,
//! and users who replace Linkerd's destination must be warned.
//!
//! In: the cluster's state. Out: the number of these Services as a metric, for readiness, and one log line if they
//! exist.

use std::time::Duration;

use prometheus::{
    IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use strum::VariantArray;
use tokio::time::sleep;
use tracing::warn;

use crate::{
    cluster::{Cluster, State, kinds::federated_service::FederationKind},
    destination::observer,
};

/// Each check visits all Services, and Services rarely change their kind.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

pub(in crate::destination) struct UnsupportedCollector {
    cluster: Cluster,
    services: IntGaugeVec,
}

impl UnsupportedCollector {
    pub(in crate::destination) fn new(cluster: &Cluster) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "linkerd_operator_unsupported_services",
            "Services that are joined from other clusters, which are not served because other clusters are not enabled",
        );
        Ok(Self { cluster: cluster.clone(), services: IntGaugeVec::new(opts, &["kind"])? })
    }
}

impl Collector for UnsupportedCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.services.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let state = self.cluster.read();
        for kind in FederationKind::VARIANTS {
            let count = count(&state, *kind);
            self.services.with_label_values(&[kind.into_str()]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        drop(state);
        self.services.collect()
    }
}

fn count(state: &State, kind: FederationKind) -> usize {
    state.services.iter().filter(|it| it.federated.as_ref().is_some_and(|federated| federated.kind == kind)).count()
}

/// Returns the reason not to be ready, for a server that refuses requests for these Services. `None` if there are none.
pub fn unsupported_services(cluster: &Cluster) -> Option<String> {
    let any = !cluster.read().services.by_member().is_empty();
    any.then(|| {
        "Services that are joined from other clusters exist, and --enable-multicluster is false: set it to true, or set \
         --allow-unsupported-services"
            .to_owned()
    })
}

/// Logs one warning when the first such Service exists.
pub(in crate::destination) async fn warn_once(cluster: Cluster) {
    cluster.known(observer::KINDS).await;
    let (remote, federated) = loop {
        let (remote, federated) = {
            let state = cluster.read();
            (count(&state, FederationKind::RemoteDiscovery), count(&state, FederationKind::Federated))
        };
        if remote + federated > 0 {
            break (remote, federated);
        }
        sleep(CHECK_INTERVAL).await;
    };
    warn!(
        remote,
        federated,
        "Services that are joined from other clusters exist, and requests of proxies for them are refused: set \
         --enable-multicluster"
    );
    std::future::pending::<()>().await;
}
