//! What one API server says: every watched kind, reduced to what its readers need, with the lookups that join kinds.
//!
//! In: one watch per kind ([`watch`]). Out: the [`State`], and the Services that a change affects, marked on
//! [`Triggers`]. Always holds: nobody but the watches writes the state; the lock is held for the work of one event; and
//! before [`Cluster::synced`] nothing may be concluded from what the state does not hold.

pub mod object;
pub mod selector;
pub mod service;
pub mod slice;
pub mod trigger;
mod watch;
pub mod workload;

use std::{fmt::Debug, sync::Arc};

use kube::{Api, Client, Resource, runtime::watcher};
use parking_lot::{RwLock, RwLockReadGuard};
use prometheus::Registry;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch as channel};

use crate::tasks::Tasks;
pub use watch::{Kind, Problem};
use {
    object::NamespacedName,
    service::{Service, Services},
    slice::{EndpointSlice, Slices},
    trigger::Triggers,
    workload::{Workload, Workloads},
};

/// Services whose endpoints may have to change.
pub type Affected = Vec<NamespacedName>;

/// A handle to the state of one cluster, and to how far it is known.
#[derive(Clone)]
pub struct Cluster {
    state: Arc<RwLock<State>>,
    watches: Arc<[channel::Receiver<watch::Status>]>,
    relist: Arc<Notify>,
}

/// What the watches have said so far.
#[derive(Default)]
pub struct State {
    pub services: Services,
    pub slices: Slices,
    pub workloads: Workloads,
}

/// A watched kind: how its objects are reduced, and what they change in the [`State`].
pub trait Projected: Sized + Send + 'static {
    /// The object as the API server sends it: only the fields that [`Projected::project`] reads.
    type Wire: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static;
    const KIND: Kind;

    /// Total: whatever decoded as [`Projected::Wire`] becomes an object.
    fn project(wire: Self::Wire) -> Self;
    /// Puts the object in the place of the one with its key. An object that did not change affects nothing.
    fn apply(self, state: &mut State) -> Affected;
    fn remove(key: &NamespacedName, state: &mut State) -> Affected;
    /// The keys of all objects that the state holds.
    fn keys(state: &State) -> Vec<NamespacedName>;
    /// A list is complete.
    fn listed(_state: &mut State) {}
}

// === impl Cluster ===

impl Cluster {
    /// Starts the watches that the ExternalWorkload controller reads: one task per kind.
    pub fn spawn(
        client: &Client,
        triggers: &Arc<Triggers>,
        registry: &Registry,
        tasks: &mut Tasks,
    ) -> prometheus::Result<Self> {
        let state = Arc::<RwLock<State>>::default();
        let metrics = watch::Metrics::register(registry, &state)?;
        let services: Api<object::Guarded<service::ServiceObject>> = Api::all(client.clone());
        let slices: Api<object::Guarded<EndpointSlice>> = Api::all(client.clone());
        let workloads: Api<object::Guarded<crate::api::ExternalWorkload>> = Api::all(client.clone());
        let every = watcher::Config::default;
        let managed = every().labels(&slice::managed_selector());
        let relist = Arc::new(Notify::new());
        let watch = watch::Context {
            state: Arc::clone(&state),
            triggers: Arc::clone(triggers),
            relist: Arc::clone(&relist),
            metrics,
        };
        let watches = [
            watch.spawn::<Service>(services, every(), tasks),
            watch.spawn::<EndpointSlice>(slices, managed, tasks),
            watch.spawn::<Workload>(workloads, every(), tasks),
        ];
        Ok(Self { state, watches: Arc::new(watches), relist })
    }

    /// The state as it is now. Hold the guard for a few lookups, never across an await.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// Resolves when every watch has listed its kind once.
    pub async fn synced(&self) {
        self.all_watches(|status| status.synced).await;
    }

    /// Resolves when no watch is failing; one that is lists its kind anew at once, and so misses nothing.
    pub async fn recovered(&self) {
        self.relist.notify_waiters();
        self.all_watches(watch::Status::is_followed).await;
    }

    async fn all_watches(&self, are: impl Fn(&watch::Status) -> bool) {
        for watch in self.watches.iter() {
            let ended = watch.clone().wait_for(&are).await.is_err();
            if ended {
                // It takes the process with it, so this wait does too.
                std::future::pending::<()>().await;
            }
        }
    }

    /// What is not known yet or no longer followed, each with a sentence for the reader of `/ready`, and whether
    /// readiness has to wait for it. A kind that the API server does not have is waited for by its job alone.
    pub fn problems(&self) -> Vec<Problem> {
        self.watches.iter().filter_map(|watch| watch.borrow().problem()).collect()
    }
}
