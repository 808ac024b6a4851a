//! Properties of a rollout under any sequence of events: the limits hold, no workload is restarted without a cause, and
//! in the end every workload is up to date, or the simulation caused the reason why it is not.
//!
//! The simulated controller replaces at most one Pod of each Deployment per beat. The target, the labels, the scale and
//! the budgets change at random. Steps are applied with the production patches.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::runtime::watcher::Event;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    assess::workload_state::{SkipReason, WorkloadFailure, WorkloadState},
    assess_workload,
    key::RolloutKey,
    restart::patch,
    schedule::{RolloutLimits, RolloutSchedule},
    step::{RolloutStep, StepAction},
    testing::{World, time, with},
};
use crate::cluster::{Kind, index::workload_key::WorkloadKey};

const DEPLOYMENTS: usize = 4;
const PODS: usize = 2;
/// More than any rollout takes: two attempts for each Deployment, one after the other.
const BEATS: usize = 100;
const DEADLINE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
enum Disturbance {
    /// The target changes.
    Target(u8),
    /// New Pods of a Deployment do not become ready, or do again.
    Broken(usize, bool),
    OptOut(usize),
    Budget(bool),
    Scale(usize, u8),
    /// Another replica takes over.
    Takeover,
    Nothing,
}

struct Simulation {
    world: World,
    schedule: RolloutSchedule,
    now: Timestamp,
    version: u64,
    deployments: BTreeMap<usize, Deployment>,
    wanted: u8,
    /// The targets so far, and whether one of them was left and became the target again.
    targets: BTreeSet<u8>,
    has_returned: bool,
    at_once: usize,
    /// The Deployments and annotation values of all restarts for the current target.
    restarts: BTreeSet<(usize, String)>,
    /// The restarted Deployments that are not complete yet, with their deadlines.
    rolling: BTreeMap<usize, Timestamp>,
    /// The Deployments whose labels opted out.
    opted_out: BTreeSet<usize>,
    /// The Deployments whose new Pods did not become ready at some time.
    broken_before: BTreeSet<usize>,
    /// Whether the budget allows disruptions.
    budget_allows: bool,
}

struct Deployment {
    object: Value,
    /// The number, the marker and the template of each Pod.
    pods: Vec<(u64, String, String)>,
    broken: bool,
    created: u64,
}

fn marker(wanted: u8) -> String {
    format!("{wanted:016}")
}

impl Simulation {
    fn new(at_once: usize) -> Self {
        let mut world = World::new(&json!({}));
        world.target.proxies.baseline = None;
        let mut simulation = Self {
            world,
            schedule: RolloutSchedule::default(),
            now: time("12:00:00"),
            version: 1,
            deployments: BTreeMap::new(),
            wanted: 0,
            targets: BTreeSet::new(),
            has_returned: false,
            at_once,
            restarts: BTreeSet::new(),
            rolling: BTreeMap::new(),
            opted_out: BTreeSet::new(),
            broken_before: BTreeSet::new(),
            budget_allows: true,
        };
        for index in 0..DEPLOYMENTS {
            let object = json!({
                "metadata": {"name": format!("d{index}"), "namespace": "ns", "uid": format!("d{index}"), "generation": 1,
                    "labels": {"config.linkerd.io/reconcile": "auto"}},
                "spec": {"replicas": PODS, "template": {"metadata": {"annotations": {"linkerd.io/inject": "enabled"}}}},
                "status": {},
            });
            let deployment = Deployment { object, pods: Vec::new(), broken: false, created: 0 };
            simulation.deployments.insert(index, deployment);
        }
        simulation.set_target(0);
        for _ in 0..4 {
            simulation.beat();
        }
        simulation
    }

    fn set_target(&mut self, wanted: u8) {
        if self.wanted != wanted {
            self.restarts.clear();
            self.has_returned |= self.targets.contains(&wanted);
        }
        self.targets.insert(wanted);
        self.wanted = wanted;
        let target = &mut self.world.target;
        target.proxies.injection_hash = Some(marker(wanted).into());
        target.key = RolloutKey::of(&marker(wanted), Some("roots"), None);
    }

    fn disturb(&mut self, disturbance: &Disturbance) {
        match disturbance {
            Disturbance::Target(wanted) => self.set_target(*wanted),
            Disturbance::Broken(index, broken) => {
                self.edit(*index, |deployment| deployment.broken = *broken);
                if *broken {
                    self.broken_before.insert(*index);
                }
            }
            Disturbance::OptOut(index) => {
                self.opted_out.insert(*index);
                self.edit(*index, |deployment| {
                    deployment.object["metadata"]["labels"] = json!({"config.linkerd.io/reconcile": "disabled"});
                });
                // A workload that is not opted in has no place.
                self.rolling.remove(index);
            }
            Disturbance::Budget(allows) => {
                self.budget_allows = *allows;
                let allowed = i32::from(*allows);
                let object = json!({"metadata": {"name": "all", "namespace": "ns", "generation": 1},
                    "spec": {"selector": {}}, "status": {"disruptionsAllowed": allowed, "observedGeneration": 1}});
                self.world.feed.apply(Kind::PodDisruptionBudget, Event::Apply(object));
            }
            Disturbance::Scale(index, replicas) => self.edit(*index, |deployment| {
                deployment.object["spec"]["replicas"] = json!(replicas);
            }),
            Disturbance::Takeover => {
                self.schedule = RolloutSchedule::default();
            }
            Disturbance::Nothing => {}
        }
    }

    fn edit(&mut self, index: usize, edit: impl FnOnce(&mut Deployment)) {
        self.deployments.get_mut(&index).map(edit).unwrap();
    }

    /// Advances the time by a second: each controller makes one change, then all Deployments are assessed and the due
    /// steps applied.
    fn beat(&mut self) {
        self.now = self.now.checked_add(SignedDuration::from_secs(1)).unwrap();
        let indices: Vec<usize> = self.deployments.keys().copied().collect();
        for index in &indices {
            self.control(*index);
        }
        for index in &indices {
            self.assess(*index);
        }
        loop {
            let next = self.schedule.next(&self.limits(), self.now);
            if next.steps.is_empty() {
                break;
            }
            for step in next.steps {
                self.apply_step(&step);
            }
        }
        let now = self.now;
        self.rolling.retain(|_, due| now < *due);
        assert!(self.rolling.len() <= self.at_once, "{:?} exceed the limit", self.rolling);
    }

    fn limits(&self) -> RolloutLimits {
        RolloutLimits {
            may_start: true,
            may_inject: true,
            at_once: self.at_once,
            at_once_in_namespace: 100,
            interval: Duration::ZERO,
            soak: Duration::from_secs(1),
            deadline: DEADLINE,
        }
    }

    /// Creates, replaces or deletes one Pod of a Deployment; replaces only if all Pods are ready.
    fn control(&mut self, index: usize) {
        let wanted = marker(self.wanted);
        let second = format!("{:.0}", self.now);
        self.version += 1;
        let version = self.version;
        let deployment = self.deployments.get_mut(&index).unwrap();
        let template = deployment.object["spec"]["template"].to_string();
        let replicas = usize::try_from(deployment.object["spec"]["replicas"].as_u64().unwrap()).unwrap();
        let ready = |pod: &(u64, String, String), broken: bool| pod.2 != template || !broken;
        let all_ready = deployment.pods.iter().all(|pod| ready(pod, deployment.broken));
        let old = deployment.pods.iter().position(|pod| pod.2 != template);
        let mut deleted = None;
        if deployment.pods.len() > replicas {
            deleted = deployment.pods.pop();
        } else if deployment.pods.len() < replicas || (old.is_some() && all_ready) {
            if deployment.pods.len() >= replicas {
                deleted = old.map(|at| deployment.pods.remove(at));
            }
            deployment.created += 1;
            deployment.pods.push((deployment.created, wanted.clone(), template.clone()));
        }
        let count = |of: &dyn Fn(&(u64, String, String)) -> bool| deployment.pods.iter().filter(|pod| of(pod)).count();
        let available = count(&|pod| ready(pod, deployment.broken));
        if deployment.pods.iter().all(|pod| pod.2 == template && !deployment.broken) {
            self.rolling.remove(&index);
        }
        deployment.object["metadata"]["resourceVersion"] = json!(version.to_string());
        deployment.object["status"] = json!({"observedGeneration": 1, "replicas": deployment.pods.len(),
            "updatedReplicas": count(&|pod| pod.2 == template), "readyReplicas": available, "availableReplicas": available});
        let (name, object) = (format!("d{index}"), deployment.object.clone());
        let pods = deployment.pods.clone();
        self.world.workload(Kind::Deployment, &name, &object);
        for (number, marker, _) in pods.iter().rev().take(1) {
            let over = json!({"metadata": {"creationTimestamp": second}});
            self.world.pod(&format!("{name}-{number}"), &name, Some(marker), &over);
        }
        if let Some((number, ..)) = deleted {
            let object = json!({"metadata": {"name": format!("{name}-{number}"), "namespace": "ns"}});
            self.world.feed.apply(Kind::Pod, Event::Delete(object));
        }
    }

    fn assess(&mut self, index: usize) {
        let workload = WorkloadKey::new("ns", "Deployment", format!("d{index}"));
        let version = self.deployments[&index].object["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        if self.schedule.is_unseen(&workload, &version, self.now) {
            return;
        }
        let assessment = assess_workload(&self.world.feed.cluster.read(), &workload, &self.world.target);
        self.schedule.set(&workload, assessment, self.now);
    }

    fn apply_step(&mut self, step: &RolloutStep) {
        let index: usize = step.workload.name[1..].parse().unwrap();
        let resource = self.world.feed.cluster.read().apps_workload(&step.workload).cloned().unwrap();
        let mut patch = patch(&resource, &step.action, &self.world.target.key, self.now);
        if let StepAction::Start(start) = &step.action {
            let wanted = marker(self.wanted);
            let pods = &self.deployments[&index].pods;
            assert!(pods.iter().any(|pod| pod.1 != wanted), "d{index} was up to date");
            assert!(
                self.restarts.insert((index, start.value.clone())),
                "d{index} was restarted for {} before",
                start.value
            );
            let label = &self.deployments[&index].object["metadata"]["labels"]["config.linkerd.io/reconcile"];
            assert_eq!(label, "auto");
            self.rolling.insert(index, self.now.checked_add(DEADLINE).unwrap());
        }
        if let StepAction::Fail { .. } = &step.action {
            self.rolling.remove(&index);
        }
        self.version += 1;
        patch["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let deployment = self.deployments.get_mut(&index).unwrap();
        deployment.object = with(deployment.object.clone(), &patch);
        let version = self.version.to_string();
        self.schedule.record_sent(step, &version, self.now);
    }

    /// Returns an error if a Deployment is neither up to date nor has a reason that this simulation caused.
    fn is_settled(&self) -> Result<(), String> {
        for (index, deployment) in &self.deployments {
            let workload = WorkloadKey::new("ns", "Deployment", format!("d{index}"));
            let state =
                assess_workload(&self.world.feed.cluster.read(), &workload, &self.world.target).map(|it| it.state);
            let is_current = deployment.pods.iter().all(|pod| pod.1 == marker(self.wanted));
            let is_caused = match &state {
                Some(WorkloadState::UpToDate | WorkloadState::Unmeshed) | None => is_current,
                Some(WorkloadState::Unselected(_)) => self.opted_out.contains(index),
                // The restarts of an earlier time with the same target count. A Pod that was created in between is out
                // of date, and two restarts are the limit.
                Some(WorkloadState::Failed(WorkloadFailure { reason, .. })) if reason == "StillOutdated" => {
                    self.has_returned || self.broken_before.contains(index)
                }
                Some(WorkloadState::Skipped(SkipReason::TooManyAttempts)) => self.has_returned,
                Some(WorkloadState::Failed(_)) => self.broken_before.contains(index),
                Some(WorkloadState::Skipped(SkipReason::Unhealthy)) => deployment.broken,
                Some(WorkloadState::Skipped(SkipReason::BlockedByPDB)) => !self.budget_allows,
                _ => false,
            };
            if !is_caused {
                return Err(format!("d{index} is current: {is_current}, and has no cause for {state:?}"));
            }
        }
        Ok(())
    }

    /// The Deployments with Pods that are not current.
    fn outdated(&self) -> Vec<usize> {
        let wanted = marker(self.wanted);
        let outdated = self.deployments.iter().filter(|(_, it)| it.pods.iter().any(|pod| pod.1 != wanted));
        outdated.map(|(index, _)| *index).collect()
    }

    fn run(at_once: usize, history: &[Disturbance]) -> Self {
        let mut simulation = Self::new(at_once);
        for disturbance in history {
            simulation.disturb(disturbance);
            simulation.beat();
        }
        for _ in 0..BEATS {
            simulation.beat();
        }
        simulation
    }
}

/// Disturbances that do not prevent a restart. [`without_return`] numbers the targets.
fn harmless() -> impl Strategy<Value = Disturbance> {
    prop_oneof![
        4 => Just(Disturbance::Target(0)),
        2 => (0..DEPLOYMENTS, 0..4u8).prop_map(|(index, replicas)| Disturbance::Scale(index, replicas)),
        1 => Just(Disturbance::Budget(true)),
        1 => (0..DEPLOYMENTS).prop_map(|index| Disturbance::Broken(index, false)),
        1 => Just(Disturbance::Takeover),
        8 => Just(Disturbance::Nothing),
    ]
}

/// Makes each target a new one.
fn without_return(history: Vec<Disturbance>) -> Vec<Disturbance> {
    let mut targets = 1..;
    let renumber = |disturbance| match disturbance {
        Disturbance::Target(_) => Disturbance::Target(targets.next().unwrap()),
        other => other,
    };
    history.into_iter().map(renumber).collect()
}

fn any_disturbance() -> impl Strategy<Value = Disturbance> {
    let index = 0..DEPLOYMENTS;
    prop_oneof![
        4 => (0..4u8).prop_map(Disturbance::Target),
        2 => (index.clone(), any::<bool>()).prop_map(|(index, broken)| Disturbance::Broken(index, broken)),
        1 => index.clone().prop_map(Disturbance::OptOut),
        1 => any::<bool>().prop_map(Disturbance::Budget),
        2 => (index, 0..4u8).prop_map(|(index, replicas)| Disturbance::Scale(index, replicas)),
        1 => Just(Disturbance::Takeover),
        8 => Just(Disturbance::Nothing),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_workload_ends_up_to_date_or_with_a_reason(
        at_once in 1..4usize,
        history in prop::collection::vec(any_disturbance(), 0..60),
    ) {
        prop_assert_eq!(Simulation::run(at_once, &history).is_settled(), Ok(()));
    }

    #[test]
    fn without_an_obstacle_every_workload_ends_up_to_date(
        at_once in 1..4usize,
        history in prop::collection::vec(harmless(), 0..60).prop_map(without_return),
    ) {
        prop_assert_eq!(Simulation::run(at_once, &history).outdated(), Vec::<usize>::new());
    }
}
