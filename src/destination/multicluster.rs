//! Services whose endpoints are in other clusters: marked for remote discovery, or federated. They are not served yet: whoever
//! asks for one is refused, so its traffic is lost. Who puts this server in the place of Linkerd's has to learn of that.
//!
//! * Out: how many there are, when somebody looks, and one line in the log when there are any.

use std::time::Duration;

use prometheus::{
    IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tokio::time::sleep;
use tracing::warn;

use super::{
    discoverable,
    get::request::{Elsewhere, elsewhere},
};
use crate::cluster::{Cluster, State};

/// Services change their marks seldom, and each look goes through all of them.
const BETWEEN_LOOKS: Duration = Duration::from_secs(60);
const KINDS: [(Elsewhere, &str); 2] = [(Elsewhere::Remote, "remote_discovery"), (Elsewhere::Federated, "federated")];

pub(super) struct OtherClusters {
    cluster: Cluster,
    services: IntGaugeVec,
}

impl OtherClusters {
    pub(super) fn new(cluster: &Cluster) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "linkerd_operator_unsupported_services",
            "Services whose endpoints are in other clusters, which are not served yet",
        );
        Ok(Self { cluster: cluster.clone(), services: IntGaugeVec::new(opts, &["kind"])? })
    }
}

impl Collector for OtherClusters {
    fn desc(&self) -> Vec<&Desc> {
        self.services.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counts = counts(&self.cluster.read());
        for ((_, kind), count) in KINDS.iter().zip(counts) {
            self.services.with_label_values(&[kind]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.services.collect()
    }
}

/// Of each of [`KINDS`].
fn counts(state: &State) -> [usize; KINDS.len()] {
    KINDS.map(|(where_, _)| state.services.iter().filter(|service| elsewhere(service) == Some(where_)).count())
}

/// Says it once.
pub(super) async fn tell(cluster: Cluster) {
    discoverable(&cluster).await;
    let [remote, federated] = loop {
        let counts = counts(&cluster.read());
        if counts.iter().any(|count| *count > 0) {
            break counts;
        }
        sleep(BETWEEN_LOOKS).await;
    };
    warn!(
        remote,
        federated,
        "there are Services whose endpoints are in other clusters: they are not served yet, and proxies that ask for them are \
         refused. Leave Linkerd's own destination where it is"
    );
    std::future::pending::<()>().await;
}
