//! The fence between a controller and the API server: no write without leadership.
//!
//! In: requests. Out: their responses, or why there is none. Always holds: leadership is checked right before each request, and the
//! request ends before the Lease can expire; no request begins once the process stops.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Leadership;
use crate::write::WriteError;

/// For one request; well below the duration of a Lease.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Fence {
    leadership: Leadership,
    stop: CancellationToken,
}

// === impl Fence ===

impl Fence {
    /// Sends nothing once `stop` is cancelled.
    pub fn new(leadership: Leadership, stop: CancellationToken) -> Self {
        Self { leadership, stop }
    }

    /// Sends a request if this process leads, and cancels it when leadership ends.
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
