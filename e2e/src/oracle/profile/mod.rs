//! The contract of `GetProfile`: the ServiceProfile of a Service, or the endpoint at any other address.
//!
//! ```text
//!   path ──▶ authority ──┬─ a Service, or its cluster IP ──▶ of_service() ──▶ refused | empty | routes, budget, overrides
//!                        ├─ an endpoint's host name ───────▶ instance()   ──▶ refused | endpoint
//!                        └─ any other address ─────────────▶ by_address() ──▶ refused | endpoint
//! ```
//!
//! * In: every object, the settings, one request. Out: the final message of a stream, or its refusal.
//! * Always: pure, as the rest of the oracle. An invalid ServiceProfile counts as absent.
//! * If the path is not an authority, or the host is not the name of a Service, the refusal's text is only
//!   `invalid authority` or `invalid service`: the rest of a server's text comes from its parser and must be cut off
//!   before the comparison.

mod authority;
mod condition;
mod duration;
mod endpoint;
mod field;
mod holders;
mod quantity;
mod service_profile;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::{Service, ServicePort};
use kube::api::DynamicObject;
use linkerd2_proxy_api::{
    destination::{DestinationProfile, RetryBudget},
    meta::{Metadata, Resource, metadata::Kind},
};
use tonic::Code;

use super::{
    ApiState, Request, Settings,
    authority::client_namespace,
    opaque::{self, NamedPort},
};
use authority::RequestedTarget;
use service_profile::Content;

pub use holders::Holders;

/// The result for a client: an immediate error, or the final message of a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum ProfileAnswer {
    Refused(Code, String),
    Profile(Box<DestinationProfile>),
}

/// A requested Service, by name or by address.
#[derive(Clone, Copy, Debug)]
struct Requested<'a> {
    /// The requested name, or the name of the Service with the requested address.
    fully_qualified_name: &'a str,
    namespace: &'a str,
    name: &'a str,
    port: u16,
    /// The client's namespace; "" if unknown.
    client: &'a str,
}

// === impl ProfileAnswer ===

impl ProfileAnswer {
    /// Returns whether it is the profile of an address that no object has.
    pub fn is_of_unknown_address(&self) -> bool {
        let Self::Profile(profile) = self else { return false };
        profile.endpoint.as_ref().is_some_and(|endpoint| endpoint.metric_labels.is_empty())
    }
}

/// Computes the answer to a new stream.
pub fn answer_profile(state: &ApiState, settings: &Settings, request: &Request) -> ProfileAnswer {
    respond(state, settings, request, false)
}

/// Computes the answer of an open stream: one for a Service's name stays open when the Service is deleted. `Refused`,
/// or another kind of message than before, means that the stream has ended.
pub fn answer_profile_while_open(state: &ApiState, settings: &Settings, request: &Request) -> ProfileAnswer {
    respond(state, settings, request, true)
}

/// Returns whether the request is for a hostname, and the endpoint of that name refers to a Pod. A stream for a hostname
/// ends when its endpoint begins or ceases to refer to a Pod.
pub fn is_for_pod_of_hostname(state: &ApiState, settings: &Settings, request: &Request) -> bool {
    match authority::parse(&request.path, &settings.cluster_domain) {
        Ok(RequestedTarget::Instance { host_name, service, namespace, .. }) => {
            endpoint::named(state, (namespace, service), host_name).is_some_and(|(_, pod)| pod.is_some())
        }
        _ => false,
    }
}

/// Returns whether the request is for the address of a Pod. Until that runs, the answer is that for an unknown address.
pub fn is_for_address_of_pod(state: &ApiState, request: &Request) -> bool {
    let address = request.path.parse::<SocketAddr>();
    address.is_ok_and(|it| endpoint::is_of_pod(state, SocketAddr::new(it.ip().to_canonical(), it.port())))
}

fn respond(state: &ApiState, settings: &Settings, request: &Request, open: bool) -> ProfileAnswer {
    let client = client_namespace(&request.token);
    match authority::parse(&request.path, &settings.cluster_domain) {
        Err(text) => ProfileAnswer::Refused(Code::InvalidArgument, text.to_owned()),
        Ok(RequestedTarget::Service { host, service, namespace, port }) => {
            let requested = Requested { fully_qualified_name: host, namespace, name: service, port, client: &client };
            match state.services.get(&(namespace.to_owned(), service.to_owned())) {
                Some(service) => of_service(state, settings, requested, service, &request.path),
                None if open => profile(state, settings, requested, None),
                None => ProfileAnswer::Refused(Code::Unknown, format!("service \"{service}\" not found")),
            }
        }
        Ok(RequestedTarget::Instance { host_name, service, namespace, port }) => {
            endpoint::instance(state, settings, (namespace, service), host_name, port)
        }
        Ok(RequestedTarget::Address(address)) => match services_at(state, address.ip())[..] {
            [] => endpoint::by_address(state, settings, address),
            [((namespace, name), service)] => {
                let host = format!("{name}.{namespace}.svc.{}", settings.cluster_domain);
                let port = address.port();
                let requested = Requested { fully_qualified_name: &host, namespace, name, port, client: &client };
                of_service(state, settings, requested, service, &request.path)
            }
            ref several => ProfileAnswer::Refused(
                Code::FailedPrecondition,
                format!("found {} services with conflicting cluster IP {}", several.len(), address.ip()),
            ),
        },
    }
}

/// The Services with this cluster IP. Other addresses, such as those of a load balancer, do not count.
fn services_at(state: &ApiState, ip: IpAddr) -> Vec<(&(String, String), &Service)> {
    let has = |(_, service): &(&(String, String), &Service)| {
        let Some(spec) = &service.spec else { return false };
        let listed = spec.cluster_ips.as_deref().filter(|listed| !listed.is_empty());
        let addresses = listed.unwrap_or(spec.cluster_ip.as_slice());
        addresses.iter().any(|address| authority::ip(address) == Some(ip))
    };
    state.services.iter().filter(has).collect()
}

/// A request for a port that the Service does not have for TCP gets an empty message.
fn of_service(
    state: &ApiState,
    settings: &Settings,
    requested: Requested<'_>,
    service: &Service,
    path: &str,
) -> ProfileAnswer {
    let spec = service.spec.as_ref();
    let has_port = tcp_ports(service).any(|port| port.port == i32::from(requested.port));
    let external = spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName");
    match (has_port, external) {
        (false, _) => ProfileAnswer::Profile(Box::default()),
        (true, true) => ProfileAnswer::Refused(Code::InvalidArgument, format!("Invalid authority: {path}")),
        (true, false) => profile(state, settings, requested, Some(service)),
    }
}

/// The message for a port of a Service; `None` is a deleted Service.
fn profile(
    state: &ApiState,
    settings: &Settings,
    requested: Requested<'_>,
    service: Option<&Service>,
) -> ProfileAnswer {
    let chosen = chosen(state, settings, requested);
    let found = chosen.is_some();
    let (namespace, content) = chosen.unwrap_or_default();
    let mut profile_ref = Resource { group: "linkerd.io".to_owned(), ..Resource::default() };
    if found {
        profile_ref.kind = "ServiceProfile".to_owned();
        profile_ref.name = profile_name(settings, requested);
        profile_ref.namespace = namespace;
    }
    let parent_ref = Resource {
        group: "core".to_owned(),
        kind: "Service".to_owned(),
        name: requested.name.to_owned(),
        namespace: requested.namespace.to_owned(),
        section: String::new(),
        port: requested.port.into(),
    };
    let reference = |resource| Some(Metadata { kind: Some(Kind::Resource(resource)) });
    ProfileAnswer::Profile(Box::new(DestinationProfile {
        fully_qualified_name: requested.fully_qualified_name.to_owned(),
        opaque_protocol: is_opaque(settings, service, requested.port),
        routes: content.routes,
        retry_budget: Some(content.retry_budget.unwrap_or_else(default_budget)),
        dst_overrides: content.overrides,
        endpoint: None,
        parent_ref: reference(parent_ref),
        profile_ref: reference(profile_ref),
    }))
}

/// The valid ServiceProfile in the client's namespace, otherwise the one in the Service's namespace, and its namespace.
fn chosen(state: &ApiState, settings: &Settings, requested: Requested<'_>) -> Option<(String, Content)> {
    let name = profile_name(settings, requested);
    let valid = |namespace: &str| {
        let found: &DynamicObject = state.profiles.get(&(namespace.to_owned(), name.clone()))?;
        Some((namespace.to_owned(), service_profile::read(&found.data, requested.port)?))
    };
    let primary = Some(requested.client).filter(|client| !client.is_empty()).and_then(valid);
    primary.or_else(|| valid(requested.namespace))
}

fn profile_name(settings: &Settings, requested: Requested<'_>) -> String {
    format!("{}.{}.svc.{}", requested.name, requested.namespace, settings.cluster_domain)
}

/// Only the Service's annotation counts, with the names of its ports; without the annotation the default applies.
fn is_opaque(settings: &Settings, service: Option<&Service>, port: u16) -> bool {
    let annotations = service.and_then(|service| service.metadata.annotations.clone()).unwrap_or_default();
    let named =
        |port: &ServicePort| NamedPort { name: port.name.clone().unwrap_or_default(), number: port.port, host: None };
    let names: Vec<NamedPort> = service.into_iter().flat_map(tcp_ports).map(named).collect();
    opaque::is_listed(&settings.default_opaque_ports, &annotations, &names, port)
}

fn tcp_ports(service: &Service) -> impl Iterator<Item = &ServicePort> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports.filter(|port| opaque::is_tcp(port.protocol.as_deref()))
}

/// The retry budget if no ServiceProfile sets one.
fn default_budget() -> RetryBudget {
    RetryBudget { retry_ratio: 0.2, min_retries_per_second: 10, ttl: duration::wire(10_000_000_000) }
}
