//! The views of both methods, and the publisher that keeps them up to date.
//!
//! In: the keys that [`DestinationObserver`] marks. Out: new content of the views that depend on them.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    get::views::ServiceEndpoints,
    metrics::DiscoveryMetrics,
    object_group::GroupMembers,
    observer::{Batch, DestinationObserver, ObjectGroup},
    profile::views::Profiles,
    registry::Registry,
    settings::DestinationSettings,
};
use crate::cluster::Cluster;

/// The publisher yields after this time. On a runtime with one worker, publishing many views must not block all
/// streams. The publisher does not yield after every view, because the turns of the runtime are long while many streams
/// are ready.
const TURN: Duration = Duration::from_millis(2);

pub(super) struct Views {
    pub(super) cluster: Cluster,
    pub(super) settings: DestinationSettings,
    pub(super) metrics: Arc<DiscoveryMetrics>,
    pub(super) endpoints: Registry<ServiceEndpoints>,
    pub(super) profiles: Registry<Profiles>,
    /// How often the profile of an endpoint was sent to a new client or published.
    pub(super) endpoint_profile_updates: AtomicU64,
}

/// The time when the publisher's turn began.
pub(super) struct Turn(Instant);

// === impl Views ===

impl Views {
    pub(super) fn new(cluster: Cluster, settings: DestinationSettings, metrics: Arc<DiscoveryMetrics>) -> Arc<Self> {
        let (endpoints, profiles) = (Registry::default(), Registry::default());
        Arc::new(Self { cluster, settings, metrics, endpoints, profiles, endpoint_profile_updates: AtomicU64::new(0) })
    }

    /// Publishes the views of marked keys, forever.
    pub(super) async fn publish(self: Arc<Self>, observer: Arc<DestinationObserver>) {
        loop {
            self.publish_batch(observer.dirty.next().await.into()).await;
        }
    }

    pub(super) async fn publish_batch(&self, mut batch: Batch) {
        let groups = std::mem::take(&mut batch.groups);
        self.publish_keys(batch).await;
        // Last, because a group may concern every Service of a namespace.
        let concerned = self.look_up(groups).await;
        self.publish_keys(concerned).await;
    }

    /// Returns the keys that depend on the objects of the groups.
    pub(super) async fn look_up(&self, groups: HashMap<ObjectGroup, Instant>) -> Batch {
        let mut keys = Batch::default();
        for (group, received) in groups {
            let mut members = GroupMembers::of(&self.cluster, &group);
            while let Some(step) = members.next_step(&self.cluster) {
                step.into_iter().for_each(|key| keys.add(key, received));
                tokio::task::yield_now().await;
            }
        }
        keys
    }

    async fn publish_keys(&self, batch: Batch) {
        let mut turn = Turn::new();
        for (view, received) in self.profiles_of(&batch) {
            self.publish_profile(&view, received);
            turn.yield_if_long().await;
        }
        for (service, received) in batch.endpoints {
            self.publish_endpoints(&service, received, &mut turn).await;
        }
        for zone in batch.zones {
            self.resolve_again(&zone);
        }
    }

    /// Ends all streams with OK and refuses new streams.
    pub(super) fn close(&self) {
        self.endpoints.close();
        self.profiles.close();
    }
}

// === impl Turn ===

impl Turn {
    fn new() -> Self {
        Self(Instant::now())
    }

    pub(super) async fn yield_if_long(&mut self) {
        if self.0.elapsed() > TURN {
            tokio::task::yield_now().await;
            *self = Self::new();
        }
    }
}
