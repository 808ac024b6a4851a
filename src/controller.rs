//! The common part of the ExternalWorkload controller and the LinkerdConfig controller: reconciles the objects of a
//! [`WorkQueue`] while this process leads. The rollout engine and the controller of the webhook certificates have loops
//! of their own.
//!
//! ```text
//! cluster ──observer──▶ WorkQueue ──▶ Controller ──▶ Reconciler::reconcile ──▶ may_act? ◀── Leadership
//! ```
//!
//! kube-runtime's [`Controller`] is only the executor. It runs up to `concurrency` reconciles at once, never two of one
//! object, and lets them end when the process stops. It watches nothing, because its trigger is `stream::pending()`,
//! and it requeues nothing, because each reconcile returns `Action::await_change()`.
//!
//! [`WorkQueue`] does the rest, as client-go's queue does: deduplication, delays, order, retries and metrics. The
//! reason is fairness. While all slots are taken, kube-runtime's `Scheduler` (5.0) keeps the due objects in a
//! `HashSet`, `pending`, and picks the next one by its hash. An object that changes all the time can then be reconciled
//! again and again while another one waits without limit. Our queue yields the object that has waited for the longest
//! time, and only when a slot is free, so that `pending` never has a choice. The last test in this file shows it.
//!
//! The Controller reconciles only names that it finds in a `reflector::Store`. No watch of kube-runtime fills such a
//! store here, so each observer feeds [`ObjectNames`], which has names and uids only.
//!
//! In: a [`Reconciler`]. Out: its reconciles. Always holds: at the start of a term every object is reconciled, but not
//! before every watch works; a failed reconcile is retried without limit; a deleted object is forgotten.

use std::{
    convert::Infallible,
    fmt::{Debug, Display},
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream};
use kube::{
    Client,
    core::{ObjectMeta, PartialObjectMeta, PartialObjectMetaExt, Resource},
    runtime::{
        controller::{Action, Config, Controller, Error},
        reflector::{Store, store::Writer},
        watcher,
    },
};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::{
    api::NamespacedName,
    cluster::{Cluster, Kind},
    contain::{Work, contain_future},
    events::Events,
    lease::Leadership,
    queue::WorkQueue,
    retry::backoff,
};

/// When an object whose reconcile panicked is reconciled again, unless it changes before. A retry at the same state
/// most likely panics again.
const PANIC_RETRY: Duration = Duration::from_secs(60);
/// The longest delay before a failed object is reconciled again.
const BACKOFF_CAP: Duration = Duration::from_secs(60);

/// The dependencies of a controller that uses [`run`].
pub struct ControllerDeps {
    pub client: Client,
    pub cluster: Cluster,
    pub leadership: Leadership,
    pub events: Events,
    pub registry: Registry,
}

/// Lets a controller act only while this process leads and after its watches have caught up with the previous leader.
pub struct LeaderGate {
    pub cluster: Cluster,
    kinds: &'static [Kind],
    pub queue: Arc<WorkQueue>,
    leadership: Leadership,
    /// The latest term in which every watch was found to work; the controller acts in no other term.
    confirmed_term: AtomicU64,
}

/// The names of all objects of a kind, for the lookups of kube-runtime's Controller. Reconcilers read the objects from
/// the cluster state.
pub struct ObjectNames<K: Resource<DynamicType = ()> + Clone + Debug + 'static>(Mutex<Writer<PartialObjectMeta<K>>>);

/// When an object is reconciled again. A change of the object or of what it depends on always causes a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextReconcile {
    OnChange,
    After(Duration),
}

/// The part of a controller that is specific to its kind.
pub trait Reconciler: Send + Sync + Sized + 'static {
    type Object: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static;
    type Error: Display + Send;
    /// The delay after the first failure. It doubles with each further one, up to a minute.
    const BACKOFF: Duration;
    /// The log line of a failure.
    const FAILED: &'static str;

    fn gate(&self) -> &LeaderGate;

    /// Called when a term begins, before its first reconcile.
    fn begin(&self) {}

    fn reconcile(&self, key: &NamespacedName) -> impl Future<Output = Result<NextReconcile, Self::Error>> + Send;

    /// Called when a reconcile failed. Returns the shortest delay before the next one; more than a minute counts as
    /// one.
    fn retry_after(&self, error: &Self::Error) -> Duration;

    /// Counts and logs a failed reconcile. Returns the delay before the next one.
    fn failed(&self, key: &NamespacedName, error: &Self::Error) -> Duration {
        let failures = self.gate().queue.count_failure(key);
        let kind = Self::Object::kind(&());
        if failures == 0 {
            warn!(%kind, object = %key, %error, "{}", Self::FAILED);
        } else {
            debug!(%kind, object = %key, %error, failures, "{}", Self::FAILED);
        }
        backoff(failures, Self::BACKOFF, BACKOFF_CAP).max(self.retry_after(error)).min(BACKOFF_CAP)
    }

    /// Called when the object was deleted.
    fn forget(&self, key: &NamespacedName);
}

/// Reconciles until `stop` is cancelled; returns when the reconciles in progress have ended.
pub async fn run<R: Reconciler>(
    reconciler: Arc<R>,
    names: Store<PartialObjectMeta<R::Object>>,
    concurrency: u16,
    stop: CancellationToken,
) {
    let gate = reconciler.gate();
    tokio::select! {
        () = gate.cluster.synced(gate.kinds) => {}
        () = stop.cancelled() => return,
    }
    let outcomes = Controller::for_stream(stream::pending(), names.clone())
        .with_config(Config::default().concurrency(concurrency))
        .reconcile_on(gate.queue.stream(concurrency))
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(reconcile, on_error, Arc::clone(&reconciler))
        .for_each(|outcome| {
            if let Err(Error::ObjectNotFound(name)) = outcome {
                let key = NamespacedName::new(name.namespace.unwrap_or_default(), name.name);
                gate.queue.forget(&key);
                reconciler.forget(&key);
                // The object may have been created again after the Controller read the store. Then `forget` has dropped
                // its key.
                if names.get(&key.reference()).is_some() {
                    gate.queue.add([key]);
                }
            }
            std::future::ready(())
        });
    let terms = async {
        let (mut leadership, mut term) = (gate.leadership.clone(), 0);
        loop {
            term = leadership.next_term(term).await;
            // With an outdated cache, the controller would revert the writes of the previous leader.
            gate.cluster.recovered(gate.kinds).await;
            reconciler.begin();
            gate.confirmed_term.store(term, Ordering::Release);
            // Between two terms, there may have been changes that no replica has reconciled.
            let keys: Vec<_> = names.state().iter().map(|object| NamespacedName::of(&object.metadata)).collect();
            info!(kind = %R::Object::kind(&()), objects = keys.len(), "reconciling all objects");
            gate.queue.add(keys);
        }
    };
    tokio::select! {
        () = outcomes => {}
        () = terms => {}
    }
}

/// Reconciles an object. The queue requeues it, not the Controller, so that no object waits longer than its turn.
async fn reconcile<R: Reconciler>(
    object: Arc<PartialObjectMeta<R::Object>>,
    reconciler: Arc<R>,
) -> Result<Action, Infallible> {
    let key = NamespacedName::of(&object.metadata);
    let queue = &reconciler.gate().queue;
    let _work = queue.start(&key);
    let reconciled = async { reconciler.reconcile(&key).await.map_err(|error| reconciler.failed(&key, &error)) };
    let next = contain_future(Work::Reconciling, reconciled).await.unwrap_or_else(|panicked| {
        error!(kind = %R::Object::kind(&()), object = %key, %panicked, "could not reconcile an object, retrying");
        Err(PANIC_RETRY)
    });
    if next.is_err() {
        queue.count_retry();
    }
    if let Ok(NextReconcile::After(delay)) | Err(delay) = next {
        queue.add_after(&key, delay);
    }
    Ok(Action::await_change())
}

#[allow(clippy::needless_pass_by_value, reason = "kube-runtime's signature")]
fn on_error<R>(_: Arc<PartialObjectMeta<R::Object>>, error: &Infallible, _: Arc<R>) -> Action
where
    R: Reconciler,
{
    match *error {}
}

// === impl LeaderGate ===

impl LeaderGate {
    /// `kinds` are the kinds that the controller reads, `queue` is its queue.
    pub fn new(deps: &ControllerDeps, kinds: &'static [Kind], queue: &Arc<WorkQueue>) -> Self {
        Self {
            cluster: deps.cluster.clone(),
            kinds,
            queue: Arc::clone(queue),
            leadership: deps.leadership.clone(),
            confirmed_term: AtomicU64::new(0),
        }
    }

    /// The gate of a controller that acts in the first term, and watches nothing.
    #[cfg(test)]
    pub(crate) fn for_test(cluster: Cluster) -> Self {
        Self {
            cluster,
            kinds: &[],
            queue: WorkQueue::new("test", &prometheus::Registry::new()).unwrap(),
            leadership: Leadership::for_test(),
            confirmed_term: AtomicU64::new(1),
        }
    }

    /// Returns the term in which the controller acts.
    pub fn term(&self) -> u64 {
        self.confirmed_term.load(Ordering::Acquire)
    }

    /// Whether this process leads, and every watch was found to work in this term.
    pub fn may_act(&self) -> bool {
        self.leadership.term() == Some(self.term())
    }
}

// === impl ObjectNames ===

impl<K: Resource<DynamicType = ()> + Clone + Debug + 'static> Default for ObjectNames<K> {
    fn default() -> Self {
        let mut writer = Writer::new(());
        // The Controller waits until its store is complete. It starts after the first list, when the store is complete.
        writer.apply_watcher_event(&watcher::Event::Init);
        writer.apply_watcher_event(&watcher::Event::InitDone);
        Self(Mutex::new(writer))
    }
}

impl<K: Resource<DynamicType = ()> + Clone + Debug + 'static> ObjectNames<K> {
    /// Records a change of an object, given its uid before and after the change.
    pub fn update(&self, key: &NamespacedName, old: Option<&str>, new: Option<&str>) {
        if old == new {
            return;
        }
        let namespace = Some(key.namespace.to_string()).filter(|namespace| !namespace.is_empty());
        let name = |uid: &str| {
            let metadata = ObjectMeta {
                name: Some(key.name.to_string()),
                namespace,
                uid: Some(uid.to_owned()),
                ..ObjectMeta::default()
            };
            metadata.into_response_partial()
        };
        let event = match (old, new) {
            (_, Some(uid)) => watcher::Event::Apply(name(uid)),
            (Some(uid), None) => watcher::Event::Delete(name(uid)),
            (None, None) => return,
        };
        self.0.lock().apply_watcher_event(&event);
    }

    pub fn store(&self) -> Store<PartialObjectMeta<K>> {
        self.0.lock().as_reader()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use k8s_openapi::api::core::v1 as core;
    use tokio::time::sleep;

    use super::*;
    use crate::cluster::testing::Feed;

    const OBJECTS: usize = 100;
    /// The first of the objects change again during each reconcile.
    const CHANGING: usize = 20;
    const CONCURRENCY: u16 = 8;

    /// Records its reconciles.
    struct Recorder {
        gate: LeaderGate,
        reconciled: Mutex<Vec<NamespacedName>>,
        panics_at: Option<NamespacedName>,
    }

    impl Reconciler for Recorder {
        type Object = core::Service;
        type Error = Infallible;
        const BACKOFF: Duration = Duration::from_secs(1);
        const FAILED: &'static str = "failed";

        fn gate(&self) -> &LeaderGate {
            &self.gate
        }

        async fn reconcile(&self, key: &NamespacedName) -> Result<NextReconcile, Infallible> {
            self.reconciled.lock().push(key.clone());
            assert!(self.panics_at != Some(key.clone()), "out of ink");
            sleep(Duration::from_millis(10)).await;
            self.gate.queue.add((0..CHANGING).map(key_of));
            Ok(NextReconcile::OnChange)
        }

        fn retry_after(&self, error: &Infallible) -> Duration {
            match *error {}
        }

        fn forget(&self, _: &NamespacedName) {}
    }

    fn key_of(number: usize) -> NamespacedName {
        NamespacedName::new("ns", format!("object-{number}"))
    }

    /// Runs a controller of a hundred objects until `is_enough`. Returns the reconciles.
    async fn reconciles_until(
        panics_at: Option<NamespacedName>,
        is_enough: impl Fn(&[NamespacedName]) -> bool,
    ) -> Vec<NamespacedName> {
        let queue = WorkQueue::new("test", &Registry::new()).unwrap();
        let names = ObjectNames::default();
        (0..OBJECTS).for_each(|number| names.update(&key_of(number), None, Some("uid")));
        let gate = LeaderGate {
            cluster: Feed::default().cluster,
            kinds: &[],
            queue: Arc::clone(&queue),
            leadership: Leadership::for_test(),
            confirmed_term: AtomicU64::new(0),
        };
        let recorder = Arc::new(Recorder { gate, reconciled: Mutex::default(), panics_at });
        let stop = CancellationToken::new();
        let controller = tokio::spawn(run(Arc::clone(&recorder), names.store(), CONCURRENCY, stop.clone()));
        let enough = async {
            while !is_enough(&recorder.reconciled.lock()) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(100), enough).await.unwrap();
        stop.cancel();
        controller.await.unwrap();
        std::mem::take(&mut *recorder.reconciled.lock())
    }

    #[tokio::test(start_paused = true)]
    async fn a_reconcile_that_panics_is_retried_after_a_minute_and_the_others_go_on() {
        let bad = key_of(OBJECTS - 1);
        // Looked at every 10 ms, in which each of the reconciles at a time ends once.
        let is_again = |reconciled: &[NamespacedName]| {
            reconciled.len() > 5 * OBJECTS && reconciled.iter().rev().take(OBJECTS).any(|key| *key == bad)
        };
        let begun = tokio::time::Instant::now();
        let reconciled = reconciles_until(Some(bad.clone()), is_again).await;
        assert!(begun.elapsed() >= Duration::from_secs(60), "{:?}", begun.elapsed());
        assert!((0..OBJECTS).all(|number| reconciled.contains(&key_of(number))));
    }

    #[tokio::test(start_paused = true)]
    async fn every_object_is_reconciled_once_before_those_that_change_all_the_time_are_reconciled_again() {
        let reconciled = reconciles_until(None, |reconciled| reconciled.len() >= 2 * OBJECTS).await;
        // The Controller has up to `CONCURRENCY` objects, and reconciles them in any order.
        let first = OBJECTS + usize::from(CONCURRENCY);
        let first: BTreeSet<_> = reconciled.iter().take(first).cloned().collect();
        assert_eq!(first, (0..OBJECTS).map(key_of).collect());
    }
}
