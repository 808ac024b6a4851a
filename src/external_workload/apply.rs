//! Carries out a [`Plan`].
//!
//! In: a plan. Out: an [`Outcome`]: what the cache has to show before the next plan, what failed, what stood in the way.
//! Always holds: leadership is checked right before each write and the write has ended before the Lease can expire; a write
//! replaces exactly the version that was planned on; a slice that is refused does not hold up another.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, Preconditions},
};
use prometheus::{IntCounterVec, Opts, Registry};
use tokio::time::{Instant, timeout_at};

use super::{
    endpoint,
    plan::{Plan, Update},
};
use crate::{
    cluster::{object::NamespacedName, service::Service, slice::EndpointSlice},
    lease::Leadership,
};

/// One request; well below the time that a Lease leaves us.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Writes EndpointSlices, while this process leads.
pub(super) struct Writer {
    client: Client,
    leadership: Leadership,
    writes: IntCounterVec,
}

#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub written: Vec<Written>,
    pub failures: Vec<Failure>,
    /// Names of planned slices that turned out to be taken by slices that are not ours to write.
    pub taken: Vec<String>,
    /// A slice was not what the plan took it for; the watch is about to say so.
    pub stale: bool,
    /// Workloads in slices that were to be written and were not: nothing has changed for them yet.
    pub missed: HashSet<String>,
}

/// A write of ours that the cache will show.
#[derive(Debug)]
pub(super) struct Written {
    pub name: String,
    pub uid: String,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// At this resourceVersion, or a later one.
    Created(u64),
    /// Likewise; that it is not there at all means that it was deleted since.
    Updated(u64),
    Deleted,
}

#[derive(Debug)]
pub(super) struct Failure {
    verb: Verb,
    slice: NamespacedName,
    pub error: WriteError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Create,
    Update,
    Delete,
}

/// Why a write did not happen, or may not have.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error("this process does not lead (any more)")]
    NotLeading,
    #[error("the API server did not answer in time")]
    TimedOut,
    #[error("{}", .0.message)]
    Refused(Box<kube::core::Status>),
    #[error("{}", crate::client::describe(.0))]
    Transport(#[source] kube::Error),
}

// === impl Writer ===

impl Writer {
    /// # Errors
    /// When the metrics are registered already.
    pub(super) fn new(client: &Client, leadership: Leadership, registry: &Registry) -> prometheus::Result<Self> {
        let writes = IntCounterVec::new(
            Opts::new("linkerd_operator_endpointslice_writes_total", "Writes of EndpointSlices"),
            &["verb", "result"],
        )?;
        for verb in [Verb::Create, Verb::Update, Verb::Delete] {
            for result in RESULTS {
                writes.with_label_values(&[verb.as_str(), result]);
            }
        }
        registry.register(Box::new(writes.clone()))?;
        Ok(Self { client: client.clone(), leadership, writes })
    }

    /// Whether a write that begins now is allowed.
    pub(super) fn may_write(&self) -> bool {
        self.leadership.write_deadline().is_some()
    }

    /// Creates, then updates, then deletes: no endpoint disappears before its successor is there. A slice stays as long as
    /// it is the only one that has a workload whose new slice could not be created.
    pub(super) async fn apply(&self, service: &Service, plan: Plan) -> Outcome {
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &service.key.namespace);
        let mut outcome = Outcome::default();
        for slice in plan.creates {
            let workloads = workloads(service, &slice);
            if !self.create(&api, service, slice, &mut outcome).await {
                outcome.missed.extend(workloads);
            }
        }
        let homeless = outcome.missed.clone();
        for Update { base, slice } in plan.updates {
            let workloads = [workloads(service, &base), workloads(service, &slice)];
            if self.update(&api, slice, &mut outcome).await.is_none() {
                outcome.missed.extend(workloads.into_iter().flatten());
            }
        }
        for slice in plan.retires {
            let workloads = workloads(service, &slice);
            if !workloads.is_disjoint(&homeless) || !self.retire(&api, slice, &mut outcome).await {
                outcome.missed.extend(workloads);
            }
        }
        outcome
    }

    /// Whether the slice is there now.
    async fn create(
        &self,
        api: &Api<EndpointSlice>,
        service: &Service,
        slice: EndpointSlice,
        outcome: &mut Outcome,
    ) -> bool {
        match self.send(Verb::Create, api.create(&PostParams::default(), &slice)).await {
            Ok(created) => {
                outcome.note(&created, What::Created);
                return true;
            }
            Err(WriteError::Refused(status)) if status.is_already_exists() => {
                self.meet(api, service, slice, outcome).await;
            }
            // Its garbage collection is under way: nothing has to be, or can be, created.
            Err(WriteError::Refused(status)) if is_namespace_terminating(&status) => {}
            Err(error) => outcome.fail(Verb::Create, &slice, error),
        }
        false
    }

    /// The name exists, and the cache did not know: either an earlier create of ours was late, or it is not ours to write.
    async fn meet(&self, api: &Api<EndpointSlice>, service: &Service, slice: EndpointSlice, outcome: &mut Outcome) {
        let name = slice.name().to_owned();
        match self.send_uncounted(api.get_opt(&name)).await {
            Ok(None) => outcome.stale = true,
            Ok(Some(live)) if is_for(&live, service) => outcome.note(&live, What::Created),
            Ok(Some(_)) => outcome.taken.push(name),
            Err(error) => outcome.fail(Verb::Create, &slice, error),
        }
    }

    /// The slice as it is stored now.
    async fn update(
        &self,
        api: &Api<EndpointSlice>,
        slice: EndpointSlice,
        outcome: &mut Outcome,
    ) -> Option<EndpointSlice> {
        let name = slice.name().to_owned();
        match self.send(Verb::Update, api.replace(&name, &PostParams::default(), &slice)).await {
            Ok(updated) => {
                outcome.note(&updated, What::Updated);
                return Some(updated);
            }
            Err(WriteError::Refused(status)) if status.is_conflict() || status.is_not_found() => outcome.stale = true,
            Err(error) => outcome.fail(Verb::Update, &slice, error),
        }
        None
    }

    /// Whether the slice has nothing more. It is emptied first: to Linkerd's Go destination a deleted slice does not remove
    /// endpoints whose workload is gone.
    async fn retire(&self, api: &Api<EndpointSlice>, slice: Arc<EndpointSlice>, outcome: &mut Outcome) -> bool {
        let mut last = slice;
        if !last.endpoints.is_empty() {
            let empty = EndpointSlice { endpoints: Vec::new(), ..EndpointSlice::clone(&last) };
            let Some(emptied) = self.update(api, empty, outcome).await else { return false };
            last = Arc::new(emptied);
        }
        let preconditions =
            Preconditions { resource_version: last.metadata.resource_version.clone(), uid: last.metadata.uid.clone() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.send(Verb::Delete, api.delete(last.name(), &params)).await {
            Ok(_) => outcome.note(&last, |_| What::Deleted),
            Err(WriteError::Refused(status)) if status.is_not_found() => {}
            Err(WriteError::Refused(status)) if status.is_conflict() => outcome.stale = true,
            Err(error) => outcome.fail(Verb::Delete, &last, error),
        }
        true
    }

    async fn send<T>(&self, verb: Verb, request: impl Future<Output = kube::Result<T>>) -> Result<T, WriteError> {
        let result = self.send_uncounted(request).await;
        let label = result.as_ref().map_or_else(WriteError::label, |_| "ok");
        self.writes.with_label_values(&[verb.as_str(), label]).inc();
        result
    }

    async fn send_uncounted<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, WriteError> {
        let deadline = self.leadership.write_deadline().ok_or(WriteError::NotLeading)?;
        match timeout_at(deadline.min(Instant::now() + REQUEST_TIMEOUT), request).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(kube::Error::Api(status))) => Err(WriteError::Refused(status)),
            Ok(Err(error)) => Err(WriteError::Transport(error)),
            Err(_) => Err(WriteError::TimedOut),
        }
    }
}

/// The names of the Service's workloads that the slice holds.
fn workloads(service: &Service, slice: &EndpointSlice) -> HashSet<String> {
    slice.endpoints.iter().filter_map(|e| endpoint::workload(service, e)).map(str::to_owned).collect()
}

/// Whether it is a slice that the cache will show as ours for this Service, with a place in the next plan.
fn is_for(slice: &EndpointSlice, service: &Service) -> bool {
    slice.label(crate::api::MANAGED_BY_LABEL) == Some(crate::api::MANAGED_BY)
        && slice.service().as_ref() == Some(&service.key)
        && slice.is_owned_by(&service.uid)
        && !slice.is_terminating()
}

fn is_namespace_terminating(status: &kube::core::Status) -> bool {
    status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == "NamespaceTerminating")
}

// === impl Outcome ===

impl Outcome {
    fn note(&mut self, slice: &EndpointSlice, what: impl FnOnce(u64) -> What) {
        // Without a version to wait for there is nothing to wait for; the next plan then relies on preconditions alone.
        if let Some(version) = slice.version() {
            let (name, uid) = (slice.name().to_owned(), slice.uid().to_owned());
            self.written.push(Written { name, uid, what: what(version) });
        }
    }

    fn fail(&mut self, verb: Verb, slice: &EndpointSlice, error: WriteError) {
        self.failures.push(Failure { verb, slice: NamespacedName::of(&slice.metadata), error });
    }
}

// === impl WriteError ===

/// All that [`WriteError::label`] returns, and `ok`.
const RESULTS: [&str; 11] = [
    "ok",
    "not_leading",
    "timed_out",
    "conflict",
    "already_exists",
    "not_found",
    "forbidden",
    "invalid",
    "unavailable",
    "refused",
    "transport",
];

impl WriteError {
    /// The category, as a metric's label.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::NotLeading => "not_leading",
            Self::TimedOut => "timed_out",
            Self::Transport(_) => "transport",
            Self::Refused(status) if status.is_already_exists() => "already_exists",
            Self::Refused(status) if status.is_conflict() => "conflict",
            Self::Refused(status) if status.is_not_found() => "not_found",
            Self::Refused(status) if status.is_forbidden() => "forbidden",
            Self::Refused(status) if status.is_invalid() => "invalid",
            Self::Refused(status) if status.code == 429 || status.code >= 500 => "unavailable",
            Self::Refused(_) => "refused",
        }
    }

    /// How long the API server asked us to stay away.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let Self::Refused(status) = self else { return None };
        let seconds = status.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }
}

impl Verb {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} EndpointSlice {}: {}", self.verb.as_str(), self.slice, self.error)
    }
}
