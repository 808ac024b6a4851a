//! The verdict of a plan about the ConfigMap, and the list of its problems as text. Pure.

use crate::{
    text::and_more,
    values::{Path, Problem},
};

/// The maximum number of paths or problems in a message or a status.
pub(super) const MAX_SHOWN: usize = 10;

/// The state of the ConfigMap once the plan is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PlanVerdict {
    Synced,
    /// The resource cannot be applied.
    Invalid(Vec<Problem>),
    /// Linkerd cannot use the document that is in the ConfigMap, or that would be written.
    ValidationFailed(Vec<Problem>),
    TargetNotFound,
    UnsupportedLayout,
    /// The installed Linkerd is too old; the text says why.
    UnsupportedVersion(String),
    Immutable,
    /// The installer's document is unknown, so the present document is not overwritten.
    InvalidBase(String),
    /// The declared document failed: the ConfigMap holds the document before it.
    Restored,
    /// The declared document is held back: the ConfigMap holds the document before it.
    Canary,
    /// Changes of other writers are kept, because drift.action is Report.
    Drifted,
    /// Changes of other writers are kept for now, because they recur after each revert.
    RepeatedDrift,
    /// The document of this installer is kept for now, because the installer keeps writing.
    InstallerReverts(String),
    /// Nothing is written, because mode is Observe; these paths would change.
    Observing(Vec<Path>),
    Suspended,
    /// The reconcile failed before a plan was made.
    #[default]
    Unknown,
}

pub(super) fn list_problems(problems: &[Problem]) -> String {
    and_more(problems.iter().take(MAX_SHOWN), problems.len(), "; ")
}
