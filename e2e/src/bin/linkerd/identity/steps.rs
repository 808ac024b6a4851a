//! The steps, and what the proxies and the client observe in each of them.
//!
//! * In: an [`IdentityMesh`]. Out: [`IdentityStep`]s.
//! * Always: only certificates that were received after the change of a step count as its renewals. All requests since
//!   the step began count.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::eventually;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{
    IdentityPrograms,
    scene::{IdentityMesh, LATE, LATEST, ProxyCertificate, now},
};
use crate::{
    replica::ServerKind::{self, Ours, Theirs},
    traffic::{client::RequestCounts, identity::IdentityServiceOptions},
};

/// A proxy renews when 70 % of the validity have passed.
const SHORT: IdentityServiceOptions =
    IdentityServiceOptions { lifetime: Duration::from_secs(30), clock_skew: Duration::from_secs(2), native_tls: false };
const SHORT_NATIVE: IdentityServiceOptions = IdentityServiceOptions { native_tls: true, ..SHORT };
/// The last 30 % of the validity are longer than the outage of the API server.
const LONG_NATIVE: IdentityServiceOptions =
    IdentityServiceOptions { lifetime: Duration::from_secs(5 * 60), ..SHORT_NATIVE };
/// The operator asks a proxy again when it must have renewed its certificate, within ten seconds.
const OBSERVED: IdentityServiceOptions = IdentityServiceOptions { lifetime: Duration::from_secs(60), ..SHORT };
const RENEWED_AT: f64 = 0.7;
const API_SERVER_AWAY: Duration = Duration::from_secs(60);
/// How long before the first renewal the API server stops.
const BEFORE_RENEWAL: f64 = 5.0;
/// Longer than a certificate of [`SHORT`] or [`OBSERVED`] is valid.
const RENEWAL_DEADLINE: Duration = Duration::from_secs(90);
/// A proxy with an expired certificate asks again after 10 s.
const RETRIES: Duration = Duration::from_secs(25);
/// The pause between two changes of the Service.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// What is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// The identity service and its issuer, under one root.
    Services,
    /// The root, over a bridge.
    Roots,
    /// The root, without a bridge.
    Distrusted,
}

/// One step.
pub(crate) struct IdentityStep {
    pub(crate) name: String,
    pub(crate) server: String,
    /// The certificates that each proxy received, by the name of its Pod.
    pub(crate) renewals: BTreeMap<&'static str, u64>,
    /// Whether each proxy must receive one.
    pub(crate) needs_renewals: bool,
    /// The changes of the Service, each of which needed a new connection with mTLS.
    pub(crate) connections: usize,
    pub(crate) counts: RequestCounts,
    /// The failures of new connections while the certificates were expired, or the only Pod did not run.
    pub(crate) unavoidable: u64,
    pub(crate) took: Duration,
}

pub(super) struct IdentityRun {
    pub(super) mesh: IdentityMesh,
    /// Of an identity service without native TLS.
    pub(super) options: IdentityServiceOptions,
    done: Vec<IdentityStep>,
}

/// The state at the beginning of a step.
pub(super) struct BegunStep {
    name: &'static str,
    server: String,
    at: Instant,
    pub(super) counts: RequestCounts,
    /// After the change of the step.
    pub(super) certificates: BTreeMap<&'static str, ProxyCertificate>,
}

// === impl IdentityStep ===

impl IdentityStep {
    /// The failures that must not happen.
    pub(crate) fn failed(&self) -> u64 {
        self.counts.failed.saturating_sub(self.unavoidable)
    }

    pub(crate) fn is_good(&self) -> bool {
        let is_renewed = self.renewals.values().all(|renewals| *renewals > 0);
        self.failed() == 0 && self.counts.requests > 0 && (is_renewed || !self.needs_renewals)
    }
}

// === impl IdentityRun ===

impl IdentityRun {
    pub(super) async fn start(programs: IdentityPrograms, course: Course) -> Result<Self> {
        let options = match course {
            Course::Services => SHORT,
            Course::Roots | Course::Distrusted => OBSERVED,
        };
        Ok(Self { mesh: IdentityMesh::start(programs, options).await?, options, done: Vec::new() })
    }

    pub(super) async fn all(mut self, course: Course) -> Result<Vec<IdentityStep>> {
        let ran = match course {
            Course::Services => self.services().await,
            Course::Roots => self.over_a_bridge().await,
            Course::Distrusted => self.without_a_bridge().await,
        };
        ran.with_context(|| self.mesh.logs())?;
        Ok(self.done)
    }

    /// Replaces the container of the identity service.
    pub(super) async fn replaced(&mut self, to: ServerKind) -> Result<()> {
        let mut begun = self.begin("the container is replaced", to).await?;
        self.mesh.replace(to, self.options).await?;
        begun.certificates = self.mesh.certificates().await?;
        self.renewed(begun).await
    }

    /// Replaces the identity service.
    async fn services(&mut self) -> Result<()> {
        let begun = self.begin("the first service", Theirs).await?;
        self.renewed(begun).await?;
        for to in [Ours, Theirs, Ours] {
            self.replaced(to).await?;
        }
        let mut begun = self.begin("the issuer is replaced by one of the same root", Ours).await?;
        self.mesh.trust.renew_issuer()?;
        begun.certificates = self.mesh.certificates().await?;
        self.renewed(begun).await?;
        let issuers = self.mesh.issuers().await?;
        ensure!(issuers == 2, "{issuers} issuers have signed certificates, not the old one and then the new one");
        self.starts(LATE, "a new proxy starts").await?;
        let expired = self.expire().await?;
        self.heal(expired).await?;
        self.starts(LATEST, "a new proxy starts with native TLS").await?;
        let begun = self.begin("native TLS continues", Ours).await?;
        self.renewed(begun).await?;
        self.api_server_away().await
    }

    /// Changes the Service until each proxy has renewed its certificate.
    pub(super) async fn renewed(&mut self, begun: BegunStep) -> Result<()> {
        let end = Instant::now() + RENEWAL_DEADLINE;
        let mut connections = 0;
        loop {
            let is_complete = self.renewals(&begun).await?.values().all(|renewals| *renewals > 0);
            // This connection uses the certificates that were just received.
            self.mesh.changes.lock().await.change().await?;
            connections += 1;
            if is_complete || Instant::now() >= end {
                break;
            }
            sleep(PAUSE).await;
        }
        self.end(begun, true, connections, None).await
    }

    /// Starts a proxy, which receives its first certificate.
    pub(super) async fn starts(&mut self, pod: &'static str, name: &'static str) -> Result<()> {
        let mut begun = self.begin(name, Ours).await?;
        self.mesh.start_proxy(pod).await?;
        begun.certificates = BTreeMap::from([(pod, ProxyCertificate::default())]);
        self.end(begun, true, 0, None).await
    }

    /// Stops the service until all certificates have expired, and starts Linkerd's again behind the proxy of its Pod,
    /// which refuses clients with expired certificates. Returns a change of the Service, which needs a new connection.
    async fn expire(&mut self) -> Result<JoinHandle<Result<Duration>>> {
        let begun = self.begin("no service runs until the certificates have expired", Ours).await?;
        self.mesh.stop().await?;
        eventually(RENEWAL_DEADLINE, "the certificates to expire", async || {
            let certificates = self.mesh.certificates().await?;
            let until = certificates.values().map(|certificate| certificate.until).fold(0.0, f64::max);
            ensure!(until + 1.0 < now(), "one is valid for {:.0} s", until - now());
            Ok(())
        })
        .await?;
        self.end(begun, false, 0, None).await?;

        let begun = self.begin("the service runs again, behind the proxy of its Pod", Theirs).await?;
        self.mesh.replace(Theirs, SHORT).await?;
        sleep(RETRIES).await;
        let open = self.mesh.client.counts();
        let changes = self.mesh.changes.clone();
        let change = tokio::spawn(async move { changes.lock().await.change().await });
        sleep(PAUSE * 5).await;
        self.end(begun, false, usize::from(change.is_finished()), Some(open)).await?;
        Ok(change)
    }

    /// Replaces the Pod of the service by one with native TLS, which accepts clients with expired certificates.
    async fn heal(&mut self, change: JoinHandle<Result<Duration>>) -> Result<()> {
        let mut begun = self.begin("native TLS with expired certificates", Ours).await?;
        self.mesh.replace_by_native_tls(SHORT_NATIVE).await?;
        begun.certificates.retain(|pod, _| IdentityMesh::is_workload(pod));
        eventually(RENEWAL_DEADLINE, "the certificates to be renewed", async || {
            let renewals = self.renewals(&begun).await?;
            ensure!(renewals.values().all(|renewals| *renewals > 0), "{renewals:?}");
            Ok(())
        })
        .await?;
        change.await??;
        // The client's last connection failed because of the expired certificates.
        let open = begun.counts.clone();
        self.end(begun, true, 1, Some(open)).await
    }

    /// Stops the API server when the first proxy is about to renew.
    async fn api_server_away(&mut self) -> Result<()> {
        self.mesh.replace(Ours, LONG_NATIVE).await?;
        let long = LONG_NATIVE.lifetime.as_secs_f64();
        eventually(RENEWAL_DEADLINE, "longer certificates", async || {
            let certificates = self.mesh.certificates().await?;
            let is_long = |certificate: &ProxyCertificate| certificate.until - certificate.since > long - 5.0;
            ensure!(certificates.values().all(is_long), "{certificates:?}");
            Ok(())
        })
        .await?;
        let certificates = self.mesh.certificates().await?;
        let due = |it: &ProxyCertificate| it.since + RENEWED_AT * (it.until - it.since);
        let first = certificates.values().map(due).fold(f64::INFINITY, f64::min);
        sleep(Duration::try_from_secs_f64(first - BEFORE_RENEWAL - now()).unwrap_or_default()).await;

        let begun = self.begin("the API server is away for 60 s", Ours).await?;
        let refused = self.mesh.refused().await?;
        self.mesh.control_plane.stop_api_server(false).await?;
        sleep(API_SERVER_AWAY).await;
        let refused = self.mesh.refused().await? - refused;
        ensure!(refused >= begun.certificates.len() as u64, "only {refused} renewals failed without the API server");
        self.mesh.control_plane.start_api_server().await?;
        let end = Instant::now() + RENEWAL_DEADLINE;
        while self.renewals(&begun).await?.values().any(|renewals| *renewals == 0) && Instant::now() < end {
            sleep(PAUSE).await;
        }
        // The destination may wait for up to a minute before it watches the API server again, so the Service does not
        // change here.
        self.end(begun, true, 0, None).await
    }

    pub(super) async fn begin(&self, name: &'static str, server: ServerKind) -> Result<BegunStep> {
        eprintln!("identity: {name}: {server}");
        Ok(BegunStep {
            name,
            server: server.to_string(),
            at: Instant::now(),
            counts: self.mesh.client.counts(),
            certificates: self.mesh.certificates().await?,
        })
    }

    async fn renewals(&self, begun: &BegunStep) -> Result<BTreeMap<&'static str, u64>> {
        let certificates = self.mesh.certificates().await?;
        let received = |pod: &str| certificates.get(pod).map(|certificate| certificate.received);
        let renewals =
            begun.certificates.iter().filter_map(|(pod, before)| Some((*pod, received(pod)? - before.received)));
        Ok(renewals.collect())
    }

    /// Ends a step. The failures after the counts `expired` are those of expired certificates.
    pub(super) async fn end(
        &mut self,
        begun: BegunStep,
        needs_renewals: bool,
        connections: usize,
        expired: Option<RequestCounts>,
    ) -> Result<()> {
        let renewals = self.renewals(&begun).await?;
        let total = self.mesh.client.counts();
        let unavoidable = expired.map_or(0, |expired| total.since(&expired).failed);
        let counts = total.since(&begun.counts);
        let BegunStep { name, server, at, .. } = begun;
        eprintln!("identity: renewals {renewals:?}; {} requests, {} failed", counts.requests, counts.failed);
        self.done.push(IdentityStep {
            name: name.to_owned(),
            server,
            renewals,
            needs_renewals,
            connections,
            counts,
            unavoidable,
            took: at.elapsed(),
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(renewals: u64, needs_renewals: bool, failed: u64, unavoidable: u64) -> IdentityStep {
        IdentityStep {
            name: String::new(),
            server: String::new(),
            renewals: BTreeMap::from([("web", 1), ("client", renewals)]),
            needs_renewals,
            connections: 0,
            counts: RequestCounts { requests: 10, failed, reasons: BTreeMap::new() },
            unavoidable,
            took: Duration::ZERO,
        }
    }

    #[test]
    fn a_step_with_a_failure_or_without_a_renewal_is_not_good() {
        assert!(step(1, true, 0, 0).is_good() && step(0, false, 0, 0).is_good() && step(1, true, 2, 2).is_good());
        assert!(!step(0, true, 0, 0).is_good(), "the client's proxy did not renew");
        assert!(!step(1, true, 1, 0).is_good() && !step(0, false, 3, 2).is_good(), "a request failed");
    }
}
