//! The task that rolls out a configuration.
//!
//! In: workloads that changed, the [`RolloutTarget`], the time. Out: steps, one at a time, and the progress. Always
//! holds: only this task makes decisions, one at a time, so that no limit is exceeded; it acts only in the leadership
//! term of its target, and only after every watch works.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::{
    assess::workload_state::Assessment,
    assess_workload, control_plane,
    events::WorkloadEvents,
    gate::Gate,
    no_progress::NoProgressTimer,
    observer::{KINDS, RolloutObserver},
    progress::{is_halted, rollout_progress},
    publisher::{LatestProgress, ProgressPublisher},
    restart::Restarter,
    schedule::{RolloutLimits, RolloutSchedule},
    step::RolloutStep,
    target::{ConfigReference, RolloutTarget},
    window::WindowCache,
};
use crate::{
    api::linkerd_config::ConditionReason,
    cluster::{
        Cluster,
        index::{active_config, workload_key::WorkloadKey},
        kinds::{apps_workload::AppsWorkload, pod::PodPhase},
    },
    contain::{Work, contain},
    controller::ControllerDeps,
    lease::Leadership,
    queue::WorkQueue,
    retry::backoff,
    write::WriteError,
};

/// Delay of the first restart or eviction of a term: the watches may not have delivered the last writes of the previous
/// leader yet.
const PREDECESSOR: Duration = Duration::from_secs(2);
const BACKOFF_BASE: Duration = Duration::from_millis(200);
const BACKOFF_CAP: Duration = Duration::from_secs(60);
/// Workloads that are assessed before the task yields.
const AT_ONCE: usize = 256;

pub(super) struct Engine {
    cluster: Cluster,
    leadership: Leadership,
    observer: Arc<RolloutObserver>,
    targets: watch::Receiver<Option<Arc<RolloutTarget>>>,
    term: ActiveTerm,
    /// All workloads, with or without Pods of the mesh.
    known: HashSet<WorkloadKey>,
    schedule: RolloutSchedule,
    window: WindowCache,
    no_progress_timer: NoProgressTimer,
    restarter: Restarter,
    events: WorkloadEvents,
    publisher: ProgressPublisher,
}

/// The term of leadership in which the engine acts.
#[derive(Default)]
struct ActiveTerm {
    number: u64,
    /// The earliest time of a restart.
    starts: Option<Instant>,
}

impl Engine {
    pub(super) fn new(
        deps: &ControllerDeps,
        queue: &Arc<WorkQueue>,
        observer: Arc<RolloutObserver>,
        targets: watch::Receiver<Option<Arc<RolloutTarget>>>,
        latest: Arc<LatestProgress>,
        restarter: Restarter,
    ) -> Self {
        Self {
            cluster: deps.cluster.clone(),
            leadership: deps.leadership.clone(),
            observer,
            targets,
            term: ActiveTerm::default(),
            known: HashSet::new(),
            schedule: RolloutSchedule::default(),
            window: WindowCache::default(),
            no_progress_timer: NoProgressTimer::default(),
            restarter,
            events: WorkloadEvents::new(&deps.events),
            publisher: ProgressPublisher::new(queue, latest),
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = self.cluster.synced(KINDS) => {}
            () = stop.cancelled() => return,
        }
        let mut target: Option<Arc<RolloutTarget>> = None;
        let mut next_run = None;
        // Set while watches fail. It resolves when they have listed again, which no change event reports.
        let mut recovery: Option<BoxFuture<'static, ()>> = None;
        loop {
            tokio::select! {
                dirty = self.observer.dirty.next() => {
                    for some in dirty.into_keys() {
                        for workload in some.look_up(&self.cluster).await {
                            self.assess(&workload, target.as_deref());
                        }
                    }
                }
                changed = self.targets.changed() => {
                    if changed.is_err() {
                        // The controller has ended, because the process is stopping.
                        return;
                    }
                    let next = self.targets.borrow_and_update().clone();
                    tokio::select! {
                        () = self.retarget(target.as_deref(), next.as_deref()) => {}
                        () = stop.cancelled() => return,
                    }
                    target = next;
                }
                () = until(next_run) => {}
                () = recovered(&mut recovery) => recovery = None,
                () = stop.cancelled() => return,
            }
            next_run = match &target {
                Some(target) if self.may_act(target) => self.run_steps(target).await,
                _ => {
                    self.publisher.clear();
                    None
                }
            };
            if self.cluster.follows(KINDS) {
                recovery = None;
            } else if recovery.is_none() {
                let cluster = self.cluster.clone();
                recovery = Some(async move { cluster.recovered(KINDS).await }.boxed());
            }
        }
    }

    /// Whether this process leads in the term of the target, and its LinkerdConfig is in effect.
    fn may_act(&self, target: &RolloutTarget) -> bool {
        let ConfigReference { name, config_map, .. } = &target.config;
        let is_active = || active_config::is_active(&self.cluster.read().linkerd_configs, config_map, name);
        self.leadership.term() == Some(target.term) && is_active()
    }

    async fn retarget(&mut self, before: Option<&RolloutTarget>, after: Option<&RolloutTarget>) {
        let Some(after) = after else { return };
        if before.is_none_or(|before| before.key != after.key) {
            self.events.begin_key();
        }
        if self.term.number != after.term {
            self.cluster.recovered(KINDS).await;
            let now = Timestamp::now();
            self.term = ActiveTerm { number: after.term, starts: Some(Instant::now() + PREDECESSOR) };
            self.schedule.begin_term(now);
        }
        let window = after.window();
        if before.is_none_or(|before| before.window() != window) {
            self.window = WindowCache::new(window);
        }
        if before.is_some_and(|before| before.assesses_like(after)) {
            return;
        }
        let all: Vec<WorkloadKey> = self.known.iter().cloned().collect();
        for some in all.chunks(AT_ONCE) {
            for workload in some {
                self.assess(workload, Some(after));
            }
            tokio::task::yield_now().await;
        }
    }

    /// Assesses the current state of a workload, and updates the schedule.
    fn assess(&mut self, workload: &WorkloadKey, target: Option<&RolloutTarget>) {
        let now = Timestamp::now();
        let (assessment, resource) = {
            let state = self.cluster.read();
            let resource = state.apps_workload(workload).cloned();
            if resource.is_none() && state.pods_of(workload).next().is_none() {
                self.known.remove(workload);
                self.events.forget(workload);
                self.schedule.set(workload, None, now);
                return;
            }
            self.known.insert(workload.clone());
            let Some(target) = target else { return };
            if resource.as_ref().is_some_and(|resource| self.schedule.is_unseen(workload, &resource.version, now)) {
                return;
            }
            match contain(Work::Assessing, || assess_workload(&state, workload, target)) {
                Ok(assessment) => (assessment, resource),
                Err(panicked) => {
                    error!(%workload, %panicked, "could not assess a workload, keeping its last assessment");
                    return;
                }
            }
        };
        let skipped = assessment.as_ref().and_then(Assessment::skipped);
        self.schedule.set(workload, assessment, now);
        let (Some(why), Some(resource), Some(target)) = (skipped, resource, target) else { return };
        // A resource that was just deleted has no effect any more, and one that disables rollouts skips nothing.
        if self.may_act(target) && target.gates.disabled().is_none() {
            self.events.emit_skip(&resource, self.scoped(target, &resource), why);
        }
    }

    /// Applies the steps that are due, and publishes the progress. Returns when to run again.
    async fn run_steps(&mut self, target: &Arc<RolloutTarget>) -> Option<Instant> {
        let mut next_run;
        let mut gate;
        let mut next_window;
        loop {
            let now = Timestamp::now();
            (gate, next_window) = self.gate(target, now);
            if gate.as_ref().is_some_and(|gate| gate.reason == ConditionReason::RolloutDisabled) {
                next_run = None;
                break;
            }
            let next = self.schedule.next(&self.limits(target, gate.as_ref(), now), now);
            let waits = self.starts(target, now).filter(|starts| now < *starts);
            next_run = [next.look_again, next_window, waits].into_iter().flatten().min();
            if next.steps.is_empty() {
                break;
            }
            for step in next.steps {
                if !self.may_act(target) || !self.apply_step(target, step).await {
                    return None;
                }
            }
        }
        let now = Timestamp::now();
        let mut progress = rollout_progress(&self.schedule, target, gate.as_ref(), next_window);
        let check_again = self.no_progress_timer.check(&mut progress, &self.schedule, now);
        let publish_again = self.publisher.publish(progress);
        let next_run = [next_run, check_again].into_iter().flatten().min();
        let due = next_run.map(|at| Instant::now() + Duration::try_from(at.duration_since(now)).unwrap_or_default());
        [due, publish_again].into_iter().flatten().min()
    }

    /// Returns the closed gate, if any, and when the maintenance window opens or closes.
    fn gate(&mut self, target: &RolloutTarget, now: Timestamp) -> (Option<Gate>, Option<Timestamp>) {
        let gate = |reason, message: &str| Some(Gate { reason, message: message.to_owned() });
        let window = self.window.at(now);
        let changes = window.as_ref().and_then(|window| window.changes);
        let is_disabled = target.gates.disabled().is_some();
        let gate = if target.rollout.paused && !is_disabled {
            gate(ConditionReason::Paused, "spec.rollout.paused is true")
        } else if let Some(unapproved) = self.unapproved(target).filter(|_| !is_disabled) {
            Some(unapproved)
        } else if target.gates.closed.is_some() {
            target.gates.closed.clone()
        } else if !self.cluster.follows(KINDS) {
            gate(
                ConditionReason::WaitingForWatches,
                "a watch fails, so the state of the cluster is unknown: see /ready",
            )
        } else if let Some(message) = self.waits_for_control_plane(target) {
            gate(ConditionReason::WaitingForControlPlane, &message)
        } else if window.is_some_and(|window| !window.open) {
            gate(ConditionReason::OutsideWindow, "the maintenance window is closed")
        } else {
            None
        };
        (gate, changes)
    }

    /// Returns why the control plane has to be updated or restarted first: Linkerd supports proxies that are older than
    /// the control plane, not newer ones, and proxies with new trust anchors reject peers with the old ones.
    fn waits_for_control_plane(&self, target: &RolloutTarget) -> Option<String> {
        let namespace = &target.config.config_map.namespace;
        let state = self.cluster.read();
        let canary = target.canary.as_ref().map(|canary| &canary.target);
        for target in [target].into_iter().chain(canary) {
            let version = target.proxies.proxy_version.as_deref();
            if let Some(reason) = control_plane::not_ready_for(state.apps_workloads_in(namespace), version) {
                return Some(reason);
            }
        }
        // The control plane has to be restarted after the bundle was written.
        let bundle = target.proxies.trust.wanted.as_ref().filter(|_| self.schedule.totals.for_trust_roots > 0)?;
        let written = bundle.written?;
        let is_older = state.pods.of_control_plane(namespace).any(|pod| {
            let is_old = pod.created.is_some_and(|created| created < written);
            is_old && pod.injected.is_some() && !pod.terminating && pod.phase != PodPhase::Finished
        });
        is_older.then(|| "the trust anchors changed: restart the control plane first".to_owned())
    }

    /// Returns the closed gate if live Pods trust none of the anchors of the bundle in effect.
    fn unapproved(&self, target: &RolloutTarget) -> Option<Gate> {
        target.proxies.trust.gate(&self.schedule.totals.trust)
    }

    fn limits(&self, target: &RolloutTarget, gate: Option<&Gate>, now: Timestamp) -> RolloutLimits {
        let rollout = &target.rollout;
        let selected = usize::try_from(self.schedule.totals.workloads.selected).unwrap_or_default();
        let is_ready = self.starts(target, now).is_none_or(|starts| now >= starts);
        RolloutLimits {
            may_start: gate.is_none() && is_ready && !is_halted(&self.schedule, target),
            may_inject: target.gates.closed.is_none() && self.unapproved(target).is_none() && is_ready,
            at_once: target.max_concurrent(selected),
            at_once_in_namespace: target.max_concurrent_per_namespace(selected),
            interval: target.interval(),
            soak: rollout.soak(),
            deadline: rollout.progress_deadline(),
        }
    }

    /// Returns the earliest time of a restart.
    fn starts(&self, target: &RolloutTarget, now: Timestamp) -> Option<Timestamp> {
        self.term.starts.and_then(|term| start_of(term, now)).max(target.proxies.drift_ends())
    }

    /// Returns the target for the namespace of a workload.
    fn scoped<'a>(&self, target: &'a RolloutTarget, resource: &AppsWorkload) -> &'a RolloutTarget {
        let state = self.cluster.read();
        let namespace = state.namespaces.find("", &resource.workload.namespace);
        namespace.map_or(target, |namespace| target.of_namespace(namespace))
    }

    /// Writes a step. Returns whether further steps may follow.
    async fn apply_step(&mut self, target: &RolloutTarget, step: RolloutStep) -> bool {
        let workload = &step.workload;
        let resource = self.cluster.read().apps_workload(workload).cloned();
        let Some(resource) = resource else {
            self.schedule.set(workload, None, Timestamp::now());
            return true;
        };
        let target = self.scoped(target, &resource);
        let now = Timestamp::now();
        match self.restarter.apply(&resource, &step.action, &target.key, now).await {
            Ok(version) => {
                self.schedule.record_sent(&step, &version, now);
                self.no_progress_timer.note_step();
                self.events.emit_step(&resource, target, &step.action);
            }
            Err(WriteError::NotLeading) => return false,
            Err(error) => {
                // The workload changed after it was assessed. The watch delivers the change soon.
                if error.is_conflict() {
                    debug!(%workload, "a workload changed after it was assessed, retrying");
                } else {
                    warn!(%workload, %error, "could not update a workload, retrying");
                }
                let least = error.retry_after();
                let pause = |count| backoff(count, BACKOFF_BASE, BACKOFF_CAP).max(least).min(BACKOFF_CAP);
                let outcome_unknown = matches!(error, WriteError::TimedOut | WriteError::Transport(_));
                self.schedule.record_failure(workload, error.to_string(), outcome_unknown, now, pause);
            }
        }
        true
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

async fn recovered(recovery: &mut Option<BoxFuture<'static, ()>>) {
    match recovery {
        Some(recovery) => recovery.await,
        None => std::future::pending().await,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Returns the time of the wall clock at which a term starts, or `None` if it has started. A clock that is corrected
/// meanwhile delays no restart.
fn start_of(term: Instant, now: Timestamp) -> Option<Timestamp> {
    let left = term.saturating_duration_since(Instant::now());
    if left.is_zero() { None } else { now.checked_add(signed(left)).ok() }
}

#[cfg(test)]
mod tests {
    use kube::{Client, client::Body, runtime::watcher::Event};
    use serde_json::{Value, json};

    use super::*;
    use crate::{cluster::Kind, events::Events, lease::Fence, rollout::testing::World};

    fn mesh() -> Value {
        json!({"metadata": {"name": "mesh", "uid": "uid"}, "spec": {}})
    }

    /// Assesses the outdated Deployment `web`, patched with `over`, twice. Returns the notes of the Events.
    fn notes(over: &Value, change: impl FnOnce(&mut World)) -> Vec<String> {
        let mut world = World::outdated(over);
        world.feed.apply(Kind::LinkerdConfig, Event::Apply(mesh()));
        change(&mut world);
        let (events, mut notices) = Events::recorded();
        let service = tower::service_fn(|_: http::Request<Body>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(Body::empty()))
        });
        let deps = ControllerDeps {
            client: Client::new(service, "default"),
            cluster: world.feed.cluster.clone(),
            leadership: Leadership::for_test(),
            events,
            registry: prometheus::Registry::new(),
        };
        let queue = WorkQueue::new("test", &deps.registry).unwrap();
        let observer = RolloutObserver::new();
        let fence = Fence::new(Leadership::for_test(), CancellationToken::new());
        let restarter = Restarter::new(&deps.client, fence, &deps.registry).unwrap();
        let mut engine = Engine::new(&deps, &queue, observer, watch::channel(None).1, Arc::default(), restarter);
        for _ in 0..2 {
            engine.assess(&WorkloadKey::new("ns", "Deployment", "web"), Some(&world.target));
        }
        std::iter::from_fn(|| notices.try_recv().ok()).map(|notice| notice.note).collect()
    }

    #[tokio::test]
    async fn an_event_says_once_why_a_workload_is_not_restarted_and_only_for_a_resource_in_effect() {
        let starting = json!({"status": {"availableReplicas": 0}});
        let labelled = |value: &str| json!({"metadata": {"labels": {"config.linkerd.io/reconcile": value}}});
        let begin = "Out of date for configuration 0123456789abcdef-none, but not restarted: ";
        for (over, reason) in [
            (starting.clone(), Some("not all of its Pods are available, and no restart by this operator is the cause")),
            (
                labelled("true"),
                Some(
                    "config.linkerd.io/reconcile of the workload is \"true\": it must be auto for a restart, or else observe or \
                     disabled",
                ),
            ),
            (labelled("disabled"), None),
            (labelled("observe"), None),
        ] {
            let notes = notes(&over, |_| {});
            assert_eq!(notes.len(), usize::from(reason.is_some()), "{over}: {notes:?}");
            assert!(notes.iter().all(|note| note.starts_with(&format!("{begin}{}", reason.unwrap()))), "{notes:?}");
        }
        for over in [starting, labelled("true")] {
            let deleted = |world: &mut World| world.feed.apply(Kind::LinkerdConfig, Event::Delete(mesh()));
            assert_eq!(notes(&over, deleted), [""; 0], "the resource was deleted");
            let off = |world: &mut World| {
                world.target.gates.closed =
                    Some(Gate { reason: ConditionReason::RolloutDisabled, message: String::new() });
            };
            assert_eq!(notes(&over, off), [""; 0], "nothing is restarted for it");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_starts_two_seconds_after_its_begin_although_the_clock_is_corrected() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let term = Instant::now() + PREDECESSOR;
        assert_eq!(start_of(term, at(7_200)), Some(at(7_202)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(start_of(term, at(1)), Some(at(2)), "the clock was ahead");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(start_of(term, at(2)), None);
    }
}
