//! The ports that ExternalWorkloads have in the slices of a Service. Pure.
//!
//! In: the ports of a Service and those of a workload. Out: the ports of the workload's slice, and the ports that it
//! lacks. Always holds: workloads that need the same ports share one set in memory; the work for a workload is linear
//! in its ports and those of the Service.

use std::{
    cmp::Ordering,
    collections::{BTreeSet, HashMap, HashSet},
    ops::Deref,
    sync::Arc,
};

use crate::{
    api::endpoint_slice::EndpointPort,
    cluster::kinds::{
        external_workload::WorkloadPort,
        service::{ServicePort, TargetPort},
    },
    text::and_more,
};

/// The maximum number of missing ports in a finding.
const PORTS_SHOWN: usize = 8;

/// The ports of a slice. Their order has no meaning. A clone shares the set, and a set equals its clones without a
/// comparison of their content.
#[derive(Clone, Debug)]
pub(super) struct Ports(Arc<BTreeSet<EndpointPort>>);

/// The ports of the workloads that a Service selects.
pub(super) struct PortMatches<'a> {
    service: &'a [ServicePort],
    /// By the number of the workload's port for each port of the Service.
    matches: HashMap<Box<[Option<i32>]>, PortMatch>,
}

pub(super) struct PortMatch {
    pub ports: Ports,
    /// The description of the ports that the workload lacks.
    pub unmatched: Option<Arc<str>>,
}

// === impl Ports ===

impl Deref for Ports {
    type Target = BTreeSet<EndpointPort>;

    fn deref(&self) -> &BTreeSet<EndpointPort> {
        &self.0
    }
}

impl FromIterator<EndpointPort> for Ports {
    fn from_iter<I: IntoIterator<Item = EndpointPort>>(ports: I) -> Self {
        Self(Arc::new(ports.into_iter().collect()))
    }
}

impl Ord for Ports {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        tests::COMPARISONS.set(tests::COMPARISONS.get() + 1);
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl PartialOrd for Ports {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ports {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ports {}

// === impl PortMatches ===

impl<'a> PortMatches<'a> {
    pub(super) fn new(service: &'a [ServicePort]) -> Self {
        Self { service, matches: HashMap::new() }
    }

    /// Returns the ports of a workload with these ports.
    pub(super) fn of(&mut self, workload: &[WorkloadPort]) -> &PortMatch {
        let service = self.service;
        let numbers = match_ports(service.iter(), workload.iter());
        self.matches.entry(numbers).or_insert_with_key(|numbers| PortMatch::new(service, numbers))
    }
}

impl PortMatch {
    fn new(service: &[ServicePort], numbers: &[Option<i32>]) -> Self {
        let matched = service.iter().zip(numbers).filter(|(_, number)| number.is_some());
        let ports = matched.map(|(port, number)| EndpointPort {
            name: port.name.clone(),
            port: *number,
            protocol: port.protocol.clone(),
            app_protocol: port.app_protocol.clone(),
        });
        let unmatched: Vec<_> =
            service.iter().zip(numbers).filter(|(_, number)| number.is_none()).map(|(port, _)| port).collect();
        Self { ports: ports.collect(), unmatched: (!unmatched.is_empty()).then(|| describe(&unmatched).into()) }
    }
}

/// Returns the number of the workload's port for each port of the Service. Unlike a Pod, a workload must also declare
/// ports that the Service targets by number.
fn match_ports<'a>(
    service: impl Iterator<Item = &'a ServicePort>,
    workload: impl Iterator<Item = &'a WorkloadPort>,
) -> Box<[Option<i32>]> {
    let mut names: HashMap<(&str, &str), i32> = HashMap::new();
    let mut numbers: HashSet<(&str, i32)> = HashSet::new();
    for port in workload {
        // The first of several ports with the same name and protocol counts.
        names.entry((&port.protocol, &port.name)).or_insert(port.number);
        numbers.insert((&port.protocol, port.number));
    }
    let number = |port: &ServicePort| match &port.target {
        TargetPort::Number(number) => numbers.contains(&(port.protocol.as_str(), *number)).then_some(*number),
        TargetPort::Name(name) => names.get(&(port.protocol.as_str(), name.as_str())).copied(),
    };
    service.map(number).collect()
}

fn describe(unmatched: &[&ServicePort]) -> String {
    let shown = unmatched.iter().take(PORTS_SHOWN).map(|port| match &port.target {
        TargetPort::Number(number) => format!("{number}/{}", port.protocol),
        TargetPort::Name(name) => format!("{name:?}/{}", port.protocol),
    });
    let targets = and_more(shown, unmatched.len(), ", ");
    format!("spec.ports has no {targets}, which the Service targets; missing ports are not published")
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::testing::{external_workload as workload, service};

    thread_local! {
        /// The number of comparisons of two sets of ports in this thread.
        pub(in crate::external_workload) static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    fn ports(service_ports: &Value, workload_ports: &Value) -> (Vec<(String, i32)>, bool) {
        let service = service(&json!({ "ports": service_ports }));
        let workload = workload("vm", true, &json!({}), &json!({ "ports": workload_ports }));
        let mut matches = PortMatches::new(&service.ports);
        let PortMatch { ports, unmatched } = matches.of(&workload.ports);
        (ports.iter().map(|port| (port.name.clone(), port.port.unwrap())).collect(), unmatched.is_some())
    }

    #[test]
    fn a_port_targeted_by_number_must_be_declared_by_the_workload_with_its_protocol() {
        let target = json!([{"name": "dns", "port": 53, "protocol": "UDP"}]);
        assert_eq!(ports(&target, &json!([{"port": 53, "protocol": "UDP"}])), (vec![("dns".into(), 53)], false));
        assert_eq!(ports(&target, &json!([{"port": 53}])), (vec![], true));
        assert_eq!(ports(&target, &json!([])), (vec![], true));
    }

    #[test]
    fn a_port_targeted_by_name_is_the_first_of_that_name_and_protocol() {
        let target = json!([{"port": 80, "targetPort": "http"}]);
        let workload = json!([{"name": "http", "port": 1, "protocol": "UDP"}, {"name": "http", "port": 8080}, {"name": "http", "port": 8081}]);
        assert_eq!(ports(&target, &workload), (vec![(String::new(), 8080)], false));
    }

    #[test]
    fn the_application_protocol_of_the_service_is_passed_on() {
        let service = service(&json!({"ports": [{"port": 80, "appProtocol": "kubernetes.io/h2c"}]}));
        let workload = workload("vm", true, &json!({}), &json!({"ports": [{"port": 80}]}));
        let mut matches = PortMatches::new(&service.ports);
        let ports = &matches.of(&workload.ports).ports;
        assert_eq!(ports.first().unwrap().app_protocol.as_deref(), Some("kubernetes.io/h2c"));
    }

    #[test]
    fn each_port_of_a_workload_is_read_once_whatever_the_number_of_service_ports() {
        let all = |protocol: &str| -> Vec<Value> {
            (1..=500).map(|port| json!({"name": format!("p{port}"), "port": port, "protocol": protocol})).collect()
        };
        let service = service(&json!({ "ports": all("TCP") }));
        let workload = workload("vm", true, &json!({}), &json!({ "ports": all("UDP") }));
        let (read, asked) = (Cell::new(0), Cell::new(0));
        let service_ports = service.ports.iter().inspect(|_| asked.set(asked.get() + 1));
        let workload_ports = workload.ports.iter().inspect(|_| read.set(read.get() + 1));
        assert!(match_ports(service_ports, workload_ports).iter().all(Option::is_none));
        assert_eq!((asked.get(), read.get()), (500, 500));
    }
}
