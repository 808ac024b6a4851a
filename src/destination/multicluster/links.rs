//! Follows the Secrets with the kubeconfigs of other clusters. They appear, change and vanish while the process runs.

use std::sync::Arc;

use tokio::{sync::Notify, time::Instant};

use super::Multicluster;
use crate::{
    api::REMOTE_KUBECONFIG_TYPE,
    cluster::{Change, Cluster, Kind, Observer, State, WatchScope},
};

/// Wakes the task that links clusters when a Secret changes.
pub struct LinksObserver {
    namespace: Arc<str>,
    changed: Notify,
}

// === impl LinksObserver ===

impl LinksObserver {
    /// `namespace` is that of the control plane.
    pub fn new(namespace: &str) -> Arc<Self> {
        Arc::new(Self { namespace: namespace.into(), changed: Notify::new() })
    }
}

impl Observer for LinksObserver {
    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Secret]
    }

    fn scope(&self, _: Kind) -> WatchScope {
        WatchScope {
            namespace: Some(Arc::clone(&self.namespace)),
            labels: None,
            fields: Some(format!("type={REMOTE_KUBECONFIG_TYPE}")),
        }
    }

    fn blocks_readiness(&self) -> bool {
        true
    }

    fn changed(&self, _: &State, _: &[Change], _: Instant) {
        self.changed.notify_one();
    }
}

/// Links the clusters that the Secrets name, forever.
pub(in crate::destination) async fn follow(
    multicluster: Arc<Multicluster>,
    cluster: Cluster,
    observer: Arc<LinksObserver>,
) {
    cluster.known(observer.kinds()).await;
    loop {
        link(&multicluster, &cluster);
        observer.changed.notified().await;
    }
}

fn link(multicluster: &Multicluster, cluster: &Cluster) {
    let secrets: Vec<_> = cluster.read().remote_kubeconfigs.iter().cloned().collect();
    multicluster.link(&secrets);
}

#[cfg(test)]
#[path = "links_tests.rs"]
mod tests;
