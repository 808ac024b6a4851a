//! The views of both methods, and the publisher that keeps them up to date.
//!
//! In: the keys that [`DestinationObserver`] marks. Out: new content of the views that depend on them.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use futures::FutureExt;
use tokio::time::Instant;

use super::{
    get::views::ServiceEndpoints, metrics::DiscoveryMetrics, multicluster::Multicluster, observer::DestinationObserver,
    profile::views::Profiles, publisher::Rotation, registry::Registry, settings::DestinationSettings,
};
use crate::cluster::Cluster;

/// The longest turn of one Service, unless a single view takes longer. After this time the publisher also yields to the
/// streams: on a runtime with one worker, publishing many views must not block all streams. It does not yield after
/// every view, because the turns of the runtime are long while many streams are ready.
const TURN: Duration = Duration::from_millis(2);

pub(super) struct Views {
    pub(super) cluster: Cluster,
    pub(super) observer: Arc<DestinationObserver>,
    pub(super) settings: Arc<DestinationSettings>,
    pub(super) metrics: Arc<DiscoveryMetrics>,
    pub(super) endpoints: Registry<ServiceEndpoints>,
    pub(super) profiles: Registry<Profiles>,
    /// `None` if the Services of other clusters are not served.
    pub(super) multicluster: Option<Arc<Multicluster>>,
    /// How often the profile of an endpoint was sent to a new client or published.
    pub(super) endpoint_profile_updates: AtomicU64,
}

// === impl Views ===

impl Views {
    pub(super) fn new(
        cluster: Cluster,
        observer: Arc<DestinationObserver>,
        settings: Arc<DestinationSettings>,
        metrics: Arc<DiscoveryMetrics>,
        multicluster: Option<Arc<Multicluster>>,
    ) -> Arc<Self> {
        let (endpoints, profiles) = (Registry::default(), Registry::default());
        let endpoint_profile_updates = AtomicU64::new(0);
        Arc::new(Self {
            cluster,
            observer,
            settings,
            metrics,
            endpoints,
            profiles,
            multicluster,
            endpoint_profile_updates,
        })
    }

    /// Publishes the views of marked keys, forever.
    pub(super) async fn publish(self: Arc<Self>) {
        let mut rotation = Rotation::default();
        let mut turn = Instant::now();
        loop {
            if rotation.is_empty() {
                rotation.join(&self, self.observer.dirty.next().await.into());
                turn = Instant::now();
            } else if let Some(marked) = self.observer.dirty.next().now_or_never() {
                // Services that are marked meanwhile do not wait for the end of a long pass.
                rotation.join(&self, marked.into());
            }
            rotation.turn(&self, TURN);
            if turn.elapsed() > TURN {
                tokio::task::yield_now().await;
                turn = Instant::now();
            }
        }
    }

    #[cfg(test)]
    #[allow(clippy::unused_async, reason = "the publisher is a task")]
    pub(super) async fn publish_batch(&self, batch: super::observer::Batch) {
        let mut rotation = Rotation::default();
        rotation.join(self, batch);
        while !rotation.is_empty() {
            rotation.turn(self, TURN);
        }
    }

    /// Ends all streams with OK and refuses new streams.
    pub(super) fn close(&self) {
        self.endpoints.close();
        self.profiles.close();
    }
}
