//! The ExternalWorkload controller. It writes EndpointSlices for workloads outside the cluster and keeps them in step
//! with the Services that select these workloads.
//!
//! ```text
//! cluster ──WorkQueue──▶ Controller ──▶ reconcile: State ─▶ plan (pure) ─▶ apply ──▶ API server
//!                                                             └─▶ Events        (while leading)
//! ```
//!
//! In: Services to reconcile. Out: writes of EndpointSlices, Events. Always holds: only the leader plans; a Service is
//! planned only on a state that shows our own last writes to it, so nothing is written twice; an unchanged Service
//! causes no write; a failed Service is retried without limit.

mod apply;
mod endpoint;
mod findings;
mod observer;
mod plan;
mod ports;
mod reconcile_cache;
mod transitions;
mod validate;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core;
use prometheus::{
    GaugeVec, HistogramVec, IntCounterVec, Opts, Registry,
    core::{Collector, Desc},
    exponential_buckets,
    proto::MetricFamily,
    register_histogram_vec_with_registry, register_int_counter_vec_with_registry,
};
use tokio::{task::JoinError, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::info;

use self::{
    apply::{FailedWrite, Outcome, SliceWriter},
    plan::{SlicePlanInput, plan},
    reconcile_cache::ServiceReconcileCache,
};
pub use self::{observer::ExternalWorkloadObserver, validate::ExternalWorkloadValidator};
use crate::{
    api::NamespacedName,
    cluster::{Cluster, kinds::service::Service},
    controller::{self, ControllerDeps, LeaderGate, NextReconcile, Reconciler},
    events::{Events, Notice, Reason},
    lease::Fence,
    retry::jittered,
    tasks::Tasks,
    write::WriteError,
};

/// The Lease that Linkerd's Go controller holds while it writes slices. Both controllers use it, so only one of them
/// writes.
pub const LEASE: &str = "linkerd-destination-endpoint-write";
/// The queue name in the client-go metrics of Linkerd's destination. Dashboards select by it.
pub const QUEUE: &str = "endpoints_controller_workqueue";

#[derive(Clone, Debug)]
pub struct ExternalWorkloadSettings {
    /// Services reconciled at the same time; each writes one slice at a time.
    pub concurrency: u16,
    /// Interval of the full resync of each Service, from which up to a tenth is subtracted.
    pub full_pass_interval: Duration,
}

struct ExternalWorkloadReconciler {
    gate: LeaderGate,
    writer: SliceWriter,
    events: Events,
    settings: ExternalWorkloadSettings,
    metrics: ReconcileMetrics,
    cache: ServiceReconcileCache,
}

struct ReconcileMetrics {
    duration: HistogramVec,
    errors: IntCounterVec,
}

#[derive(Debug, thiserror::Error)]
#[error("{first}{}", more(*.count))]
struct ReconcileError {
    first: String,
    count: usize,
    label: &'static str,
    retry_after: Duration,
}

/// The number of endpoints in the slices that the controller manages, counted at each scrape.
struct Endpoints {
    cluster: Cluster,
    endpoints: GaugeVec,
}

/// The outcome of a reconcile that did not fail.
enum Reconciled {
    /// No plan was made: this process does not lead, or it has just written.
    Skipped(NextReconcile),
    Done(NextReconcile),
}

/// Starts the controller. When `stop` is cancelled, it finishes the writes in progress and ends.
///
/// # Errors
/// The metrics are already registered.
pub fn spawn(
    deps: &ControllerDeps,
    observer: &ExternalWorkloadObserver,
    settings: ExternalWorkloadSettings,
    stop: CancellationToken,
    tasks: &mut Tasks,
) -> prometheus::Result<()> {
    let concurrency = settings.concurrency;
    deps.registry.register(Box::new(Endpoints::new(&deps.cluster)?))?;
    let context = Arc::new(ExternalWorkloadReconciler {
        gate: LeaderGate::new(deps, observer::KINDS, &observer.queue),
        writer: SliceWriter::new(&deps.client, Fence::new(deps.leadership.clone(), stop.clone()), &deps.registry)?,
        events: deps.events.clone(),
        settings,
        metrics: ReconcileMetrics::register(&deps.registry)?,
        cache: ServiceReconcileCache::default(),
    });
    tasks.spawn("external-workload-controller", controller::run(context, observer.services.store(), concurrency, stop));
    Ok(())
}

// === impl ExternalWorkloadReconciler ===

impl Reconciler for ExternalWorkloadReconciler {
    type Object = core::v1::Service;
    type Error = ReconcileError;
    const BACKOFF: Duration = Duration::from_millis(100);
    const FAILED: &'static str = "EndpointSlices could not be written, retrying";

    fn gate(&self) -> &LeaderGate {
        &self.gate
    }

    async fn reconcile(&self, service: &NamespacedName) -> Result<NextReconcile, ReconcileError> {
        let begun = Instant::now();
        let (label, result) = match self.reconcile_service(service).await {
            Ok(Reconciled::Skipped(next)) => return Ok(next),
            Ok(Reconciled::Done(next)) => ("ok", Ok(next)),
            Err(error) => ("error", Err(error)),
        };
        self.metrics.duration.with_label_values(&[label]).observe(begun.elapsed().as_secs_f64());
        result
    }

    fn retry_after(&self, error: &ReconcileError) -> Duration {
        self.metrics.errors.with_label_values(&[error.label]).inc();
        error.retry_after
    }

    fn forget(&self, service: &NamespacedName) {
        self.cache.forget(service);
    }
}

impl ExternalWorkloadReconciler {
    async fn reconcile_service(&self, key: &NamespacedName) -> Result<Reconciled, ReconcileError> {
        if !self.gate.may_act() {
            return Ok(Reconciled::Skipped(NextReconcile::OnChange));
        }
        let (service, workloads, slices) = {
            let state = self.gate.cluster.read();
            if let Some(wait) = self.cache.wait_after_writes(key, &state.slices) {
                return Ok(Reconciled::Skipped(NextReconcile::After(wait)));
            }
            let Some(service) = state.services.get(key) else {
                return Ok(Reconciled::Skipped(NextReconcile::OnChange));
            };
            let selectors = service.selector.iter();
            let selected = selectors.flat_map(|it| state.external_workloads.selected(&key.namespace, it)).cloned();
            (Arc::clone(service), selected.collect::<Vec<_>>(), state.slices.managed_of_service(key))
        };
        let taken = self.cache.taken(key);
        let planned = (Arc::clone(&service), slices.clone());
        let plan = compute(move || {
            let (service, slices) = planned;
            plan(&SlicePlanInput { service: &service, workloads: &workloads, slices: &slices, taken: &taken })
        })
        .await;
        for finding in self.cache.new_findings(key, &plan.findings) {
            self.events.publish(finding.notice(&service));
        }
        if plan.is_empty() {
            return self.conclude(&service, Outcome::default());
        }
        let outcome = self.writer.apply(&service, plan).await;
        // Only the writes that succeeded cause transitions; the rest of the plan has not happened yet.
        for transition in transitions::transitions(&service, &slices, &outcome.after(&slices)) {
            self.events.publish(transition.notice(&service));
        }
        self.conclude(&service, outcome)
    }

    /// Records the writes that succeeded, and returns when to reconcile the Service again.
    fn conclude(&self, service: &Service, outcome: Outcome) -> Result<Reconciled, ReconcileError> {
        let key = &service.key;
        self.cache.record_writes(key, outcome.written);
        if outcome.failures.iter().any(|failure| matches!(failure.error, WriteError::NotLeading)) {
            // A new leader reconciles every Service, and so does this process when it leads again.
            return Ok(Reconciled::Done(NextReconcile::OnChange));
        }
        if let Some(first) = outcome.failures.first() {
            self.emit_refusal(service, &outcome.failures);
            return Err(ReconcileError {
                first: first.to_string(),
                count: outcome.failures.len(),
                label: first.error.label(),
                retry_after: outcome
                    .failures
                    .iter()
                    .map(|failure| failure.error.retry_after())
                    .max()
                    .unwrap_or_default(),
            });
        }
        if !outcome.taken.is_empty() {
            if self.cache.add_taken(key, outcome.taken) {
                let first = "EndpointSlices of other controllers occupy the names of its EndpointSlices".to_owned();
                return Err(ReconcileError { first, count: 1, label: "already_exists", retry_after: Duration::ZERO });
            }
            return Ok(Reconciled::Done(NextReconcile::After(Duration::ZERO)));
        }
        if outcome.stale {
            return Ok(Reconciled::Done(NextReconcile::After(self.cache.count_conflict(key))));
        }
        self.cache.succeeded(key);
        let failures = self.gate.queue.forget_failures(key);
        if failures > 0 {
            info!(service = %key, failures, "EndpointSlice writes succeed again");
        }
        Ok(Reconciled::Done(match service.selector {
            Some(_) => NextReconcile::After(jittered(self.settings.full_pass_interval)),
            None => NextReconcile::OnChange,
        }))
    }

    /// Emits an Event about a write that the API server refused. An API server that does not respond accepts no Events
    /// either.
    fn emit_refusal(&self, service: &Service, failures: &[FailedWrite]) {
        let refused = failures.iter().find(|failure| matches!(failure.error, WriteError::Refused(_)));
        if let Some(failure) = refused
            && self.cache.note_reported(&service.key, failure.error.label())
        {
            self.events.publish(Notice {
                reason: Reason::EndpointSliceWriteFailed,
                regarding: findings::service_reference(service),
                related: None,
                note: failure.to_string(),
            });
        }
    }
}

/// Runs a computation on a thread for blocking work. The plan of a Service with many ports and workloads takes long, and
/// the threads of the runtime also serve discovery, renew Leases and answer probes.
async fn compute<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await.map_err(JoinError::try_into_panic) {
        Ok(result) => result,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime shuts down, and drops this task too.
        Err(Err(_)) => std::future::pending().await,
    }
}

fn more(count: usize) -> String {
    if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() }
}

// === impl ReconcileMetrics ===

impl ReconcileMetrics {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        let errors = register_int_counter_vec_with_registry!(
            "linkerd_operator_reconcile_errors_total",
            "Failed reconciles, by the reason of the first failure",
            &["reason"],
            registry
        )?;
        for reason in WriteError::labels() {
            errors.with_label_values(&[reason]);
        }
        Ok(Self {
            duration: register_histogram_vec_with_registry!(
                "linkerd_operator_reconcile_duration_seconds",
                "Duration of the reconcile of one Service, including its writes",
                &["result"],
                exponential_buckets(0.000_1, 4.0, 9)?,
                registry
            )?,
            errors,
        })
    }
}

// === impl Endpoints ===

impl Endpoints {
    fn new(cluster: &Cluster) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "linkerd_operator_external_workload_endpoints",
            "Endpoints in the EndpointSlices that the ExternalWorkload controller manages",
        );
        Ok(Self { cluster: cluster.clone(), endpoints: GaugeVec::new(opts, &["ready"])? })
    }
}

impl Collector for Endpoints {
    fn desc(&self) -> Vec<&Desc> {
        self.endpoints.desc()
    }

    #[allow(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
    fn collect(&self) -> Vec<MetricFamily> {
        let (ready, unready) = self.cluster.read().slices.managed_endpoints_by_readiness();
        self.endpoints.with_label_values(&["true"]).set(ready as f64);
        self.endpoints.with_label_values(&["false"]).set(unready as f64);
        self.endpoints.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_plan_does_not_occupy_a_thread_of_the_runtime() {
        let thread = compute(|| std::thread::current().id()).await;
        assert_ne!(thread, std::thread::current().id());
    }
}
