//! Selects the endpoints of a Service for a client.
//!
//! * In: the objects, the Service, the requested authority, the client's node. Out: one candidate per socket address.
//! * Order: slices by label → ready → target exists → instance → port → internalTrafficPolicy, or hints for nodes, or hints
//!   for zones → family → winner.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, Pod, Service},
        discovery::v1::{Endpoint, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::api::DynamicObject;

use super::{ApiState, Settings, authority::Authority, opaque::is_tcp};

/// One address of one endpoint of one slice.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) slice: &'a EndpointSlice,
    pub(super) endpoint: &'a Endpoint,
    pub(super) target: EndpointTarget<'a>,
    pub(super) address: SocketAddr,
}

/// The target of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) enum EndpointTarget<'a> {
    Pod {
        name: &'a str,
        pod: &'a Pod,
    },
    Workload {
        name: &'a str,
        workload: &'a DynamicObject,
    },
    /// No targetRef: only an address, for example that of a mirrored gateway.
    Plain,
}

/// The source of an endpoint's port.
#[derive(Debug, PartialEq, Eq)]
enum Port {
    /// The port of the slice with this name; "" is the port without a name.
    Named(String),
    /// The Service does not declare the port: it is used unchanged.
    Verbatim(u16),
}

/// The winning candidates, by socket address.
pub(super) fn winners<'a>(
    state: &'a ApiState,
    settings: &Settings,
    service: &Service,
    authority: &Authority,
    node: &str,
) -> BTreeMap<SocketAddr, Candidate<'a>> {
    let candidates = selected(state, settings, service, authority, Some(node));
    let mut winners: BTreeMap<SocketAddr, Candidate<'a>> = BTreeMap::new();
    // Candidates are sorted by slice name and position. Of two candidates with equal rank, the first wins.
    for candidate in candidates {
        match winners.get(&candidate.address) {
            Some(winner) if rank(winner) <= rank(&candidate) => {}
            _ => drop(winners.insert(candidate.address, candidate)),
        }
    }
    winners
}

/// The endpoints of a Service for a client on a node; without a node, for a client in another cluster.
pub(super) fn selected<'a>(
    state: &'a ApiState,
    settings: &Settings,
    service: &Service,
    authority: &Authority,
    node: Option<&str>,
) -> Vec<Candidate<'a>> {
    let candidates = all(state, service, authority);
    let local = service.spec.as_ref().and_then(|spec| spec.internal_traffic_policy.as_deref()) == Some("Local");
    let candidates = match node {
        Some(node) if local => on_node(candidates, node),
        Some(node) if are_for_nodes(state, service, authority) && candidates.iter().any(|it| is_for_node(it, node)) => {
            candidates.into_iter().filter(|it| is_for_node(it, node)).collect()
        }
        Some(node) => in_zone(candidates, state.zone(node)),
        None => candidates,
    };
    of_family(candidates, settings.ipv6)
}

fn all<'a>(state: &'a ApiState, service: &Service, authority: &Authority) -> Vec<Candidate<'a>> {
    let wanted = port(service, authority.port);
    let mut candidates = Vec::new();
    for slice in state.slices_of(&authority.namespace, &authority.service) {
        let Some(port) = resolve(slice, &wanted) else { continue };
        for endpoint in slice.endpoints.iter().filter(|endpoint| is_ready(endpoint)) {
            let is_requested = authority.instance.is_empty() || endpoint.hostname.as_ref() == Some(&authority.instance);
            let Some(target) = target(state, &authority.namespace, endpoint.target_ref.as_ref()) else { continue };
            if !is_requested {
                continue;
            }
            for ip in endpoint.addresses.iter().filter_map(|address| address.parse::<IpAddr>().ok()) {
                candidates.push(Candidate { slice, endpoint, target, address: SocketAddr::new(ip, port) });
            }
        }
    }
    candidates
}

/// An absent condition means ready.
fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(false)
}

/// The name of the Service's first TCP port with this number; slices are searched for that name.
fn port(service: &Service, number: u16) -> Port {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.clone()).unwrap_or_default();
    let mut declared = ports.into_iter().filter(|port| is_tcp(port.protocol.as_deref()));
    let declared = declared.find(|port| port.port == i32::from(number));
    declared.map_or(Port::Verbatim(number), |port| Port::Named(port.name.unwrap_or_default()))
}

/// The port of a slice's endpoints. `None` if the slice does not have it, or has no list of ports.
fn resolve(slice: &EndpointSlice, wanted: &Port) -> Option<u16> {
    let ports = slice.ports.as_ref()?;
    match wanted {
        Port::Verbatim(number) => Some(*number),
        Port::Named(name) => {
            let mut tcp = ports.iter().filter(|port| is_tcp(port.protocol.as_deref()));
            let port = tcp.find(|port| port.name.as_deref().unwrap_or_default() == name)?;
            u16::try_from(port.port?).ok()
        }
    }
}

/// `None` for endpoints that are never sent: the target has another kind or namespace, or does not exist.
fn target<'a>(state: &'a ApiState, namespace: &str, reference: Option<&ObjectReference>) -> Option<EndpointTarget<'a>> {
    let Some(reference) = reference else { return Some(EndpointTarget::Plain) };
    if !may_refer(reference, namespace) {
        return None;
    }
    let place = (namespace.to_owned(), reference.name.clone()?);
    match reference.kind.as_deref() {
        Some("Pod") => {
            let found = state.pods.get_key_value(&place).filter(|(_, pod)| is_referenced(reference, &pod.metadata));
            found.map(|((_, name), pod)| EndpointTarget::Pod { name, pod })
        }
        Some("ExternalWorkload") => {
            let found = state.workloads.get_key_value(&place);
            let found = found.filter(|(_, workload)| is_referenced(reference, &workload.metadata));
            found.map(|((_, name), workload)| EndpointTarget::Workload { name, workload })
        }
        _ => None,
    }
}

/// Whether the target is of a kind, and in a namespace, whose objects are followed.
fn may_refer(reference: &ObjectReference, namespace: &str) -> bool {
    let is_here = reference.namespace.as_deref().is_none_or(|other| other.is_empty() || other == namespace);
    is_here && matches!(reference.kind.as_deref(), Some("Pod" | "ExternalWorkload"))
}

/// `targetRef.uid` is followed: an object with the same name and another uid is not the target.
pub(super) fn is_referenced(reference: &ObjectReference, object: &ObjectMeta) -> bool {
    let known = |uid: &Option<String>| uid.clone().filter(|uid| !uid.is_empty());
    match (known(&reference.uid), known(&object.uid)) {
        (Some(referenced), Some(uid)) => referenced == uid,
        _ => true,
    }
}

/// internalTrafficPolicy Local: only Pods on the client's node, without a fallback.
fn on_node<'a>(mut candidates: Vec<Candidate<'a>>, node: &str) -> Vec<Candidate<'a>> {
    candidates.retain(|candidate| match candidate.target {
        EndpointTarget::Pod { pod, .. } => {
            let on = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            !node.is_empty() && on == Some(node)
        }
        EndpointTarget::Workload { .. } | EndpointTarget::Plain => false,
    });
    candidates
}

/// Hints for nodes apply, as with kube-proxy, if every ready endpoint with the port has one, whether its target exists or
/// not, and one is for the client's node. Endpoints of other kinds, and without an IP address, do not count. A hostname
/// selects without hints.
fn are_for_nodes(state: &ApiState, service: &Service, authority: &Authority) -> bool {
    let wanted = port(service, authority.port);
    let slices = state.slices_of(&authority.namespace, &authority.service);
    let slices = slices.into_iter().filter(|slice| resolve(slice, &wanted).is_some());
    let counts = |endpoint: &&Endpoint| {
        is_ready(endpoint)
            && endpoint.addresses.iter().any(|address| address.parse::<IpAddr>().is_ok())
            && endpoint.target_ref.as_ref().is_none_or(|reference| may_refer(reference, &authority.namespace))
    };
    authority.instance.is_empty()
        && slices.flat_map(|slice| &slice.endpoints).filter(counts).all(|endpoint| !nodes(endpoint).is_empty())
}

fn is_for_node(candidate: &Candidate<'_>, node: &str) -> bool {
    nodes(candidate.endpoint).iter().any(|hint| hint == node)
}

fn nodes(endpoint: &Endpoint) -> Vec<String> {
    let hints = endpoint.hints.as_ref().and_then(|hints| hints.for_nodes.clone());
    hints.unwrap_or_default().into_iter().map(|hint| hint.name).collect()
}

/// Zone hints apply if every candidate has a hint and at least one hint is for the client's zone.
fn in_zone<'a>(candidates: Vec<Candidate<'a>>, zone: &str) -> Vec<Candidate<'a>> {
    let hinted = |candidate: &Candidate<'_>| !zones(candidate).is_empty();
    let near = |candidate: &&Candidate<'a>| !zone.is_empty() && zones(candidate).iter().any(|hint| hint == zone);
    let close: Vec<_> = candidates.iter().filter(near).cloned().collect();
    if candidates.iter().all(hinted) && !close.is_empty() { close } else { candidates }
}

fn zones(candidate: &Candidate<'_>) -> Vec<String> {
    let hints = candidate.endpoint.hints.as_ref().and_then(|hints| hints.for_zones.clone());
    hints.unwrap_or_default().into_iter().map(|hint| hint.name).collect()
}

/// A Pod gets one family: IPv6 if it is enabled and the Pod has it. Other endpoints keep all addresses.
fn of_family(mut candidates: Vec<Candidate<'_>>, ipv6: bool) -> Vec<Candidate<'_>> {
    let over_ipv6 = candidates.iter().filter(|candidate| ipv6 && candidate.address.is_ipv6());
    let over_ipv6: BTreeSet<&str> = over_ipv6.filter_map(pod_name).collect();
    candidates.retain(|candidate| match pod_name(candidate) {
        Some(name) => candidate.address.is_ipv6() == over_ipv6.contains(name),
        None => true,
    });
    candidates
}

fn pod_name<'a>(candidate: &Candidate<'a>) -> Option<&'a str> {
    match candidate.target {
        EndpointTarget::Pod { name, .. } => Some(name),
        EndpointTarget::Workload { .. } | EndpointTarget::Plain => None,
    }
}

/// When several candidates have one address, the smallest rank wins.
pub(super) fn rank<'a>(candidate: &Candidate<'a>) -> (u8, bool, Reverse<Option<&'a Time>>, &'a str) {
    match candidate.target {
        EndpointTarget::Pod { name, pod } => {
            let terminating = pod.metadata.deletion_timestamp.is_some();
            (0, terminating, Reverse(pod.metadata.creation_timestamp.as_ref()), name)
        }
        EndpointTarget::Workload { name, .. } => (1, false, Reverse(None), name),
        EndpointTarget::Plain => (2, false, Reverse(None), ""),
    }
}
