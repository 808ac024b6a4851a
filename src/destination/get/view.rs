//! Which endpoints of a Service one kind of client is told of, and how they look. Pure.
//!
//! In: the members of a Service, what is asked for, where the client is. Out: encoded endpoints by socket address, each
//! once. The filters in their order: the instance, the port, `internalTrafficPolicy` or else the zone hints, the IP
//! family; then, of several that claim one socket address, the first in order of [`Claim`].

use std::{
    collections::{BTreeMap, HashSet},
    iter::Peekable,
    net::SocketAddr,
    sync::Arc,
};

use prost::Message;

use super::{
    endpoint_set::{Endpoint, EndpointSet, Source},
    members::{Claim, Member, Members, Subject},
    snapshot::Snapshot,
};
use crate::cluster::kinds::{
    endpoint_slice::ready::{Mirror, ReadyEndpoint, ReadySlice},
    node::Zone,
    service::Service,
};
use crate::destination::{
    endpoint::weighted_addr::{Client, Placed, weighted_address},
    settings::Settings,
};

/// What is asked for of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::destination) struct Query {
    pub(in crate::destination) port: u16,
    pub(in crate::destination) instance: Option<Arc<str>>,
}

/// As much of a client's place as matters to what it is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::destination) struct Location {
    pub(in crate::destination) zone: Zone,
    /// Only under `internalTrafficPolicy: Local`; then empty for a client that does not say.
    pub(in crate::destination) node: Option<Arc<str>>,
}

/// Where a Service's port leads: the name of a slice's port, or a number that no slice has to name.
enum TargetPort<'a> {
    Named(&'a str),
    Number(u16),
}

/// An endpoint that passes the filters so far.
struct Candidate<'a> {
    member: &'a Member,
    slice: &'a ReadySlice,
    endpoint: &'a ReadyEndpoint,
    port: u16,
}

/// The endpoints for clients at a location, sorted by socket address. One that looks as in `known` is the same object: of a
/// Service with ten thousand endpoints, a change of one costs a comparison of the others. And one that looks as at another
/// location, in `siblings`, is shared with that: an endpoint is only near or far.
pub(in crate::destination) fn endpoints(
    members: &Members,
    query: &Query,
    location: &Location,
    settings: &Settings,
    known: &EndpointSet,
    siblings: &[Arc<Snapshot>],
) -> EndpointSet {
    let client = Client { zone: location.zone.as_deref(), port: query.port };
    let chosen = choose(members, query, location, settings.enable_ipv6);
    let mut before = Lookup(known.iter().peekable());
    let mut elsewhere: Vec<_> = siblings.iter().map(|it| Lookup(it.endpoints().iter().peekable())).collect();
    let look = |(address, candidate): &(SocketAddr, Candidate<'_>)| {
        let known = before.find(*address);
        let (subject, zone) = (&candidate.member.subject, &candidate.endpoint.zone);
        // Others look by their mirror too, and are as quickly encoded as compared.
        let has_source = !matches!(subject, Subject::Address);
        let unchanged =
            |known: &Endpoint| known.source.as_ref().is_some_and(|it| it.subject == *subject && it.zone == *zone);
        if let Some(known) = known.filter(|known| unchanged(known)) {
            return Arc::clone(known);
        }
        let placed = Placed { address: *address, zone: zone.as_deref(), mirror: candidate.slice.mirror.as_deref() };
        let encoded = weighted_address(subject, &placed, &client, settings).encode_to_vec();
        if let Some(known) = known.filter(|known| known.is(&encoded)) {
            return Arc::clone(known);
        }
        let source = has_source.then(|| Source { subject: subject.clone(), zone: zone.clone() });
        // Of the same source too: what else it was made from may look otherwise from here.
        let mut others = elsewhere.iter_mut().filter_map(|it| it.find(*address));
        match others.find(|other| other.source == source && other.is(&encoded)) {
            Some(shared) => Arc::clone(shared),
            None => Arc::new(Endpoint::new(*address, &encoded, source)),
        }
    };
    let endpoints: Vec<Arc<Endpoint>> = chosen.iter().map(look).collect();
    EndpointSet::new(&endpoints, known)
}

/// A set in which addresses are looked up in their order.
struct Lookup<I: Iterator>(Peekable<I>);

impl<'a, I: Iterator<Item = &'a Arc<Endpoint>>> Lookup<I> {
    fn find(&mut self, address: SocketAddr) -> Option<&'a Arc<Endpoint>> {
        while self.0.next_if(|it| it.address < address).is_some() {}
        self.0.next_if(|it| it.address == address)
    }
}

/// The labels of the whole set.
pub(in crate::destination) fn set_labels(
    members: &Members,
    service: &str,
    namespace: &str,
) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([("service", service), ("namespace", namespace)]);
    let mirrors = members.slices.iter().filter_map(|slice| slice.mirror.as_deref());
    if let Some(Mirror { cluster: Some(cluster), service, .. }) = mirrors.into_iter().find(|it| it.cluster.is_some()) {
        labels.insert("target_cluster", cluster);
        let mut parts = service.as_deref().unwrap_or_default().split('.');
        if let (Some(service), Some(namespace)) = (parts.next(), parts.next()) {
            labels.insert("target_service", service);
            labels.insert("target_service_namespace", namespace);
        }
    }
    labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn choose<'a>(
    members: &'a Members,
    query: &Query,
    location: &Location,
    enable_ipv6: bool,
) -> Vec<(SocketAddr, Candidate<'a>)> {
    let target = target_port(members.service.as_deref(), query.port);
    let mut candidates: Vec<Candidate<'a>> = members
        .members
        .iter()
        .filter_map(|member| {
            let (slice, endpoint) = (members.slice(member)?, members.endpoint(member)?);
            let asked_for = query.instance.is_none() || query.instance == endpoint.hostname;
            let port = target.in_slice(slice).filter(|_| asked_for)?;
            Some(Candidate { member, slice, endpoint, port })
        })
        .collect();
    match &location.node {
        Some(node) => candidates.retain(|candidate| candidate.is_on(node)),
        None => keep_hinted(&mut candidates, location.zone.as_ref()),
    }
    let with_ipv6: HashSet<&str> = candidates
        .iter()
        .filter(|candidate| enable_ipv6 && candidate.endpoint.addresses.iter().any(std::net::IpAddr::is_ipv6))
        .filter_map(Candidate::pod)
        .collect();
    let mut claims = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        for ip in &candidate.endpoint.addresses {
            // Only Pods have a family: of another endpoint each address is told.
            let told = candidate.pod().is_none_or(|pod| ip.is_ipv6() == with_ipv6.contains(pod));
            if told {
                let Candidate { member, slice, endpoint, port } = candidate;
                claims.push((SocketAddr::new(*ip, port), Candidate { member, slice, endpoint, port }));
            }
        }
    }
    // Stable: of equal claims the first slice's stays.
    claims.sort_by(|(a, one), (b, other)| a.cmp(b).then_with(|| one.claim().cmp(&other.claim())));
    claims.dedup_by(|(a, _), (b, _)| a == b);
    claims
}

/// Zone hints count if every endpoint has one and the client's zone is hinted at; else everybody gets everything.
fn keep_hinted(candidates: &mut Vec<Candidate<'_>>, zone: Option<&Arc<str>>) {
    let Some(zone) = zone else { return };
    let all_hinted = candidates.iter().all(|candidate| !candidate.endpoint.hints.is_empty());
    let is_for_zone = |candidate: &Candidate<'_>| candidate.endpoint.hints.contains(zone);
    if all_hinted && candidates.iter().any(is_for_zone) {
        candidates.retain(is_for_zone);
    }
}

/// The first port of the Service with that number decides, whatever its protocol; a number that the Service does not
/// declare is taken as it is.
fn target_port(service: Option<&Service>, port: u16) -> TargetPort<'_> {
    let declared = service.and_then(|service| service.ports.iter().find(|it| it.number == i32::from(port)));
    declared.map_or(TargetPort::Number(port), |port| TargetPort::Named(&port.name))
}

// === impl TargetPort ===

impl TargetPort<'_> {
    fn in_slice(&self, slice: &ReadySlice) -> Option<u16> {
        let ports = slice.ports.as_deref()?;
        match self {
            Self::Named(name) => ports.iter().find(|port| *port.name == **name)?.number,
            Self::Number(number) => Some(*number),
        }
    }
}

// === impl Candidate ===

impl<'a> Candidate<'a> {
    fn pod(&self) -> Option<&'a str> {
        let member: &'a Member = self.member;
        match &member.subject {
            Subject::Pod(subject) => Some(&subject.pod.key.name),
            Subject::Workload(_) | Subject::Address => None,
        }
    }

    fn is_on(&self, node: &str) -> bool {
        matches!(&self.member.subject, Subject::Pod(subject) if !node.is_empty() && *subject.pod.node == *node)
    }

    fn claim(&self) -> Claim<'_> {
        self.member.subject.claim()
    }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
