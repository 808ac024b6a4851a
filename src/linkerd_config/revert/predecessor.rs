//! The predecessor of the document in effect: the document that a rollback restores. Pure.
//!
//! In: the revision in the status, the saved revisions. Out: the document to write. Always holds: a rollback takes back
//! only declared values. The installer's values and the trust anchors stay those of the present document; the
//! installer's document is restored only if it was in force directly before the document in effect.

use k8s_openapi::api::apps::v1::ControllerRevision;

use crate::{
    api::{
        LinkerdConfigStatus,
        linkerd_config::{ConditionReason, ConditionType},
    },
    linkerd_config::{documents::base::Base, revert::redeclare::redeclare, verdict::list_problems},
    values::{Document, InjectionHashes, Problem},
};

/// The revision that stands for the installer's document in the status.
pub(super) const INSTALLER: i64 = 0;

/// The document before the one in effect.
#[derive(Clone, Debug)]
pub enum Predecessor {
    /// The installer's document was in force before the document in effect.
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
    /// When the predecessor is lost.
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
    /// When the predecessor is lost, the same as `current`, failed itself, or has problems that the installer's
    /// document does not have.
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
                "revision {revision}, which has the document from before it, was deleted or cannot be read: change the declared values"
            ),
        }
    }
}

/// Returns the revision of the predecessor in a status.
pub(super) fn previous(status: &LinkerdConfigStatus) -> Option<i64> {
    let revisions = status.revisions.as_ref()?;
    // Versions before the field `previous` existed restored one of these revisions. Without this fallback, the operator
    // would write the failed document again after an upgrade.
    let restored = || revisions.last_rolled_out.or(revisions.last_known_good).unwrap_or(INSTALLER);
    revisions.previous.or_else(|| is_restored(status).then(restored))
}

/// Whether the ConfigMap has a fallback document.
pub(super) fn is_restored(status: &LinkerdConfigStatus) -> bool {
    status.reason(ConditionType::ConfigMapSynced) == Some(ConditionReason::Restored)
}

#[cfg(test)]
#[path = "predecessor_tests.rs"]
mod tests;
