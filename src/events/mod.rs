//! Kubernetes Events about single objects, for people.
//!
//! In: [`Notice`]s from any component. Out: Events in the API server, in the order of the notices. Always holds: no
//! caller waits for an Event; at most 20 Events per second are written (burst 100), and one per minute for each object
//! and reason; dropped Events are counted.

mod publisher;
mod rate_limit;
mod reason;

use std::collections::HashMap;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use prometheus::{IntCounterVec, Registry, register_int_counter_vec_with_registry};
use strum::{EnumIter, IntoEnumIterator, IntoStaticStr};
use tokio::{sync::mpsc, time::Instant};

pub use self::reason::Reason;
use self::{publisher::Publisher, rate_limit::RateLimits};
use crate::{api::NamespacedName, tasks::Tasks, text::truncate};

const QUEUE: usize = 1024;
/// The API server's limit for a note, in bytes.
const NOTE_LIMIT: usize = 1024;

/// An Event to be written.
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
    dropped: IntCounterVec,
}

/// Why an Event was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
enum Cause {
    QueueFull,
    ObjectRate,
    OverallRate,
    Denied,
    Failed,
}

/// Starts the task that writes Events. `instance` identifies this replica.
///
/// # Errors
/// When the metrics are registered already.
pub fn spawn(client: &Client, instance: &str, registry: &Registry, tasks: &mut Tasks) -> prometheus::Result<Events> {
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
    let publisher = Publisher {
        client: client.clone(),
        instance: instance.to_owned(),
        limits: RateLimits::new(Instant::now()),
        series: HashMap::new(),
        sent,
        dropped: dropped.clone(),
    };
    let (queue, notices) = mpsc::channel(QUEUE);
    tasks.spawn("events", publisher.run(notices));
    Ok(Events { queue, dropped })
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

// === impl Events ===

impl Events {
    /// Queues an Event; never waits. A long note is copied, so that the queue does not keep its allocation.
    pub fn publish(&self, mut notice: Notice) {
        if notice.note.len() > NOTE_LIMIT {
            notice.note = truncate(&notice.note, NOTE_LIMIT).to_owned();
        }
        if self.queue.try_send(notice).is_err() {
            self.dropped.with_label_values(&[<&str>::from(Cause::QueueFull)]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Opts;

    use super::*;

    #[test]
    fn a_queued_event_takes_at_most_one_kibibyte_for_its_note() {
        let (queue, mut notices) = mpsc::channel(QUEUE);
        let dropped = IntCounterVec::new(Opts::new("dropped", "dropped"), &["cause"]).unwrap();
        let events = Events { queue, dropped };
        let regarding = object_reference("v1", "Service", &NamespacedName::new("ns", "web"), "uid");
        for note in ["x".repeat(1_000_000), "short".to_owned()] {
            let regarding = regarding.clone();
            events.publish(Notice { reason: Reason::UnmatchedPort, regarding, related: None, note });
        }
        let mut next = || notices.try_recv().unwrap().note;
        let (long, short) = (next(), next());
        assert_eq!((long.len(), long.capacity(), short.as_str()), (1024, 1024, "short"));
    }
}
