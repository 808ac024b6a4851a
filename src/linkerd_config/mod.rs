//! The LinkerdConfig controller: the mesh's proxy configuration, as one resource declares it.
//!
//! ```text
//! cluster ──WorkQueue──▶ Controller ──▶ reconcile: State ─▶ plan (pure) ─▶ apply ──▶ API server
//!                                                   └─▶ status, report (pure) ──▶ status, Events      (while leading)
//!                       injector: who uses it? ─Answers─┘
//! ```
//!
//! In: LinkerdConfigs, the ConfigMap that they configure, the trust anchors, what injectors answer. Out: writes of `data.values`,
//! ControllerRevisions of what the installer wrote, statuses, Events. Always holds: what the resource does not name stays the
//! installer's; what is broken is not made worse, and what injectors refuse does not stay; a base is kept before it is written
//! over; nothing is written when nothing changed. Only [`values`] reads and writes YAML and knows the types of Linkerd's document;
//! [`overlay`] maps the fields of the resource to paths in it, and [`drift`] reads `cliVersion`.

pub mod active;
mod apply;
pub mod base;
mod care;
mod deletion;
pub mod drift;
mod exports;
mod injector;
mod observer;
pub mod overlay;
pub mod plan;
mod record;
mod report;
pub mod rollout;
pub mod status;
pub mod values;

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;
use prometheus::{IntCounterVec, Opts};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

pub(crate) use self::care::baseline;
use self::{
    apply::Writer,
    care::Care,
    exports::Statuses,
    injector::{Expected, Injectors, Wanted},
    plan::{Plan, Verdict},
    record::Records,
    report::{Happened, notices},
    rollout::{
        Rollouts,
        target::{RolloutContext, RolloutTarget},
    },
    status::{Facts, failed, of_loser, of_stranger, of_winner},
};
pub use self::{observer::LinkerdConfigObserver, rollout::RolloutObserver};
use crate::{
    api::{
        self, INJECTORS_CONFIG_MAP, NamespacedName,
        linkerd_config::{LinkerdConfigStatus, Mode, TargetStatus},
    },
    cluster::kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    controller::{self, ControllerDeps, LeaderGate, Reconciler},
    events::Events,
    lease::Fence,
    retry::backoff,
    tasks::Tasks,
    write::WriteError,
};

/// Who holds it writes configuration.
pub const LEASE: &str = "linkerd-operator";
/// The name of the queue in metrics.
pub const QUEUE: &str = "linkerdconfig_controller_workqueue";

const CONCURRENCY: u16 = 4;
const BACKOFF_BASE: Duration = Duration::from_millis(200);
const BACKOFF_CAP: Duration = Duration::from_secs(60);
/// So often in a row what was to be written over was another by then, before it is told.
const STALE: u32 = 5;
const STALE_PAUSE: Duration = Duration::from_millis(100);
/// Who edits by hand, for metrics.
const KNOWN_MANAGERS: [&str; 5] = ["kubectl", "kubectl-edit", "kubectl-patch", "kubectl-client-side-apply", "helm"];
/// How often each resource is looked at though nothing happened.
const FULL_PASS: Duration = Duration::from_secs(600);

/// Where things are.
#[derive(Clone, Debug)]
pub struct Namespaces {
    pub control_plane: Arc<str>,
    /// Nothing is ever restarted there.
    pub operator: Arc<str>,
}

struct Context {
    gate: LeaderGate,
    writer: Writer,
    injectors: Injectors,
    rollouts: Rollouts,
    events: Events,
    namespaces: Namespaces,
    records: Records,
    drifts: IntCounterVec,
}

/// Starts the controller. It ends after the write under way when `stop` is cancelled.
///
/// # Errors
/// When the metrics are registered already.
pub fn spawn(
    deps: &ControllerDeps,
    observer: &LinkerdConfigObserver,
    rollout_observer: Arc<RolloutObserver>,
    namespaces: Namespaces,
    stop: CancellationToken,
    tasks: &mut Tasks,
) -> prometheus::Result<()> {
    let drifts = IntCounterVec::new(
        Opts::new(
            "linkerd_operator_linkerdconfig_drift_total",
            "Changes of Linkerd's configuration by others than its installer, and what was done about them",
        ),
        &["manager", "action"],
    )?;
    deps.registry.register(Box::new(drifts.clone()))?;
    deps.registry.register(Box::new(Statuses::new(&deps.cluster)?))?;
    let fence = Fence::new(deps.leadership.clone(), stop.clone());
    let context = Arc::new(Context {
        gate: LeaderGate::new(deps, observer::KINDS, &observer.queue),
        writer: Writer::new(&deps.client, &namespaces.control_plane, fence.clone(), &deps.registry)?,
        injectors: Injectors::spawn(deps, &observer.queue, fence.clone(), stop.clone(), tasks)?,
        rollouts: Rollouts::spawn(deps, &observer.queue, rollout_observer, fence, stop.clone(), tasks)?,
        events: deps.events.clone(),
        namespaces,
        records: Records::default(),
        drifts,
    });
    tasks.spawn("linkerd-config-controller", controller::run(context, observer.configs.store(), CONCURRENCY, stop));
    Ok(())
}

// === impl Context ===

impl Reconciler for Context {
    type Object = api::LinkerdConfig;
    type Error = WriteError;

    fn gate(&self) -> &LeaderGate {
        &self.gate
    }

    fn begin(&self) {
        self.records.clear();
    }

    async fn reconcile(&self, key: &NamespacedName) -> Result<Action, WriteError> {
        match self.look_after(&key.name).await {
            // The successor looks at everything; so do we when we lead again.
            Err(WriteError::NotLeading) => Ok(Action::await_change()),
            result => result,
        }
    }

    fn failed(&self, key: &NamespacedName, error: &WriteError) -> Duration {
        let name = &key.name;
        let failures = self.records.failed(name);
        if failures == 0 {
            warn!(linkerd_config = %name, %error, "the configuration could not be looked after, trying on");
        } else {
            debug!(linkerd_config = %name, %error, failures, "the configuration could not be looked after, trying on");
        }
        backoff(failures, BACKOFF_BASE, BACKOFF_CAP).max(error.retry_after()).min(BACKOFF_CAP)
    }

    fn forget(&self, key: &NamespacedName) {
        let state = self.gate.cluster.read();
        let is_target = |config_map: &Arc<str>| {
            let target = NamespacedName::new(Arc::clone(&self.namespaces.control_plane), Arc::clone(config_map));
            active::of(&state.linkerd_configs, &target).is_some()
        };
        self.records.forget(&key.name, is_target);
    }
}

impl Context {
    async fn look_after(&self, name: &str) -> Result<Action, WriteError> {
        if !self.gate.may_act() {
            return Ok(Action::await_change());
        }
        let (config, winner, live, roots) = {
            let state = self.gate.cluster.read();
            let Some(config) = state.linkerd_configs.by_name(name).cloned() else { return Ok(Action::await_change()) };
            let winner = active::of(&state.linkerd_configs, &config.target).cloned();
            let live = state.config_maps.get(&config.target).cloned();
            let roots = state.config_maps.trust_roots(&config.target.namespace).cloned();
            (config, winner, live, roots)
        };
        let before = self.records.told(&config).unwrap_or_else(|| Arc::clone(&config.status));
        if config.target.namespace != self.namespaces.control_plane {
            // Another operator may look after it, and has to let it go.
            let served = before.target.as_ref().and_then(|target| target.namespace.as_deref());
            if config.deleting || before.active == Some(true) && served == Some(&*config.target.namespace) {
                return Ok(Action::await_change());
            }
            let status = of_stranger(&config, &before, &self.namespaces.control_plane, Timestamp::now());
            return self.wait_in_line(&config, &before, status).await;
        }
        if config.deleting {
            return self.release(&config, winner.is_some()).await;
        }
        if let Some(winner) = winner.filter(|winner| winner.name != config.name) {
            if config.finalized {
                self.writer.finalize(&config.name, false).await?;
            }
            let status = of_loser(&config, &before, &winner.name, Timestamp::now());
            return self.wait_in_line(&config, &before, status).await;
        }
        if let Some(live) = &live
            && let Some(wait) = self.records.own_write_unseen(&live.key.name, &live.version)
        {
            return Ok(Action::requeue(wait));
        }
        self.take_care(&config, &before, live.as_deref(), roots.as_deref()).await
    }

    /// Of the one in effect.
    async fn take_care(
        &self,
        config: &LinkerdConfig,
        before: &LinkerdConfigStatus,
        live: Option<&ConfigMap>,
        roots: Option<&ConfigMap>,
    ) -> Result<Action, WriteError> {
        let bundle = roots.and_then(|roots| roots.bundle.as_deref());
        let (target, now) = (&config.target.name, Timestamp::now());
        let truce = self.records.truce(target);
        let mut care = Care::default();
        let failure = self.care(config, before, live, bundle, truce, &mut care).await.err();
        let Care { mut plan, written, base_revision, told, baseline, takes_back } = care;
        let before = told.as_deref().unwrap_or(before);
        let failure = match failure {
            None => None,
            Some(error @ (WriteError::NotLeading | WriteError::TimedOut | WriteError::Transport(_))) => {
                return Err(error);
            }
            // What is there is not what we took it for: the watch is about to say so. If it comes to nothing, it is told.
            Some(error) if is_stale(&error) => {
                self.records.forget_base(target);
                if self.records.failed(&config.name) < STALE {
                    return Ok(Action::requeue(STALE_PAUSE));
                }
                Some(error)
            }
            Some(error) => Some(error),
        };
        if let Some(drift) = &mut plan.drift {
            drift.reverted = written;
        }
        let explained = failure.as_ref().map(|error| (reason_of(error), error.to_string()));
        let enforce = config.spec.mode == Mode::Enforce;
        let bundle_hash = bundle.map(sha256);
        let barrier = match plan.marker.as_ref().filter(|_| failure.is_none()) {
            Some(marker) => {
                let expected = Expected { marker: marker.clone(), trust_roots: bundle_hash.clone() };
                let good = before.revisions.as_ref().and_then(|revisions| revisions.last_known_good_hash.as_ref());
                // What others made of it is theirs.
                let is_proven = matches!(plan.verdict, Verdict::Restored | Verdict::Drifted) || good == Some(marker);
                let wanted = Wanted { config, before, live, expected, written, is_proven, now };
                Some(self.injectors.barrier(&self.gate.cluster, wanted))
            }
            None => {
                self.injectors.rest(&config.name);
                None
            }
        };
        let base_revision = base_revision.filter(|_| enforce);
        let mut after = of_winner(Facts {
            config,
            before,
            plan: &plan,
            takes_back: takes_back && failure.is_none(),
            baseline: baseline.filter(|_| enforce),
            failure: explained,
            target: target_of(config, live),
            base_revision,
            barrier: barrier.as_ref(),
            bundle,
            now,
        });
        if **target == *INJECTORS_CONFIG_MAP {
            let context = RolloutContext {
                term: self.gate.term(),
                operator_namespace: Arc::clone(&self.namespaces.operator),
                trust_roots_written: roots.and_then(|roots| roots.bundle_written),
            };
            let rollout_target = RolloutTarget::of(config, &after, &context);
            let progress = self.rollouts.progress(&rollout_target);
            rollout::status::set_rollout_status(
                &mut after,
                before,
                &rollout_target,
                progress.as_deref(),
                base_revision,
                now,
            );
            self.rollouts.set_target(rollout_target);
        }
        self.restart_injector(config, before, &after).await?;
        for notice in notices(&Happened { config, live, before, after: &after, plan: Some(&plan), written }) {
            self.events.publish(notice);
        }
        self.count(before, &after, &plan);
        let is_refused = takes_back || barrier.as_ref().is_some_and(|barrier| barrier.is_refused);
        let is_new = failed(config, before) != failed(config, &after);
        self.tell(config, before, after).await?;
        if let Some(error) = failure {
            return Err(error);
        }
        self.records.settled(&config.name);
        if is_refused && is_new {
            // The status says so by now, whatever becomes of this process: the document is taken back.
            return Ok(Action::requeue(Duration::ZERO));
        }
        let truce = truce.filter(|_| plan.verdict == Verdict::RepeatedDrift);
        let again = truce.or_else(|| barrier?.again);
        Ok(Action::requeue(again.unwrap_or_else(|| backoff(0, FULL_PASS, FULL_PASS))))
    }

    /// One that is not in effect is told so, and writes nothing.
    async fn wait_in_line(
        &self,
        config: &LinkerdConfig,
        before: &LinkerdConfigStatus,
        after: LinkerdConfigStatus,
    ) -> Result<Action, WriteError> {
        let happened = Happened { config, live: None, before, after: &after, plan: None, written: false };
        for notice in notices(&happened) {
            self.events.publish(notice);
        }
        self.tell(config, before, after).await?;
        self.records.settled(&config.name);
        Ok(Action::await_change())
    }

    async fn tell(
        &self,
        config: &LinkerdConfig,
        before: &LinkerdConfigStatus,
        after: LinkerdConfigStatus,
    ) -> Result<(), WriteError> {
        if after == *before {
            return Ok(());
        }
        let known = self.records.version(config);
        if let Some(version) = self.writer.tell(&config.name, &config.uid, &known, &after).await? {
            self.records.tell(&config.name, &config.uid, version, Arc::new(after));
        }
        Ok(())
    }

    fn count(&self, before: &LinkerdConfigStatus, after: &LinkerdConfigStatus, plan: &Plan) {
        let Some(drift) = &plan.drift else { return };
        let counted = |status: &LinkerdConfigStatus| status.drift.as_ref().and_then(|drift| drift.count);
        if counted(before) == counted(after) {
            return;
        }
        // Anybody can be called anything.
        let manager = KNOWN_MANAGERS.into_iter().find(|known| *known == drift.manager).unwrap_or("other");
        let action = if drift.reverted { "reverted" } else { "reported" };
        self.drifts.with_label_values(&[manager, action]).inc();
    }
}

/// Whether what was to be replaced is another by now.
fn is_stale(error: &WriteError) -> bool {
    matches!(error.label(), "conflict" | "already_exists" | "not_found")
}

/// Why the ConfigMap is not as declared, as conditions call it.
fn reason_of(error: &WriteError) -> &'static str {
    match error.label() {
        "forbidden" => "WriteForbidden",
        "conflict" | "already_exists" => "WriteConflict",
        _ => "WriteFailed",
    }
}

fn target_of(config: &LinkerdConfig, live: Option<&ConfigMap>) -> TargetStatus {
    TargetStatus {
        namespace: Some(config.target.namespace.to_string()),
        name: Some(config.target.name.to_string()),
        uid: live.map(|live| live.uid.to_string()),
    }
}

/// As Linkerd annotates Pods with it: of the exact bytes.
pub(crate) fn sha256(bytes: impl AsRef<[u8]>) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
