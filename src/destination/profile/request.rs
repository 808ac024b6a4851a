//! What a request is about: the key of a view, or a refusal. Pure.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use tonic::Status;

use crate::{
    api::NamespacedName,
    cluster::{State, kinds::endpoint_slice::ready::Instance},
    destination::authority::ProfileAuthority,
};

/// Who asks for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::destination) struct Request {
    authority: ProfileAuthority,
    /// `None` where it is not known.
    client_namespace: Option<Arc<str>>,
}

/// What a view is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::destination) enum Target {
    /// By its name: a Service that is gone stays the target.
    Service(ServicePort),
    /// By an address, for as long as that is the Service's.
    ClusterIp(IpAddr, ServicePort),
    /// The Pod that is the endpoint of a Service with this hostname.
    Instance { service: NamespacedName, hostname: Arc<str>, port: u16 },
    /// The same where the endpoint is no Pod, for as long as it has this address: whatever is there.
    InstanceAt { service: NamespacedName, hostname: Arc<str>, address: SocketAddr },
    /// Whatever has the address, and is no Service.
    Endpoint(SocketAddr),
}

/// The port of a Service, as clients in a namespace see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::destination) struct ServicePort {
    pub(super) service: NamespacedName,
    pub(super) port: u16,
    /// `None` for clients that have no ServiceProfiles of their own for it: those in its own namespace too.
    pub(super) client_namespace: Option<Arc<str>>,
    /// Its name was asked for with a dot in front.
    pub(super) dotted: bool,
}

/// Why a request that could be read is answered with a status; of a stream, why it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::destination) enum Refusal {
    NoService(Arc<str>),
    ExternalName,
    /// So many Services have the address.
    Services(usize, IpAddr),
    /// So many Pods have the address.
    Pods(usize, IpAddr),
    /// So many Pods have the port of the node.
    HostPorts(usize, SocketAddr),
    /// So many ExternalWorkloads have the port.
    ExternalWorkloads(usize, SocketAddr),
    NoInstance(NamespacedName, Arc<str>),
    NoPod(Arc<str>),
    /// The address is something else's now.
    Elsewhere,
    Stopping,
}

// === impl Request ===

impl Request {
    pub(in crate::destination) fn new(authority: ProfileAuthority, client_namespace: &str) -> Self {
        let client_namespace = Some(client_namespace).filter(|namespace| !namespace.is_empty()).map(Arc::from);
        Self { authority, client_namespace }
    }

    /// # Errors
    /// When there is no such Service, or more than one.
    pub(super) fn resolve(&self, state: &State) -> Result<Target, Refusal> {
        match &self.authority {
            ProfileAuthority::Service { service, port, dotted } => {
                let known = state.services.get(service).ok_or_else(|| Refusal::NoService(Arc::clone(&service.name)))?;
                Ok(Target::Service(self.service_port(&known.key, *port, *dotted)))
            }
            ProfileAuthority::Instance { service, hostname, port } => {
                let (port, instance) = (*port, state.slices.instance(service, hostname));
                let (service, hostname) = (service.clone(), Arc::clone(hostname));
                Ok(match instance {
                    Some(Instance::Address(ip)) => {
                        Target::InstanceAt { service, hostname, address: SocketAddr::new(*ip, port) }
                    }
                    Some(Instance::Pod(..)) | None => Target::Instance { service, hostname, port },
                })
            }
            ProfileAuthority::Address(address) => match state.services.at(address.ip()) {
                [] => Ok(Target::Endpoint(*address)),
                [service] => {
                    let service = self.service_port(&service.key, address.port(), false);
                    Ok(Target::ClusterIp(address.ip(), service))
                }
                several => Err(Refusal::Services(several.len(), address.ip())),
            },
        }
    }

    fn service_port(&self, service: &NamespacedName, port: u16, dotted: bool) -> ServicePort {
        let own = |namespace: &&Arc<str>| ***namespace == *service.namespace;
        let client_namespace = self.client_namespace.as_ref().filter(|namespace| !own(namespace)).cloned();
        ServicePort { service: service.clone(), port, client_namespace, dotted }
    }
}

// === impl Target ===

impl Target {
    pub(super) fn service(&self) -> Option<&ServicePort> {
        match self {
            Self::Service(service) | Self::ClusterIp(_, service) => Some(service),
            Self::Instance { .. } | Self::InstanceAt { .. } | Self::Endpoint(_) => None,
        }
    }

    pub(super) fn client_namespace(&self) -> Option<&Arc<str>> {
        self.service()?.client_namespace.as_ref()
    }

    pub(super) fn port(&self) -> u16 {
        match self {
            Self::Service(service) | Self::ClusterIp(_, service) => service.port,
            Self::Instance { port, .. } => *port,
            Self::InstanceAt { address, .. } | Self::Endpoint(address) => address.port(),
        }
    }
}

// === impl ServicePort ===

impl ServicePort {
    /// The ServiceProfiles that may be told of, the first before the second.
    pub(super) fn profiles(&self, cluster_domain: &str) -> impl Iterator<Item = NamespacedName> {
        let NamespacedName { namespace, name } = &self.service;
        let profile: Arc<str> = format!("{name}.{namespace}.svc.{cluster_domain}").into();
        let namespaces = self.client_namespace.iter().chain([namespace]);
        namespaces.map(move |namespace| NamespacedName::new(Arc::clone(namespace), Arc::clone(&profile)))
    }
}

/// The Service that a ServiceProfile of this name is for.
pub(super) fn service_of(profile: &str, cluster_domain: &str) -> Option<NamespacedName> {
    let (name, namespace) = profile.strip_suffix(cluster_domain)?.strip_suffix(".svc.")?.split_once('.')?;
    Some(NamespacedName::new(namespace, name))
}

// === impl Refusal ===

impl Refusal {
    /// As the client reads it, in upstream's words; `path` is the target as the client wrote it. Proxies never ask again after
    /// INVALID_ARGUMENT and FAILED_PRECONDITION, and always after anything else. IPv6 addresses have no brackets there.
    pub(in crate::destination) fn status(&self, path: &str) -> Status {
        match self {
            // Not NOT_FOUND, as `Get` has it.
            Self::NoService(name) => Status::unknown(format!("service {name:?} not found")),
            Self::ExternalName => Status::invalid_argument(format!("Invalid authority: {path}")),
            Self::Services(count, address) => {
                Status::failed_precondition(format!("found {count} services with conflicting cluster IP {address}"))
            }
            Self::Pods(count, address) => {
                Status::failed_precondition(format!("found {count} pods with a conflicting pod network IP {address}"))
            }
            Self::HostPorts(count, address) => Status::failed_precondition(format!(
                "found {count} pods with a conflicting host network endpoint {}:{}",
                address.ip(),
                address.port()
            )),
            Self::ExternalWorkloads(count, address) => Status::failed_precondition(format!(
                "found {count} externalworkloads with a conflicting ip {}:{}",
                address.ip(),
                address.port()
            )),
            Self::NoInstance(service, hostname) => Status::not_found(format!(
                "no pod found in EndpointSlices of Service {service} for hostname {hostname}"
            )),
            Self::NoPod(name) => Status::unknown(format!("pod {name:?} not found")),
            Self::Elsewhere => Status::unavailable("the address is something else's now: ask again"),
            Self::Stopping => Status::unavailable("this destination is stopping: ask another"),
        }
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
