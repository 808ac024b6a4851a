//! Marks the workloads that have to be assessed again after a change of the cluster state.

use std::{collections::BTreeSet, sync::Arc};

use kube::Resource;
use tokio::time::Instant;

use crate::{
    cluster::{
        Change, Diff, Kind, Observer, State,
        index::workload_key::WorkloadKey,
        kinds::{
            apps_workload::AppsWorkloadOf,
            disruption_budget::DisruptionBudget,
            owner::{IntermediateOwner, Owner},
        },
    },
    queue::DirtySet,
};

/// The kinds that rollouts read.
pub(super) const KINDS: &[Kind] = &[
    Kind::Pod,
    Kind::ReplicaSet,
    Kind::Job,
    Kind::LinkerdConfig,
    Kind::Deployment,
    Kind::StatefulSet,
    Kind::DaemonSet,
    Kind::Namespace,
    Kind::PodDisruptionBudget,
];

/// Marks the workloads that changes affect, for the rollout engine.
#[derive(Default)]
pub struct RolloutObserver {
    pub(super) dirty: DirtySet<WorkloadKey>,
}

impl RolloutObserver {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }
}

impl Observer for RolloutObserver {
    fn kinds(&self) -> &'static [Kind] {
        KINDS
    }

    fn blocks_readiness(&self) -> bool {
        false
    }

    fn changed(&self, state: &State, changes: &[Change], received: Instant) {
        let workloads: BTreeSet<WorkloadKey> = changes.iter().flat_map(|change| affected(state, change)).collect();
        self.dirty.mark(workloads, received);
    }
}

fn affected(state: &State, change: &Change) -> BTreeSet<WorkloadKey> {
    match change {
        Change::Pod(diff) => state.workloads_of(diff.both()).collect(),
        Change::ReplicaSet(diff) => owned_through(state, diff),
        Change::Job(diff) => owned_through(state, diff),
        Change::Deployment(diff) => itself(diff),
        Change::StatefulSet(diff) => itself(diff),
        Change::DaemonSet(diff) => itself(diff),
        Change::Namespace(diff) => in_namespace(state, &diff.latest().name),
        Change::PodDisruptionBudget(diff) => diff.both().flat_map(|budget| selected(state, budget)).collect(),
        _ => BTreeSet::new(),
    }
}

fn itself<K>(diff: &Diff<AppsWorkloadOf<K>>) -> BTreeSet<WorkloadKey> {
    [diff.latest().resource.workload.clone()].into()
}

/// The workloads between which the Pods of this ReplicaSet or Job moved: the object itself, and its owners before and
/// after the change. Most ReplicaSets are old and have no Pods, so their changes affect no workload. The deletion of
/// an object without an owner affects no workload either.
fn owned_through<K: Resource<DynamicType = ()>>(
    state: &State,
    diff: &Diff<IntermediateOwner<K>>,
) -> BTreeSet<WorkloadKey> {
    let key = &diff.latest().key;
    let itself = Owner { kind: K::kind(&()).into(), name: Arc::clone(&key.name) };
    let is_without_owner = matches!(diff, Diff::Deleted(it) if it.owner.is_none());
    if is_without_owner || state.pods.owned(&key.namespace, &itself).next().is_none() {
        return BTreeSet::new();
    }
    let owners = diff.both().filter_map(|it| it.owner.as_ref()).chain([&itself]);
    owners.map(|owner| WorkloadKey::of_owner(&key.namespace, owner)).collect()
}

fn in_namespace(state: &State, namespace: &str) -> BTreeSet<WorkloadKey> {
    let resources = state.apps_workloads_in(namespace).map(|resource| resource.workload.clone());
    state.workloads_of(state.pods.in_namespace(namespace)).chain(resources).collect()
}

/// The workloads of the Pods that a PodDisruptionBudget selects.
fn selected(state: &State, budget: &DisruptionBudget) -> BTreeSet<WorkloadKey> {
    let pods = budget.selector.iter().flat_map(|selector| state.pods.selected(&budget.key.namespace, selector));
    state.workloads_of(pods).collect()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use kube::runtime::watcher::Event;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::testing::Feed;

    struct World {
        feed: Feed,
        observer: Arc<RolloutObserver>,
    }

    impl World {
        fn new() -> Self {
            let observer = RolloutObserver::new();
            Self { feed: Feed::new([Arc::clone(&observer) as Arc<dyn Observer>]), observer }
        }

        /// Applies an event and returns the workloads that it affects.
        fn affected(&mut self, kind: Kind, event: Event<Value>) -> BTreeSet<WorkloadKey> {
            self.feed.apply(kind, event);
            self.observer.dirty.next().now_or_never().unwrap_or_default().into_keys().collect()
        }
    }

    fn workloads(all: &[(&str, &str)]) -> BTreeSet<WorkloadKey> {
        all.iter().map(|(kind, name)| WorkloadKey::new("ns", *kind, *name)).collect()
    }

    fn object(name: &str, owners: &[(&str, &str)]) -> Value {
        let reference =
            |(kind, name): &(&str, &str)| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "u"});
        let owners: Vec<Value> = owners.iter().map(reference).collect();
        json!({"metadata": {"name": name, "namespace": "ns", "labels": {"app": name}, "ownerReferences": owners}})
    }

    fn owned(name: &str, owners: &[(&str, &str)]) -> Event<Value> {
        Event::Apply(object(name, owners))
    }

    #[test]
    fn a_change_of_a_replica_set_affects_itself_and_both_owners_but_only_if_it_has_pods() {
        let mut world = World::new();
        let set = ("ReplicaSet", "web-5f");
        assert_eq!(world.affected(Kind::ReplicaSet, owned("web-5f", &[("Deployment", "web")])), workloads(&[]));
        assert_eq!(world.affected(Kind::Pod, owned("a", &[set])), workloads(&[("Deployment", "web")]));
        let handed_over = world.affected(Kind::ReplicaSet, owned("web-5f", &[("Deployment", "api")]));
        assert_eq!(handed_over, workloads(&[set, ("Deployment", "web"), ("Deployment", "api")]));
        assert_eq!(world.affected(Kind::ReplicaSet, owned("web-5f", &[("Deployment", "api")])), workloads(&[]));
        let deleted = world.affected(Kind::ReplicaSet, Event::Delete(object("web-5f", &[])));
        assert_eq!(deleted, workloads(&[set, ("Deployment", "api")]));
        assert_eq!(world.affected(Kind::Pod, owned("b", &[("Job", "tick-1")])), workloads(&[("Job", "tick-1")]));
        let job = world.affected(Kind::Job, owned("tick-1", &[("CronJob", "tick")]));
        assert_eq!(job, workloads(&[("Job", "tick-1"), ("CronJob", "tick")]));
    }

    #[test]
    fn a_change_of_a_pod_affects_its_previous_and_its_new_workload() {
        let mut world = World::new();
        let mut affected = |event| world.affected(Kind::Pod, event);
        assert_eq!(affected(owned("a", &[("StatefulSet", "db")])), workloads(&[("StatefulSet", "db")]));
        assert_eq!(affected(owned("a", &[("StatefulSet", "db")])), workloads(&[]));
        assert_eq!(affected(owned("a", &[])), workloads(&[("StatefulSet", "db"), ("Pod", "a")]));
        assert_eq!(affected(Event::Delete(object("a", &[]))), workloads(&[("Pod", "a")]));
    }

    #[test]
    fn a_change_of_a_namespace_affects_every_workload_in_it() {
        let mut world = World::new();
        world.affected(Kind::Pod, owned("a", &[]));
        assert_eq!(world.affected(Kind::StatefulSet, owned("db", &[])), workloads(&[("StatefulSet", "db")]));
        let namespace = json!({"metadata": {"name": "ns", "labels": {"config.linkerd.io/reconcile": "auto"}}});
        let all = workloads(&[("Pod", "a"), ("StatefulSet", "db")]);
        assert_eq!(world.affected(Kind::Namespace, Event::Apply(namespace.clone())), all);
        assert_eq!(world.affected(Kind::Namespace, Event::Apply(namespace.clone())), workloads(&[]));
        assert_eq!(world.affected(Kind::Namespace, Event::Delete(namespace)), all);
    }

    #[test]
    fn a_change_of_a_budget_affects_the_workloads_it_selected_and_selects() {
        let mut world = World::new();
        for app in ["web", "db", "mq"] {
            world.affected(Kind::Pod, owned(app, &[]));
        }
        let budget = |app: &str, allowed: i64| {
            let status = json!({"disruptionsAllowed": allowed, "observedGeneration": 2, "currentHealthy": allowed});
            let metadata = json!({"name": "a", "namespace": "ns", "generation": 2});
            json!({"metadata": metadata, "spec": {"selector": {"matchLabels": {"app": app}}}, "status": status})
        };
        let mut affected = |event| world.affected(Kind::PodDisruptionBudget, event);
        assert_eq!(affected(Event::Apply(budget("web", 1))), workloads(&[("Pod", "web")]));
        assert_eq!(affected(Event::Apply(budget("web", 2))), workloads(&[]), "it still allows a disruption");
        assert_eq!(affected(Event::Apply(budget("web", 0))), workloads(&[("Pod", "web")]));
        assert_eq!(affected(Event::Apply(budget("db", 0))), workloads(&[("Pod", "web"), ("Pod", "db")]));
        assert_eq!(affected(Event::Delete(budget("db", 0))), workloads(&[("Pod", "db")]));
    }

    #[test]
    fn a_workload_affects_itself_when_more_than_its_version_changes() {
        let mut world = World::new();
        let deployment = |version: &str, paused: bool| {
            let metadata = json!({"name": "web", "namespace": "ns", "resourceVersion": version});
            Event::Apply(json!({"metadata": metadata, "spec": {"paused": paused}}))
        };
        let itself = workloads(&[("Deployment", "web")]);
        assert_eq!(world.affected(Kind::Deployment, deployment("1", false)), itself);
        assert_eq!(world.affected(Kind::Deployment, deployment("2", false)), workloads(&[]));
        assert_eq!(world.affected(Kind::Deployment, deployment("3", true)), itself);
        assert_eq!(world.affected(Kind::Deployment, Event::Delete(object("web", &[]))), itself);
    }

    const OWNERS: [&str; 4] = ["ReplicaSet", "Job", "Deployment", "Pod"];

    proptest! {
        /// A workload is marked when its set of Pods changes, with any owners, even if an object owns itself.
        #[test]
        fn a_workload_whose_pods_changed_is_assessed_again(
            events in prop::collection::vec((0..3usize, 0..4usize, 0..4usize, 0..4usize, any::<bool>()), 0..30),
        ) {
            let names = ["a", "b", "c", "d"];
            let mut world = World::new();
            let mut before: Vec<(WorkloadKey, BTreeSet<String>)> = Vec::new();
            for (watched, name, kind, owner, has_owner) in events {
                let owner = [(OWNERS[kind], names[owner])];
                let owners = if has_owner { &owner[..] } else { &[] };
                let kind = [Kind::Pod, Kind::ReplicaSet, Kind::Job][watched];
                let marked = world.affected(kind, owned(names[name], owners));
                let state = world.feed.cluster.read();
                let keys = OWNERS.iter().flat_map(|kind| names.map(|name| WorkloadKey::new("ns", *kind, name)));
                let now: Vec<_> = keys
                    .map(|key| {
                        let pods = state.pods_of(&key).map(|pod| pod.key.name.to_string()).collect();
                        (key, pods)
                    })
                    .collect();
                for ((workload, was), (_, is)) in before.iter().zip(&now) {
                    prop_assert!(was == is || marked.contains(workload), "{workload}");
                }
                before = now;
            }
        }
    }
}
