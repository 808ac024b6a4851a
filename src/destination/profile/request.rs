//! The request of a `GetProfile` stream, and its result: a target or a status. Pure.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use tonic::Status;

use crate::{
    api::NamespacedName,
    cluster::{State, kinds::endpoint_slice::ready::Instance},
    destination::{authority::ProfileAuthority, registry::Stopping},
};

/// The target of a request, and the namespace of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::destination) struct ProfileRequest {
    authority: ProfileAuthority,
    /// The client's namespace; `None` if unknown.
    client_namespace: Option<Arc<str>>,
}

/// The target of a profile, which is the key of a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::destination) enum ProfileTarget {
    /// A Service, by its name. The Service stays the target when it is deleted.
    Service(ServiceTarget),
    /// A Service, by its ClusterIP, as long as it has this address. A deleted Service stays the target until another
    /// object has the address.
    ClusterIp(IpAddr, ServiceTarget),
    /// The Pod of the Service's endpoint with this hostname.
    Instance { service: NamespacedName, hostname: Arc<str>, port: u16 },
    /// The object at the address of the endpoint with this hostname, if the endpoint is not a Pod and as long as it has
    /// this address.
    InstanceAt { service: NamespacedName, hostname: Arc<str>, address: SocketAddr },
    /// The object with this address, which is not a Service.
    Endpoint(SocketAddr),
}

/// The port of a Service, for clients of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::destination) struct ServiceTarget {
    pub(in crate::destination) service: NamespacedName,
    pub(super) port: u16,
    /// The namespace of the client's own ServiceProfiles. `None` for clients without a namespace or in the Service's
    /// namespace.
    pub(super) client_namespace: Option<Arc<str>>,
    /// Whether the client wrote the name with a leading dot.
    pub(super) dotted: bool,
}

/// The reason why a well-formed request is refused, or why its stream ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::destination) enum ProfileRefusal {
    NoService(Arc<str>),
    ExternalName,
    /// Several Services have the address.
    Services(usize, IpAddr),
    /// Several Pods have the address.
    Pods(usize, IpAddr),
    /// Several Pods have the host port.
    HostPorts(usize, SocketAddr),
    /// Several ExternalWorkloads have the address and port.
    ExternalWorkloads(usize, SocketAddr),
    NoInstance(NamespacedName, Arc<str>),
    NoPod(Arc<str>),
    /// The address now belongs to another kind of target.
    Moved,
    Stopping,
}

// === impl ProfileRequest ===

impl ProfileRequest {
    pub(in crate::destination) fn new(authority: ProfileAuthority, client_namespace: &str) -> Self {
        let client_namespace = Some(client_namespace).filter(|namespace| !namespace.is_empty()).map(Arc::from);
        Self { authority, client_namespace }
    }

    /// Returns the current target of the request.
    ///
    /// # Errors
    /// When the Service does not exist, or several Services have the address.
    pub(super) fn resolve(&self, state: &State) -> Result<ProfileTarget, ProfileRefusal> {
        match &self.authority {
            ProfileAuthority::Service { service, port, dotted } => {
                let known =
                    state.services.get(service).ok_or_else(|| ProfileRefusal::NoService(Arc::clone(&service.name)))?;
                Ok(ProfileTarget::Service(self.service_port(&known.key, *port, *dotted)))
            }
            ProfileAuthority::Instance { service, hostname, port } => {
                let (port, instance) = (*port, state.slices.instance(service, hostname));
                let (service, hostname) = (service.clone(), Arc::clone(hostname));
                Ok(match instance {
                    Some(Instance::Address(ip)) => {
                        ProfileTarget::InstanceAt { service, hostname, address: SocketAddr::new(*ip, port) }
                    }
                    Some(Instance::Pod { .. }) | None => ProfileTarget::Instance { service, hostname, port },
                })
            }
            ProfileAuthority::Address(address) => match state.services.at(address.ip()) {
                [] => Ok(ProfileTarget::Endpoint(*address)),
                [service] => {
                    let service = self.service_port(&service.key, address.port(), false);
                    Ok(ProfileTarget::ClusterIp(address.ip(), service))
                }
                several => Err(ProfileRefusal::Services(several.len(), address.ip())),
            },
        }
    }

    fn service_port(&self, service: &NamespacedName, port: u16, dotted: bool) -> ServiceTarget {
        let own = |namespace: &&Arc<str>| ***namespace == *service.namespace;
        let client_namespace = self.client_namespace.as_ref().filter(|namespace| !own(namespace)).cloned();
        ServiceTarget { service: service.clone(), port, client_namespace, dotted }
    }
}

// === impl ProfileTarget ===

impl ProfileTarget {
    pub(in crate::destination) fn service(&self) -> Option<&ServiceTarget> {
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

// === impl ServiceTarget ===

impl ServiceTarget {
    /// Returns the ServiceProfiles that may apply, in the order of precedence.
    pub(super) fn profiles(&self, cluster_domain: &str) -> impl Iterator<Item = NamespacedName> {
        let NamespacedName { namespace, name } = &self.service;
        let profile: Arc<str> = format!("{name}.{namespace}.svc.{cluster_domain}").into();
        let namespaces = self.client_namespace.iter().chain([namespace]);
        namespaces.map(move |namespace| NamespacedName::new(Arc::clone(namespace), Arc::clone(&profile)))
    }
}

/// Returns the Service that a ServiceProfile with this name applies to.
pub(super) fn service_of(profile: &str, cluster_domain: &str) -> Option<NamespacedName> {
    let (name, namespace) = profile.strip_suffix(cluster_domain)?.strip_suffix(".svc.")?.split_once('.')?;
    Some(NamespacedName::new(namespace, name))
}

// === impl ProfileRefusal ===

impl From<Stopping> for ProfileRefusal {
    fn from(Stopping: Stopping) -> Self {
        Self::Stopping
    }
}

impl ProfileRefusal {
    /// Returns the status for the client, with upstream's message. `path` is the target as the client wrote it. Proxies
    /// never retry after INVALID_ARGUMENT and FAILED_PRECONDITION, and always retry after any other code. Messages
    /// contain IPv6 addresses without brackets, as upstream's do.
    pub(in crate::destination) fn status(&self, path: &str) -> Status {
        match self {
            // Unlike `Get`, upstream does not use NOT_FOUND here.
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
            Self::Moved => Status::unavailable("the address belongs to another object now: retry"),
            Self::Stopping => Status::unavailable("this destination server is stopping: retry with another replica"),
        }
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
