//! An object before and after a change.

use std::sync::Arc;

/// An object before and after a change.
#[derive(Clone, Debug)]
pub enum Diff<T> {
    Added(Arc<T>),
    Modified { old: Arc<T>, new: Arc<T> },
    Deleted(Arc<T>),
}

// === impl Diff ===

impl<T> Diff<T> {
    pub fn of(old: Option<Arc<T>>, new: Arc<T>) -> Self {
        match old {
            Some(old) => Self::Modified { old, new },
            None => Self::Added(new),
        }
    }

    pub fn old(&self) -> Option<&Arc<T>> {
        match self {
            Self::Modified { old, .. } | Self::Deleted(old) => Some(old),
            Self::Added(_) => None,
        }
    }

    pub fn current(&self) -> Option<&Arc<T>> {
        match self {
            Self::Modified { new, .. } | Self::Added(new) => Some(new),
            Self::Deleted(_) => None,
        }
    }

    /// The latest version of the object: the new one, or the one that was deleted.
    pub fn latest(&self) -> &Arc<T> {
        match self {
            Self::Added(object) | Self::Modified { new: object, .. } | Self::Deleted(object) => object,
        }
    }

    /// The old object, then the new one.
    pub fn both(&self) -> impl Iterator<Item = &Arc<T>> {
        self.old().into_iter().chain(self.current())
    }
}
