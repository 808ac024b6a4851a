//! Rollouts: every opted-in proxy comes to run with the wanted configuration, a few workloads at a time.
//!
//! ```text
//!   controller ──Goal──▶ engine: dirty workload ─▶ assess (pure) ─▶ Board ─▶ Steps (pure) ─▶ restart ──▶ API server
//!       ▲                   │                                                                                │
//!       └──Progress─────────┘ ◀───────────────────── cluster: Pods, workloads, budgets ◀─────────────────────┘
//! ```
//!
//! In: what the LinkerdConfig in effect wants, as its status says it; every Pod and workload, through the cluster state. Out: one
//! annotation on the template of a workload at a time, evictions, how far it is. Always holds: what is known of a rollout is
//! written on its workloads, so whoever leads goes on where another stopped; no workload is restarted twice for one thing;
//! nothing is restarted that did not opt in, and nothing begins while anything says stop.

pub mod assess;
pub mod board;
mod census;
mod cron;
mod engine;
mod exports;
#[cfg(test)]
mod fixture;
pub mod goal;
mod injection;
mod observer;
pub mod outdated;
#[cfg(test)]
mod properties;
mod restart;
pub mod selection;
pub mod state;
pub mod status;
pub mod verdict;
pub mod window;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::observer::RolloutObserver;
use self::{
    assess::{Assessment, Facts, assess},
    engine::Engine,
    exports::Exports,
    goal::Goal,
    restart::Restarter,
    verdict::Progress,
    window::Windows,
};
use super::values::{Path, Problem};
use crate::{
    api::{LinkerdConfigSpec, LinkerdConfigStatus},
    cluster::{
        State,
        index::workload_key::WorkloadKey,
        kinds::{linkerd_config::LinkerdConfig, pod::Pod},
    },
    controller::ControllerDeps,
    lease::Fence,
    queue::WorkQueue,
    tasks::Tasks,
};

/// The controller's end of it.
pub(super) struct Rollouts {
    goals: watch::Sender<Option<Arc<Goal>>>,
    latest: Arc<Latest>,
}

/// How far it was last.
#[derive(Default)]
pub(super) struct Latest(Mutex<Option<Arc<Progress>>>);

impl Rollouts {
    /// Starts the engine. It ends after the write under way when `stop` is cancelled.
    ///
    /// # Errors
    /// When the metrics are registered already.
    pub(super) fn spawn(
        deps: &ControllerDeps,
        queue: &Arc<WorkQueue>,
        observer: Arc<RolloutObserver>,
        fence: Fence,
        stop: CancellationToken,
        tasks: &mut Tasks,
    ) -> prometheus::Result<Self> {
        let (goals, goal) = watch::channel(None);
        let latest = Arc::<Latest>::default();
        deps.registry.register(Box::new(Exports::new(Arc::clone(&latest))?))?;
        let restarter = Restarter::new(&deps.client, fence, &deps.registry)?;
        let engine = Engine::new(deps, queue, observer, goal, Arc::clone(&latest), restarter);
        tasks.spawn("linkerd-config-rollouts", engine.run(stop));
        Ok(Self { goals, latest })
    }

    /// What is wanted from now on.
    pub(super) fn want(&self, goal: Goal) {
        self.goals.send_if_modified(|known| {
            let is_new = known.as_deref() != Some(&goal);
            if is_new {
                *known = Some(Arc::new(goal));
            }
            is_new
        });
    }

    /// How far it is with what a resource and its status ask for; `None` where nobody has looked yet.
    pub(super) fn progress(&self, goal: &Goal) -> Option<Arc<Progress>> {
        let is_of_it = |progress: &Arc<Progress>| progress.goal.config == goal.config && progress.goal.key == goal.key;
        self.latest.get().filter(is_of_it)
    }

    /// Whether workloads failed with what is in effect, and the resource wants it taken back.
    pub(super) fn wants_rollback(&self, config: &LinkerdConfig, status: &LinkerdConfigStatus) -> bool {
        let hash = status.rollout.as_ref().and_then(|rollout| rollout.hash.as_deref());
        let wants = |progress: &Arc<Progress>| {
            let goal = &progress.goal;
            progress.wants_rollback && goal.config == config.name && hash.is_some_and(|hash| goal.key.is_of(hash))
        };
        self.latest.get().is_some_and(|progress| wants(&progress))
    }
}

impl Latest {
    fn get(&self) -> Option<Arc<Progress>> {
        self.0.lock().clone()
    }

    fn set(&self, progress: Option<Arc<Progress>>) {
        *self.0.lock() = progress;
    }
}

/// What of `spec.rollout` cannot be followed, though the schema let it in.
pub fn problems(spec: &LinkerdConfigSpec) -> Vec<Problem> {
    let unclear = spec.rollout.window.as_ref().and_then(|window| Windows::parse(window).err());
    let path = Path::from(&["spec", "rollout", "window"][..]);
    unclear.into_iter().map(|reason| Problem { path: path.clone(), value: String::new(), reason }).collect()
}

/// How a workload stands; `None` for one that is no more. Costs what its Pods cost.
pub fn look(state: &State, workload: &WorkloadKey, goal: &Goal) -> Option<Assessment> {
    let resource = state.apps_workloads.get(workload);
    let pods: Vec<Arc<Pod>> = state.pods_of(workload).cloned().collect();
    if resource.is_none() && pods.is_empty() {
        return None;
    }
    let blocks =
        |pod: &Pod| state.disruption_budgets.selecting(&workload.namespace, &pod.labels).any(|budget| !budget.allows);
    let is_blocked = goal.rollout().respect_pdb && pods.iter().any(|pod| blocks(pod));
    let facts = Facts {
        workload,
        resource: resource.map(|resource| &**resource),
        namespace: state.namespaces.find("", &workload.namespace).map(|namespace| &**namespace),
        pods: &pods,
        is_blocked,
    };
    Some(assess(&facts, goal))
}
