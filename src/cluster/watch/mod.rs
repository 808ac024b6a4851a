//! One watch: a list and its changes, kept in step with the [`State`] for as long as the process lives.
//!
//! In: kube's watcher over one kind. Out: changes of the state, each passed to the [`Observer`]s of its kind; a [`WatchStatus`]. Always
//! holds: a relist comes into the state at once, when it is complete; then the state has exactly the listed objects, and the observers
//! heard only of objects that changed or vanished; an object that cannot be read costs only itself, and the last version of it
//! that could be read stays.

pub(crate) mod guarded;
pub(in crate::cluster) mod metrics;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    panic::{self, AssertUnwindSafe},
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
use tracing::{info, warn};

use super::{Change, Kind, Observer, Problems, Projected, State, WatchScope, Watched, kinds::KindVisitor};
use crate::{
    api::{NamespacedName, last_update},
    retry::backoff,
    tasks::Tasks,
};
use guarded::{Guarded, PANICKED};
pub(in crate::cluster) use metrics::WatchMetrics;

/// Seconds after which the API server ends a watch and we resume it. kube gives a silent connection up after this and
/// five seconds more; bookmarks keep an idle but healthy one from being silent.
const WATCH_SECONDS: u32 = 60;

/// A watch that was resumed says nothing until something changes. One that has not failed for so long, longer than any
/// attempt and the pause before it, is taken as healthy again.
const QUIET: Duration = Duration::from_secs(25);

/// Something that a watch waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchProblem {
    /// For a person: what is missing, and what to do.
    pub text: String,
    /// Whether the process is not ready because of it.
    pub blocks_readiness: bool,
}

/// How far a watch is.
#[derive(Clone, Debug)]
pub(in crate::cluster) struct WatchStatus {
    pub kind: Kind,
    /// An observer of the kind keeps the process from being ready before the kind is known.
    blocks_readiness: bool,
    pub synced: bool,
    /// The API server said once that it has no such kind, and clusters may lack it: an outage makes that no less known.
    absent: bool,
    failure: Option<WatchFailure>,
}

/// Why a list or a watch failed, as far as anybody can act on it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WatchFailure {
    /// 404: the API server does not serve the kind.
    KindMissing,
    /// 401 and 403.
    Denied(String),
    Unreachable(String),
}

/// What a watch needs from its cluster.
#[derive(Clone)]
pub(in crate::cluster) struct WatchContext {
    pub state: Arc<RwLock<State>>,
    /// The observers of the kind.
    pub observers: Arc<[Arc<dyn Observer>]>,
    /// Has a failing watch list its kind anew instead of waiting for its next attempt.
    pub relist: Arc<Notify>,
    pub metrics: WatchMetrics,
}

// === impl WatchStatus ===

impl WatchStatus {
    fn new(kind: Kind, blocks_readiness: bool) -> Self {
        Self { kind, blocks_readiness, synced: false, absent: false, failure: None }
    }

    /// The state has all of the kind, and follows it as far as anybody can tell: a connection that fell silent is noticed after
    /// a minute only.
    pub(in crate::cluster) fn is_followed(&self) -> bool {
        self.synced && self.failure.is_none()
    }

    /// Whether what the state does not have of the kind is not there: it was listed, or there is no such kind.
    pub(in crate::cluster) fn is_known(&self) -> bool {
        self.synced || self.absent
    }

    /// `None` when the kind is followed.
    pub(in crate::cluster) fn problem(&self) -> Option<WatchProblem> {
        let resource = self.kind.resource();
        let text = match &self.failure {
            None if self.synced => return None,
            None => format!("the first list of {resource} has not come yet"),
            Some(WatchFailure::KindMissing) if self.kind.is_optional() => {
                format!("the API server does not serve {resource}: install its CustomResourceDefinition (make install)")
            }
            Some(WatchFailure::KindMissing) => format!("the API server does not serve {resource}"),
            Some(WatchFailure::Denied(message)) => {
                format!("list and watch of {resource} are denied, grant them to this ServiceAccount: {message}")
            }
            Some(WatchFailure::Unreachable(message)) => format!("cannot list or watch {resource}: {message}"),
        };
        // What serves proxies goes on while the configuration waits.
        Some(WatchProblem { text, blocks_readiness: self.blocks_readiness && !self.is_known() })
    }
}

impl WatchFailure {
    fn of(error: &watcher::Error) -> Self {
        let cause = match error {
            watcher::Error::InitialListFailed(cause)
            | watcher::Error::WatchStartFailed(cause)
            | watcher::Error::WatchFailed(cause) => cause,
            watcher::Error::WatchError(status) => return Self::Unreachable(status.message.clone()),
            watcher::Error::NoResourceVersion => return Self::Unreachable(error.to_string()),
        };
        match cause {
            // By the code: an API group that does not exist is answered in plain text, without a reason.
            kube::Error::Api(status) if status.code == 404 => Self::KindMissing,
            kube::Error::Api(status) if matches!(status.code, 401 | 403) => Self::Denied(status.message.clone()),
            kube::Error::Api(status) => Self::Unreachable(status.message.clone()),
            other => Self::Unreachable(crate::client::describe(other)),
        }
    }
}

impl fmt::Display for WatchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KindMissing => f.write_str("the API server does not serve this kind"),
            Self::Denied(message) | Self::Unreachable(message) => f.write_str(message),
        }
    }
}

/// Starts the watch of a kind in a task of its own.
pub(super) struct Spawn<'a> {
    pub context: WatchContext,
    pub client: &'a Client,
    pub scope: WatchScope,
    pub tasks: &'a mut Tasks,
}

// === impl Spawn ===

impl KindVisitor for Spawn<'_> {
    type Output = channel::Receiver<WatchStatus>;

    fn visit<T: Watched>(self) -> Self::Output {
        let Self { context, client, scope, tasks } = self;
        let api = match &scope.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &()),
            None => Api::all(client.clone()),
        };
        let config = watcher::Config { label_selector: scope.labels, ..watcher::Config::default() };
        context.spawn::<T>(api, config, tasks)
    }
}

// === impl WatchContext ===

impl WatchContext {
    fn blocks_readiness(&self) -> bool {
        self.observers.iter().any(|observer| observer.blocks_readiness())
    }

    /// Follows a kind in a task of its own.
    pub(in crate::cluster) fn spawn<T: Watched>(
        &self,
        api: Api<Guarded<T::Wire>>,
        config: watcher::Config,
        tasks: &mut Tasks,
    ) -> channel::Receiver<WatchStatus> {
        let (status, receiver) = channel::channel(WatchStatus::new(T::KIND, self.blocks_readiness()));
        let context = self.clone();
        tasks.spawn(T::KIND.resource(), async move { context.run::<T>(api, config, status).await });
        receiver
    }

    async fn run<T: Watched>(
        self,
        api: Api<Guarded<T::Wire>>,
        config: watcher::Config,
        status: channel::Sender<WatchStatus>,
    ) {
        let config = config.timeout(WATCH_SECONDS);
        let watch = || Box::pin(watcher::watcher(api.clone(), config.clone()));
        let mut events = watch();
        let mut relist = Relist::<T>::default();
        let mut memory = WatchMemory::default();
        // A history that is gone often ends an outage: the list that then helps must not wait as long as the outage's last attempt.
        let (mut failures, mut expirations) = (Failures::default(), Failures::default());
        loop {
            let event = tokio::select! {
                event = timeout(QUIET, events.next()) => event,
                () = self.relist.notified() => {
                    if status.borrow().failure.is_some() {
                        events = watch();
                    }
                    continue;
                }
            };
            let event = match event {
                Ok(Some(event)) => event,
                // kube's watcher never ends.
                Ok(None) => return,
                Err(_) => {
                    // A list that takes so long is not a watch that has nothing to say.
                    if !relist.under_way {
                        self.metrics.succeeded(T::KIND);
                        status.send_if_modified(recovered);
                    }
                    continue;
                }
            };
            match event {
                Ok(event) => {
                    let (done, heard) = (matches!(event, Event::InitDone), !matches!(event, Event::Init));
                    if heard {
                        self.metrics.events.with_label_values(&[T::KIND.resource()]).inc();
                    }
                    self.apply::<T>(event, &mut relist, &mut memory);
                    if heard {
                        self.metrics.succeeded(T::KIND);
                    }
                    status.send_if_modified(|status| (heard && recovered(status)) | (done && listed(status)));
                }
                Err(error) => {
                    self.metrics.failed(T::KIND);
                    status.send_if_modified(|status| failed(status, WatchFailure::of(&error)));
                    let expired = is_expired(&error);
                    let pause = if expired { expirations.pause() } else { failures.pause() };
                    tokio::select! {
                        () = sleep(pause) => {
                            if expired && matches!(error, watcher::Error::WatchStartFailed(_)) {
                                // kube lists anew when an event says 410, but would ask for the same version for ever when
                                // the answer does.
                                events = watch();
                            }
                        }
                        () = self.relist.notified() => events = watch(),
                    }
                }
            }
        }
    }

    /// Brings one event into the state, and passes its changes to the observers: they find the state up to date.
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
                relist.seen.insert(NamespacedName::of(object.meta()));
                if T::INFORMER_LAG.is_some() {
                    memory.is_new_update(object.meta());
                }
                relist.listed.extend(self.project::<T>(T::KIND, object, memory));
            }
            Event::InitDone => {
                let Relist { seen, listed, .. } = std::mem::take(relist);
                let mut state = self.begin_change();
                let mut changes: Vec<Change> =
                    listed.into_iter().filter_map(|object| object.apply(&mut state)).collect();
                let vanished: Vec<_> = T::store(&state).keys().filter(|key| !seen.contains(key)).collect();
                for vanished in vanished {
                    memory.forget(&vanished);
                    changes.extend(T::remove(&vanished, &mut state));
                }
                self.notify(&state, &changes, received);
            }
            Event::Apply(object) => {
                if T::INFORMER_LAG.is_some()
                    && let Some(updated) = memory.is_new_update(object.meta())
                {
                    let lag = Timestamp::now().duration_since(updated).as_secs_f64();
                    self.metrics.observe_lag(T::KIND, lag.max(0.0));
                }
                let Some(object) = self.project::<T>(T::KIND, object, memory) else { return };
                let mut state = self.begin_change();
                let change = object.apply(&mut state);
                self.notify(&state, change.as_slice(), received);
            }
            Event::Delete(object) => {
                let key = NamespacedName::of(object.meta());
                memory.forget(&key);
                let mut state = self.begin_change();
                let change = T::remove(&key, &mut state);
                self.notify(&state, change.as_slice(), received);
            }
        }
    }

    fn begin_change(&self) -> RwLockWriteGuard<'_, State> {
        let mut state = self.state.write();
        state.generation += 1;
        state
    }

    fn notify(&self, state: &State, changes: &[Change], received: Instant) {
        if !changes.is_empty() {
            for observer in self.observers.iter() {
                observer.changed(state, changes, received);
            }
        }
    }

    /// `None` for an object that cannot be read.
    fn project<T: Projected>(&self, kind: Kind, object: Guarded<T::Wire>, memory: &mut WatchMemory) -> Option<T> {
        let resource = kind.resource();
        let key = NamespacedName::of(object.meta());
        let mut problems = Problems::default();
        let projected = match object {
            Guarded::Valid(wire) => {
                let project = AssertUnwindSafe(|| T::project(wire, &mut problems));
                panic::catch_unwind(project).map_err(|_| PANICKED.into())
            }
            Guarded::Invalid { error, .. } => Err(error),
        };
        match projected {
            Ok(projected) => {
                if memory.is_news(&key, &problems) {
                    let count = u64::try_from(problems.len()).unwrap_or(u64::MAX);
                    self.metrics.unusable.with_label_values(&[resource]).inc_by(count);
                    warn!(object = %key, resource, %problems, "parts of an object cannot be used: they are left out");
                }
                Some(projected)
            }
            Err(error) => {
                self.metrics.undecodable.with_label_values(&[resource]).inc();
                problems = Problems::default();
                problems.add(format_args!("{error}"));
                if memory.is_news(&key, &problems) {
                    warn!(object = %key, resource, %error, "cannot read an object: it is left out, or stays as it was last read");
                }
                None
            }
        }
    }
}

/// What a watch remembers of objects to say things once: by the hashes of their keys, because there are many.
#[derive(Default)]
pub(in crate::cluster) struct WatchMemory {
    /// The second of each object's last update.
    updated: HashMap<u64, i64>,
    /// What of an object could not be used, as far as it was told.
    told: HashMap<u64, u64>,
}

impl WatchMemory {
    /// The time of the object's last update, if it is another than before. A change that is no update (a deletion that
    /// begins, an apply) leaves the old time standing, and would look like an old update that arrives late.
    fn is_new_update(&mut self, metadata: &ObjectMeta) -> Option<Timestamp> {
        let updated = last_update(metadata)?;
        let before = self.updated.insert(hash(&NamespacedName::of(metadata)), updated.as_second());
        (before != Some(updated.as_second())).then_some(updated)
    }

    fn is_news(&mut self, key: &NamespacedName, problems: &Problems) -> bool {
        if problems.is_empty() {
            self.told.remove(&hash(key));
            return false;
        }
        let problems = hash(problems);
        self.told.insert(hash(key), problems) != Some(problems)
    }

    fn forget(&mut self, key: &NamespacedName) {
        let key = hash(key);
        self.updated.remove(&key);
        self.told.remove(&key);
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// 410: the version to go on from is forgotten.
fn is_expired(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchError(status) => status.code == 410,
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 410,
        _ => false,
    }
}

/// A list under way. Its objects wait for its end: half a list in the state would be a state that the API server never had,
/// in which an endpoint that moved from one slice to another is in neither; and if the end is long in coming, because the API
/// server is gone again, those who ask now would be told another story than those who have asked before.
pub(in crate::cluster) struct Relist<T> {
    under_way: bool,
    seen: HashSet<NamespacedName>,
    listed: Vec<T>,
}

impl<T> Default for Relist<T> {
    fn default() -> Self {
        Self { under_way: false, seen: HashSet::new(), listed: Vec::new() }
    }
}

fn recovered(status: &mut WatchStatus) -> bool {
    let failed = status.failure.take().is_some();
    if failed {
        info!(resource = status.kind.resource(), "watching again");
    }
    failed
}

fn listed(status: &mut WatchStatus) -> bool {
    let first = !std::mem::replace(&mut status.synced, true);
    if first {
        info!(resource = status.kind.resource(), "listed");
    }
    first
}

fn failed(status: &mut WatchStatus, failure: WatchFailure) -> bool {
    // Of a kind that every cluster has, a 404 is somebody else's answer: a proxy in front of the API server, most likely.
    status.absent |= failure == WatchFailure::KindMissing && status.kind.is_optional();
    let changed = status.failure.as_ref() != Some(&failure);
    if changed {
        let resource = status.kind.resource();
        warn!(resource, error = %failure, "list or watch failed, retrying");
        status.failure = Some(failure);
    }
    changed
}

/// Failures in a row. Not kube's backoff: that one starts anew with every `Init`, so with every list it is to slow down,
/// and it waits up to 30 s, which a person who has just installed a CRD sees as a hang.
#[derive(Default)]
struct Failures {
    count: u32,
    last: Option<Instant>,
}

impl Failures {
    /// From 200 ms to 10 s; from the start again after two quiet minutes, because a list that succeeds before a watch
    /// that fails is no recovery.
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
