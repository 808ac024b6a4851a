//! Marks the workloads that have to be assessed again after a change of the cluster state.

use std::{collections::BTreeSet, sync::Arc};

use kube::Resource;
use tokio::time::Instant;

use crate::{
    cluster::{
        Change, Cluster, Diff, Kind, Observer, State,
        index::{
            pods::{PodGroup, PodGroupMembers},
            workload_key::WorkloadKey,
        },
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

/// The number of Pods whose workloads are looked up before the task yields.
const AT_ONCE: usize = 256;

/// Workloads that have to be assessed again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum DirtyWorkloads {
    One(WorkloadKey),
    /// The workloads of a group of Pods. The group may be all Pods of a namespace, so the engine looks the workloads up
    /// later, in parts.
    OfPods(PodGroup),
    InNamespace(Arc<str>),
}

/// Marks the workloads that changes affect, for the rollout engine.
#[derive(Default)]
pub struct RolloutObserver {
    pub(super) dirty: DirtySet<DirtyWorkloads>,
}

// === impl DirtyWorkloads ===

impl DirtyWorkloads {
    /// Returns the workloads. Yields, and releases the lock of the state, after a bounded number of Pods.
    pub(super) async fn look_up(self, cluster: &Cluster) -> BTreeSet<WorkloadKey> {
        let (pods, mut workloads) = {
            let state = cluster.read();
            match self {
                Self::One(workload) => return [workload].into(),
                Self::OfPods(group) => (state.pods.in_group(&group), BTreeSet::new()),
                Self::InNamespace(namespace) => {
                    let resources = state.apps_workloads_in(&namespace).map(|resource| resource.workload.clone());
                    let resources = resources.collect();
                    (state.pods.in_group(&PodGroup { namespace, members: PodGroupMembers::All }), resources)
                }
            }
        };
        for some in pods.chunks(AT_ONCE) {
            workloads.extend(cluster.read().workloads_of(some));
            if some.len() == AT_ONCE {
                tokio::task::yield_now().await;
            }
        }
        workloads
    }
}

// === impl RolloutObserver ===

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
        // Not collected: a list of everything has a change for each Pod, and far fewer workloads.
        self.dirty.mark(changes.iter().flat_map(|change| affected(state, change)), received);
    }
}

fn affected(state: &State, change: &Change) -> BTreeSet<DirtyWorkloads> {
    let workloads: BTreeSet<WorkloadKey> = match change {
        Change::Pod(diff) => state.workloads_of(diff.both()).collect(),
        Change::ReplicaSet(diff) => owned_through(state, diff),
        Change::Job(diff) => owned_through(state, diff),
        Change::Deployment(diff) => itself(diff),
        Change::StatefulSet(diff) => itself(diff),
        Change::DaemonSet(diff) => itself(diff),
        Change::Namespace(diff) => return [DirtyWorkloads::InNamespace(Arc::clone(&diff.latest().name))].into(),
        Change::PodDisruptionBudget(diff) => return diff.both().filter_map(selected).collect(),
        _ => BTreeSet::new(),
    };
    workloads.into_iter().map(DirtyWorkloads::One).collect()
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

/// The workloads of the Pods that a PodDisruptionBudget selects, and maybe of others.
fn selected(budget: &Arc<DisruptionBudget>) -> Option<DirtyWorkloads> {
    let selector = budget.selector.as_ref()?;
    Some(DirtyWorkloads::OfPods(PodGroup::selected(&budget.key.namespace, selector)))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;
    use kube::runtime::watcher::Event;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::{index::label_selector::counters::counted, testing::Feed};

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
            let dirty = self.observer.dirty.next().now_or_never().unwrap_or_default();
            let look_up = |dirty: DirtyWorkloads| dirty.look_up(&self.feed.cluster).now_or_never().unwrap();
            dirty.into_keys().flat_map(look_up).collect()
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
    fn a_change_of_a_budget_or_a_namespace_marks_one_key_and_evaluates_nothing_whatever_the_number_of_pods() {
        let mut world = World::new();
        for number in 0..1_000 {
            world.feed.apply(Kind::Pod, owned(&format!("p{number}"), &[]));
        }
        let budget = |expression: Value| {
            let selector = json!({"matchExpressions": [expression]});
            json!({"metadata": {"name": "a", "namespace": "ns"}, "spec": {"selector": selector}})
        };
        let objects = [
            (Kind::Namespace, json!({"metadata": {"name": "ns", "labels": {"config.linkerd.io/reconcile": "auto"}}})),
            (Kind::PodDisruptionBudget, budget(json!({"key": "app", "operator": "Exists"}))),
            (Kind::PodDisruptionBudget, budget(json!({"key": "app", "operator": "NotIn", "values": ["a"]}))),
        ];
        for (kind, object) in objects {
            world.observer.dirty.next().now_or_never();
            let ((), evaluations, _) = counted(|| world.feed.apply(kind, Event::Apply(object)));
            let dirty = world.observer.dirty.next().now_or_never().unwrap();
            assert_eq!((dirty.len(), evaluations), (1, 0), "{kind:?}");
        }
    }

    #[tokio::test]
    async fn the_workloads_of_a_thousand_pods_are_looked_up_in_steps() {
        let mut world = World::new();
        for number in 0..1_000 {
            world.feed.apply(Kind::Pod, owned(&format!("p{number}"), &[]));
        }
        let mut look_up = pin!(DirtyWorkloads::InNamespace("ns".into()).look_up(&world.feed.cluster));
        assert!(look_up.as_mut().now_or_never().is_none(), "the lock is released after a part of the Pods");
        assert_eq!(look_up.await.len(), 1_000);
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
