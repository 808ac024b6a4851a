//! Fixtures: a cluster to which a test feeds watch events as JSON, in any order, through the code of the real watches;
//! and objects built from their metadata and `spec`.

use std::{any::Any, collections::HashMap, sync::Arc};

use kube::runtime::watcher::Event;
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::sync::watch as channel;

use super::{
    Cluster, Observer, Problems, Projected,
    kinds::{Kind, KindVisitor, Watched, external_workload::ExternalWorkload, pod::Pod, service::Service},
    watch::{Relist, WatchContext, WatchMemory, WatchMetrics, WatchStatus, guarded::Guarded},
};
use crate::memory::MemoryBudget;

pub(crate) struct Feed {
    pub(crate) cluster: Cluster,
    observers: Vec<Arc<dyn Observer>>,
    metrics: WatchMetrics,
    /// The `(Relist, WatchMemory)` of each kind.
    watches: HashMap<Kind, Box<dyn Any>>,
    /// The status of each kind that is not known until it was listed.
    statuses: HashMap<Kind, channel::Sender<WatchStatus>>,
}

impl Default for Feed {
    fn default() -> Self {
        Self::new([])
    }
}

impl Feed {
    pub(crate) fn new(observers: impl IntoIterator<Item = Arc<dyn Observer>>) -> Self {
        let metrics = WatchMetrics::register(&Registry::new()).unwrap();
        let cluster = Cluster { state: Arc::default(), watches: Arc::new([]), relist: Arc::default() };
        let observers = observers.into_iter().collect();
        Self { cluster, observers, metrics, watches: HashMap::new(), statuses: HashMap::new() }
    }

    /// A cluster whose kinds are not known until each was listed.
    pub(crate) fn unlisted(kinds: &[Kind], observer: Arc<dyn Observer>) -> Self {
        let mut feed = Self::new([observer]);
        let mut receivers = Vec::new();
        for kind in kinds {
            let (sender, receiver) = channel::channel(WatchStatus::new(*kind, false));
            feed.statuses.insert(*kind, sender);
            receivers.push(receiver);
        }
        feed.cluster.watches = receivers.into();
        feed
    }

    /// Lists a kind: the state then has exactly these objects of it.
    pub(crate) fn list(&mut self, kind: Kind, objects: impl IntoIterator<Item = Value>) {
        self.apply(kind, Event::Init);
        for object in objects {
            self.apply(kind, Event::InitApply(object));
        }
        self.apply(kind, Event::InitDone);
        if let Some(status) = self.statuses.get(&kind) {
            status.send_modify(|status| _ = status.listed());
        }
    }

    pub(crate) fn apply(&mut self, kind: Kind, event: Event<Value>) {
        kind.visit(Apply { feed: self, event });
    }
}

struct Apply<'a> {
    feed: &'a mut Feed,
    event: Event<Value>,
}

impl KindVisitor for Apply<'_> {
    type Output = ();

    fn visit<T: Watched>(self) {
        let Self { feed, event } = self;
        let read = |value: Value| serde_json::from_str::<Guarded<T::Wire>>(&value.to_string()).unwrap();
        let event = match event {
            Event::Init => Event::Init,
            Event::InitApply(object) => Event::InitApply(read(object)),
            Event::InitDone => Event::InitDone,
            Event::Apply(object) => Event::Apply(read(object)),
            Event::Delete(object) => Event::Delete(read(object)),
        };
        let context = WatchContext {
            cluster: None,
            state: Arc::clone(&feed.cluster.state),
            observers: feed.observers.iter().filter(|observer| observer.kinds().contains(&T::KIND)).cloned().collect(),
            relist: Arc::default(),
            metrics: feed.metrics.clone(),
            memory: MemoryBudget::UNLIMITED,
        };
        let new = || -> Box<dyn Any> { Box::new((Relist::<T>::default(), WatchMemory::default())) };
        let watch = feed.watches.entry(T::KIND).or_insert_with(new);
        let (relist, memory) = watch.downcast_mut::<(Relist<T>, WatchMemory)>().unwrap();
        context.apply::<T>(event, relist, memory);
    }
}

/// Returns a Pod with this metadata and `spec`, and the number of its unusable parts.
pub(crate) fn pod(metadata: &Value, spec: &Value) -> (Pod, usize) {
    let mut object = json!({"metadata": {"name": "web-1", "namespace": "ns"}, "spec": spec});
    object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    let mut problems = Problems::default();
    let pod = Pod::project(serde_json::from_value(object).unwrap(), &mut problems);
    (pod, problems.len())
}

/// Returns Pod `ns/web-1` with this `spec` and `status`.
pub(crate) fn pod_with_status(spec: &Value, status: &Value) -> Pod {
    let object = json!({"metadata": {"name": "web-1", "namespace": "ns"}, "spec": spec, "status": status});
    Pod::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
}

/// Returns an ExternalWorkload with this `spec`, labels and Ready condition.
pub(crate) fn external_workload(name: &str, ready: bool, labels: &Value, spec: &Value) -> ExternalWorkload {
    let object = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "labels": labels},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
    });
    ExternalWorkload::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
}

/// Returns Service `ns/legacy` with this `spec`.
pub(crate) fn service(spec: &Value) -> Service {
    let object = json!({"metadata": {"name": "legacy", "namespace": "ns", "uid": "service-uid"}, "spec": spec});
    Service::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::time::Instant;

    use super::*;
    use crate::cluster::{Change, State};

    /// Records the name of each changed object, and the number of objects of its kind in the state at that time.
    struct Notes(&'static [Kind], Mutex<Vec<Vec<(String, usize)>>>);

    impl Observer for Notes {
        fn kinds(&self) -> &'static [Kind] {
            self.0
        }

        fn blocks_readiness(&self) -> bool {
            false
        }

        fn changed(&self, state: &State, changes: &[Change], _: Instant) {
            let noted = changes.iter().map(|change| match change {
                Change::Pod(diff) => (diff.latest().key.name.to_string(), state.pods.len()),
                Change::Service(diff) => (diff.latest().key.name.to_string(), state.services.len()),
                other => panic!("a change of a kind that the observer does not read: {other:?}"),
            });
            self.1.lock().push(noted.collect());
        }
    }

    fn notes(kinds: &'static [Kind]) -> Arc<Notes> {
        Arc::new(Notes(kinds, Mutex::default()))
    }

    fn noted(notes: &Notes) -> Vec<Vec<(String, usize)>> {
        std::mem::take(&mut *notes.1.lock())
    }

    fn object(name: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "ns"}})
    }

    #[test]
    fn in_one_process_the_observers_of_two_clusters_receive_only_changes_of_their_own_kinds_and_cluster() {
        let (both, pods, other) = (notes(&[Kind::Pod, Kind::Service]), notes(&[Kind::Pod]), notes(&[Kind::Service]));
        let mut first = Feed::new([Arc::clone(&both) as Arc<dyn Observer>, Arc::clone(&pods) as Arc<dyn Observer>]);
        let mut second = Feed::new([Arc::clone(&other) as Arc<dyn Observer>]);
        first.apply(Kind::Pod, Event::Apply(object("a")));
        first.apply(Kind::Service, Event::Apply(object("b")));
        first.apply(Kind::Node, Event::Apply(json!({"metadata": {"name": "c"}})));
        second.apply(Kind::Service, Event::Apply(object("d")));
        second.apply(Kind::Pod, Event::Apply(object("e")));
        assert_eq!(noted(&both), [[("a".to_owned(), 1)], [("b".to_owned(), 1)]]);
        assert_eq!(noted(&pods), [[("a".to_owned(), 1)]]);
        assert_eq!(noted(&other), [[("d".to_owned(), 1)]]);
        let (first, second) = (first.cluster.read(), second.cluster.read());
        assert!(first.services.find("ns", "d").is_none() && second.services.find("ns", "b").is_none());
    }

    #[test]
    fn a_relist_is_passed_to_observers_as_one_set_of_changes() {
        let pods = notes(&[Kind::Pod]);
        let mut feed = Feed::new([Arc::clone(&pods) as Arc<dyn Observer>]);
        feed.apply(Kind::Pod, Event::Apply(object("stays")));
        feed.apply(Kind::Pod, Event::Apply(object("goes")));
        noted(&pods);
        for event in [Event::Init, Event::InitApply(object("stays")), Event::InitApply(object("comes"))] {
            feed.apply(Kind::Pod, event);
        }
        assert!(noted(&pods).is_empty(), "an incomplete list is not passed on");
        feed.apply(Kind::Pod, Event::InitDone);
        assert_eq!(noted(&pods), [[("comes".to_owned(), 2), ("goes".to_owned(), 2)]]);
    }

    #[test]
    fn the_time_of_each_write_lock_is_measured_for_the_kind_of_the_change() {
        for kind in Kind::ALL {
            let mut feed = Feed::default();
            let object = || json!({"metadata": {"name": "a", "namespace": "ns"}, "spec": {}});
            for event in [Event::Apply(object()), Event::Init, Event::InitApply(object()), Event::InitDone] {
                feed.apply(*kind, event);
            }
            feed.apply(*kind, Event::Delete(object()));
            for other in Kind::ALL {
                let expected = if other == kind { 3 } else { 0 };
                assert_eq!(feed.metrics.write_locks(*other), expected, "{other:?} after three changes of {kind:?}");
            }
        }
    }
}
