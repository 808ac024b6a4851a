//! The plan for the EndpointSlices of one Service. Pure.
//!
//! In: a Service, the ExternalWorkloads that it selects, the slices that name it. Out: a [`SlicePlan`]. Always holds,
//! for the slices after the plan:
//! - every workload with a publishable address of a family of the Service is in exactly one slice of that family;
//! - an endpoint stays in its slice as long as possible, even when its ports change: Linkerd's destination mishandles
//!   an endpoint that moves between slices, and a slice that is deleted while it holds endpoints;
//! - a second plan is empty.
//!
//! Endpoints are distributed over slices in the same way as by Kubernetes' own EndpointSlice controller
//! (`k8s.io/endpointslice`), so that either controller can take over the slices of the other without a write.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use sha2::{Digest, Sha256};

use super::{
    endpoint::{self, DesiredEndpoint, DesiredEndpoints},
    findings::Finding,
    ports::Ports,
};
use crate::{
    api::{
        HEADLESS_LABEL, KUBE_SYSTEM, MANAGED_BY, MANAGED_BY_LABEL, SERVICE_NAME_LABEL,
        endpoint_slice::{Endpoint, EndpointSlice, Family},
    },
    cluster::kinds::{
        external_workload::ExternalWorkload,
        service::{HintPolicy, Service},
    },
    text::hex,
};

/// The maximum number of endpoints that we put into one slice, as in Kubernetes. The API server's limit is 1000; a
/// slice that another writer filled beyond our maximum is left unchanged.
pub(super) const MAX_ENDPOINTS: usize = 100;

/// The required writes, and the findings to report.
#[derive(Debug, Default)]
pub(super) struct SlicePlan {
    pub creates: Vec<EndpointSlice>,
    pub updates: Vec<SliceUpdate>,
    /// Slices to delete. A slice that holds endpoints is emptied first.
    pub retires: Vec<Arc<EndpointSlice>>,
    pub findings: Vec<Finding>,
}

/// A slice and its replacement. Both have the same resourceVersion, so that a slice that changed after the plan is not
/// replaced.
#[derive(Debug)]
pub(super) struct SliceUpdate {
    pub base: Arc<EndpointSlice>,
    pub slice: EndpointSlice,
}

/// The input of a plan.
pub(super) struct SlicePlanInput<'a> {
    pub service: &'a Service,
    pub workloads: &'a [Arc<ExternalWorkload>],
    /// Every slice with our `managed-by` that names the Service.
    pub slices: &'a [Arc<EndpointSlice>],
    /// Names of existing slices that are not in `slices`.
    pub taken: &'a HashSet<String>,
}

/// The planned content of an existing or a new slice.
struct SliceDraft<'a> {
    base: Option<&'a Arc<EndpointSlice>>,
    ports: Ports,
    endpoints: Vec<Endpoint>,
    /// Whether the slice is written in any case, so that filling it up costs no further write.
    dirty: bool,
}

// === impl SlicePlan ===

impl SlicePlan {
    pub(super) fn is_empty(&self) -> bool {
        self.creates.is_empty() && self.updates.is_empty() && self.retires.is_empty()
    }
}

/// Returns the plan for one Service; see the module documentation.
pub(super) fn plan(input: &SlicePlanInput<'_>) -> SlicePlan {
    let service = input.service;
    if &*service.key.namespace == KUBE_SYSTEM {
        return SlicePlan::default();
    }
    // A terminating slice is not reused, but occupies its name until it is deleted.
    let live = input.slices.iter().filter(|slice| !slice.is_terminating());
    let mut plan = SlicePlan::default();
    if service.selector.is_none() || service.external_name {
        plan.retires = live.cloned().collect();
        return plan;
    }

    let (mut reusable, mut retired): (Vec<_>, Vec<_>) = live.partition(|slice| {
        slice.is_owned_by(&service.uid) && slice.family().is_some_and(|family| service.families.contains(&family))
    });
    reusable.sort_by(|a, b| a.name().cmp(b.name()));
    let (desired, findings) = endpoint::desired(service, input.workloads);
    plan.findings = findings;
    for (family, desired) in desired {
        let slices = reusable.iter().copied().filter(|slice| slice.family() == Some(family));
        let mut names = SliceNames::new(input, family);
        for draft in arrange(service, slices, desired) {
            match draft.base {
                Some(base) if draft.endpoints.is_empty() => retired.push(base),
                Some(base) if draft.dirty => {
                    plan.updates.push(SliceUpdate { base: Arc::clone(base), slice: draft.rewrite(base, service) });
                }
                Some(_) => {}
                // The API server would refuse the create, or the garbage collector would delete the slice.
                None if service.deleting => {}
                None => plan.creates.push(draft.create(service, family, names.next())),
            }
        }
    }
    plan.retires = retired.into_iter().cloned().collect();
    plan
}

/// Distributes the desired endpoints of one family over the existing slices and as few new slices as possible.
fn arrange<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a Arc<EndpointSlice>>,
    mut desired: DesiredEndpoints,
) -> Vec<SliceDraft<'a>> {
    let mut drafts: Vec<SliceDraft<'a>> = slices.map(|base| keep(service, base, &mut desired)).collect();
    // Endpoints without a slice, by the ports that their slice must have.
    let mut groups: BTreeMap<Ports, VecDeque<Endpoint>> = BTreeMap::new();
    for (_, DesiredEndpoint { ports, endpoint }) in desired {
        groups.entry(ports).or_default().push_back(endpoint);
    }
    let mut dirty = by_ports(drafts.iter_mut().filter(|draft| draft.dirty));
    for (ports, rest) in &mut groups {
        // Slices that are written anyway, the fullest first.
        let mut dirty = dirty.remove(ports).unwrap_or_default();
        dirty.sort_by_key(|draft| Reverse(draft.endpoints.len()));
        for draft in dirty {
            draft.fill(rest);
        }
    }
    let mut new = Vec::new();
    let (vacant, held): (Vec<_>, Vec<_>) = drafts.iter_mut().partition(|draft| draft.endpoints.is_empty());
    let mut vacant = vacant.into_iter().filter(|draft| draft.dirty);
    let mut held = by_ports(held);
    for (ports, mut rest) in groups {
        let mut held = held.remove(&ports).unwrap_or_default();
        while !rest.is_empty() {
            // A slice that lost all its endpoints is reused: one write, instead of a create, an emptying write and a
            // delete.
            if let Some(draft) = vacant.next() {
                draft.ports = ports.clone();
                draft.fill(&mut rest);
                continue;
            }
            // The fullest slice that has room for all remaining endpoints. They are never split over several clean
            // slices.
            let roomy = held.iter_mut().filter(|draft| draft.endpoints.len() + rest.len() <= MAX_ENDPOINTS);
            if let Some(draft) = roomy.max_by_key(|draft| draft.endpoints.len()) {
                draft.dirty = true;
                draft.fill(&mut rest);
                continue;
            }
            let mut draft = SliceDraft { base: None, ports: ports.clone(), endpoints: Vec::new(), dirty: true };
            draft.fill(&mut rest);
            new.push(draft);
        }
    }
    drafts.extend(new);
    drafts
}

/// Groups drafts by their ports, so that no group of endpoints is compared with every draft.
fn by_ports<'d, 'a>(
    drafts: impl IntoIterator<Item = &'d mut SliceDraft<'a>>,
) -> BTreeMap<Ports, Vec<&'d mut SliceDraft<'a>>> {
    let mut groups: BTreeMap<Ports, Vec<_>> = BTreeMap::new();
    for draft in drafts {
        groups.entry(draft.ports.clone()).or_default().push(draft);
    }
    groups
}

/// Moves the endpoints that the slice already holds out of `desired`, in the order of the slice.
fn keep<'a>(service: &Service, base: &'a Arc<EndpointSlice>, desired: &mut DesiredEndpoints) -> SliceDraft<'a> {
    let stored: Ports = base.ports.iter().cloned().collect();
    let held: Vec<(&str, &Endpoint)> =
        base.endpoints.iter().filter_map(|held| Some((endpoint::workload(service, held)?, held))).collect();
    // The ports that most of its endpoints now need, so that the fewest endpoints move. Its current ports win a tie.
    let mut votes: BTreeMap<&Ports, usize> = BTreeMap::new();
    for workload in held.iter().filter_map(|(name, _)| desired.get(*name)) {
        *votes.entry(&workload.ports).or_default() += 1;
    }
    let ports =
        votes.into_iter().max_by_key(|(ports, votes)| (*votes, **ports == stored)).map_or(&stored, |(ports, _)| ports);
    let ports = ports.clone();
    let mut endpoints = Vec::with_capacity(held.len());
    for (name, held) in held {
        // An endpoint that occurs twice in the slice is kept once.
        if desired.get(name).is_some_and(|desired| desired.ports == ports)
            && let Some(desired) = desired.remove(name)
        {
            let hints = match service.hints {
                HintPolicy::Allocated => held.hints.clone(),
                HintPolicy::None | HintPolicy::OwnZone => desired.endpoint.hints,
            };
            endpoints.push(Endpoint { hints, ..desired.endpoint });
        }
    }
    let unchanged = base.has_content(&endpoints, &ports) && base.metadata.labels.as_ref() == Some(&labels(service));
    // An empty slice is deleted, never refilled: its last writer emptied it in order to delete it.
    let dirty = !unchanged && !base.endpoints.is_empty();
    SliceDraft { base: Some(base), ports, endpoints, dirty }
}

// === impl SliceDraft ===

impl SliceDraft<'_> {
    /// Moves as many endpoints of `rest` into the slice as fit.
    fn fill(&mut self, rest: &mut VecDeque<Endpoint>) {
        let room = MAX_ENDPOINTS.saturating_sub(self.endpoints.len()).min(rest.len());
        self.endpoints.extend(rest.drain(..room));
    }

    /// Replaces the labels with exactly ours; keeps annotations, finalizers and owners.
    fn rewrite(&self, base: &EndpointSlice, service: &Service) -> EndpointSlice {
        EndpointSlice {
            metadata: ObjectMeta { labels: Some(labels(service)), ..base.metadata.clone() },
            address_type: base.address_type.clone(),
            endpoints: self.endpoints.clone(),
            ports: self.ports.iter().cloned().collect(),
        }
    }

    fn create(&self, service: &Service, family: Family, name: String) -> EndpointSlice {
        EndpointSlice {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(service.key.namespace.to_string()),
                labels: Some(labels(service)),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Service".to_owned(),
                    name: service.key.name.to_string(),
                    uid: service.uid.to_string(),
                    controller: Some(true),
                    block_owner_deletion: Some(true),
                }]),
                ..ObjectMeta::default()
            },
            address_type: family.address_type().to_owned(),
            endpoints: self.endpoints.clone(),
            ports: self.ports.iter().cloned().collect(),
        }
    }
}

/// The Service's labels, overridden by the three labels that the controller sets.
fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.labels.clone();
    labels.insert(SERVICE_NAME_LABEL.to_owned(), service.key.name.to_string());
    labels.insert(MANAGED_BY_LABEL.to_owned(), MANAGED_BY.to_owned());
    labels.remove(HEADLESS_LABEL);
    if service.headless {
        labels.insert(HEADLESS_LABEL.to_owned(), String::new());
    }
    labels
}

/// Names for the new slices of one Service and family, in a fixed order. A create that is repeated or delayed therefore
/// fails with AlreadyExists instead of creating a second slice.
struct SliceNames<'a> {
    input: &'a SlicePlanInput<'a>,
    existing: BTreeSet<&'a str>,
    family: Family,
    ordinal: u32,
}

impl<'a> SliceNames<'a> {
    fn new(input: &'a SlicePlanInput<'a>, family: Family) -> Self {
        let existing = input.slices.iter().map(|slice| slice.name()).collect();
        Self { input, existing, family, ordinal: 0 }
    }

    fn next(&mut self) -> String {
        loop {
            let name = slice_name(self.input.service, self.family, self.ordinal);
            self.ordinal += 1;
            if !self.existing.contains(name.as_str()) && !self.input.taken.contains(&name) {
                return name;
            }
        }
    }
}

/// Returns `linkerd-external-<service>-<hash>`, at most 63 characters, so that it is also a valid label value. The hash
/// is the first sixteen hex digits of SHA-256 over the Service's uid, the family and the ordinal; it distinguishes
/// slices.
fn slice_name(service: &Service, family: Family, ordinal: u32) -> String {
    let hash = Sha256::digest(format!("{}/{}/{ordinal}", service.uid, family.address_type()));
    let hash = hex(hash.get(..8).unwrap_or_default());
    let cut: String = service.key.name.chars().take(63 - "linkerd-external-".len() - 1 - hash.len()).collect();
    format!("linkerd-external-{}-{hash}", cut.trim_end_matches(['-', '.']))
}

#[cfg(test)]
#[path = "plan_tests/mod.rs"]
mod tests;
