//! Kubernetes Events: what a person should know about an object, next to the object.
//!
//! In: [`Notice`]s, from anywhere, without waiting. Out: Events of the API server, in the order of the notices. Always
//! holds: nobody waits for an Event; at most 20 a second are written (100 in a burst), and one a minute per object and
//! reason; what is dropped is counted. kube's `Recorder` scans its history under a lock for each Event, so it lives in
//! this task alone.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tracing::{debug, info, warn};

use crate::tasks::Tasks;

const QUEUE: usize = 1024;
const RATE_PER_SECOND: f64 = 20.0;
const BURST: f64 = 100.0;
const PER_OBJECT: Duration = Duration::from_secs(60);
/// A namespace that answered 403 is left in peace for so long: a terminating namespace and an exhausted quota answer so
/// too, and neither changes with asking.
const DENIED: Duration = Duration::from_secs(600);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// More than the overall rate lets the recorder gather in the six minutes that it remembers.
const NOTES: usize = 10_000;
/// The API server's limit for a note, in bytes.
const NOTE_LIMIT: usize = 1024;

/// Why an Event is written: a closed set, which alerts and scripts may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    Published,
    Unpublished,
    BecameReady,
    BecameUnready,
    InvalidWorkloadIP,
    InvalidHostname,
    UnmatchedPort,
    EndpointSliceWriteFailed,
    LinkerdConfigUpdated,
    ConfigMapUpdated,
    DriftDetected,
    DriftReverted,
    BaseUpdated,
    TrustAnchorsReused,
    TrustRootsChanged,
    Conflicted,
    Activated,
    ValidationFailed,
    InjectorSynced,
    InjectorSyncTimeout,
    InjectorDenied,
    ConfigRolledBack,
    RolloutStarted,
    RolloutCompleted,
    RolloutPaused,
    RolloutResumed,
    RolloutHalted,
    PodRestart,
    ProxyUpToDate,
    ProxyRolloutFailed,
    ProxyRolloutSkipped,
}

/// Something to tell about an object.
#[derive(Clone, Debug)]
pub struct Notice {
    pub reason: Reason,
    pub regarding: ObjectReference,
    pub related: Option<ObjectReference>,
    /// One line that a person understands; cut at 1 KiB.
    pub note: String,
}

/// Where notices are handed in. The task ends when the last of these is dropped and all is written.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<Notice>,
    dropped: IntCounterVec,
}

struct Publisher {
    memory: Memory,
    limits: Limits,
    /// Namespaces that answered 403, and when.
    denied: HashMap<String, Instant>,
    sent: IntCounterVec,
    dropped: IntCounterVec,
    failed: IntCounter,
}

struct Limits {
    tokens: f64,
    filled: Instant,
    /// When each object had its last Event of a reason; older entries than [`PER_OBJECT`] go, and the overall rate bounds the rest.
    recent: HashMap<(String, Reason), Instant>,
}

/// kube's Recorder, made to say what is to be said now: it takes a second Event for the first one repeated when only the note
/// differs, and would send the old note again; and it goes on counting up an Event that somebody has deleted.
struct Memory {
    client: Client,
    reporter: Reporter,
    recorder: Recorder,
    /// The notes that the recorder remembers, as hashes, by what it takes for the same Event.
    notes: HashMap<(String, Reason, String), u64>,
}

/// Starts the task that writes Events. `instance` tells replicas apart.
///
/// # Errors
/// When the metrics are registered already.
pub fn spawn(client: &Client, instance: &str, registry: &Registry, tasks: &mut Tasks) -> prometheus::Result<Events> {
    let sent =
        IntCounterVec::new(Opts::new("linkerd_operator_events_sent_total", "Kubernetes Events written"), &["reason"])?;
    let dropped = IntCounterVec::new(
        Opts::new("linkerd_operator_events_dropped_total", "Kubernetes Events not written, by cause"),
        &["cause"],
    )?;
    for reason in Reason::ALL {
        sent.with_label_values(&[reason.as_str()]);
    }
    for cause in Cause::ALL {
        dropped.with_label_values(&[cause.as_str()]);
    }
    registry.register(Box::new(sent.clone()))?;
    registry.register(Box::new(dropped.clone()))?;
    let reporter = Reporter { controller: "linkerd-operator".to_owned(), instance: Some(instance.to_owned()) };
    let publisher = Publisher {
        memory: Memory {
            client: client.clone(),
            recorder: Recorder::new(client.clone(), reporter.clone()),
            reporter,
            notes: HashMap::new(),
        },
        limits: Limits { tokens: BURST, filled: Instant::now(), recent: HashMap::new() },
        denied: HashMap::new(),
        sent,
        failed: dropped.with_label_values(&[Cause::Failed.as_str()]),
        dropped: dropped.clone(),
    };
    let (queue, notices) = mpsc::channel(QUEUE);
    tasks.spawn("events", publisher.run(notices));
    Ok(Events { queue, dropped })
}

/// Why an Event was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    QueueFull,
    ObjectRate,
    OverallRate,
    Denied,
    Failed,
}

// === impl Reason ===

impl Reason {
    pub const ALL: [Self; 31] = [
        Self::Published,
        Self::Unpublished,
        Self::BecameReady,
        Self::BecameUnready,
        Self::InvalidWorkloadIP,
        Self::InvalidHostname,
        Self::UnmatchedPort,
        Self::EndpointSliceWriteFailed,
        Self::LinkerdConfigUpdated,
        Self::ConfigMapUpdated,
        Self::DriftDetected,
        Self::DriftReverted,
        Self::BaseUpdated,
        Self::TrustAnchorsReused,
        Self::TrustRootsChanged,
        Self::Conflicted,
        Self::Activated,
        Self::ValidationFailed,
        Self::InjectorSynced,
        Self::InjectorSyncTimeout,
        Self::InjectorDenied,
        Self::ConfigRolledBack,
        Self::RolloutStarted,
        Self::RolloutCompleted,
        Self::RolloutPaused,
        Self::RolloutResumed,
        Self::RolloutHalted,
        Self::PodRestart,
        Self::ProxyUpToDate,
        Self::ProxyRolloutFailed,
        Self::ProxyRolloutSkipped,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Published => "Published",
            Self::Unpublished => "Unpublished",
            Self::BecameReady => "BecameReady",
            Self::BecameUnready => "BecameUnready",
            Self::InvalidWorkloadIP => "InvalidWorkloadIP",
            Self::InvalidHostname => "InvalidHostname",
            Self::UnmatchedPort => "UnmatchedPort",
            Self::EndpointSliceWriteFailed => "EndpointSliceWriteFailed",
            Self::LinkerdConfigUpdated => "LinkerdConfigUpdated",
            Self::ConfigMapUpdated => "ConfigMapUpdated",
            Self::DriftDetected => "DriftDetected",
            Self::DriftReverted => "DriftReverted",
            Self::BaseUpdated => "BaseUpdated",
            Self::TrustAnchorsReused => "TrustAnchorsReused",
            Self::TrustRootsChanged => "TrustRootsChanged",
            Self::Conflicted => "Conflicted",
            Self::Activated => "Activated",
            Self::ValidationFailed => "ValidationFailed",
            Self::InjectorSynced => "InjectorSynced",
            Self::InjectorSyncTimeout => "InjectorSyncTimeout",
            Self::InjectorDenied => "InjectorDenied",
            Self::ConfigRolledBack => "ConfigRolledBack",
            Self::RolloutStarted => "RolloutStarted",
            Self::RolloutCompleted => "RolloutCompleted",
            Self::RolloutPaused => "RolloutPaused",
            Self::RolloutResumed => "RolloutResumed",
            Self::RolloutHalted => "RolloutHalted",
            Self::PodRestart => "PodRestart",
            Self::ProxyUpToDate => "ProxyUpToDate",
            Self::ProxyRolloutFailed => "ProxyRolloutFailed",
            Self::ProxyRolloutSkipped => "ProxyRolloutSkipped",
        }
    }

    const fn type_(self) -> EventType {
        match self {
            Self::InvalidWorkloadIP | Self::InvalidHostname | Self::UnmatchedPort | Self::EndpointSliceWriteFailed => {
                EventType::Warning
            }
            Self::DriftDetected
            | Self::Conflicted
            | Self::ValidationFailed
            | Self::InjectorSyncTimeout
            | Self::InjectorDenied
            | Self::ConfigRolledBack
            | Self::RolloutHalted
            | Self::ProxyRolloutFailed => EventType::Warning,
            _ => EventType::Normal,
        }
    }
}

impl Cause {
    const ALL: [Self; 5] = [Self::QueueFull, Self::ObjectRate, Self::OverallRate, Self::Denied, Self::Failed];

    const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::ObjectRate => "object_rate",
            Self::OverallRate => "overall_rate",
            Self::Denied => "denied",
            Self::Failed => "failed",
        }
    }
}

// === impl Events ===

impl Events {
    /// Hands a notice in; never waits.
    pub fn publish(&self, notice: Notice) {
        if self.queue.try_send(notice).is_err() {
            self.dropped.with_label_values(&[Cause::QueueFull.as_str()]).inc();
        }
    }
}

// === impl Publisher ===

impl Publisher {
    async fn run(mut self, mut notices: mpsc::Receiver<Notice>) {
        while let Some(notice) = notices.recv().await {
            if let Err(cause) = self.admit(&notice) {
                self.dropped.with_label_values(&[cause.as_str()]).inc();
                continue;
            }
            self.write(notice).await;
        }
    }

    fn admit(&mut self, notice: &Notice) -> Result<(), Cause> {
        let now = Instant::now();
        if let Some(namespace) = &notice.regarding.namespace
            && self.denied.get(namespace).is_some_and(|since| now - *since < DENIED)
        {
            return Err(Cause::Denied);
        }
        self.limits.admit(notice, now)
    }

    async fn write(&mut self, notice: Notice) {
        let Notice { reason, regarding, related, mut note } = notice;
        note.truncate(note.floor_char_boundary(NOTE_LIMIT));
        let event = Event {
            type_: reason.type_(),
            reason: reason.as_str().to_owned(),
            note: Some(note),
            action: "Reconcile".to_owned(),
            secondary: related,
        };
        let namespace = regarding.namespace.clone().unwrap_or_default();
        match timeout(REQUEST_TIMEOUT, self.memory.publish(reason, &event, &regarding)).await {
            Ok(Ok(())) => {
                self.sent.with_label_values(&[reason.as_str()]).inc();
                if self.denied.remove(&namespace).is_some() {
                    info!(namespace, "Events are accepted again");
                }
            }
            Ok(Err(kube::Error::Api(status))) if status.is_forbidden() => {
                self.failed.inc();
                let now = Instant::now();
                self.denied.retain(|_, since| now - *since < 2 * DENIED);
                if self.denied.insert(namespace.clone(), now).is_none() {
                    warn!(
                        namespace,
                        error = status.message,
                        "Events are denied: the namespace is left out for ten minutes at a time"
                    );
                }
            }
            Ok(Err(error)) => {
                self.failed.inc();
                debug!(namespace, error = crate::client::describe(&error), "an Event was not written");
            }
            Err(_) => {
                self.failed.inc();
                debug!(namespace, "an Event was not written in time");
            }
        }
    }
}

// === impl Memory ===

impl Memory {
    async fn publish(&mut self, reason: Reason, event: &Event, regarding: &ObjectReference) -> kube::Result<()> {
        let uid = |object: &ObjectReference| object.uid.clone().unwrap_or_default();
        let key = (uid(regarding), reason, event.secondary.as_ref().map(uid).unwrap_or_default());
        let mut hasher = DefaultHasher::new();
        event.note.hash(&mut hasher);
        let note = hasher.finish();
        let another = self.notes.insert(key.clone(), note).is_some_and(|last| last != note);
        if another || self.notes.len() > NOTES {
            self.forget();
            self.notes.insert(key, note);
        }
        match self.recorder.publish(event, regarding).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                self.forget();
                self.recorder.publish(event, regarding).await
            }
            result => result,
        }
    }

    /// What comes next begins a new Event instead of counting up an old one.
    fn forget(&mut self) {
        self.recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        self.notes.clear();
    }
}

// === impl Limits ===

impl Limits {
    #[allow(clippy::map_entry, reason = "an entry is made only when the overall rate admits it")]
    fn admit(&mut self, notice: &Notice, now: Instant) -> Result<(), Cause> {
        let key = (notice.regarding.uid.clone().unwrap_or_default(), notice.reason);
        if self.recent.get(&key).is_some_and(|last| now - *last < PER_OBJECT) {
            return Err(Cause::ObjectRate);
        }
        let refill = (now - self.filled).as_secs_f64() * RATE_PER_SECOND;
        self.tokens = (self.tokens + refill).min(BURST);
        self.filled = now;
        if self.tokens < 1.0 {
            return Err(Cause::OverallRate);
        }
        self.tokens -= 1.0;
        // Twice what a minute admits: the scan is rare, and the map bounded.
        if self.recent.len() > 3000 {
            self.recent.retain(|_, last| now - *last < PER_OBJECT);
        }
        self.recent.insert(key, now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(uid: &str, reason: Reason) -> Notice {
        let regarding = ObjectReference { uid: Some(uid.to_owned()), ..ObjectReference::default() };
        Notice { reason, regarding, related: None, note: String::new() }
    }

    #[test]
    fn readme_says_of_every_reason_what_it_means() {
        let readme = include_str!("../README.md");
        for reason in Reason::ALL {
            let type_ = match reason.type_() {
                EventType::Normal => "Normal",
                EventType::Warning => "Warning",
            };
            let row = format!("| `{}` | {type_} |", reason.as_str());
            assert!(readme.contains(&row), "README has no row that begins with {row}");
        }
    }

    #[test]
    fn one_event_a_minute_per_object_and_reason() {
        let now = Instant::now();
        let mut limits = Limits { tokens: BURST, filled: now, recent: HashMap::new() };
        assert_eq!(limits.admit(&notice("a", Reason::BecameReady), now), Ok(()));
        assert_eq!(limits.admit(&notice("a", Reason::BecameReady), now), Err(Cause::ObjectRate));
        assert_eq!(limits.admit(&notice("a", Reason::BecameUnready), now), Ok(()));
        assert_eq!(limits.admit(&notice("b", Reason::BecameReady), now), Ok(()));
        assert_eq!(limits.admit(&notice("a", Reason::BecameReady), now + PER_OBJECT), Ok(()));
    }

    #[test]
    fn a_burst_of_a_hundred_then_twenty_a_second() {
        let now = Instant::now();
        let mut limits = Limits { tokens: BURST, filled: now, recent: HashMap::new() };
        let mut admitted = |count: usize, from: usize, at| {
            (from..from + count)
                .filter(|i| limits.admit(&notice(&i.to_string(), Reason::Published), at).is_ok())
                .count()
        };
        assert_eq!(admitted(500, 0, now), 100);
        assert_eq!(admitted(500, 1000, now + Duration::from_secs(1)), 20);
        assert_eq!(admitted(500, 2000, now + Duration::from_secs(60)), 100);
    }
}
