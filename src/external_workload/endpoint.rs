//! The endpoints that ExternalWorkloads have in a Service. Pure.
//!
//! In: a Service and the workloads that it selects. Out: per family, each workload's endpoint and the ports that its
//! slice must have; and the findings about workloads.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::{
    findings::Finding,
    ports::{PortMatches, Ports},
};
use crate::{
    api::{
        EXTERNAL_WORKLOAD_KIND,
        endpoint_slice::{Endpoint, EndpointConditions, Family, TargetRef},
        is_dns_label,
    },
    cluster::kinds::{
        external_workload::{Address, ExternalWorkload},
        service::{HintPolicy, Service},
    },
    events::Reason,
    text::{and_more, truncate},
};

/// The maximum length of an invalid address in a finding, in bytes. The longest address has 45 characters.
const ADDRESS_SHOWN: usize = 64;
/// The maximum number of invalid addresses in a finding.
const ADDRESSES_SHOWN: usize = 3;
/// The finding about the name of a workload that a headless Service selects.
pub(super) const INVALID_HOSTNAME: &str =
    "its name is not a hostname (63 characters of a-z, 0-9 and -, no dots); it is published without a hostname";

/// The finding about a workload without a zone. One ready endpoint without a hint turns off the hints of all endpoints of
/// the Service, for kube-proxy and for Linkerd's proxies.
pub(super) const MISSING_ZONE: &str = "it has no label topology.kubernetes.io/zone, so while it is ready, \
                                       trafficDistribution of the Service has no effect";

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
    let mut matches = PortMatches::new(&service.all_ports);
    for workload in workloads {
        let matched = matches.of(&workload.all_ports);
        let hostname = service.headless.then(|| workload.key.name.to_string());
        let mut published = false;
        // `ready` is about traffic, and `serving` about the workload itself.
        let ready = workload.ready || service.publish_not_ready;
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
                    ready: Some(ready),
                    serving: Some(workload.ready),
                    terminating: Some(false),
                },
                hostname: hostname.clone().filter(|_| !hostname_invalid),
                zone: workload.zone().map(str::to_owned),
                hints: hints(service, workload).filter(|_| ready),
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
            endpoints
                .insert(Arc::clone(&workload.key.name), DesiredEndpoint { ports: matched.ports.clone(), endpoint });
        }
        let mut find = |reason, text| findings.push(Finding::new(workload, reason, text));
        if let Some(text) = describe_invalid(&workload.addresses) {
            find(Reason::InvalidWorkloadIP, text);
        }
        // A workload without an address of the Service's families is not an endpoint, so its ports and name do not
        // matter.
        if !published {
            if let Some(text) = describe_other_family(service, workload) {
                find(Reason::InvalidWorkloadIP, text);
            }
            continue;
        }
        if hostname_invalid {
            find(Reason::InvalidHostname, INVALID_HOSTNAME.to_owned());
        }
        if service.hints == HintPolicy::OwnZone && zone(workload).is_none() {
            find(Reason::MissingZone, MISSING_ZONE.to_owned());
        }
        if let Some(unmatched) = matched.unmatched {
            find(Reason::UnmatchedPort, unmatched.to_string());
        }
    }
    (families, findings)
}

/// Returns the hints of a workload while it is ready.
fn hints(service: &Service, workload: &ExternalWorkload) -> Option<Value> {
    let zone = zone(workload).filter(|_| service.hints == HintPolicy::OwnZone)?;
    Some(json!({"forZones": [{"name": zone}]}))
}

/// Returns the zone that clients can be in. The label may be empty.
fn zone(workload: &ExternalWorkload) -> Option<&str> {
    workload.zone().filter(|zone| !zone.is_empty())
}

/// Returns the name of the ExternalWorkload that an endpoint of the Service refers to.
pub(super) fn workload<'a>(service: &Service, endpoint: &'a Endpoint) -> Option<&'a str> {
    let target = endpoint.target_ref.as_ref()?;
    let is_workload = target.kind.as_deref() == Some(EXTERNAL_WORKLOAD_KIND);
    let is_here = target.namespace.as_deref().is_none_or(|namespace| namespace == &*service.key.namespace);
    target.name.as_deref().filter(|_| is_workload && is_here)
}

/// Returns one text about all invalid addresses. They come from the tenant, in any number and length.
pub(super) fn describe_invalid(addresses: &[Address]) -> Option<String> {
    let invalid = addresses.iter().filter_map(|address| match address {
        Address::Invalid { text, reason } => Some((truncate(text, ADDRESS_SHOWN), reason)),
        Address::Valid { .. } => None,
    });
    let shown = invalid.clone().take(ADDRESSES_SHOWN).map(|(text, reason)| {
        format!("workloadIPs contains {text:?}, which is not a valid endpoint address: {reason}; it is skipped")
    });
    Some(and_more(shown, invalid.clone().count(), "; ")).filter(|text| !text.is_empty())
}

/// Returns a text about a workload whose valid addresses are all of a family that the Service does not have. Without a
/// valid address, another finding names the invalid ones.
fn describe_other_family(service: &Service, workload: &ExternalWorkload) -> Option<String> {
    let has_valid = workload.addresses.iter().any(|address| matches!(address, Address::Valid { .. }));
    let families: Vec<&str> = service.families.iter().map(|family| family.address_type()).collect();
    has_valid.then(|| {
        format!(
            "spec.workloadIPs has no {} address, and the Service has no other family: it is not published",
            families.join(" or ")
        )
    })
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
    use crate::cluster::testing::{external_workload, service};

    #[test]
    fn a_workload_that_is_not_an_endpoint_has_findings_only_for_its_invalid_addresses() {
        let service = service(&json!({"ipFamilies": ["IPv4"], "clusterIP": "None", "ports": [{"port": 80}]}));
        let notes = |ips: &[&str]| {
            let ips: Vec<_> = ips.iter().map(|ip| json!({"ip": ip})).collect();
            let workload = Arc::new(external_workload("vm.example", true, &json!({}), &json!({"workloadIPs": ips})));
            let (_, findings) = desired(&service, &[workload]);
            findings.iter().map(|it| it.notice(&service)).map(|it| (it.reason, it.note)).collect::<Vec<_>>()
        };
        assert_eq!(notes(&["192.0.2.1"]).len(), 2, "its name and its ports");
        let other_family = "As an endpoint of Service legacy: spec.workloadIPs has no IPv4 address, and the Service has no other \
                            family: it is not published";
        assert_eq!(notes(&["2001:db8::1"]), [(Reason::InvalidWorkloadIP, other_family.to_owned())]);
        let [(Reason::InvalidWorkloadIP, note)] = &notes(&["bogus"])[..] else { panic!() };
        assert!(note.contains("\"bogus\", which is not a valid endpoint address"), "{note}");
        assert_eq!(notes(&[]), []);
    }

    #[test]
    fn an_endpoint_refers_to_a_workload_in_the_namespace_of_the_service_only() {
        let service = service(&json!({}));
        let found = |target: serde_json::Value| {
            let endpoint: Endpoint =
                serde_json::from_value(json!({"addresses": ["192.0.2.1"], "targetRef": target})).unwrap();
            workload(&service, &endpoint).map(str::to_owned)
        };
        let known = Some("vm".to_owned());
        assert_eq!(found(json!({"kind": "ExternalWorkload", "name": "vm", "namespace": "ns"})), known);
        assert_eq!(found(json!({"kind": "ExternalWorkload", "name": "vm"})), known);
        for other in [
            json!({"kind": "ExternalWorkload", "name": "vm", "namespace": "other"}),
            json!({"kind": "Pod", "name": "vm", "namespace": "ns"}),
            json!({"kind": "ExternalWorkload"}),
            json!(null),
        ] {
            assert_eq!(found(other.clone()), None, "{other}");
        }
    }
}
