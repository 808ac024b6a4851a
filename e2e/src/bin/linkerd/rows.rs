//! The rows of `docs/internals/src/differences.md` that describe a difference at rest.
//!
//! * In: what differs, both answers, and the objects they were given about. Out: the number of the row.
//! * Always: a row is returned only if the objects are such as it describes. Any other difference has none, and the
//!   comparison fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use e2e::{
    discovery::socket_address,
    oracle::{ApiState, ProfileAnswer, Request, is_tcp},
};
use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::{Endpoint, EndpointSlice},
};
use linkerd2_proxy_api::{
    destination::{DestinationProfile, ProtocolHint, WeightedAddr, WeightedDst},
    meta::{Metadata, Resource, metadata::Kind},
};
use tonic::Code;

const LOCAL_DISCOVERY: &str = "multicluster.linkerd.io/local-discovery";
const CLUSTER_NAME: &str = "mirror.linkerd.io/cluster-name";
const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";
const INBOUND_LISTEN_ADDR: &str = "LINKERD2_PROXY_INBOUND_LISTEN_ADDR";
/// The largest `inbound_port` that a proxy accepts is one less.
const REFUSED_INBOUND_PORT: u32 = 65_535;

/// Returns the row for an endpoint that only our server sends.
pub(crate) fn of_endpoint_from_us(state: &ApiState, endpoint: &WeightedAddr) -> Option<u32> {
    let mut targets = with_address_of(state, endpoint).filter_map(|(_, it)| it.target_ref.as_ref());
    if has_unreadable_proxy(state, endpoint) {
        Some(9)
    } else if targets.any(|target| target.namespace.is_none()) {
        Some(48)
    } else {
        (entries(state, endpoint) > 1).then_some(39)
    }
}

/// Returns the row for an endpoint that only Linkerd's server sends.
pub(crate) fn of_endpoint_from_them(state: &ApiState, endpoint: &WeightedAddr) -> Option<u32> {
    if is_of_missing_service(state, endpoint) {
        Some(99)
    } else if is_of_another_namespace(state, endpoint) {
        Some(43)
    } else if is_local_and_without_node(state, endpoint) {
        Some(101)
    } else {
        (entries(state, endpoint) > 1).then_some(39)
    }
}

/// Returns the row for a field of an endpoint that both servers send.
pub(crate) fn of_endpoint_field(
    state: &ApiState,
    field: &str,
    ours: &WeightedAddr,
    theirs: &WeightedAddr,
) -> Option<u32> {
    let row = match field {
        "the label target_cluster" | "the label target_service" | "the label target_service_namespace" => {
            is_partly_mirrored(state, ours).then_some(37)
        }
        "the label zone" | "the label zone_locality" | "weight" => (entries(state, ours) > 1).then_some(39),
        "protocol_hint" => has_refused_port(ours, theirs).then_some(40),
        _ => None,
    };
    row.or_else(|| has_several_claims(state, ours).then_some(8))
}

/// Returns the row for a profile that only our server sends.
pub(crate) fn of_missing_profile(state: &ApiState, ours: &DestinationProfile) -> Option<u32> {
    if let Some(endpoint) = &ours.endpoint {
        if has_unreadable_proxy(state, endpoint) {
            return Some(9);
        }
        let status = pod(state, endpoint)?.status.as_ref()?;
        return status.pod_ip.is_none().then_some(100);
    }
    let service = resource(ours.parent_ref.as_ref())?;
    let name = format!("{}.{}.svc.cluster.local", service.name, service.namespace);
    state.profiles.keys().any(|(_, profile)| *profile == name).then_some(11)
}

/// Returns the row for a field of a profile.
pub(crate) fn of_profile_field(
    state: &ApiState,
    field: &str,
    ours: &DestinationProfile,
    theirs: &DestinationProfile,
) -> Option<u32> {
    match field {
        "profile_ref" => {
            let (ours, theirs) = (resource(ours.profile_ref.as_ref())?, resource(theirs.profile_ref.as_ref())?);
            let is_equal_otherwise = Resource { kind: String::new(), ..ours.clone() } == *theirs;
            (ours.kind == "ServiceProfile" && is_equal_otherwise).then_some(36)
        }
        "endpoint" => of_endpoint_of_profile(state, ours.endpoint.as_ref()?, theirs.endpoint.as_ref()?),
        "opaque_protocol" => {
            if let (Some(ours), Some(theirs)) = (&ours.endpoint, &theirs.endpoint) {
                return of_endpoint_of_profile(state, ours, theirs);
            }
            let service = resource(ours.parent_ref.as_ref())?;
            let service = state.services.get(&(service.namespace.clone(), service.name.clone()))?;
            service.metadata.annotations.as_ref()?.contains_key(OPAQUE_PORTS).then_some(18)
        }
        "dst_overrides" => {
            let is_a_bound = |override_: &WeightedDst| [0, u32::MAX].contains(&override_.weight);
            ours.dst_overrides.iter().any(is_a_bound).then_some(41)
        }
        _ => None,
    }
}

/// Returns the row for the endpoint of a profile.
fn of_endpoint_of_profile(state: &ApiState, ours: &WeightedAddr, theirs: &WeightedAddr) -> Option<u32> {
    if with_lower_case_labels(theirs) == *ours {
        return Some(44);
    }
    if is_being_deleted(state, ours) {
        return Some(16);
    }
    if has_refused_port(ours, theirs) {
        return Some(40);
    }
    if theirs.metric_labels.is_empty() {
        return has_unusual_address(state, ours).then_some(45);
    }
    is_at_host_port(state, ours).then(|| {
        let hint = ours.protocol_hint.map(|hint| ProtocolHint {
            opaque_transport: theirs.protocol_hint.and_then(|hint| hint.opaque_transport),
            ..hint
        });
        if (WeightedAddr { protocol_hint: hint, ..ours.clone() }) == *theirs { 34 } else { 35 }
    })
}

/// Returns the row for a message of Linkerd's that contains an address twice.
pub(crate) fn of_repeated_address(
    state: &ApiState,
    request: &Request,
    ours: &BTreeMap<SocketAddr, WeightedAddr>,
) -> Option<u32> {
    if ours.values().any(|endpoint| has_several_claims(state, endpoint)) {
        return Some(8);
    }
    has_missing_member(state, request).then_some(99)
}

/// Returns the row for another text of the same refusal.
pub(crate) fn of_refusal(code: Code) -> Option<u32> {
    (code == Code::InvalidArgument).then_some(38)
}

/// Returns the row for a hostname for which only one of the servers sends a profile.
pub(crate) fn of_hostname(
    state: &ApiState,
    request: &Request,
    ours: Option<&ProfileAnswer>,
    theirs: Option<&ProfileAnswer>,
) -> Option<u32> {
    let [hostname, service, namespace, _] = request.path.splitn(4, '.').collect::<Vec<_>>().try_into().ok()?;
    let endpoints = endpoints(state, namespace, service);
    let named: Vec<_> = endpoints.filter(|(_, endpoint)| endpoint.hostname.as_deref() == Some(hostname)).collect();
    match (ours?, theirs?) {
        (ProfileAnswer::Profile(_), ProfileAnswer::Refused(..)) => {
            let is_missing = |(_, endpoint): &(&EndpointSlice, &Endpoint)| {
                endpoint.target_ref.as_ref().is_some_and(|target| {
                    let place = (target.namespace.clone().unwrap_or_default(), target.name.clone().unwrap_or_default());
                    !state.pods.contains_key(&place)
                })
            };
            (named.len() > 1 && named.iter().any(is_missing)).then_some(42)
        }
        (ProfileAnswer::Refused(..), ProfileAnswer::Profile(_)) => {
            let is_left_out = |(slice, endpoint): &(&EndpointSlice, &Endpoint)| {
                let target = endpoint.target_ref.as_ref().and_then(|target| target.namespace.as_deref());
                slice.address_type == "FQDN" || target.is_some_and(|target| target != namespace)
            };
            named.iter().any(is_left_out).then_some(43)
        }
        _ => None,
    }
}

/// Returns the row for a request whose answer may depend on a port of UDP or SCTP. It describes differences that no other
/// row does.
pub(crate) fn of_port(state: &ApiState, request: &Request) -> Option<u32> {
    let (host, port) = request.path.rsplit_once(':').unwrap_or((&request.path, "80"));
    let port = port.parse().ok()?;
    let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() else {
        let labels: Vec<_> = host.trim_matches(['[', ']']).split('.').collect();
        let svc = labels.iter().position(|label| *label == "svc")?;
        let [service, namespace] = *labels.get(svc.checked_sub(2)?..svc)? else { return None };
        return has_other_protocols(state, namespace, service, port).then_some(102);
    };
    let address = address.to_string();
    let has_address = |service: &Service| service.spec.as_ref()?.cluster_ips.as_ref().map(|it| it.contains(&address));
    let of_service = state.services.iter().find(|(_, service)| has_address(service).unwrap_or_default());
    match of_service {
        Some(((namespace, service), _)) => has_other_protocols(state, namespace, service, port).then_some(102),
        None => is_other_port_of_workload(state, port).then_some(103),
    }
}

/// Returns whether the Service has this port for UDP or SCTP, or one of its slices has any such port.
fn has_other_protocols(state: &ApiState, namespace: &str, service: &str, port: i32) -> bool {
    let of_slices = state.slices_of(namespace, service).into_iter().flat_map(|slice| slice.ports.iter().flatten());
    let place = (namespace.to_owned(), service.to_owned());
    let spec = state.services.get(&place).and_then(|service| service.spec.as_ref());
    let of_service = spec.into_iter().flat_map(|spec| spec.ports.iter().flatten()).filter(|it| it.port == port);
    let mut protocols = of_slices.map(|it| it.protocol.as_deref()).chain(of_service.map(|it| it.protocol.as_deref()));
    protocols.any(|protocol| !is_tcp(protocol))
}

/// Returns whether a Pod or an ExternalWorkload has this port for UDP or SCTP.
fn is_other_port_of_workload(state: &ApiState, port: i32) -> bool {
    let specs = state.pods.values().filter_map(|pod| pod.spec.as_ref());
    let containers = specs.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    let mut of_pods = containers.flat_map(|container| container.ports.iter().flatten());
    let of_workloads = state.workloads.values().filter_map(|it| it.data.pointer("/spec/ports")?.as_array());
    of_pods.any(|it| [Some(it.container_port), it.host_port].contains(&Some(port)) && !is_tcp(it.protocol.as_deref()))
        || of_workloads.flatten().any(|it| it["port"] == port && !is_tcp(it["protocol"].as_str()))
}

/// Returns how many addresses of the endpoint's workload are in the slices of its Service.
fn entries(state: &ApiState, endpoint: &WeightedAddr) -> usize {
    let label = |name: &str| endpoint.metric_labels.get(name).map(String::as_str);
    let (Some(namespace), Some(service)) = (label("namespace"), label("service")) else { return 0 };
    let (kind, name) = match (label("pod"), label("external_workload")) {
        (Some(pod), _) => ("Pod", pod),
        (None, Some(workload)) => ("ExternalWorkload", workload),
        (None, None) => return 0,
    };
    let of_workload = endpoints(state, namespace, service).filter(|(_, endpoint)| {
        let target = endpoint.target_ref.as_ref();
        target.is_some_and(|target| target.kind.as_deref() == Some(kind) && target.name.as_deref() == Some(name))
    });
    of_workload.map(|(_, endpoint)| endpoint.addresses.len()).sum()
}

/// Returns whether the endpoint's address is in its Service several times: with several workloads, or also without one,
/// or without one in several slices.
fn has_several_claims(state: &ApiState, endpoint: &WeightedAddr) -> bool {
    let claim = |(slice, it): (&EndpointSlice, &Endpoint)| match &it.target_ref {
        Some(target) => (target.kind.clone(), target.name.clone()),
        None => (None, slice.metadata.name.clone()),
    };
    with_address_of(state, endpoint).map(claim).collect::<BTreeSet<_>>().len() > 1
}

/// Returns whether the endpoint is of a Service that does not exist, as a member of a federated one can be.
fn is_of_missing_service(state: &ApiState, endpoint: &WeightedAddr) -> bool {
    let label = |name: &str| endpoint.metric_labels.get(name).cloned().unwrap_or_default();
    !state.services.contains_key(&(label("namespace"), label("service")))
}

/// Returns whether the endpoint's address is that of a Pod in another namespace than its Service.
fn is_of_another_namespace(state: &ApiState, endpoint: &WeightedAddr) -> bool {
    let namespace = endpoint.metric_labels.get("namespace");
    let mut targets = with_address_of(state, endpoint).filter_map(|(_, it)| it.target_ref.as_ref());
    targets.any(|target| target.namespace.is_some() && target.namespace.as_ref() != namespace)
}

/// Returns whether only clients on the endpoint's node receive it, and it is a Pod that no node runs.
fn is_local_and_without_node(state: &ApiState, endpoint: &WeightedAddr) -> bool {
    let label = |name: &str| endpoint.metric_labels.get(name).cloned().unwrap_or_default();
    let service = state.services.get(&(label("namespace"), label("service"))).and_then(|service| service.spec.as_ref());
    let is_local = service.and_then(|spec| spec.internal_traffic_policy.as_deref()) == Some("Local");
    let node = pod(state, endpoint).and_then(|pod| pod.spec.as_ref()).and_then(|spec| spec.node_name.as_deref());
    is_local && node.is_none_or(str::is_empty)
}

/// Returns whether the requested Service is federated, and its member in this cluster does not exist.
fn has_missing_member(state: &ApiState, request: &Request) -> bool {
    let path = format!(".{}", request.path);
    state.services.iter().any(|((namespace, name), service)| {
        let annotations = service.metadata.annotations.as_ref();
        let member = annotations.and_then(|annotations| annotations.get(LOCAL_DISCOVERY));
        let is_missing = |member: &String| !state.services.contains_key(&(namespace.clone(), member.clone()));
        path.contains(&format!(".{name}.{namespace}.svc")) && member.is_some_and(is_missing)
    })
}

/// Returns whether some slices of the endpoint's Service are those of a mirrored Service, and others are not.
fn is_partly_mirrored(state: &ApiState, endpoint: &WeightedAddr) -> bool {
    let label = |name: &str| endpoint.metric_labels.get(name).map_or("", String::as_str);
    let slices = state.slices_of(label("namespace"), label("service"));
    let clusters =
        slices.iter().map(|slice| slice.metadata.labels.as_ref().and_then(|labels| labels.get(CLUSTER_NAME)));
    let clusters: Vec<_> = clusters.collect();
    clusters.iter().any(|cluster| Some(cluster) != clusters.first())
}

/// Returns whether the endpoint is a Pod that is being deleted.
fn is_being_deleted(state: &ApiState, endpoint: &WeightedAddr) -> bool {
    pod(state, endpoint).is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())
}

/// Returns whether the endpoint is a meshed Pod whose containers do not say where its proxy listens.
fn has_unreadable_proxy(state: &ApiState, endpoint: &WeightedAddr) -> bool {
    let is_meshed = endpoint.metric_labels.contains_key("control_plane_ns");
    let Some(spec) = pod(state, endpoint).and_then(|pod| pod.spec.as_ref()).filter(|_| is_meshed) else { return false };
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let variables = containers.filter(|it| it.name == "linkerd-proxy").flat_map(|it| it.env.iter().flatten());
    let mut listens = variables.filter(|variable| variable.name == INBOUND_LISTEN_ADDR);
    !listens.any(|variable| variable.value.as_deref().is_some_and(|value| value.parse::<SocketAddr>().is_ok()))
}

/// Returns whether only Linkerd's server sends the inbound port, which proxies refuse.
fn has_refused_port(ours: &WeightedAddr, theirs: &WeightedAddr) -> bool {
    let [ours, theirs] = [ours, theirs].map(|endpoint| {
        let transport = endpoint.protocol_hint.and_then(|hint| hint.opaque_transport);
        transport.map(|transport| transport.inbound_port)
    });
    (ours, theirs) == (None, Some(REFUSED_INBOUND_PORT))
}

/// Returns whether the endpoint is a Pod with a network of its own, at an address of its node.
fn is_at_host_port(state: &ApiState, endpoint: &WeightedAddr) -> bool {
    let Some(pod) = pod(state, endpoint) else { return false };
    let is_in_host_network = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or_default();
    let (Some(address), Some(status)) = (ip(endpoint), &pod.status) else { return false };
    let address = address.to_string();
    let is_own = status.pod_ips.iter().flatten().any(|own| own.ip == address);
    let is_of_node = status.host_ips.iter().flatten().any(|of_node| of_node.ip == address);
    !is_in_host_network && is_of_node && !is_own
}

/// Returns whether the endpoint is an ExternalWorkload with an address that is not in canonical form, or is that of an
/// IPv4 address in IPv6.
fn has_unusual_address(state: &ApiState, endpoint: &WeightedAddr) -> bool {
    let label = |name: &str| endpoint.metric_labels.get(name).cloned().unwrap_or_default();
    let workload = state.workloads.get(&(label("namespace"), label("external_workload")));
    let listed = workload.and_then(|workload| workload.data.pointer("/spec/workloadIPs")?.as_array());
    let addresses = listed.into_iter().flatten().filter_map(|it| it.pointer("/ip")?.as_str());
    let is_unusual =
        |text: &str| text.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().to_string() != text);
    addresses.into_iter().any(is_unusual)
}

fn pod<'a>(state: &'a ApiState, endpoint: &WeightedAddr) -> Option<&'a Pod> {
    let label = |name: &str| endpoint.metric_labels.get(name).cloned().unwrap_or_default();
    state.pods.get(&(label("namespace"), label("pod")))
}

fn with_lower_case_labels(endpoint: &WeightedAddr) -> WeightedAddr {
    let labels = endpoint.metric_labels.iter().map(|(name, value)| (name.to_lowercase(), value.clone()));
    WeightedAddr { metric_labels: labels.collect(), ..endpoint.clone() }
}

/// Returns the entries in the slices of the endpoint's Service that have its address.
fn with_address_of<'a>(
    state: &'a ApiState,
    endpoint: &WeightedAddr,
) -> impl Iterator<Item = (&'a EndpointSlice, &'a Endpoint)> {
    let label = |name: &str| endpoint.metric_labels.get(name).map_or("", String::as_str);
    let address = ip(endpoint);
    let has_it = move |it: &Endpoint| address.is_some() && it.addresses.iter().any(|it| it.parse().ok() == address);
    endpoints(state, label("namespace"), label("service")).filter(move |(_, it)| has_it(it))
}

fn ip(endpoint: &WeightedAddr) -> Option<IpAddr> {
    Some(socket_address(endpoint.addr.as_ref()?).ok()?.ip())
}

fn endpoints<'a>(
    state: &'a ApiState,
    namespace: &str,
    service: &str,
) -> impl Iterator<Item = (&'a EndpointSlice, &'a Endpoint)> {
    let slices = state.slices_of(namespace, service).into_iter();
    slices.flat_map(|slice| slice.endpoints.iter().map(move |endpoint| (slice, endpoint)))
}

fn resource(metadata: Option<&Metadata>) -> Option<&Resource> {
    match metadata?.kind.as_ref()? {
        Kind::Resource(resource) => Some(resource),
        Kind::Default(_) => None,
    }
}
