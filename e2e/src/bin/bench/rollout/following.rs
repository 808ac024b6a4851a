//! Observes restarts of Deployments through a watch, for any cause.
//!
//! * In: the Deployments of a namespace, from now on. Out: for each restart, when the template changed, when the
//!   rollout was complete, and when the operator reported it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use tokio::{sync::Notify, task::JoinSet, time::timeout};

const PATIENCE: Duration = Duration::from_secs(600);
const STATE: &str = "config.linkerd.io/rollout-state";

pub(crate) struct Following {
    known: Arc<Mutex<HashMap<String, Known>>>,
    changed: Arc<Notify>,
    _watch: JoinSet<()>,
}

#[derive(Default)]
struct Known {
    /// The annotations of its template.
    template: Option<BTreeMap<String, String>>,
    is_settled: bool,
    restarts: Vec<FollowedRestart>,
}

/// A restart, which begins when the template changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FollowedRestart {
    pub(crate) begun: Instant,
    /// The time at which all replicas were updated and available.
    pub(crate) settled: Option<Instant>,
    /// The time at which the operator wrote that the workload is up to date.
    pub(crate) finished: Option<Instant>,
}

// === impl Following ===

impl Following {
    pub(crate) fn start(deployments: Api<Deployment>) -> Self {
        let known = Arc::<Mutex<HashMap<String, Known>>>::default();
        let changed = Arc::<Notify>::default();
        let mut watch = JoinSet::new();
        watch.spawn({
            let (known, changed) = (Arc::clone(&known), Arc::clone(&changed));
            async move {
                let changes = watcher(deployments, watcher::Config::default()).default_backoff().applied_objects();
                let mut changes = std::pin::pin!(changes);
                while let Some(change) = changes.next().await {
                    // The watcher retries errors itself.
                    let Ok(deployment) = change else { continue };
                    locked(&known).entry(deployment.name_any()).or_default().observe(&deployment);
                    changed.notify_waiters();
                }
            }
        });
        Self { known, changed, _watch: watch }
    }

    /// Discards the observed restarts.
    pub(crate) fn forget(&self) {
        locked(&self.known).values_mut().for_each(|known| known.restarts.clear());
    }

    pub(crate) fn restarts(&self) -> HashMap<String, Vec<FollowedRestart>> {
        locked(&self.known).iter().map(|(name, known)| (name.clone(), known.restarts.clone())).collect()
    }

    /// Waits until there are this many Deployments, and all are complete.
    pub(crate) async fn all_settled(&self, count: usize) -> Result<()> {
        self.until(|known| known.len() == count && known.values().all(|known| known.is_settled)).await
    }

    /// Waits until the last restart of this Deployment is complete.
    pub(crate) async fn settled(&self, name: &str) -> Result<()> {
        let is_settled = |known: &Known| known.restarts.last().is_some_and(|restart| restart.settled.is_some());
        self.until(|known| known.get(name).is_some_and(is_settled)).await
    }

    async fn until(&self, condition: impl Fn(&HashMap<String, Known>) -> bool) -> Result<()> {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if condition(&locked(&self.known)) {
                    return;
                }
                changed.await;
            }
        };
        timeout(PATIENCE, wait).await.context("Deployments are not complete")
    }
}

// === impl Known ===

impl Known {
    fn observe(&mut self, deployment: &Deployment) {
        let spec = deployment.spec.as_ref();
        let template = spec.and_then(|spec| spec.template.metadata.as_ref()).and_then(|it| it.annotations.clone());
        let is_another = self.template.is_some() && self.template != template;
        self.template = template;
        self.is_settled = is_settled(deployment);
        let now = Instant::now();
        if is_another {
            self.restarts.push(FollowedRestart { begun: now, settled: None, finished: None });
        }
        let Some(restart) = self.restarts.last_mut() else { return };
        if self.is_settled {
            restart.settled.get_or_insert(now);
        }
        if restart.settled.is_some() && deployment.annotations().get(STATE).is_some_and(|state| state == "updated") {
            restart.finished.get_or_insert(now);
        }
    }
}

/// The criterion of `kubectl rollout status`.
fn is_settled(deployment: &Deployment) -> bool {
    let (Some(spec), Some(status)) = (&deployment.spec, &deployment.status) else { return false };
    let wanted = spec.replicas.unwrap_or(1);
    let counts = [status.replicas, status.updated_replicas, status.available_replicas];
    status.observed_generation == deployment.metadata.generation
        && counts.iter().all(|count| count.unwrap_or_default() == wanted)
}

fn locked(known: &Mutex<HashMap<String, Known>>) -> MutexGuard<'_, HashMap<String, Known>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn deployment(restarted: &str, available: i64, state: &str) -> Deployment {
        let object: Value = json!({
            "metadata": {"name": "web", "generation": 2, "annotations": {STATE: state}},
            "spec": {"replicas": 1, "selector": {}, "template": {"metadata": {"annotations": {"restarted": restarted}}}},
            "status": {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": available},
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_restart_lasts_from_its_template_to_its_last_replica() {
        let mut known = Known::default();
        for (restarted, available, state) in [("a", 1, "updated"), ("b", 0, "updating"), ("b", 1, "updating")] {
            known.observe(&deployment(restarted, available, state));
        }
        let [restart] = known.restarts[..] else { panic!("{:?}", known.restarts) };
        assert!(restart.settled.is_some() && restart.finished.is_none());
        known.observe(&deployment("b", 1, "updated"));
        assert!(known.restarts[0].finished.is_some());
    }
}
