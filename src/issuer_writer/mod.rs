//! Writes the issuer of the mesh, in a process that has no other job: it may read the keys of issuers.
//!
//! ```text
//! LinkerdTrusts, bundle ──WorkQueue──▶ Controller ──▶ reconcile: Secrets ─▶ IssuerStep (pure) ─▶ Secret, condition, Events
//! ```
//!
//! In: LinkerdTrusts with `spec.issuer.manage: Secret`, with what their statuses say about proxies; the bundle; the Secrets
//! of the present, the next and the previous issuer. Out: the Secret of the present issuer, the one of the previous issuer,
//! and the condition IssuerSynced. Always holds: no workload is read; a key is read for each decision and not kept; the
//! previous issuer is saved before it is replaced. [`crate::trust`] decides everything.

mod condition;
mod observer;
mod secrets;

use std::{sync::Arc, time::Duration};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use prometheus::{IntCounterVec, register_int_counter_vec_with_registry};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use self::observer::IssuerObserver;
use self::{
    condition::{issuer_condition, issuer_event, written_event},
    secrets::{IssuerSecrets, MeshSecrets},
};
use crate::{
    api::{
        self, CONFIG_GROUP, INJECTORS_CONFIG_MAP, ISSUER, NamespacedName,
        linkerd_trust::{IssuerOrigin, TrustReason},
    },
    cluster::kinds::linkerd_trust::LinkerdTrust,
    controller::{self, ControllerDeps, LeaderGate, NextReconcile, Reconciler},
    events::Events,
    lease::Fence,
    retry::Overwrites,
    tasks::Tasks,
    trust::{
        declared::declared_roots,
        issuer_change::{IssuerBasis, IssuerStep, NewIssuer},
        seen::{DeclaredRoots, LeafSettings},
    },
    values::Document,
    write::WriteError,
};

/// The Lease of the process that may write the issuer.
pub const LEASE: &str = "linkerd-operator-issuer";
/// The writer's name in `managedFields`.
const FIELD_MANAGER: &str = "linkerd-operator-issuer";
const CONCURRENCY: u16 = 1;
const BACKOFF_BASE: Duration = Duration::from_millis(500);
/// The interval at which the Secrets are read: a watch of three names would keep keys in memory.
const READ_INTERVAL: Duration = Duration::from_secs(10);
/// The time until a write that failed is sent again, at the next read. Without this pause, the update of its own condition
/// would send it at once.
const FAILED_RETRY: Duration = Duration::from_secs(15);

struct IssuerReconciler {
    gate: LeaderGate,
    trusts: Api<api::LinkerdTrust>,
    secrets: IssuerSecrets,
    fence: Fence,
    events: Events,
    control_plane: Arc<str>,
    memory: Mutex<WrittenMemory>,
}

/// What this process has written.
#[derive(Default)]
struct WrittenMemory {
    /// The issuer, without the certificates after it.
    issuer: String,
    overwrites: Overwrites,
    /// The last write, if it failed: the issuer, why, and when.
    failed: Option<(String, String, Instant)>,
}

/// A LinkerdTrust that manages the issuer, and what it is about.
struct ManagedIssuer {
    trust: Arc<LinkerdTrust>,
    declared: DeclaredRoots,
    settings: LeafSettings,
    bundle: Arc<str>,
    bundle_written: Option<Timestamp>,
}

/// Starts the controller. When `stop` is cancelled, it finishes the current write and ends.
///
/// # Errors
/// When the metrics are already registered.
pub fn spawn(
    deps: &ControllerDeps,
    observer: &IssuerObserver,
    control_plane: &str,
    stop: CancellationToken,
    tasks: &mut Tasks,
) -> prometheus::Result<()> {
    let writes: IntCounterVec = register_int_counter_vec_with_registry!(
        "linkerd_operator_trust_issuer_writes_total",
        "Writes of the present and the previous issuer that were sent to the API server, by result",
        &["result"],
        deps.registry
    )?;
    for result in WriteError::RESULTS {
        writes.with_label_values(&[result]);
    }
    let fence = Fence::new(deps.leadership.clone(), stop.clone());
    let reconciler = Arc::new(IssuerReconciler {
        gate: LeaderGate::new(deps, observer::KINDS, &observer.queue),
        trusts: Api::all(Client::clone(&deps.client)),
        secrets: IssuerSecrets::new(&deps.client, control_plane, fence.clone(), writes),
        fence,
        events: deps.events.clone(),
        control_plane: control_plane.into(),
        memory: Mutex::default(),
    });
    tasks.spawn("issuer-writer", controller::run(reconciler, observer.trusts.store(), CONCURRENCY, stop));
    Ok(())
}

// === impl ManagedIssuer ===

impl PartialEq for ManagedIssuer {
    /// Whether the same objects decide.
    fn eq(&self, other: &Self) -> bool {
        self.trust == other.trust && self.bundle == other.bundle && self.bundle_written == other.bundle_written
    }
}

// === impl WrittenMemory ===

impl WrittenMemory {
    /// Whether this issuer was overwritten so often that the next write waits.
    fn must_pause(&mut self, new: &NewIssuer) -> bool {
        self.issuer == new.own() && self.overwrites.backoff().is_some()
    }

    fn note(&mut self, new: &NewIssuer) {
        if self.issuer == new.own() {
            self.overwrites.note();
        } else {
            *self = Self { issuer: new.own().to_owned(), ..Self::default() };
        }
        self.failed = None;
    }

    /// Returns why this issuer could not be written, until it is tried again.
    fn failed_lately(&self, new: &NewIssuer) -> Option<IssuerStep> {
        let (_, why, at) = self.failed.as_ref().filter(|(issuer, ..)| issuer == new.own())?;
        (at.elapsed() < FAILED_RETRY).then(|| IssuerStep::Held(TrustReason::WriteFailed, why.clone()))
    }
}

fn contested() -> IssuerStep {
    let message = format!(
        "another writer keeps replacing the issuer in the Secret {ISSUER}, and the operator waits longer each time before it \
         writes it again: change the configuration of that writer"
    );
    IssuerStep::Held(TrustReason::Contested, message)
}

// === impl IssuerReconciler ===

impl IssuerReconciler {
    async fn reconcile_resource(&self, name: &str) -> Result<NextReconcile, WriteError> {
        if !self.gate.may_act() || self.managed(name).is_none() {
            return Ok(NextReconcile::OnChange);
        }
        let secrets = self.secrets.read().await;
        // What was declared meanwhile decides.
        let Some(managed) = self.managed(name) else { return Ok(NextReconcile::OnChange) };
        let trust = &managed.trust;
        let step = match secrets {
            Ok(secrets) => self.next(&managed, secrets).await?,
            Err(why) => Some(IssuerStep::Held(TrustReason::WriteFailed, why)),
        };
        // Something has changed, which has queued the resource.
        let Some(step) = step else { return Ok(NextReconcile::After(Duration::ZERO)) };
        let now = Timestamp::now();
        if let Some(condition) = issuer_condition(trust, &step, now) {
            self.report(trust, &condition).await?;
            if let Some(event) = issuer_event(trust, &condition) {
                self.events.publish(event);
            }
        }
        Ok(NextReconcile::After(READ_INTERVAL))
    }

    /// Returns the LinkerdTrust with this name, if it is in effect for this control plane and manages the issuer.
    fn managed(&self, name: &str) -> Option<ManagedIssuer> {
        let (trust, values, bundle) = {
            let state = self.gate.cluster.read();
            let trust = state.linkerd_trusts.in_effect(&self.control_plane).filter(|trust| *trust.name == *name)?;
            let values = state.config_maps.find(&self.control_plane, INJECTORS_CONFIG_MAP);
            let values = values.and_then(|map| map.values.clone());
            (Arc::clone(trust), values, state.config_maps.trust_roots(&self.control_plane).cloned())
        };
        if trust.spec.issuer.manage != IssuerOrigin::Secret {
            return None;
        }
        // The condition Accepted has what is wrong with it.
        let declared = declared_roots(&trust.name, &trust.spec).ok()??;
        let settings = LeafSettings::of(values.and_then(|values| Document::parse(&values).ok()).as_ref());
        let bundle_written = bundle.as_ref().and_then(|map| map.bundle_written);
        let bundle = bundle.and_then(|map| map.bundle.clone()).unwrap_or_default();
        Some(ManagedIssuer { trust, declared, settings, bundle, bundle_written })
    }

    /// Does the next step, and returns what is true after it; `None` if something has changed meanwhile.
    async fn next(&self, managed: &ManagedIssuer, secrets: MeshSecrets) -> Result<Option<IssuerStep>, WriteError> {
        let trust = &managed.trust;
        let basis = IssuerBasis {
            namespace: &self.control_plane,
            settings: &managed.settings,
            declared: &managed.declared,
            bundle: &managed.bundle,
            bundle_written: managed.bundle_written,
            status: &trust.status,
            generation: trust.generation,
            now: Timestamp::now(),
        };
        let new = match basis.step(secrets.issuers()) {
            IssuerStep::Write(new) => new,
            IssuerStep::Synced(message) => {
                if basis.is_at_rest() {
                    self.secrets.delete_previous(&secrets, managed.settings.longest_lifetime, basis.now).await?;
                }
                let is_contested = self.memory.lock().overwrites.contested_for().is_some();
                return Ok(Some(if is_contested { contested() } else { IssuerStep::Synced(message) }));
            }
            held @ IssuerStep::Held(..) => return Ok(Some(held)),
        };
        if self.memory.lock().must_pause(&new) {
            return Ok(Some(contested()));
        }
        let failed = self.memory.lock().failed_lately(&new);
        if failed.is_some() {
            return Ok(failed);
        }
        self.write(managed, &new, &secrets).await
    }

    async fn write(
        &self,
        managed: &ManagedIssuer,
        new: &NewIssuer,
        secrets: &MeshSecrets,
    ) -> Result<Option<IssuerStep>, WriteError> {
        let trust = &managed.trust;
        let saved = match new.saves_present {
            true => self.secrets.save_present(secrets).await,
            false => Ok(()),
        };
        // A write may take long, and the declaration may have been taken back.
        if saved.is_ok() && self.managed(&trust.name).as_ref() != Some(managed) {
            return Ok(None);
        }
        let written = match saved {
            Ok(()) => self.secrets.write(new, secrets).await,
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => {}
            Err(WriteError::Refused(status)) if status.is_conflict() => return Err(WriteError::Refused(status)),
            Err(error @ WriteError::NotLeading) => return Err(error),
            Err(error) => {
                warn!(%error, "could not write the issuer");
                let message = format!("the issuer {} could not be written: {error}", new.name);
                self.memory.lock().failed = Some((new.own().to_owned(), message.clone(), Instant::now()));
                return Ok(Some(IssuerStep::Held(TrustReason::WriteFailed, message)));
            }
        }
        self.memory.lock().note(new);
        let secret = new.place.secret();
        info!(issuer = new.name, from = secret, "changed the issuer of the mesh");
        self.events.publish(written_event(trust, new));
        Ok(Some(IssuerStep::Synced(format!("the issuer is that of Secret {secret}: {}", new.name))))
    }

    /// Writes the condition. The LinkerdTrust controller keeps it.
    async fn report(&self, trust: &LinkerdTrust, condition: &Condition) -> Result<(), WriteError> {
        let patch = json!({
            "apiVersion": format!("{CONFIG_GROUP}/v1alpha1"), "kind": "LinkerdTrust",
            "metadata": {"name": &*trust.name, "uid": &*trust.uid},
            "status": {"conditions": [condition]},
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        match self.fence.send(self.trusts.patch_status(&trust.name, &params, &Patch::Apply(&patch))).await {
            Err(WriteError::Refused(status)) if status.is_not_found() => Ok(()),
            result => result.map(drop),
        }
    }
}

impl Reconciler for IssuerReconciler {
    type Object = api::LinkerdTrust;
    type Error = WriteError;
    const BACKOFF: Duration = BACKOFF_BASE;
    const FAILED: &'static str = "could not reconcile the issuer of the mesh, retrying";

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::issuer_change::IssuerPlace;

    #[tokio::test(start_paused = true)]
    async fn a_write_that_failed_is_sent_again_after_a_while_and_that_of_another_issuer_at_once() {
        let new = |certificates: &str| NewIssuer {
            place: IssuerPlace::Next,
            certificates: certificates.to_owned(),
            root: String::new(),
            name: String::new(),
            saves_present: false,
        };
        let failed = Some(("a".to_owned(), "forbidden".to_owned(), Instant::now()));
        let memory = WrittenMemory { failed, ..WrittenMemory::default() };
        let held = IssuerStep::Held(TrustReason::WriteFailed, "forbidden".to_owned());
        assert_eq!((memory.failed_lately(&new("a")), memory.failed_lately(&new("b"))), (Some(held), None));
        tokio::time::advance(FAILED_RETRY).await;
        assert_eq!(memory.failed_lately(&new("a")), None);
    }
}
