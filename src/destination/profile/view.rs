//! What a target is answered with. Pure.
//!
//! In: the cluster's state, a target. Out: the objects that decide about its profile, found under the state's lock; and then,
//! without it, the message. Where the message has a field that Linkerd's destination leaves at its default, so does this.

use std::{net::SocketAddr, sync::Arc};

use prost_types::Duration;

use super::{
    request::{Refusal, ServicePort, Target},
    route,
};
use crate::{
    api::NamespacedName,
    cluster::{
        State,
        kinds::{
            endpoint_slice::ready::Instance,
            pod::{Pod, PodPhase},
            service_profile::route::{Override, ProfileContent},
        },
    },
    destination::{
        authority::split_host_port,
        endpoint::weighted_addr::profiled,
        get::members::{Claim, Lookups, Subject},
        settings::Settings,
    },
    proto::{
        destination::{DestinationProfile, RetryBudget, WeightedDst},
        meta::{Metadata, Resource, metadata},
    },
};

/// What decides about a profile.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// The Service does not have the port. It says nothing at all, and so makes proxies ask the policy controller, which denies.
    Empty,
    /// It may be gone, if it was there when it was asked for.
    Service {
        target: ServicePort,
        opaque: bool,
        profile: Option<(NamespacedName, Arc<ProfileContent>)>,
    },
    Endpoint {
        address: SocketAddr,
        subject: Subject,
    },
}

/// What proxies use where nobody says otherwise.
const RETRY_BUDGET: RetryBudget =
    RetryBudget { retry_ratio: 0.2, min_retries_per_second: 10, ttl: Some(Duration { seconds: 10, nanos: 0 }) };

// === impl Answer ===

impl Answer {
    /// # Errors
    /// When the target has no profile, or is another target now.
    pub(super) fn of(state: &State, target: &Target, settings: &Settings) -> Result<Self, Refusal> {
        match target {
            Target::Service(service) => Self::of_service(state, service, settings),
            Target::ClusterIp(address, service) => {
                let gone = || state.services.get(&service.service).is_none();
                match state.services.at(*address) {
                    [known] if known.key == service.service => {}
                    [] if gone() && is_nobodys(state, SocketAddr::new(*address, service.port)) => {}
                    [] | [_] => return Err(Refusal::Elsewhere),
                    several => return Err(Refusal::Services(several.len(), *address)),
                }
                Self::of_service(state, service, settings)
            }
            Target::Instance { service, hostname, port } => {
                let none = || Refusal::NoInstance(service.clone(), Arc::clone(hostname));
                match state.slices.instance(service, hostname).ok_or_else(none)? {
                    Instance::Pod(name, address) => {
                        let pod = state.pods.find(&service.namespace, name);
                        let pod = pod.ok_or_else(|| Refusal::NoPod(Arc::clone(name)))?;
                        // A Pod whose status does not say where it is yet is where its slice says.
                        let address = pod.addresses.first().copied().unwrap_or(*address);
                        Ok(Self::Endpoint { address: SocketAddr::new(address, *port), subject: of_pod(state, pod) })
                    }
                    Instance::Address(_) => Err(Refusal::Elsewhere),
                }
            }
            Target::InstanceAt { service, hostname, address } => match state.slices.instance(service, hostname) {
                Some(Instance::Address(ip)) if *ip == address.ip() => Self::of_endpoint(state, *address),
                Some(_) | None => Err(Refusal::Elsewhere),
            },
            Target::Endpoint(address) if state.services.at(address.ip()).is_empty() => {
                Self::of_endpoint(state, *address)
            }
            Target::Endpoint(_) => Err(Refusal::Elsewhere),
        }
    }

    fn of_service(state: &State, target: &ServicePort, settings: &Settings) -> Result<Self, Refusal> {
        let service = state.services.get(&target.service);
        if let Some(service) = service {
            if !service.ports.iter().any(|port| port.number == i32::from(target.port)) {
                return Ok(Self::Empty);
            }
            if service.external_name {
                return Err(Refusal::ExternalName);
            }
        }
        let annotated = service.and_then(|service| service.opaque_ports.as_ref());
        let opaque = annotated.unwrap_or(&settings.default_opaque_ports).contains(target.port);
        let mut profiles = target.profiles(&settings.cluster_domain);
        let profile = profiles.find_map(|key| Some((Arc::clone(state.service_profiles.content(&key)?), key)));
        let profile = profile.map(|(content, key)| (key, content));
        Ok(Self::Service { target: target.clone(), opaque, profile })
    }

    fn of_endpoint(state: &State, address: SocketAddr) -> Result<Self, Refusal> {
        Ok(Self::Endpoint { address, subject: behind(state, address)? })
    }

    pub(super) fn message(&self, settings: &Settings) -> DestinationProfile {
        match self {
            Self::Empty => DestinationProfile::default(),
            Self::Service { target, opaque, profile } => {
                let profile = profile.as_ref().map(|(key, content)| (key, &**content));
                service_profile(target, *opaque, profile, &settings.cluster_domain)
            }
            Self::Endpoint { address, subject } => DestinationProfile {
                retry_budget: Some(RETRY_BUDGET),
                opaque_protocol: subject.is_opaque(address.port(), settings),
                endpoint: Some(profiled(subject, *address, settings)),
                ..DestinationProfile::default()
            },
        }
    }
}

/// What is reached at an address that is no Service's: in the network of Pods, then on a node, then outside the cluster.
fn behind(state: &State, address: SocketAddr) -> Result<Subject, Refusal> {
    let pods = state.pods.at(address.ip());
    if !pods.is_empty() {
        let pod = holder(pods).map_err(|count| Refusal::Pods(count, address.ip()))?;
        return Ok(pod.map_or(Subject::Address, |pod| of_pod(state, pod)));
    }
    let pods = state.pods.at_host(address);
    if !pods.is_empty() {
        let pod = holder(pods).map_err(|count| Refusal::HostPorts(count, address))?;
        return Ok(pod.map_or(Subject::Address, |pod| of_pod(state, pod)));
    }
    match state.external_workloads.at(address) {
        [] => Ok(Subject::Address),
        [workload] => Ok(Subject::of_workload(state, workload, &mut Lookups::default())),
        several => Err(Refusal::ExternalWorkloads(several.len(), address)),
    }
}

fn is_nobodys(state: &State, address: SocketAddr) -> bool {
    let pods = [state.pods.at(address.ip()), state.pods.at_host(address)];
    pods.iter().all(|pods| pods.is_empty()) && state.external_workloads.at(address).is_empty()
}

/// Whose an address is. A Pod that is going has it until another has it; of several that are, the newest.
///
/// # Errors
/// The number of Pods that claim it and are not going.
fn holder(pods: &[Arc<Pod>]) -> Result<Option<&Arc<Pod>>, usize> {
    let mut staying = pods.iter().filter(|pod| !pod.terminating);
    match (staying.next(), staying.count()) {
        (None, _) => Ok(pods.iter().min_by_key(|pod| Claim::of_pod(pod))),
        (one, 0) => Ok(one),
        (_, others) => Err(others + 1),
    }
}

/// A Pod that does not run is as good as nobody: its proxy does not either. Whether it is ready does not matter: peers have to
/// find each other before they are.
fn of_pod(state: &State, pod: &Arc<Pod>) -> Subject {
    match pod.phase {
        PodPhase::Running => Subject::of_pod(state, pod, &mut Lookups::default()),
        PodPhase::Waiting | PodPhase::Finished => Subject::Address,
    }
}

fn service_profile(
    target: &ServicePort,
    opaque: bool,
    profile: Option<(&NamespacedName, &ProfileContent)>,
    cluster_domain: &str,
) -> DestinationProfile {
    let ServicePort { service: NamespacedName { namespace, name }, port, dotted, .. } = target;
    let resource = |group: &str, kind: &str, name: &str, namespace: &str, port| {
        let (group, kind) = (group.to_owned(), kind.to_owned());
        let (name, namespace) = (name.to_owned(), namespace.to_owned());
        let resource = Resource { group, kind, name, namespace, port, ..Resource::default() };
        Some(Metadata { kind: Some(metadata::Kind::Resource(resource)) })
    };
    let (routes, retry_budget, overrides) = match profile {
        Some((_, content)) => (
            content.routes.iter().map(route::route).collect(),
            content.retry_budget.as_ref().map(route::retry_budget),
            &*content.overrides,
        ),
        None => (Vec::new(), None, &[][..]),
    };
    DestinationProfile {
        fully_qualified_name: format!("{}{name}.{namespace}.svc.{cluster_domain}", if *dotted { "." } else { "" }),
        opaque_protocol: opaque,
        routes,
        retry_budget: Some(retry_budget.unwrap_or(RETRY_BUDGET)),
        dst_overrides: overrides.iter().map(|it| weighted(it, *port)).collect(),
        endpoint: None,
        parent_ref: resource("core", "Service", name, namespace, u32::from(*port)),
        profile_ref: match profile {
            Some((key, _)) => resource("linkerd.io", "ServiceProfile", &key.name, &key.namespace, 0),
            None => resource("linkerd.io", "", "", "", 0),
        },
    }
}

/// An authority that names no port is about the one that was asked for.
fn weighted(it: &Override, port: u16) -> WeightedDst {
    let authority = &it.authority;
    let authority = match split_host_port(authority) {
        Ok(_) => authority.to_string(),
        Err(_) if authority.contains(':') => format!("[{authority}]:{port}"),
        Err(_) => format!("{authority}:{port}"),
    };
    WeightedDst { authority, weight: it.weight, backend_ref: None }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
