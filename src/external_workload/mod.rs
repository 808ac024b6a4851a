//! The ExternalWorkload controller: EndpointSlices for workloads outside the cluster, in step with the Services that select
//! them.
//!
//! ```text
//! cluster ──Triggers──▶ Controller ──▶ reconcile: State ─▶ plan (pure) ─▶ apply ──▶ API server
//!                                                             └─▶ Events        (while leading)
//! ```
//!
//! In: Services to look at. Out: writes of EndpointSlices, Events. Always holds: without leadership nothing is planned; a
//! Service is planned only on a state that shows our own last writes to it, so nothing is written twice; nothing is written
//! when nothing changed; no Service is ever given up.

mod apply;
mod endpoint;
mod plan;
mod report;

use std::{
    collections::{HashMap, HashSet},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream};
use kube::{
    Client, Resource,
    runtime::controller::{self, Action, Controller},
};
use parking_lot::Mutex;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, exponential_buckets};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::{
    apply::{Outcome, What, WriteError, Writer, Written},
    plan::{Input, Plan, plan},
    report::Finding,
};
use crate::{
    cluster::{
        Cluster, State,
        object::NamespacedName,
        service::{Service, ServiceName},
        trigger::{Triggers, backoff},
    },
    events::{Events, Notice, Reason},
    lease::Leadership,
    tasks::Tasks,
};

/// The Lease that Linkerd's Go controller holds while it writes slices. Sharing it makes the two take turns.
pub const LEASE: &str = "linkerd-destination-endpoint-write";

/// How long the cache may take to show our own writes before we plan without: preconditions and fixed names then keep a
/// second write harmless.
const OWN_WRITES_SEEN: Duration = Duration::from_secs(5);
/// After a conflict the watch brings what we did not know; this is for the case that it does not.
const STALE_RETRY: Duration = Duration::from_secs(1);
const BACKOFF_BASE: Duration = Duration::from_millis(100);
const BACKOFF_CAP: Duration = Duration::from_secs(60);
/// Names of one Service's slices that others may occupy before we back off.
const TAKEN_LIMIT: usize = 256;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Services reconciled at the same time; each writes one slice at a time.
    pub concurrency: u16,
    /// How often each Service is looked at though nothing happened. Less up to a tenth.
    pub full_pass_interval: Duration,
}

struct Context {
    cluster: Cluster,
    triggers: Arc<Triggers>,
    writer: Writer,
    events: Events,
    settings: Settings,
    metrics: Metrics,
    /// One for each Service that was written to or found faulty; gone with the Service.
    records: Mutex<HashMap<NamespacedName, Record>>,
}

/// What is remembered of a Service between reconciles; losing it costs repeated warnings and a conflict at most.
#[derive(Default)]
struct Record {
    unseen: Vec<Written>,
    written: Option<Instant>,
    failures: u32,
    /// The last failure that was reported.
    failed: Option<&'static str>,
    findings: HashSet<Finding>,
    taken: HashSet<String>,
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
    retry_after: Option<Duration>,
}

/// What the controller is made of; see [`spawn`].
pub struct Parts<'a> {
    pub client: &'a Client,
    pub cluster: &'a Cluster,
    pub triggers: &'a Arc<Triggers>,
    pub leadership: &'a Leadership,
    pub events: &'a Events,
    pub registry: &'a Registry,
}

/// Starts the controller. It ends after the writes under way when `stop` is cancelled.
///
/// # Errors
/// When the metrics are registered already.
pub fn spawn(
    parts: &Parts<'_>,
    settings: Settings,
    stop: CancellationToken,
    tasks: &mut Tasks,
) -> prometheus::Result<()> {
    let context = Arc::new(Context {
        cluster: parts.cluster.clone(),
        triggers: Arc::clone(parts.triggers),
        writer: Writer::new(parts.client, parts.leadership.clone(), parts.registry)?,
        events: parts.events.clone(),
        settings,
        metrics: Metrics::register(parts.registry)?,
        records: Mutex::default(),
    });
    tasks.spawn("external-workload-controller", run(context, parts.leadership.clone(), stop));
    Ok(())
}

async fn run(context: Arc<Context>, leadership: Leadership, stop: CancellationToken) {
    tokio::select! {
        () = context.cluster.synced() => {}
        () = stop.cancelled() => return,
    }
    let config = controller::Config::default().concurrency(context.settings.concurrency);
    let names = context.cluster.read().services.names();
    // The watches feed the store and the triggers; the Controller itself watches nothing.
    let outcomes = Controller::for_stream(stream::pending(), names)
        .with_config(config)
        .reconcile_on(context.triggers.stream())
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(reconcile, on_error, Arc::clone(&context))
        .for_each(|outcome| {
            if let Err(controller::Error::ObjectNotFound(name)) = outcome {
                context.forget(&NamespacedName::new(name.namespace.unwrap_or_default(), name.name));
            }
            std::future::ready(())
        });
    // Whoever begins to lead looks at everything: much may have changed while nobody led.
    let terms = stream::unfold((leadership, 0), |(mut leadership, seen)| async move {
        let term = leadership.next_term(seen).await;
        Some(((), (leadership, term)))
    });
    let passes = terms.for_each(|()| {
        let services: Vec<_> = context.cluster.read().services.keys().collect();
        info!(services = services.len(), "looking at every Service");
        context.triggers.mark(services);
        std::future::ready(())
    });
    futures::future::select(pin!(outcomes), pin!(passes)).await;
}

async fn reconcile(name: Arc<ServiceName>, context: Arc<Context>) -> Result<Action, Error> {
    let key = NamespacedName::of(name.meta());
    let work = context.triggers.started(&key);
    let begun = Instant::now();
    let result = context.reconcile(&key).await;
    let label = if result.is_ok() { "ok" } else { "error" };
    context.metrics.duration.with_label_values(&[label]).observe(begun.elapsed().as_secs_f64());
    drop(work);
    result
}

#[allow(clippy::needless_pass_by_value, reason = "kube-runtime's signature")]
fn on_error(name: Arc<ServiceName>, error: &Error, context: Arc<Context>) -> Action {
    let service = NamespacedName::of(name.meta());
    context.triggers.retried();
    context.metrics.errors.with_label_values(&[error.label]).inc();
    let mut records = context.records.lock();
    let record = records.entry(service.clone()).or_default();
    let delay = backoff(record.failures, BACKOFF_BASE, BACKOFF_CAP);
    record.failures = record.failures.saturating_add(1);
    if record.failures == 1 {
        warn!(%service, %error, "EndpointSlices could not be written, trying on");
    } else {
        debug!(%service, %error, failures = record.failures, "EndpointSlices could not be written, trying on");
    }
    Action::requeue(delay.max(error.retry_after.unwrap_or_default()).min(BACKOFF_CAP))
}

// === impl Context ===

impl Context {
    async fn reconcile(&self, key: &NamespacedName) -> Result<Action, Error> {
        if !self.writer.may_write() {
            return Ok(Action::await_change());
        }
        let (service, plan) = {
            let state = self.cluster.read();
            if let Some(wait) = self.own_writes_unseen(key, &state) {
                return Ok(Action::requeue(wait));
            }
            let Some(service) = state.services.get(key) else { return Ok(Action::await_change()) };
            (Arc::clone(service), self.plan(service, &state))
        };
        self.report_findings(&service, &plan);
        let next_pass = match &service.selector {
            Some(_) => Action::requeue(backoff(0, self.settings.full_pass_interval, self.settings.full_pass_interval)),
            None => Action::await_change(),
        };
        if plan.is_empty() {
            self.settle(key);
            return Ok(next_pass);
        }
        let transitions = plan.transitions.clone();
        let outcome = self.writer.apply(&service, plan).await;
        debug!(service = %key, written = outcome.written.len(), failed = outcome.failures.len(), "wrote EndpointSlices");
        // What was missed has not changed yet: the next plan says so again.
        for transition in transitions.iter().filter(|transition| !outcome.missed.contains(&*transition.workload)) {
            self.events.publish(transition.notice(&service));
        }
        self.conclude(&service, outcome, next_pass)
    }

    fn plan(&self, service: &Service, state: &State) -> Plan {
        let workloads = match &service.selector {
            Some(selector) => state.workloads.selected(&service.key.namespace, selector),
            None => Vec::new(),
        };
        let slices = state.slices.of_service(&service.key);
        let taken = self.records.lock().get(&service.key).map(|record| record.taken.clone()).unwrap_or_default();
        plan(&Input { service, workloads: &workloads, slices: &slices, taken: &taken })
    }

    /// How long to wait for the cache to show what we wrote last. An event of one of those slices comes sooner, and has the
    /// Service looked at again.
    fn own_writes_unseen(&self, key: &NamespacedName, state: &State) -> Option<Duration> {
        let mut records = self.records.lock();
        let record = records.get_mut(key)?;
        record.unseen.retain(|written| !is_seen(written, key, state));
        let left = OWN_WRITES_SEEN.saturating_sub(record.written?.elapsed());
        (!record.unseen.is_empty() && !left.is_zero()).then_some(left)
    }

    /// Tells of what is wrong with workloads once, and again when it was mended in between.
    fn report_findings(&self, service: &Service, plan: &Plan) {
        let mut records = self.records.lock();
        if plan.findings.is_empty() && !records.contains_key(&service.key) {
            return;
        }
        let record = records.entry(service.key.clone()).or_default();
        for finding in plan.findings.iter().filter(|finding| !record.findings.contains(*finding)) {
            self.events.publish(finding.notice(service));
        }
        record.findings = plan.findings.iter().cloned().collect();
    }

    /// Notes what was written, and turns what was not into the time of the next attempt.
    fn conclude(&self, service: &Service, outcome: Outcome, next_pass: Action) -> Result<Action, Error> {
        let stale = outcome.stale;
        let (taken, crowded) = {
            let mut records = self.records.lock();
            let record = records.entry(service.key.clone()).or_default();
            record.unseen = outcome.written;
            record.written = Some(Instant::now());
            let taken = !outcome.taken.is_empty();
            record.taken.extend(outcome.taken);
            (taken, record.taken.len() > TAKEN_LIMIT)
        };
        if let Some(first) = outcome.failures.first() {
            if matches!(first.error, WriteError::NotLeading) {
                // The successor looks at everything; so do we when we lead again.
                return Ok(Action::await_change());
            }
            self.report_failure(service, &first.to_string(), &first.error);
            return Err(Error {
                first: first.to_string(),
                count: outcome.failures.len(),
                label: first.error.label(),
                retry_after: first.error.retry_after(),
            });
        }
        if crowded {
            self.records.lock().remove(&service.key);
            let first = format!("more than {TAKEN_LIMIT} names of its EndpointSlices are taken by slices of others");
            return Err(Error { first, count: 1, label: "already_exists", retry_after: None });
        }
        if taken {
            return Ok(Action::requeue(Duration::ZERO));
        }
        if stale {
            return Ok(Action::requeue(STALE_RETRY));
        }
        self.settle(&service.key);
        Ok(next_pass)
    }

    fn report_failure(&self, service: &Service, note: &str, error: &WriteError) {
        // What the API server said is for the Service's owner; one that says nothing takes no Events either.
        if !matches!(error, WriteError::Refused(_)) {
            return;
        }
        let mut records = self.records.lock();
        let record = records.entry(service.key.clone()).or_default();
        if record.failed.replace(error.label()) != Some(error.label()) {
            self.events.publish(Notice {
                reason: Reason::EndpointSliceWriteFailed,
                regarding: report::reference(service),
                related: None,
                note: note.to_owned(),
            });
        }
    }

    /// All that was planned is there.
    fn settle(&self, key: &NamespacedName) {
        let mut records = self.records.lock();
        let Some(record) = records.get_mut(key) else { return };
        if record.failures > 0 {
            info!(service = %key, failures = record.failures, "EndpointSlices are written again");
        }
        record.failures = 0;
        record.failed = None;
        record.taken = HashSet::new();
        if record.unseen.is_empty() && record.findings.is_empty() {
            records.remove(key);
        }
    }

    fn forget(&self, key: &NamespacedName) {
        self.triggers.forget(key);
        self.records.lock().remove(key);
    }
}

fn is_seen(written: &Written, service: &NamespacedName, state: &State) -> bool {
    let cached = state.slices.get(&service.namespace, &written.name);
    let same = cached.filter(|slice| slice.uid() == written.uid);
    match written.what {
        What::Created(version) => cached.is_some_and(|slice| same.is_none() || slice.version() >= Some(version)),
        What::Updated(version) => same.is_none_or(|slice| slice.version() >= Some(version)),
        What::Deleted => same.is_none(),
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
