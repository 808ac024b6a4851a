//! The keys that depend on a group of objects, looked up in steps.
//!
//! In: a group that an observer marked. Out: the Services and addresses of its objects. Always holds: the
//! members are listed at once, and their keys are looked up in steps, between which the lock of the state is released;
//! an object that changes between two steps is marked for itself.

use std::{sync::Arc, vec};

use tokio::time::Instant;
use tracing::error;

use super::{
    multicluster::clusters::Clusters,
    observer::{Batch, DirtyKey, GroupKey, ObjectGroup},
    publisher::{Publish, Slots, Turn},
};
use crate::{
    cluster::{
        Cluster,
        kinds::{external_workload::ExternalWorkload, pod::Pod},
    },
    contain::{Work, contain},
};

/// The number of keys after which a step ends.
const STEP: usize = 256;

/// The objects of a group whose keys have not been looked up yet.
pub(super) enum GroupMembers {
    Pods(vec::IntoIter<Arc<Pod>>),
    ExternalWorkloads(vec::IntoIter<Arc<ExternalWorkload>>),
}

#[derive(Default)]
pub(super) struct GroupWork {
    /// When the first event was received after the members were listed.
    marked: Option<Instant>,
    /// The members that were not looked up yet, and when their event was received.
    members: Option<(GroupMembers, Instant)>,
    /// The keys of the other members. They are published together, because many members belong to the same Service.
    found: Batch,
}

// === impl Clusters ===

/// The lookup of the keys of groups.
impl Publish for Clusters {
    type Key = GroupKey;
    type Work = GroupWork;

    fn add(&self, batch: &Batch, slots: &mut Slots<GroupKey, GroupWork>) {
        for (group, received) in &batch.groups {
            slots.work(group.clone()).marked.get_or_insert(*received);
        }
    }

    /// A turn is one step of the lookup.
    fn proceed(&self, group: &GroupKey, work: &mut GroupWork, _: Instant) -> Turn {
        let found = work.next_step(group, self);
        Turn { has_more: work.members.is_some() || work.marked.is_some(), found }
    }
}

// === impl GroupWork ===

impl GroupWork {
    /// Looks up some members. After the last one, returns the keys of all.
    fn next_step(&mut self, (remote, group): &GroupKey, clusters: &Clusters) -> Option<Batch> {
        let cluster = clusters.state_of(remote.as_deref(), group.namespace());
        if self.members.is_none() {
            let received = self.marked.take()?;
            self.members = Some((GroupMembers::of(cluster.as_ref()?, group), received));
        }
        let (members, received) = self.members.as_mut()?;
        let step = cluster.as_ref().map(|cluster| contain(Work::Publishing, || members.next_step(cluster)));
        let step = step.transpose().unwrap_or_else(|panicked| {
            error!(?group, %panicked, "could not look up the endpoints of some objects, so their change is lost");
            None
        });
        if let Some(step) = step.flatten() {
            let of_cluster = |key: DirtyKey| match remote {
                Some(remote) => key.of_cluster(remote),
                None => Some(key),
            };
            step.into_iter().filter_map(of_cluster).for_each(|key| self.found.add(key, *received));
            return None;
        }
        self.members = None;
        Some(std::mem::take(&mut self.found))
    }
}

// === impl GroupMembers ===

impl GroupMembers {
    pub(super) fn of(cluster: &Cluster, group: &ObjectGroup) -> Self {
        let state = cluster.read();
        match group {
            ObjectGroup::Pods(group) => Self::Pods(state.pods.in_group(group).into_iter()),
            ObjectGroup::ExternalWorkloads(namespace, label) => {
                Self::ExternalWorkloads(state.external_workloads.labeled(namespace, label.as_ref()).into_iter())
            }
        }
    }

    /// Returns the keys of the next objects, or `None` after the last object.
    pub(super) fn next_step(&mut self, cluster: &Cluster) -> Option<Vec<DirtyKey>> {
        let mut keys = Vec::new();
        let state = cluster.read();
        let mut any = false;
        while keys.len() < STEP {
            match self {
                Self::Pods(pods) => {
                    let Some(pod) = pods.next() else { break };
                    keys.extend(state.slices.services_with_pod(&pod.key).map(DirtyKey::Endpoints));
                    keys.extend(pod.network_addresses().map(DirtyKey::Address));
                }
                Self::ExternalWorkloads(workloads) => {
                    let Some(workload) = workloads.next() else { break };
                    let services = state.slices.services_with_external_workload(&workload.key);
                    keys.extend(services.map(DirtyKey::Endpoints));
                    keys.extend(workload.network_addresses().map(DirtyKey::Address));
                }
            }
            any = true;
        }
        any.then_some(keys)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use kube::runtime::watcher::Event;
    use prometheus::Registry as Prometheus;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        cluster::{Kind, Observer, index::label_selector::counters::counted, testing::Feed},
        destination::{
            authority::ProfileAuthority,
            metrics::DiscoveryMetrics,
            observer::DestinationObserver,
            profile::{request::ProfileRequest, views::ProfileViews},
            registry::Subscription,
            testing::settings,
            views::Views,
        },
    };

    struct Rig {
        feed: Feed,
        observer: Arc<DestinationObserver>,
        views: Arc<Views>,
    }

    impl Rig {
        fn new() -> Self {
            let observer = DestinationObserver::new();
            let feed = Feed::new([Arc::clone(&observer) as Arc<dyn Observer>]);
            let metrics = DiscoveryMetrics::register(&Prometheus::new()).unwrap();
            let views = Views::new(feed.cluster.clone(), &observer, settings().into(), metrics, None);
            Self { feed, observer, views }
        }

        fn apply(&mut self, kind: Kind, object: Value) {
            self.feed.apply(kind, Event::Apply(object));
        }

        fn subscribe(&self, path: &str) -> Subscription<ProfileViews> {
            let authority = ProfileAuthority::parse(path, &settings().cluster_domain).unwrap();
            self.views.profiles.subscribe(&ProfileRequest::new(authority, "")).unwrap()
        }
    }

    fn is_opaque(subscription: &mut Subscription<ProfileViews>) -> bool {
        subscription.latest().content.unwrap().profile.decoded().opaque_protocol
    }

    fn web(opaque_ports: &str) -> Value {
        let annotations = json!({ "config.linkerd.io/opaque-ports": opaque_ports });
        let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}]});
        json!({"metadata": {"name": "web", "namespace": "ns", "annotations": annotations}, "spec": spec})
    }

    /// A Server that selects all Pods but one, with a hundred thousand values.
    fn server(port: u16) -> Value {
        let names: Vec<String> =
            (0..100_000).map(|number| format!("x-{number}")).chain(["p-9999".to_owned()]).collect();
        let expression = json!({"key": "pod", "operator": "NotIn", "values": names});
        let spec = json!({"podSelector": {"matchExpressions": [expression]}, "port": port, "proxyProtocol": "opaque"});
        json!({"metadata": {"name": "s", "namespace": "hostile"}, "spec": spec})
    }

    #[tokio::test]
    async fn other_services_are_published_while_a_server_of_ten_thousand_pods_and_values_is_edited() {
        let mut rig = Rig::new();
        rig.apply(Kind::Service, web("80"));
        for number in 0..10_000_usize {
            let (name, ip) = (format!("p-{number}"), format!("10.1.{}.{}", number / 256, number % 256));
            let metadata = json!({"name": name, "namespace": "hostile", "labels": {"pod": name}});
            rig.apply(Kind::Pod, json!({"metadata": metadata, "status": {"phase": "Running", "podIP": ip}}));
        }
        let mut other = rig.subscribe("web.ns.svc.mycluster.local:80");
        let [mut first, mut last] = ["10.1.0.0:8080", "10.1.39.15:8080"].map(|path| rig.subscribe(path));
        assert!(is_opaque(&mut other));
        for (ports, annotation) in [([8080, 81], "81"), ([82, 8080], "80")] {
            for port in ports {
                let server = server(port);
                let ((), evaluations, _) = counted(|| rig.apply(Kind::Server, server));
                assert_eq!(evaluations, 0, "no selector is evaluated while the state is locked");
            }
            rig.apply(Kind::Service, web(annotation));
            let mut publisher = rig.views.publisher();
            publisher.add(rig.observer.dirty.next().await.into());
            // One turn for the Service, and one for the Server.
            publisher.turn(Duration::ZERO);
            publisher.turn(Duration::ZERO);
            assert_eq!(is_opaque(&mut other), annotation == "80", "published before all Pods are looked up");
            let mut turns = 0;
            let ((), evaluations, _) = counted(|| {
                while !publisher.is_empty() {
                    publisher.turn(Duration::ZERO);
                    turns += 1;
                }
            });
            assert!(turns >= 10_000 / 256, "the Pods of the Server are looked up in steps");
            assert!(evaluations <= 2, "only the Pods with clients are evaluated: {evaluations}");
            assert_eq!((is_opaque(&mut first), is_opaque(&mut last)), (ports[1] == 8080, false));
        }
    }

    #[test]
    fn a_step_ends_after_a_few_hundred_keys_and_all_steps_have_the_keys_of_all_objects() {
        let mut rig = Rig::new();
        for number in 0..1_000_usize {
            let (name, ip) = (format!("p-{number}"), format!("10.1.{}.{}", number / 256, number % 256));
            let metadata = json!({"name": name, "namespace": "ns"});
            rig.apply(Kind::Pod, json!({"metadata": metadata, "status": {"phase": "Running", "podIP": ip}}));
        }
        let server = json!({"metadata": {"name": "s", "namespace": "ns"}, "spec": {"podSelector": {}, "proxyProtocol": "opaque"}});
        rig.observer.subscribed();
        rig.apply(Kind::Server, server);
        let marked = rig.observer.dirty.next().now_or_never().unwrap();
        let [DirtyKey::Group((None, group))] = &marked.keys().collect::<Vec<_>>()[..] else { panic!("{marked:?}") };
        let mut members = GroupMembers::of(&rig.feed.cluster, group);
        let steps: Vec<_> = std::iter::from_fn(|| members.next_step(&rig.feed.cluster)).collect();
        assert_eq!(steps.iter().map(Vec::len).collect::<Vec<_>>(), [256, 256, 256, 232]);
        let keys: std::collections::HashSet<_> = steps.into_iter().flatten().collect();
        assert_eq!(keys.len(), 1_000);
    }
}
