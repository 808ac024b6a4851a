//! The profile of a target. Pure.
//!
//! In: the cluster's state, and a target. Out: the inputs of the profile, which are found under the state's lock; then
//! the message, which is built without the lock. [`super::encoded`] adds the routes and overrides of a ServiceProfile.
//! A field that Linkerd's destination leaves at its default has its default here too.

use std::{net::SocketAddr, sync::Arc};

use prost_types::Duration;

use super::{
    request::{ProfileRefusal, ProfileTarget, ServiceTarget},
    route,
};
use crate::{
    api::NamespacedName,
    cluster::{
        State,
        kinds::{
            endpoint_slice::ready::Instance,
            pod::{Pod, PodPhase},
            service_profile::route::ProfileContent,
        },
    },
    destination::{
        endpoint::{
            target::{EndpointTarget, Precedence},
            weighted_addr::profiled,
        },
        settings::DestinationSettings,
    },
    proto::{
        destination::{DestinationProfile, RetryBudget},
        meta::{Metadata, Resource, metadata},
    },
};

/// The inputs of a profile.
#[derive(Debug, PartialEq)]
pub(super) enum ProfileInputs {
    /// The Service does not have the port. With the empty profile, proxies query the policy controller, which denies
    /// the traffic.
    Empty,
    /// A Service, which may have been deleted since the request.
    Service {
        target: ServiceTarget,
        opaque: bool,
        profile: Option<(NamespacedName, Arc<ProfileContent>)>,
    },
    Endpoint {
        address: SocketAddr,
        endpoint: EndpointTarget,
    },
}

/// The retry budget of a target without a configured retry budget.
const RETRY_BUDGET: RetryBudget =
    RetryBudget { retry_ratio: 0.2, min_retries_per_second: 10, ttl: Some(Duration { seconds: 10, nanos: 0 }) };

// === impl ProfileInputs ===

impl ProfileInputs {
    /// # Errors
    /// When the target has no profile, or the request now resolves to another target.
    pub(super) fn of(
        state: &State,
        target: &ProfileTarget,
        settings: &DestinationSettings,
    ) -> Result<Self, ProfileRefusal> {
        match target {
            ProfileTarget::Service(service) => Self::of_service(state, service, settings),
            ProfileTarget::ClusterIp(address, service) => {
                let is_deleted = || state.services.get(&service.service).is_none();
                match state.services.at(*address) {
                    [known] if known.key == service.service => {}
                    [] if is_deleted() && is_unused(state, SocketAddr::new(*address, service.port)) => {}
                    [] | [_] => return Err(ProfileRefusal::Moved),
                    several => return Err(ProfileRefusal::Services(several.len(), *address)),
                }
                Self::of_service(state, service, settings)
            }
            ProfileTarget::Instance { service, hostname, port } => {
                let none = || ProfileRefusal::NoInstance(service.clone(), Arc::clone(hostname));
                match state.slices.instance(service, hostname).ok_or_else(none)? {
                    Instance::Pod { name, uid, address } => {
                        let pod = state.pods.find(&service.namespace, name).filter(|pod| uid.may_be(pod.uid.as_ref()));
                        let pod = pod.ok_or_else(|| ProfileRefusal::NoPod(Arc::clone(name)))?;
                        // The slice may have the address of a Pod before the Pod's status does.
                        let address = pod.addresses.first().copied().unwrap_or(*address);
                        Ok(Self::Endpoint { address: SocketAddr::new(address, *port), endpoint: of_pod(state, pod) })
                    }
                    Instance::Address(_) => Err(ProfileRefusal::Moved),
                }
            }
            ProfileTarget::InstanceAt { service, hostname, address } => {
                match state.slices.instance(service, hostname) {
                    Some(Instance::Address(ip)) if *ip == address.ip() => Self::of_endpoint(state, *address),
                    Some(_) | None => Err(ProfileRefusal::Moved),
                }
            }
            ProfileTarget::Endpoint(address) if state.services.at(address.ip()).is_empty() => {
                Self::of_endpoint(state, *address)
            }
            ProfileTarget::Endpoint(_) => Err(ProfileRefusal::Moved),
        }
    }

    fn of_service(
        state: &State,
        target: &ServiceTarget,
        settings: &DestinationSettings,
    ) -> Result<Self, ProfileRefusal> {
        let service = state.services.get(&target.service);
        if let Some(service) = service {
            if !service.tcp_ports().any(|port| port.number == i32::from(target.port)) {
                return Ok(Self::Empty);
            }
            if service.external_name {
                return Err(ProfileRefusal::ExternalName);
            }
        }
        let annotated = service.and_then(|service| service.opaque_ports.as_ref());
        let opaque = annotated.unwrap_or(&settings.default_opaque_ports).contains(target.port);
        let mut profiles = target.profiles(&settings.cluster_domain);
        let profile = profiles.find_map(|key| Some((Arc::clone(state.service_profiles.content(&key)?), key)));
        let profile = profile.map(|(content, key)| (key, content));
        Ok(Self::Service { target: target.clone(), opaque, profile })
    }

    fn of_endpoint(state: &State, address: SocketAddr) -> Result<Self, ProfileRefusal> {
        Ok(Self::Endpoint { address, endpoint: target_at(state, address)? })
    }

    /// Returns the ServiceProfile that applies, and the port of the Service.
    pub(super) fn content(&self) -> Option<(&Arc<ProfileContent>, u16)> {
        match self {
            Self::Service { target, profile: Some((_, content)), .. } => Some((content, target.port)),
            Self::Service { .. } | Self::Empty | Self::Endpoint { .. } => None,
        }
    }

    /// Returns the message without the routes and the overrides of the ServiceProfile.
    pub(super) fn message(&self, settings: &DestinationSettings) -> DestinationProfile {
        match self {
            Self::Empty => DestinationProfile::default(),
            Self::Service { target, opaque, profile } => {
                let profile = profile.as_ref().map(|(key, content)| (key, &**content));
                service_profile(target, *opaque, profile, &settings.cluster_domain)
            }
            Self::Endpoint { address, endpoint } => DestinationProfile {
                retry_budget: Some(RETRY_BUDGET),
                opaque_protocol: endpoint.ports_at(*address).iter().any(|port| endpoint.is_opaque(*port, settings)),
                endpoint: Some(profiled(endpoint, *address, settings)),
                ..DestinationProfile::default()
            },
        }
    }
}

/// Returns the target at an address that is not a ClusterIP: a Pod by its IP, else a Pod by its host port, else an
/// ExternalWorkload. A terminating Pod keeps the address until another object has it.
fn target_at(state: &State, address: SocketAddr) -> Result<EndpointTarget, ProfileRefusal> {
    let (own, hosted) = (state.pods.at(address.ip()), state.pods.at_host(address));
    let pod = match staying(own).map_err(|count| ProfileRefusal::Pods(count, address.ip()))? {
        Some(pod) => Some(pod),
        None => staying(hosted).map_err(|count| ProfileRefusal::HostPorts(count, address))?,
    };
    if let Some(pod) = pod {
        return Ok(of_pod(state, pod));
    }
    match state.external_workloads.at(address).as_slice() {
        [] => Ok(terminating(own)
            .or_else(|| terminating(hosted))
            .map_or(EndpointTarget::Address, |pod| of_pod(state, pod))),
        [workload] => Ok(EndpointTarget::of_workload(state, workload)),
        several => Err(ProfileRefusal::ExternalWorkloads(several.len(), address)),
    }
}

fn is_unused(state: &State, address: SocketAddr) -> bool {
    let pods = [state.pods.at(address.ip()), state.pods.at_host(address)];
    pods.iter().all(|pods| pods.is_empty()) && state.external_workloads.at(address).is_empty()
}

/// Returns the Pod that is not terminating.
///
/// # Errors
/// When several Pods that are not terminating claim the address; the error is their number.
fn staying(pods: &[Arc<Pod>]) -> Result<Option<&Arc<Pod>>, usize> {
    let mut staying = pods.iter().filter(|pod| !pod.terminating);
    match (staying.next(), staying.count()) {
        (one, 0) => Ok(one),
        (_, others) => Err(others + 1),
    }
}

/// Among several terminating Pods, a running one wins, then the first in [`Precedence`].
fn terminating(pods: &[Arc<Pod>]) -> Option<&Arc<Pod>> {
    let terminating = pods.iter().filter(|pod| pod.terminating);
    terminating.min_by_key(|pod| (pod.phase != PodPhase::Running, Precedence::of_pod(pod)))
}

/// Returns the target for a Pod. A Pod that is not running counts as a bare address, because its proxy is not running
/// either. Readiness does not matter, because peers have to find each other before they are ready.
fn of_pod(state: &State, pod: &Arc<Pod>) -> EndpointTarget {
    match pod.phase {
        PodPhase::Running => EndpointTarget::of_pod(state, pod),
        PodPhase::Waiting | PodPhase::Finished => EndpointTarget::Address,
    }
}

fn service_profile(
    target: &ServiceTarget,
    opaque: bool,
    profile: Option<(&NamespacedName, &ProfileContent)>,
    cluster_domain: &str,
) -> DestinationProfile {
    let ServiceTarget { service: NamespacedName { namespace, name }, port, dotted, .. } = target;
    let resource = |group: &str, kind: &str, name: &str, namespace: &str, port| {
        let (group, kind) = (group.to_owned(), kind.to_owned());
        let (name, namespace) = (name.to_owned(), namespace.to_owned());
        let resource = Resource { group, kind, name, namespace, port, ..Resource::default() };
        Some(Metadata { kind: Some(metadata::Kind::Resource(resource)) })
    };
    let retry_budget = profile.and_then(|(_, content)| content.retry_budget.as_ref()).map(route::retry_budget);
    DestinationProfile {
        fully_qualified_name: format!("{}{name}.{namespace}.svc.{cluster_domain}", if *dotted { "." } else { "" }),
        opaque_protocol: opaque,
        retry_budget: Some(retry_budget.unwrap_or(RETRY_BUDGET)),
        parent_ref: resource("core", "Service", name, namespace, u32::from(*port)),
        profile_ref: match profile {
            Some((key, _)) => resource("linkerd.io", "ServiceProfile", &key.name, &key.namespace, 0),
            None => resource("linkerd.io", "", "", "", 0),
        },
        ..DestinationProfile::default()
    }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
