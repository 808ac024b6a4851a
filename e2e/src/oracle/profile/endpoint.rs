//! The endpoint at an address: a Pod, a host port of a Pod, an ExternalWorkload, or an unknown address.
//!
//! * In: an address and a port, or the hostname of an endpoint. Out: a message with an endpoint, or a refusal.
//! * Order: Pods by Pod IP, then Pods by host port, then ExternalWorkloads, then terminating Pods in the same order. The
//!   first step with a candidate decides, even if that Pod must not be named because it is not running.
//! * Always: an unknown address has an endpoint, too.

use std::{
    cmp::Reverse,
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::api::{
    core::v1::{ObjectReference, Pod},
    discovery::v1::EndpointSlice,
};
use kube::api::DynamicObject;
use linkerd2_proxy_api::destination::{DestinationProfile, WeightedAddr};
use serde_json::Value;
use tonic::Code;

use super::{
    super::{
        ApiState, Settings,
        candidate::is_referenced,
        label::{self, Labels},
        opaque, render,
    },
    ProfileAnswer,
    authority::ip,
    default_budget,
};

/// The namespace and name of an object, and the object.
type Found<'a, T> = (&'a (String, String), &'a T);

/// Answers for an address that is not a cluster IP.
pub(super) fn by_address(state: &ApiState, settings: &Settings, address: SocketAddr) -> ProfileAnswer {
    let (ip, port) = (address.ip(), address.port());
    let on_pod_network = |pod: &Pod| on_pod_network(pod, ip);
    let on_host_network = |pod: &Pod| on_host_network(pod, address);
    let conflict =
        |count: usize, what: String| ProfileAnswer::Refused(Code::FailedPrecondition, format!("found {count} {what}"));
    match lasting(state, on_pod_network)[..] {
        [] => {}
        [found] => return of_running_pod(state, settings, found, address),
        ref several => return conflict(several.len(), format!("pods with a conflicting pod network IP {ip}")),
    }
    match lasting(state, on_host_network)[..] {
        [] => {}
        [found] => return of_running_pod(state, settings, found, address),
        ref several => {
            return conflict(several.len(), format!("pods with a conflicting host network endpoint {ip}:{port}"));
        }
    }
    let declares = |(_, workload): &Found<'_, DynamicObject>| workload_has(workload, address);
    match state.workloads.iter().filter(declares).collect::<Vec<_>>()[..] {
        [] => {}
        [found] => return of_workload(state, settings, found, address),
        ref several => return conflict(several.len(), format!("externalworkloads with a conflicting ip {ip}:{port}")),
    }
    match ending(state, on_pod_network).or_else(|| ending(state, on_host_network)) {
        Some(found) => of_running_pod(state, settings, found, address),
        None => bare(settings, address),
    }
}

/// Returns whether a Pod has the address, also one that does not run yet.
pub(super) fn is_of_pod(state: &ApiState, address: SocketAddr) -> bool {
    candidates(state, |pod| on_pod_network(pod, address.ip()) || on_host_network(pod, address)).next().is_some()
}

/// The Pods with an address that are not terminating: several of them conflict.
fn lasting(state: &ApiState, has: impl Fn(&Pod) -> bool) -> Vec<Found<'_, Pod>> {
    candidates(state, has).filter(|(_, pod)| pod.metadata.deletion_timestamp.is_none()).collect()
}

/// The terminating Pod that keeps an address. They never conflict: a running Pod precedes others, then the newest.
fn ending(state: &ApiState, has: impl Fn(&Pod) -> bool) -> Option<Found<'_, Pod>> {
    let ending = candidates(state, has).filter(|(_, pod)| pod.metadata.deletion_timestamp.is_some());
    ending.min_by_key(|((namespace, name), pod)| {
        (!is_running(pod), Reverse(pod.metadata.creation_timestamp.clone()), name.clone(), namespace.clone())
    })
}

fn candidates(state: &ApiState, has: impl Fn(&Pod) -> bool) -> impl Iterator<Item = Found<'_, Pod>> {
    state.pods.iter().filter(move |(_, pod)| !matches!(phase(pod), "Succeeded" | "Failed") && has(pod))
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Readiness does not matter.
fn is_running(pod: &Pod) -> bool {
    phase(pod) == "Running"
}

fn on_pod_network(pod: &Pod, address: IpAddr) -> bool {
    let on_host = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
    !on_host && pod_addresses(pod).into_iter().any(|own| ip(own) == Some(address))
}

/// The single address counts only without a list.
fn pod_addresses(pod: &Pod) -> Vec<&str> {
    let Some(status) = &pod.status else { return Vec::new() };
    let listed: Vec<&str> = status.pod_ips.iter().flatten().map(|listed| listed.ip.as_str()).collect();
    if listed.is_empty() { status.pod_ip.as_deref().into_iter().collect() } else { listed }
}

/// Matches a TCP host port of any container, for any bind address.
fn on_host_network(pod: &Pod, address: SocketAddr) -> bool {
    let Some(status) = &pod.status else { return false };
    let listed: Vec<&str> = status.host_ips.iter().flatten().map(|listed| listed.ip.as_str()).collect();
    let hosts = if listed.is_empty() { status.host_ip.as_deref().into_iter().collect() } else { listed };
    opaque::pod_ports(pod).iter().any(|port| port.host == Some(address.port().into()))
        && hosts.into_iter().any(|host| ip(host) == Some(address.ip()))
}

fn workload_has(workload: &DynamicObject, address: SocketAddr) -> bool {
    let listed = |pointer: &str| workload.data.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let number = i64::from(address.port());
    let mut tcp = listed("/spec/ports").filter(|port| opaque::is_tcp_of_workload(port));
    tcp.any(|port| port.get("port").and_then(Value::as_i64) == Some(number))
        && listed("/spec/workloadIPs")
            .any(|own| own.get("ip").and_then(Value::as_str).and_then(ip) == Some(address.ip()))
}

/// Answers for an instance: the first endpoint with this hostname and an address in the Service's slices, ready or not.
pub(super) fn instance(
    state: &ApiState,
    settings: &Settings,
    (namespace, service): (&str, &str),
    host_name: &str,
    port: u16,
) -> ProfileAnswer {
    let Some((published, pod)) = named(state, (namespace, service), host_name) else {
        let text = format!("no pod found in EndpointSlices of Service {namespace}/{service} for hostname {host_name}");
        return ProfileAnswer::Refused(Code::NotFound, text);
    };
    let Some(reference) = pod else { return by_address(state, settings, SocketAddr::new(published, port)) };
    let place = (namespace.to_owned(), reference.name.clone().unwrap_or_default());
    let found = state.pods.get_key_value(&place).filter(|(_, pod)| is_referenced(reference, &pod.metadata));
    let Some((place, pod)) = found else {
        return ProfileAnswer::Refused(Code::Unknown, format!("pod \"{}\" not found", place.1));
    };
    let own = pod_addresses(pod).first().copied().and_then(ip);
    let address = SocketAddr::new(own.unwrap_or(published), port);
    of_running_pod(state, settings, (place, pod), address)
}

/// The address of the first endpoint with this hostname, and its reference to a Pod. An endpoint is skipped if its target
/// is in another namespace, or if it has no valid address.
pub(super) fn named<'a>(
    state: &'a ApiState,
    (namespace, service): (&str, &str),
    host_name: &str,
) -> Option<(IpAddr, Option<&'a ObjectReference>)> {
    let slices = state.slices_of(namespace, service);
    let endpoints = slices.into_iter().flat_map(|slice: &EndpointSlice| &slice.endpoints);
    let mut named = endpoints.filter(|endpoint| endpoint.hostname.as_deref() == Some(host_name));
    named.find_map(|endpoint| {
        let reference = endpoint.target_ref.as_ref();
        let other = reference.and_then(|reference| reference.namespace.as_deref()).unwrap_or_default();
        if !other.is_empty() && other != namespace {
            return None;
        }
        let published = endpoint.addresses.iter().find_map(|address| ip(address))?;
        Some((published, reference.filter(|reference| reference.kind.as_deref() == Some("Pod"))))
    })
}

/// The answer for a Pod that is not running is the same as for an unknown address.
fn of_running_pod(state: &ApiState, settings: &Settings, found: Found<'_, Pod>, address: SocketAddr) -> ProfileAnswer {
    if is_running(found.1) { of_pod(state, settings, found, address) } else { bare(settings, address) }
}

fn of_pod(
    state: &ApiState,
    settings: &Settings,
    ((namespace, name), pod): Found<'_, Pod>,
    address: SocketAddr,
) -> ProfileAnswer {
    let labels = label::of_pod(state, namespace, name, pod, "", None);
    let is_on_host = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
    let is_forwarded = !is_on_host && on_host_network(pod, address);
    // The Pod's proxy receives forwarded connections at the container port, so the lists of both ports apply.
    let mut ports = vec![address.port()];
    let containers = opaque::pod_ports(pod);
    let behind = containers.iter().filter(|port| is_forwarded && port.host == Some(address.port().into()));
    ports.extend(behind.filter_map(|port| u16::try_from(port.number).ok()));
    let mut rendered = render::of_pod(state, settings, namespace, pod, &ports, with_namespace(labels, namespace));
    // A host port forwards connections to one container port. Nothing forwards the inbound port of the proxy, which is
    // open at this address only if the Pod is in the host's network.
    if let Some(hint) = rendered.protocol_hint.as_mut().filter(|_| is_forwarded) {
        hint.opaque_transport = None;
    }
    profile(rendered, address, render::pod_is_opaque(state, settings, namespace, pod, &ports))
}

fn of_workload(
    state: &ApiState,
    settings: &Settings,
    ((namespace, name), workload): Found<'_, DynamicObject>,
    address: SocketAddr,
) -> ProfileAnswer {
    let port = address.port();
    let labels = label::of_workload(name, workload, "", None);
    let rendered = render::of_workload(state, settings, namespace, workload, port, with_namespace(labels, namespace));
    profile(rendered, address, render::workload_is_opaque(state, settings, namespace, workload, port))
}

/// The endpoint of an unknown address; the default opaque ports apply.
fn bare(settings: &Settings, address: SocketAddr) -> ProfileAnswer {
    profile(WeightedAddr::default(), address, opaque::lists(&settings.default_opaque_ports, &[], address.port()))
}

/// Adds the label `namespace`, which `Get` sends as a label of the set.
fn with_namespace(mut labels: Labels, namespace: &str) -> Labels {
    labels.insert("namespace".to_owned(), namespace.to_owned());
    labels
}

fn profile(rendered: WeightedAddr, address: SocketAddr, opaque_protocol: bool) -> ProfileAnswer {
    let endpoint = WeightedAddr { addr: Some(render::wire(address)), weight: render::WEIGHT, ..rendered };
    ProfileAnswer::Profile(Box::new(DestinationProfile {
        retry_budget: Some(default_budget()),
        endpoint: Some(endpoint),
        opaque_protocol,
        ..DestinationProfile::default()
    }))
}
