//! What one API server says: every watched kind, reduced to what its readers need, with the lookups that join kinds.
//!
//! In: one watch per kind. Out: the [`State`]; and each [`Change`], for the [`Observer`]s that read its kind. Always holds: only the watches
//! write the state; the lock is held for the work of one event; and before a kind was listed, nothing may be concluded from
//! what the state does not hold of it. The cache knows none of its consumers: what a change means is theirs to decide.

mod change;
pub mod index;
pub mod kinds;
mod problems;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod watch;

use std::sync::Arc;

use kube::Client;
use parking_lot::{RwLock, RwLockReadGuard};
use prometheus::Registry;
use tokio::sync::{Notify, watch as channel};

use crate::tasks::Tasks;
pub use change::{Diff, Observer, WatchScope};
pub use kinds::{Change, Kind, Projected, State, Watched};
pub use problems::Problems;
pub use watch::WatchProblem;

/// A handle to the state of one cluster, and to how far it is known.
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
    /// When the metrics are registered already.
    pub fn spawn(
        client: &Client,
        observers: &[Arc<dyn Observer>],
        registry: &Registry,
        tasks: &mut Tasks,
    ) -> prometheus::Result<Self> {
        let state = Arc::<RwLock<State>>::default();
        let relist = Arc::new(Notify::new());
        let metrics = watch::WatchMetrics::register(registry, &state)?;
        let mut watches = Vec::new();
        for kind in Kind::ALL {
            let Some(scope) = WatchScope::of(*kind, observers) else { continue };
            let context = watch::WatchContext {
                state: Arc::clone(&state),
                observers: observers.iter().filter(|observer| observer.kinds().contains(kind)).cloned().collect(),
                relist: Arc::clone(&relist),
                metrics: metrics.clone(),
            };
            watches.push(kind.visit(watch::Spawn { context, client, scope, tasks }));
        }
        Ok(Self { state, watches: watches.into(), relist })
    }

    /// The state as it is now. Hold the guard for a few lookups, never across an await.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// Resolves when each of the kinds has been listed once.
    pub async fn synced(&self, kinds: &[Kind]) {
        self.wait_until(kinds, |status| status.synced).await;
    }

    /// Resolves when no watch of the kinds is failing; one that is failing lists its kind again at once, and so misses nothing.
    pub async fn recovered(&self, kinds: &[Kind]) {
        self.relist.notify_waiters();
        self.wait_until(kinds, watch::WatchStatus::is_followed).await;
    }

    /// Whether each of the kinds is followed right now.
    pub fn follows(&self, kinds: &[Kind]) -> bool {
        self.watches_of(kinds).all(|watch| watch.borrow().is_followed())
    }

    /// Whether objects of the kinds that the state does not hold do not exist: each kind was listed once, or is not served.
    pub fn knows(&self, kinds: &[Kind]) -> bool {
        self.watches_of(kinds).all(|watch| watch.borrow().is_known())
    }

    /// What is not known yet or no longer followed, each with a sentence for the reader of `/ready`, and whether
    /// readiness has to wait for it. Only its own job waits for a kind that the API server does not serve.
    pub fn problems(&self) -> Vec<WatchProblem> {
        self.watches.iter().filter_map(|watch| watch.borrow().problem()).collect()
    }

    fn watches_of(&self, kinds: &[Kind]) -> impl Iterator<Item = &channel::Receiver<watch::WatchStatus>> {
        self.watches.iter().filter(|watch| kinds.contains(&watch.borrow().kind))
    }

    async fn wait_until(&self, kinds: &[Kind], is: impl Fn(&watch::WatchStatus) -> bool) {
        for watch in self.watches_of(kinds) {
            let ended = watch.clone().wait_for(&is).await.is_err();
            if ended {
                // The end of a watch ends the process, and this wait with it.
                std::future::pending::<()>().await;
            }
        }
    }
}
