//! The condition IssuerSynced of a LinkerdTrust, and the Events about it. Pure.
//!
//! In: a step, the last condition. Out: the next one. Always holds: a condition that is as before is not
//! returned.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::{Timestamp, Unit},
};

use crate::{
    api::{
        CONFIG_GROUP, ISSUER, NamespacedName,
        linkerd_trust::{TrustCondition, TrustReason},
    },
    cluster::kinds::linkerd_trust::LinkerdTrust,
    events::{Notice, Reason, object_reference},
    text::truncated,
    trust::issuer_change::{IssuerStep, NewIssuer},
};

/// The maximum length of a message, in bytes.
const LONGEST: usize = 2048;

/// Returns the condition after this step; `None` if it is as before.
pub(super) fn issuer_condition(trust: &LinkerdTrust, step: &IssuerStep, now: Timestamp) -> Option<Condition> {
    let (status, reason, message) = match step {
        IssuerStep::Synced(message) => ("True", TrustReason::Synced, message.clone()),
        IssuerStep::Write(new) => ("False", TrustReason::IssuerHeld, format!("the issuer {} is written", new.name)),
        IssuerStep::Held(reason, message) => ("False", *reason, message.clone()),
    };
    let before = trust.status.condition(TrustCondition::IssuerSynced);
    let since = before.filter(|before| before.status == status).map(|before| before.last_transition_time.clone());
    let after = Condition {
        type_: TrustCondition::IssuerSynced.as_str().to_owned(),
        status: status.to_owned(),
        reason: reason.as_str().to_owned(),
        message: truncated(message, LONGEST),
        observed_generation: Some(trust.generation),
        last_transition_time: since.unwrap_or_else(|| Time(now.round(Unit::Second).unwrap_or(now))),
    };
    (before != Some(&after)).then_some(after)
}

/// Returns the Event about a condition for which people must do something; `None` if it is known.
pub(super) fn issuer_event(trust: &LinkerdTrust, after: &Condition) -> Option<Notice> {
    let before = trust.status.condition(TrustCondition::IssuerSynced);
    let is_problem = TrustReason::UNWRITTEN.iter().any(|reason| after.reason == reason.as_str());
    let is_known = before.is_some_and(|before| before.reason == after.reason && before.message == after.message);
    (is_problem && !is_known).then(|| notice(trust, Reason::IssuerNotWritten, after.message.clone()))
}

/// Returns the Event about an issuer that was written.
pub(super) fn written_event(trust: &LinkerdTrust, new: &NewIssuer) -> Notice {
    let note = format!("Wrote the issuer {} of Secret {} into Secret {ISSUER}", new.name, new.place.secret());
    notice(trust, Reason::IssuerWritten, note)
}

fn notice(trust: &LinkerdTrust, reason: Reason, note: String) -> Notice {
    let key = NamespacedName::cluster_scoped(&trust.name);
    let regarding = object_reference(&format!("{CONFIG_GROUP}/v1alpha1"), "LinkerdTrust", &key, &trust.uid);
    Notice { reason, regarding, related: None, note }
}
