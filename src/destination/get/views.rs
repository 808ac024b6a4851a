//! The views that clients look at, from the first client to the last; and the publisher that keeps them in step.
//!
//! ```text
//! DirtySet ─▶ publisher: State ─▶ Members ─▶ Snapshot of each view of the Service ─▶ watch channel ─▶ streams
//! ```
//!
//! In: what the watches marked; clients that come and go. Out: snapshots. Always holds: a view never goes back to an
//! older generation of the state; what a client that comes now is told is what one that has been there was told; a view
//! lives as long as it has clients, and so do its metrics. State is published, not events: a client that is slow finds the
//! latest, and nothing waits in line.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::{
    endpoint_set::EndpointSet,
    members::Members,
    request::{Refusal, Request, ViewKey},
    snapshot::Snapshot,
    view::{Location, Query, endpoints, set_labels},
};
use crate::destination::{
    metrics::Metrics,
    observer::{Batch, DestinationObserver},
    profile::views::Profiles,
    registry::{Hold, Viewed},
    settings::Settings,
};
use crate::{
    api::NamespacedName,
    cluster::{Cluster, kinds::node::Zone},
};

/// Many views must not keep streams from being polled where there is one worker; nor may the last of many wait for as many
/// turns, when streams come in crowds and each turn is long.
const TURN: Duration = Duration::from_millis(2);
/// Views that a new one may share endpoints with.
const SIBLINGS: usize = 3;

pub(in crate::destination) struct Views {
    pub(in crate::destination) cluster: Cluster,
    pub(in crate::destination) settings: Settings,
    pub(in crate::destination) metrics: Arc<Metrics>,
    registry: Mutex<Registry>,
    pub(in crate::destination) profiles: Profiles,
}

/// When the publisher's turn began.
struct Turn(Instant);

#[derive(Default)]
struct Registry {
    services: HashMap<NamespacedName, HashMap<Query, Target>>,
    closed: bool,
}

/// All views of one Service and port.
#[derive(Default)]
struct Target {
    views: HashMap<Location, Arc<View>>,
    updates: Arc<AtomicU64>,
}

/// What clients at one location are told.
pub(in crate::destination) struct View {
    key: ViewKey,
    clients: AtomicUsize,
    /// The generation of the state that was published last; `None` when the snapshot is not what clients are to be told.
    /// Held while a snapshot is made.
    made_at: Mutex<Option<u64>>,
    sender: watch::Sender<Published>,
    /// How often it was looked at whether there is something to publish.
    updates: Arc<AtomicU64>,
}

/// The state of a view, for its streams.
#[derive(Clone)]
pub(in crate::destination) struct Published {
    pub(in crate::destination) snapshot: Arc<Snapshot>,
    /// Another number means that the request may have to be resolved to another view.
    pub(in crate::destination) placement: u64,
    /// The number has grown since the view was looked at last.
    unsettled: bool,
    /// There will be no more.
    pub(in crate::destination) closed: bool,
    /// Whether the Service does.
    pub(in crate::destination) exists: bool,
}

/// A client's hold on a view, and which view its request was resolved to.
pub(in crate::destination) struct Subscription {
    hold: Hold<View>,
    placement: u64,
}

/// One line of Linkerd's `endpoints_*` metrics.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::destination) struct Group {
    pub(in crate::destination) service: NamespacedName,
    pub(in crate::destination) query: Query,
    pub(in crate::destination) node: Arc<str>,
    pub(in crate::destination) subscribers: usize,
    pub(in crate::destination) updates: u64,
    pub(in crate::destination) pods: usize,
    pub(in crate::destination) exists: bool,
}

// === impl Turn ===

impl Turn {
    fn new() -> Self {
        Self(Instant::now())
    }

    async fn yield_if_long(&mut self) {
        if self.0.elapsed() > TURN {
            tokio::task::yield_now().await;
            *self = Self::new();
        }
    }
}

// === impl Views ===

impl Views {
    pub(in crate::destination) fn new(cluster: Cluster, settings: Settings, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { cluster, settings, metrics, registry: Mutex::default(), profiles: Profiles::default() })
    }

    /// Finds the request's view, with a snapshot in it.
    ///
    /// # Errors
    /// When the request is answered with a status instead.
    pub(in crate::destination) fn subscribe(self: &Arc<Self>, request: &Request) -> Result<Subscription, Refusal> {
        let mut key = request.resolve(&self.cluster.read())?;
        let subscription = loop {
            let (view, receiver) = self.view(key)?;
            // From before anything else is looked at: if the answer changes from now on, the stream is to notice.
            let placement = receiver.borrow().placement;
            let subscription = Subscription { hold: Hold::new(self, view, receiver), placement };
            key = request.resolve(&self.cluster.read())?;
            // Before the view was known to be looked at, its clients may have been called elsewhere.
            if key == subscription.hold.view().key {
                break subscription;
            }
        };
        let view = subscription.hold.view();
        let mut made_at = view.made_at.lock();
        if made_at.is_none() {
            let members = Members::of(&self.cluster.read(), &view.key.service);
            view.publish(&mut made_at, &members, &self.settings, &self.siblings(view), Instant::now());
        }
        drop(made_at);
        Ok(subscription)
    }

    /// Publishes what is marked, for ever.
    pub(in crate::destination) async fn publish(self: Arc<Self>, observer: Arc<DestinationObserver>) {
        loop {
            self.publish_batch(observer.dirty.next().await.into()).await;
        }
    }

    pub(in crate::destination) async fn publish_batch(&self, batch: Batch) {
        let mut turn = Turn::new();
        for (view, received) in self.profiles.concerned(&batch, &self.settings.cluster_domain) {
            self.publish_profile(&view, received);
            turn.yield_if_long().await;
        }
        for (service, received) in batch.endpoints {
            self.publish_service(&service, received, &mut turn).await;
        }
        for zone in batch.zones {
            self.clients_left(&zone);
        }
    }

    /// Brings all views of a Service up to date, in turns with the streams.
    async fn publish_service(&self, service: &NamespacedName, received: Instant, turn: &mut Turn) {
        let views = self.views_of(service);
        if views.is_empty() {
            return;
        }
        self.metrics.applied(received);
        let members = Members::of(&self.cluster.read(), service);
        for view in views {
            view.updates.fetch_add(1, Ordering::Relaxed);
            let siblings = self.siblings(&view);
            if view.publish(&mut view.made_at.lock(), &members, &self.settings, &siblings, received) {
                self.metrics.published.inc();
                self.metrics.encoded(received);
            }
            turn.yield_if_long().await;
        }
    }

    /// A node is in another zone now: so are the clients on it.
    fn clients_left(&self, zone: &Zone) {
        let views: Vec<Arc<View>> = {
            let registry = self.registry.lock();
            let all = registry.services.values().flat_map(HashMap::values).flat_map(|target| target.views.values());
            all.filter(|view| view.key.location.zone == *zone).cloned().collect()
        };
        for view in views {
            view.sender.send_modify(Published::unsettle);
        }
    }

    /// Ends all streams, well, and lets no new one begin.
    pub(in crate::destination) fn close(&self) {
        let views: Vec<Arc<View>> = {
            let mut registry = self.registry.lock();
            registry.closed = true;
            let all = registry.services.values().flat_map(HashMap::values).flat_map(|target| target.views.values());
            all.cloned().collect()
        };
        for view in views {
            view.sender.send_modify(|published| published.closed = true);
        }
        self.profiles.close();
    }

    /// What Linkerd's metrics say of each Service, port, instance and, where it matters, node.
    pub(in crate::destination) fn groups(&self) -> Vec<Group> {
        let registry = self.registry.lock();
        let mut groups = Vec::new();
        for (service, targets) in &registry.services {
            for (query, target) in targets {
                // Views of several zones are one line: their zones are no label.
                let mut by_node: HashMap<Arc<str>, Group> = HashMap::new();
                for view in target.views.values() {
                    let node = view.key.location.node.clone().unwrap_or_default();
                    let group = by_node.entry(Arc::clone(&node)).or_insert_with(|| Group {
                        service: service.clone(),
                        query: query.clone(),
                        node,
                        subscribers: 0,
                        updates: target.updates.load(Ordering::Relaxed),
                        pods: 0,
                        exists: false,
                    });
                    let published = view.sender.borrow();
                    group.subscribers += view.clients.load(Ordering::Relaxed);
                    group.pods = group.pods.max(published.snapshot.len());
                    group.exists |= published.exists;
                }
                groups.extend(by_node.into_values());
            }
        }
        groups
    }

    fn view(&self, key: ViewKey) -> Result<(Arc<View>, watch::Receiver<Published>), Refusal> {
        let mut registry = self.registry.lock();
        if registry.closed {
            return Err(Refusal::Stopping);
        }
        let target = registry.services.entry(key.service.clone()).or_default().entry(key.query.clone()).or_default();
        let updates = &target.updates;
        let view = target.views.entry(key.location.clone()).or_insert_with(|| Arc::new(View::new(key, updates)));
        // Under the lock, so that nobody takes the view away before it has its client.
        view.clients.fetch_add(1, Ordering::Relaxed);
        Ok((Arc::clone(view), view.sender.subscribe()))
    }

    fn views_of(&self, service: &NamespacedName) -> Vec<Arc<View>> {
        let registry = self.registry.lock();
        let targets = registry.services.get(service).into_iter().flat_map(HashMap::values);
        targets.flat_map(|target| target.views.values()).cloned().collect()
    }

    /// What clients at other locations are told of the same: of a few, as one is for each zone.
    fn siblings(&self, view: &View) -> Vec<Arc<Snapshot>> {
        let registry = self.registry.lock();
        let target = registry.services.get(&view.key.service).and_then(|targets| targets.get(&view.key.query));
        let others =
            target.into_iter().flat_map(|target| target.views.values()).filter(|it| !std::ptr::eq(&***it, view));
        others.take(SIBLINGS).map(|it| Arc::clone(&it.sender.borrow().snapshot)).collect()
    }
}

// === impl View ===

impl View {
    fn new(key: ViewKey, updates: &Arc<AtomicU64>) -> Self {
        let nothing = Arc::new(Snapshot::new(BTreeMap::new(), EndpointSet::empty(), Instant::now()));
        let published = Published { snapshot: nothing, placement: 0, unsettled: false, closed: false, exists: true };
        let (sender, _) = watch::channel(published);
        Self { key, clients: AtomicUsize::new(0), made_at: Mutex::new(None), sender, updates: Arc::clone(updates) }
    }

    /// Makes the view's snapshot from the members and wakes its streams, if it says anything new. Whether it does.
    fn publish(
        &self,
        made_at: &mut Option<u64>,
        members: &Members,
        settings: &Settings,
        siblings: &[Arc<Snapshot>],
        received: Instant,
    ) -> bool {
        if made_at.is_some_and(|made_at| made_at > members.generation) {
            return false;
        }
        let is_first = made_at.is_none();
        if !self.key.is_for(members.service.as_deref()) {
            *made_at = None;
            self.sender.send_modify(|published| {
                published.exists = true;
                published.unsettle();
            });
            return false;
        }
        *made_at = Some(members.generation);
        let before = Arc::clone(&self.sender.borrow().snapshot);
        let ViewKey { service, query, location } = &self.key;
        let labels = set_labels(members, &service.name, &service.namespace);
        let endpoints = endpoints(members, query, location, settings, before.endpoints(), siblings);
        let exists = members.service.is_some();
        let snapshot = Snapshot::new(labels, endpoints, received);
        let snapshot = if is_first { Some(snapshot) } else { snapshot.after(&before) }.map(Arc::new);
        let news = snapshot.is_some();
        self.sender.send_if_modified(|published| {
            // A stream that is to move, but found its Service gone, tries again when anything was seen of it.
            let retry = std::mem::take(&mut published.unsettled) || published.exists != exists;
            published.exists = exists;
            if let Some(snapshot) = snapshot {
                published.snapshot = snapshot;
            }
            news || retry
        });
        news
    }
}

impl Viewed for View {
    type Published = Published;

    fn left(view: &Arc<Self>, views: &Views) {
        let mut registry = views.registry.lock();
        if view.clients.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let ViewKey { service, query, location } = &view.key;
        let Some(targets) = registry.services.get_mut(service) else { return };
        let Some(target) = targets.get_mut(query) else { return };
        target.views.remove(location);
        if target.views.is_empty() {
            targets.remove(query);
        }
        if targets.is_empty() {
            registry.services.remove(service);
        }
    }
}

// === impl Published ===

impl Published {
    /// Has the streams look whether this is still their view.
    fn unsettle(&mut self) {
        self.placement += 1;
        self.unsettled = true;
    }
}

// === impl Subscription ===

impl Subscription {
    /// The view's state, now seen.
    pub(in crate::destination) fn latest(&mut self) -> Published {
        self.hold.latest()
    }

    /// Waits until the view has a state that was not looked at. Nothing is lost when the wait is given up.
    pub(in crate::destination) async fn changed(&mut self) {
        self.hold.changed().await;
    }

    pub(in crate::destination) fn views(&self) -> &Arc<Views> {
        self.hold.views()
    }

    /// Lets a request that was answered with this view name its target in the view's own words, which all its streams share.
    pub(in crate::destination) fn share_names(&self, request: &mut Request) {
        let ViewKey { service, query, .. } = &self.hold.view().key;
        request.service = service.clone();
        request.query = query.clone();
    }

    /// Whether the request may have to be resolved anew.
    pub(in crate::destination) fn is_moved(&self, published: &Published) -> bool {
        published.placement != self.placement
    }
}
