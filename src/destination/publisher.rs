//! The publisher, which updates the views of marked keys in fair turns.
//!
//! In: batches of marked keys. Out: calls of [`Publish`]. Always holds: the endpoints of each Service, the profiles of
//! each Service, the profiles of all endpoints and each group of objects have one slot in the round robin, so a Service
//! with many views delays another Service by one turn for each slot; a key that is marked during its work is processed
//! again afterwards.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::Hash,
    iter::repeat_n,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use tokio::time::Instant;

use super::{
    multicluster::clusters::Clusters,
    observer::{Batch, DestinationObserver},
};

/// The longest turn of one slot, unless a single view takes longer. After this time the publisher also yields to the
/// streams: on a runtime with one worker, publishing many views must not block all streams. It does not yield after
/// every view, because the runtime polls all ready connections before the publisher again.
const TURN: Duration = Duration::from_millis(2);

/// Work that is done in turns: the publication of one method's views, or lookups of groups.
pub(super) trait Publish: Send + Sync + 'static {
    /// Each key with work has one slot.
    type Key: Clone + Eq + Hash + Send;
    type Work: Default + Send;

    /// Adds the work that a batch causes.
    fn add(&self, batch: &Batch, slots: &mut Slots<Self::Key, Self::Work>);
    /// Does work of a key. Stops after the first view that is finished at or after `end`.
    fn proceed(&self, key: &Self::Key, work: &mut Self::Work, end: Instant) -> Turn;
}

/// The result of a turn.
#[derive(Default)]
pub(super) struct Turn {
    /// Whether the slot has work left. If so, it moves to the end, otherwise it is removed.
    pub(super) has_more: bool,
    /// Further keys whose views must be published.
    pub(super) found: Option<Batch>,
}

/// The keys with work of one kind.
pub(super) struct Slots<K, W> {
    /// The first one has the next turn.
    order: VecDeque<K>,
    work: HashMap<K, W>,
}

struct PublishQueue<P: Publish> {
    publish: Arc<P>,
    slots: Slots<P::Key, P::Work>,
}

/// A [`PublishQueue`] of any type.
trait Queue: Send {
    /// Returns the number of new slots.
    fn add(&mut self, batch: &Batch) -> usize;
    /// Gives the first slot a turn.
    fn turn(&mut self, end: Instant) -> Turn;
}

/// All work, in turns.
pub(super) struct RoundRobin {
    clusters: Arc<Clusters>,
    queues: Vec<Box<dyn Queue>>,
    /// The index of the queue of each slot. The first one has the next turn. A queue keeps its slots in the same order.
    slots: VecDeque<usize>,
}

// === impl Slots ===

impl<K: Clone + Eq + Hash, W: Default> Slots<K, W> {
    /// Returns the work of a key, which gets the last slot if it has none.
    pub(super) fn work(&mut self, key: K) -> &mut W {
        match self.work.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.order.push_back(entry.key().clone());
                entry.insert(W::default())
            }
        }
    }
}

// === impl PublishQueue ===

impl<P: Publish> Queue for PublishQueue<P> {
    fn add(&mut self, batch: &Batch) -> usize {
        let before = self.slots.order.len();
        self.publish.add(batch, &mut self.slots);
        self.slots.order.len().saturating_sub(before)
    }

    fn turn(&mut self, end: Instant) -> Turn {
        let Slots { order, work } = &mut self.slots;
        let Some(key) = order.pop_front() else { return Turn::default() };
        let turn = work.get_mut(&key).map(|work| self.publish.proceed(&key, work, end)).unwrap_or_default();
        if turn.has_more {
            order.push_back(key);
        } else {
            work.remove(&key);
        }
        turn
    }
}

// === impl RoundRobin ===

impl RoundRobin {
    pub(super) fn new(clusters: &Arc<Clusters>) -> Self {
        Self { clusters: Arc::clone(clusters), queues: Vec::new(), slots: VecDeque::new() }
    }

    /// Adds work of another kind. The slots of one batch are in the order of these calls.
    pub(super) fn with<P: Publish>(mut self, publish: &Arc<P>) -> Self {
        let slots = Slots { order: VecDeque::new(), work: HashMap::new() };
        self.queues.push(Box::new(PublishQueue { publish: Arc::clone(publish), slots }));
        self
    }

    /// Publishes the views of marked keys, forever.
    pub(super) async fn run(mut self, observer: Arc<DestinationObserver>) {
        let mut turn = Instant::now();
        loop {
            if self.is_empty() {
                self.add(observer.dirty.next().await.into());
                turn = Instant::now();
            } else if let Some(marked) = observer.dirty.next().now_or_never() {
                // Services that are marked meanwhile do not wait for the end of a long pass.
                self.add(marked.into());
            }
            self.turn(TURN);
            if turn.elapsed() > TURN {
                tokio::task::yield_now().await;
                turn = Instant::now();
            }
        }
    }

    #[cfg(test)]
    pub(super) fn publish(mut self, batch: Batch) {
        self.add(batch);
        while !self.is_empty() {
            self.turn(TURN);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Adds the views that a batch affects.
    pub(super) fn add(&mut self, mut batch: Batch) {
        self.clusters.add_federated(&mut batch);
        for (index, queue) in self.queues.iter_mut().enumerate() {
            self.slots.extend(repeat_n(index, queue.add(&batch)));
        }
    }

    /// Gives the first slot a turn, which stops after the first view that is finished after `longest`.
    pub(super) fn turn(&mut self, longest: Duration) {
        let Some(index) = self.slots.pop_front() else { return };
        let Some(queue) = self.queues.get_mut(index) else { return };
        let Turn { has_more, found } = queue.turn(Instant::now() + longest);
        if let Some(found) = found {
            self.add(found);
        }
        if has_more {
            self.slots.push_back(index);
        }
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
        contain::{self, Work},
        destination::{
            authority::ServiceAuthority,
            get::{request::GetRequest, updates::EndpointUpdates},
            labels::EndReason,
            metrics::DiscoveryMetrics,
            stream::Updates,
            testing::settings,
            views::Views,
        },
    };

    struct Rig {
        feed: Feed,
        observer: Arc<DestinationObserver>,
        views: Arc<Views>,
        publisher: RoundRobin,
    }

    impl Rig {
        fn new(services: &[(&str, u16)]) -> Self {
            let observer = DestinationObserver::new();
            let feed = Feed::new([Arc::clone(&observer) as Arc<dyn Observer>]);
            let metrics = DiscoveryMetrics::register(&Prometheus::new()).unwrap();
            let views = Views::new(feed.cluster.clone(), &observer, settings().into(), metrics, None);
            let publisher = views.publisher();
            let mut rig = Self { feed, observer, views, publisher };
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

        fn subscribe(&self, service: &str, port: usize) -> EndpointUpdates {
            let path = format!("{service}.ns.svc.mycluster.local:{port}");
            let request = GetRequest::new(ServiceAuthority::parse(&path, "mycluster.local").unwrap(), "");
            let subscription = self.views.endpoints.subscribe(&request).unwrap();
            EndpointUpdates::new(request, subscription)
        }

        /// One turn, which ends after one view.
        fn turn(&mut self) {
            if let Some(marked) = self.observer.dirty.next().now_or_never() {
                self.publisher.add(marked.into());
            }
            self.publisher.turn(Duration::ZERO);
        }

        fn published(&self) -> u64 {
            self.views.metrics.published.get()
        }
    }

    #[test]
    fn a_service_with_many_views_delays_another_service_by_one_turn() {
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
        while !rig.publisher.is_empty() {
            rig.turn();
        }
        assert_eq!(rig.published(), 51);
    }

    #[test]
    fn a_view_that_cannot_be_published_is_reset_and_the_others_are_published() {
        let mut rig = Rig::new(&[("web", 3)]);
        let mut streams: Vec<_> = (1..=3).map(|port| rig.subscribe("web", port)).collect();
        streams.iter_mut().for_each(|stream| _ = stream.refresh());
        rig.change("web", 2, 3);
        // The first turn begins the pass, and publishes a view.
        rig.turn();
        contain::testing::panic_in_next(Work::Publishing);
        while !rig.publisher.is_empty() {
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
        while !rig.publisher.is_empty() {
            rig.turn();
            turns += 1;
        }
        // Ten views for each change, and one turn for the end of each pass.
        assert_eq!((rig.published(), turns), (20, 22));
    }
}
