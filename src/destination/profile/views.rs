//! The views of `GetProfile`: one view for each target, updated when the inputs of its profile change.
//!
//! In: marked keys; clients that subscribe. Out: encoded profiles. Always holds: the first message for a client matches
//! the state at that time; a view never returns to an older generation; a view ends when its target needs another kind
//! of profile, and no client subscribes to an ended view.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::time::Instant;
use tracing::error;

use super::{
    encoded::EncodedProfile,
    request::{ProfileRefusal, ProfileRequest, ProfileTarget, service_of},
    view::ProfileInputs,
};
use crate::{
    api::NamespacedName,
    cluster::Cluster,
    contain::{Work, contain},
    destination::{
        labels::EndReason,
        metrics::DiscoveryMetrics,
        observer::{Batch, DestinationObserver},
        registry::{Generation, Registry, Subscription, View, ViewIndex, ViewKind},
        settings::DestinationSettings,
    },
};

/// The views of `GetProfile`.
pub(in crate::destination) struct ProfileViews {
    pub(super) cluster: Cluster,
    pub(super) settings: Arc<DestinationSettings>,
    metrics: Arc<DiscoveryMetrics>,
    pub(in crate::destination) registry: Registry<Self>,
    /// How often the profile of an endpoint was sent to a new client or published.
    pub(super) endpoint_updates: AtomicU64,
}

/// A profile, and its cause.
#[derive(Clone)]
pub(in crate::destination) struct PublishedProfile {
    pub(in crate::destination) profile: EncodedProfile,
    /// When the event that led to this message was received.
    pub(super) received: Instant,
}

#[derive(Default)]
pub(in crate::destination) struct ProfilesIndex {
    groups: HashMap<Anchor, ViewGroup>,
}

/// A key of the index. A view has one or two anchors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Anchor {
    /// The profiles of a Service.
    Service(NamespacedName),
    /// The profiles of the endpoints of a Service.
    Endpoints(NamespacedName),
    Address(IpAddr),
}

type ViewGroup = HashMap<ProfileTarget, Arc<View<ProfileViews>>>;

// === impl ProfileViews ===

impl ViewKind for ProfileViews {
    type Key = ProfileTarget;
    type Content = Option<PublishedProfile>;
    type Index = ProfilesIndex;

    fn registry(&self) -> &Registry<Self> {
        &self.registry
    }

    fn unpublished() -> Option<PublishedProfile> {
        None
    }
}

impl ProfileViews {
    pub(in crate::destination) fn new(
        cluster: Cluster,
        observer: &Arc<DestinationObserver>,
        settings: &Arc<DestinationSettings>,
        metrics: &Arc<DiscoveryMetrics>,
    ) -> Arc<Self> {
        let (settings, metrics) = (Arc::clone(settings), Arc::clone(metrics));
        let (registry, endpoint_updates) = (Registry::new(observer), AtomicU64::new(0));
        Arc::new(Self { cluster, settings, metrics, registry, endpoint_updates })
    }

    /// Subscribes to the request's view, and publishes the view.
    ///
    /// # Errors
    /// When the request is refused.
    pub(in crate::destination) fn subscribe(
        self: &Arc<Self>,
        request: &ProfileRequest,
    ) -> Result<Subscription<Self>, ProfileRefusal> {
        loop {
            let target = request.resolve(&self.cluster.read())?;
            let subscription = Subscription::new(self, target)?;
            let view = subscription.view();
            let mut generation = view.generation.lock();
            // The view has ended since it was found, and is not in the index any more.
            if view.has_ended() {
                continue;
            }
            let published = view.publish(&mut generation, self, Instant::now());
            drop(generation);
            match published {
                Ok(_) => {
                    self.count_update_of_endpoint(view);
                    return Ok(subscription);
                }
                // The target has changed since the request was resolved, so the request is resolved again.
                Err(ProfileRefusal::Moved) => {}
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// Returns the views that a batch affects, without duplicates. Each view has the time of the first event that
    /// affects it.
    pub(in crate::destination) fn affected_by(&self, batch: &Batch) -> Vec<(Arc<View<ProfileViews>>, Instant)> {
        let Batch { endpoints, services, addresses, profiles, zones: _, groups: _, remotes: _ } = batch;
        let index = self.registry.index();
        let mut affected: HashMap<*const View<ProfileViews>, (Arc<View<ProfileViews>>, Instant)> = HashMap::new();
        let mut add = |view: &Arc<View<ProfileViews>>, received: Instant| {
            let known = affected.entry(Arc::as_ptr(view)).or_insert_with(|| (Arc::clone(view), received));
            known.1 = known.1.min(received);
        };
        for (service, received) in endpoints {
            index.at(&Anchor::Endpoints(service.clone())).for_each(|view| add(view, *received));
        }
        for (service, received) in services {
            index.at(&Anchor::Service(service.clone())).for_each(|view| add(view, *received));
        }
        for (address, received) in addresses {
            let views = index.at(&Anchor::Address(address.ip()));
            let views = views.filter(|view| address.port().is_none_or(|port| view.key.port() == port));
            views.for_each(|view| add(view, *received));
        }
        for (profile, received) in profiles {
            let Some(service) = service_of(&profile.name, &self.settings.cluster_domain) else { continue };
            let own = profile.namespace == service.namespace;
            let views = index.at(&Anchor::Service(service));
            let views = views.filter(|view| own || view.key.client_namespace() == Some(&profile.namespace));
            views.for_each(|view| add(view, *received));
        }
        affected.into_values().collect()
    }

    /// Publishes a view if its profile has changed.
    pub(super) fn update(&self, view: &Arc<View<ProfileViews>>, received: Instant) {
        let publish = || {
            let mut generation = view.generation.lock();
            // A view without a profile is skipped, because its first client is about to publish it.
            generation.is_some()
                && !view.has_ended()
                && matches!(view.publish(&mut generation, self, received), Ok(true))
        };
        match contain(Work::Publishing, publish) {
            Ok(true) => {
                self.metrics.published.inc();
                self.metrics.encoded(received);
                self.count_update_of_endpoint(view);
            }
            Ok(false) => {}
            Err(panicked) => {
                error!(view = ?view.key, %panicked, "could not publish a profile, so its streams are reset");
                self.registry.reset(view);
            }
        }
    }

    fn count_update_of_endpoint(&self, view: &View<ProfileViews>) {
        if view.key.service().is_none() {
            self.endpoint_updates.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// === impl ProfilesIndex ===

impl ViewIndex<ProfileViews> for ProfilesIndex {
    fn get_or_insert(&mut self, target: ProfileTarget) -> Arc<View<ProfileViews>> {
        let mut known = target.anchors().filter_map(|anchor| self.groups.get(&anchor)?.get(&target).cloned());
        if let Some(view) = known.next() {
            return view;
        }
        let view = Arc::new(View::<ProfileViews>::new(target));
        for anchor in view.key.anchors() {
            self.groups.entry(anchor).or_default().insert(view.key.clone(), Arc::clone(&view));
        }
        view
    }

    /// A view that has ended is not in the index any more, and another view may have replaced it.
    fn remove(&mut self, view: &Arc<View<ProfileViews>>) {
        for anchor in view.key.anchors() {
            let Some(group) = self.groups.get_mut(&anchor) else { continue };
            if group.get(&view.key).is_some_and(|it| Arc::ptr_eq(it, view)) {
                group.remove(&view.key);
            }
            if group.is_empty() {
                self.groups.remove(&anchor);
            }
        }
    }

    fn views(&self) -> impl Iterator<Item = &Arc<View<ProfileViews>>> {
        self.groups.values().flat_map(ViewGroup::values)
    }
}

impl ProfilesIndex {
    fn at<'a>(&'a self, anchor: &Anchor) -> impl Iterator<Item = &'a Arc<View<ProfileViews>>> + use<'a> {
        self.groups.get(anchor).into_iter().flat_map(ViewGroup::values)
    }

    /// Returns each target, and its number of clients.
    pub(super) fn clients(&self) -> Vec<(ProfileTarget, usize)> {
        let each = self.groups.iter().flat_map(|(anchor, group)| group.values().map(move |it| (anchor, it)));
        // A view with two anchors counts once.
        let once = each.filter(|(anchor, view)| view.key.anchors().next().as_ref() == Some(anchor));
        once.map(|(_, view)| (view.key.clone(), view.clients())).collect()
    }

    #[cfg(any(test, fuzzing))]
    pub(in crate::destination) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

// === impl ProfileTarget ===

impl ProfileTarget {
    fn anchors(&self) -> impl Iterator<Item = Anchor> + use<> {
        let (of, address) = match self {
            Self::Service(it) => (Some(Anchor::Service(it.service.clone())), None),
            Self::ClusterIp(address, it) => (Some(Anchor::Service(it.service.clone())), Some(*address)),
            Self::Instance { service, .. } => (Some(Anchor::Endpoints(service.clone())), None),
            Self::InstanceAt { service, address, .. } => (Some(Anchor::Endpoints(service.clone())), Some(address.ip())),
            Self::Endpoint(address) => (None, Some(address.ip())),
        };
        of.into_iter().chain(address.map(Anchor::Address))
    }
}

// === impl View ===

impl View<ProfileViews> {
    /// Computes the profile from the current state and publishes it if it differs. Returns whether it differs. A
    /// published view ends if its target has no profile any more.
    ///
    /// # Errors
    /// When the target has no profile, or the request now resolves to another target.
    fn publish(
        self: &Arc<Self>,
        generation: &mut Option<Generation>,
        views: &ProfileViews,
        received: Instant,
    ) -> Result<bool, ProfileRefusal> {
        let (inputs, of_state) = {
            let state = views.cluster.read();
            if *generation == Some(state.generation.into()) {
                return Ok(false);
            }
            (ProfileInputs::of(&state, &self.key, &views.settings), state.generation)
        };
        let inputs = inputs.inspect_err(|_| {
            if generation.is_some() {
                views.registry.index().remove(self);
                self.end(EndReason::Rerouted);
            }
        })?;
        let profile = EncodedProfile::of(&inputs, &views.settings);
        // From here on, nothing panics: a view with this generation has its content.
        *generation = Some(of_state.into());
        Ok(self.sender.send_if_modified(|published| {
            let changed = published.content.as_ref().is_none_or(|known| known.profile != profile);
            if changed {
                published.content = Some(PublishedProfile { profile, received });
            }
            changed
        }))
    }
}

#[cfg(test)]
#[path = "views_tests.rs"]
mod tests;
