//! The predecessor of the document in effect: the document that a rollback restores. Pure.
//!
//! In: the revision in the status, the saved revisions. Out: the document to write. Always holds: a rollback takes back
//! only declared values. The installer's values and the trust anchors stay those of the present document; after a
//! declared document, the installer's document is never restored.

use k8s_openapi::api::apps::v1::ControllerRevision;

use crate::{
    api::{
        LinkerdConfigStatus,
        linkerd_config::{ConditionReason, ConditionType},
    },
    linkerd_config::{
        base::Base,
        conditions::list_problems,
        plan::{ConfigPlan, PlanVerdict},
        revert::redeclare::redeclare,
    },
    values::{Document, InjectionHashes, Problem},
};

/// The revision that stands for the installer's document in the status.
const INSTALLER: i64 = 0;

#[derive(Clone, Debug)]
pub enum Predecessor {
    /// The installer's document: the document in effect is the first declared one.
    Installer,
    Declared(Box<Base>),
    /// Its revision was deleted, or cannot be read.
    Lost(i64),
}

/// Why a predecessor is not restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoFallback {
    /// It declares the same values, so there is nothing to take back.
    Same,
    /// It failed as well.
    Failed,
    /// Over the present base, Linkerd cannot use it.
    Unusable(Vec<Problem>),
    /// Its revision was deleted, or cannot be read.
    Lost(i64),
}

// === impl Predecessor ===

impl Predecessor {
    /// Returns the predecessor in the status; `None` if a rollback has nothing to restore.
    pub fn find(status: &LinkerdConfigStatus, revisions: &[ControllerRevision]) -> Option<Self> {
        Some(match previous(status)? {
            INSTALLER => Self::Installer,
            revision => {
                Base::at(revisions, revision).map_or(Self::Lost(revision), |base| Self::Declared(Box::new(base)))
            }
        })
    }

    /// Returns its revision; 0 is the installer's document.
    pub fn revision(&self) -> i64 {
        match self {
            Self::Installer => INSTALLER,
            Self::Declared(base) => base.revision,
            Self::Lost(revision) => *revision,
        }
    }

    /// Returns the predecessor's declared values over a base, with the trust anchors of `current`.
    ///
    /// # Errors
    /// When they are lost.
    pub fn over(&self, base: &Document, current: &Document) -> Result<Document, NoFallback> {
        match self {
            Self::Installer => Ok(redeclare(base, base, base, current, false)),
            Self::Declared(known) => {
                Ok(redeclare(base, &known.document, &known.effective, current, known.replaces_environment))
            }
            Self::Lost(revision) => Err(NoFallback::Lost(*revision)),
        }
    }

    /// Returns the document to restore instead of `current`.
    ///
    /// # Errors
    /// When the predecessor is lost, the same as `current`, failed itself, or has problems that the installer's document
    /// does not have.
    pub fn fallback(
        &self,
        base: &Document,
        current: &Document,
        failed: &[String],
        hashes: &InjectionHashes,
    ) -> Result<Document, NoFallback> {
        let document = self.over(base, current)?;
        if document == *current {
            return Err(NoFallback::Same);
        }
        if failed.contains(&hashes.of(&document)) {
            return Err(NoFallback::Failed);
        }
        let added = document.problems_added_to(base);
        if added.is_empty() { Ok(document) } else { Err(NoFallback::Unusable(added)) }
    }
}

// === impl NoFallback ===

impl NoFallback {
    /// Returns the reason for people.
    pub fn why(&self) -> String {
        match self {
            Self::Same => "the declared values did not change: only those of the installer did".to_owned(),
            Self::Failed => "the document from before it failed as well".to_owned(),
            Self::Unusable(problems) => {
                format!("Linkerd cannot use the document from before it: {}", list_problems(problems))
            }
            Self::Lost(revision) => format!(
                "revision {revision}, which has the document from before it, was deleted or cannot be read: change the resource"
            ),
        }
    }
}

/// Returns the revision of the predecessor in a status.
fn previous(status: &LinkerdConfigStatus) -> Option<i64> {
    let revisions = status.revisions.as_ref()?;
    // Versions before the field `previous` existed restored one of these revisions. Without this fallback, the operator
    // would write the failed document again after an upgrade.
    let restored = || revisions.last_rolled_out.or(revisions.last_known_good).unwrap_or(INSTALLER);
    revisions.previous.or_else(|| is_restored(status).then(restored))
}

/// Whether the ConfigMap has a fallback document.
fn is_restored(status: &LinkerdConfigStatus) -> bool {
    status.reason(ConditionType::ConfigMapSynced) == Some(ConditionReason::Restored)
}

/// Returns the revision of the predecessor in the next status. `written` is the revision in the annotation of the
/// ConfigMap before this reconcile: the one whose declared document it has, also after a rollback. `trust_roots` is the
/// hash of the present bundle.
///
/// The predecessor is always the last document that was in force, even if workloads failed with it: to go back further
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
        // Restarts for new trust anchors are no restarts for the document.
        Some(was) if was == hash => known.filter(|_| has_same_roots || !is_accepted(before, was)),
        Some(was) if known.is_some() && (is_restored(before) || !is_accepted(before, was)) => known,
        // A ConfigMap without our annotation is that of a new installation.
        Some(_) if plan.write.is_some() => written.or(known).or(before.revisions.as_ref()?.base),
        // A former leader wrote it.
        Some(_) => before.revisions.as_ref()?.base,
        // This resource becomes active. The document before it may be that of another resource.
        None => plan.write.as_ref().map(|_| written.unwrap_or(INSTALLER)),
    }
}

/// Whether the injectors have accepted the document with this hash, or cannot be asked, or were late.
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

#[cfg(test)]
#[path = "predecessor_tests.rs"]
mod tests;
