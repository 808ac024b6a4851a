//! Whether all proxies accept the certificates of the next issuer, so that it may be written.
//!
//! In: a mesh whose issuer is awaited, or is not the one that it should have. Out: yes, or what is still missing. Always
//! holds: without a bridge, yes means that no Pod can start any more without the next root, that the control plane has read
//! the bundle, and that each proxy outside of this cluster is accepted.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    bundle_writer::left_of,
    retirement::Declaration,
    unseen_proxies::{self, Unseen},
};
use crate::{
    api::linkerd_trust::{AcceptedStep, TrustPhase, TrustReason},
    cluster::kinds::linkerd_trust::LinkerdTrust,
    trust::{
        SeenTrust, TrustReport, accepted::RotationWait, issuer_change::acceptance::INJECTED_AFTER, words::proxies_trust,
    },
};

/// The interval at which the objects of unseen proxies are listed.
const RETRY: Duration = Duration::from_secs(60);

/// What the condition ReadyToSwitch says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SwitchReadiness {
    pub(super) is_ready: bool,
    pub(super) reason: TrustReason,
    pub(super) message: String,
    /// What people can do about it.
    pub(super) commands: Vec<String>,
    /// The time after which the resource is reconciled without a change.
    pub(super) retry: Option<Duration>,
}

/// Whether proxies that are not seen were in question.
struct OutsideAnswer {
    declaration: Declaration,
    /// The root of the next issuer.
    anchor: Option<String>,
    at: Instant,
    readiness: SwitchReadiness,
}

/// Asks whether there are proxies that are not seen, and remembers the answer for a minute.
pub(super) struct SwitchGate {
    client: Client,
    last: Mutex<Option<OutsideAnswer>>,
}

// === impl SwitchReadiness ===

impl SwitchReadiness {
    fn ready(reason: TrustReason, message: &str) -> Self {
        Self { is_ready: true, reason, message: message.to_owned(), commands: Vec::new(), retry: Some(RETRY) }
    }

    fn held(reason: TrustReason, message: String, retry: Option<Duration>) -> Self {
        Self { is_ready: false, reason, message, commands: Vec::new(), retry }
    }

    /// Returns what is known of this cluster; `None` if only proxies outside of it are in question.
    fn within_cluster(report: &TrustReport, seen: &SeenTrust) -> Option<Self> {
        if !report.progress.may_switch() {
            let untrusting = proxies_trust(report.progress.untrusting, false);
            let held = report.held_by.as_ref().map_or_else(String::new, |workloads| format!(": {workloads}"));
            let message = format!("{untrusting} the declared trust anchor of the issuer{held}");
            return Some(Self::held(TrustReason::ProxiesBehind, message, None));
        }
        if report.progress.accepts_next {
            return Some(Self::ready(
                TrustReason::OverBridge,
                "proxies that accept the present issuer accept the next one, with the declared bridges",
            ));
        }
        if let Some(restart) = seen.control_plane_restart() {
            let message = format!("the control plane read the bundle before it was changed. Restart it: {restart}");
            return Some(Self::held(TrustReason::ControlPlaneBehind, message, None));
        }
        let written = seen.bundle.as_ref().ok().and_then(|bundle| bundle.written);
        let Some(landed) = written.and_then(|written| written.checked_add(INJECTED_AFTER).ok()) else {
            let message = "the ConfigMap of the bundle does not show when it was changed".to_owned();
            return Some(Self::held(TrustReason::NotObserved, message, None));
        };
        let left = until(landed, seen.now)?;
        let message = format!("until {landed}, new Pods may still get the previous bundle");
        Some(Self::held(TrustReason::ProxiesBehind, message, Some(left)))
    }
}

/// Returns the time that is left; `None` if it is over.
fn until(time: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(time.duration_since(now)).ok().filter(|left| !left.is_zero())
}

// === impl SwitchGate ===

impl SwitchGate {
    pub(super) fn new(client: &Client) -> Self {
        Self { client: client.clone(), last: Mutex::default() }
    }

    /// Returns `None` if no issuer is awaited. `is_held`: the writer of the issuer waits for this, or could not write.
    pub(super) async fn readiness(
        &self,
        trust: &LinkerdTrust,
        report: &TrustReport,
        seen: &SeenTrust,
        is_held: bool,
    ) -> Option<SwitchReadiness> {
        let is_asked = match report.progress.phase {
            TrustPhase::Unknown | TrustPhase::Adding | TrustPhase::Spreading => false,
            TrustPhase::AwaitingIssuer => true,
            // No proxy has shown yet what the issuer is, or its declaration was taken back before.
            _ => is_held,
        };
        if seen.desired.is_none() || !is_asked {
            return None;
        }
        let within = SwitchReadiness::within_cluster(report, seen);
        if within.as_ref().is_some_and(|within| within.is_ready) {
            return within;
        }
        let outside = self.outside(trust, report, seen).await;
        Some(match within {
            None => outside,
            Some(within) if outside.is_ready => within,
            // People can do both at once.
            Some(within) => {
                let message = format!("{}. And {}", within.message, outside.message);
                let retry = within.retry.or(outside.retry);
                SwitchReadiness { message, retry, commands: outside.commands, ..within }
            }
        })
    }

    /// Whether there are proxies that are not seen, and not accepted.
    async fn outside(&self, trust: &LinkerdTrust, report: &TrustReport, seen: &SeenTrust) -> SwitchReadiness {
        let (declaration, anchor) = (Declaration::of(trust), report.next_anchor.clone());
        if let Some(last) = &*self.last.lock()
            && (&last.declaration, &last.anchor) == (&declaration, &anchor)
            && let Some(left) = left_of(RETRY, last.at)
        {
            return SwitchReadiness { retry: Some(left), ..last.readiness.clone() };
        }
        let wait = RotationWait { step: AcceptedStep::Issuer, anchors: anchor.clone().into_iter().collect() };
        let asked = unseen_proxies::check(&self.client, seen.desired.as_ref(), trust.generation, &wait, None).await;
        let found = match asked {
            Ok(()) => SwitchReadiness::ready(TrustReason::Synced, "all proxies accept certificates of the next issuer"),
            Err(Unseen { why, commands }) => {
                let remedy = "Once all of these proxies trust the next root, run the command in status.commands";
                let message = if commands.is_empty() { why } else { format!("{why}. {remedy}") };
                SwitchReadiness { commands, ..SwitchReadiness::held(TrustReason::ProxiesNotSeen, message, None) }
            }
        };
        let (at, readiness) = (Instant::now(), found.clone());
        *self.last.lock() = Some(OutsideAnswer { declaration, anchor, at, readiness });
        SwitchReadiness { retry: Some(RETRY), ..found }
    }
}
