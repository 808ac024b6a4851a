//! Why a write to the API server failed, for logs, conditions, metrics and retries.

use std::time::Duration;

use strum::{IntoStaticStr, VariantNames};

/// Why a write was not sent, failed, or may have failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("this process does not lead (any more)")]
    NotLeading,
    #[error("the API server did not answer in time")]
    TimedOut,
    #[error("{}", .0.message)]
    Refused(Box<kube::core::Status>),
    #[error("{}", crate::client::describe(.0))]
    Transport(#[source] kube::Error),
}

/// How a write that was sent ended, as a metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
enum WriteResult {
    Ok,
    TimedOut,
    Conflict,
    AlreadyExists,
    NotFound,
    Forbidden,
    Invalid,
    Unavailable,
    Refused,
    Transport,
}

// === impl WriteError ===

impl WriteError {
    /// All results of a write that was sent, as labels of a metric.
    pub const RESULTS: &[&str] = WriteResult::VARIANTS;

    /// Returns the result of a write, as a metric's label; `None` for one that was not sent.
    pub fn result<T>(result: &Result<T, Self>) -> Option<&'static str> {
        let result = match result {
            Ok(_) => Some(WriteResult::Ok),
            Err(error) => error.category(),
        };
        result.map(Into::into)
    }

    /// Returns the category, as a metric's label.
    pub fn label(&self) -> &'static str {
        self.category().map_or("not_leading", Into::into)
    }

    fn category(&self) -> Option<WriteResult> {
        Some(match self {
            Self::NotLeading => return None,
            Self::TimedOut => WriteResult::TimedOut,
            Self::Transport(_) => WriteResult::Transport,
            Self::Refused(status) if status.is_already_exists() => WriteResult::AlreadyExists,
            Self::Refused(status) if status.is_conflict() => WriteResult::Conflict,
            Self::Refused(status) if status.is_not_found() => WriteResult::NotFound,
            Self::Refused(status) if status.is_forbidden() => WriteResult::Forbidden,
            Self::Refused(status) if status.is_invalid() => WriteResult::Invalid,
            Self::Refused(status) if status.code == 429 || status.code >= 500 => WriteResult::Unavailable,
            Self::Refused(_) => WriteResult::Refused,
        })
    }

    /// Whether the object is not the one that the write was based on.
    pub fn is_conflict(&self) -> bool {
        self.category() == Some(WriteResult::Conflict)
    }

    /// Returns the delay that the API server asked for.
    pub fn retry_after(&self) -> Duration {
        let Self::Refused(status) = self else { return Duration::ZERO };
        let seconds = status.details.as_ref().map(|details| details.retry_after_seconds);
        Duration::from_secs(seconds.unwrap_or_default().into())
    }
}
