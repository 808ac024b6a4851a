//! Maps a change of the cluster's state to the Services whose slices may be out of date.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1 as core;
use tokio::time::Instant;

use crate::{
    api::NamespacedName,
    cluster::{
        Change, Diff, Kind, Observer, State, WatchScope,
        kinds::{endpoint_slice::managed_selector, external_workload::ExternalWorkload},
    },
    controller::ObjectNames,
    queue::WorkQueue,
};

/// The kinds that the controller reads.
pub(super) const KINDS: &[Kind] = &[Kind::Service, Kind::EndpointSlice, Kind::ExternalWorkload];

/// Adds the Services that a change affects to the controller's queue.
pub struct ExternalWorkloadObserver {
    pub(super) queue: Arc<WorkQueue>,
    pub(super) services: ObjectNames<core::Service>,
}

impl ExternalWorkloadObserver {
    /// # Errors
    /// The metrics are already registered.
    pub fn new(registry: &prometheus::Registry) -> prometheus::Result<Arc<Self>> {
        Ok(Arc::new(Self { queue: WorkQueue::new(super::QUEUE, registry)?, services: ObjectNames::default() }))
    }
}

impl Observer for ExternalWorkloadObserver {
    fn kinds(&self) -> &'static [Kind] {
        KINDS
    }

    fn scope(&self, kind: Kind) -> WatchScope {
        let labels = (kind == Kind::EndpointSlice).then(managed_selector);
        WatchScope { labels, ..WatchScope::default() }
    }

    fn blocks_readiness(&self) -> bool {
        true
    }

    fn changed(&self, state: &State, changes: &[Change], _: Instant) {
        let mut services = BTreeSet::new();
        for change in changes {
            match change {
                Change::Service(diff) => {
                    let key = diff.latest().key.clone();
                    self.services.update(&key, diff.old().map(|it| &*it.uid), diff.current().map(|it| &*it.uid));
                    services.insert(key);
                }
                Change::EndpointSlice(diff) => {
                    let managed = diff.both().filter_map(|slice| slice.managed.as_ref());
                    services.extend(managed.flat_map(|slice| slice.services()));
                }
                Change::ExternalWorkload(diff) => services.extend(selecting(state, diff)),
                _ => {}
            }
        }
        self.queue.add(services);
    }
}

/// Returns the Services that select the ExternalWorkload before or after the change, if the change affects endpoints.
fn selecting(state: &State, diff: &Diff<ExternalWorkload>) -> BTreeSet<NamespacedName> {
    let is_same = |old: &Arc<ExternalWorkload>| diff.current().is_some_and(|new| old.has_same_endpoints(new));
    if diff.old().is_some_and(is_same) {
        return BTreeSet::new();
    }
    let labels: HashSet<_> = diff.both().map(|workload| &workload.labels).collect();
    let namespace = &*diff.latest().key.namespace;
    let services = labels.into_iter().flat_map(|labels| state.services.selecting(namespace, labels));
    services.map(|service| service.key.clone()).collect()
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        api::{MANAGED_BY, MANAGED_BY_LABEL, OPAQUE_PORTS_ANNOTATION},
        cluster::testing::Feed,
    };

    struct World {
        feed: Feed,
        observer: Arc<ExternalWorkloadObserver>,
    }

    impl World {
        fn new() -> Self {
            let observer = ExternalWorkloadObserver::new(&prometheus::Registry::new()).unwrap();
            Self { feed: Feed::new([Arc::clone(&observer) as Arc<dyn Observer>]), observer }
        }

        /// Applies an event and returns the names of the Services that it queued.
        fn affected(&mut self, kind: Kind, event: Event<Value>) -> String {
            self.feed.apply(kind, event);
            self.observer.queue.drain().iter().map(|key| key.name.to_string()).collect::<Vec<_>>().join(" ")
        }

        fn with_services(names: &[&str]) -> Self {
            let mut world = Self::new();
            for name in names {
                assert_eq!(world.affected(Kind::Service, Event::Apply(service(name, "1"))), *name);
            }
            world
        }
    }

    /// A Service that selects `app: NAME`.
    fn service(name: &str, uid: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "ns", "uid": uid}, "spec": {"selector": {"app": name}}})
    }

    fn workload(app: &str, changes: &Value) -> Event<Value> {
        let mut object = json!({"metadata": {"name": "vm", "namespace": "ns", "labels": {"app": app}},
            "spec": {"meshTLS": {"identity": "vm", "serverName": "vm.example"}, "workloadIPs": [{"ip": "192.0.2.1"}]}});
        for (key, value) in changes.as_object().unwrap() {
            object[key].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        }
        Event::Apply(object)
    }

    #[test]
    fn the_names_of_all_services_are_kept_for_the_controller() {
        let mut world = World::with_services(&["a", "b"]);
        world.affected(Kind::Service, Event::Apply(service("a", "2")));
        world.affected(Kind::Service, Event::Delete(service("b", "1")));
        let names: Vec<_> = world.observer.services.store().state().iter().map(|it| it.metadata.uid.clone()).collect();
        assert_eq!(names, [Some("2".to_owned())], "created again");
    }

    #[test]
    fn a_relabelled_workload_queues_the_services_that_selected_it_and_those_that_select_it_now() {
        let mut world = World::with_services(&["joined", "left", "other"]);
        assert_eq!(world.affected(Kind::ExternalWorkload, workload("left", &json!({}))), "left");
        assert_eq!(world.affected(Kind::ExternalWorkload, workload("joined", &json!({}))), "joined left");
        let Event::Apply(deleted) = workload("joined", &json!({})) else { unreachable!() };
        assert_eq!(world.affected(Kind::ExternalWorkload, Event::Delete(deleted)), "joined");
    }

    #[test]
    fn a_changed_workload_queues_services_only_if_the_change_affects_endpoints() {
        let mut world = World::with_services(&["a"]);
        let mut affected = |changes: Value| world.affected(Kind::ExternalWorkload, workload("a", &changes));
        assert_eq!(affected(json!({"metadata": {"annotations": {"note": "one"}}})), "a");
        assert_eq!(affected(json!({"metadata": {"annotations": {"note": "two"}}})), "");
        assert_eq!(affected(json!({"metadata": {"annotations": {OPAQUE_PORTS_ANNOTATION: "80"}}})), "");
        assert_eq!(affected(json!({"spec": {"meshTLS": {"identity": "other", "serverName": "vm.example"}}})), "");
        assert_eq!(affected(json!({"spec": {"workloadIPs": [{"ip": "192.0.2.2"}]}})), "a");
    }

    #[test]
    fn a_managed_slice_queues_the_service_it_named_before_the_one_it_names_now_and_its_owner() {
        let mut world = World::new();
        let slice = |manager: &str, service: &str, version: &str| {
            let labels = json!({"kubernetes.io/service-name": service, MANAGED_BY_LABEL: manager});
            let owner = json!({"apiVersion": "v1", "kind": "Service", "name": "owner", "uid": "u"});
            let metadata = json!({"name": "s", "namespace": "ns", "resourceVersion": version, "labels": labels, "ownerReferences": [owner]});
            Event::Apply(json!({ "metadata": metadata, "addressType": "IPv4" }))
        };
        assert_eq!(world.affected(Kind::EndpointSlice, slice("another", "web", "1")), "");
        assert_eq!(world.affected(Kind::EndpointSlice, slice(MANAGED_BY, "left", "2")), "left owner");
        assert_eq!(world.affected(Kind::EndpointSlice, slice(MANAGED_BY, "joined", "3")), "joined left owner");
        assert_eq!(world.affected(Kind::EndpointSlice, slice(MANAGED_BY, "joined", "3")), "", "listed again");
        assert_eq!(world.affected(Kind::EndpointSlice, slice("another", "joined", "4")), "joined owner");
    }
}
