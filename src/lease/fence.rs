//! A fence between a controller and the API server, which sends writes only while this process leads.
//!
//! In: requests. Out: their responses, or a [`WriteError`]. Always holds: leadership is checked immediately before each
//! request; the request ends before the Lease can expire; no request starts while the process is stopping.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Leadership;
use crate::write::WriteError;

/// Timeout of one request; well below the duration of a Lease.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Fence {
    leadership: Leadership,
    stop: CancellationToken,
}

// === impl Fence ===

impl Fence {
    /// Creates a fence that sends no request once `stop` is cancelled.
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
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(WriteError::TimedOut),
        }
    }
}
