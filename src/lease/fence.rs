//! What stands between a controller and the API server: no write by who does not lead.
//!
//! In: requests. Out: their answers, or why there is none. Always holds: leadership is checked right before each request, and
//! the request has ended before the Lease can expire; none begins once the process stops.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Leadership;

/// One request; well below the time that a Lease leaves us.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Fence {
    leadership: Leadership,
    stop: CancellationToken,
}

/// Why a write did not happen, or may not have.
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

// === impl Fence ===

impl Fence {
    /// Lets nothing through once `stop` is cancelled.
    pub fn new(leadership: Leadership, stop: CancellationToken) -> Self {
        Self { leadership, stop }
    }

    /// Sends a request if this process leads, and gives it up when it no longer does.
    pub async fn send<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, WriteError> {
        let deadline = self.leadership.write_deadline().filter(|_| !self.stop.is_cancelled());
        let deadline = deadline.ok_or(WriteError::NotLeading)?.min(Instant::now() + REQUEST_TIMEOUT);
        let response = tokio::select! {
            response = timeout_at(deadline, request) => response,
            () = self.leadership.ended() => return Err(WriteError::NotLeading),
        };
        match response {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(kube::Error::Api(status))) => Err(WriteError::Refused(status)),
            Ok(Err(error)) => Err(WriteError::Transport(error)),
            Err(_) => Err(WriteError::TimedOut),
        }
    }
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
