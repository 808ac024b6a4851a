//! The profiles that clients look at, from the first client to the last, each kept in step with what it is made of.
//!
//! In: what the watches marked; clients that come and go. Out: finished frames. Always holds: what a client that comes is told
//! first is what the state says then; a view never goes back to an older generation; one that is no longer what its target is
//! answered with has ended, and nobody comes to it any more.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::{
    request::{Refusal, Request, Target, service_of},
    view::Answer,
};
use crate::{
    api::NamespacedName,
    cluster::kinds::service_profile::route::ProfileContent,
    destination::{
        frame,
        get::views::Views,
        metrics::End,
        observer::Batch,
        registry::{Hold, Viewed},
        settings::Settings,
    },
};

#[derive(Default)]
pub(in crate::destination) struct Profiles {
    registry: Mutex<Registry>,
    /// How often the profile of an endpoint was told to a new client, or published.
    pub(super) of_endpoints: AtomicU64,
}

#[derive(Default)]
struct Registry {
    groups: HashMap<Anchor, Group>,
    closed: bool,
}

/// What a mark finds views by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Anchor {
    /// The profiles of a Service.
    Service(NamespacedName),
    /// The profiles of its endpoints.
    Endpoints(NamespacedName),
    Address(IpAddr),
}

#[derive(Default)]
struct Group {
    views: HashMap<Target, Arc<View>>,
    /// Of a Service: clients in many namespaces are told the same.
    frames: HashMap<FrameKey, Shared>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct FrameKey {
    port: u16,
    dotted: bool,
    profile: Option<NamespacedName>,
}

/// A message, and what it was made of.
struct Shared {
    opaque: bool,
    content: Option<Arc<ProfileContent>>,
    frame: Bytes,
}

/// What the clients of one target are told.
pub(in crate::destination) struct View {
    target: Target,
    clients: AtomicUsize,
    /// The generation of the state that was looked at last. Held while an answer is looked up.
    made_at: Mutex<Option<u64>>,
    sender: watch::Sender<Published>,
}

#[derive(Clone, Default)]
pub(in crate::destination) struct Published {
    /// `None` before the first client is told.
    pub(super) profile: Option<Profile>,
    pub(super) end: Option<End>,
}

/// A finished message.
#[derive(Clone)]
pub(in crate::destination) struct Profile {
    pub(super) frame: Bytes,
    /// When the event was received that it answers.
    pub(super) received: Instant,
}

pub(in crate::destination) type Subscription = Hold<View>;

// === impl Profiles ===

impl Profiles {
    /// Ends all streams, well, and lets no new one begin.
    pub(in crate::destination) fn close(&self) {
        let views: Vec<Arc<View>> = {
            let mut registry = self.registry.lock();
            registry.closed = true;
            registry.groups.values().flat_map(|group| group.views.values()).cloned().collect()
        };
        for view in views {
            view.end(End::Shutdown);
        }
    }

    /// The views that a batch concerns, each once, with when the first event of those was received.
    pub(in crate::destination) fn concerned(&self, batch: &Batch, cluster_domain: &str) -> Vec<(Arc<View>, Instant)> {
        let Batch { endpoints, services, addresses, profiles, zones: _ } = batch;
        let registry = self.registry.lock();
        let mut concerned: HashMap<*const View, (Arc<View>, Instant)> = HashMap::new();
        let mut add = |view: &Arc<View>, received: Instant| {
            let known = concerned.entry(Arc::as_ptr(view)).or_insert_with(|| (Arc::clone(view), received));
            known.1 = known.1.min(received);
        };
        for (service, received) in endpoints {
            registry.at(&Anchor::Endpoints(service.clone())).for_each(|view| add(view, *received));
        }
        for (service, received) in services {
            registry.at(&Anchor::Service(service.clone())).for_each(|view| add(view, *received));
        }
        for (address, received) in addresses {
            let views = registry.at(&Anchor::Address(address.ip()));
            let views = views.filter(|view| address.port().is_none_or(|port| view.target.port() == port));
            views.for_each(|view| add(view, *received));
        }
        for (profile, received) in profiles {
            let Some(service) = service_of(&profile.name, cluster_domain) else { continue };
            let own = profile.namespace == service.namespace;
            let views = registry.at(&Anchor::Service(service));
            let views = views.filter(|view| own || view.target.client_namespace() == Some(&profile.namespace));
            views.for_each(|view| add(view, *received));
        }
        concerned.into_values().collect()
    }

    /// Each target, and how many clients it has.
    pub(super) fn clients(&self) -> Vec<(Target, usize)> {
        let registry = self.registry.lock();
        let each = registry.groups.iter().flat_map(|(anchor, group)| group.views.values().map(move |it| (anchor, it)));
        // Those with two anchors once.
        let once = each.filter(|(anchor, view)| view.target.anchors().next().as_ref() == Some(anchor));
        once.map(|(_, view)| (view.target.clone(), view.clients.load(Ordering::Relaxed))).collect()
    }

    #[cfg(test)]
    pub(in crate::destination) fn is_empty(&self) -> bool {
        self.registry.lock().groups.is_empty()
    }

    fn enter(&self, target: Target) -> Result<(Arc<View>, watch::Receiver<Published>), Refusal> {
        let mut registry = self.registry.lock();
        if registry.closed {
            return Err(Refusal::Stopping);
        }
        let mut known = target.anchors().filter_map(|anchor| registry.groups.get(&anchor)?.views.get(&target).cloned());
        let view = match known.next() {
            Some(view) => view,
            None => {
                let view = Arc::new(View::new(target));
                for anchor in view.target.anchors() {
                    let views = &mut registry.groups.entry(anchor).or_default().views;
                    views.insert(view.target.clone(), Arc::clone(&view));
                }
                view
            }
        };
        // Under the lock, so that nobody takes the view away before it has its client.
        view.clients.fetch_add(1, Ordering::Relaxed);
        let receiver = view.sender.subscribe();
        Ok((view, receiver))
    }

    /// The message, shared with all who are told the same of a Service.
    fn frame(&self, answer: &Answer, settings: &Settings) -> Bytes {
        let Answer::Service { target, opaque, profile } = answer else { return frame::of(&answer.message(settings)) };
        let anchor = Anchor::Service(target.service.clone());
        let content = profile.as_ref().map(|(_, content)| content);
        let profile = profile.as_ref().map(|(key, _)| key.clone());
        let key = FrameKey { port: target.port, dotted: target.dotted, profile };
        let known = |registry: &Registry| {
            let shared = registry.groups.get(&anchor)?.frames.get(&key)?;
            let same = shared.opaque == *opaque && shared.content.as_ref().map(Arc::as_ptr) == content.map(Arc::as_ptr);
            same.then(|| shared.frame.clone())
        };
        if let Some(frame) = known(&self.registry.lock()) {
            return frame;
        }
        let frame = frame::of(&answer.message(settings));
        if let Some(group) = self.registry.lock().groups.get_mut(&anchor) {
            // Of ports and ServiceProfiles that are gone nothing is kept for long.
            if group.frames.len() > 2 * group.views.len() {
                group.frames.clear();
            }
            group.frames.insert(key, Shared { opaque: *opaque, content: content.cloned(), frame: frame.clone() });
        }
        frame
    }
}

// === impl Registry ===

impl Registry {
    fn at<'a>(&'a self, anchor: &Anchor) -> impl Iterator<Item = &'a Arc<View>> + use<'a> {
        self.groups.get(anchor).into_iter().flat_map(|group| group.views.values())
    }

    /// If it is still there: one that has ended is not, and another may be in its place.
    fn remove(&mut self, view: &Arc<View>) {
        for anchor in view.target.anchors() {
            let Some(group) = self.groups.get_mut(&anchor) else { continue };
            if group.views.get(&view.target).is_some_and(|it| Arc::ptr_eq(it, view)) {
                group.views.remove(&view.target);
            }
            if group.views.is_empty() {
                self.groups.remove(&anchor);
            }
        }
    }
}

// === impl Target ===

impl Target {
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

impl View {
    fn new(target: Target) -> Self {
        let (sender, _) = watch::channel(Published::default());
        Self { target, clients: AtomicUsize::new(0), made_at: Mutex::new(None), sender }
    }

    /// Looks the answer up as it is now, and publishes it if it says anything new. Whether it does. A view that has clients and
    /// no answer any more ends.
    ///
    /// # Errors
    /// When the target has no profile, or is another now.
    fn publish(self: &Arc<Self>, made_at: &mut Option<u64>, views: &Views, received: Instant) -> Result<bool, Refusal> {
        let (answer, generation) = {
            let state = views.cluster.read();
            if *made_at == Some(state.generation) {
                return Ok(false);
            }
            (Answer::of(&state, &self.target, &views.settings), state.generation)
        };
        let answer = answer.inspect_err(|_| {
            if made_at.is_some() {
                views.profiles.registry.lock().remove(self);
                self.end(End::Rerouted);
            }
        })?;
        *made_at = Some(generation);
        let frame = views.profiles.frame(&answer, &views.settings);
        let is_news = |known: &Profile| !std::ptr::eq(&*known.frame, &*frame) && known.frame != frame;
        Ok(self.sender.send_if_modified(|published| {
            let news = published.profile.as_ref().is_none_or(is_news);
            if news {
                published.profile = Some(Profile { frame: frame.clone(), received });
            }
            news
        }))
    }

    fn end(&self, end: End) {
        self.sender.send_if_modified(|published| {
            let first = published.end.is_none();
            if first {
                published.end = Some(end);
            }
            first
        });
    }

    fn has_ended(&self) -> bool {
        self.sender.borrow().end.is_some()
    }
}

impl Viewed for View {
    type Published = Published;

    fn left(view: &Arc<Self>, views: &Views) {
        let mut registry = views.profiles.registry.lock();
        if view.clients.fetch_sub(1, Ordering::Relaxed) == 1 {
            registry.remove(view);
        }
    }
}

impl Views {
    /// Finds the request's view, with a profile in it.
    ///
    /// # Errors
    /// When the request is answered with a status instead.
    pub(in crate::destination) fn subscribe_to_profile(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<Subscription, Refusal> {
        loop {
            let target = request.resolve(&self.cluster.read())?;
            let (view, receiver) = self.profiles.enter(target)?;
            let subscription = Subscription::new(self, view, receiver);
            let view = subscription.view();
            let mut made_at = view.made_at.lock();
            // Since it was entered: nobody finds it any more.
            if view.has_ended() {
                continue;
            }
            let published = view.publish(&mut made_at, self, Instant::now());
            drop(made_at);
            match published {
                Ok(_) => {
                    if view.target.service().is_none() {
                        self.profiles.of_endpoints.fetch_add(1, Ordering::Relaxed);
                    }
                    return Ok(subscription);
                }
                // Since it was resolved, which was a moment ago.
                Err(Refusal::Elsewhere) => {}
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// Brings a view up to date.
    pub(in crate::destination) fn publish_profile(&self, view: &Arc<View>, received: Instant) {
        let mut made_at = view.made_at.lock();
        // One that has none yet is about to be made by its first client.
        if made_at.is_none() || view.has_ended() || !matches!(view.publish(&mut made_at, self, received), Ok(true)) {
            return;
        }
        self.metrics.published.inc();
        self.metrics.encoded(received);
        if view.target.service().is_none() {
            self.profiles.of_endpoints.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[path = "views_tests.rs"]
mod tests;
