//! Services: the fields that determine endpoints, and the lookup of the Services that select a workload.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use k8s_openapi::{
    api::core::v1 as core, apimachinery::pkg::apis::meta::v1::ObjectMeta, apimachinery::pkg::util::intstr::IntOrString,
};
use serde::Deserialize;

use super::{
    federated_service::{FederatedService, ServiceMember},
    port_ranges::PortRanges,
};
use crate::{
    api::{
        NamespacedName, OPAQUE_PORTS_ANNOTATION, TOPOLOGY_MODE_ANNOTATIONS, carries_tcp, endpoint_slice::Family,
        lean_metadata,
    },
    cluster::{
        Problems, Projected,
        index::{
            address::{self, ByAddress},
            members::ByMember,
            selector::{BySelector, Labels, Selector},
            store::{Store, Stored},
        },
    },
};

/// A Service, reduced to the fields that its endpoints and its profile depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub key: NamespacedName,
    pub uid: Arc<str>,
    pub labels: BTreeMap<String, String>,
    /// `None` if it is absent or empty: the endpoints are then managed by another controller.
    pub selector: Option<Selector>,
    pub external_name: bool,
    /// `clusterIP: None`, literally: an empty `clusterIP` is one that was not assigned yet.
    pub headless: bool,
    pub families: Vec<Family>,
    /// The ports of all protocols, for the slices of the Service.
    pub all_ports: Vec<ServicePort>,
    pub deleting: bool,
    /// `internalTrafficPolicy: Local`: clients receive only Pods on their own node.
    pub local: bool,
    pub hints: HintPolicy,
    /// `publishNotReadyAddresses`: clients receive endpoints even if they are not ready.
    pub publish_not_ready: bool,
    /// `None` if its endpoints are its own.
    pub federated: Option<Box<FederatedService>>,
    /// The cluster IPs of all families; empty for a headless Service.
    pub cluster_ips: Box<[IpAddr]>,
    /// `None` for the mesh's default.
    pub opaque_ports: Option<PortRanges>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Empty where the Service has a single unnamed port.
    pub name: String,
    pub number: i32,
    pub protocol: String,
    pub app_protocol: Option<String>,
    pub target: TargetPort,
}

/// The hints that the endpoints of a Service have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintPolicy {
    None,
    /// `trafficDistribution`: each endpoint is for the clients in its own zone.
    OwnZone,
    /// Another controller allocates them.
    Allocated,
}

/// `targetPort`: a string of digits is a name, never a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPort {
    Number(i32),
    Name(String),
}

/// Lookups of Services over the cluster.
#[derive(Default)]
pub struct ServiceIndex {
    by_cluster_ip: ByAddress<IpAddr, Service>,
    by_member: ByMember,
}

/// A Service as the API server sends it.
#[derive(Clone, Debug, Deserialize, kube::Resource)]
#[resource(inherit = "core::Service")]
pub struct ServiceObject {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Option<ServiceSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServiceSpec {
    #[serde(rename = "type")]
    type_: Option<String>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    #[serde(rename = "clusterIPs")]
    cluster_ips: Option<Vec<String>>,
    selector: Option<BTreeMap<String, String>>,
    ip_families: Option<Vec<String>>,
    internal_traffic_policy: Option<String>,
    traffic_distribution: Option<String>,
    publish_not_ready_addresses: Option<bool>,
    ports: Option<Vec<core::ServicePort>>,
}

// === impl Service ===

impl Projected for Service {
    type Wire = ServiceObject;
    const INFORMER_LAG: Option<&'static str> = Some("services_informer_lag_seconds");

    fn project(wire: ServiceObject, problems: &mut Problems) -> Self {
        let spec = wire.spec.unwrap_or_default();
        let key = NamespacedName::of(&wire.metadata);
        // If no family is known, both are used, as in Linkerd's controller.
        let mut families: Vec<Family> =
            spec.ip_families.iter().flatten().filter_map(|name| Family::from_address_type(name)).collect();
        if families.is_empty() {
            families = vec![Family::IPv4, Family::IPv6];
        }
        let annotations = wire.metadata.annotations.unwrap_or_default();
        let labels = wire.metadata.labels.unwrap_or_default();
        let federated = FederatedService::of(&labels, &annotations, problems).map(Box::new);
        let all_ports: Vec<ServicePort> = spec.ports.into_iter().flatten().map(ServicePort::from).collect();
        let opaque_ports = annotations.get(OPAQUE_PORTS_ANNOTATION).map(|text| {
            let named = tcp(&all_ports).filter_map(|port| Some((port.name.as_str(), u16::try_from(port.number).ok()?)));
            PortRanges::parse(text, named, problems)
        });
        let cluster_ips = spec.cluster_ips.unwrap_or_default();
        let single = spec.cluster_ip.iter().filter(|_| cluster_ips.is_empty());
        Self {
            key,
            local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            hints: HintPolicy::of(spec.traffic_distribution.as_deref(), &annotations),
            publish_not_ready: spec.publish_not_ready_addresses == Some(true),
            federated,
            uid: wire.metadata.uid.unwrap_or_default().into(),
            labels,
            selector: Selector::new(spec.selector.unwrap_or_default().iter().collect()),
            external_name: spec.type_.as_deref() == Some("ExternalName"),
            headless: spec.cluster_ip.as_deref() == Some("None"),
            families,
            deleting: wire.metadata.deletion_timestamp.is_some(),
            cluster_ips: address::unique(cluster_ips.iter().chain(single).filter_map(|text| address::parse(text))),
            opaque_ports,
            all_ports,
        }
    }
}

impl Service {
    /// The ports that proxies can forward to.
    pub fn tcp_ports(&self) -> impl Iterator<Item = &ServicePort> {
        tcp(&self.all_ports)
    }

    fn members(&self) -> impl Iterator<Item = &ServiceMember> {
        self.federated.iter().flat_map(|federated| &federated.members)
    }
}

fn tcp(ports: &[ServicePort]) -> impl Iterator<Item = &ServicePort> {
    ports.iter().filter(|port| carries_tcp(&port.protocol))
}

// === impl HintPolicy ===

impl HintPolicy {
    /// Decides as the EndpointSlice controller of Kubernetes does: the annotation precedes the field. `PreferSameNode`
    /// counts as `PreferSameZone`, because an ExternalWorkload has no node. Unknown values mean no preference.
    fn of(traffic_distribution: Option<&str>, annotations: &BTreeMap<String, String>) -> Self {
        let mode = TOPOLOGY_MODE_ANNOTATIONS.iter().find_map(|key| annotations.get(*key));
        if mode.is_some_and(|mode| mode == "Auto" || mode == "auto") {
            return Self::Allocated;
        }
        match traffic_distribution {
            Some("PreferClose" | "PreferSameZone" | "PreferSameNode") => Self::OwnZone,
            _ => Self::None,
        }
    }
}

impl Stored for Service {
    type NamespaceIndex = BySelector;
    type ClusterIndex = ServiceIndex;

    fn key(&self) -> NamespacedName {
        self.key.clone()
    }

    fn index(self: &Arc<Self>, by_selector: &mut BySelector, services: &mut ServiceIndex) {
        if let Some(selector) = &self.selector {
            by_selector.insert(selector, &self.key.name);
        }
        services.by_cluster_ip.insert(self.cluster_ips.iter().copied(), self);
        services.by_member.insert(&self.key, self.members());
    }

    fn unindex(self: &Arc<Self>, by_selector: &mut BySelector, services: &mut ServiceIndex) {
        if let Some(selector) = &self.selector {
            by_selector.remove(selector, &self.key.name);
        }
        services.by_cluster_ip.remove(self.cluster_ips.iter().copied(), self);
        services.by_member.remove(&self.key, self.members());
    }
}

impl From<core::ServicePort> for ServicePort {
    fn from(port: core::ServicePort) -> Self {
        Self {
            name: port.name.unwrap_or_default(),
            number: port.port,
            protocol: port.protocol.unwrap_or_else(|| "TCP".to_owned()),
            app_protocol: port.app_protocol,
            target: match port.target_port {
                Some(IntOrString::String(name)) => TargetPort::Name(name),
                // The API server sets an absent targetPort; 0 means absent.
                Some(IntOrString::Int(0)) | None => TargetPort::Number(port.port),
                Some(IntOrString::Int(number)) => TargetPort::Number(number),
            },
        }
    }
}

impl Store<Service> {
    /// The Services that clients reach at the address.
    pub fn at(&self, address: IpAddr) -> &[Arc<Service>] {
        self.cluster_index().by_cluster_ip.get(&address)
    }

    /// The federated Services.
    pub fn by_member(&self) -> &ByMember {
        &self.cluster_index().by_member
    }

    /// The Services of a namespace whose selector matches.
    pub fn selecting<'a>(&'a self, namespace: &str, labels: &'a Labels) -> impl Iterator<Item = &'a Arc<Service>> {
        let services = self.select(namespace, |index| index.candidates(labels));
        services.filter(|service| service.selector.as_ref().is_some_and(|selector| selector.matches(labels)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::testing::service;
    use crate::cluster::{State, Watched};

    #[test]
    fn a_target_port_of_digits_in_quotes_is_a_name() {
        let service = service(&json!({"ports": [
            {"port": 80, "targetPort": "8080"}, {"port": 81, "targetPort": 8081}, {"port": 82}]}));
        let targets: Vec<_> = service.all_ports.into_iter().map(|port| port.target).collect();
        assert_eq!(targets, [TargetPort::Name("8080".into()), TargetPort::Number(8081), TargetPort::Number(82)]);
    }

    #[test]
    fn an_empty_selector_counts_as_none() {
        assert_eq!(service(&json!({"selector": {}})).selector, None);
    }

    #[test]
    fn an_unassigned_cluster_ip_is_not_headless() {
        assert!(!service(&json!({"clusterIP": ""})).headless);
        assert!(service(&json!({"clusterIP": "None"})).headless);
    }

    #[test]
    fn a_service_with_a_deletion_time_is_being_deleted() {
        let of = |time: serde_json::Value| {
            let object = json!({"metadata": {"name": "a", "namespace": "ns", "deletionTimestamp": time}});
            Service::project(serde_json::from_value(object).unwrap(), &mut Problems::default()).deleting
        };
        assert_eq!([of(json!(null)), of(json!("2026-01-01T00:00:00Z"))], [false, true]);
    }

    #[test]
    fn a_service_is_found_by_the_addresses_that_it_has_now() {
        let mut state = State::default();
        let at = |state: &State| ["10.0.0.1", "2001:db8::1"].map(|it| state.services.at(it.parse().unwrap()).len());
        let both = json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "2001:DB8::1"]});
        service(&both).apply(&mut state);
        assert_eq!(at(&state), [1, 1]);
        service(&json!({"clusterIP": "10.0.0.1"})).apply(&mut state);
        assert_eq!(at(&state), [1, 0]);
        assert!(service(&json!({"clusterIP": "10.0.0.1"})).apply(&mut state).is_none(), "nothing changed");
        service(&json!({"clusterIP": "None", "clusterIPs": ["None"]})).apply(&mut state);
        assert!(state.services.cluster_index().by_cluster_ip.is_empty());
    }

    #[test]
    fn an_opaque_port_may_be_a_name_and_a_blank_item_is_not_an_unnamed_port() {
        let object = |ports: serde_json::Value| {
            let annotations = json!({ OPAQUE_PORTS_ANNOTATION: "db, ,90-91,nothing" });
            let object = json!({"metadata": {"name": "a", "namespace": "ns", "annotations": annotations}, "spec": {"ports": ports}});
            let mut problems = Problems::default();
            let service = Service::project(serde_json::from_value(object).unwrap(), &mut problems);
            let opaque = service.opaque_ports.unwrap();
            ([5432, 80, 91].map(|port| opaque.contains(port)), problems.len())
        };
        assert_eq!(
            object(json!([{"name": "db", "port": 5432}, {"name": "http", "port": 80}])),
            ([true, false, true], 2)
        );
        assert_eq!(object(json!([{"port": 80}])), ([false, false, true], 3));
        assert_eq!(service(&json!({})).opaque_ports, None);
    }

    #[test]
    fn a_change_of_the_preferred_endpoints_is_a_change_of_the_service() {
        let mut state = State::default();
        let mut is_change = |spec: serde_json::Value| service(&spec).apply(&mut state).is_some();
        assert!(is_change(json!({})));
        assert!(is_change(json!({"trafficDistribution": "PreferClose"})));
        assert!(!is_change(json!({"trafficDistribution": "PreferSameNode", "publishNotReadyAddresses": false})));
        assert!(is_change(json!({"publishNotReadyAddresses": true})));
    }

    #[test]
    fn a_changed_selector_is_found_under_the_new_labels_only() {
        let mut services = Store::<Service>::default();
        services.apply(service(&json!({"selector": {"app": "a"}})));
        services.apply(service(&json!({"selector": {"app": "b"}})));
        let selecting = |value| services.selecting("ns", &[("app", value)].into_iter().collect()).count();
        assert_eq!((selecting("a"), selecting("b")), (0, 1));
    }
}
