//! The ExternalWorkload controller: EndpointSlices for workloads outside the cluster, in step with the Services that select
//! them.
//!
//! ```text
//! cluster ──WorkQueue──▶ Controller ──▶ reconcile: State ─▶ plan (pure) ─▶ apply ──▶ API server
//!                                                             └─▶ Events        (while leading)
//! ```
//!
//! In: Services to look at. Out: writes of EndpointSlices, Events. Always holds: without leadership nothing is planned; a
//! Service is planned only on a state that shows our own last writes to it, so nothing is written twice; nothing is written
//! when nothing changed; no Service is ever given up.

mod apply;
mod endpoint;
mod observer;
mod plan;
mod record;
mod report;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core;
use kube::runtime::controller::Action;
use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry,
    core::{Collector, Desc},
    exponential_buckets,
    proto::MetricFamily,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub use self::observer::ExternalWorkloadObserver;
use self::{
    apply::{Failure, Outcome, Writer},
    plan::{Input, plan},
    record::Records,
};
use crate::{
    api::NamespacedName,
    cluster::{Cluster, kinds::service::Service},
    controller::{self, ControllerDeps, LeaderGate, Reconciler},
    events::{Events, Notice, Reason},
    lease::Fence,
    retry::backoff,
    tasks::Tasks,
    write::WriteError,
};

/// The Lease that Linkerd's Go controller holds while it writes slices. Sharing it makes the two take turns.
pub const LEASE: &str = "linkerd-destination-endpoint-write";
/// The label that client-go's metrics carry in Linkerd's destination: dashboards select by it.
pub const QUEUE: &str = "endpoints_controller_workqueue";

const BACKOFF_BASE: Duration = Duration::from_millis(100);
const BACKOFF_CAP: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Settings {
    /// Services reconciled at the same time; each writes one slice at a time.
    pub concurrency: u16,
    /// How often each Service is looked at though nothing happened. Less up to a tenth.
    pub full_pass_interval: Duration,
}

struct Context {
    gate: LeaderGate,
    writer: Writer,
    events: Events,
    settings: Settings,
    metrics: Metrics,
    records: Records,
}

struct Metrics {
    duration: HistogramVec,
    errors: IntCounterVec,
}

#[derive(Debug, thiserror::Error)]
#[error("{first}{}", more(*.count))]
struct Error {
    first: String,
    count: usize,
    label: &'static str,
    retry_after: Duration,
}

/// The endpoints in the slices that the controller manages, counted at each scrape.
struct Endpoints {
    cluster: Cluster,
    endpoints: GaugeVec,
}

/// How a reconcile ended that did not fail.
enum Verdict {
    /// Nothing was planned: we do not lead, or our last writes have not come back yet.
    Skipped(Action),
    Done(Action),
}

/// Starts the controller. It ends after the writes under way when `stop` is cancelled.
///
/// # Errors
/// When the metrics are registered already.
pub fn spawn(
    deps: &ControllerDeps,
    observer: &ExternalWorkloadObserver,
    settings: Settings,
    stop: CancellationToken,
    tasks: &mut Tasks,
) -> prometheus::Result<()> {
    let concurrency = settings.concurrency;
    deps.registry.register(Box::new(Endpoints::new(&deps.cluster)?))?;
    let context = Arc::new(Context {
        gate: LeaderGate::new(deps, observer::KINDS, &observer.queue),
        writer: Writer::new(&deps.client, Fence::new(deps.leadership.clone(), stop.clone()), &deps.registry)?,
        events: deps.events.clone(),
        settings,
        metrics: Metrics::register(&deps.registry)?,
        records: Records::default(),
    });
    tasks.spawn("external-workload-controller", controller::run(context, observer.services.store(), concurrency, stop));
    Ok(())
}

// === impl Context ===

impl Reconciler for Context {
    type Object = core::v1::Service;
    type Error = Error;

    fn gate(&self) -> &LeaderGate {
        &self.gate
    }

    async fn reconcile(&self, service: &NamespacedName) -> Result<Action, Error> {
        let begun = Instant::now();
        let (label, result) = match self.look_after(service).await {
            Ok(Verdict::Skipped(action)) => return Ok(action),
            Ok(Verdict::Done(action)) => ("ok", Ok(action)),
            Err(error) => ("error", Err(error)),
        };
        self.metrics.duration.with_label_values(&[label]).observe(begun.elapsed().as_secs_f64());
        result
    }

    fn failed(&self, service: &NamespacedName, error: &Error) -> Duration {
        self.metrics.errors.with_label_values(&[error.label]).inc();
        let failures = self.records.failed(service);
        if failures == 0 {
            warn!(%service, %error, "EndpointSlices could not be written, trying on");
        } else {
            debug!(%service, %error, failures, "EndpointSlices could not be written, trying on");
        }
        backoff(failures, BACKOFF_BASE, BACKOFF_CAP).max(error.retry_after).min(BACKOFF_CAP)
    }

    fn forget(&self, service: &NamespacedName) {
        self.records.forget(service);
    }
}

impl Context {
    async fn look_after(&self, key: &NamespacedName) -> Result<Verdict, Error> {
        if !self.gate.may_act() {
            return Ok(Verdict::Skipped(Action::await_change()));
        }
        let (service, workloads, slices) = {
            let state = self.gate.cluster.read();
            if let Some(wait) = self.records.own_writes_unseen(key, &state.slices) {
                return Ok(Verdict::Skipped(Action::requeue(wait)));
            }
            let Some(service) = state.services.get(key) else {
                return Ok(Verdict::Skipped(Action::await_change()));
            };
            let selectors = service.selector.iter();
            let selected = selectors.flat_map(|it| state.external_workloads.selected(&key.namespace, it)).cloned();
            (Arc::clone(service), selected.collect::<Vec<_>>(), state.slices.managed_of_service(key))
        };
        let taken = self.records.taken(key);
        let plan = plan(&Input { service: &service, workloads: &workloads, slices: &slices, taken: &taken });
        for finding in self.records.new_findings(key, &plan.findings) {
            self.events.publish(finding.notice(&service));
        }
        if plan.is_empty() {
            return self.conclude(&service, Outcome::default());
        }
        let outcome = self.writer.apply(&service, plan).await;
        // From what was written, not from what was planned: the rest has not happened yet.
        for transition in report::transitions(&service, &slices, &outcome.after(&slices)) {
            self.events.publish(transition.notice(&service));
        }
        self.conclude(&service, outcome)
    }

    /// Notes what was written, and turns what was not into the time of the next attempt.
    fn conclude(&self, service: &Service, outcome: Outcome) -> Result<Verdict, Error> {
        let key = &service.key;
        self.records.wrote(key, outcome.written);
        if outcome.failures.iter().any(|failure| matches!(failure.error, WriteError::NotLeading)) {
            // The successor looks at everything; so do we when we lead again.
            return Ok(Verdict::Done(Action::await_change()));
        }
        if let Some(first) = outcome.failures.first() {
            self.tell_refusal(service, &outcome.failures);
            return Err(Error {
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
            if self.records.met(key, outcome.taken) {
                let first = "the names of its EndpointSlices are taken by slices of others".to_owned();
                return Err(Error { first, count: 1, label: "already_exists", retry_after: Duration::ZERO });
            }
            return Ok(Verdict::Done(Action::requeue(Duration::ZERO)));
        }
        if outcome.stale {
            return Ok(Verdict::Done(Action::requeue(self.records.conflicted(key))));
        }
        let failures = self.records.settled(key);
        if failures > 0 {
            info!(service = %key, failures, "EndpointSlices are written again");
        }
        Ok(Verdict::Done(match service.selector {
            Some(_) => Action::requeue(backoff(0, self.settings.full_pass_interval, self.settings.full_pass_interval)),
            None => Action::await_change(),
        }))
    }

    /// Tells the Service's owner what the API server said. One that says nothing takes no Events either.
    fn tell_refusal(&self, service: &Service, failures: &[Failure]) {
        let refused = failures.iter().find(|failure| matches!(failure.error, WriteError::Refused(_)));
        if let Some(failure) = refused
            && self.records.is_news(&service.key, failure.error.label())
        {
            self.events.publish(Notice {
                reason: Reason::EndpointSliceWriteFailed,
                regarding: report::reference(service),
                related: None,
                note: failure.to_string(),
            });
        }
    }
}

fn more(count: usize) -> String {
    if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() }
}

// === impl Metrics ===

impl Metrics {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            duration: HistogramVec::new(
                HistogramOpts::new(
                    "linkerd_operator_reconcile_duration_seconds",
                    "Reconciles of one Service, writes included",
                )
                .buckets(exponential_buckets(0.000_1, 4.0, 9)?),
                &["result"],
            )?,
            errors: IntCounterVec::new(
                Opts::new("linkerd_operator_reconcile_errors_total", "Reconciles that failed, by the first reason"),
                &["reason"],
            )?,
        };
        registry.register(Box::new(metrics.duration.clone()))?;
        registry.register(Box::new(metrics.errors.clone()))?;
        Ok(metrics)
    }
}

// === impl Endpoints ===

impl Endpoints {
    fn new(cluster: &Cluster) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "linkerd_operator_external_workload_endpoints",
            "Endpoints in the slices that the ExternalWorkload controller manages",
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
