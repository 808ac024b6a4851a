//! The endpoints of one Service, joined with what they stand for. Pure.
//!
//! In: the cluster's state. Out: for each ready endpoint of each slice of an existing Service, its Pod or ExternalWorkload,
//! the workload that the Pod belongs to, the Servers that select it. An endpoint whose Pod or ExternalWorkload is not there
//! is left out: it must not be taken for one outside the mesh. It comes when that comes.
//!
//! A member holds shared values only, so that the state's lock is free again when clients' views are made.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::{
    cluster::{
        State,
        object::NamespacedName,
        owner::Owner,
        pod::Pod,
        ready_slice::{ReadyEndpoint, ReadySlice, Target},
        server::{Server, ServerPort},
        service::Service,
        workload::Workload,
    },
    destination::settings::Settings,
};

/// What a Service's endpoints are, at one generation of the state.
#[derive(Clone, Debug)]
pub(super) struct Members {
    /// `None`: there is no such Service, and so nothing in it.
    pub(super) service: Option<Arc<Service>>,
    /// By the slices' names.
    pub(super) slices: Vec<Arc<ReadySlice>>,
    /// In the order of the slices, and in theirs.
    pub(super) members: Vec<Member>,
    pub(super) generation: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Member {
    /// Its place in [`Members::slices`].
    pub(super) slice: usize,
    /// Its place in the slice.
    pub(super) endpoint: usize,
    pub(super) subject: Subject,
}

/// What an endpoint stands for.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    Pod(Box<PodSubject>),
    Workload(Box<WorkloadSubject>),
    /// Nothing but its address.
    Address,
}

#[derive(Clone, Debug)]
pub(super) struct PodSubject {
    pub(super) pod: Arc<Pod>,
    /// What owns the Pod, through its ReplicaSet or Job; `None` is the Pod itself.
    pub(super) owner: Option<Owner>,
    servers: Box<[Arc<Server>]>,
}

#[derive(Clone, Debug)]
pub(super) struct WorkloadSubject {
    pub(super) workload: Arc<Workload>,
    servers: Box<[Arc<Server>]>,
}

/// Whose an address is that several claim: the smallest. A Pod before an ExternalWorkload before a bare address; among Pods
/// one that stays before one that ends, then the newest, then by name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim<'a> {
    kind: u8,
    terminating: bool,
    created: std::cmp::Reverse<Option<Timestamp>>,
    name: &'a str,
}

// === impl Members ===

impl Members {
    pub(super) fn of(state: &State, key: &NamespacedName) -> Self {
        let service = state.services.get(key).cloned();
        let exists = service.is_some();
        let slices: Vec<_> = state.slices.ready_of_service(key).filter(|_| exists).cloned().collect();
        let mut members = Vec::with_capacity(slices.iter().map(|slice| slice.endpoints.len()).sum());
        for (slice, content) in slices.iter().enumerate() {
            for (endpoint, it) in content.endpoints.iter().enumerate() {
                if let Some(subject) = Subject::of(state, &key.namespace, &it.target) {
                    members.push(Member { slice, endpoint, subject });
                }
            }
        }
        Self { service, slices, members, generation: state.generation }
    }

    pub(super) fn slice(&self, member: &Member) -> Option<&ReadySlice> {
        self.slices.get(member.slice).map(|slice| &**slice)
    }

    pub(super) fn endpoint(&self, member: &Member) -> Option<&ReadyEndpoint> {
        self.slice(member)?.endpoints.get(member.endpoint)
    }
}

// === impl Subject ===

impl Subject {
    fn of(state: &State, namespace: &str, target: &Target) -> Option<Self> {
        match target {
            Target::Address => Some(Self::Address),
            Target::Pod(name) => {
                let pod = state.pods.get(namespace, name)?;
                let servers = state.servers.opaque_for_pod(namespace, &pod.labels).cloned().collect();
                Some(Self::Pod(Box::new(PodSubject { owner: root_owner(state, pod), pod: Arc::clone(pod), servers })))
            }
            Target::ExternalWorkload(name) => {
                let workload = state.workloads.get(&NamespacedName::new(namespace, Arc::clone(name)))?;
                let servers = state.servers.opaque_for_workload(namespace, &workload.labels).cloned().collect();
                Some(Self::Workload(Box::new(WorkloadSubject { workload: Arc::clone(workload), servers })))
            }
        }
    }

    pub(super) fn claim(&self) -> Claim<'_> {
        let claim = |kind, name| Claim { kind, terminating: false, created: std::cmp::Reverse(None), name };
        match self {
            Self::Pod(it) => Claim {
                terminating: it.pod.terminating,
                created: std::cmp::Reverse(it.pod.created),
                ..claim(0, &it.pod.key.name)
            },
            Self::Workload(it) => claim(1, &it.workload.key.name),
            Self::Address => claim(2, ""),
        }
    }
}

impl PodSubject {
    /// Whether proxies are not to look at the protocol of this port.
    pub(super) fn is_opaque(&self, port: u16, settings: &Settings) -> bool {
        let annotated = self.pod.opaque_ports.as_ref().unwrap_or(&settings.default_opaque_ports);
        let has = |name: &str| {
            let named = self.pod.ports.iter().filter(|it| *it.name == *name);
            named.into_iter().any(|it| it.number == port || it.host_port == Some(port))
        };
        annotated.contains(port) || self.servers.iter().any(|server| selects(server, port, has))
    }
}

impl WorkloadSubject {
    /// Whether proxies are not to look at the protocol of this port.
    pub(super) fn is_opaque(&self, port: u16, settings: &Settings) -> bool {
        let annotated = self.workload.mesh.opaque_ports.as_ref().unwrap_or(&settings.default_opaque_ports);
        let has = |name: &str| self.workload.ports.iter().any(|it| it.name == name && it.number == i32::from(port));
        annotated.contains(port) || self.servers.iter().any(|server| selects(server, port, has))
    }
}

fn selects(server: &Server, port: u16, has: impl Fn(&str) -> bool) -> bool {
    match &server.port {
        ServerPort::Number(number) => *number == port,
        ServerPort::Name(name) => has(name),
        ServerPort::Invalid => false,
    }
}

/// A ReplicaSet or Job stands between a Pod and what its user made: one step is climbed, where the next owner is known.
fn root_owner(state: &State, pod: &Pod) -> Option<Owner> {
    const OF_REPLICA_SETS: [&str; 4] = ["Deployment", "StatefulSet", "DaemonSet", "Job"];
    let owner = pod.owner.as_ref()?;
    let key = NamespacedName::new(Arc::clone(&pod.key.namespace), Arc::clone(&owner.name));
    let next = match &*owner.kind {
        "Job" => state.jobs.of(&key),
        // Others that make ReplicaSets (Argo's Rollouts, say) are not climbed to.
        "ReplicaSet" => state
            .replica_sets
            .of(&key)
            .filter(|it| OF_REPLICA_SETS.iter().any(|kind| it.kind.eq_ignore_ascii_case(kind))),
        _ => None,
    };
    Some(next.unwrap_or(owner).clone())
}
