//! Why a write to the API server failed, for logs, conditions, metrics and retries.

use std::time::Duration;

use strum::{IntoStaticStr, VariantNames};

/// Why a write was not sent, failed, or may have failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("this process is not the leader")]
    NotLeading,
    #[error("the request to the API server timed out")]
    TimedOut,
    #[error("{}", .0.message)]
    Refused(Box<kube::core::Status>),
    #[error("{}", crate::client::describe(.0))]
    Transport(#[source] kube::Error),
}

/// The metric label of a write that was not sent.
const NOT_LEADING: &str = "not_leading";

/// The result of a write that was sent, as a metric label.
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

impl From<kube::Error> for WriteError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status),
            error => Self::Transport(error),
        }
    }
}

impl WriteError {
    /// The metric labels of all results of a write that was sent.
    pub const RESULTS: &[&str] = WriteResult::VARIANTS;

    /// Returns the metric label of a write's result; `None` for a write that was not sent.
    pub fn result<T>(result: &Result<T, Self>) -> Option<&'static str> {
        let result = match result {
            Ok(_) => Some(WriteResult::Ok),
            Err(error) => error.category(),
        };
        result.map(Into::into)
    }

    /// The metric labels of all errors. A counter exposes each of them from the start: Prometheus computes no increase
    /// for a series that begins with 1.
    pub fn labels() -> impl Iterator<Item = &'static str> {
        let ok: &str = WriteResult::Ok.into();
        Self::RESULTS.iter().copied().filter(move |result| *result != ok).chain([NOT_LEADING])
    }

    /// Returns the metric label of this error.
    pub fn label(&self) -> &'static str {
        self.category().map_or(NOT_LEADING, Into::into)
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

    /// Whether the object changed after the version that the write was based on.
    pub fn is_conflict(&self) -> bool {
        self.category() == Some(WriteResult::Conflict)
    }

    /// Returns the delay that the API server requested; zero without one.
    pub fn retry_after(&self) -> Duration {
        let Self::Refused(status) = self else { return Duration::ZERO };
        let seconds = status.details.as_ref().map(|details| details.retry_after_seconds);
        Duration::from_secs(seconds.unwrap_or_default().into())
    }
}
