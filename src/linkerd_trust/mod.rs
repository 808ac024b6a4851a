//! The LinkerdTrust controller: how far the mesh is on the way to the declared trust anchors.
//!
//! ```text
//! cluster ──WorkQueue──▶ Controller ──▶ reconcile: State ─▶ SeenTrust ─▶ TrustReport (pure) ─▶ status, Events
//!                            prober: the certificates that proxies present ──┘
//! ```
//!
//! In: LinkerdTrusts, the bundle of the mesh, the trust anchors in the environment of each proxy, the certificates that
//! proxies present in a TLS handshake. Out: statuses, Events, metrics, and the bundle with the declared trust anchors. Always
//! holds: no Secret is read; without a LinkerdTrust nothing is read and no proxy is asked; nothing is reported before each
//! running proxy was asked once; without a change no status is written. [`crate::trust`] decides everything.

mod bundle_writer;
mod collector;
mod events;
mod external_proxies;
mod identity_service;
mod leaves;
mod observer;
mod prober;
mod retirement;
mod seen;
mod status;
mod switch;
mod unseen_proxies;

use std::{path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::{Timestamp, Unit},
};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

pub use self::observer::LinkerdTrustObserver;
use self::{
    bundle_writer::{BundleWriter, BundleWritten, HeldWrite},
    collector::LinkerdTrustCollector,
    events::{trust_events, written_event},
    identity_service::IdentityService,
    leaves::{LeafBasis, NextQuestion},
    prober::{LeafProber, SharedLeaves},
    retirement::{Declaration, Retirement, RetirementBasis, RetirementStep},
    seen::{SeenParts, TrustSettings},
    status::{LaterWrite, TrustFacts, trust_status},
    switch::SwitchGate,
};
use crate::{
    api::{
        self, FIELD_MANAGER, LinkerdTrustSpec, LinkerdTrustStatus, NamespacedName,
        linkerd_trust::{TrustCondition, TrustMode, TrustPhase, TrustReason},
    },
    cluster::kinds::{config_map::ConfigMap, linkerd_trust::LinkerdTrust},
    controller::{self, ControllerDeps, LeaderGate, NextReconcile, Reconciler},
    events::Events,
    lease::Fence,
    retry::backoff,
    tasks::Tasks,
    text::{hex, sha256},
    trust::{SeenTrust, TrustReport, declared::declared_roots, problems::TrustVerdict, seen::DeclaredRoots},
    write::WriteError,
};

const CONCURRENCY: u16 = 1;
const BACKOFF_BASE: Duration = Duration::from_millis(500);
/// The interval at which the status is computed without a change, because certificates end.
const RESYNC_INTERVAL: Duration = Duration::from_secs(600);

struct LinkerdTrustReconciler {
    gate: LeaderGate,
    trusts: Api<api::LinkerdTrust>,
    bundle: BundleWriter,
    retirement: Retirement,
    switch: SwitchGate,
    fence: Fence,
    events: Events,
    control_plane: Arc<str>,
    settings: Arc<TrustSettings>,
    leaves: Arc<SharedLeaves>,
}

/// The result of an attempt to remove the roots that are not declared.
enum Retired {
    Written(BundleWritten),
    Later(LaterWrite),
}

/// Starts the controller. `identity_token` is the file of the token for the identity service. When `stop` is cancelled, it
/// finishes the current write and ends.
///
/// # Errors
/// When the metrics are already registered.
pub fn spawn(
    deps: &ControllerDeps,
    observer: &LinkerdTrustObserver,
    control_plane: &str,
    identity_token: PathBuf,
    stop: CancellationToken,
    tasks: &mut Tasks,
) -> prometheus::Result<()> {
    deps.registry.register(Box::new(LinkerdTrustCollector::new(&deps.cluster)?))?;
    let control_plane: Arc<str> = control_plane.into();
    let (settings, leaves) = (Arc::<TrustSettings>::default(), Arc::<SharedLeaves>::default());
    let prober = LeafProber::new(deps, observer, &control_plane, &settings, &leaves)?;
    tasks.spawn("leaf-prober", prober.run(stop.clone()));
    let fence = Fence::new(deps.leadership.clone(), stop.clone());
    let identity = IdentityService::new(&deps.cluster, &control_plane, identity_token, &deps.registry)?;
    let reconciler = Arc::new(LinkerdTrustReconciler {
        gate: LeaderGate::new(deps, observer::KINDS, &observer.queue),
        trusts: Api::all(Client::clone(&deps.client)),
        bundle: BundleWriter::new(&deps.client, &control_plane, fence.clone(), &deps.registry)?,
        retirement: Retirement::new(&deps.client, identity, &leaves),
        switch: SwitchGate::new(&deps.client),
        fence,
        events: deps.events.clone(),
        control_plane,
        settings,
        leaves,
    });
    tasks.spawn("linkerd-trust-controller", controller::run(reconciler, observer.trusts.store(), CONCURRENCY, stop));
    Ok(())
}

// === impl LinkerdTrustReconciler ===

impl LinkerdTrustReconciler {
    async fn reconcile_resource(&self, name: &str) -> Result<NextReconcile, WriteError> {
        if !self.gate.may_act() {
            return Ok(NextReconcile::OnChange);
        }
        let (trust, in_effect, bundle) = {
            let state = self.gate.cluster.read();
            let Some(trust) = state.linkerd_trusts.find("", name) else { return Ok(NextReconcile::OnChange) };
            let bundle = state.config_maps.trust_roots(&self.control_plane).cloned();
            (Arc::clone(trust), state.linkerd_trusts.in_effect(&self.control_plane).cloned(), bundle)
        };
        // The operator of another control plane reports about it.
        if trust.deleting || trust.spec.control_plane_namespace != *self.control_plane {
            return Ok(NextReconcile::OnChange);
        }
        let now = Timestamp::now();
        // The status has no fractions of a second.
        let now = now.round(Unit::Second).unwrap_or(now);
        let facts = match (in_effect.filter(|other| other.name != trust.name), declared_roots(&trust.name, &trust.spec))
        {
            (Some(other), _) => TrustFacts::Conflicted(other.name.to_string()),
            (None, Err(why)) => TrustFacts::Invalid(why),
            (None, Ok(desired)) => {
                // First of all, because new Pods may need what is missing.
                let held = match self.write_at_once(&trust, desired.as_ref(), bundle.as_deref()).await? {
                    Ok(None) => None,
                    Err(held) => Some(held),
                    Ok(Some(written)) => return Ok(self.written(&trust, written)),
                };
                match (self.report(&trust, desired, now).await, held) {
                    (Some((report, seen, asked)), held) => {
                        let is_held = held.is_some();
                        // The writer still needs the answer after a failed write: without it, both would undo each other's writes.
                        let waiting = [TrustReason::IssuerHeld, TrustReason::WriteFailed, TrustReason::Contested];
                        let is_awaited =
                            waiting.into_iter().any(|reason| trust.status.has(TrustCondition::IssuerSynced, reason));
                        let switch = self.switch.readiness(&trust, &report, &seen, is_awaited).await;
                        match self.retire(&trust, &report, seen, bundle.as_deref().filter(|_| !is_held)).await? {
                            Retired::Written(written) => return Ok(self.written(&trust, written)),
                            Retired::Later(mut later) => {
                                later.held = held.or(later.held);
                                later.switch = switch;
                                later.due = later.due.into_iter().chain(asked).min();
                                TrustFacts::Observed { report: Box::new(report), later }
                            }
                        }
                    }
                    (None, held) => TrustFacts::Asking { held },
                }
            }
        };
        let status = trust_status(&trust, &facts, now);
        if status != *trust.status {
            self.update_status(&trust, &status).await?;
        }
        // After a conflict, the status is computed again.
        for event in trust_events(&trust, &status) {
            self.events.publish(event);
        }
        let resync = backoff(0, RESYNC_INTERVAL, RESYNC_INTERVAL);
        Ok(NextReconcile::After(facts.due().map_or(resync, |due| due.min(resync))))
    }

    /// Adds declared trust anchors to the bundle, if the resource says so; and while connections are cut, removes distrusted
    /// ones, once the next issuer is written.
    async fn write_at_once(
        &self,
        trust: &LinkerdTrust,
        desired: Option<&DeclaredRoots>,
        bundle: Option<&ConfigMap>,
    ) -> Result<Result<Option<BundleWritten>, HeldWrite>, WriteError> {
        let (TrustMode::Enforce, Some(desired)) = (trust.spec.mode, desired) else { return Ok(Ok(None)) };
        let added = self.bundle.add_missing(desired, bundle).await?;
        let is_cut = desired.distrusted.is_cut && trust.status.is_issuer_written(trust.generation);
        match (added, bundle) {
            (Ok(Some(written)), _) => Ok(Ok(Some(written))),
            // What holds an addition does not hold this.
            (added, Some(bundle)) if is_cut => match self.cut(trust, desired, bundle).await? {
                Ok(None) => Ok(added),
                cut => Ok(cut),
            },
            (added, _) => Ok(added),
        }
    }

    /// Removes the distrusted roots, once the identity service signs with another issuer.
    async fn cut(
        &self,
        trust: &LinkerdTrust,
        desired: &DeclaredRoots,
        map: &ConfigMap,
    ) -> Result<Result<Option<BundleWritten>, HeldWrite>, WriteError> {
        let change = match self.bundle.cut(desired, map) {
            Ok(Some(change)) => change,
            other => return Ok(other.map(|_| None)),
        };
        let text = TrustSettings::text(&self.gate.cluster.read(), &self.control_plane);
        let (bundle, settings) = (map.bundle.as_deref().unwrap_or_default(), self.settings.of(text));
        let basis = RetirementBasis { declaration: Declaration::of(trust), bundle: sha256(bundle) };
        match self.retirement.check_cut(basis, bundle, &change.text, &settings).await {
            Err(held) => Ok(Err(held)),
            Ok(()) if self.is_current(trust) => Ok(self.bundle.write(change, map).await?.map(Some)),
            Ok(()) => Ok(Ok(None)),
        }
    }

    /// The changed bundle queues the resource again.
    fn written(&self, trust: &LinkerdTrust, written: BundleWritten) -> NextReconcile {
        self.events.publish(written_event(trust, written));
        NextReconcile::After(RESYNC_INTERVAL)
    }

    /// Removes the roots that are not declared, once nothing needs them. Without a ConfigMap it only asks the identity
    /// service.
    async fn retire(
        &self,
        trust: &LinkerdTrust,
        report: &TrustReport,
        seen: SeenTrust,
        map: Option<&ConfigMap>,
    ) -> Result<Retired, WriteError> {
        let declaration = Declaration::of(trust);
        let is_awaited = seen.desired.is_some()
            && !report.progress.is_bundle_synced
            && matches!(report.progress.phase, TrustPhase::Renewing | TrustPhase::Retiring);
        self.retirement.note(is_awaited, report.progress.newest_old, &seen.settings);
        let change = match (&seen.desired, map) {
            (Some(declared), Some(map)) if is_retiring(trust, report) => self.bundle.removal(declared, map),
            _ => Ok(None),
        };
        let (held, due) = match (change, map) {
            (Ok(Some(change)), Some(map)) => {
                let bundle = sha256(map.bundle.as_deref().unwrap_or_default());
                let basis = RetirementBasis { declaration: declaration.clone(), bundle };
                let removed = change.roots.iter().copied().map(hex).collect();
                match self.retirement.next(basis, seen, removed, &change.text).await {
                    RetirementStep::Now if self.is_current(trust) => match self.bundle.write(change, map).await? {
                        Ok(written) => return Ok(Retired::Written(written)),
                        Err(held) => (Some(held), None),
                    },
                    RetirementStep::Now => (None, None),
                    RetirementStep::After(time) => (None, Some(time)),
                    RetirementStep::Held(held) => (Some(held), None),
                }
            }
            (Ok(None), _) if is_issuer_written(&seen, report) => {
                match self.retirement.check_issuer(&declaration, seen).await {
                    Ok(due) => (None, Some(due)),
                    Err(held) => (Some(held), None),
                }
            }
            (change, _) => {
                if is_awaited {
                    self.retirement.watch(&declaration, seen).await;
                }
                (change.err(), None)
            }
        };
        let signing_since = self.retirement.signing_since(&declaration).filter(|_| is_awaited);
        Ok(Retired::Later(LaterWrite { signing_since, held, due, switch: None }))
    }

    /// Whether the declaration is still the same: it may have changed while the identity service was asked.
    fn is_current(&self, trust: &LinkerdTrust) -> bool {
        let state = self.gate.cluster.read();
        let current = state.linkerd_trusts.find("", &trust.name);
        current.is_some_and(|it| it.uid == trust.uid && it.generation == trust.generation && !it.deleting)
    }

    /// Returns the report, what it is made of, and when proxies are asked again because of it; `None` if they must be asked
    /// before.
    async fn report(
        &self,
        trust: &LinkerdTrust,
        desired: Option<DeclaredRoots>,
        now: Timestamp,
    ) -> Option<(TrustReport, SeenTrust, Option<Duration>)> {
        let leaves = self.leaves.known(now)?;
        let parts = SeenParts::read(&self.gate.cluster, &self.control_plane, &self.settings).await;
        let (bundle, trust_domain) = (parts.bundle_digest(), parts.trust_domain());
        let signing_since = self.retirement.signing_since(&Declaration::of(trust));
        let generation = Some(trust.generation);
        let issuer_condition = trust.status.issuer_condition(generation).cloned();
        let said = (issuer_condition, trust.status.is_writer_silent(generation));
        let seen = parts.seen(desired, leaves, signing_since, said, now);
        // Tenants can make it verify many signatures.
        let (report, seen) = match tokio::task::spawn_blocking(move || (TrustReport::new(&seen), seen)).await {
            Ok(made) => made,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The process stops.
            Err(_) => return None,
        };
        let issuer = report.issuer.sha256.clone();
        let (uid, generation) = (Arc::clone(&trust.uid), trust.generation);
        let basis = LeafBasis { uid, generation, trust_domain, bundle, issuer };
        match self.leaves.ask_again(basis, now) {
            NextQuestion::Now => None,
            NextQuestion::After(left) => Some((report, seen, Some(left))),
            NextQuestion::OnChange => Some((report, seen, None)),
        }
    }

    /// Writes the status at the version that it was computed from. After a conflict it is computed again.
    async fn update_status(&self, trust: &LinkerdTrust, status: &LinkerdTrustStatus) -> Result<(), WriteError> {
        // The API server ignores the spec in a write of the status.
        let mut object = api::LinkerdTrust::new(&trust.name, LinkerdTrustSpec::default());
        object.metadata.uid = Some(trust.uid.to_string());
        object.metadata.resource_version = Some(trust.version.to_string());
        object.status = Some(status.clone());
        let params = kube::api::PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        match self.fence.send(self.trusts.replace_status(&trust.name, &params, &object)).await {
            Err(WriteError::Refused(status)) if status.is_not_found() => Ok(()),
            result => result.map(drop),
        }
    }
}

/// Whether the roots that are not declared should leave the bundle.
fn is_retiring(trust: &LinkerdTrust, report: &TrustReport) -> bool {
    trust.spec.mode == TrustMode::Enforce
        && report.progress.phase == TrustPhase::Retiring
        && report.verdict < TrustVerdict::Broken
}

/// Whether the next issuer is written, and no proxy has shown a certificate of it yet.
fn is_issuer_written(seen: &SeenTrust, report: &TrustReport) -> bool {
    let is_written = |condition: &Condition| condition.status == "True";
    report.progress.phase == TrustPhase::AwaitingIssuer
        && !report.progress.is_bundle_synced
        && seen.desired.as_ref().is_some_and(|declared| declared.manages_issuer)
        && seen.issuer_condition.as_ref().is_some_and(is_written)
}

impl Reconciler for LinkerdTrustReconciler {
    type Object = api::LinkerdTrust;
    type Error = WriteError;
    const BACKOFF: Duration = BACKOFF_BASE;
    const FAILED: &'static str = "could not reconcile the LinkerdTrust, retrying";

    fn gate(&self) -> &LeaderGate {
        &self.gate
    }

    fn begin(&self) {
        self.gate.queue.forget_all_failures();
    }

    async fn reconcile(&self, key: &NamespacedName) -> Result<NextReconcile, WriteError> {
        match self.reconcile_resource(&key.name).await {
            // A replica reconciles every resource when it becomes the leader.
            Err(WriteError::NotLeading) => Ok(NextReconcile::OnChange),
            Ok(next) => {
                self.gate.queue.forget_failures(key);
                Ok(next)
            }
            Err(error) => Err(error),
        }
    }

    fn retry_after(&self, error: &WriteError) -> Duration {
        error.retry_after()
    }

    fn forget(&self, _: &NamespacedName) {}
}
