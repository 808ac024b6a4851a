//! Applies a [`SlicePlan`].
//!
//! In: a plan. Out: an [`Outcome`]: the stored slices, the writes that the cache must show before the next plan, the
//! failed writes, the names that other slices occupy. Always holds: leadership is checked right before each write, and
//! the write ends before the Lease can expire; a write replaces only the version that the plan was made from; a refused
//! write does not block the other slices; no workload is removed from a slice before its new slice contains it.

use std::{collections::HashSet, fmt, sync::Arc};

use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, Preconditions},
};
use prometheus::{IntCounterVec, Registry, register_int_counter_vec_with_registry};
use strum::{IntoStaticStr, VariantNames};

use super::{
    endpoint,
    plan::{SlicePlan, SliceUpdate},
};
use crate::{
    api::{NamespacedName, endpoint_slice::EndpointSlice},
    client::is_namespace_terminating,
    cluster::kinds::service::Service,
    lease::Fence,
    write::WriteError,
};

/// Writes EndpointSlices, while this process leads.
pub(super) struct SliceWriter {
    client: Client,
    fence: Fence,
    writes: IntCounterVec,
}

#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The slices that were written, as the API server stored them.
    pub(super) stored: Vec<Arc<EndpointSlice>>,
    /// The names of deleted slices.
    pub(super) deleted: HashSet<String>,
    pub(super) written: Vec<Written>,
    pub(super) failures: Vec<FailedWrite>,
    /// The names of planned slices that are already occupied by slices that we must not write.
    pub(super) taken: Vec<String>,
    /// Whether a slice was newer than the plan; the watch is about to deliver it.
    pub(super) stale: bool,
    /// ExternalWorkloads whose new slice could not be written; they stay in their current slice.
    unplaced: HashSet<String>,
}

/// One of our own writes, which the cache will show.
#[derive(Debug)]
pub(super) enum Written {
    /// Visible once the watch has reached this version. Versions of one kind are ordered, and so are the events of its
    /// watch.
    Version(u64),
    Deleted {
        name: String,
        uid: String,
    },
}

#[derive(Debug)]
pub(super) struct FailedWrite {
    verb: Verb,
    slice: NamespacedName,
    pub(super) error: WriteError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub(super) enum Verb {
    Create,
    Update,
    Delete,
}

// === impl SliceWriter ===

impl SliceWriter {
    /// # Errors
    /// The metrics are already registered.
    pub(super) fn new(client: &Client, fence: Fence, registry: &Registry) -> prometheus::Result<Self> {
        let writes = register_int_counter_vec_with_registry!(
            "linkerd_operator_endpointslice_writes_total",
            "EndpointSlice writes sent to the API server",
            &["verb", "result"],
            registry
        )?;
        for verb in Verb::VARIANTS {
            for result in WriteError::RESULTS {
                writes.with_label_values(&[verb, result]);
            }
        }
        Ok(Self { client: client.clone(), fence, writes })
    }

    /// Creates, then updates, then deletes. Updates that add workloads to a slice come before the other updates.
    pub(super) async fn apply(&self, service: &Service, plan: SlicePlan) -> Outcome {
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &service.key.namespace);
        let mut outcome = Outcome::default();
        for slice in plan.creates {
            let workloads = workloads(service, &slice);
            if !self.create(&api, service, slice, &mut outcome).await {
                outcome.unplaced.extend(workloads);
            }
        }
        let gained = |update: &SliceUpdate| &workloads(service, &update.slice) - &workloads(service, &update.base);
        let (gaining, others): (Vec<_>, Vec<_>) = plan.updates.into_iter().partition(|u| !gained(u).is_empty());
        for update in gaining.into_iter().chain(others) {
            let gained = gained(&update);
            let Some(slice) = keep_unplaced(service, &update, &outcome.unplaced) else { continue };
            if self.update(&api, slice, &mut outcome).await.is_none() {
                outcome.unplaced.extend(gained);
            }
        }
        for slice in plan.retires {
            if workloads(service, &slice).is_disjoint(&outcome.unplaced) {
                self.retire(&api, slice, &mut outcome).await;
            }
        }
        outcome
    }

    /// Creates a slice. Returns whether it exists now.
    async fn create(
        &self,
        api: &Api<EndpointSlice>,
        service: &Service,
        slice: EndpointSlice,
        outcome: &mut Outcome,
    ) -> bool {
        match self.send(Verb::Create, api.create(&PostParams::default(), &slice)).await {
            Ok(created) => {
                outcome.record(created);
                return true;
            }
            Err(WriteError::Refused(status)) if status.is_already_exists() => {
                self.examine_existing(api, service, &slice, outcome).await;
            }
            // The namespace is being deleted, so the slice cannot be created and is not needed.
            Err(WriteError::Refused(status)) if is_namespace_terminating(&status) => {}
            Err(error) => outcome.fail(Verb::Create, &slice, error),
        }
        false
    }

    /// Reads a slice that exists although the cache does not have it: either an earlier create of ours was delayed, or
    /// the slice is not ours.
    async fn examine_existing(
        &self,
        api: &Api<EndpointSlice>,
        service: &Service,
        slice: &EndpointSlice,
        outcome: &mut Outcome,
    ) {
        match self.fence.send(api.get_opt(slice.name())).await {
            Ok(None) => outcome.stale = true,
            Ok(Some(live)) if is_for(&live, service) => {
                outcome.stale = true;
                outcome.written.extend(live.version().map(Written::Version));
            }
            Ok(Some(_)) => outcome.taken.push(slice.name().to_owned()),
            Err(error) => outcome.fail(Verb::Create, slice, error),
        }
    }

    /// Updates a slice. Returns the stored slice.
    async fn update(
        &self,
        api: &Api<EndpointSlice>,
        slice: EndpointSlice,
        outcome: &mut Outcome,
    ) -> Option<Arc<EndpointSlice>> {
        match self.send(Verb::Update, api.replace(slice.name(), &PostParams::default(), &slice)).await {
            Ok(updated) => return Some(outcome.record(updated)),
            Err(WriteError::Refused(status)) if status.is_conflict() || status.is_not_found() => outcome.stale = true,
            Err(error) => outcome.fail(Verb::Update, &slice, error),
        }
        None
    }

    /// Empties a slice, then deletes it: when a slice is deleted, Linkerd's Go destination does not remove the
    /// endpoints of deleted workloads.
    async fn retire(&self, api: &Api<EndpointSlice>, slice: Arc<EndpointSlice>, outcome: &mut Outcome) {
        let mut last = slice;
        if !last.endpoints.is_empty() {
            let empty = EndpointSlice { endpoints: Vec::new(), ..EndpointSlice::clone(&last) };
            let Some(emptied) = self.update(api, empty, outcome).await else { return };
            last = emptied;
        }
        let preconditions =
            Preconditions { resource_version: last.metadata.resource_version.clone(), uid: last.metadata.uid.clone() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.send(Verb::Delete, api.delete(last.name(), &params)).await {
            Ok(_) => {
                let (name, uid) = (last.name().to_owned(), last.uid().to_owned());
                outcome.deleted.insert(name.clone());
                outcome.written.push(Written::Deleted { name, uid });
            }
            Err(WriteError::Refused(status)) if status.is_not_found() => {}
            Err(WriteError::Refused(status)) if status.is_conflict() => outcome.stale = true,
            Err(error) => outcome.fail(Verb::Delete, &last, error),
        }
    }

    async fn send<T>(&self, verb: Verb, request: impl Future<Output = kube::Result<T>>) -> Result<T, WriteError> {
        let result = self.fence.send(request).await;
        if let Some(label) = WriteError::result(&result) {
            self.writes.with_label_values(&[verb.as_str(), label]).inc();
        }
        result
    }
}

/// Returns the slice to write so that no unplaced workload is removed from it; `None` if no write is needed.
fn keep_unplaced(service: &Service, update: &SliceUpdate, unplaced: &HashSet<String>) -> Option<EndpointSlice> {
    let SliceUpdate { base, slice } = update;
    let mut slice = slice.clone();
    // If the slice's ports change, a kept endpoint would have the wrong ports.
    if slice.ports == base.ports {
        let staying = workloads(service, &slice);
        let leaves = |workload: &str| unplaced.contains(workload) && !staying.contains(workload);
        let kept = base.endpoints.iter().filter(|e| endpoint::workload(service, e).is_some_and(leaves));
        slice.endpoints.extend(kept.cloned());
    }
    let ports = slice.ports.iter().cloned().collect();
    let unchanged = base.has_content(&slice.endpoints, &ports) && base.metadata.labels == slice.metadata.labels;
    (!unchanged).then_some(slice)
}

/// Returns the names of the Service's workloads in the slice.
fn workloads(service: &Service, slice: &EndpointSlice) -> HashSet<String> {
    slice.endpoints.iter().filter_map(|e| endpoint::workload(service, e)).map(str::to_owned).collect()
}

/// Whether the cache will show the slice as ours for this Service, so that the next plan includes it.
fn is_for(slice: &EndpointSlice, service: &Service) -> bool {
    slice.label(crate::api::MANAGED_BY_LABEL) == Some(crate::api::MANAGED_BY)
        && slice.service().as_ref() == Some(&service.key)
        && slice.is_owned_by(&service.uid)
        && !slice.is_terminating()
}

// === impl Outcome ===

impl Outcome {
    fn record(&mut self, stored: EndpointSlice) -> Arc<EndpointSlice> {
        // Without a version the next plan does not wait for the cache and relies on preconditions alone.
        self.written.extend(stored.version().map(Written::Version));
        let stored = Arc::new(stored);
        self.stored.push(Arc::clone(&stored));
        stored
    }

    fn fail(&mut self, verb: Verb, slice: &EndpointSlice, error: WriteError) {
        self.failures.push(FailedWrite { verb, slice: NamespacedName::of(&slice.metadata), error });
    }

    /// Returns the slices of the Service after the writes, given the slices `before` them.
    pub(super) fn after(&self, before: &[Arc<EndpointSlice>]) -> Vec<Arc<EndpointSlice>> {
        // A slice that was written twice has its latest state last.
        let mut after: Vec<Arc<EndpointSlice>> = self.stored.iter().rev().cloned().collect();
        after.extend(before.iter().cloned());
        let mut seen = HashSet::new();
        after.retain(|slice| seen.insert(slice.name().to_owned()) && !self.deleted.contains(slice.name()));
        after
    }
}

// === impl Verb ===

impl Verb {
    fn as_str(self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for FailedWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} EndpointSlice {}: {}", self.verb.as_str(), self.slice, self.error)
    }
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
