//! The target of an endpoint: a Pod or an ExternalWorkload with its Servers, or a bare address. Pure.
//!
//! In: the cluster's state. Out: only shared values, so that the state's lock is released before the endpoint is
//! encoded.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;

use crate::{
    api::NamespacedName,
    cluster::{
        State,
        index::{address::NetworkAddress, selector::Labels, workload_key::OwnerPolicy},
        kinds::{
            endpoint_slice::ready::{EndpointReference, ReadyEndpoint},
            external_workload::ExternalWorkload,
            owner::Owner,
            pod::Pod,
            server::{Server, ServerPort},
        },
    },
    destination::settings::DestinationSettings,
};

/// The target of an endpoint. Two targets are equal if they were created from the same objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::destination) enum EndpointTarget {
    Pod(Arc<PodTarget>),
    Workload(Arc<WorkloadTarget>),
    /// A bare address.
    Address,
}

#[derive(Clone, Debug)]
pub(in crate::destination) struct PodTarget {
    pub(in crate::destination) pod: Arc<Pod>,
    /// The owner of the Pod, or the owner of its ReplicaSet or Job. `None` for a bare Pod.
    pub(in crate::destination) owner: Option<Owner>,
    opaque: Arc<ServerPorts>,
}

#[derive(Clone, Debug)]
pub(in crate::destination) struct WorkloadTarget {
    pub(in crate::destination) workload: Arc<ExternalWorkload>,
    opaque: Arc<ServerPorts>,
}

/// The ports that Servers make opaque for every object with the same labels.
#[derive(Debug, Default, PartialEq, Eq)]
struct ServerPorts {
    numbers: HashSet<u16>,
    names: HashSet<Box<str>>,
}

/// The opaque ports by labels, for one pass over endpoints. The Pods of one workload have the same labels, and the
/// cluster may have thousands of Servers.
#[derive(Default)]
pub(in crate::destination) struct SelectorCache<'a> {
    pods: HashMap<&'a Labels, Arc<ServerPorts>>,
    workloads: HashMap<&'a Labels, Arc<ServerPorts>>,
}

/// The order of targets that claim one address; the smallest wins. A Pod precedes an ExternalWorkload, which precedes a
/// bare address. Among Pods, a Pod that is not terminating comes first, then the newest Pod, then the first by name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::destination) struct Precedence<'a> {
    kind: u8,
    terminating: bool,
    created: std::cmp::Reverse<Option<Timestamp>>,
    name: &'a str,
    namespace: &'a str,
}

// === impl EndpointTarget ===

impl EndpointTarget {
    /// Returns the target of a slice's endpoint, or `None` if the state does not have the object. Another object of the
    /// same name must not lend its identity to this address, and a meshed endpoint must not become a bare address.
    pub(in crate::destination) fn of<'a>(
        state: &'a State,
        namespace: &str,
        endpoint: &ReadyEndpoint,
        cache: &mut SelectorCache<'a>,
    ) -> Option<Self> {
        let uid = &endpoint.target_uid;
        match &endpoint.target {
            EndpointReference::Address => Some(Self::Address),
            EndpointReference::Pod(name) => {
                let pod = state.pods.find(namespace, name).filter(|pod| uid.may_be(&pod.uid))?;
                Some(Self::of_pod(state, pod, cache))
            }
            EndpointReference::ExternalWorkload(name) => {
                let workload = state.external_workloads.get(&NamespacedName::new(namespace, Arc::clone(name)));
                Some(Self::of_workload(state, workload.filter(|workload| uid.may_be(&workload.uid))?, cache))
            }
        }
    }

    pub(in crate::destination) fn of_pod<'a>(
        state: &'a State,
        pod: &'a Arc<Pod>,
        cache: &mut SelectorCache<'a>,
    ) -> Self {
        let select = || state.servers.opaque_for_pod(&pod.key.namespace, &pod.labels).collect();
        let opaque = Arc::clone(cache.pods.entry(&pod.labels).or_insert_with(|| Arc::new(select())));
        let owner = state.top_owner(pod, OwnerPolicy::LinkerdKinds).cloned();
        Self::Pod(Arc::new(PodTarget { owner, pod: Arc::clone(pod), opaque }))
    }

    pub(in crate::destination) fn of_workload<'a>(
        state: &'a State,
        workload: &'a Arc<ExternalWorkload>,
        cache: &mut SelectorCache<'a>,
    ) -> Self {
        let select = || state.servers.opaque_for_workload(&workload.key.namespace, &workload.labels).collect();
        let opaque = Arc::clone(cache.workloads.entry(&workload.labels).or_insert_with(|| Arc::new(select())));
        Self::Workload(Arc::new(WorkloadTarget { workload: Arc::clone(workload), opaque }))
    }

    pub(in crate::destination) fn precedence(&self) -> Precedence<'_> {
        match self {
            Self::Pod(it) => Precedence::of_pod(&it.pod),
            Self::Workload(it) => Precedence::new(1, &it.workload.key),
            Self::Address => Precedence::ADDRESS,
        }
    }

    pub(in crate::destination) fn namespace(&self) -> Option<&str> {
        match self {
            Self::Pod(it) => Some(&it.pod.key.namespace),
            Self::Workload(it) => Some(&it.workload.key.namespace),
            Self::Address => None,
        }
    }

    /// Returns whether proxies must not detect the protocol of this port.
    pub(in crate::destination) fn is_opaque(&self, port: u16, settings: &DestinationSettings) -> bool {
        match self {
            Self::Pod(it) => it.is_opaque(port, settings),
            Self::Workload(it) => it.is_opaque(port, settings),
            Self::Address => settings.default_opaque_ports.contains(port),
        }
    }
}

// === impl Precedence ===

impl<'a> Precedence<'a> {
    const ADDRESS: Self =
        Self { kind: 2, terminating: false, created: std::cmp::Reverse(None), name: "", namespace: "" };

    fn new(kind: u8, NamespacedName { namespace, name }: &'a NamespacedName) -> Self {
        Self { kind, name, namespace, ..Self::ADDRESS }
    }

    pub(in crate::destination) fn of_pod(pod: &'a Pod) -> Self {
        Self { terminating: pod.terminating, created: std::cmp::Reverse(pod.created), ..Self::new(0, &pod.key) }
    }
}

// === impl PodTarget ===

/// Objects are compared by pointer, because the state keeps an object until its content changes.
impl PartialEq for PodTarget {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pod, &other.pod) && self.owner == other.owner && self.opaque == other.opaque
    }
}

impl Eq for PodTarget {}

impl PodTarget {
    /// Returns whether the address is a host port of the Pod, and the Pod is not in the network of the host.
    pub(super) fn is_behind_host_port(&self, address: SocketAddr) -> bool {
        let is_host_port = || self.pod.network_addresses().any(|it| it == NetworkAddress::Socket(address));
        !self.pod.host_network && is_host_port()
    }

    /// Returns whether proxies must not detect the protocol of this port.
    pub(super) fn is_opaque(&self, port: u16, settings: &DestinationSettings) -> bool {
        let annotated = self.pod.opaque_ports.as_ref().unwrap_or(&settings.default_opaque_ports);
        let names =
            self.pod.ports.iter().filter(|it| it.number == port || it.host_port == Some(port)).map(|it| &*it.name);
        annotated.contains(port) || self.opaque.has(port, names)
    }
}

// === impl WorkloadTarget ===

impl PartialEq for WorkloadTarget {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.workload, &other.workload) && self.opaque == other.opaque
    }
}

impl Eq for WorkloadTarget {}

impl WorkloadTarget {
    /// Returns whether proxies must not detect the protocol of this port.
    pub(super) fn is_opaque(&self, port: u16, settings: &DestinationSettings) -> bool {
        let annotated = self.workload.mesh.opaque_ports.as_ref().unwrap_or(&settings.default_opaque_ports);
        let names = self.workload.ports.iter().filter(|it| it.number == i32::from(port)).map(|it| &*it.name);
        annotated.contains(port) || self.opaque.has(port, names)
    }
}

// === impl ServerPorts ===

impl ServerPorts {
    /// Returns whether the Servers name the port by its number, or by one of its names.
    fn has<'a>(&self, port: u16, mut names: impl Iterator<Item = &'a str>) -> bool {
        self.numbers.contains(&port) || names.any(|name| self.names.contains(name))
    }
}

impl<'a> FromIterator<&'a Arc<Server>> for ServerPorts {
    fn from_iter<I: IntoIterator<Item = &'a Arc<Server>>>(servers: I) -> Self {
        let mut ports = Self::default();
        for server in servers {
            match &server.port {
                ServerPort::Number(number) => _ = ports.numbers.insert(*number),
                ServerPort::Name(name) => _ = ports.names.insert(name.clone()),
                ServerPort::Invalid => {}
            }
        }
        ports
    }
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
