//! The views of both methods.

use std::sync::Arc;

use super::{
    get::views::EndpointViews,
    metrics::DiscoveryMetrics,
    multicluster::{Multicluster, clusters::Clusters},
    observer::DestinationObserver,
    profile::views::ProfileViews,
    publisher::RoundRobin,
    settings::DestinationSettings,
};
use crate::cluster::Cluster;

pub(super) struct Views {
    pub(super) clusters: Arc<Clusters>,
    pub(super) settings: Arc<DestinationSettings>,
    pub(super) metrics: Arc<DiscoveryMetrics>,
    pub(super) endpoints: Arc<EndpointViews>,
    pub(super) profiles: Arc<ProfileViews>,
}

// === impl Views ===

impl Views {
    /// `multicluster` is `None` if the Services of other clusters are not served.
    pub(super) fn new(
        cluster: Cluster,
        observer: &Arc<DestinationObserver>,
        settings: Arc<DestinationSettings>,
        metrics: Arc<DiscoveryMetrics>,
        multicluster: Option<Arc<Multicluster>>,
    ) -> Arc<Self> {
        let profiles = ProfileViews::new(cluster.clone(), observer, &settings, &metrics);
        let clusters = Arc::new(Clusters { local: cluster, linked: multicluster });
        let endpoints = EndpointViews::new(&clusters, observer, &settings, &metrics);
        Arc::new(Self { clusters, settings, metrics, endpoints, profiles })
    }

    /// Returns the publisher of all views.
    pub(super) fn publisher(&self) -> RoundRobin {
        RoundRobin::new(&self.clusters).with(&self.profiles).with(&self.endpoints).with(&self.clusters)
    }

    /// Ends all streams with OK and refuses new streams.
    pub(super) fn close(&self) {
        self.endpoints.registry.close();
        self.profiles.registry.close();
    }
}
