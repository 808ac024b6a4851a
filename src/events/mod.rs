//! Kubernetes Events about single objects, for people.
//!
//! In: [`Notice`]s from any component. Out: Events in the API server, in the order of the notices. Always holds: no
//! caller waits for an Event; controllers write at most 20 Events per second (burst 100), admission reviews 10 (burst
//! 50), of which a namespace has a share; one Event per minute is written for each object and reason; dropped Events are
//! counted.

mod publisher;
mod rate_limit;
mod reason;
mod recent;

use std::collections::HashMap;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use prometheus::{IntCounterVec, Registry, register_int_counter_vec_with_registry};
use strum::{EnumIter, IntoEnumIterator, IntoStaticStr};
use tokio::{sync::mpsc, time::Instant};

use self::{publisher::Publisher, rate_limit::RateLimits, reason::Reporter};
pub use self::{
    reason::Reason,
    recent::{RecentEvent, RecentEvents},
};
use crate::{
    api::{CONFIG_GROUP, LINKERD_CONFIG_KIND, NamespacedName},
    tasks::Tasks,
    text::truncate,
};

const QUEUE: usize = 1024;
/// Any author of a Pod causes these Events, so they have a queue of their own.
const QUEUE_OF_REVIEWS: usize = 256;
/// The API server's limit for a note, in bytes.
const NOTE_LIMIT: usize = 1024;

/// An Event that a component wants written, before it has a name, a count and a time.
#[derive(Clone, Debug)]
pub struct Notice {
    pub reason: Reason,
    pub regarding: ObjectReference,
    pub related: Option<ObjectReference>,
    /// One line of text; [`Events::publish`] truncates it at 1 KiB.
    pub note: String,
}

/// A handle to the queue of Events. The writing task ends when the last handle is dropped and the queue is empty.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<Notice>,
    reviews: mpsc::Sender<Notice>,
    dropped: IntCounterVec,
    recent: RecentEvents,
}

/// The API that Events are written with. Both write the same objects, but a Role permits one or the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventsApi {
    /// `events.k8s.io/v1`.
    Events,
    /// `v1`, for which Linkerd's own Roles are written.
    Core,
}

/// Why an Event was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
enum Cause {
    QueueFull,
    ObjectRate,
    NamespaceRate,
    OverallRate,
    Denied,
    Failed,
}

/// Starts the task that writes Events. `instance` identifies this replica.
///
/// # Errors
/// When the metrics are registered already.
pub fn spawn(
    client: &Client,
    api: EventsApi,
    instance: &str,
    registry: &Registry,
    tasks: &mut Tasks,
) -> prometheus::Result<Events> {
    let sent = register_int_counter_vec_with_registry!(
        "linkerd_operator_events_sent_total",
        "Kubernetes Events written",
        &["reason"],
        registry
    )?;
    let dropped = register_int_counter_vec_with_registry!(
        "linkerd_operator_events_dropped_total",
        "Kubernetes Events not written, by cause",
        &["cause"],
        registry
    )?;
    for reason in Reason::iter() {
        sent.with_label_values(&[reason.as_str()]);
    }
    for cause in Cause::iter() {
        dropped.with_label_values(&[<&str>::from(cause)]);
    }
    let recent = RecentEvents::default();
    let publisher = Publisher {
        client: client.clone(),
        api,
        instance: instance.to_owned(),
        limits: RateLimits::new(Instant::now()),
        series: HashMap::new(),
        sent,
        dropped: dropped.clone(),
        recent: recent.clone(),
    };
    let (queue, notices) = mpsc::channel(QUEUE);
    let (reviews, of_reviews) = mpsc::channel(QUEUE_OF_REVIEWS);
    tasks.spawn("events", publisher.run(notices, of_reviews));
    Ok(Events { queue, reviews, dropped, recent })
}

/// Returns the reference to an object. The namespace of the key is empty for a cluster-scoped object.
pub fn object_reference(api_version: &str, kind: &str, key: &NamespacedName, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(key.namespace.to_string()).filter(|namespace| !namespace.is_empty()),
        name: Some(key.name.to_string()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

pub fn linkerd_config_reference(name: &str, uid: &str) -> ObjectReference {
    object_reference(&format!("{CONFIG_GROUP}/v1alpha1"), LINKERD_CONFIG_KIND, &NamespacedName::new("", name), uid)
}

// === impl Events ===

impl Events {
    /// Drops all Events.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        let dropped = IntCounterVec::new(prometheus::Opts::new("dropped", "dropped"), &["cause"]).unwrap();
        Self { queue: mpsc::channel(1).0, reviews: mpsc::channel(1).0, dropped, recent: RecentEvents::default() }
    }

    /// Returns a handle to the last Events that were written. It does not keep the writing task alive.
    pub fn recent(&self) -> RecentEvents {
        self.recent.clone()
    }

    /// Gives the Events of controllers to the receiver.
    #[cfg(test)]
    pub(crate) fn recorded() -> (Self, mpsc::Receiver<Notice>) {
        let (queue, notices) = mpsc::channel(100);
        (Self { queue, ..Self::for_test() }, notices)
    }

    /// Gives the Events of reviews and certificates to the receiver. The queue has so many places.
    #[cfg(test)]
    pub(crate) fn recorded_of_reviews(places: usize) -> (Self, mpsc::Receiver<Notice>) {
        let (reviews, notices) = mpsc::channel(places);
        (Self { reviews, ..Self::for_test() }, notices)
    }

    /// Queues an Event; never waits.
    pub fn publish(&self, notice: Notice) {
        self.try_publish(notice);
    }

    /// Queues an Event; never waits. Returns whether the queue had a place. A long note is copied, so that the queue does
    /// not keep its allocation.
    pub fn try_publish(&self, mut notice: Notice) -> bool {
        if notice.note.len() > NOTE_LIMIT {
            notice.note = truncate(&notice.note, NOTE_LIMIT).to_owned();
        }
        let queue = match notice.reason.reporter() {
            Reporter::Controller | Reporter::Identity => &self.queue,
            Reporter::ProxyInjector | Reporter::IdentityLeaf => &self.reviews,
        };
        let is_queued = queue.try_send(notice).is_ok();
        if !is_queued {
            self.dropped.with_label_values(&[<&str>::from(Cause::QueueFull)]).inc();
        }
        is_queued
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Opts;

    use super::*;

    #[test]
    fn a_queued_event_takes_at_most_one_kibibyte_for_its_note() {
        let (events, mut notices, _reviews) = queues();
        for note in ["x".repeat(1_000_000), "short".to_owned()] {
            events.publish(notice(Reason::UnmatchedPort, note));
        }
        let mut next = || notices.try_recv().unwrap().note;
        let (long, short) = (next(), next());
        assert_eq!((long.len(), long.capacity(), short.as_str()), (1024, 1024, "short"));
    }

    #[test]
    fn a_flood_of_reviews_leaves_the_queue_of_the_controllers_empty() {
        let (events, mut notices, mut reviews) = queues();
        for number in 0..2 * QUEUE {
            events.publish(notice(Reason::InjectionSkipped, number.to_string()));
        }
        events.publish(notice(Reason::RolloutHalted, "halted".to_owned()));
        assert_eq!(notices.try_recv().unwrap().note, "halted");
        let queued = std::iter::from_fn(|| reviews.try_recv().ok()).count();
        let dropped = events.dropped.with_label_values(&["queue_full"]).get();
        assert_eq!((queued, dropped), (256, 2 * 1024 - 256));
    }

    fn queues() -> (Events, mpsc::Receiver<Notice>, mpsc::Receiver<Notice>) {
        let ((queue, notices), (reviews, of_reviews)) = (mpsc::channel(QUEUE), mpsc::channel(QUEUE_OF_REVIEWS));
        let dropped = IntCounterVec::new(Opts::new("dropped", "dropped"), &["cause"]).unwrap();
        (Events { queue, reviews, dropped, recent: RecentEvents::default() }, notices, of_reviews)
    }

    fn notice(reason: Reason, note: String) -> Notice {
        let regarding = object_reference("v1", "Service", &NamespacedName::new("ns", "web"), "uid");
        Notice { reason, regarding, related: None, note }
    }
}
