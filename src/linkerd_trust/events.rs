//! The Events of a LinkerdTrust: one for each transition. Pure.

use super::bundle_writer::BundleWritten;
use crate::{
    api::{
        CONFIG_GROUP, LinkerdTrustStatus, NamespacedName,
        linkerd_trust::{TrustCondition, TrustPhase, TrustReason},
    },
    cluster::kinds::linkerd_trust::LinkerdTrust,
    events::{Notice, Reason, object_reference},
    trust::bundle_change::BundleChangeKind,
};

/// Returns the Events about the change from the last status to this one.
pub(super) fn trust_events(trust: &LinkerdTrust, after: &LinkerdTrustStatus) -> Vec<Notice> {
    let before = &*trust.status;
    let mut found = Vec::new();
    let message = |condition| after.condition(condition).map(|it| it.message.clone()).unwrap_or_default();
    let became = |condition, reason| after.has(condition, reason) && !before.has(condition, reason);
    if became(TrustCondition::Accepted, TrustReason::Conflicted) {
        found.push((Reason::Conflicted, message(TrustCondition::Accepted)));
    }
    if became(TrustCondition::Accepted, TrustReason::Invalid) {
        found.push((Reason::ValidationFailed, message(TrustCondition::Accepted)));
    }
    if let Some(phase) = after.phase.filter(|phase| before.phase != Some(*phase)) {
        found.push((Reason::TrustPhaseChanged, format!("{}: {}", phase.as_str(), after.next_step)));
    }
    let is_broken = |status: &LinkerdTrustStatus| status.has(TrustCondition::Ready, TrustReason::Broken);
    if is_broken(after) && !is_broken(before) {
        found.push((Reason::TrustBroken, message(TrustCondition::Ready)));
    }
    // A resource whose state is not known is not repaired.
    if is_broken(before) && !is_broken(after) && after.phase.is_some_and(|phase| phase != TrustPhase::Unknown) {
        found.push((Reason::TrustRepaired, "Proxies accept the certificates of each other again".to_owned()));
    }
    if became(TrustCondition::Expiring, TrustReason::CertificateEnds) {
        found.push((Reason::TrustExpiresSoon, message(TrustCondition::Expiring)));
    }
    if became(TrustCondition::LeavesRenewed, TrustReason::IssuerNotTaken) {
        found.push((Reason::IssuerNotTaken, message(TrustCondition::LeavesRenewed)));
    }
    if after.held().is_some() && after.held() != before.held() {
        let has = |reason| after.has(TrustCondition::BundleSynced, reason);
        let reason = match after.phase {
            _ if has(TrustReason::RemovalHeld) => Reason::TrustAnchorNotRemoved,
            Some(TrustPhase::Retiring) if !has(TrustReason::Contested) => Reason::TrustAnchorNotRemoved,
            _ => Reason::TrustAnchorNotAdded,
        };
        found.push((reason, message(TrustCondition::BundleSynced)));
    }
    found.into_iter().map(|(reason, note)| notice(trust, reason, note)).collect()
}

/// Returns the Event about trust anchors that the operator has added or removed.
pub(super) fn written_event(trust: &LinkerdTrust, written: BundleWritten) -> Notice {
    let reason = match written.kind {
        BundleChangeKind::Addition => Reason::TrustAnchorAdded,
        BundleChangeKind::Removal => Reason::TrustAnchorRemoved,
    };
    notice(trust, reason, written.note)
}

fn notice(trust: &LinkerdTrust, reason: Reason, note: String) -> Notice {
    let key = NamespacedName::cluster_scoped(&trust.name);
    let regarding = object_reference(&format!("{CONFIG_GROUP}/v1alpha1"), "LinkerdTrust", &key, &trust.uid);
    Notice { reason, regarding, related: None, note }
}
