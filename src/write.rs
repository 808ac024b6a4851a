//! Why a write to the API server failed, for logs, conditions, metrics and retries.

use std::time::Duration;

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

// === impl WriteError ===

impl WriteError {
    /// All results of a write that was sent.
    pub const RESULTS: [&str; 10] = [
        "ok",
        "timed_out",
        "conflict",
        "already_exists",
        "not_found",
        "forbidden",
        "invalid",
        "unavailable",
        "refused",
        "transport",
    ];

    /// The result of a write, as a metric's label; `None` for one that was not sent.
    pub fn result<T>(result: &Result<T, Self>) -> Option<&'static str> {
        match result {
            Ok(_) => Some("ok"),
            Err(Self::NotLeading) => None,
            Err(error) => Some(error.label()),
        }
    }

    /// The category, as a metric's label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NotLeading => "not_leading",
            Self::TimedOut => "timed_out",
            Self::Transport(_) => "transport",
            Self::Refused(status) if status.is_already_exists() => "already_exists",
            Self::Refused(status) if status.is_conflict() => "conflict",
            Self::Refused(status) if status.is_not_found() => "not_found",
            Self::Refused(status) if status.is_forbidden() => "forbidden",
            Self::Refused(status) if status.is_invalid() => "invalid",
            Self::Refused(status) if status.code == 429 || status.code >= 500 => "unavailable",
            Self::Refused(_) => "refused",
        }
    }

    /// How long the API server asked us to stay away.
    pub fn retry_after(&self) -> Duration {
        let Self::Refused(status) = self else { return Duration::ZERO };
        let seconds = status.details.as_ref().map(|details| details.retry_after_seconds);
        Duration::from_secs(seconds.unwrap_or_default().into())
    }
}
