//! The encoded endpoints of a Service that the clients of one view receive. Pure.
//!
//! In: the members of a Service, the query, and the location of the client. Out: encoded endpoints by socket address,
//! without duplicates. The filters apply in this order: the instance, the port, `internalTrafficPolicy` or else the
//! hints for nodes or else those for zones, the IP family. When several members claim one socket address, the first in
//! [`Precedence`] wins.

use std::{collections::HashSet, iter::Peekable, net::SocketAddr, sync::Arc};

use prost::Message;

use super::{
    encoded_endpoint::{EncodedEndpoint, EndpointSource},
    endpoint_set::EndpointSet,
    members::{Member, Members, RemoteSource},
    port_selector::PortSelector,
    request::{Location, Query, QueryPort},
    snapshot::Snapshot,
};
use crate::{
    cluster::kinds::endpoint_slice::ready::{ReadyEndpoint, ReadySlice},
    destination::{
        endpoint::{
            target::{EndpointTarget, Precedence},
            weighted_addr::{ClientContext, Locality, SliceContext, weighted_addr},
        },
        settings::DestinationSettings,
    },
};

/// An endpoint that has passed the filters so far.
#[derive(Clone, Copy)]
struct EndpointCandidate<'a> {
    member: &'a Member,
    /// The index in [`Members::sources`].
    source: usize,
    /// `None` for this cluster.
    remote: Option<&'a RemoteSource>,
    slice: &'a ReadySlice,
    endpoint: &'a ReadyEndpoint,
    port: u16,
}

/// Returns the endpoints for clients at a location, sorted by socket address. An endpoint whose encoding is unchanged
/// since `known` is the same object: when one of ten thousand endpoints changes, the others are only compared. An
/// endpoint with the same encoding for another location in `siblings` is shared with it: an endpoint is either in the
/// zone of the client or in another zone, so many locations have the same encoding.
pub(in crate::destination) fn endpoints(
    members: &Members,
    query: &Query,
    location: &Location,
    settings: &Arc<DestinationSettings>,
    known: &EndpointSet,
    siblings: &[Arc<Snapshot>],
) -> EndpointSet {
    let declared = match query.port {
        QueryPort::Declared(port) => Some(port),
        QueryPort::Undeclared => None,
    };
    let chosen = choose(members, query, location, settings.enable_ipv6);
    let mut before = Lookup(known.iter().peekable());
    let mut others: Vec<_> = siblings.iter().map(|it| Lookup(it.endpoints().iter().peekable())).collect();
    let encode = |(address, candidate): &(SocketAddr, EndpointCandidate<'_>)| {
        let known = before.find(*address);
        let (target, zone) = (&candidate.member.target, &candidate.endpoint.zone);
        let is_bare = matches!(target, EndpointTarget::Address);
        let traits = members.labels(query.with_clusters).of_source(candidate.source);
        let settings = candidate.remote.map_or(settings, |remote| &remote.settings);
        let source = || EndpointSource {
            target: target.clone(),
            zone: zone.clone(),
            mirror: candidate.slice.mirror.clone().filter(|_| is_bare),
            traits: traits.cloned(),
        };
        let mut same_address = others.iter_mut().filter_map(|it| it.find(*address));
        let Some(port) = declared else {
            let (source, client_zone) = (source(), location.zone.as_deref());
            let locality = Locality::of(client_zone, target, zone.as_deref());
            return match known.into_iter().chain(same_address).find(|it| it.is_of_any_port(&source, locality)) {
                Some(shared) => Arc::clone(shared),
                None => Arc::new(EncodedEndpoint::of_any_port(*address, source, locality, settings)),
            };
        };
        // The encoding of a bare address also depends on its mirror, and encoding is as cheap as comparing.
        let has_source = !is_bare;
        let unchanged = |known: &EncodedEndpoint| {
            let is_same = |source: &EndpointSource| {
                source.target == *target && source.zone == *zone && source.traits.as_ref() == traits
            };
            known.source().is_some_and(is_same)
        };
        if let Some(known) = known.filter(|known| unchanged(known)) {
            return Arc::clone(known);
        }
        let client = ClientContext { zone: location.zone.as_deref(), port };
        let slice = SliceContext {
            zone: zone.as_deref(),
            mirror: candidate.slice.mirror.as_deref(),
            labels: traits.map(|it| &it.labels),
        };
        let encoded = weighted_addr(target, *address, slice, &client, settings).encode_to_vec();
        if let Some(known) = known.filter(|known| known.is_encoded_as(&encoded)) {
            return Arc::clone(known);
        }
        let source = has_source.then(source);
        // The source must be equal too, because another source may be encoded differently for this location.
        match same_address.find(|other| other.source() == source.as_ref() && other.is_encoded_as(&encoded)) {
            Some(shared) => Arc::clone(shared),
            None => Arc::new(EncodedEndpoint::new(*address, &encoded, source)),
        }
    };
    let endpoints: Vec<Arc<EncodedEndpoint>> = chosen.iter().map(encode).collect();
    EndpointSet::new(&endpoints, known)
}

/// A sorted set in which addresses are looked up in ascending order.
struct Lookup<I: Iterator>(Peekable<I>);

impl<'a, I: Iterator<Item = &'a Arc<EncodedEndpoint>>> Lookup<I> {
    fn find(&mut self, address: SocketAddr) -> Option<&'a Arc<EncodedEndpoint>> {
        while self.0.next_if(|it| it.address < address).is_some() {}
        self.0.next_if(|it| it.address == address)
    }
}

fn choose<'a>(
    members: &'a Members,
    query: &Query,
    location: &Location,
    enable_ipv6: bool,
) -> Vec<(SocketAddr, EndpointCandidate<'a>)> {
    // Each source has its own ports.
    let ports: Vec<PortSelector<'_>> =
        members.sources.iter().map(|source| PortSelector::new(source.service.as_deref(), query.port)).collect();
    // The members are in the order of their slices, so the port of a slice is looked up once for all its members.
    let mut last: Option<(usize, Option<u16>)> = None;
    let mut port_of = |member: &Member, source: usize, slice: &ReadySlice| match last {
        Some((of, port)) if of == member.slice => port,
        _ => {
            let port = ports.get(source).and_then(|port| port.in_slice(slice));
            last = Some((member.slice, port));
            port
        }
    };
    let mut candidates: Vec<EndpointCandidate<'a>> = members
        .select(query, location)
        .filter_map(|member| {
            let (slice, endpoint, source) =
                (members.slice(member)?, members.endpoint(member)?, members.source(member)?);
            let port = port_of(member, source, slice)?;
            let remote = members.sources.get(source)?.remote.as_ref();
            Some(EndpointCandidate { member, source, remote, slice, endpoint, port })
        })
        .collect();
    if location.node.is_none() && location.hinted_node.is_none() {
        keep_hinted(&mut candidates, location.zone.as_ref());
    }
    let with_ipv6: HashSet<(usize, &str)> = candidates
        .iter()
        .filter(|candidate| enable_ipv6 && candidate.endpoint.addresses.iter().any(std::net::IpAddr::is_ipv6))
        .filter_map(EndpointCandidate::pod)
        .collect();
    let mut claims = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        for ip in &candidate.endpoint.addresses {
            // The IP family is chosen only for Pods. For other endpoints, every address is sent.
            let is_sent = candidate.pod().is_none_or(|pod| ip.is_ipv6() == with_ipv6.contains(&pod));
            if is_sent {
                claims.push((SocketAddr::new(*ip, candidate.port), candidate));
            }
        }
    }
    // The sort is stable: among equal claims, the claim of the first slice wins.
    claims.sort_by(|(a, one), (b, other)| a.cmp(b).then_with(|| one.precedence().cmp(&other.precedence())));
    claims.dedup_by(|(a, _), (b, _)| a == b);
    claims
}

/// Applies zone hints if every endpoint of this cluster has a hint and at least one has a hint for the client's zone.
/// Otherwise the client receives every endpoint. The zones of another cluster are not compared.
fn keep_hinted(candidates: &mut Vec<EndpointCandidate<'_>>, zone: Option<&Arc<str>>) {
    let Some(zone) = zone else { return };
    let local = || candidates.iter().filter(|candidate| candidate.remote.is_none());
    let is_for_zone = |candidate: &EndpointCandidate<'_>| candidate.endpoint.hints.contains(zone);
    let all_hinted = local().all(|candidate| !candidate.endpoint.hints.is_empty());
    if all_hinted && local().any(is_for_zone) {
        candidates.retain(|candidate| candidate.remote.is_some() || is_for_zone(candidate));
    }
}

// === impl EndpointCandidate ===

impl<'a> EndpointCandidate<'a> {
    /// Returns the name of a Pod, and its source: Pods of two clusters may have the same name.
    fn pod(&self) -> Option<(usize, &'a str)> {
        let member: &'a Member = self.member;
        match &member.target {
            EndpointTarget::Pod(target) => Some((self.source, &target.pod.key.name)),
            EndpointTarget::Workload(_) | EndpointTarget::Address => None,
        }
    }

    fn precedence(&self) -> Precedence<'_> {
        self.member.target.precedence()
    }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
