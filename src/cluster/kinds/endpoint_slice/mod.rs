//! All EndpointSlices: which of them belong to a Service, and which name a Pod or an ExternalWorkload.
//!
//! A slice is kept in two forms, for two readers. What clients can be told is kept of every slice that names a Service; the
//! whole content only of those that the ExternalWorkload controller manages.

pub mod ready;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use crate::api::{MANAGED_BY, MANAGED_BY_LABEL};
use crate::{
    api::{
        NamespacedName,
        endpoint_slice::{EndpointSlice, SliceObject},
    },
    cluster::{Affected, Kind, Problems, Projected, State},
};
use ready::{EndpointReference, Instance, ReadySlice};

/// A slice as both readers need it.
pub struct Slice {
    key: NamespacedName,
    version: Option<String>,
    managed: Option<Arc<EndpointSlice>>,
    ready: Option<Arc<ReadySlice>>,
}

/// All EndpointSlices of a cluster.
#[derive(Default)]
pub struct Slices {
    namespaces: HashMap<Arc<str>, Namespace>,
    count: usize,
    ready: usize,
    unready: usize,
    seen_version: u64,
}

#[derive(Default)]
struct Namespace {
    by_name: HashMap<Arc<str>, Slice>,
    by_service: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    by_target: HashMap<EndpointReference, BTreeSet<Arc<str>>>,
}

/// The watch's selector while slices serve only the ExternalWorkload controller: the ones it manages.
pub fn managed_selector() -> String {
    format!("{MANAGED_BY_LABEL}={MANAGED_BY}")
}

// === impl Slice ===

impl Projected for Slice {
    type Wire = SliceObject;
    const KIND: Kind = Kind::EndpointSlice;

    fn project(wire: SliceObject, problems: &mut Problems) -> Self {
        let labels = wire.metadata.labels.as_ref();
        let managed = labels.and_then(|labels| labels.get(MANAGED_BY_LABEL)).is_some_and(|by| by == MANAGED_BY);
        Self {
            key: NamespacedName::of(&wire.metadata),
            version: wire.metadata.resource_version.clone(),
            ready: ReadySlice::of(&wire, problems).map(Arc::new),
            managed: managed.then(|| Arc::new(wire.into())),
        }
    }

    fn apply(self, state: &mut State) -> Affected {
        let affected = state.slices.insert(self);
        state.with_injectors(affected)
    }

    fn remove(key: &NamespacedName, state: &mut State) -> Affected {
        match state.slices.remove(key) {
            Some(old) => state.with_injectors(Affected {
                written: old.managed.iter().flat_map(|slice| slice.services()).collect(),
                discovered: old.service().cloned().into_iter().collect(),
                ..Affected::default()
            }),
            None => Affected::default(),
        }
    }

    fn keys(state: &State) -> Vec<NamespacedName> {
        let namespaces = state.slices.namespaces.values();
        namespaces.flat_map(|namespace| namespace.by_name.values()).map(|slice| slice.key.clone()).collect()
    }
}

impl Slice {
    fn service(&self) -> Option<&NamespacedName> {
        self.ready.as_ref().map(|slice| &slice.service)
    }

    /// What its endpoints stand for, each once.
    fn targets(&self) -> HashSet<EndpointReference> {
        let endpoints = self.ready.iter().flat_map(|slice| &slice.endpoints);
        let instances = self.ready.iter().flat_map(|slice| slice.instances.values());
        let pods = instances.filter_map(|instance| match instance {
            Instance::Pod(name, _) => Some(EndpointReference::Pod(Arc::clone(name))),
            Instance::Address(_) => None,
        });
        let targets = endpoints.map(|endpoint| endpoint.target.clone());
        targets.filter(|target| *target != EndpointReference::Address).chain(pods).collect()
    }

    /// How many endpoints of a managed slice are ready, and how many are not.
    fn readiness(&self) -> (usize, usize) {
        let endpoints = self.managed.as_ref().map(|slice| slice.endpoints.as_slice()).unwrap_or_default();
        let ready = endpoints.iter().filter(|endpoint| endpoint.is_ready()).count();
        (ready, endpoints.len() - ready)
    }
}

// === impl Slices ===

impl Slices {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many endpoints of managed slices are ready, and how many are not.
    pub fn endpoints_by_readiness(&self) -> (usize, usize) {
        (self.ready, self.unready)
    }

    /// The newest resourceVersion that the watch has brought: what was written at it, or before, has been seen.
    pub fn seen_version(&self) -> u64 {
        self.seen_version
    }

    /// A slice that the ExternalWorkload controller manages.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<EndpointSlice>> {
        self.namespaces.get(namespace)?.by_name.get(name)?.managed.as_ref()
    }

    /// The managed slices that name the Service, by name.
    pub fn of_service(&self, service: &NamespacedName) -> Vec<Arc<EndpointSlice>> {
        self.naming(service).filter_map(|slice| slice.managed.clone()).collect()
    }

    /// What clients of the Service can be told, by the slices' names.
    pub fn ready_of_service(&self, service: &NamespacedName) -> impl Iterator<Item = &Arc<ReadySlice>> {
        self.naming(service).filter_map(|slice| slice.ready.as_ref())
    }

    /// The endpoint of the Service with this hostname: of several slices' the first's, by their names.
    pub fn instance(&self, service: &NamespacedName, hostname: &str) -> Option<&Instance> {
        self.ready_of_service(service).find_map(|slice| slice.instances.get(hostname))
    }

    /// The Services of a namespace that have slices.
    pub fn services(&self, namespace: &str) -> impl Iterator<Item = NamespacedName> {
        let namespace = self.namespaces.get_key_value(namespace);
        let names =
            namespace.into_iter().flat_map(|(name, it)| it.by_service.keys().map(move |service| (name, service)));
        names.map(|(namespace, service)| NamespacedName::new(Arc::clone(namespace), Arc::clone(service)))
    }

    /// The Services that have the Pod as an endpoint.
    pub fn services_with_pod(&self, pod: &NamespacedName) -> Vec<NamespacedName> {
        self.naming_target(&pod.namespace, &EndpointReference::Pod(Arc::clone(&pod.name)))
    }

    /// The Services that have the ExternalWorkload as an endpoint.
    pub fn services_with_external_workload(&self, workload: &NamespacedName) -> Vec<NamespacedName> {
        self.naming_target(&workload.namespace, &EndpointReference::ExternalWorkload(Arc::clone(&workload.name)))
    }

    fn naming(&self, service: &NamespacedName) -> impl Iterator<Item = &Slice> {
        let namespace = self.namespaces.get(&service.namespace);
        let names = namespace.and_then(|it| it.by_service.get(&service.name)).into_iter().flatten();
        names.filter_map(move |name| namespace?.by_name.get(name))
    }

    fn naming_target(&self, namespace: &str, target: &EndpointReference) -> Vec<NamespacedName> {
        let Some(namespace) = self.namespaces.get(namespace) else { return Vec::new() };
        let slices = namespace.by_target.get(target).into_iter().flatten();
        slices.filter_map(|name| namespace.by_name.get(name)?.service().cloned()).collect()
    }

    fn insert(&mut self, slice: Slice) -> Affected {
        let version = slice.version.as_deref().and_then(|version| version.parse().ok());
        self.seen_version = self.seen_version.max(version.unwrap_or_default());
        let known = self.namespaces.get(&slice.key.namespace).and_then(|it| it.by_name.get(&slice.key.name));
        if known.is_some_and(|known| known.version == slice.version) {
            return Affected::default();
        }
        let old = self.remove(&slice.key);
        let old_ready = old.as_ref().and_then(|old| old.ready.as_ref());
        let mut affected = Affected::default();
        for managed in slice.managed.iter().chain(old.iter().flat_map(|old| &old.managed)) {
            affected.written.extend(managed.services());
        }
        if old_ready != slice.ready.as_ref() {
            affected.discovered.extend(slice.service().cloned());
            affected.discovered.extend(old_ready.map(|old| old.service.clone()));
        }
        let (ready, unready) = slice.readiness();
        self.count += 1;
        self.ready += ready;
        self.unready += unready;
        let namespace = self.namespaces.entry(Arc::clone(&slice.key.namespace)).or_default();
        let name = &slice.key.name;
        if let Some(service) = slice.service() {
            namespace.by_service.entry(Arc::clone(&service.name)).or_default().insert(Arc::clone(name));
        }
        for target in slice.targets() {
            namespace.by_target.entry(target).or_default().insert(Arc::clone(name));
        }
        namespace.by_name.insert(Arc::clone(name), slice);
        affected
    }

    fn remove(&mut self, key: &NamespacedName) -> Option<Slice> {
        let namespace = self.namespaces.get_mut(&key.namespace)?;
        let old = namespace.by_name.remove(&key.name)?;
        if let Some(service) = old.service() {
            unfile(&mut namespace.by_service, &service.name, &key.name);
        }
        for target in old.targets() {
            unfile(&mut namespace.by_target, &target, &key.name);
        }
        if namespace.by_name.is_empty() {
            self.namespaces.remove(&key.namespace);
        }
        let (ready, unready) = old.readiness();
        self.count -= 1;
        self.ready -= ready;
        self.unready -= unready;
        Some(old)
    }
}

fn unfile<K: std::hash::Hash + Eq + Clone>(index: &mut HashMap<K, BTreeSet<Arc<str>>>, key: &K, name: &str) {
    if let Some(names) = index.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(service: &str, version: &str, ready: bool) -> Slice {
        let target = json!({"kind": "Pod", "name": "web-1"});
        managed_by(
            MANAGED_BY,
            service,
            version,
            &json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}, "targetRef": target}]),
        )
    }

    fn managed_by(manager: &str, service: &str, version: &str, endpoints: &Value) -> Slice {
        let object = json!({
            "metadata": {"name": "s", "namespace": "ns", "resourceVersion": version,
                "labels": {"kubernetes.io/service-name": service, MANAGED_BY_LABEL: manager},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "owner", "uid": "u"}]},
            "addressType": "IPv4", "endpoints": endpoints});
        Slice::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
    }

    fn names<'a>(keys: impl IntoIterator<Item = &'a NamespacedName>) -> Vec<&'a str> {
        keys.into_iter().map(|key| &*key.name).collect::<BTreeSet<_>>().into_iter().collect()
    }

    #[test]
    fn a_relabelled_slice_affects_the_service_it_left_the_one_it_names_and_its_owner() {
        let mut slices = Slices::default();
        slices.insert(slice("left", "1", true));
        let affected = slices.insert(slice("joined", "2", false));
        assert_eq!(names(&affected.written), ["joined", "left", "owner"]);
        assert_eq!(names(&affected.discovered), ["joined", "left"], "clients read by label alone");
        assert!(slices.of_service(&NamespacedName::new("ns", "left")).is_empty());
        assert_eq!(slices.of_service(&NamespacedName::new("ns", "joined")).len(), 1);
        assert_eq!(slices.endpoints_by_readiness(), (0, 1));
    }

    #[test]
    fn a_relist_of_the_same_version_affects_nothing() {
        let mut slices = Slices::default();
        slices.insert(slice("web", "1", true));
        assert_eq!(slices.insert(slice("web", "1", true)), Affected::default());
        slices.remove(&NamespacedName::new("ns", "s"));
        assert!(slices.is_empty() && slices.namespaces.is_empty());
    }

    #[test]
    fn an_edit_that_no_client_sees_concerns_no_client() {
        let mut slices = Slices::default();
        slices.insert(slice("web", "1", true));
        let affected = slices.insert(slice("web", "2", true));
        assert_eq!((names(&affected.written), affected.discovered.len()), (vec!["owner", "web"], 0));
    }

    #[test]
    fn a_slice_of_others_is_kept_for_clients_only() {
        let mut slices = Slices::default();
        let endpoints = json!([{"addresses": ["10.0.0.1"]}]);
        let affected = slices.insert(managed_by("endpointslice-controller.k8s.io", "web", "1", &endpoints));
        assert_eq!((affected.written.len(), names(&affected.discovered)), (0, vec!["web"]));
        let service = NamespacedName::new("ns", "web");
        assert_eq!((slices.of_service(&service).len(), slices.ready_of_service(&service).count()), (0, 1));
    }

    #[test]
    fn a_slice_that_another_takes_over_is_gone_for_the_controller() {
        let mut slices = Slices::default();
        slices.insert(slice("web", "1", true));
        let affected = slices.insert(managed_by("somebody-else", "web", "2", &json!([])));
        assert_eq!(names(&affected.written), ["owner", "web"]);
        assert!(slices.of_service(&NamespacedName::new("ns", "web")).is_empty());
    }

    #[test]
    fn a_pod_that_is_not_ready_is_named_by_the_slices_that_give_it_a_hostname() {
        let mut slices = Slices::default();
        let target = json!({"kind": "Pod", "name": "db-0"});
        let endpoints = json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": false}, "hostname": "db-0", "targetRef": target}]);
        slices.insert(managed_by("endpointslice-controller.k8s.io", "db", "1", &endpoints));
        assert_eq!(names(&slices.services_with_pod(&NamespacedName::new("ns", "db-0"))), ["db"]);
        let db = NamespacedName::new("ns", "db");
        assert!(slices.instance(&db, "db-0").is_some() && slices.instance(&db, "db-1").is_none());
        slices.remove(&NamespacedName::new("ns", "s"));
        assert!(slices.namespaces.is_empty());
    }

    #[test]
    fn a_pod_is_named_by_the_slices_that_have_it_ready() {
        let mut slices = Slices::default();
        let pod = NamespacedName::new("ns", "web-1");
        slices.insert(slice("web", "1", true));
        assert_eq!(names(&slices.services_with_pod(&pod)), ["web"]);
        slices.insert(slice("web", "2", false));
        assert!(slices.services_with_pod(&pod).is_empty());
        assert!(slices.namespaces.values().all(|namespace| namespace.by_target.is_empty()));
    }
}
