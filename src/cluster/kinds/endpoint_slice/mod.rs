//! EndpointSlices, found by their Service and by the Pods and ExternalWorkloads that they refer to.
//!
//! A slice is stored in up to two forms: the ready endpoints of every slice that names a Service, for discovery; and
//! the whole content of the slices that the ExternalWorkload controller manages, for that controller.

pub mod node_hints;
pub mod ready;

use std::{collections::HashSet, sync::Arc};

use ready::{EndpointReference, Instance, ReadySlice};

use crate::{
    api::{
        MANAGED_BY, MANAGED_BY_LABEL, NamespacedName, Uid,
        endpoint_slice::{EndpointSlice, SliceObject},
        version_number,
    },
    cluster::{
        Problems, Projected,
        index::{
            names::NamesBy,
            shared_values::SharedValues,
            store::{Store, Stored},
        },
    },
};

/// An EndpointSlice in the forms that its observers need.
#[derive(Clone, Debug)]
pub struct Slice {
    key: NamespacedName,
    uid: Option<Uid>,
    version: Option<String>,
    /// The whole content; `None` unless the ExternalWorkload controller manages the slice.
    pub managed: Option<Arc<EndpointSlice>>,
    /// The content for clients; `None` if the slice names no Service.
    pub ready: Option<Arc<ReadySlice>>,
}

/// The slices of a namespace, by their Service and by the objects that their endpoints refer to.
#[derive(Default)]
pub struct SlicesOfNamespace {
    by_service: NamesBy<Arc<str>>,
    /// The slices with hints for nodes, by Service.
    with_node_hints: NamesBy<Arc<str>>,
    by_reference: NamesBy<EndpointReference>,
}

/// Sums over all slices.
#[derive(Default)]
pub struct SliceTotals {
    ready: usize,
    unready: usize,
    seen_version: u64,
}

/// The label selector of the slices that the ExternalWorkload controller manages.
pub fn managed_selector() -> String {
    format!("{MANAGED_BY_LABEL}={MANAGED_BY}")
}

// === impl Slice ===

impl Projected for Slice {
    type Wire = SliceObject;
    const INFORMER_LAG: Option<&'static str> = Some("endpointslices_informer_lag_seconds");

    fn project(wire: SliceObject, problems: &mut Problems) -> Self {
        let labels = wire.metadata.labels.as_ref();
        let managed = labels.and_then(|labels| labels.get(MANAGED_BY_LABEL)).is_some_and(|by| by == MANAGED_BY);
        Self {
            key: NamespacedName::of(&wire.metadata),
            uid: wire.metadata.uid.as_deref().and_then(Uid::new),
            version: wire.metadata.resource_version.clone(),
            ready: ReadySlice::of(&wire, problems).map(Arc::new),
            managed: managed.then(|| Arc::new(wire.into())),
        }
    }

    fn share(&mut self, values: &mut SharedValues) {
        values.text(&mut self.key.namespace);
        if let Some(ready) = self.ready.as_mut().and_then(Arc::get_mut) {
            ready.name = Arc::clone(&self.key.name);
            ready.share(values);
        }
    }
}

/// A UID and a resourceVersion identify the content of a slice, so the content is not compared. Without the UID, a slice
/// that was created after a restore of etcd, or in another cluster, could equal an earlier one.
impl PartialEq for Slice {
    fn eq(&self, other: &Self) -> bool {
        (&self.key, &self.uid, &self.version) == (&other.key, &other.uid, &other.version)
    }
}

impl Slice {
    /// The Service that the slice belongs to.
    pub fn service(&self) -> Option<&NamespacedName> {
        self.ready.as_ref().map(|slice| &slice.service)
    }

    fn has_node_hints(&self) -> bool {
        self.ready.as_ref().is_some_and(|slice| slice.node_hints.is_some())
    }

    /// The objects that its endpoints refer to, each once.
    fn references(&self) -> HashSet<EndpointReference> {
        let endpoints = self.ready.iter().flat_map(|slice| &slice.endpoints);
        let instances = self.ready.iter().flat_map(|slice| slice.instances.values());
        let pods = instances.filter_map(|instance| match instance {
            Instance::Pod { name, .. } => Some(EndpointReference::Pod(Arc::clone(name))),
            Instance::Address(_) => None,
        });
        let targets = endpoints.map(|endpoint| endpoint.target.clone());
        targets.filter(|target| *target != EndpointReference::Address).chain(pods).collect()
    }

    /// The number of ready and of other endpoints of a managed slice.
    fn readiness(&self) -> (usize, usize) {
        let endpoints = self.managed.as_ref().map(|slice| slice.endpoints.as_slice()).unwrap_or_default();
        let ready = endpoints.iter().filter(|endpoint| endpoint.is_ready()).count();
        (ready, endpoints.len() - ready)
    }
}

impl Stored for Slice {
    type NamespaceIndex = SlicesOfNamespace;
    type ClusterIndex = SliceTotals;

    fn key(&self) -> NamespacedName {
        self.key.clone()
    }

    fn prepare(&mut self, cluster: &mut SliceTotals) {
        let version = self.version.as_deref().and_then(version_number).unwrap_or_default();
        cluster.seen_version = cluster.seen_version.max(version);
    }

    fn index(self: &Arc<Self>, namespace: &mut SlicesOfNamespace, cluster: &mut SliceTotals) {
        if let Some(service) = self.service() {
            namespace.by_service.insert(Arc::clone(&service.name), &self.key.name);
            if self.has_node_hints() {
                namespace.with_node_hints.insert(Arc::clone(&service.name), &self.key.name);
            }
        }
        for reference in self.references() {
            namespace.by_reference.insert(reference, &self.key.name);
        }
        let (ready, unready) = self.readiness();
        cluster.ready += ready;
        cluster.unready += unready;
    }

    fn unindex(self: &Arc<Self>, namespace: &mut SlicesOfNamespace, cluster: &mut SliceTotals) {
        if let Some(service) = self.service() {
            namespace.by_service.remove(&service.name, &self.key.name);
            if self.has_node_hints() {
                namespace.with_node_hints.remove(&service.name, &self.key.name);
            }
        }
        for reference in self.references() {
            namespace.by_reference.remove(&reference, &self.key.name);
        }
        let (ready, unready) = self.readiness();
        cluster.ready -= ready;
        cluster.unready -= unready;
    }
}

impl Store<Slice> {
    /// The number of ready and of other endpoints of all managed slices.
    pub fn managed_endpoints_by_readiness(&self) -> (usize, usize) {
        (self.cluster_index().ready, self.cluster_index().unready)
    }

    /// The newest resourceVersion that the watch has delivered. Every write up to this version is in the store.
    pub fn seen_version(&self) -> u64 {
        self.cluster_index().seen_version
    }

    /// The content of a slice that the ExternalWorkload controller manages.
    pub fn managed(&self, namespace: &str, name: &str) -> Option<&Arc<EndpointSlice>> {
        self.find(namespace, name)?.managed.as_ref()
    }

    /// The managed slices of the Service, by name.
    pub fn managed_of_service(&self, service: &NamespacedName) -> Vec<Arc<EndpointSlice>> {
        self.of_service(service).filter_map(|slice| slice.managed.clone()).collect()
    }

    /// The content for clients of the Service, by the names of the slices.
    pub fn ready_of_service(&self, service: &NamespacedName) -> impl Iterator<Item = &Arc<ReadySlice>> {
        self.of_service(service).filter_map(|slice| slice.ready.as_ref())
    }

    /// Whether an endpoint of the Service has a hint for a node.
    pub fn have_node_hints(&self, service: &NamespacedName) -> bool {
        self.select(&service.namespace, |index| index.with_node_hints.get(&service.name)).next().is_some()
    }

    /// The endpoint of the Service with this hostname. If several slices have one, the first slice by name is used.
    pub fn instance(&self, service: &NamespacedName, hostname: &str) -> Option<&Instance> {
        self.ready_of_service(service).find_map(|slice| slice.instances.get(hostname))
    }

    /// The Services that have the Pod as an endpoint.
    pub fn services_with_pod(&self, pod: &NamespacedName) -> impl Iterator<Item = NamespacedName> {
        self.services_with(&pod.namespace, EndpointReference::Pod(Arc::clone(&pod.name)))
    }

    /// The Services that have the ExternalWorkload as an endpoint.
    pub fn services_with_external_workload(&self, workload: &NamespacedName) -> impl Iterator<Item = NamespacedName> {
        self.services_with(&workload.namespace, EndpointReference::ExternalWorkload(Arc::clone(&workload.name)))
    }

    fn of_service(&self, service: &NamespacedName) -> impl Iterator<Item = &Arc<Slice>> {
        self.select(&service.namespace, |index| index.by_service.get(&service.name))
    }

    fn services_with(&self, namespace: &str, reference: EndpointReference) -> impl Iterator<Item = NamespacedName> {
        let slices = self.select(namespace, move |index| index.by_reference.get(&reference));
        slices.filter_map(|slice| slice.service().cloned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    type Slices = Store<Slice>;

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

    fn names(keys: impl Iterator<Item = NamespacedName>) -> Vec<String> {
        keys.map(|key| key.name.to_string()).collect()
    }

    #[test]
    fn a_relabelled_slice_belongs_to_its_new_service_only() {
        let mut slices = Slices::default();
        slices.apply(slice("left", "1", true));
        slices.apply(slice("joined", "2", false));
        assert!(slices.managed_of_service(&NamespacedName::new("ns", "left")).is_empty());
        assert_eq!(slices.managed_of_service(&NamespacedName::new("ns", "joined")).len(), 1);
        assert_eq!(slices.managed_endpoints_by_readiness(), (0, 1));
    }

    #[test]
    fn a_relist_of_the_same_version_is_no_change() {
        let mut slices = Slices::default();
        assert!(slices.apply(slice("web", "7", true)).is_some());
        assert!(slices.apply(slice("web", "7", true)).is_none());
        assert!(slices.delete(&NamespacedName::new("ns", "s")).is_some());
        assert!(slices.is_empty());
        assert_eq!((slices.managed_endpoints_by_readiness(), slices.seen_version()), ((0, 0), 7));
    }

    /// After a restore of etcd, or in another cluster, a slice may have the version of another one.
    #[test]
    fn another_slice_with_the_name_and_the_version_of_a_known_one_is_a_change() {
        let with_uid = |uid: &str| {
            let metadata = json!({"name": "s", "namespace": "ns", "uid": uid, "resourceVersion": "7"});
            let object = json!({"metadata": metadata, "addressType": "IPv4", "endpoints": []});
            Slice::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
        };
        let mut slices = Slices::default();
        assert!(slices.apply(with_uid("a")).is_some() && slices.apply(with_uid("a")).is_none());
        assert!(slices.apply(with_uid("b")).is_some());
    }

    #[test]
    fn a_slice_of_another_controller_is_stored_for_clients_only() {
        let mut slices = Slices::default();
        let endpoints = json!([{"addresses": ["10.0.0.1"]}]);
        slices.apply(managed_by("endpointslice-controller.k8s.io", "web", "1", &endpoints));
        let service = NamespacedName::new("ns", "web");
        assert_eq!((slices.managed_of_service(&service).len(), slices.ready_of_service(&service).count()), (0, 1));
    }

    #[test]
    fn a_slice_that_another_controller_takes_over_is_no_longer_managed() {
        let mut slices = Slices::default();
        slices.apply(slice("web", "1", true));
        slices.apply(managed_by("other-controller", "web", "2", &json!([])));
        assert!(slices.managed_of_service(&NamespacedName::new("ns", "web")).is_empty());
    }

    #[test]
    fn an_unready_pod_is_found_through_slices_that_give_it_a_hostname() {
        let mut slices = Slices::default();
        let target = json!({"kind": "Pod", "name": "db-0"});
        let endpoints = json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": false}, "hostname": "db-0", "targetRef": target}]);
        slices.apply(managed_by("endpointslice-controller.k8s.io", "db", "1", &endpoints));
        assert_eq!(names(slices.services_with_pod(&NamespacedName::new("ns", "db-0"))), ["db"]);
        let db = NamespacedName::new("ns", "db");
        assert!(slices.instance(&db, "db-0").is_some() && slices.instance(&db, "db-1").is_none());
        slices.delete(&NamespacedName::new("ns", "s"));
        assert!(slices.is_empty());
    }

    #[test]
    fn a_service_has_hints_for_nodes_while_one_of_its_slices_has() {
        let mut slices = Slices::default();
        let (web, other) = (NamespacedName::new("ns", "web"), NamespacedName::new("ns", "other"));
        let with_hints = |service: &str, version: &str, hints: &Value| {
            managed_by("any", service, version, &json!([{"addresses": ["10.0.0.1"], "hints": hints}]))
        };
        let (for_node, for_zone) = (json!({"forNodes": [{"name": "a"}]}), json!({"forZones": [{"name": "a"}]}));
        let mut have = |slice: Slice| {
            slices.apply(slice);
            [&web, &other].map(|service| slices.have_node_hints(service))
        };
        assert_eq!(have(with_hints("web", "1", &for_zone)), [false, false]);
        assert_eq!(have(with_hints("web", "2", &for_node)), [true, false]);
        assert_eq!(have(with_hints("other", "3", &for_node)), [false, true]);
        assert_eq!(have(with_hints("other", "4", &json!({}))), [false, false]);
        let (_, index) = slices.namespace_index("ns").unwrap();
        assert!(index.with_node_hints.is_empty());
    }

    #[test]
    fn a_ready_pod_is_found_through_its_slices() {
        let mut slices = Slices::default();
        let pod = NamespacedName::new("ns", "web-1");
        slices.apply(slice("web", "1", true));
        assert_eq!(names(slices.services_with_pod(&pod)), ["web"]);
        slices.apply(slice("web", "2", false));
        assert_eq!(slices.services_with_pod(&pod).count(), 0);
        let (_, index) = slices.namespace_index("ns").unwrap();
        assert!(index.by_reference.is_empty());
    }
}
