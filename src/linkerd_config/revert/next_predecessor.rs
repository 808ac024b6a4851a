//! Chooses the predecessor of the document in effect. Pure.
//!
//! In: the previous status, a plan. Out: the revision of the predecessor, for the next status. Always holds: only a
//! document that was in force is a predecessor.

use super::predecessor::{INSTALLER, is_restored, previous};
use crate::{
    api::{
        LinkerdConfigStatus,
        linkerd_config::{ConditionReason, ConditionType},
    },
    linkerd_config::{plan::ConfigPlan, verdict::PlanVerdict},
};

/// Returns the revision of the predecessor in the next status. `written` is the revision in the annotation of the
/// ConfigMap before this reconcile: the ConfigMap has the declared document of that revision, also after a rollback.
/// `trust_roots` is the hash of the present bundle.
///
/// The predecessor is always the last document that was in force, even if workloads failed with it: going back further
/// would take back declared values that did not fail. A document that the injectors have not accepted was not in force.
pub(in crate::linkerd_config) fn next_previous(
    before: &LinkerdConfigStatus,
    plan: &ConfigPlan,
    written: Option<i64>,
    trust_roots: Option<&str>,
) -> Option<i64> {
    let known = previous(before);
    let Some(hash) = plan.injection_hash.as_ref().filter(|_| plan.verdict != PlanVerdict::Restored) else {
        return known;
    };
    let has_same_roots = before.trust_roots_sha256.is_none() || before.trust_roots_sha256.as_deref() == trust_roots;
    match &before.injection_hash {
        // After new trust anchors, a failure no longer counts against a document that was accepted.
        Some(was) if was == hash => known.filter(|_| has_same_roots || !is_accepted(before, was)),
        Some(was) if known.is_some() && (is_restored(before) || !is_accepted(before, was)) => known,
        // Without our annotation, the ConfigMap is from a new installation.
        Some(_) if plan.write.is_some() => written.or(known).or(before.revisions.as_ref()?.base),
        // A former leader wrote the document.
        Some(_) => before.revisions.as_ref()?.base,
        // This resource becomes active. The document before it may be that of another resource.
        None => plan.write.as_ref().map(|_| written.unwrap_or(INSTALLER)),
    }
}

/// Whether the injectors have accepted the document with this hash, are not probed, or were late.
fn is_accepted(before: &LinkerdConfigStatus, hash: &String) -> bool {
    let good = before.revisions.as_ref().and_then(|revisions| revisions.last_known_good_hash.as_ref());
    let is_open = matches!(
        before.reason(ConditionType::InjectorSynced),
        Some(
            ConditionReason::Propagating
                | ConditionReason::ProbeFailed
                | ConditionReason::NoReadyReplicas
                | ConditionReason::Denied
        )
    );
    good == Some(hash) || !is_open
}
