//! The cache of one API server: each watched kind, reduced to the fields that its consumers read, with lookups across
//! kinds.
//!
//! In: one watch per kind. Out: the [`State`], and each [`Change`] for the [`Observer`]s of its kind. Always holds:
//! only the watches write the state; the lock is held only for the work of one event; until a kind has been listed, an
//! object's absence from the state has no meaning. The cache does not depend on its consumers: each observer decides
//! what a change means.

mod diff;
pub mod index;
pub mod kinds;
mod observer;
mod problems;
mod projected;
#[cfg(any(test, fuzzing))]
#[allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "only tests and the fuzzer use it")]
#[cfg_attr(not(test), allow(dead_code, reason = "the fuzzer uses a part of it"))]
pub(crate) mod testing;
pub(crate) mod watch;
mod workloads;

use std::{sync::Arc, time::Duration};

use kube::Client;
use parking_lot::{RwLock, RwLockReadGuard};
use prometheus::Registry;
use tokio::sync::{Notify, watch as channel};

use crate::{memory::MemoryBudget, tasks::Tasks};
pub use diff::Diff;
pub use kinds::{Change, Kind, State, Watched};
pub use observer::{Observer, WatchScope};
pub use problems::Problems;
pub use projected::Projected;
pub use watch::{Clients, FAILURE_CLASSES, WatchMetrics, WatchProblem};

/// The state of one watch, for a person.
#[derive(Clone, Debug)]
pub struct WatchReport {
    pub kind: Kind,
    /// The number of objects in the state.
    pub objects: usize,
    /// Whether the kind was listed once.
    pub is_listed: bool,
    /// Whether the kind is optional and the API server does not serve it.
    pub is_not_served: bool,
    /// The time for which the watch has been failing.
    pub failing_for: Option<Duration>,
    pub problem: Option<String>,
}

/// A handle to the state of one cluster and to the status of its watches.
#[derive(Clone)]
pub struct Cluster {
    state: Arc<RwLock<State>>,
    watches: Arc<[channel::Receiver<watch::WatchStatus>]>,
    relist: Arc<Notify>,
}

// === impl Cluster ===

impl Cluster {
    /// Starts the watches that the observers need: one task per kind.
    ///
    /// # Errors
    /// The metrics are already registered.
    pub fn spawn(
        client: &Client,
        observers: &[Arc<dyn Observer>],
        registry: &Registry,
        tasks: &mut Tasks,
    ) -> prometheus::Result<Self> {
        let metrics = WatchMetrics::register(registry)?;
        let clients = watch::Clients::always(client);
        let cluster = Self::spawn_watches(None, &clients, observers, &metrics, MemoryBudget::UNLIMITED, tasks);
        watch::register_cluster(registry, &cluster)?;
        Ok(cluster)
    }

    /// Starts the watches that the observer needs in another cluster. Their log lines contain the name of the cluster.
    /// They begin when the cluster has a client, and list again when the client is replaced. All watches of the cluster
    /// write to `metrics`. A watch fails while the budget has no room for more objects.
    pub fn spawn_remote(
        name: &Arc<str>,
        clients: &watch::Clients,
        observer: Arc<dyn Observer>,
        metrics: &WatchMetrics,
        memory: MemoryBudget,
        tasks: &mut Tasks,
    ) -> Self {
        Self::spawn_watches(Some(name), clients, &[observer], metrics, memory, tasks)
    }

    fn spawn_watches(
        name: Option<&Arc<str>>,
        clients: &watch::Clients,
        observers: &[Arc<dyn Observer>],
        metrics: &WatchMetrics,
        memory: MemoryBudget,
        tasks: &mut Tasks,
    ) -> Self {
        let (state, relist) = (Arc::<RwLock<State>>::default(), Arc::new(Notify::new()));
        let mut watches = Vec::new();
        for kind in Kind::ALL {
            let Some(scope) = WatchScope::of(*kind, observers) else { continue };
            let context = watch::WatchContext {
                cluster: name.cloned(),
                state: Arc::clone(&state),
                observers: observers.iter().filter(|observer| observer.kinds().contains(kind)).cloned().collect(),
                relist: Arc::clone(&relist),
                metrics: metrics.clone(),
                memory,
            };
            watches.push(kind.visit(watch::Spawn { context, clients: clients.clone(), scope, tasks }));
        }
        Self { state, watches: watches.into(), relist }
    }

    /// Locks the current state for reading. Hold the guard for a few lookups, never across an await.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// Resolves when each of the kinds has been listed once.
    pub async fn synced(&self, kinds: &[Kind]) {
        self.wait_until(kinds, |status| status.synced).await;
    }

    /// Resolves when the state is complete for the kinds; see [`Self::knows`].
    pub async fn known(&self, kinds: &[Kind]) {
        self.wait_until(kinds, watch::WatchStatus::is_known).await;
    }

    /// Makes failing watches relist immediately, so that they miss no change, and resolves when no watch of the kinds
    /// is failing.
    pub async fn recovered(&self, kinds: &[Kind]) {
        self.relist.notify_waiters();
        self.wait_until(kinds, watch::WatchStatus::is_followed).await;
    }

    /// Whether each of the kinds has been listed and its watch is not failing.
    pub fn follows(&self, kinds: &[Kind]) -> bool {
        self.watches_of(kinds).all(|watch| watch.borrow().is_followed())
    }

    /// Whether the state is complete for the kinds, so that an object that it lacks does not exist: each kind was
    /// listed once, or is not served.
    pub fn knows(&self, kinds: &[Kind]) -> bool {
        self.watches_of(kinds).all(|watch| watch.borrow().is_known())
    }

    /// Returns the watches that have not listed their kind or are failing, each with a text for `/ready` and whether it
    /// blocks readiness. An optional kind that the API server does not serve blocks only the consumers of that kind.
    pub fn problems(&self) -> Vec<WatchProblem> {
        self.watches.iter().filter_map(|watch| watch.borrow().problem()).collect()
    }

    /// Returns the state of each watch.
    pub fn watch_reports(&self) -> Vec<WatchReport> {
        let report = |watch: &channel::Receiver<watch::WatchStatus>| {
            let status = watch.borrow().clone();
            WatchReport {
                kind: status.kind,
                objects: status.kind.count(&self.read()),
                is_listed: status.synced,
                is_not_served: status.is_not_served(),
                failing_for: status.failing_for(),
                problem: status.problem().map(|problem| problem.text),
            }
        };
        self.watches.iter().map(report).collect()
    }

    /// Returns the longest time for which a watch of the kinds has been failing; `None` if none is failing.
    pub fn failing_for(&self, kinds: &[Kind]) -> Option<Duration> {
        self.watches_of(kinds).filter_map(|watch| watch.borrow().failing_for()).max()
    }

    /// Returns whether the kind is optional and the API server does not serve it.
    pub(in crate::cluster) fn is_not_served(&self, kind: Kind) -> bool {
        self.watches_of(&[kind]).any(|watch| watch.borrow().is_not_served())
    }

    fn watches_of(&self, kinds: &[Kind]) -> impl Iterator<Item = &channel::Receiver<watch::WatchStatus>> {
        self.watches.iter().filter(|watch| kinds.contains(&watch.borrow().kind))
    }

    async fn wait_until(&self, kinds: &[Kind], holds: impl Fn(&watch::WatchStatus) -> bool) {
        for watch in self.watches_of(kinds) {
            let ended = watch.clone().wait_for(&holds).await.is_err();
            if ended {
                // The process ends when a watch ends, so this wait need not end.
                std::future::pending::<()>().await;
            }
        }
    }
}
