//! The last Events that this process wrote, for the dashboard.

use std::{collections::VecDeque, sync::Arc};

use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use parking_lot::Mutex;
use serde::Serialize;

use super::{Notice, reason::Reporter};

/// The number of Events that are kept. A note has at most 1 KiB.
const KEPT: usize = 20;

/// A handle to the last Events of the controllers, without those about admission reviews: any author of a Pod causes
/// these, and they would displace the others.
#[derive(Clone, Debug, Default)]
pub struct RecentEvents(Arc<Mutex<VecDeque<RecentEvent>>>);

/// An Event that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecentEvent {
    /// The time at which it was written last.
    pub time: Timestamp,
    #[serde(rename = "type")]
    pub type_: &'static str,
    pub reason: &'static str,
    /// The kind and the name of its object.
    pub object: String,
    pub note: String,
}

// === impl RecentEvents ===

impl RecentEvents {
    /// Returns the Events, the latest one first.
    pub fn latest_first(&self) -> Vec<RecentEvent> {
        self.0.lock().iter().rev().cloned().collect()
    }

    /// Adds an Event. A repetition replaces the earlier one.
    pub(super) fn add(&self, event: RecentEvent) {
        let mut events = self.0.lock();
        let same = |it: &RecentEvent| it.reason == event.reason && it.object == event.object && it.note == event.note;
        events.retain(|it| !same(it));
        if events.len() >= KEPT {
            events.pop_front();
        }
        events.push_back(event);
    }
}

// === impl RecentEvent ===

impl RecentEvent {
    /// Returns `None` for an Event about an admission review.
    pub(super) fn of(notice: &Notice) -> Option<Self> {
        let Notice { reason, regarding, note, related: _ } = notice;
        (reason.reporter() == Reporter::Controller).then(|| Self {
            time: Timestamp::now(),
            type_: reason.type_(),
            reason: reason.as_str(),
            object: named(regarding),
            note: note.clone(),
        })
    }
}

fn named(object: &ObjectReference) -> String {
    let [kind, name] = [&object.kind, &object.name].map(|part| part.as_deref().unwrap_or_default());
    match &object.namespace {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::NamespacedName,
        events::{Reason, object_reference},
    };

    fn event(reason: Reason, name: &str) -> Option<RecentEvent> {
        let regarding = object_reference("apps/v1", "Deployment", &NamespacedName::new("shop", name), "uid");
        RecentEvent::of(&Notice { reason, regarding, related: None, note: "a note".to_owned() })
    }

    fn objects(events: &RecentEvents) -> Vec<String> {
        events.latest_first().into_iter().map(|it| it.object).collect()
    }

    #[test]
    fn the_last_twenty_events_are_kept_and_the_latest_is_first() {
        let events = RecentEvents::default();
        for number in 0..50 {
            events.add(event(Reason::PodRestart, &format!("w{number}")).unwrap());
        }
        let expected: Vec<_> = (30..50).rev().map(|number| format!("Deployment shop/w{number}")).collect();
        assert_eq!(objects(&events), expected);
    }

    #[test]
    fn a_repetition_replaces_the_earlier_event() {
        let events = RecentEvents::default();
        for name in ["web", "db", "web"] {
            events.add(event(Reason::ProxyRolloutFailed, name).unwrap());
        }
        events.add(event(Reason::ProxyUpToDate, "web").unwrap());
        assert_eq!(objects(&events), ["Deployment shop/web", "Deployment shop/web", "Deployment shop/db"]);
        assert_eq!(
            events.latest_first().iter().map(|it| it.type_).collect::<Vec<_>>(),
            ["Normal", "Warning", "Warning"]
        );
    }

    #[test]
    fn events_about_admission_reviews_are_left_out() {
        assert_eq!(event(Reason::InjectionFailed, "web"), None);
    }
}
