//! The watch of one kind, which keeps the [`State`] up to date for the lifetime of the process.
//!
//! In: kube's watcher of the kind. Out: changes of the state, passed to the [`Observer`]s of the kind; a
//! [`WatchStatus`]. Always holds: a relist is applied as one change when it is complete; the state then has exactly the
//! listed objects, and observers receive only objects that changed or were deleted; an object that cannot be read
//! affects no other object, and its last readable version stays in the state.

pub(crate) mod guarded;
mod list_transport;
pub(in crate::cluster) mod metrics;
mod relist;
mod status;
mod warnings;

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kube::{
    Api, Client, Resource,
    runtime::watcher::{self, Event},
};
use parking_lot::{RwLock, RwLockWriteGuard};
use tokio::{
    sync::{Notify, watch as channel},
    time::{Instant, sleep, timeout},
};
use tracing::{Instrument, Span, debug, error, error_span};

use super::{
    Change, Kind, Observer, Problems, Projected, State, WatchScope, Watched, index::shared_values::SharedValues,
    kinds::KindVisitor,
};
use crate::{
    api::{NamespacedName, last_update},
    contain::{Work, contain},
    memory::MemoryBudget,
    retry::backoff,
    tasks::Tasks,
};
use guarded::Guarded;
use list_transport::ListTransport;
pub(super) use metrics::register_cluster;
pub use metrics::{FAILURE_CLASSES, WatchMetrics};
pub(in crate::cluster) use relist::Relist;
use status::WatchFailure;
pub use status::WatchProblem;
pub(in crate::cluster) use status::WatchStatus;
use warnings::Warnings;

/// The timeout of a watch in seconds, after which the API server ends it and we resume it. kube drops a connection that
/// was silent for five seconds longer; bookmarks keep an idle but healthy connection from being silent.
const WATCH_SECONDS: u32 = 60;

/// A resumed watch delivers no event until an object changes. A watch that has not failed for this time, which is
/// longer than any attempt and the pause before it, counts as healthy again.
const QUIET: Duration = Duration::from_secs(35);

/// The pause of a watch whose objects do not fit into the memory.
const NO_MEMORY: Duration = Duration::from_secs(60);

/// The dependencies of a watch.
#[derive(Clone)]
pub(in crate::cluster) struct WatchContext {
    /// The name of another cluster; `None` for this one.
    pub cluster: Option<Arc<str>>,
    pub state: Arc<RwLock<State>>,
    /// The observers of the kind.
    pub observers: Arc<[Arc<dyn Observer>]>,
    /// Makes a failing watch relist immediately instead of after its backoff.
    pub relist: Arc<Notify>,
    pub metrics: WatchMetrics,
    /// The memory that the process may have allocated when the watch adds an object.
    pub memory: MemoryBudget,
}

/// The client of the watches of a cluster. It is absent until the credentials of another cluster can be used, and it is
/// replaced when they change.
#[derive(Clone)]
pub struct Clients(channel::Receiver<Option<Client>>);

/// Starts the watch of a kind in a separate task.
pub(super) struct Spawn<'a> {
    pub context: WatchContext,
    pub clients: Clients,
    pub scope: WatchScope,
    pub tasks: &'a mut Tasks,
}

// === impl Clients ===

impl Clients {
    /// A client that is never replaced.
    pub(super) fn always(client: &Client) -> Self {
        Self(channel::channel(Some(client.clone())).1)
    }

    /// Waits for a client.
    async fn next(&mut self) -> Client {
        match self.0.wait_for(Option::is_some).await.map(|client| client.clone()) {
            Ok(Some(client)) => client,
            _ => std::future::pending().await,
        }
    }

    /// Resolves when the client is replaced.
    async fn replaced(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl From<channel::Receiver<Option<Client>>> for Clients {
    fn from(clients: channel::Receiver<Option<Client>>) -> Self {
        Self(clients)
    }
}

// === impl Spawn ===

impl KindVisitor for Spawn<'_> {
    type Output = channel::Receiver<WatchStatus>;

    fn visit<T: Watched>(self) -> Self::Output {
        let Self { context, mut clients, scope: WatchScope { namespace, labels, fields }, tasks } = self;
        let config = watcher::Config { label_selector: labels, field_selector: fields, ..watcher::Config::default() };
        let (status, receiver) = context.status::<T>();
        let span = context.span(namespace.as_deref());
        let follow = async move {
            loop {
                let client = clients.next().await;
                let api = match &namespace {
                    Some(namespace) => Api::namespaced_with(client, namespace, &()),
                    None => Api::all(client),
                };
                tokio::select! {
                    () = context.run::<T>(api, config.clone(), &status) => return,
                    // The next list is compared with the state, so that only differences are changes.
                    () = clients.replaced() => {}
                }
            }
        };
        tasks.spawn(T::KIND.resource(), follow.instrument(span));
        receiver
    }
}

// === impl WatchContext ===

impl WatchContext {
    fn blocks_readiness(&self) -> bool {
        self.observers.iter().any(|observer| observer.blocks_readiness())
    }

    /// The fields of every log line of a watch of another cluster. The level is that of the highest lines, because a span
    /// that is filtered out takes its fields with it.
    fn span(&self, namespace: Option<&str>) -> Span {
        self.cluster.as_deref().map_or_else(Span::none, |cluster| error_span!("watch", cluster, namespace))
    }

    fn status<T: Watched>(&self) -> (channel::Sender<WatchStatus>, channel::Receiver<WatchStatus>) {
        channel::channel(WatchStatus::of(self.cluster.as_ref(), T::KIND, self.blocks_readiness()))
    }

    /// Follows a kind, forever.
    async fn run<T: Watched>(
        &self,
        api: Api<Guarded<T::Wire>>,
        config: watcher::Config,
        status: &channel::Sender<WatchStatus>,
    ) {
        let config = config.timeout(WATCH_SECONDS);
        let mut transport = ListTransport::Stream;
        let watch = |transport| Box::pin(watcher::watcher(api.clone(), ListTransport::configure(transport, &config)));
        let mut events = watch(transport);
        let mut relist = Relist::<T>::default();
        let mut memory = WatchMemory::default();
        // After an outage the first error is often 410 Gone. It has a separate backoff, so that the relist is not
        // delayed by the backoff of the outage.
        let (mut failures, mut expirations) = (Failures::default(), Failures::default());
        // Whether the watch has failed since its last event.
        let mut interrupted = false;
        loop {
            let event = tokio::select! {
                event = timeout(QUIET, events.next()) => event,
                () = self.relist.notified() => {
                    if status.borrow().failure.is_some() {
                        (events, interrupted) = (watch(transport), true);
                    }
                    continue;
                }
            };
            let event = match event {
                Ok(Some(event)) => event,
                // kube's watcher never ends.
                Ok(None) => return,
                Err(_) => {
                    // During a list, a timeout does not mean that the watch is healthy.
                    if !relist.under_way {
                        status.send_if_modified(WatchStatus::recovered);
                    }
                    continue;
                }
            };
            match event {
                Ok(Event::InitApply(_) | Event::Apply(_)) if !self.memory.has_room_for(0) => {
                    // The state keeps what it has. An incomplete list is freed, and is not requested soon again, because
                    // it is long.
                    (relist, events) = (Relist::default(), watch(transport));
                    self.fail(T::KIND, WatchFailure::NoMemory, status);
                    tokio::select! {
                        () = sleep(NO_MEMORY) => {}
                        () = self.relist.notified() => {}
                    }
                }
                // The API server ends a watch after a minute, and a list that it streams is no exception.
                Ok(Event::Init) if transport == ListTransport::Stream && relist.under_way && !interrupted => {
                    debug!(resource = T::KIND.resource(), "the list was not complete in time, listing pages");
                    transport = ListTransport::PAGES;
                    events = watch(transport);
                }
                Ok(event) => {
                    interrupted = false;
                    // kube emits `Init` before the API server has responded.
                    let (done, responded) = (matches!(event, Event::InitDone), !matches!(event, Event::Init));
                    if responded {
                        self.metrics.events.with_label_values(&[T::KIND.resource()]).inc();
                    }
                    self.apply::<T>(event, &mut relist, &mut memory);
                    // The pages of a list change the state only when the list is complete. Until then the state is as
                    // old as the failure, and a new leader that decided on it would undo its predecessor's writes.
                    if !relist.under_way {
                        status.send_if_modified(|status| status.recovered() | (done && status.listed()));
                    }
                }
                Err(error) if let Some(other) = transport.instead(&error) => {
                    // Later lists use this transport, too: the objects will be as large then, and the API server will
                    // not have changed.
                    transport = other;
                    debug!(resource = T::KIND.resource(), ?transport, "listing in another way");
                    events = watch(transport);
                }
                Err(error) => {
                    interrupted = true;
                    self.fail(T::KIND, WatchFailure::of(&error), status);
                    let expired = is_expired(&error);
                    let pause = if expired { expirations.pause() } else { failures.pause() };
                    tokio::select! {
                        () = sleep(pause) => {
                            if expired && matches!(error, watcher::Error::WatchStartFailed(_)) {
                                // kube relists when a watch event reports 410. When the response to the watch request
                                // is 410, kube would retry with the same version forever.
                                events = watch(transport);
                            }
                        }
                        () = self.relist.notified() => events = watch(transport),
                    }
                }
            }
        }
    }

    fn fail(&self, kind: Kind, failure: WatchFailure, status: &channel::Sender<WatchStatus>) {
        self.metrics.failed(kind, (&failure).into());
        status.send_if_modified(|status| status.failed(failure));
    }

    /// Applies one event to the state, then passes its changes to the observers.
    pub(super) fn apply<T: Watched>(
        &self,
        event: Event<Guarded<T::Wire>>,
        relist: &mut Relist<T>,
        memory: &mut WatchMemory,
    ) {
        let received = Instant::now();
        match event {
            Event::Init => *relist = Relist { under_way: true, ..Relist::default() },
            Event::InitApply(object) => {
                let key = NamespacedName::of(object.meta());
                if T::INFORMER_LAG.is_some() {
                    memory.note_update(object.meta());
                }
                let object = self.project::<T>(T::KIND, object, memory);
                relist.add(&key, object, T::store(&self.state.read()));
            }
            Event::InitDone => {
                let Relist { known, changed, .. } = std::mem::take(relist);
                let vanished = T::store(&self.state.read()).keys_except(&known);
                let mut state = self.begin_change(T::KIND);
                let mut changes: Vec<Change> =
                    changed.into_iter().filter_map(|object| T::apply_shared(object, &mut state)).collect();
                for vanished in vanished {
                    memory.forget(&vanished);
                    changes.extend(T::remove(&vanished, &mut state));
                }
                self.notify(state, &changes, received);
            }
            Event::Apply(object) => {
                if T::INFORMER_LAG.is_some()
                    && let Some(updated) = memory.note_update(object.meta())
                {
                    let lag = Timestamp::now().duration_since(updated).as_secs_f64();
                    self.metrics.observe_lag(T::KIND, lag.max(0.0));
                }
                let Some(object) = self.project::<T>(T::KIND, object, memory) else { return };
                let mut state = self.begin_change(T::KIND);
                let change = object.apply(&mut state);
                self.notify(state, change.as_slice(), received);
            }
            Event::Delete(object) => {
                let key = NamespacedName::of(object.meta());
                memory.forget(&key);
                let mut state = self.begin_change(T::KIND);
                let change = T::remove(&key, &mut state);
                self.notify(state, change.as_slice(), received);
            }
        }
    }

    fn begin_change(&self, kind: Kind) -> StateChange<'_> {
        let mut state = self.state.write();
        state.generation += 1;
        StateChange { state, kind, locked: Instant::now(), metrics: &self.metrics }
    }

    /// Notifies the observers and releases the lock. The caller frees the old objects afterwards.
    fn notify(&self, state: StateChange<'_>, changes: &[Change], received: Instant) {
        if !changes.is_empty() {
            for observer in self.observers.iter() {
                let changed =
                    |changes: &[Change]| contain(Work::Observing, || observer.changed(&state, changes, received));
                if changed(changes).is_ok() {
                    continue;
                }
                // One by one, so that only the changes that cause a panic are lost.
                for change in changes {
                    if let Err(panicked) = changed(std::slice::from_ref(change)) {
                        error!(resource = state.kind.resource(), object = %change.key(), %panicked, "a change is lost");
                    }
                }
            }
        }
        drop(state);
    }

    /// Reduces an object to the fields that the state holds. Returns `None` if the object cannot be read.
    fn project<T: Projected>(&self, kind: Kind, object: Guarded<T::Wire>, memory: &mut WatchMemory) -> Option<T> {
        let resource = kind.resource();
        let key = NamespacedName::of(object.meta());
        let mut problems = Problems::default();
        let projected = match object {
            Guarded::Valid(wire) => {
                let project = contain(Work::Reading, || {
                    let mut projected = T::project(wire, &mut problems);
                    projected.share(&mut memory.shared);
                    projected
                });
                project.map_err(|panicked| panicked.to_string().into())
            }
            Guarded::Invalid { error, .. } => Err(error),
        };
        match projected {
            Ok(projected) => {
                if memory.note_problems(&key, &problems) {
                    let count = u64::try_from(problems.len()).unwrap_or(u64::MAX);
                    self.metrics.unusable.with_label_values(&[resource]).inc_by(count);
                    memory.warnings.log("ignoring unusable parts of an object", &key, resource, &problems);
                }
                Some(projected)
            }
            Err(error) => {
                self.metrics.undecodable.with_label_values(&[resource]).inc();
                problems = Problems::default();
                problems.add(format_args!("{error}"));
                if memory.note_problems(&key, &problems) {
                    let what = "cannot read an object, keeping its last readable version";
                    memory.warnings.log(what, &key, resource, &problems);
                }
                None
            }
        }
    }
}

/// The write lock of the state. Measures how long it is held.
struct StateChange<'a> {
    state: RwLockWriteGuard<'a, State>,
    kind: Kind,
    locked: Instant,
    metrics: &'a WatchMetrics,
}

impl Deref for StateChange<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for StateChange<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for StateChange<'_> {
    fn drop(&mut self) {
        self.metrics.observe_write_lock(self.kind, self.locked.elapsed());
    }
}

/// Per-object state of a watch, used to report each update and each problem once. It is keyed by the hashes of the
/// object keys to save memory.
#[derive(Default)]
pub(in crate::cluster) struct WatchMemory {
    /// The time of each object's last update, in seconds.
    updated: HashMap<u64, i64>,
    /// The hash of each object's last reported problems.
    reported: HashMap<u64, u64>,
    /// The parts of recent objects.
    shared: SharedValues,
    warnings: Warnings,
}

impl WatchMemory {
    /// Records the object's last update. Returns its time if it differs from the previous one. Some changes do not set a
    /// new time (the start of a deletion, an apply); they would look like an old update that arrives late.
    fn note_update(&mut self, metadata: &ObjectMeta) -> Option<Timestamp> {
        let updated = last_update(metadata)?;
        let before = self.updated.insert(hash(&NamespacedName::of(metadata)), updated.as_second());
        (before != Some(updated.as_second())).then_some(updated)
    }

    /// Records the problems of the object. Returns whether there are any that differ from those before.
    fn note_problems(&mut self, key: &NamespacedName, problems: &Problems) -> bool {
        if problems.is_empty() {
            self.reported.remove(&hash(key));
            return false;
        }
        let problems = hash(problems);
        self.reported.insert(hash(key), problems) != Some(problems)
    }

    fn forget(&mut self, key: &NamespacedName) {
        let key = hash(key);
        self.updated.remove(&key);
        self.reported.remove(&key);
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Whether the error is 410 Gone: the API server no longer has the version from which to resume the watch.
fn is_expired(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchError(status) => status.code == 410,
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 410,
        _ => false,
    }
}

/// The backoff of consecutive failures. kube's backoff is not used: it resets with every `Init`, thus with every list
/// that it should delay, and it waits up to 30 s, which looks like a hang to a user who has just installed a CRD.
#[derive(Default)]
struct Failures {
    count: u32,
    last: Option<Instant>,
}

impl Failures {
    /// Returns the next pause, from 200 ms to 10 s. It resets only after two minutes without a failure, because a list
    /// that succeeds before a watch fails is not a recovery.
    fn pause(&mut self) -> Duration {
        if self.last.replace(Instant::now()).is_some_and(|last| last.elapsed() > Duration::from_secs(120)) {
            self.count = 0;
        }
        let pause = backoff(self.count, Duration::from_millis(200), Duration::from_secs(10));
        self.count = self.count.saturating_add(1);
        pause
    }
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
