//! The LinkerdConfig controller: writes the mesh's proxy configuration that a resource declares.
//!
//! ```text
//! cluster ──WorkQueue──▶ Controller ──▶ reconcile: State ─▶ plan (pure) ─▶ apply ──▶ API server
//!                                                   └─▶ status, events (pure) ──▶ status, Events      (while leading)
//!       injection_probe: probes of the ready replicas ──┤
//!              canary: a document that some namespaces get first
//! ```
//!
//! In: LinkerdConfigs, the ConfigMap that they configure, the trust anchors, the answers of the injectors. Out: writes
//! of `data.values`, ControllerRevisions of the installer's document, statuses, Events. Always holds: a path that the
//! resource does not declare keeps the installer's value; a document with problems is not written, and one that
//! injectors deny and never accepted is rolled back; the base is saved before the first write; without a change nothing
//! is written. Only [`values`](crate::values) reads and writes YAML and defines the types of Linkerd's document.
//! [`documents::overlay`] maps the fields of the resource to paths in it. Two other modules read single paths:
//! [`documents::drift`] reads `cliVersion`, and [`documents::skew`] reads versions and `cniEnabled`.

mod apply;
mod canary;
mod collector;
mod deletion;
mod dereference;
pub mod documents;
mod events;
mod installers;
mod observer;
pub mod plan;
mod reconcile;
mod reconcile_cache;
pub mod revert;
pub mod rollout_target;
pub mod status;
pub mod validation;
pub mod verdict;
mod writer;

use std::{sync::Arc, time::Duration};

use prometheus::{IntCounterVec, register_int_counter_vec_with_registry};
use tokio_util::sync::CancellationToken;

pub(crate) use self::{
    canary::{active_canary, kept_canary},
    documents::base::baseline,
};
use self::{
    collector::LinkerdConfigCollector, deletion::release::Releaser, reconcile_cache::ReconcileCache,
    writer::ConfigWriter,
};
pub use self::{observer::LinkerdConfigObserver, validation::LinkerdConfigValidator};
use crate::{
    api::{self, NamespacedName},
    cluster::index::active_config,
    controller::{self, ControllerDeps, LeaderGate, NextReconcile, Reconciler},
    events::Events,
    injection_probe::Injectors,
    lease::Fence,
    rollout::{RolloutObserver, Rollouts},
    tasks::Tasks,
    write::WriteError,
};

/// The Lease of the replica that writes configuration.
pub const LEASE: &str = "linkerd-operator";
/// The name of the queue in metrics.
pub const QUEUE: &str = "linkerdconfig_controller_workqueue";

const CONCURRENCY: u16 = 4;
const BACKOFF_BASE: Duration = Duration::from_millis(200);
const BACKOFF_CAP: Duration = Duration::from_secs(60);

/// The namespaces of the control plane and of the operator.
#[derive(Clone, Debug)]
pub struct Namespaces {
    pub control_plane: Arc<str>,
    /// Workloads in this namespace are never restarted.
    pub operator: Arc<str>,
}

struct LinkerdConfigReconciler {
    gate: LeaderGate,
    writer: ConfigWriter,
    injectors: Injectors,
    rollouts: Rollouts,
    events: Events,
    namespaces: Namespaces,
    cache: ReconcileCache,
    drifts: IntCounterVec,
}

/// Starts the controller. When `stop` is cancelled, it finishes the current write and ends.
///
/// # Errors
/// When the metrics are already registered.
pub fn spawn(
    deps: &ControllerDeps,
    observer: &LinkerdConfigObserver,
    rollout_observer: Arc<RolloutObserver>,
    namespaces: Namespaces,
    stop: CancellationToken,
    tasks: &mut Tasks,
) -> prometheus::Result<()> {
    let drifts = register_int_counter_vec_with_registry!(
        "linkerd_operator_linkerdconfig_drift_total",
        "Changes to Linkerd's configuration by writers other than its installer, by manager and action",
        &["manager", "action"],
        &deps.registry
    )?;
    deps.registry.register(Box::new(LinkerdConfigCollector::new(&deps.cluster)?))?;
    let releaser = Releaser::new(&deps.client, &deps.cluster, &namespaces.control_plane);
    tasks.spawn("linkerd-config-release", releaser.run(Arc::clone(&observer.released), stop.clone()));
    let fence = Fence::new(deps.leadership.clone(), stop.clone());
    let context = Arc::new(LinkerdConfigReconciler {
        gate: LeaderGate::new(deps, observer::KINDS, &observer.queue),
        writer: ConfigWriter::new(&deps.client, &namespaces.control_plane, fence.clone(), &deps.registry)?,
        injectors: Injectors::spawn(deps, &observer.queue, fence.clone(), stop.clone(), tasks)?,
        rollouts: Rollouts::spawn(deps, &observer.queue, rollout_observer, fence, stop.clone(), tasks)?,
        events: deps.events.clone(),
        namespaces,
        cache: ReconcileCache::default(),
        drifts,
    });
    tasks.spawn("linkerd-config-controller", controller::run(context, observer.configs.store(), CONCURRENCY, stop));
    Ok(())
}

// === impl LinkerdConfigReconciler ===

impl Reconciler for LinkerdConfigReconciler {
    type Object = api::LinkerdConfig;
    type Error = WriteError;
    const BACKOFF: Duration = BACKOFF_BASE;
    const FAILED: &'static str = "could not reconcile the LinkerdConfig, retrying";

    fn gate(&self) -> &LeaderGate {
        &self.gate
    }

    fn begin(&self) {
        self.cache.clear();
        self.gate.queue.forget_all_failures();
    }

    async fn reconcile(&self, key: &NamespacedName) -> Result<NextReconcile, WriteError> {
        match self.reconcile_resource(&key.name).await {
            // A replica reconciles every resource when it becomes the leader.
            Err(WriteError::NotLeading) => Ok(NextReconcile::OnChange),
            result => result,
        }
    }

    fn retry_after(&self, error: &WriteError) -> Duration {
        error.retry_after()
    }

    fn forget(&self, key: &NamespacedName) {
        self.stand_down(&key.name);
        let state = self.gate.cluster.read();
        let is_target = |config_map: &Arc<str>| {
            let target = NamespacedName::new(Arc::clone(&self.namespaces.control_plane), Arc::clone(config_map));
            active_config::of(&state.linkerd_configs, &target).is_some()
        };
        self.cache.forget(&key.name, is_target);
    }
}

#[cfg(test)]
mod walk_tests;
