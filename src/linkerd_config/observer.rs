//! Maps changes of the cluster state to the LinkerdConfigs that must be reconciled.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use tokio::{sync::Notify, time::Instant};

use crate::{
    api::{self, CANARY_CONFIG_MAP, INJECTOR, NamespacedName, OPERATOR_WEBHOOK_SERVICE, TRUST_ROOTS},
    cluster::{
        Change, Diff, Kind, Observer, State, WatchScope,
        index::{active_config, store::Store},
        kinds::{endpoint_slice::Slice, linkerd_config::LinkerdConfig},
    },
    controller::ObjectNames,
    queue::WorkQueue,
};

/// The kinds that the controller reads.
pub(super) const KINDS: &[Kind] = &[Kind::LinkerdConfig, Kind::LinkerdTrust, Kind::ConfigMap, Kind::EndpointSlice];
/// The kinds of the controller and of the [release](super::deletion::release) of resources. The controller does not
/// wait for namespaces, because users may withhold the permission.
const WATCHED: &[Kind] =
    &[Kind::LinkerdConfig, Kind::LinkerdTrust, Kind::ConfigMap, Kind::EndpointSlice, Kind::Namespace];

/// Adds the LinkerdConfigs that a change affects to the controller's queue.
pub struct LinkerdConfigObserver {
    pub(super) queue: Arc<WorkQueue>,
    pub(super) configs: ObjectNames<api::LinkerdConfig>,
    /// Notified after a change that may [release](super::deletion::release) a resource.
    pub(super) released: Arc<Notify>,
    /// ConfigMaps are watched in the control-plane namespace only.
    control_plane_namespace: Arc<str>,
}

impl LinkerdConfigObserver {
    /// # Errors
    /// When the metrics are registered already.
    pub fn new(control_plane_namespace: &str, registry: &prometheus::Registry) -> prometheus::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            queue: WorkQueue::new(super::QUEUE, registry)?,
            configs: ObjectNames::default(),
            released: Arc::default(),
            control_plane_namespace: control_plane_namespace.into(),
        }))
    }
}

impl Observer for LinkerdConfigObserver {
    fn kinds(&self) -> &'static [Kind] {
        WATCHED
    }

    fn scope(&self, kind: Kind) -> WatchScope {
        let namespace = (kind == Kind::ConfigMap).then(|| Arc::clone(&self.control_plane_namespace));
        WatchScope { namespace, ..WatchScope::default() }
    }

    fn blocks_readiness(&self) -> bool {
        false
    }

    fn changed(&self, state: &State, changes: &[Change], _: Instant) {
        let mut names: BTreeSet<Arc<str>> = BTreeSet::new();
        let configs = &state.linkerd_configs;
        let mut add = |found: &mut dyn Iterator<Item = &Arc<LinkerdConfig>>| {
            names.extend(found.map(|config| Arc::clone(&config.name)));
        };
        for change in changes {
            match change {
                Change::LinkerdConfig(diff) => {
                    let key = NamespacedName::new("", Arc::clone(&diff.latest().name));
                    self.configs.update(&key, diff.old().map(|it| &*it.uid), diff.current().map(|it| &*it.uid));
                    // A deleted resource is queued too, so that the controller drops its cache entry.
                    add(&mut [diff.latest()].into_iter());
                    if diff.latest().deleting {
                        self.released.notify_one();
                    }
                }
                Change::Namespace(diff) if *diff.latest().name == *self.control_plane_namespace => {
                    self.released.notify_one();
                }
                Change::ConfigMap(diff) => {
                    let key = &diff.latest().key;
                    match &*key.name {
                        TRUST_ROOTS => add(&mut active_config::in_namespace(configs, &key.namespace)),
                        // A resource that is no longer active takes its own canary back.
                        CANARY_CONFIG_MAP => add(&mut configs.iter().filter(|it| it.target.namespace == key.namespace)),
                        _ => add(&mut active_config::of(configs, key).into_iter()),
                    }
                }
                // It says which trust anchors a proxy needs.
                Change::LinkerdTrust(diff) => {
                    for trust in diff.both() {
                        add(&mut active_config::in_namespace(configs, &trust.spec.control_plane_namespace));
                    }
                }
                // When the endpoints of an injector change, the active LinkerdConfigs are checked against the new
                // replicas.
                Change::EndpointSlice(diff) => {
                    for namespace in changed_injectors(diff, &self.control_plane_namespace) {
                        add(&mut active_config::in_namespace(configs, &namespace));
                    }
                }
                _ => {}
            }
        }
        add(&mut handed_over(configs, changes).into_iter());
        self.queue.add(names.into_iter().map(|name| NamespacedName::new("", name)));
    }
}

/// If the slice changes the ready endpoints of injectors, returns the namespaces whose ConfigMaps these injectors read.
fn changed_injectors(diff: &Diff<Slice>, control_plane: &Arc<str>) -> BTreeSet<Arc<str>> {
    let namespaces = diff.both().filter_map(|slice| slice.service()).filter_map(|service| match &*service.name {
        INJECTOR => Some(Arc::clone(&service.namespace)),
        OPERATOR_WEBHOOK_SERVICE => Some(Arc::clone(control_plane)),
        _ => None,
    });
    let namespaces: BTreeSet<_> = namespaces.collect();
    let ready = |slice: Option<&Arc<Slice>>| slice.and_then(|slice| slice.ready.clone());
    if namespaces.is_empty() || ready(diff.old()) == ready(diff.current()) { BTreeSet::new() } else { namespaces }
}

/// Returns all resources for the ConfigMaps whose active resource changed, or began or stopped enforcing. The status of
/// each resource names the active one, and only an active resource that enforces supersedes the others.
fn handed_over<'a>(configs: &'a Store<LinkerdConfig>, changes: &[Change]) -> Vec<&'a Arc<LinkerdConfig>> {
    let diffs: Vec<_> = changes
        .iter()
        .filter_map(|change| match change {
            Change::LinkerdConfig(diff) => Some(diff),
            _ => None,
        })
        .collect();
    let changed: HashSet<_> = diffs.iter().map(|diff| &diff.latest().name).collect();
    let targets: HashSet<_> = diffs.iter().flat_map(|diff| diff.both()).map(|config| &config.target).collect();
    let mut affected = Vec::new();
    for target in targets {
        let unchanged = configs.targeting(target).filter(|config| !changed.contains(&config.name));
        let old = diffs.iter().filter_map(|diff| diff.old()).filter(|old| old.target == *target);
        let place = |config: &Arc<LinkerdConfig>| (Arc::clone(&config.name), config.enforces());
        let before = active_config::first(unchanged.chain(old)).map(place);
        if before != active_config::of(configs, target).map(place) {
            affected.extend(configs.targeting(target).filter(|config| !config.deleting));
        }
    }
    affected
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::testing::Feed;

    const OLD: &str = "2026-01-01T00:00:00Z";
    const NEW: &str = "2026-01-02T00:00:00Z";

    struct World {
        feed: Feed,
        observer: Arc<LinkerdConfigObserver>,
    }

    impl World {
        fn new() -> Self {
            let observer = LinkerdConfigObserver::new("linkerd", &prometheus::Registry::new()).unwrap();
            Self { feed: Feed::new([Arc::clone(&observer) as Arc<dyn Observer>]), observer }
        }

        /// Applies the event, and returns the names of the queued resources.
        fn affected(&mut self, kind: Kind, event: Event<Value>) -> String {
            self.feed.apply(kind, event);
            self.observer.queue.drain().iter().map(|key| key.name.to_string()).collect::<Vec<_>>().join(" ")
        }
    }

    fn config(name: &str, priority: i32, created: &str, deleted: Option<&str>) -> Value {
        let metadata = json!({"name": name, "uid": name, "creationTimestamp": created, "deletionTimestamp": deleted});
        json!({"metadata": metadata, "spec": {"priority": priority}})
    }

    #[test]
    fn all_resources_of_a_config_map_are_reconciled_when_another_becomes_active() {
        let mut world = World::new();
        let mut affected = |event| world.affected(Kind::LinkerdConfig, event);
        assert_eq!(affected(Event::Apply(config("b", 0, NEW, None))), "b");
        assert_eq!(affected(Event::Apply(config("c", 0, OLD, None))), "b c");
        assert_eq!(affected(Event::Apply(config("a", 0, OLD, None))), "a b c");
        assert_eq!(affected(Event::Apply(config("d", 7, NEW, None))), "a b c d");
        assert_eq!(affected(Event::Apply(config("b", 1, NEW, None))), "b", "the active resource is the same");
        assert_eq!(affected(Event::Apply(config("d", 7, NEW, Some(NEW)))), "a b c d");
        assert_eq!(affected(Event::Delete(config("d", 7, NEW, Some(NEW)))), "d", "it was no longer active");
        assert_eq!(affected(Event::Delete(config("b", 1, NEW, None))), "a b c");
        let names = world.observer.configs.store();
        let mut names: Vec<_> = names.state().iter().filter_map(|it| it.metadata.name.clone()).collect();
        names.sort();
        assert_eq!(names, ["a", "c"]);
    }

    #[test]
    fn all_resources_are_reconciled_when_the_active_one_begins_or_ends_to_enforce() {
        let mut world = World::new();
        let mut affected = |event| world.affected(Kind::LinkerdConfig, event);
        let with_mode = |mode: &str| {
            let mut object = config("a", 7, OLD, None);
            object["spec"]["mode"] = json!(mode);
            Event::Apply(object)
        };
        affected(Event::Apply(config("b", 0, OLD, None)));
        assert_eq!(affected(with_mode("Enforce")), "a b");
        assert_eq!(affected(with_mode("Observe")), "a b");
        assert_eq!(affected(with_mode("Suspend")), "a", "neither of the modes enforces");
        assert_eq!(affected(with_mode("Enforce")), "a b");
    }

    #[test]
    fn a_relist_that_changes_the_active_resource_reconciles_all_resources() {
        let mut world = World::new();
        for (name, priority) in [("a", 7), ("b", 0), ("c", 0)] {
            world.affected(Kind::LinkerdConfig, Event::Apply(config(name, priority, OLD, None)));
        }
        world.feed.apply(Kind::LinkerdConfig, Event::Init);
        for (name, priority) in [("a", 0), ("b", 9), ("c", 0)] {
            world.feed.apply(Kind::LinkerdConfig, Event::InitApply(config(name, priority, OLD, None)));
        }
        assert_eq!(world.affected(Kind::LinkerdConfig, Event::InitDone), "a b c");
    }

    #[test]
    fn a_resource_that_changes_its_config_map_reconciles_the_resources_of_both() {
        let mut world = World::new();
        let on = |name: &str, priority: i32, config_map: &str| {
            let mut object = config(name, priority, OLD, None);
            object["spec"]["global"] = json!({"configMap": config_map});
            Event::Apply(object)
        };
        world.affected(Kind::LinkerdConfig, on("a", 0, "one"));
        world.affected(Kind::LinkerdConfig, on("b", 0, "two"));
        assert_eq!(world.affected(Kind::LinkerdConfig, on("c", 7, "one")), "a c");
        assert_eq!(world.affected(Kind::LinkerdConfig, on("c", 7, "two")), "a b c");
    }

    #[test]
    fn a_change_of_the_config_map_the_trust_anchors_or_the_injectors_reconciles_the_active_resource() {
        let mut world = World::new();
        world.affected(Kind::LinkerdConfig, Event::Apply(config("a", 0, OLD, None)));
        world.affected(Kind::LinkerdConfig, Event::Apply(config("b", 0, NEW, None)));
        let mut config_map = |namespace: &str, name: &str| {
            let object = json!({"metadata": {"name": name, "namespace": namespace}, "data": {"values": "a: 1"}});
            world.affected(Kind::ConfigMap, Event::Apply(object))
        };
        assert_eq!(config_map("linkerd", "linkerd-config"), "a");
        assert_eq!(config_map("linkerd", "linkerd-identity-trust-roots"), "a");
        assert_eq!(config_map("linkerd", "linkerd-config-canary"), "a b", "its owner may be no longer active");
        assert_eq!(config_map("linkerd", "other"), "");
        assert_eq!(config_map("other", "linkerd-identity-trust-roots"), "");
        let mut trust = |namespace: &str, status: Value| {
            let spec = json!({"controlPlaneNamespace": namespace, "anchors": {"pem": "declared"}});
            world.affected(
                Kind::LinkerdTrust,
                Event::Apply(json!({"metadata": {"name": namespace}, "spec": spec, "status": status})),
            )
        };
        assert_eq!(trust("linkerd", json!({})), "a");
        assert_eq!(trust("linkerd", json!({"phase": "Steady"})), "");
        assert_eq!(trust("linkerd", json!({"trustRootsSHA256": "00"})), "a");
        assert_eq!(trust("linkerd", json!({"sufficientAnchors": ["00"]})), "a");
        assert_eq!(trust("other", json!({})), "");
        let slice = |service: &str, version: &str, address: &str| {
            let labels = json!({"kubernetes.io/service-name": service});
            let metadata =
                json!({"name": service, "namespace": "linkerd", "resourceVersion": version, "labels": labels});
            Event::Apply(json!({"metadata": metadata, "endpoints": [{"addresses": [address]}]}))
        };
        assert_eq!(world.affected(Kind::EndpointSlice, slice("linkerd-proxy-injector", "1", "10.0.0.1")), "a");
        assert_eq!(world.affected(Kind::EndpointSlice, slice("linkerd-proxy-injector", "2", "10.0.0.1")), "");
        assert_eq!(world.affected(Kind::EndpointSlice, slice("linkerd-proxy-injector", "3", "10.0.0.2")), "a");
        assert_eq!(world.affected(Kind::EndpointSlice, slice("linkerd-identity", "1", "10.0.0.1")), "");
    }
}
