//! Leader election on a Kubernetes Lease, compatible with client-go: its electors and ours can share a Lease.
//!
//! In: the name of a Lease. Out: a [`Leadership`], which is checked immediately before each write. Always holds:
//! - another holder's Lease counts as expired when this process has observed no change of its record for its duration;
//!   clocks of two hosts are never compared;
//! - a write starts only within the renew deadline after our last renewal, and its own deadline ends before the Lease
//!   can expire for any other replica;
//! - a missing namespace, an unreachable API server and a deleted Lease are retried without limit;
//! - an election that [requires](spawn) another one writes its Lease only while this process leads there. Until then it
//!   only reads the Lease, so that both Leases of a leader that is gone expire at the same time.

mod fence;
mod leadership;

use std::{fmt, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use prometheus::{
    IntCounterVec, IntGaugeVec, Registry, register_int_counter_vec_with_registry, register_int_gauge_vec_with_registry,
};
use tokio::{
    sync::watch,
    time::{Instant, error::Elapsed, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::retry::jittered;
pub use fence::Fence;
pub use leadership::Leadership;
use leadership::{LeaderState, LeaderTerm};

/// Timeout of the release of a Lease at shutdown; enough for two reads and two writes on a healthy API server.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// The Lease, the identity of this process, and the times of the election. The defaults are Linkerd's: 30 s, 10 s, 2 s.
#[derive(Clone, Debug)]
pub struct ElectionSettings {
    pub namespace: String,
    pub name: &'static str,
    pub identity: String,
    /// The time after our last renewal after which other replicas take over. Whole seconds.
    pub duration: Duration,
    /// The time for which this process leads without a renewal.
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

struct Elector {
    settings: ElectionSettings,
    api: Api<Lease>,
    state: watch::Sender<LeaderState>,
    metrics: ElectionMetrics,
    /// The Lease as last read or written, and when its current record was first observed.
    seen: Option<(Lease, Instant)>,
    /// Whether `seen` may be outdated, after a failure. Then the Lease is read before it is written.
    stale: bool,
    /// Whether we may be the holder: we wrote our identity, and have observed no other holder since.
    claimed: bool,
    /// When our last successful renewal was sent; `None` when we do not lead.
    renewed: Option<Instant>,
    /// The election that this process must lead in first.
    required: Option<Leadership>,
}

/// The metrics of all elections in which this process takes part.
#[derive(Clone)]
pub struct ElectionMetrics {
    leading: IntGaugeVec,
    transitions: IntCounterVec,
}

/// The action of one election attempt.
#[derive(Debug, PartialEq, Eq)]
enum ElectionStep {
    Create,
    Renew,
    TakeOver,
    Wait,
}

/// Starts the election task of a Lease. When `stop` is cancelled, the task releases the Lease and ends.
///
/// With a `required` election, the task acquires its Lease only while this process leads in that one, and releases it
/// when it stops leading there. All processes acquire the two Leases in the same order, so no two of them wait for each
/// other.
pub fn spawn(
    client: &Client,
    settings: ElectionSettings,
    required: Option<Leadership>,
    metrics: &ElectionMetrics,
    stop: CancellationToken,
    tasks: &mut crate::tasks::Tasks,
) -> Leadership {
    let metrics = metrics.clone();
    metrics.leading.with_label_values(&[settings.name]).set(0);
    metrics.transitions.with_label_values(&[settings.name]);
    let (state, leadership) = watch::channel(LeaderState::default());
    let api = Api::namespaced(client.clone(), &settings.namespace);
    let elector =
        Elector { settings, api, state, metrics, seen: None, stale: false, claimed: false, renewed: None, required };
    tasks.spawn("lease", elector.run(stop));
    Leadership(leadership)
}

// === impl Elector ===

impl Elector {
    async fn run(mut self, stop: CancellationToken) {
        let election = async {
            loop {
                self.hold_required().await;
                let required = self.required.clone();
                let is_lost = async {
                    match required {
                        Some(required) => required.ended().await,
                        None => std::future::pending().await,
                    }
                };
                let attempt = async {
                    self.step().await;
                    sleep(jittered(self.pause())).await;
                };
                tokio::select! {
                    () = is_lost => self.stale = true,
                    () = attempt => {}
                }
            }
        };
        tokio::select! {
            () = election => {}
            () = stop.cancelled() => {}
        }
        self.give_up("the process is stopping").await;
    }

    /// Waits until this process leads in the required election. A Lease that we still hold is released first, and
    /// meanwhile the Lease is observed: how long its record has not changed must count from the end of its holder, not
    /// from the time at which the required Lease is ours.
    async fn hold_required(&mut self) {
        let Some(required) = self.required.clone() else { return };
        if required.term().is_some() {
            return;
        }
        self.give_up("the Lease that it requires was lost").await;
        let observes = async {
            loop {
                self.look().await;
                sleep(jittered(self.pause())).await;
            }
        };
        tokio::select! {
            () = required.held() => {}
            () = observes => {}
        }
    }

    /// Stops leading, and releases the Lease if we may hold it.
    async fn give_up(&mut self, why: &'static str) {
        self.lose(why);
        if !self.claimed {
            return;
        }
        self.stale = true;
        match timeout(RELEASE_TIMEOUT, self.release()).await {
            Ok(Ok(true)) => info!(lease = %self, "released the Lease"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => {
                let error = crate::client::describe(&error);
                warn!(lease = %self, error, "could not release the Lease; it will expire");
            }
            Err(_) => warn!(lease = %self, "could not release the Lease in time; it will expire"),
        }
        // Only now: a release that the end of the process interrupts is repeated.
        self.claimed = false;
    }

    /// Reads the Lease once, and writes nothing.
    async fn look(&mut self) {
        let read = timeout(self.settings.renew_deadline / 2, self.read()).await;
        self.note_problem(read);
    }

    /// Tries once to acquire or renew the Lease, within half the renew deadline, so that there is time for a second
    /// attempt.
    async fn step(&mut self) {
        let attempt = timeout(self.settings.renew_deadline / 2, self.informed_attempt()).await;
        if self.renewed.is_some_and(|renewed| renewed.elapsed() >= self.settings.renew_deadline) {
            self.lose("the Lease was not renewed in time");
        }
        self.note_problem(attempt);
    }

    /// Records why the last requests failed.
    fn note_problem(&mut self, result: Result<kube::Result<()>, Elapsed>) {
        let problem = match result {
            Ok(Ok(())) => None,
            Ok(Err(error)) => {
                self.stale = true;
                Some(self.explain(&error))
            }
            Err(_) => {
                self.stale = true;
                Some(format!("{self}: the request to the API server timed out"))
            }
        };
        self.state.send_if_modified(|state| {
            let changed = state.problem != problem;
            if let (true, Some(problem)) = (changed, &problem) {
                warn!(%problem, "cannot take part in the election");
            }
            state.problem = problem;
            changed
        });
    }

    /// Makes one attempt, and another one after a conflict. A conflict means that `seen` is outdated; the new record
    /// decides whether we still lead, so it is read immediately instead of at the next attempt.
    async fn informed_attempt(&mut self) -> kube::Result<()> {
        match self.attempt().await {
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {
                self.stale = true;
                self.attempt().await
            }
            result => result,
        }
    }

    async fn attempt(&mut self) -> kube::Result<()> {
        // A leader writes without reading first: its record is the newest, or the API server rejects the write.
        if self.renewed.is_none() || self.stale {
            self.read().await?;
        }
        let step =
            decide(self.seen.as_ref().map(|(lease, since)| (lease.spec.as_ref(), since.elapsed())), &self.settings);
        self.claimed = step != ElectionStep::Wait;
        // Taken before the request: other replicas count from when they observe the renewal, which is later.
        let sent = Instant::now();
        let lease = match step {
            ElectionStep::Wait => {
                if self.renewed.is_some() {
                    self.lose("another holder has the Lease");
                }
                return Ok(());
            }
            ElectionStep::Create => self.api.create(&PostParams::default(), &self.record(Lease::default())).await?,
            ElectionStep::Renew | ElectionStep::TakeOver => {
                let base = self.seen.as_ref().map(|(lease, _)| lease.clone()).unwrap_or_default();
                self.api.replace(self.settings.name, &PostParams::default(), &self.record(base)).await?
            }
        };
        self.observe(Some(lease));
        self.win(sent);
        Ok(())
    }

    async fn read(&mut self) -> kube::Result<()> {
        let lease = self.api.get_opt(self.settings.name).await?;
        self.observe(lease);
        self.stale = false;
        Ok(())
    }

    /// Returns the Lease with our renewal. If another identity held it, the record shows a new transition.
    fn record(&self, mut lease: Lease) -> Lease {
        let now = MicroTime(Timestamp::now());
        lease.metadata = ObjectMeta {
            name: Some(self.settings.name.to_owned()),
            namespace: Some(self.settings.namespace.clone()),
            managed_fields: None,
            ..lease.metadata
        };
        let spec = lease.spec.get_or_insert_default();
        let ours = spec.holder_identity.as_deref() == Some(&self.settings.identity);
        if !ours {
            spec.lease_transitions =
                Some(spec.lease_transitions.map_or(0, |transitions| transitions.saturating_add(1)));
            spec.acquire_time = Some(now.clone());
            spec.holder_identity = Some(self.settings.identity.clone());
        }
        spec.lease_duration_seconds = i32::try_from(self.settings.duration.as_secs()).ok();
        spec.renew_time = Some(now);
        lease
    }

    /// Records the current Lease. The time changes only if the record has changed.
    fn observe(&mut self, lease: Option<Lease>) {
        self.seen = lease.map(|lease| match &self.seen {
            Some((seen, since)) if seen.spec == lease.spec => (lease, *since),
            _ => (lease, Instant::now()),
        });
        let spec = self.seen.as_ref().and_then(|(lease, _)| lease.spec.as_ref());
        let holder = spec.and_then(|spec| spec.holder_identity.clone());
        // Writers that wait for a term need not look again.
        self.state.send_if_modified(|state| {
            state.holder = holder;
            false
        });
    }

    fn win(&mut self, sent: Instant) {
        let ElectionSettings { duration, renew_deadline, .. } = self.settings;
        let mut term = LeaderTerm {
            writes_until: sent + renew_deadline,
            deadline: sent + duration - (duration - renew_deadline) / 4,
        };
        if let Some(required) = &self.required {
            // If that term has ended, `run` releases our Lease.
            let Some(limit) = required.current() else { return };
            term = term.within(limit);
        }
        let fresh = self.renewed.is_none();
        self.renewed = Some(sent);
        self.state.send_modify(|state| {
            let unbroken = state.term.is_some_and(|term| Instant::now() < term.writes_until);
            state.terms += u64::from(!unbroken);
            state.term = Some(term);
        });
        if fresh {
            self.metrics.leading.with_label_values(&[self.settings.name]).set(1);
            self.metrics.transitions.with_label_values(&[self.settings.name]).inc();
            info!(lease = %self, identity = self.settings.identity, "leading");
        }
    }

    fn lose(&mut self, why: &'static str) {
        if self.renewed.take().is_some() {
            self.state.send_modify(|state| state.term = None);
            self.metrics.leading.with_label_values(&[self.settings.name]).set(0);
            warn!(lease = %self, why, "no longer leading: writes have stopped, all other work continues");
        }
    }

    /// Returns the time until the next attempt. Followers read the Lease twice as often as leaders renew it, and four
    /// times as often when it is about to expire, so that they notice a release within about a second without the
    /// permission to watch.
    fn pause(&self) -> Duration {
        let retry = self.settings.retry_period;
        if self.renewed.is_some() {
            return retry;
        }
        let left = self.seen.as_ref().map(|(lease, since)| {
            recorded_duration(lease.spec.as_ref(), &self.settings).saturating_sub(since.elapsed())
        });
        match left {
            Some(left) if left <= retry => retry / 4,
            Some(_) => retry / 2,
            None => retry,
        }
    }

    /// Releases the Lease, so that it need not expire first. Returns whether it was ours. Makes two attempts, because
    /// our last renewal may still be in progress, or another client may have edited the Lease.
    async fn release(&mut self) -> kube::Result<bool> {
        let mut result = Ok(false);
        for _ in 0..2 {
            let Some(mut lease) = self.api.get_opt(self.settings.name).await? else { return Ok(false) };
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() != Some(&self.settings.identity) {
                return Ok(false);
            }
            let now = MicroTime(Timestamp::now());
            // As in client-go: an empty holder, and a short duration that expires for every reader.
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(now.clone());
            spec.acquire_time = Some(now);
            lease.metadata.managed_fields = None;
            result = self.api.replace(self.settings.name, &PostParams::default(), &lease).await.map(|_| true);
            if !matches!(&result, Err(kube::Error::Api(status)) if status.is_conflict()) {
                break;
            }
        }
        result
    }

    fn explain(&self, error: &kube::Error) -> String {
        match error {
            // Reading a missing Lease is not an error, so its creation failed: the namespace is missing.
            kube::Error::Api(status) if status.is_not_found() && self.seen.is_none() => {
                format!("{self}: namespace {} does not exist; waiting for it", self.settings.namespace)
            }
            // Without the namespace its Role is missing, too, so a request is forbidden instead of not found.
            kube::Error::Api(status) if status.is_forbidden() => format!(
                "{self}: {}; apply the operator's permissions again (make deploy), after Linkerd if namespace {} is missing",
                status.message, self.settings.namespace
            ),
            other => format!("{self}: {}", crate::client::describe(other)),
        }
    }
}

impl fmt::Display for Elector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease {}/{}", self.settings.namespace, self.settings.name)
    }
}

/// Returns the step for a Lease, given its record and the time since the record changed; `None` for a missing Lease.
fn decide(seen: Option<(Option<&LeaseSpec>, Duration)>, settings: &ElectionSettings) -> ElectionStep {
    let Some((spec, unchanged)) = seen else { return ElectionStep::Create };
    match spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default() {
        "" => ElectionStep::TakeOver,
        holder if holder == settings.identity => ElectionStep::Renew,
        _ if unchanged >= recorded_duration(spec, settings) => ElectionStep::TakeOver,
        _ => ElectionStep::Wait,
    }
}

/// Returns the duration in the record; our own duration if the record has none.
fn recorded_duration(spec: Option<&LeaseSpec>, settings: &ElectionSettings) -> Duration {
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(settings.duration, Duration::from_secs)
}

// === impl ElectionMetrics ===

impl ElectionMetrics {
    /// # Errors
    /// When the metrics are registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            leading: register_int_gauge_vec_with_registry!(
                "linkerd_operator_leader",
                "1 while this process holds the Lease",
                &["lease"],
                registry
            )?,
            transitions: register_int_counter_vec_with_registry!(
                "linkerd_operator_leader_terms_total",
                "Number of times this process acquired the Lease",
                &["lease"],
                registry
            )?,
        })
    }
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
