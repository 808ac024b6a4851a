//! All objects that can influence an answer, as the API server holds them.
//!
//! * In: objects as JSON, added or removed one by one. Out: maps by namespace and name.
//! * Always: the last version of each object is kept, even if its content is invalid.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    batch::v1::Job,
    core::v1::{Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::DynamicObject;
use serde_json::Value;

/// Objects of a kind by namespace ("" for nodes) and name.
type Named<T> = BTreeMap<(String, String), T>;

#[derive(Clone, Debug, Default)]
pub struct ApiState {
    pub services: Named<Service>,
    pub slices: Named<EndpointSlice>,
    pub pods: Named<Pod>,
    /// ExternalWorkloads, v1beta1.
    pub workloads: Named<DynamicObject>,
    /// Servers, v1beta3.
    pub servers: Named<DynamicObject>,
    pub nodes: Named<Node>,
    pub replica_sets: Named<ReplicaSet>,
    pub jobs: Named<Job>,
    /// ServiceProfiles, v1alpha2.
    pub profiles: Named<DynamicObject>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    Service,
    EndpointSlice,
    Pod,
    ExternalWorkload,
    Server,
    Node,
    ReplicaSet,
    Job,
    ServiceProfile,
}

/// The identity of an object. The namespace of a Node is "".
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub kind: ObjectKind,
    pub namespace: String,
    pub name: String,
}

// === impl Key ===

impl Key {
    /// The key of an object that has `kind` and `metadata`.
    pub fn of(object: &Value) -> Result<Self> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let kind = match text("/kind").as_str() {
            "Service" => ObjectKind::Service,
            "EndpointSlice" => ObjectKind::EndpointSlice,
            "Pod" => ObjectKind::Pod,
            "ExternalWorkload" => ObjectKind::ExternalWorkload,
            "Server" => ObjectKind::Server,
            "Node" => ObjectKind::Node,
            "ReplicaSet" => ObjectKind::ReplicaSet,
            "Job" => ObjectKind::Job,
            "ServiceProfile" => ObjectKind::ServiceProfile,
            other => bail!("unsupported kind {other:?}"),
        };
        Ok(Self { kind, namespace: text("/metadata/namespace"), name: text("/metadata/name") })
    }
}

// === impl ApiState ===

impl ApiState {
    /// Adds an object, or replaces its previous version.
    pub fn put(&mut self, key: &Key, object: &Value) -> Result<()> {
        let place = (key.namespace.clone(), key.name.clone());
        match key.kind {
            ObjectKind::Service => drop(self.services.insert(place, parse(key, object)?)),
            ObjectKind::EndpointSlice => drop(self.slices.insert(place, parse(key, object)?)),
            ObjectKind::Pod => drop(self.pods.insert(place, parse(key, object)?)),
            ObjectKind::ExternalWorkload => drop(self.workloads.insert(place, parse(key, object)?)),
            ObjectKind::Server => drop(self.servers.insert(place, parse(key, object)?)),
            ObjectKind::Node => drop(self.nodes.insert(place, parse(key, object)?)),
            ObjectKind::ReplicaSet => drop(self.replica_sets.insert(place, parse(key, object)?)),
            ObjectKind::Job => drop(self.jobs.insert(place, parse(key, object)?)),
            ObjectKind::ServiceProfile => drop(self.profiles.insert(place, parse(key, object)?)),
        }
        Ok(())
    }

    pub fn remove(&mut self, key: &Key) {
        let place = (key.namespace.clone(), key.name.clone());
        match key.kind {
            ObjectKind::Service => drop(self.services.remove(&place)),
            ObjectKind::EndpointSlice => drop(self.slices.remove(&place)),
            ObjectKind::Pod => drop(self.pods.remove(&place)),
            ObjectKind::ExternalWorkload => drop(self.workloads.remove(&place)),
            ObjectKind::Server => drop(self.servers.remove(&place)),
            ObjectKind::Node => drop(self.nodes.remove(&place)),
            ObjectKind::ReplicaSet => drop(self.replica_sets.remove(&place)),
            ObjectKind::Job => drop(self.jobs.remove(&place)),
            ObjectKind::ServiceProfile => drop(self.profiles.remove(&place)),
        }
    }

    /// The slices of a Service, sorted by name. Only the label assigns a slice to a Service.
    pub fn slices_of(&self, namespace: &str, service: &str) -> Vec<&EndpointSlice> {
        let of_service = |slice: &&EndpointSlice| {
            let labels = slice.metadata.labels.as_ref();
            labels.and_then(|labels| labels.get("kubernetes.io/service-name")).is_some_and(|name| name == service)
        };
        let here = self.slices.iter().filter(|((in_namespace, _), _)| in_namespace == namespace);
        here.map(|(_, slice)| slice).filter(of_service).collect()
    }

    /// The zone of a node; "" if the node is unknown or has no zone.
    pub(super) fn zone(&self, node: &str) -> &str {
        let node = self.nodes.get(&(String::new(), node.to_owned()));
        let labels = node.and_then(|node| node.metadata.labels.as_ref());
        labels.and_then(|labels| labels.get("topology.kubernetes.io/zone")).map_or("", String::as_str)
    }
}

fn parse<T: DeserializeOwned>(key: &Key, object: &Value) -> Result<T> {
    serde_json::from_value(object.clone()).with_context(|| format!("{key:?} cannot be decoded as its kind"))
}
