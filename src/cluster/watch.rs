//! One watch: a list and its changes, kept in step with the [`State`] for as long as the process lives.
//!
//! In: kube's watcher over one kind. Out: changes of the state, marks on [`Triggers`], a [`Status`]. Always holds: after
//! a relist the state has exactly the listed objects, and only what changed or vanished meanwhile was marked; an object
//! that cannot be read costs only itself, and the last version of it that could be read stays.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Resource,
    runtime::watcher::{self, Event},
};
use parking_lot::RwLock;
use prometheus::{Gauge, GaugeVec, Histogram, HistogramOpts, IntCounterVec, Opts, Registry};
use tokio::{
    sync::{Notify, watch as channel},
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use super::{
    Projected, State,
    object::{Guarded, NamespacedName, last_update},
    trigger::{Triggers, backoff},
};
use crate::tasks::Tasks;

/// Seconds after which the API server ends a watch and we resume it. kube gives a silent connection up after this and
/// five seconds more; bookmarks keep an idle but healthy one from being silent.
const WATCH_SECONDS: u32 = 60;

/// A watch that was resumed says nothing until something changes. One that has not failed for so long, longer than any
/// attempt and the pause before it, is taken as healthy again.
const QUIET: Duration = Duration::from_secs(25);

/// A watched kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Service,
    EndpointSlice,
    ExternalWorkload,
}

/// Something that a watch waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// For a person: what is missing, and what to do.
    pub text: String,
    /// Whether the process is not ready because of it.
    pub blocks_readiness: bool,
}

/// How far a watch is.
#[derive(Clone, Debug)]
pub(super) struct Status {
    kind: Kind,
    pub synced: bool,
    failure: Option<Failure>,
}

/// Why a list or a watch failed, as far as anybody can act on it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Failure {
    /// 404: the API server does not serve the kind.
    KindMissing,
    /// 401 and 403.
    Denied(String),
    Unreachable(String),
}

/// What all watches of a cluster share.
#[derive(Clone)]
pub(super) struct Context {
    pub state: Arc<RwLock<State>>,
    pub triggers: Arc<Triggers>,
    /// Has a failing watch list its kind anew instead of waiting for its next attempt.
    pub relist: Arc<Notify>,
    pub metrics: Metrics,
}

#[derive(Clone)]
pub(super) struct Metrics {
    lag: Histogram,
    undecodable: IntCounterVec,
    failures: IntCounterVec,
    events: IntCounterVec,
}

// === impl Kind ===

impl Kind {
    pub const ALL: [Self; 3] = [Self::Service, Self::EndpointSlice, Self::ExternalWorkload];

    /// The resource, as RBAC rules spell it.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Service => "services",
            Self::EndpointSlice => "endpointslices.discovery.k8s.io",
            Self::ExternalWorkload => "externalworkloads.workload.linkerd.io",
        }
    }
}

// === impl Status ===

impl Status {
    /// The state has all of the kind, and follows it as far as anybody can tell: a connection that fell silent is noticed after
    /// a minute only.
    pub(super) fn is_followed(&self) -> bool {
        self.synced && self.failure.is_none()
    }

    /// `None` when the kind is followed.
    pub(super) fn problem(&self) -> Option<Problem> {
        let resource = self.kind.resource();
        let text = match &self.failure {
            None if self.synced => return None,
            None => format!("the first list of {resource} has not come yet"),
            Some(Failure::KindMissing) => {
                format!("the API server does not serve {resource}: install its CustomResourceDefinition (make install)")
            }
            Some(Failure::Denied(message)) => {
                format!("list and watch of {resource} are denied, grant them to this ServiceAccount: {message}")
            }
            Some(Failure::Unreachable(message)) => format!("cannot list or watch {resource}: {message}"),
        };
        let blocks_readiness = !self.synced && self.failure != Some(Failure::KindMissing);
        Some(Problem { text, blocks_readiness })
    }
}

impl Failure {
    fn of(error: &watcher::Error) -> Self {
        let cause = match error {
            watcher::Error::InitialListFailed(cause)
            | watcher::Error::WatchStartFailed(cause)
            | watcher::Error::WatchFailed(cause) => cause,
            watcher::Error::WatchError(status) => return Self::Unreachable(status.message.clone()),
            watcher::Error::NoResourceVersion => return Self::Unreachable(error.to_string()),
        };
        match cause {
            // By the code: an API group that does not exist is answered in plain text, without a reason.
            kube::Error::Api(status) if status.code == 404 => Self::KindMissing,
            kube::Error::Api(status) if matches!(status.code, 401 | 403) => Self::Denied(status.message.clone()),
            kube::Error::Api(status) => Self::Unreachable(status.message.clone()),
            other => Self::Unreachable(crate::client::describe(other)),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KindMissing => f.write_str("the API server does not serve this kind"),
            Self::Denied(message) | Self::Unreachable(message) => f.write_str(message),
        }
    }
}

// === impl Context ===

impl Context {
    /// Follows a kind in a task of its own.
    pub(super) fn spawn<T: Projected>(
        &self,
        api: Api<Guarded<T::Wire>>,
        config: watcher::Config,
        tasks: &mut Tasks,
    ) -> channel::Receiver<Status> {
        let (status, receiver) = channel::channel(Status { kind: T::KIND, synced: false, failure: None });
        let context = self.clone();
        tasks.spawn(T::KIND.resource(), async move { context.run::<T>(api, config, status).await });
        receiver
    }

    async fn run<T: Projected>(
        self,
        api: Api<Guarded<T::Wire>>,
        config: watcher::Config,
        status: channel::Sender<Status>,
    ) {
        let config = config.timeout(WATCH_SECONDS);
        let watch = || Box::pin(watcher::watcher(api.clone(), config.clone()));
        let mut events = watch();
        let mut relist = Relist::default();
        // A history that is gone often ends an outage: the list that then helps must not wait as long as the outage's last attempt.
        let (mut failures, mut expirations) = (Failures::default(), Failures::default());
        loop {
            let event = tokio::select! {
                event = timeout(QUIET, events.next()) => event,
                () = self.relist.notified() => {
                    if status.borrow().failure.is_some() {
                        events = watch();
                    }
                    continue;
                }
            };
            let event = match event {
                Ok(Some(event)) => event,
                // kube's watcher never ends.
                Ok(None) => return,
                Err(_) => {
                    // A list that takes so long is not a watch that has nothing to say.
                    if !relist.under_way {
                        status.send_if_modified(recovered);
                    }
                    continue;
                }
            };
            match event {
                Ok(event) => {
                    let (done, heard) = (matches!(event, Event::InitDone), !matches!(event, Event::Init));
                    if heard {
                        self.metrics.events.with_label_values(&[T::KIND.resource()]).inc();
                    }
                    self.apply::<T>(event, &mut relist);
                    status.send_if_modified(|status| (heard && recovered(status)) | (done && listed(status)));
                }
                Err(error) => {
                    self.metrics.failures.with_label_values(&[T::KIND.resource()]).inc();
                    status.send_if_modified(|status| failed(status, Failure::of(&error)));
                    let expired = is_expired(&error);
                    let pause = if expired { expirations.pause() } else { failures.pause() };
                    tokio::select! {
                        () = sleep(pause) => {
                            if expired && matches!(error, watcher::Error::WatchStartFailed(_)) {
                                // kube lists anew when an event says 410, but would ask for the same version for ever when
                                // the answer does.
                                events = watch();
                            }
                        }
                        () = self.relist.notified() => events = watch(),
                    }
                }
            }
        }
    }

    /// Brings one event into the state, then marks what it affects: whoever reacts finds the state up to date.
    fn apply<T: Projected>(&self, event: Event<Guarded<T::Wire>>, relist: &mut Relist) {
        let affected = match event {
            Event::Init => {
                *relist =
                    Relist { under_way: true, affected: std::mem::take(&mut relist.affected), ..Relist::default() };
                return;
            }
            Event::InitApply(object) => {
                relist.seen.insert(NamespacedName::of(object.meta()));
                let affected = self.store::<T>(object);
                // The Controller knows a Service only when the list is complete.
                relist.affected.extend(affected);
                return;
            }
            Event::InitDone => {
                let mut state = self.state.write();
                T::listed(&mut state);
                let mut affected = std::mem::take(&mut relist.affected);
                for vanished in T::keys(&state).into_iter().filter(|key| !relist.seen.contains(key)) {
                    affected.extend(T::remove(&vanished, &mut state));
                }
                *relist = Relist::default();
                affected
            }
            Event::Apply(object) => {
                if let (Kind::ExternalWorkload, Some(updated)) = (T::KIND, last_update(object.meta())) {
                    let lag = Timestamp::now().duration_since(updated).as_secs_f64();
                    self.metrics.lag.observe(lag.max(0.0));
                }
                self.store::<T>(object)
            }
            Event::Delete(object) => T::remove(&NamespacedName::of(object.meta()), &mut self.state.write()),
        };
        self.triggers.mark(affected);
    }

    fn store<T: Projected>(&self, object: Guarded<T::Wire>) -> super::Affected {
        match object {
            Guarded::Valid(object) => {
                let object = T::project(object);
                object.apply(&mut self.state.write())
            }
            Guarded::Invalid { metadata, error } => {
                self.metrics.undecodable.with_label_values(&[T::KIND.resource()]).inc();
                let object = NamespacedName::of(&metadata);
                let resource = T::KIND.resource();
                warn!(%object, resource, %error, "cannot read an object: it is left out, or stays as it was last read");
                super::Affected::new()
            }
        }
    }
}

/// 410: the version to go on from is forgotten.
fn is_expired(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchError(status) => status.code == 410,
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 410,
        _ => false,
    }
}

/// A list under way.
#[derive(Default)]
struct Relist {
    under_way: bool,
    seen: HashSet<NamespacedName>,
    affected: super::Affected,
}

fn recovered(status: &mut Status) -> bool {
    let failed = status.failure.take().is_some();
    if failed {
        info!(resource = status.kind.resource(), "watching again");
    }
    failed
}

fn listed(status: &mut Status) -> bool {
    let first = !std::mem::replace(&mut status.synced, true);
    if first {
        info!(resource = status.kind.resource(), "listed");
    }
    first
}

fn failed(status: &mut Status, failure: Failure) -> bool {
    let changed = status.failure.as_ref() != Some(&failure);
    if changed {
        let resource = status.kind.resource();
        warn!(resource, error = %failure, "list or watch failed, trying on");
        status.failure = Some(failure);
    }
    changed
}

/// Failures in a row. Not kube's backoff: that one starts anew with every `Init`, so with every list it is to slow down,
/// and it waits up to 30 s, which a person who has just installed a CRD sees as a hang.
#[derive(Default)]
struct Failures {
    count: u32,
    last: Option<Instant>,
}

impl Failures {
    /// From 200 ms to 10 s; from the start again after two quiet minutes, because a list that succeeds before a watch
    /// that fails is no recovery.
    fn pause(&mut self) -> Duration {
        if self.last.replace(Instant::now()).is_some_and(|last| last.elapsed() > Duration::from_secs(120)) {
            self.count = 0;
        }
        let pause = backoff(self.count, Duration::from_millis(200), Duration::from_secs(10));
        self.count = self.count.saturating_add(1);
        pause
    }
}

// === impl Metrics ===

impl Metrics {
    pub(super) fn register(registry: &Registry, state: &Arc<RwLock<State>>) -> prometheus::Result<Self> {
        let by_resource = |name, help| IntCounterVec::new(Opts::new(name, help), &["resource"]);
        let metrics = Self {
            // Linkerd's name and buckets.
            lag: Histogram::with_opts(
                HistogramOpts::new(
                    "externalworkload_informer_lag_seconds",
                    "From the newest update time in an ExternalWorkload's managedFields (whole seconds, the API server's clock) to its watch event",
                )
                .buckets(vec![0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1000.0]),
            )?,
            undecodable: by_resource(
                "linkerd_operator_undecodable_objects_total",
                "Objects that could not be read and were left out",
            )?,
            failures: by_resource("linkerd_operator_watch_failures_total", "Lists and watches that failed")?,
            events: by_resource("linkerd_operator_watch_events_total", "Objects received by list and watch")?,
        };
        for kind in Kind::ALL {
            for counter in [&metrics.undecodable, &metrics.failures, &metrics.events] {
                counter.with_label_values(&[kind.resource()]);
            }
        }
        registry.register(Box::new(metrics.lag.clone()))?;
        registry.register(Box::new(metrics.undecodable.clone()))?;
        registry.register(Box::new(metrics.failures.clone()))?;
        registry.register(Box::new(metrics.events.clone()))?;
        registry.register(Box::new(Sizes::new(state)?))?;
        Ok(metrics)
    }
}

/// How much the state holds, measured when somebody looks.
struct Sizes {
    state: Arc<RwLock<State>>,
    workloads: Gauge,
    endpoints: GaugeVec,
}

impl Sizes {
    fn new(state: &Arc<RwLock<State>>) -> prometheus::Result<Self> {
        Ok(Self {
            state: Arc::clone(state),
            workloads: Gauge::with_opts(
                Opts::new("externalworkload_cache_size", "ExternalWorkloads in the cache")
                    .const_label("cluster", "local"),
            )?,
            endpoints: GaugeVec::new(
                Opts::new(
                    "linkerd_operator_external_workload_endpoints",
                    "Endpoints in the slices that the ExternalWorkload controller manages",
                ),
                &["ready"],
            )?,
        })
    }
}

impl prometheus::core::Collector for Sizes {
    fn desc(&self) -> Vec<&prometheus::core::Desc> {
        self.workloads.desc().into_iter().chain(self.endpoints.desc()).collect()
    }

    #[allow(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
    fn collect(&self) -> Vec<prometheus::proto::MetricFamily> {
        let (workloads, (ready, unready)) = {
            let state = self.state.read();
            (state.workloads.len(), state.slices.endpoints_by_readiness())
        };
        self.workloads.set(workloads as f64);
        self.endpoints.with_label_values(&["true"]).set(ready as f64);
        self.endpoints.with_label_values(&["false"]).set(unready as f64);
        self.workloads.collect().into_iter().chain(self.endpoints.collect()).collect()
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_the_api_server_does_not_serve_is_told_from_one_that_cannot_be_reached() {
        let status =
            |code, reason: &str| kube::core::Status::failure("404 page not found", reason).with_code(code).boxed();
        let failure = |status| Failure::of(&watcher::Error::InitialListFailed(kube::Error::Api(status)));
        assert_eq!(failure(status(404, "Failed to parse error data")), Failure::KindMissing);
        assert_eq!(failure(status(404, "NotFound")), Failure::KindMissing);
        assert!(matches!(failure(status(403, "Forbidden")), Failure::Denied(_)));
        assert!(matches!(failure(status(503, "ServiceUnavailable")), Failure::Unreachable(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_slow_down_and_two_quiet_minutes_forgive_them() {
        let mut failures = Failures::default();
        let pauses: Vec<f64> = (0..8).map(|_| failures.pause().as_secs_f64()).collect();
        assert!(pauses[0] <= 0.2 && (9.0..=10.0).contains(&pauses[7]), "{pauses:?}");
        tokio::time::advance(Duration::from_secs(121)).await;
        assert!(failures.pause() <= Duration::from_millis(200));
    }
}
