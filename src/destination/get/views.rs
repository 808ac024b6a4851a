//! The views of `Get`: one view for each Service, port, hostname and location of clients.
//!
//! In: marked Services; clients that subscribe. Out: snapshots. Always holds: a view never returns to an older
//! generation of the state; new and existing clients of a view have the same state.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    endpoint_set::EndpointSet,
    exclusions::Exclusions,
    members::Members,
    request::{GetRefusal, GetRequest, Location, Query, QueryPort, ViewKey},
    snapshot::Snapshot,
    view::endpoints,
};
use crate::{
    api::NamespacedName,
    cluster::kinds::{node::Zone, service::Service},
    destination::{
        metrics::DiscoveryMetrics,
        multicluster::{clusters::Clusters, remote::RemoteNamespace},
        observer::DestinationObserver,
        registry::{Generation, Registry, Subscription, View, ViewIndex, ViewKind},
        settings::DestinationSettings,
    },
};

/// The number of views whose endpoints a new view may share.
const SIBLINGS: usize = 3;

/// About how many bytes an encoded endpoint takes, with its source.
const ENCODED_BYTES: usize = 1024;

/// The views of `Get`.
pub(in crate::destination) struct EndpointViews {
    pub(super) clusters: Arc<Clusters>,
    pub(super) settings: Arc<DestinationSettings>,
    pub(super) metrics: Arc<DiscoveryMetrics>,
    pub(in crate::destination) registry: Registry<Self>,
}

#[derive(Clone)]
pub(in crate::destination) struct EndpointsContent {
    pub(super) snapshot: Arc<Snapshot>,
    /// A counter. When it changes, streams have to resolve their requests again, maybe to another view.
    pub(super) placement: u64,
    /// The Service at the last publication; `None` if it did not exist.
    service: Option<Arc<Service>>,
    /// The exclusions of the last publication while the Service existed. When they change, streams may belong to
    /// another view.
    exclusions: Option<Arc<Exclusions>>,
    /// Whether all clusters are known that may have endpoints of the Service.
    pub(super) is_complete: bool,
    /// Keeps the watches of the other clusters' namespaces that have the endpoints.
    remotes: Vec<Arc<RemoteNamespace>>,
}

#[derive(Default)]
pub(in crate::destination) struct EndpointsIndex {
    services: HashMap<NamespacedName, HashMap<Query, ViewsOfPort>>,
}

/// All views of one Service, port and hostname.
#[derive(Default)]
struct ViewsOfPort {
    by_location: HashMap<Location, Arc<View<EndpointViews>>>,
    /// How often the views were checked for changes to publish.
    updates: u64,
}

/// One time series of Linkerd's `endpoints_*` metrics.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::destination) struct EndpointsSeries {
    pub(super) service: NamespacedName,
    pub(super) port: u16,
    pub(super) instance: Option<Arc<str>>,
    pub(super) node: Arc<str>,
    pub(super) subscribers: usize,
    pub(super) updates: u64,
    pub(super) pods: usize,
    pub(super) exists: bool,
}

// === impl EndpointViews ===

impl ViewKind for EndpointViews {
    type Key = ViewKey;
    type Content = EndpointsContent;
    type Index = EndpointsIndex;

    fn registry(&self) -> &Registry<Self> {
        &self.registry
    }

    fn unpublished() -> EndpointsContent {
        let empty = Arc::new(Snapshot::new(BTreeMap::new(), EndpointSet::empty(), Instant::now()));
        EndpointsContent {
            snapshot: empty,
            placement: 0,
            service: None,
            exclusions: None,
            is_complete: false,
            remotes: Vec::new(),
        }
    }
}

impl EndpointViews {
    pub(in crate::destination) fn new(
        clusters: &Arc<Clusters>,
        observer: &Arc<DestinationObserver>,
        settings: &Arc<DestinationSettings>,
        metrics: &Arc<DiscoveryMetrics>,
    ) -> Arc<Self> {
        let (clusters, settings, metrics) = (Arc::clone(clusters), Arc::clone(settings), Arc::clone(metrics));
        Arc::new(Self { clusters, settings, metrics, registry: Registry::new(observer) })
    }

    /// Subscribes to the request's view, and publishes the view if it is new. Also returns the placement of the view at
    /// the time when the request was resolved.
    ///
    /// # Errors
    /// When the request is refused.
    pub(in crate::destination) fn subscribe(
        self: &Arc<Self>,
        request: &GetRequest,
    ) -> Result<(Subscription<Self>, u64), GetRefusal> {
        let mut key = self.clusters.resolve(request)?;
        let (subscription, placement) = loop {
            let subscription = Subscription::new(self, key)?;
            // Read before the request is resolved again, so that the stream notices if the result changes from now on.
            let placement = subscription.view().sender.borrow().content.placement;
            #[cfg(test)]
            crate::destination::testing::interleave();
            key = self.clusters.resolve(request)?;
            let view = subscription.view();
            // The clients of this view may have moved to another view before this subscription.
            if key != view.key {
                continue;
            }
            let mut generation = view.generation.lock();
            if generation.is_none() || view.excludes(request) {
                let members = self.clusters.members(&view.key.service);
                if generation.is_none() && !self.settings.limits.memory.has_room_for(view.size(&members)) {
                    return Err(GetRefusal::NoMemory);
                }
                // The index is not locked during the publication.
                let siblings = self.registry.index().siblings(view);
                view.publish(&mut generation, &members, &self.settings, &siblings, Instant::now());
            }
            drop(generation);
            // A request that is still excluded is resolved again: meanwhile, the Service has declared its port, or an
            // endpoint has got its hostname.
            if !view.excludes(request) {
                break (subscription, placement);
            }
            key = self.clusters.resolve(request)?;
        };
        Ok((subscription, placement))
    }

    /// Makes the streams of a zone resolve their requests again, because a node has left the zone.
    pub(super) fn resolve_again(&self, zone: &Zone) {
        let views: Vec<Arc<View<EndpointViews>>> = {
            let index = self.registry.index();
            index.views().filter(|view| view.key.location.zone == *zone).cloned().collect()
        };
        for view in views {
            view.sender.send_modify(|published| published.content.placement += 1);
        }
    }
}

// === impl EndpointsContent ===

impl EndpointsContent {
    pub(super) fn exists(&self) -> bool {
        self.service.is_some()
    }
}

// === impl EndpointsIndex ===

impl ViewIndex<EndpointViews> for EndpointsIndex {
    fn get_or_insert(&mut self, key: ViewKey) -> Arc<View<EndpointViews>> {
        let views = self.services.entry(key.service.clone()).or_default().entry(key.query.clone()).or_default();
        let view = views.by_location.entry(key.location.clone()).or_insert_with(|| Arc::new(View::new(key)));
        Arc::clone(view)
    }

    fn remove(&mut self, view: &Arc<View<EndpointViews>>) {
        let ViewKey { service, query, location } = &view.key;
        let Some(ports) = self.services.get_mut(service) else { return };
        let Some(views) = ports.get_mut(query) else { return };
        // A view that was reset is not in the index any more, and another view may have replaced it.
        if views.by_location.get(location).is_some_and(|known| Arc::ptr_eq(known, view)) {
            views.by_location.remove(location);
        }
        if views.by_location.is_empty() {
            ports.remove(query);
        }
        if ports.is_empty() {
            self.services.remove(service);
        }
    }

    fn views(&self) -> impl Iterator<Item = &Arc<View<EndpointViews>>> {
        self.services.values().flat_map(HashMap::values).flat_map(|views| views.by_location.values())
    }
}

impl EndpointsIndex {
    /// Returns the views of a Service, and counts a check of each view.
    pub(super) fn start_update(&mut self, service: &NamespacedName) -> Vec<Arc<View<EndpointViews>>> {
        let mut views = Vec::new();
        for port in self.services.get_mut(service).into_iter().flat_map(HashMap::values_mut) {
            port.updates += port.by_location.len() as u64;
            views.extend(port.by_location.values().cloned());
        }
        views
    }

    /// Returns the snapshots of a few views of the same port from other locations, such as one for each zone.
    pub(super) fn siblings(&self, view: &View<EndpointViews>) -> Vec<Arc<Snapshot>> {
        let port = self.services.get(&view.key.service).and_then(|ports| ports.get(&view.key.query));
        let views = port.into_iter().flat_map(|port| port.by_location.values());
        let others = views.filter(|it| !std::ptr::eq(&***it, view));
        others.take(SIBLINGS).map(|it| Arc::clone(&it.sender.borrow().content.snapshot)).collect()
    }

    /// Returns all views, for tests.
    #[cfg(test)]
    pub(in crate::destination) fn count(&self) -> usize {
        self.views().count()
    }

    /// Returns the series of Linkerd's metrics: one for each Service, declared port, hostname and, where it matters,
    /// node.
    pub(in crate::destination) fn series(&self) -> Vec<EndpointsSeries> {
        let mut series = Vec::new();
        for (service, ports) in &self.services {
            for (query, port) in ports {
                // The zone is not a label, so the views of several zones form one series.
                let mut by_node: HashMap<Arc<str>, EndpointsSeries> = HashMap::new();
                // A client can choose any undeclared port, and a series lives in every Prometheus.
                let QueryPort::Declared(number) = query.port else { continue };
                // The view of our command line has the labels of that for proxies.
                if query.with_clusters {
                    continue;
                }
                for view in port.by_location.values() {
                    let node = view.key.location.node.clone().unwrap_or_default();
                    let one = by_node.entry(Arc::clone(&node)).or_insert_with(|| EndpointsSeries {
                        service: service.clone(),
                        port: number,
                        instance: query.instance.clone(),
                        node,
                        subscribers: 0,
                        updates: port.updates,
                        pods: 0,
                        exists: false,
                    });
                    let content = &view.sender.borrow().content;
                    one.subscribers += view.clients();
                    one.pods = one.pods.max(content.snapshot.len());
                    one.exists |= content.exists();
                }
                series.extend(by_node.into_values());
            }
        }
        series
    }
}

// === impl View ===

impl View<EndpointViews> {
    /// Returns whether the request did not belong to this view at the last publication. A stream must not begin with
    /// such a publication, because only a change of its exclusions moves the stream.
    fn excludes(&self, request: &GetRequest) -> bool {
        self.sender.borrow().content.exclusions.as_ref().is_some_and(|exclusions| exclusions.contain(request))
    }

    /// Returns about how many bytes the endpoints of the view take.
    fn size(&self, members: &Members) -> usize {
        let ViewKey { query, location, .. } = &self.key;
        members.select(query, location).count() * ENCODED_BYTES
    }

    /// Computes the snapshot from the members and wakes the streams if it differs. Returns whether it differs.
    pub(super) fn publish(
        &self,
        generation: &mut Option<Generation>,
        members: &Members,
        settings: &Arc<DestinationSettings>,
        siblings: &[Arc<Snapshot>],
        received: Instant,
    ) -> bool {
        if generation.is_some_and(|generation| generation > members.generation) {
            return false;
        }
        let is_first = generation.is_none();
        if !self.key.is_for(members) {
            *generation = None;
            self.sender.send_modify(|published| {
                published.content.service.clone_from(&members.service);
                published.content.placement += 1;
            });
            return false;
        }
        let before = Arc::clone(&self.sender.borrow().content.snapshot);
        let ViewKey { query, location, .. } = &self.key;
        let labels = members.labels(query.with_clusters).common.clone();
        let endpoints = endpoints(members, query, location, settings, before.endpoints(), siblings);
        let snapshot = Snapshot::new(labels, endpoints, received);
        let snapshot = if is_first { Some(snapshot) } else { snapshot.after(&before) }.map(Arc::new);
        let changed = snapshot.is_some();
        let exclusions = Exclusions::of(&self.key, members).map(Arc::new);
        // From here on, nothing panics: a view with this generation has its content.
        *generation = Some(members.generation);
        self.sender.send_if_modified(|published| {
            let content = &mut published.content;
            // A stream that could not resolve its request again, because its Service was deleted, waits for this
            // publication. If the Service was deleted and created again since the last one, it is another object.
            let is_same = content.service.as_ref().map(Arc::as_ptr) == members.service.as_ref().map(Arc::as_ptr);
            content.service.clone_from(&members.service);
            let mut may_move = false;
            // While the Service does not exist, its streams wait, and the exclusions are those that they know.
            if members.service.is_some() {
                // A stream that begins with the first publication compares its request with it.
                let is_known = !is_first || content.exclusions.is_some();
                may_move = is_known && exclusions.is_some() && content.exclusions != exclusions;
                content.exclusions = exclusions;
                content.placement += u64::from(may_move);
            }
            if let Some(snapshot) = snapshot {
                content.snapshot = snapshot;
            }
            let is_completed = members.is_complete && !content.is_complete;
            content.is_complete = members.is_complete;
            content.remotes = members.remotes().cloned().collect();
            changed || !is_same || may_move || is_completed
        });
        changed
    }
}
