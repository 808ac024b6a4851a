//! The ports that ExternalWorkloads have in the slices of a Service. Pure.
//!
//! In: the ports of a Service and those of a workload. Out: the ports of the workload's slice, and the ports that it
//! lacks. Always holds: workloads that need the same ports share one set in memory, and the sets of a Service are
//! bounded; the work for a workload is linear in its ports and those of the Service.

use std::{
    cmp::Ordering,
    collections::{BTreeSet, HashMap, HashSet, hash_map::Entry},
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
/// The maximum number of ports in all sets of one Service, which take about 20 MB. Each workload may need a set of its
/// own, so a few hundred small workloads would multiply the ports of a Service.
const PORTS_LIMIT: usize = 100_000;

/// The ports of a slice. Their order has no meaning. A clone shares the set, and a set equals its clones without a
/// comparison of their content.
#[derive(Clone, Debug)]
pub(super) struct Ports(Arc<BTreeSet<EndpointPort>>);

/// The ports of the workloads that a Service selects.
pub(super) struct PortMatches<'a> {
    service: &'a [ServicePort],
    matches: HashMap<Box<[Match]>, PortMatch>,
    /// The number of ports that further sets may have.
    left: usize,
}

/// The index of a port of the Service, and the number of the workload's port that it targets.
type Match = (usize, i32);

#[derive(Clone)]
pub(super) struct PortMatch {
    pub ports: Ports,
    /// The description of the ports that are not published.
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
        Self { service, matches: HashMap::new(), left: PORTS_LIMIT }
    }

    /// Returns the ports of a workload with these ports. Beyond the limit, a workload that needs a further set has no
    /// ports; workloads must be passed in the same order each time.
    pub(super) fn of(&mut self, workload: &[WorkloadPort]) -> PortMatch {
        let matches = match_ports(self.service.iter(), workload.iter());
        match self.matches.entry(matches) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(new) => {
                let Some(left) = self.left.checked_sub(new.key().len()) else { return PortMatch::beyond_limit() };
                self.left = left;
                let matched = PortMatch::new(self.service, new.key());
                new.insert(matched).clone()
            }
        }
    }
}

impl PortMatch {
    fn new(service: &[ServicePort], matches: &[Match]) -> Self {
        let (mut ports, mut unmatched) = (BTreeSet::new(), Vec::new());
        let mut matches = matches.iter().peekable();
        for (index, port) in service.iter().enumerate() {
            match matches.next_if(|(matched, _)| *matched == index) {
                None => unmatched.push(port),
                Some((_, number)) => {
                    ports.insert(EndpointPort {
                        name: port.name.clone(),
                        port: Some(*number),
                        protocol: port.protocol.clone(),
                        app_protocol: port.app_protocol.clone(),
                    });
                }
            }
        }
        Self { ports: Ports(Arc::new(ports)), unmatched: (!unmatched.is_empty()).then(|| describe(&unmatched).into()) }
    }

    fn beyond_limit() -> Self {
        let text = format!(
            "the Service has more than {PORTS_LIMIT} ports in total for workloads with different spec.ports; it is \
             published without ports"
        );
        Self { ports: Ports::from_iter([]), unmatched: Some(text.into()) }
    }
}

/// Returns the matches of the Service's ports, in their order. Unlike a Pod, a workload must also declare ports that
/// the Service targets by number.
fn match_ports<'a>(
    service: impl Iterator<Item = &'a ServicePort>,
    workload: impl Iterator<Item = &'a WorkloadPort>,
) -> Box<[Match]> {
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
    service.enumerate().filter_map(|(index, port)| Some((index, number(port)?))).collect()
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
        let mut matches = PortMatches::new(&service.all_ports);
        let PortMatch { ports, unmatched } = matches.of(&workload.all_ports);
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
        let mut matches = PortMatches::new(&service.all_ports);
        let ports = matches.of(&workload.all_ports).ports;
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
        let service_ports = service.all_ports.iter().inspect(|_| asked.set(asked.get() + 1));
        let workload_ports = workload.all_ports.iter().inspect(|_| read.set(read.get() + 1));
        assert!(match_ports(service_ports, workload_ports).is_empty());
        assert_eq!((asked.get(), read.get()), (500, 500));
    }

    #[test]
    fn all_sets_of_a_service_have_at_most_a_hundred_thousand_ports() {
        let targets: Vec<Value> =
            (1..=1000).map(|port| json!({"name": format!("p{port}"), "port": port, "targetPort": "http"})).collect();
        let service = service(&json!({ "ports": targets }));
        let mut matches = PortMatches::new(&service.all_ports);
        let mut matched = |number: i32| {
            let workload = workload("vm", true, &json!({}), &json!({"ports": [{"name": "http", "port": number}]}));
            let PortMatch { ports, unmatched } = matches.of(&workload.all_ports);
            (ports.len(), unmatched)
        };
        for number in 1..=100 {
            assert_eq!(matched(number), (1000, None));
        }
        let (ports, unmatched) = matched(101);
        assert_eq!(ports, 0);
        assert_eq!(
            &*unmatched.unwrap(),
            "the Service has more than 100000 ports in total for workloads with different spec.ports; it is \
             published without ports"
        );
        assert_eq!(matched(1), (1000, None), "it shares a set that exists");
    }
}
