//! The endpoints of one Service, joined with what they stand for. Pure.
//!
//! In: the cluster's state. Out: for each ready endpoint of each slice of an existing Service, its Pod or ExternalWorkload,
//! the workload that the Pod belongs to, the Servers that select it. An endpoint whose Pod or ExternalWorkload is not there
//! is left out: it must not be taken for one outside the mesh. It comes when that comes.
//!
//! A member holds shared values only, so that the state's lock is free again when clients' views are made.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;

use crate::destination::settings::Settings;
use crate::{
    api::NamespacedName,
    cluster::{
        State,
        index::{selector::Labels, workload_key::OwnerPolicy},
        kinds::{
            endpoint_slice::ready::{EndpointReference, ReadyEndpoint, ReadySlice},
            external_workload::ExternalWorkload,
            owner::Owner,
            pod::Pod,
            server::{Server, ServerPort},
            service::Service,
        },
    },
};

/// What a Service's endpoints are, at one generation of the state.
#[derive(Clone, Debug)]
pub(in crate::destination) struct Members {
    /// `None`: there is no such Service, and so nothing in it.
    pub(in crate::destination) service: Option<Arc<Service>>,
    /// By the slices' names.
    pub(in crate::destination) slices: Vec<Arc<ReadySlice>>,
    /// In the order of the slices, and in theirs.
    pub(in crate::destination) members: Vec<Member>,
    pub(in crate::destination) generation: u64,
}

#[derive(Clone, Debug)]
pub(in crate::destination) struct Member {
    /// Its place in [`Members::slices`].
    pub(in crate::destination) slice: usize,
    /// Its place in the slice.
    pub(in crate::destination) endpoint: usize,
    pub(in crate::destination) subject: Subject,
}

/// What an endpoint stands for. Two are equal when they were made from the same objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::destination) enum Subject {
    Pod(Arc<PodSubject>),
    Workload(Arc<WorkloadSubject>),
    /// Nothing but its address.
    Address,
}

#[derive(Clone, Debug)]
pub(in crate::destination) struct PodSubject {
    pub(in crate::destination) pod: Arc<Pod>,
    /// What owns the Pod, through its ReplicaSet or Job; `None` is the Pod itself.
    pub(in crate::destination) owner: Option<Owner>,
    selected: Arc<SelectedPorts>,
}

#[derive(Clone, Debug)]
pub(in crate::destination) struct WorkloadSubject {
    pub(in crate::destination) workload: Arc<ExternalWorkload>,
    selected: Arc<SelectedPorts>,
}

/// The ports that Servers make opaque for everything with the same labels.
#[derive(Debug, Default, PartialEq, Eq)]
struct SelectedPorts {
    numbers: HashSet<u16>,
    names: HashSet<Box<str>>,
}

/// What was found for labels so far: the Pods of one workload have the same, and there may be thousands of Servers.
#[derive(Default)]
struct Found<'a>(HashMap<&'a Labels, Arc<SelectedPorts>>);

/// What was looked up so far for one answer.
#[derive(Default)]
pub(in crate::destination) struct Lookups<'a> {
    of_pods: Found<'a>,
    of_workloads: Found<'a>,
}

/// Whose an address is that several claim: the smallest. A Pod before an ExternalWorkload before a bare address; among Pods
/// one that stays before one that ends, then the newest, then by name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::destination) struct Claim<'a> {
    kind: u8,
    terminating: bool,
    created: std::cmp::Reverse<Option<Timestamp>>,
    name: &'a str,
    namespace: &'a str,
}

// === impl Members ===

impl Members {
    pub(in crate::destination) fn of(state: &State, key: &NamespacedName) -> Self {
        let service = state.services.get(key).cloned();
        let exists = service.is_some();
        let slices: Vec<_> = state.slices.ready_of_service(key).filter(|_| exists).cloned().collect();
        let mut lookups = Lookups::default();
        let mut members = Vec::with_capacity(slices.iter().map(|slice| slice.endpoints.len()).sum());
        for (slice, content) in slices.iter().enumerate() {
            for (endpoint, it) in content.endpoints.iter().enumerate() {
                if let Some(subject) = Subject::of(state, &key.namespace, &it.target, &mut lookups) {
                    members.push(Member { slice, endpoint, subject });
                }
            }
        }
        Self { service, slices, members, generation: state.generation }
    }

    pub(in crate::destination) fn slice(&self, member: &Member) -> Option<&ReadySlice> {
        self.slices.get(member.slice).map(|slice| &**slice)
    }

    pub(in crate::destination) fn endpoint(&self, member: &Member) -> Option<&ReadyEndpoint> {
        self.slice(member)?.endpoints.get(member.endpoint)
    }
}

// === impl Subject ===

impl Subject {
    fn of<'a>(
        state: &'a State,
        namespace: &str,
        target: &EndpointReference,
        lookups: &mut Lookups<'a>,
    ) -> Option<Self> {
        match target {
            EndpointReference::Address => Some(Self::Address),
            EndpointReference::Pod(name) => Some(Self::of_pod(state, state.pods.find(namespace, name)?, lookups)),
            EndpointReference::ExternalWorkload(name) => {
                let workload = state.external_workloads.get(&NamespacedName::new(namespace, Arc::clone(name)))?;
                Some(Self::of_workload(state, workload, lookups))
            }
        }
    }

    pub(in crate::destination) fn of_pod<'a>(state: &'a State, pod: &'a Arc<Pod>, lookups: &mut Lookups<'a>) -> Self {
        let select = |labels| state.servers.opaque_for_pod(&pod.key.namespace, labels).collect();
        let selected = lookups.of_pods.or_find(&pod.labels, select);
        Self::Pod(Arc::new(PodSubject {
            owner: state.top_owner(pod, OwnerPolicy::LinkerdKinds).cloned(),
            pod: Arc::clone(pod),
            selected,
        }))
    }

    pub(in crate::destination) fn of_workload<'a>(
        state: &'a State,
        workload: &'a Arc<ExternalWorkload>,
        lookups: &mut Lookups<'a>,
    ) -> Self {
        let select = |labels| state.servers.opaque_for_workload(&workload.key.namespace, labels).collect();
        let selected = lookups.of_workloads.or_find(&workload.labels, select);
        Self::Workload(Arc::new(WorkloadSubject { workload: Arc::clone(workload), selected }))
    }

    pub(in crate::destination) fn claim(&self) -> Claim<'_> {
        match self {
            Self::Pod(it) => Claim::of_pod(&it.pod),
            Self::Workload(it) => Claim::new(1, &it.workload.key),
            Self::Address => Claim::ADDRESS,
        }
    }

    pub(in crate::destination) fn namespace(&self) -> Option<&str> {
        match self {
            Self::Pod(it) => Some(&it.pod.key.namespace),
            Self::Workload(it) => Some(&it.workload.key.namespace),
            Self::Address => None,
        }
    }

    /// Whether proxies are not to look at the protocol of this port.
    pub(in crate::destination) fn is_opaque(&self, port: u16, settings: &Settings) -> bool {
        match self {
            Self::Pod(it) => it.is_opaque(port, settings),
            Self::Workload(it) => it.is_opaque(port, settings),
            Self::Address => settings.default_opaque_ports.contains(port),
        }
    }
}

impl<'a> Claim<'a> {
    const ADDRESS: Self =
        Self { kind: 2, terminating: false, created: std::cmp::Reverse(None), name: "", namespace: "" };

    fn new(kind: u8, NamespacedName { namespace, name }: &'a NamespacedName) -> Self {
        Self { kind, name, namespace, ..Self::ADDRESS }
    }

    pub(in crate::destination) fn of_pod(pod: &'a Pod) -> Self {
        Self { terminating: pod.terminating, created: std::cmp::Reverse(pod.created), ..Self::new(0, &pod.key) }
    }
}

/// The state keeps an object for as long as nothing in it changes.
impl PartialEq for PodSubject {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pod, &other.pod) && self.owner == other.owner && self.selected == other.selected
    }
}

impl Eq for PodSubject {}

impl PartialEq for WorkloadSubject {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.workload, &other.workload) && self.selected == other.selected
    }
}

impl Eq for WorkloadSubject {}

impl PodSubject {
    /// Whether proxies are not to look at the protocol of this port.
    pub(in crate::destination) fn is_opaque(&self, port: u16, settings: &Settings) -> bool {
        let annotated = self.pod.opaque_ports.as_ref().unwrap_or(&settings.default_opaque_ports);
        let mut names =
            self.pod.ports.iter().filter(|it| it.number == port || it.host_port == Some(port)).map(|it| &*it.name);
        annotated.contains(port) || self.selected.numbers.contains(&port) || names.any(|name| self.selected.has(name))
    }
}

impl WorkloadSubject {
    /// Whether proxies are not to look at the protocol of this port.
    pub(in crate::destination) fn is_opaque(&self, port: u16, settings: &Settings) -> bool {
        let annotated = self.workload.mesh.opaque_ports.as_ref().unwrap_or(&settings.default_opaque_ports);
        let mut names = self.workload.ports.iter().filter(|it| it.number == i32::from(port)).map(|it| &*it.name);
        annotated.contains(port) || self.selected.numbers.contains(&port) || names.any(|name| self.selected.has(name))
    }
}

// === impl SelectedPorts ===

impl SelectedPorts {
    fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }
}

impl<'a> FromIterator<&'a Arc<Server>> for SelectedPorts {
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

impl<'a> Found<'a> {
    fn or_find(&mut self, labels: &'a Labels, find: impl FnOnce(&'a Labels) -> SelectedPorts) -> Arc<SelectedPorts> {
        Arc::clone(self.0.entry(labels).or_insert_with(|| Arc::new(find(labels))))
    }
}

#[cfg(test)]
#[path = "members_tests.rs"]
pub(in crate::destination) mod tests;
