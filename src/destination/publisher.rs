//! The work of the publisher, in fair turns.
//!
//! In: batches of marked keys. Out: published views. Always holds: the endpoints of each Service, the profiles of each
//! Service and each group of objects have one place in the rotation, so a Service with many views delays another Service
//! by one turn for each place; what is marked while work on it is under way is done again after that.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use tracing::error;

use super::{
    get::views::EndpointsPass,
    object_group::GroupMembers,
    observer::{Batch, DirtyKey, ObjectGroup},
    profile::views::Profiles,
    registry::View,
    views::Views,
};
use crate::{
    api::NamespacedName,
    contain::{Work, contain},
};

#[derive(Default)]
pub(super) struct Rotation {
    /// The places, each once. The first place has the next turn.
    places: VecDeque<RotationPlace>,
    endpoints: HashMap<NamespacedName, EndpointsWork>,
    /// The views of profiles by Service; `None` for the profiles of endpoints.
    profiles: HashMap<Option<NamespacedName>, ProfilesWork>,
    groups: HashMap<GroupKey, GroupWork>,
}

/// A group of objects, and its cluster; `None` for this cluster.
pub(super) type GroupKey = (Option<Arc<str>>, ObjectGroup);

enum RotationPlace {
    Endpoints(NamespacedName),
    Profiles(Option<NamespacedName>),
    Group(GroupKey),
}

#[derive(Default)]
struct EndpointsWork {
    /// When the first event was received that the current pass does not contain.
    marked: Option<Instant>,
    pass: Option<EndpointsPass>,
}

#[derive(Default)]
struct ProfilesWork {
    waiting: VecDeque<(Arc<View<Profiles>>, Instant)>,
    /// The addresses of the waiting views, so that a view waits at most once.
    known: HashSet<usize>,
}

#[derive(Default)]
struct GroupWork {
    /// When the first event was received after the members were listed.
    marked: Option<Instant>,
    /// The members that were not looked up yet, and when their event was received.
    members: Option<(GroupMembers, Instant)>,
    /// The keys of the other members. They are published together, because many members belong to the same Service.
    found: Batch,
}

// === impl Rotation ===

impl Rotation {
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Adds the views that a batch affects.
    pub(super) fn join(&mut self, views: &Views, mut batch: Batch) {
        let remote_groups = views.add_joined(&mut batch);
        for (view, received) in views.profiles_of(&batch) {
            let key = view.key.service().map(|target| target.service.clone());
            let work = self.profiles.entry(key.clone()).or_insert_with(|| {
                self.places.push_back(RotationPlace::Profiles(key));
                ProfilesWork::default()
            });
            if work.known.insert(Arc::as_ptr(&view).addr()) {
                work.waiting.push_back((view, received));
            }
        }
        for (service, received) in batch.endpoints {
            let work = self.endpoints.entry(service.clone()).or_insert_with(|| {
                self.places.push_back(RotationPlace::Endpoints(service));
                EndpointsWork::default()
            });
            work.marked.get_or_insert(received);
        }
        let groups = batch.groups.into_iter().map(|(group, received)| ((None, group), received));
        for (group, received) in groups.chain(remote_groups) {
            let work = self.groups.entry(group.clone()).or_insert_with(|| {
                self.places.push_back(RotationPlace::Group(group));
                GroupWork::default()
            });
            work.marked.get_or_insert(received);
        }
        for zone in batch.zones {
            views.resolve_again(&zone);
        }
    }

    /// Gives the first place a turn, which ends after the view during which `longest` has passed.
    pub(super) fn turn(&mut self, views: &Views, longest: Duration) {
        let Some(place) = self.places.pop_front() else { return };
        let start = Instant::now();
        let is_over = || start.elapsed() >= longest;
        let has_more = match &place {
            RotationPlace::Endpoints(service) => {
                let work = self.endpoints.get_mut(service);
                let has_more = work.is_some_and(|work| work.proceed(service, views, is_over));
                if !has_more {
                    self.endpoints.remove(service);
                }
                has_more
            }
            RotationPlace::Profiles(service) => {
                let work = self.profiles.get_mut(service);
                let has_more = work.is_some_and(|work| work.proceed(views, is_over));
                if !has_more {
                    self.profiles.remove(service);
                }
                has_more
            }
            RotationPlace::Group(group) => {
                let found = self.groups.get_mut(group).and_then(|work| work.proceed(group, views));
                if let Some(found) = found {
                    self.join(views, found);
                }
                let has_more = self.groups.get(group).is_some_and(GroupWork::has_more);
                if !has_more {
                    self.groups.remove(group);
                }
                has_more
            }
        };
        if has_more {
            self.places.push_back(place);
        }
    }
}

// === impl EndpointsWork ===

impl EndpointsWork {
    /// Works until `is_over`. Returns whether work is left.
    fn proceed(&mut self, service: &NamespacedName, views: &Views, is_over: impl Fn() -> bool) -> bool {
        if self.pass.is_none() {
            let marked = self.marked.take();
            self.pass = marked.and_then(|received| views.start_endpoints(service, received));
        }
        while let Some(pass) = &mut self.pass {
            if !pass.publish_next(views) {
                self.pass = None;
            } else if is_over() {
                break;
            }
        }
        self.pass.is_some() || self.marked.is_some()
    }
}

// === impl ProfilesWork ===

impl ProfilesWork {
    /// Works until `is_over`. Returns whether work is left.
    fn proceed(&mut self, views: &Views, is_over: impl Fn() -> bool) -> bool {
        while let Some((view, received)) = self.waiting.pop_front() {
            // This precedes the read of the state: a change that arrives after the read is not in this publication, so
            // it must be able to queue the view again.
            self.known.remove(&Arc::as_ptr(&view).addr());
            views.publish_profile(&view, received);
            if is_over() {
                break;
            }
        }
        !self.waiting.is_empty()
    }
}

// === impl GroupWork ===

impl GroupWork {
    /// Looks up some members. After the last one, returns the keys of all.
    fn proceed(&mut self, (remote, group): &GroupKey, views: &Views) -> Option<Batch> {
        let cluster = views.cluster_of(remote.as_deref(), group.namespace());
        if self.members.is_none() {
            let received = self.marked.take()?;
            self.members = Some((GroupMembers::of(cluster.as_ref()?, group), received));
        }
        let (members, received) = self.members.as_mut()?;
        let step = cluster.as_ref().map(|cluster| contain(Work::Publishing, || members.next_step(cluster)));
        let step = step.transpose().unwrap_or_else(|panicked| {
            error!(?group, %panicked, "could not look up the endpoints of some objects, so their change is lost");
            None
        });
        if let Some(step) = step.flatten() {
            let of_cluster = |key: DirtyKey| match remote {
                Some(remote) => key.of_cluster(remote),
                None => Some(key),
            };
            step.into_iter().filter_map(of_cluster).for_each(|key| self.found.add(key, *received));
            return None;
        }
        self.members = None;
        Some(std::mem::take(&mut self.found))
    }

    fn has_more(&self) -> bool {
        self.members.is_some() || self.marked.is_some()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use kube::runtime::watcher::Event;
    use prometheus::Registry as Prometheus;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        cluster::{Kind, Observer, testing::Feed},
        contain,
        destination::{
            DestinationObserver, authority::ServiceAuthority, get::request::GetRequest, metrics::DiscoveryMetrics,
            testing::settings,
        },
    };

    struct Rig {
        feed: Feed,
        observer: Arc<DestinationObserver>,
        views: Arc<Views>,
        rotation: Rotation,
    }

    impl Rig {
        fn new(services: &[(&str, u16)]) -> Self {
            let observer = DestinationObserver::new();
            let feed = Feed::new([Arc::clone(&observer) as Arc<dyn Observer>]);
            let metrics = DiscoveryMetrics::register(&Prometheus::new()).unwrap();
            let views = Views::new(feed.cluster.clone(), Arc::clone(&observer), settings().into(), metrics, None);
            let mut rig = Self { feed, observer, views, rotation: Rotation::default() };
            for (name, ports) in services {
                let declared = (1..=*ports).map(|port| json!({"name": port.to_string(), "port": port}));
                let declared: Vec<Value> = declared.collect();
                let metadata = json!({"name": name, "namespace": "ns"});
                rig.feed.apply(Kind::Service, Event::Apply(json!({"metadata": metadata, "spec": {"ports": declared}})));
                rig.change(name, 1, (*ports).into());
            }
            while rig.observer.dirty.next().now_or_never().is_some() {}
            rig
        }

        /// Changes the endpoint of a Service, at each of its ports.
        fn change(&mut self, service: &str, host: u16, ports: usize) {
            let ports: Vec<Value> = (1..=ports).map(|port| json!({"name": port.to_string(), "port": port})).collect();
            let labels = json!({"kubernetes.io/service-name": service});
            let version = host.to_string();
            let metadata = json!({"name": service, "namespace": "ns", "labels": labels, "resourceVersion": version});
            let endpoints = json!([{"addresses": [format!("10.0.0.{host}")]}]);
            let slice = json!({"metadata": metadata, "ports": ports, "endpoints": endpoints});
            self.feed.apply(Kind::EndpointSlice, Event::Apply(slice));
        }

        fn subscribe(&self, service: &str, port: usize) -> crate::destination::get::updates::EndpointUpdates {
            let path = format!("{service}.ns.svc.mycluster.local:{port}");
            let request = GetRequest::new(ServiceAuthority::parse(&path, "mycluster.local").unwrap(), "");
            let subscription = self.views.subscribe(&request).unwrap();
            crate::destination::get::updates::EndpointUpdates::new(request, subscription)
        }

        /// One turn, which ends after one view.
        fn turn(&mut self) {
            if let Some(marked) = self.observer.dirty.next().now_or_never() {
                self.rotation.join(&self.views, marked.into());
            }
            self.rotation.turn(&self.views, Duration::ZERO);
        }

        fn published(&self) -> u64 {
            self.views.metrics.published.get()
        }
    }

    #[test]
    fn a_service_with_many_views_delays_another_service_by_one_turn() {
        use crate::destination::stream::Updates;

        let mut rig = Rig::new(&[("large", 50), ("small", 1)]);
        let _many: Vec<_> = (1..=50).map(|port| rig.subscribe("large", port)).collect();
        let mut small = rig.subscribe("small", 1);
        small.refresh();
        rig.change("large", 2, 50);
        rig.turn();
        assert_eq!(rig.published(), 1, "one of the views of the large Service");
        rig.change("small", 2, 1);
        rig.turn();
        rig.turn();
        assert!(small.changed().now_or_never().is_some(), "the small Service is published in the second turn");
        assert_eq!(rig.published(), 3);
        while !rig.rotation.is_empty() {
            rig.turn();
        }
        assert_eq!(rig.published(), 51);
    }

    #[test]
    fn a_view_that_cannot_be_published_is_reset_and_the_others_are_published() {
        use crate::destination::stream::{EndReason, Updates};

        let mut rig = Rig::new(&[("web", 3)]);
        let mut streams: Vec<_> = (1..=3).map(|port| rig.subscribe("web", port)).collect();
        streams.iter_mut().for_each(|stream| _ = stream.refresh());
        rig.change("web", 2, 3);
        // The first turn begins the pass, and publishes a view.
        rig.turn();
        contain::testing::panic_in_next(Work::Publishing);
        while !rig.rotation.is_empty() {
            rig.turn();
        }
        let ends: Vec<_> = streams.iter_mut().map(Updates::refresh).collect();
        assert_eq!(ends.iter().filter(|end| **end == Some(EndReason::Panicked)).count(), 1, "{ends:?}");
        assert_eq!(ends.iter().filter(|end| end.is_none()).count(), 2, "{ends:?}");
        assert_eq!(rig.published(), 2);
        // The client reconnects while its first stream is still there.
        let port = 1 + ends.iter().position(Option::is_some).unwrap();
        let mut again = rig.subscribe("web", port);
        assert_eq!(again.refresh(), None);
        drop(streams);
        rig.change("web", 3, 3);
        while rig.published() < 3 {
            rig.turn();
        }
        assert_eq!((again.refresh(), again.next().is_some()), (None, true), "its view is still found");
    }

    #[test]
    fn all_views_of_a_service_whose_endpoints_cannot_be_looked_up_are_reset() {
        use crate::destination::stream::{EndReason, Updates};

        let mut rig = Rig::new(&[("bad", 2), ("good", 1)]);
        let mut bad = [rig.subscribe("bad", 1), rig.subscribe("bad", 2)];
        let mut good = rig.subscribe("good", 1);
        rig.change("bad", 2, 2);
        contain::testing::panic_in_next(Work::Publishing);
        rig.turn();
        rig.change("good", 2, 1);
        rig.turn();
        assert_eq!(bad.each_mut().map(Updates::refresh), [Some(EndReason::Panicked); 2]);
        assert_eq!((good.refresh(), rig.published()), (None, 1));
    }

    #[test]
    fn a_service_that_is_marked_while_its_views_are_published_is_published_again_after_that() {
        let mut rig = Rig::new(&[("large", 10)]);
        let _many: Vec<_> = (1..=10).map(|port| rig.subscribe("large", port)).collect();
        rig.change("large", 2, 10);
        rig.turn();
        rig.change("large", 3, 10);
        let mut turns = 1;
        while !rig.rotation.is_empty() {
            rig.turn();
            turns += 1;
        }
        // Ten views for each change, and one turn for the end of each pass.
        assert_eq!((rig.published(), turns), (20, 22));
    }
}
