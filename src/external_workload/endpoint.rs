//! The endpoints that ExternalWorkloads have in a Service. Pure.
//!
//! In: a Service and the workloads that it selects. Out: per family, each workload's endpoint and the ports that its
//! slice must have; and the findings about workloads.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::findings::Finding;
use crate::{
    api::{
        EXTERNAL_WORKLOAD_KIND,
        endpoint_slice::{Endpoint, EndpointConditions, EndpointPort, Family, TargetRef},
    },
    cluster::kinds::{
        external_workload::{Address, ExternalWorkload, WorkloadPort},
        service::{Service, ServicePort, TargetPort},
    },
    events::Reason,
    text::{and_more, truncate},
};

/// The maximum length of an invalid address in a finding, in bytes. The longest address has 45 characters.
const ADDRESS_SHOWN: usize = 64;
/// The maximum number of invalid addresses in a finding.
const ADDRESSES_SHOWN: usize = 3;
/// The maximum number of missing ports in a finding.
const PORTS_SHOWN: usize = 8;

/// The ports of a slice. Their order has no meaning.
pub(super) type Ports = BTreeSet<EndpointPort>;

/// The endpoint of a workload in one family, and the ports of its slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DesiredEndpoint {
    pub ports: Ports,
    pub endpoint: Endpoint,
}

/// The endpoints of one family, by workload name.
pub(super) type DesiredEndpoints = BTreeMap<Arc<str>, DesiredEndpoint>;

/// Returns the endpoints of each family of the Service by workload name, and the findings.
pub(super) fn desired(
    service: &Service,
    workloads: &[Arc<ExternalWorkload>],
) -> (BTreeMap<Family, DesiredEndpoints>, Vec<Finding>) {
    let mut families: BTreeMap<Family, DesiredEndpoints> =
        service.families.iter().map(|family| (*family, BTreeMap::new())).collect();
    let mut findings = Vec::new();
    for workload in workloads {
        let (ports, unmatched) = match_ports(service, workload);
        let hostname = service.headless.then(|| workload.key.name.to_string());
        let mut published = false;
        let hostname_invalid = hostname.as_deref().is_some_and(|name| !is_dns_label(name));
        for (family, endpoints) in &mut families {
            let mut addresses: Vec<String> =
                workload.addresses.iter().filter_map(|address| address.of(*family)).collect();
            addresses.sort();
            addresses.dedup();
            if addresses.is_empty() {
                continue;
            }
            let endpoint = Endpoint {
                addresses,
                // All three are set explicitly, because clients give an absent condition a different meaning.
                conditions: EndpointConditions {
                    ready: Some(workload.ready),
                    serving: Some(workload.ready),
                    terminating: Some(false),
                },
                hostname: hostname.clone().filter(|_| !hostname_invalid),
                zone: workload.zone().map(str::to_owned),
                // No apiVersion: Linkerd's controller omits it, and clients compare only the kind.
                target_ref: Some(TargetRef {
                    kind: Some(EXTERNAL_WORKLOAD_KIND.to_owned()),
                    namespace: Some(workload.key.namespace.to_string()),
                    name: Some(workload.key.name.to_string()),
                    uid: Some(workload.uid.to_string()),
                    ..TargetRef::default()
                }),
                ..Endpoint::default()
            };
            published = true;
            endpoints.insert(Arc::clone(&workload.key.name), DesiredEndpoint { ports: ports.clone(), endpoint });
        }
        let mut find = |reason, text| findings.push(Finding::new(workload, reason, text));
        if let Some(text) = describe_invalid(&workload.addresses) {
            find(Reason::InvalidWorkloadIP, text);
        }
        // A workload without an address of the Service's families is not an endpoint, so its ports and name do not
        // matter.
        if !published {
            continue;
        }
        if hostname_invalid {
            find(
                Reason::InvalidHostname,
                "its name is not a hostname (63 characters of a-z, 0-9 and -, no dots); it is published without a hostname"
                    .to_owned(),
            );
        }
        if !unmatched.is_empty() {
            find(Reason::UnmatchedPort, describe_unmatched(&unmatched));
        }
    }
    (families, findings)
}

/// Returns the name of the ExternalWorkload that an endpoint of the Service refers to.
pub(super) fn workload<'a>(service: &Service, endpoint: &'a Endpoint) -> Option<&'a str> {
    let target = endpoint.target_ref.as_ref()?;
    let is_workload = target.kind.as_deref() == Some(EXTERNAL_WORKLOAD_KIND);
    let is_here = target.namespace.as_deref().is_none_or(|namespace| namespace == &*service.key.namespace);
    target.name.as_deref().filter(|_| is_workload && is_here)
}

/// Returns the ports of the slice for a workload, and the ports of the Service that the workload lacks. Unlike a Pod, a
/// workload must also declare ports that the Service targets by number.
fn match_ports<'a>(service: &'a Service, workload: &ExternalWorkload) -> (Ports, Vec<&'a ServicePort>) {
    let mut ports = Ports::new();
    let mut unmatched = Vec::new();
    for port in &service.ports {
        let targets = |candidate: &&WorkloadPort| {
            candidate.protocol == port.protocol
                && match &port.target {
                    TargetPort::Number(number) => candidate.number == *number,
                    TargetPort::Name(name) => candidate.name == *name,
                }
        };
        match workload.ports.iter().find(targets) {
            None => unmatched.push(port),
            Some(found) => {
                ports.insert(EndpointPort {
                    name: port.name.clone(),
                    port: Some(found.number),
                    protocol: port.protocol.clone(),
                    app_protocol: port.app_protocol.clone(),
                });
            }
        }
    }
    (ports, unmatched)
}

/// Returns one text about all invalid addresses. They come from the tenant, in any number and length.
fn describe_invalid(addresses: &[Address]) -> Option<String> {
    let invalid = addresses.iter().filter_map(|address| match address {
        Address::Invalid { text, reason } => Some((truncate(text, ADDRESS_SHOWN), reason)),
        Address::Valid { .. } => None,
    });
    let shown = invalid.clone().take(ADDRESSES_SHOWN).map(|(text, reason)| {
        format!("workloadIPs contains {text:?}, which is not a valid endpoint address: {reason}; it is skipped")
    });
    Some(and_more(shown, invalid.clone().count(), "; ")).filter(|text| !text.is_empty())
}

fn describe_unmatched(ports: &[&ServicePort]) -> String {
    let shown = ports.iter().take(PORTS_SHOWN).map(|port| match &port.target {
        TargetPort::Number(number) => format!("{number}/{}", port.protocol),
        TargetPort::Name(name) => format!("{name:?}/{}", port.protocol),
    });
    let targets = and_more(shown, ports.len(), ", ");
    format!("spec.ports has no {targets}, which the Service targets; missing ports are not published")
}

/// Whether the name is an RFC 1123 label, as the `hostname` of an endpoint must be. Workload names may be longer and
/// contain dots.
fn is_dns_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

impl Address {
    /// Returns the text if it is an address of the family.
    fn of(&self, wanted: Family) -> Option<String> {
        match self {
            Self::Valid { family, text } if *family == wanted => Some(text.clone()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::testing::{external_workload as workload, service};

    fn ports(service_ports: &serde_json::Value, workload_ports: &serde_json::Value) -> (Vec<(String, i32)>, usize) {
        let service = service(&json!({ "ports": service_ports }));
        let workload = workload("vm", true, &json!({}), &json!({ "ports": workload_ports }));
        let (ports, unmatched) = match_ports(&service, &workload);
        let ports = ports.into_iter().map(|port| (port.name, port.port.unwrap())).collect();
        (ports, unmatched.len())
    }

    #[test]
    fn a_port_targeted_by_number_must_be_declared_by_the_workload_with_its_protocol() {
        let target = json!([{"name": "dns", "port": 53, "protocol": "UDP"}]);
        assert_eq!(ports(&target, &json!([{"port": 53, "protocol": "UDP"}])), (vec![("dns".into(), 53)], 0));
        assert_eq!(ports(&target, &json!([{"port": 53}])), (vec![], 1));
        assert_eq!(ports(&target, &json!([])), (vec![], 1));
    }

    #[test]
    fn a_port_targeted_by_name_is_the_first_of_that_name_and_protocol() {
        let target = json!([{"port": 80, "targetPort": "http"}]);
        let workload = json!([{"name": "http", "port": 1, "protocol": "UDP"}, {"name": "http", "port": 8080}, {"name": "http", "port": 8081}]);
        assert_eq!(ports(&target, &workload), (vec![(String::new(), 8080)], 0));
    }

    #[test]
    fn the_application_protocol_of_the_service_is_passed_on() {
        let service = service(&json!({"ports": [{"port": 80, "appProtocol": "kubernetes.io/h2c"}]}));
        let workload = workload("vm", true, &json!({}), &json!({"ports": [{"port": 80}]}));
        let (ports, _) = match_ports(&service, &workload);
        assert_eq!(ports.first().unwrap().app_protocol.as_deref(), Some("kubernetes.io/h2c"));
    }

    #[test]
    fn a_workload_that_is_not_an_endpoint_has_findings_only_for_its_invalid_addresses() {
        let service = service(&json!({"ipFamilies": ["IPv4"], "clusterIP": "None", "ports": [{"port": 80}]}));
        let findings = |ips: &[&str]| {
            let ips: Vec<_> = ips.iter().map(|ip| json!({"ip": ip})).collect();
            let workload = Arc::new(workload("vm.example", true, &json!({}), &json!({"workloadIPs": ips})));
            desired(&service, &[workload]).1.len()
        };
        assert_eq!(findings(&["192.0.2.1"]), 2, "its name and its ports");
        assert_eq!(findings(&["2001:db8::1"]), 0);
        assert_eq!(findings(&["bogus"]), 1);
    }

    #[test]
    fn only_dns_labels_are_valid_hostnames() {
        for name in ["a", "vm-1", "0", &"a".repeat(63)] {
            assert!(is_dns_label(name), "{name}");
        }
        for name in ["", "vm.example", "-a", "a-", "VM", &"a".repeat(64)] {
            assert!(!is_dns_label(name), "{name}");
        }
    }
}
