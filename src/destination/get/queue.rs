//! The Services whose endpoints wait to be published.
//!
//! In: the keys of Services. Out: publications of their views. Always holds: all views of a pass have the same members;
//! a Service that is marked during its pass gets another pass afterwards.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::error;

use super::{members::Members, views::EndpointViews};
use crate::{
    api::NamespacedName,
    contain::{Work, contain},
    destination::{
        observer::Batch,
        publisher::{Publish, Slots, Turn},
        registry::View,
    },
};

#[derive(Default)]
pub(in crate::destination) struct EndpointsWork {
    /// When the first event was received that the current pass does not contain.
    marked: Option<Instant>,
    pass: Option<EndpointsPass>,
}

/// The views of a Service that are not updated yet, and the members to update them with.
struct EndpointsPass {
    members: Members,
    views: Vec<Arc<View<EndpointViews>>>,
    received: Instant,
}

// === impl EndpointViews ===

impl Publish for EndpointViews {
    type Key = NamespacedName;
    type Work = EndpointsWork;

    fn add(&self, batch: &Batch, slots: &mut Slots<NamespacedName, EndpointsWork>) {
        for (service, received) in &batch.endpoints {
            slots.work(service.clone()).marked.get_or_insert(*received);
        }
        for zone in &batch.zones {
            self.resolve_again(zone);
        }
    }

    fn proceed(&self, service: &NamespacedName, work: &mut EndpointsWork, end: Instant) -> Turn {
        if work.pass.is_none() {
            let marked = work.marked.take();
            work.pass = marked.and_then(|received| EndpointsPass::start(self, service, received));
        }
        while let Some(pass) = &mut work.pass {
            if !pass.publish_next(self) {
                work.pass = None;
            } else if Instant::now() >= end {
                break;
            }
        }
        Turn { has_more: work.pass.is_some() || work.marked.is_some(), found: None }
    }
}

// === impl EndpointsPass ===

impl EndpointsPass {
    /// Begins to update all views of a Service; `None` if it has no views.
    fn start(views: &EndpointViews, service: &NamespacedName, received: Instant) -> Option<Self> {
        let of_service = views.registry.index().start_update(service);
        if of_service.is_empty() {
            return None;
        }
        views.metrics.applied(received);
        match contain(Work::Publishing, || views.clusters.members(service)) {
            Ok(members) => Some(Self { members, views: of_service, received }),
            Err(panicked) => {
                error!(%service, %panicked, "could not look up endpoints, so the streams of their clients are reset");
                of_service.iter().for_each(|view| views.registry.reset(view));
                None
            }
        }
    }

    /// Updates the next view. Returns `false` if no view is left.
    fn publish_next(&mut self, views: &EndpointViews) -> bool {
        let Some(view) = self.views.pop() else { return false };
        let siblings = views.registry.index().siblings(&view);
        let publish =
            || view.publish(&mut view.generation.lock(), &self.members, &views.settings, &siblings, self.received);
        match contain(Work::Publishing, publish) {
            Ok(true) => {
                views.metrics.published.inc();
                views.metrics.encoded(self.received);
            }
            Ok(false) => {}
            Err(panicked) => {
                error!(service = %view.key.service, %panicked, "could not publish endpoints, so their streams are reset");
                views.registry.reset(&view);
            }
        }
        true
    }
}
