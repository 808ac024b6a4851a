//! The views of profiles that wait to be published.
//!
//! In: marked keys. Out: publications of the views that they affect. Always holds: a view waits at most once.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use tokio::time::Instant;

use super::views::ProfileViews;
use crate::{
    api::NamespacedName,
    destination::{
        observer::Batch,
        publisher::{Publish, Slots, Turn},
        registry::View,
    },
};

#[derive(Default)]
pub(in crate::destination) struct ProfilesWork {
    waiting: VecDeque<(Arc<View<ProfileViews>>, Instant)>,
    /// The addresses of the waiting views, so that a view waits at most once.
    known: HashSet<usize>,
}

// === impl ProfileViews ===

impl Publish for ProfileViews {
    /// The Service; `None` for the profiles of endpoints.
    type Key = Option<NamespacedName>;
    type Work = ProfilesWork;

    fn add(&self, batch: &Batch, slots: &mut Slots<Self::Key, ProfilesWork>) {
        for (view, received) in self.affected_by(batch) {
            let work = slots.work(view.key.service().map(|target| target.service.clone()));
            if work.known.insert(Arc::as_ptr(&view).addr()) {
                work.waiting.push_back((view, received));
            }
        }
    }

    fn proceed(&self, _: &Self::Key, work: &mut ProfilesWork, end: Instant) -> Turn {
        while let Some((view, received)) = work.waiting.pop_front() {
            // This precedes the read of the state: a change that arrives after the read is not in this publication, so
            // it must be able to queue the view again.
            work.known.remove(&Arc::as_ptr(&view).addr());
            self.update(&view, received);
            if Instant::now() >= end {
                break;
            }
        }
        Turn { has_more: !work.waiting.is_empty(), found: None }
    }
}
