//! The task that carries rollouts out.
//!
//! In: workloads that changed, the [`Goal`], the time. Out: one step after the other, and how far it is. Always holds: all
//! decisions are made here, one at a time, so that no two of them take the same place; it acts in the term that its goal is of,
//! and not before the watches are known to be at work.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::{
    api::core::v1::ObjectReference,
    jiff::{SignedDuration, Timestamp},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    Latest,
    assess::{Skip, Standing},
    board::{Action, Board, Limits, Step},
    goal::{Gate, Goal},
    look,
    observer::{KINDS, RolloutObserver},
    restart::Restarter,
    verdict::{self, OUTSIDE_WINDOW, PAUSED, Progress, is_halted, progress},
    window::{Window, Windows},
};
use crate::{
    api::NamespacedName,
    cluster::{
        Cluster,
        index::workload_key::WorkloadKey,
        kinds::{apps_workload::AppsWorkload, pod::Phase},
    },
    controller::ControllerDeps,
    events::{Events, Notice, Reason},
    lease::Leadership,
    linkerd_config::active,
    queue::WorkQueue,
    retry::backoff,
    write::WriteError,
};

/// What the leader before us sent last may still be on its way through the watches.
const PREDECESSOR: Duration = Duration::from_secs(2);
/// Counts go into the status so often at most.
const PACE: Duration = Duration::from_secs(1);
const BACKOFF_BASE: Duration = Duration::from_millis(200);
const BACKOFF_CAP: Duration = Duration::from_secs(60);
/// ExternalWorkloads that are looked at between two looks at everything else.
const AT_ONCE: usize = 256;

pub(super) struct Engine {
    cluster: Cluster,
    leadership: Leadership,
    events: Events,
    queue: Arc<WorkQueue>,
    observer: Arc<RolloutObserver>,
    goals: watch::Receiver<Option<Arc<Goal>>>,
    latest: Arc<Latest>,
    restarter: Restarter,
    /// All that there are.
    known: HashSet<WorkloadKey>,
    board: Board,
    windows: Option<Windows>,
    /// How the windows stood, and when that was looked for: to see when it changes may take a look at years.
    window: Option<(Window, Timestamp)>,
    term: Term,
    /// Why a workload was skipped, as far as it was told: once for each key.
    told: HashMap<WorkloadKey, Skip>,
    /// What was published last, and when.
    published: Option<(Arc<Progress>, Instant)>,
}

/// The term of leadership that is acted in.
#[derive(Default)]
struct Term {
    number: u64,
    /// Nothing begins earlier.
    starts: Option<Timestamp>,
}

impl Engine {
    pub(super) fn new(
        deps: &ControllerDeps,
        queue: &Arc<WorkQueue>,
        observer: Arc<RolloutObserver>,
        goals: watch::Receiver<Option<Arc<Goal>>>,
        latest: Arc<Latest>,
        restarter: Restarter,
    ) -> Self {
        Self {
            cluster: deps.cluster.clone(),
            leadership: deps.leadership.clone(),
            events: deps.events.clone(),
            queue: Arc::clone(queue),
            observer,
            goals,
            latest,
            restarter,
            known: HashSet::new(),
            board: Board::default(),
            windows: None,
            window: None,
            term: Term::default(),
            told: HashMap::new(),
            published: None,
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = self.cluster.synced(KINDS) => {}
            () = stop.cancelled() => return,
        }
        let mut goal: Option<Arc<Goal>> = None;
        let mut look_again = None;
        // While watches fail: they are asked to list anew, once, and say nothing themselves when they are back.
        let mut recovery: Option<BoxFuture<'static, ()>> = None;
        loop {
            tokio::select! {
                workloads = self.observer.dirty.next() => {
                    for workload in workloads.into_keys() {
                        self.look(&workload, goal.as_deref());
                    }
                }
                changed = self.goals.changed() => {
                    if changed.is_err() {
                        // The controller is gone, and the process follows.
                        return;
                    }
                    let next = self.goals.borrow_and_update().clone();
                    tokio::select! {
                        () = self.retarget(goal.as_deref(), next.as_deref()) => {}
                        () = stop.cancelled() => return,
                    }
                    goal = next;
                }
                () = until(look_again) => {}
                () = recovered(&mut recovery) => recovery = None,
                () = stop.cancelled() => return,
            }
            look_again = match &goal {
                Some(goal) if self.may_act(goal) => self.go_on(goal).await,
                _ => {
                    self.latest.set(None);
                    self.published = None;
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

    /// Whether what was decided is still to be done by us.
    fn may_act(&self, goal: &Goal) -> bool {
        let in_effect = || {
            let state = self.cluster.read();
            active::of(&state.linkerd_configs, &goal.target).is_some_and(|winner| winner.name == goal.config)
        };
        self.leadership.term() == Some(goal.term) && in_effect()
    }

    async fn retarget(&mut self, before: Option<&Goal>, after: Option<&Goal>) {
        let Some(after) = after else { return };
        if before.is_none_or(|before| before.key != after.key) {
            self.told.clear();
        }
        if self.term.number != after.term {
            self.cluster.recovered(KINDS).await;
            let now = Timestamp::now();
            self.term = Term { number: after.term, starts: now.checked_add(signed(PREDECESSOR)).ok() };
            self.board.begin_term();
        }
        let window = after.rollout().window.as_ref();
        if before.is_none_or(|before| before.rollout().window.as_ref() != window) {
            self.windows = window.and_then(|window| Windows::parse(window).ok());
            self.window = None;
        }
        if before.is_some_and(|before| before.judges_like(after)) {
            return;
        }
        let all: Vec<WorkloadKey> = self.known.iter().cloned().collect();
        for some in all.chunks(AT_ONCE) {
            for workload in some {
                self.look(workload, Some(after));
            }
            tokio::task::yield_now().await;
        }
    }

    /// Puts a workload on the board as it is now.
    fn look(&mut self, workload: &WorkloadKey, goal: Option<&Goal>) {
        let now = Timestamp::now();
        let (assessment, resource) = {
            let state = self.cluster.read();
            let resource = state.apps_workloads.get(workload).cloned();
            if resource.is_none() && state.pods_of(workload).next().is_none() {
                self.known.remove(workload);
                self.told.remove(workload);
                self.board.set(workload, None, now);
                return;
            }
            self.known.insert(workload.clone());
            let Some(goal) = goal else { return };
            if resource.as_ref().is_some_and(|resource| self.board.is_unseen(workload, &resource.version, now)) {
                return;
            }
            (look(&state, workload, goal), resource)
        };
        let skip = match assessment.as_ref().map(|assessment| &assessment.standing) {
            Some(Standing::Skipped(skip)) => Some(*skip),
            _ => None,
        };
        self.board.set(workload, assessment, now);
        let (Some(skip), Some(resource), Some(goal)) = (skip, resource, goal) else { return };
        if self.leadership.term() == Some(goal.term) && self.told.insert(workload.clone(), skip) != Some(skip) {
            let note = format!("Out of date for configuration {}, and left alone: {}", goal.key, skip.why());
            self.tell(&resource, goal, Reason::ProxyRolloutSkipped, note);
        }
    }

    /// Does what is to be done. When to look again.
    async fn go_on(&mut self, goal: &Arc<Goal>) -> Option<Instant> {
        let mut look_again;
        let mut gate;
        let mut next_window;
        loop {
            let now = Timestamp::now();
            (gate, next_window) = self.gate(goal, now);
            if gate.as_ref().is_some_and(|gate| gate.reason == verdict::DISABLED) {
                look_again = None;
                break;
            }
            let next = self.board.next(&self.limits(goal, gate.as_ref(), now), now);
            let waits = self.starts(goal).filter(|starts| now < *starts);
            look_again = [next.look_again, next_window, waits].into_iter().flatten().min();
            if next.steps.is_empty() {
                break;
            }
            for step in next.steps {
                if !self.may_act(goal) || !self.carry_out(goal, step).await {
                    return None;
                }
            }
        }
        let progress = Arc::new(progress(&self.board, goal, gate.as_ref(), next_window));
        let paced = self.publish(progress);
        let now = Timestamp::now();
        let due = look_again.map(|at| Instant::now() + Duration::try_from(at.duration_since(now)).unwrap_or_default());
        [due, paced].into_iter().flatten().min()
    }

    /// Why nothing may begin; and when the window opens or shuts.
    fn gate(&mut self, goal: &Goal, now: Timestamp) -> (Option<Gate>, Option<Timestamp>) {
        let gate = |reason, message: &str| Some(Gate { reason, message: message.to_owned() });
        let still =
            |(window, at): &(Window, Timestamp)| *at <= now && window.changes.is_none_or(|changes| now < changes);
        if !self.window.as_ref().is_some_and(still) {
            self.window = self.windows.as_ref().map(|windows| (windows.at(now), now));
        }
        let window = self.window.map(|(window, _)| window);
        let changes = window.as_ref().and_then(|window| window.changes);
        let is_disabled = goal.closed.as_ref().is_some_and(|closed| closed.reason == verdict::DISABLED);
        let gate = if goal.rollout().paused && !is_disabled {
            gate(PAUSED, "spec.rollout.paused is true")
        } else if goal.closed.is_some() {
            goal.closed.clone()
        } else if !self.cluster.follows(KINDS) {
            gate("WaitingForWatches", "a watch fails, and nobody knows how things stand: see /ready")
        } else if self.waits_for_control_plane(goal) {
            let message = "the trust anchors changed: restart the control plane first";
            gate("WaitingForControlPlane", message)
        } else if window.is_some_and(|window| !window.open) {
            gate(OUTSIDE_WINDOW, "the maintenance window is closed")
        } else {
            None
        };
        (gate, changes)
    }

    /// Proxies with new trust anchors trust nobody who has only the old ones, so the control plane comes first.
    fn waits_for_control_plane(&self, goal: &Goal) -> bool {
        let Some(written) = goal.roots_written.filter(|_| self.board.totals.for_trust_roots > 0) else { return false };
        let state = self.cluster.read();
        state.pods.of_control_plane(&goal.target.namespace).any(|pod| {
            let is_old = pod.created.is_some_and(|created| created < written);
            is_old && pod.injected.is_some() && !pod.terminating && pod.phase != Phase::Finished
        })
    }

    fn limits(&self, goal: &Goal, gate: Option<&Gate>, now: Timestamp) -> Limits {
        let rollout = goal.rollout();
        let selected = usize::try_from(self.board.totals.workloads.selected).unwrap_or_default();
        let is_ready = self.starts(goal).is_none_or(|starts| now >= starts);
        Limits {
            may_start: gate.is_none() && is_ready && !is_halted(&self.board, goal),
            may_inject: goal.closed.is_none() && is_ready,
            at_once: rollout.max_concurrent(selected),
            at_once_in_namespace: rollout.max_concurrent_per_namespace(),
            interval: rollout.interval(),
            soak: rollout.soak(),
            deadline: rollout.progress_deadline(),
        }
    }

    /// Nothing begins earlier.
    fn starts(&self, goal: &Goal) -> Option<Timestamp> {
        self.term.starts.max(goal.drift_ends())
    }

    /// Whether anything else may be carried out after it.
    async fn carry_out(&mut self, goal: &Goal, step: Step) -> bool {
        let workload = &step.workload;
        let resource = self.cluster.read().apps_workloads.get(workload).cloned();
        let Some(resource) = resource else {
            self.board.set(workload, None, Timestamp::now());
            return true;
        };
        let now = Timestamp::now();
        match self.restarter.carry_out(&resource, &step.action, &goal.key, now).await {
            Ok(version) => {
                self.board.sent(&step, &version, now);
                self.told_of(goal, &resource, &step.action);
            }
            Err(WriteError::NotLeading) => return false,
            Err(error) => {
                // What was looked at is another by now: the watch is about to say so.
                if error.label() == "conflict" {
                    debug!(%workload, "a workload changed while it was looked at");
                } else {
                    warn!(%workload, %error, "a workload could not be restarted, trying on");
                }
                let least = error.retry_after();
                let pause = |count| backoff(count, BACKOFF_BASE, BACKOFF_CAP).max(least).min(BACKOFF_CAP);
                let is_open = matches!(error, WriteError::TimedOut | WriteError::Transport(_));
                self.board.refuse(workload, error.to_string(), is_open, now, pause);
            }
        }
        true
    }

    fn told_of(&self, goal: &Goal, resource: &AppsWorkload, action: &Action) {
        let (workload, key) = (&resource.workload, &goal.key);
        let (reason, note) = match action {
            Action::Start(start) => {
                info!(%workload, restarted_for = start.value, "restarting a workload");
                (Reason::PodRestart, format!("Restarted for configuration {key}"))
            }
            Action::Retry(value) => {
                info!(%workload, restarted_for = value, "restarting a workload once more");
                (Reason::PodRestart, format!("Restarted once more for configuration {key}"))
            }
            Action::Finish { .. } => {
                info!(%workload, restarted_for = %key, "a workload is up to date");
                (Reason::ProxyUpToDate, format!("All Pods run with configuration {key}"))
            }
            Action::Fail { reason, message } => {
                warn!(%workload, restarted_for = %key, reason, message, "a restart failed");
                (Reason::ProxyRolloutFailed, format!("Failed with configuration {key}: {reason}: {message}"))
            }
            Action::Revert => {
                info!(%workload, "putting a workload back to what it was");
                (Reason::PodRestart, "Put back to what it was before".to_owned())
            }
            Action::Evict(pod) => {
                info!(%workload, pod = &**pod, "evicted a Pod that was out of date");
                return;
            }
        };
        self.tell(resource, goal, reason, note);
    }

    fn tell(&self, resource: &AppsWorkload, goal: &Goal, reason: Reason, note: String) {
        let regarding = ObjectReference {
            api_version: Some("apps/v1".to_owned()),
            kind: Some(resource.kind.as_str().to_owned()),
            namespace: Some(resource.workload.namespace.to_string()),
            name: Some(resource.workload.name.to_string()),
            uid: Some(resource.uid.to_string()),
            ..ObjectReference::default()
        };
        let related = crate::linkerd_config::report::reference(&goal.config, &goal.uid);
        self.events.publish(Notice { reason, regarding, related: Some(related), note });
    }

    /// Has the controller write it into the status: what matters at once, counts at their pace. When the rest is due.
    fn publish(&mut self, progress: Arc<Progress>) -> Option<Instant> {
        let now = Instant::now();
        if let Some((last, at)) = &self.published {
            if *last == progress {
                return None;
            }
            let matters = |it: &Progress| {
                (it.phase, it.complete.reason, it.workloads.failed, it.suspects, it.wants_rollback, it.next_window)
            };
            let due = *at + PACE;
            if last.goal == progress.goal && matters(last) == matters(&progress) && now < due {
                return Some(due);
            }
        }
        let config = NamespacedName::new("", Arc::clone(&progress.goal.config));
        self.latest.set(Some(Arc::clone(&progress)));
        self.published = Some((progress, now));
        self.queue.add([config]);
        None
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
