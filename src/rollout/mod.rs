//! Rollouts: restart workloads, a few at a time, until every selected proxy runs with the configuration in effect.
//!
//! ```text
//!   controller ──RolloutTarget──▶ engine: dirty workload ─▶ assess (pure) ─▶ RolloutSchedule ─▶ RolloutSteps (pure) ─▶ restart ──▶ API server
//!       ▲                           │                                                                                             │
//!       └──────RolloutProgress──────┘ ◀────────────────────── cluster: Pods, workloads, budgets ◀─────────────────────────────────┘
//! ```
//!
//! In: the target, which is derived from the LinkerdConfig in effect and its status; every Pod and workload in the
//! cluster state. Out: an annotation on the Pod template of each restarted workload, evictions, the progress. Always
//! holds: the record of a rollout is on its workloads, so a new leader continues where the previous one stopped; a
//! workload is restarted again for the same key only if Pods are still out of date, and a bounded number of times; only
//! workloads that opted in are restarted, and no restart begins while a gate is closed.

pub mod assess;
#[cfg(test)]
mod canary_tests;
mod collector;
mod control_plane;
mod engine;
mod events;
pub mod gate;
pub mod key;
mod no_progress;
mod observer;
pub mod progress;
mod publisher;
mod restart;
pub mod schedule;
pub mod step;
pub mod target;
#[cfg(test)]
pub(crate) mod testing;
pub mod totals;
pub mod trust;
pub mod window;

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::observer::RolloutObserver;
use self::{
    assess::{WorkloadFacts, assess, selection::LabelFilter, workload_state::Assessment},
    collector::RolloutCollector,
    engine::Engine,
    observer::DirtyWorkloads,
    progress::RolloutProgress,
    publisher::LatestProgress,
    restart::Restarter,
    target::{ConfigReference, RolloutTarget},
    window::MaintenanceWindows,
};
use crate::{
    api::{LinkerdConfigSpec, LinkerdConfigStatus},
    cluster::{
        Cluster, State,
        index::{selector::Labels, workload_key::WorkloadKey},
        kinds::{linkerd_config::LinkerdConfig, pod::Pod},
    },
    controller::ControllerDeps,
    lease::Fence,
    queue::WorkQueue,
    tasks::Tasks,
    values::{Path, Problem},
};

/// Returns the workloads of a namespace that have Pods or create them, in the order in which they are restarted.
/// Yields, and releases the lock of the state, after a bounded number of Pods.
pub async fn workloads_in(cluster: &Cluster, namespace: &Arc<str>) -> BTreeSet<WorkloadKey> {
    DirtyWorkloads::InNamespace(Arc::clone(namespace)).look_up(cluster).await
}

/// The controller's handle to the engine.
pub(crate) struct Rollouts {
    targets: watch::Sender<Option<Arc<RolloutTarget>>>,
    latest: Arc<LatestProgress>,
}

impl Rollouts {
    /// Starts the engine. When `stop` is cancelled, it finishes the write in progress and ends.
    ///
    /// # Errors
    /// When the metrics are registered already.
    pub(crate) fn spawn(
        deps: &ControllerDeps,
        queue: &Arc<WorkQueue>,
        observer: Arc<RolloutObserver>,
        fence: Fence,
        stop: CancellationToken,
        tasks: &mut Tasks,
    ) -> prometheus::Result<Self> {
        let (targets, target) = watch::channel(None);
        let latest = Arc::<LatestProgress>::default();
        deps.registry.register(Box::new(RolloutCollector::new(Arc::clone(&latest))?))?;
        let restarter = Restarter::new(&deps.client, fence, &deps.registry)?;
        let engine = Engine::new(deps, queue, observer, target, Arc::clone(&latest), restarter);
        tasks.spawn("linkerd-config-rollouts", engine.run(stop));
        Ok(Self { targets, latest })
    }

    /// Returns a handle without an engine.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        Self { targets: watch::channel(None).0, latest: Arc::default() }
    }

    #[cfg(test)]
    pub(crate) fn target_for_test(&self) -> Option<Arc<RolloutTarget>> {
        self.targets.borrow().clone()
    }

    /// Publishes a progress. Returns whether it differs from the previous one.
    #[cfg(test)]
    pub(crate) fn set_progress_for_test(&self, progress: RolloutProgress) -> bool {
        let is_new = self.latest.get().as_deref() != Some(&progress);
        self.latest.set(Some(Arc::new(progress)));
        is_new
    }

    /// Sets the target of the engine.
    pub(crate) fn set_target(&self, target: RolloutTarget) {
        self.targets.send_if_modified(|known| {
            let is_new = known.as_deref() != Some(&target);
            if is_new {
                *known = Some(Arc::new(target));
            }
            is_new
        });
    }

    /// Ends the rollout of a resource that is not in effect any more. The rollout of another resource continues.
    pub(crate) fn end(&self, config: &str) {
        self.targets.send_if_modified(|known| known.take_if(|known| *known.config.name == *config).is_some());
    }

    /// Returns the progress of a target; `None` before the engine has assessed the workloads for it. A change of only
    /// the selection or the policy is another target, although its key is the same.
    pub(crate) fn progress(&self, target: &RolloutTarget) -> Option<Arc<RolloutProgress>> {
        self.latest.get().filter(|progress| progress.target.assesses_like(target))
    }

    /// Whether workloads failed with the configuration in effect, and the policy requires a rollback.
    pub(crate) fn requires_rollback(&self, config: &LinkerdConfig, status: &LinkerdConfigStatus) -> bool {
        let hash = status.rollout.as_ref().and_then(|rollout| rollout.hash.as_deref());
        let requires = |progress: &Arc<RolloutProgress>| {
            let target = &progress.target;
            progress.requires_rollback
                && target.config.name == config.name
                && hash.is_some_and(|hash| target.key.is_of(hash))
        };
        self.latest.get().is_some_and(|progress| requires(&progress))
    }

    /// Returns the progress for a canary with this injection hash; `None` before the engine has assessed the workloads
    /// for it, with the present canary namespaces and rollout policy.
    pub(crate) fn canary_progress(
        &self,
        config: &LinkerdConfig,
        term: u64,
        hash: &str,
    ) -> Option<Arc<RolloutProgress>> {
        let namespaces = LabelFilter::of(Some(&config.spec.canary.as_ref()?.namespace_selector));
        let is_current = |target: &RolloutTarget| {
            let canary = target.canary.as_ref().filter(|canary| canary.namespaces == namespaces);
            canary.and_then(|canary| canary.target.proxies.injection_hash.as_deref()) == Some(hash)
                && target.config == ConfigReference::of(config)
                && target.term == term
                && target.rollout == config.spec.rollout
        };
        self.latest.get().filter(|progress| is_current(&progress.target))
    }
}

/// Returns the problems of `spec.rollout` that the schema does not detect.
pub fn problems(spec: &LinkerdConfigSpec) -> Vec<Problem> {
    let unclear = spec.rollout.window.as_ref().and_then(|window| MaintenanceWindows::parse(window).err());
    let path = Path::from(&["spec", "rollout", "window"][..]);
    unclear.into_iter().map(|reason| Problem { path: path.clone(), value: String::new(), reason }).collect()
}

/// Assesses a workload; `None` if it has neither a resource nor Pods. The cost is proportional to its Pods.
pub fn assess_workload(state: &State, workload: &WorkloadKey, target: &RolloutTarget) -> Option<Assessment> {
    let resource = state.apps_workload(workload);
    let pods: Vec<Arc<Pod>> = state.pods_of(workload).cloned().collect();
    if resource.is_none() && pods.is_empty() {
        return None;
    }
    let blocks =
        |labels: &Labels| state.disruption_budgets.selecting(&workload.namespace, labels).any(|budget| !budget.allows);
    // The Pods of a ReplicaSet have equal labels, and a namespace may have thousands of budgets.
    let distinct = || pods.iter().map(|pod| &pod.labels).collect::<HashSet<_>>();
    let is_blocked = target.rollout.respect_pdb && distinct().into_iter().any(blocks);
    let facts = WorkloadFacts {
        workload,
        resource: resource.map(|resource| &**resource),
        namespace: state.namespaces.find("", &workload.namespace).map(|namespace| &**namespace),
        pods: &pods,
        is_blocked,
    };
    let scoped = facts.namespace.map_or(target, |namespace| target.of_namespace(namespace));
    Some(Assessment { is_canary: !std::ptr::eq(scoped, target), ..assess(&facts, scoped) })
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
