//! Properties of a rollout under any sequence of events: the limits hold, no workload is restarted without a cause, and in the end
//! every workload is up to date or the reason is known.
//!
//! The simulation has Deployments whose controller replaces a few Pods at each beat, and people who change the target, the labels,
//! the scale and the budgets at random. Steps are applied with the same patches as on a real cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::runtime::watcher::Event;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    assess::workload_state::WorkloadState,
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
/// More than any rollout takes: two attempts of each, one after the other.
const BEATS: usize = 100;
const DEADLINE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
enum Happens {
    /// Somebody declares another configuration.
    Wants(u8),
    /// Its Pods come up, or do not.
    Breaks(usize, bool),
    OptsOut(usize),
    Budget(bool),
    Scales(usize, u8),
    /// Another manager leads.
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
    at_once: usize,
    /// What each was restarted for, since that is wanted.
    restarts: BTreeSet<(usize, String)>,
    /// Those that were restarted, and have not come back yet, with when they have to be.
    rolling: BTreeMap<usize, Timestamp>,
}

struct Deployment {
    object: Value,
    /// Of each Pod: the marker, and whether it is ready; and of which template.
    pods: Vec<(u64, String, String)>,
    broken: bool,
    born: u64,
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
            at_once,
            restarts: BTreeSet::new(),
            rolling: BTreeMap::new(),
        };
        for index in 0..DEPLOYMENTS {
            let object = json!({
                "metadata": {"name": format!("d{index}"), "namespace": "ns", "uid": format!("d{index}"), "generation": 1,
                    "labels": {"config.linkerd.io/reconcile": "auto"}},
                "spec": {"replicas": PODS, "template": {"metadata": {"annotations": {"linkerd.io/inject": "enabled"}}}},
                "status": {},
            });
            let deployment = Deployment { object, pods: Vec::new(), broken: false, born: 0 };
            simulation.deployments.insert(index, deployment);
        }
        simulation.want(0);
        for _ in 0..4 {
            simulation.beat();
        }
        simulation
    }

    fn want(&mut self, wanted: u8) {
        if self.wanted != wanted {
            self.restarts.clear();
        }
        self.wanted = wanted;
        let target = &mut self.world.target;
        target.proxies.injection_hash = Some(marker(wanted).into());
        target.key = RolloutKey::of(&marker(wanted), Some("roots"), None);
    }

    fn happens(&mut self, what: &Happens) {
        match what {
            Happens::Wants(wanted) => self.want(*wanted),
            Happens::Breaks(index, broken) => self.edit(*index, |deployment| deployment.broken = *broken),
            Happens::OptsOut(index) => self.edit(*index, |deployment| {
                deployment.object["metadata"]["labels"] = json!({"config.linkerd.io/reconcile": "disabled"});
            }),
            Happens::Budget(allows) => {
                let allowed = i32::from(*allows);
                let object = json!({"metadata": {"name": "all", "namespace": "ns", "generation": 1},
                    "spec": {"selector": {}}, "status": {"disruptionsAllowed": allowed, "observedGeneration": 1}});
                self.world.feed.apply(Kind::PodDisruptionBudget, Event::Apply(object));
            }
            Happens::Scales(index, replicas) => self.edit(*index, |deployment| {
                deployment.object["spec"]["replicas"] = json!(replicas);
            }),
            Happens::Takeover => {
                self.schedule = RolloutSchedule::default();
            }
            Happens::Nothing => {}
        }
    }

    fn edit(&mut self, index: usize, edit: impl FnOnce(&mut Deployment)) {
        self.deployments.get_mut(&index).map(edit).unwrap();
    }

    /// A second goes by: controllers do one thing each, then the engine looks at all, and carries out what it plans.
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
        assert!(self.rolling.len() <= self.at_once, "{:?} at once", self.rolling);
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

    /// Brings one Pod of a Deployment to its template, if the last one is ready.
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
        let mut gone = None;
        if deployment.pods.len() > replicas {
            gone = deployment.pods.pop();
        } else if deployment.pods.len() < replicas || (old.is_some() && all_ready) {
            if deployment.pods.len() >= replicas {
                gone = old.map(|at| deployment.pods.remove(at));
            }
            deployment.born += 1;
            deployment.pods.push((deployment.born, wanted.clone(), template.clone()));
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
            let born = json!({"metadata": {"creationTimestamp": second}});
            self.world.pod(&format!("{name}-{number}"), &name, Some(marker), &born);
        }
        if let Some((number, ..)) = gone {
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

    /// Everything is up to date, or it is said why not.
    fn is_settled(&self) -> Result<(), String> {
        for (index, deployment) in &self.deployments {
            let workload = WorkloadKey::new("ns", "Deployment", format!("d{index}"));
            let state =
                assess_workload(&self.world.feed.cluster.read(), &workload, &self.world.target).map(|it| it.state);
            let is_current = deployment.pods.iter().all(|pod| pod.1 == marker(self.wanted));
            match state {
                Some(WorkloadState::UpToDate | WorkloadState::Unmeshed) | None if is_current => {}
                Some(WorkloadState::Unselected(_) | WorkloadState::Failed(_) | WorkloadState::Skipped(_)) => {}
                other => return Err(format!("d{index}: {other:?}")),
            }
        }
        Ok(())
    }
}

fn happens() -> impl Strategy<Value = Happens> {
    let index = 0..DEPLOYMENTS;
    prop_oneof![
        4 => (0..4u8).prop_map(Happens::Wants),
        2 => (index.clone(), any::<bool>()).prop_map(|(index, broken)| Happens::Breaks(index, broken)),
        1 => index.clone().prop_map(Happens::OptsOut),
        1 => any::<bool>().prop_map(Happens::Budget),
        2 => (index, 0..4u8).prop_map(|(index, replicas)| Happens::Scales(index, replicas)),
        1 => Just(Happens::Takeover),
        8 => Just(Happens::Nothing),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_ends_with_all_up_to_date_or_explained(at_once in 1..4usize, history in prop::collection::vec(happens(), 0..60)) {
        let mut simulation = Simulation::new(at_once);
        for what in &history {
            simulation.happens(what);
            simulation.beat();
        }
        for _ in 0..BEATS {
            simulation.beat();
        }
        prop_assert_eq!(simulation.is_settled(), Ok(()));
    }
}
