//! The target of an endpoint: a Pod or an ExternalWorkload with its Servers, or a bare address. Pure.
//!
//! In: the cluster's state. Out: only shared values, so that the state's lock is released before the selectors of
//! Servers are evaluated and the endpoint is encoded.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, LazyLock},
};

use k8s_openapi::jiff::Timestamp;

use crate::{
    api::{NamespacedName, Uid},
    cluster::{
        State,
        index::{address::NetworkAddress, workload_key::OwnerPolicy},
        kinds::{
            endpoint_slice::ready::{EndpointReference, ReadyEndpoint},
            external_workload::ExternalWorkload,
            owner::Owner,
            pod::Pod,
            server::{OpaqueServers, ServerPorts},
        },
    },
    destination::settings::DestinationSettings,
};

/// The target of an endpoint. Two targets are equal if they have the same object, owner and opaque ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::destination) enum EndpointTarget {
    Pod(Arc<PodTarget>),
    Workload(Arc<WorkloadTarget>),
    /// A bare address.
    Address,
}

#[derive(Debug)]
pub(in crate::destination) struct PodTarget {
    pub(in crate::destination) pod: Arc<Pod>,
    /// The owner of the Pod, or the owner of its ReplicaSet or Job. `None` for a bare Pod.
    pub(in crate::destination) owner: Option<Owner>,
    opaque: OpaquePorts,
}

#[derive(Debug)]
pub(in crate::destination) struct WorkloadTarget {
    pub(in crate::destination) workload: Arc<ExternalWorkload>,
    opaque: OpaquePorts,
}

/// The ports that Servers make opaque for a target. They are evaluated when they are read for the first time, which is
/// after the state's lock was released. From then on, no Server is referenced.
struct OpaquePorts(LazyLock<Arc<ServerPorts>, Box<dyn FnOnce() -> Arc<ServerPorts> + Send + Sync>>);

/// The ports in a namespace without Servers that make ports opaque.
static NO_PORTS: LazyLock<Arc<ServerPorts>> = LazyLock::new(Arc::default);

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
    pub(in crate::destination) fn of(state: &State, namespace: &str, endpoint: &ReadyEndpoint) -> Option<Self> {
        let uid = &endpoint.target_uid;
        match &endpoint.target {
            EndpointReference::Address => Some(Self::Address),
            EndpointReference::Pod(name) => {
                let pod = state.pods.find(namespace, name).filter(|pod| uid.may_be(pod.uid.as_ref()))?;
                Some(Self::of_pod(state, pod))
            }
            EndpointReference::ExternalWorkload(name) => {
                let workload = state.external_workloads.get(&NamespacedName::new(namespace, Arc::clone(name)));
                Some(Self::of_workload(
                    state,
                    workload.filter(|workload| uid.may_be(Uid::new(&workload.uid).as_ref()))?,
                ))
            }
        }
    }

    pub(in crate::destination) fn of_pod(state: &State, pod: &Arc<Pod>) -> Self {
        let (servers, pod) = (state.servers.opaque_in(&pod.key.namespace), Arc::clone(pod));
        let owner = state.top_owner(&pod, OwnerPolicy::LinkerdKinds).cloned();
        let selected = Arc::clone(&pod);
        let opaque = OpaquePorts::of(servers, move |servers| servers.for_pod(&selected.labels));
        Self::Pod(Arc::new(PodTarget { owner, pod, opaque }))
    }

    pub(in crate::destination) fn of_workload(state: &State, workload: &Arc<ExternalWorkload>) -> Self {
        let servers = state.servers.opaque_in(&workload.key.namespace);
        let selected = Arc::clone(workload);
        let opaque = OpaquePorts::of(servers, move |servers| servers.for_workload(&selected.labels));
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

    /// Returns the port of an address of the target. If it is a host port of a Pod, the container ports behind it
    /// follow, because the Pod's own proxy receives the connections there.
    pub(in crate::destination) fn ports_at(&self, address: SocketAddr) -> Vec<u16> {
        let own = address.port();
        let pod = match self {
            Self::Pod(it) if !it.pod.host_network => Some(&it.pod),
            Self::Pod(_) | Self::Workload(_) | Self::Address => None,
        };
        let pod = pod.filter(|pod| pod.network_addresses().any(|it| it == NetworkAddress::Socket(address)));
        let ports = pod.into_iter().flat_map(|pod| &*pod.ports).filter(|port| port.host_port == Some(own));
        [own].into_iter().chain(ports.map(|port| port.number)).collect()
    }

    /// Returns whether proxies must not detect the protocol of this port. Servers are evaluated in any case, so that
    /// the target no longer references them.
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
    fn is_opaque(&self, port: u16, settings: &DestinationSettings) -> bool {
        let annotated = self.pod.opaque_ports.as_ref().unwrap_or(&settings.default_opaque_ports);
        let names =
            self.pod.ports.iter().filter(|it| it.number == port || it.host_port == Some(port)).map(|it| &*it.name);
        self.opaque.has(port, names) || annotated.contains(port)
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
    fn is_opaque(&self, port: u16, settings: &DestinationSettings) -> bool {
        let annotated = self.workload.mesh.opaque_ports.as_ref().unwrap_or(&settings.default_opaque_ports);
        let names = self.workload.tcp_ports().filter(|it| it.number == i32::from(port)).map(|it| &*it.name);
        self.opaque.has(port, names) || annotated.contains(port)
    }
}

// === impl OpaquePorts ===

impl OpaquePorts {
    fn of(
        servers: Option<Arc<OpaqueServers>>,
        evaluate: impl FnOnce(&OpaqueServers) -> Arc<ServerPorts> + Send + Sync + 'static,
    ) -> Self {
        Self(match servers {
            Some(servers) => LazyLock::new(Box::new(move || evaluate(&servers))),
            None => LazyLock::new(Box::new(|| Arc::clone(&NO_PORTS))),
        })
    }

    fn has<'a>(&self, port: u16, names: impl Iterator<Item = &'a str>) -> bool {
        self.0.has(port, names)
    }
}

impl PartialEq for OpaquePorts {
    fn eq(&self, other: &Self) -> bool {
        *self.0 == *other.0
    }
}

impl fmt::Debug for OpaquePorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{
        cluster::{Kind, index::label_selector::counters::counted},
        destination::{
            get::members::Member,
            testing::{endpoint, members, settings, slice},
        },
    };

    #[test]
    fn servers_are_not_evaluated_while_the_members_of_a_service_are_looked_up() {
        let pod = |name: &str| (Kind::Pod, json!({"metadata": {"name": name, "labels": {"app": name}}}));
        let endpoints = ["web-1", "web-2", "db-1"].map(|name| endpoint("10.0.0.1", "Pod", name));
        let expression = json!({"key": "app", "operator": "In", "values": ["web-1", "web-2"]});
        let spec = json!({"podSelector": {"matchExpressions": [expression]}, "port": 80, "proxyProtocol": "opaque"});
        let server = (Kind::Server, json!({"metadata": {"name": "s", "namespace": "ns"}, "spec": spec}));
        let objects = [pod("web-1"), pod("web-2"), pod("db-1"), server, slice("a", &json!([]), &endpoints)];
        let (members, evaluations, _) = counted(|| members(objects));
        assert_eq!((members.members.len(), evaluations), (3, 0));
        let is_opaque = |member: &Member| member.target.is_opaque(80, &settings());
        let (opaque, evaluations, _) = counted(|| members.members.iter().map(is_opaque).collect::<Vec<_>>());
        assert_eq!((opaque, evaluations), (vec![true, true, false], 3));
    }
}
