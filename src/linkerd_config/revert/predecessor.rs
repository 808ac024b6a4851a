//! The predecessor of the document in effect: the document that a rollback restores. Pure.
//!
//! In: the revision in the status, the saved revisions. Out: the document to write. Always holds: a rollback takes back
//! only declared values. The installer's values and the trust anchors stay those of the present document; after a
//! declared document, the installer's document is never restored.

use k8s_openapi::api::apps::v1::ControllerRevision;

use crate::{
    api::LinkerdConfigStatus,
    linkerd_config::{
        base::Base,
        conditions::{CONFIG_MAP_SYNCED, condition_reason},
        overlay::anchors_path,
        plan::{ConfigPlan, PlanVerdict},
        resolve_base::copy_paths,
    },
    values::{Document, InjectionHashes},
};

/// The revision that stands for the installer's document in the status.
const INSTALLER: i64 = 0;

#[derive(Clone, Debug)]
pub enum Predecessor {
    /// The installer's document: the document in effect is the first declared one.
    Installer,
    Declared(Box<Base>),
}

// === impl Predecessor ===

impl Predecessor {
    /// Returns the predecessor in the status; `None` if a rollback has nothing to restore.
    pub fn find(status: &LinkerdConfigStatus, revisions: &[ControllerRevision]) -> Option<Self> {
        match previous(status)? {
            INSTALLER => Some(Self::Installer),
            revision => Base::at(revisions, revision).map(|base| Self::Declared(Box::new(base))),
        }
    }

    /// Returns the predecessor's declared values over a base. The trust anchors are those of `current`. Returns `None`
    /// if a declared list extends one of another base.
    pub fn over(&self, base: &Document, current: &Document) -> Option<Document> {
        let mut document = base.clone();
        if let Self::Declared(known) = self {
            let declared = known.document.differences(&known.effective);
            let is_merged_list = |path| {
                known.effective.get(path).is_some_and(serde_json::Value::is_array)
                    && known.document.get(path) != base.get(path)
            };
            if declared.iter().any(is_merged_list) {
                return None;
            }
            copy_paths(&mut document, &known.effective, &declared);
        }
        copy_paths(&mut document, current, &[anchors_path()]);
        Some(document)
    }

    /// Returns the document to restore, unless it failed or has problems that the installer's does not have.
    pub fn fallback(
        &self,
        base: &Document,
        current: &Document,
        failed: &[String],
        hashes: &InjectionHashes,
    ) -> Option<Document> {
        let document = self.over(base, current)?;
        (!failed.contains(&hashes.of(&document)) && !document.adds_problems_to(base)).then_some(document)
    }
}

/// Returns the revision of the predecessor in a status.
fn previous(status: &LinkerdConfigStatus) -> Option<i64> {
    let revisions = status.revisions.as_ref()?;
    // Operators before this field restored one of these. Without it, the next one would write the failed document again.
    let restored = || revisions.last_rolled_out.or(revisions.last_known_good).unwrap_or(INSTALLER);
    revisions.previous.or_else(|| is_restored(status).then(restored))
}

/// Whether the ConfigMap has a fallback document.
fn is_restored(status: &LinkerdConfigStatus) -> bool {
    condition_reason(status, CONFIG_MAP_SYNCED) == Some("Restored")
}

/// Returns the revision of the predecessor in the next status. `written` is the revision in the annotation of the
/// ConfigMap before this reconcile; `trust_roots` is the hash of the present bundle.
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
    match &before.injection_hash {
        // Restarts for new trust anchors are no restarts for the document.
        Some(was) if was == hash => {
            known.filter(|_| before.trust_roots_sha256.is_none() || before.trust_roots_sha256.as_deref() == trust_roots)
        }
        // The last document was a fallback, or workloads failed with it. The predecessor is still the better one.
        Some(_) if known.is_some() && (is_restored(before) || has_failures(before)) => known,
        Some(_) => before.revisions.as_ref()?.base,
        // This resource becomes active. The document before it may be that of another resource.
        None => plan.write.as_ref().map(|_| written.unwrap_or(INSTALLER)),
    }
}

fn has_failures(status: &LinkerdConfigStatus) -> bool {
    let workloads = status.rollout.as_ref().and_then(|rollout| rollout.workloads);
    workloads.is_some_and(|workloads| workloads.failed > 0)
}

#[cfg(test)]
#[path = "predecessor_tests.rs"]
mod tests;
