//! The limits of the webhook server.

use std::time::Duration;

use crate::memory::MemoryBudget;

/// Tests lower the limits.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// The maximum number of connections. An API server opens one for each review under way.
    pub(super) connections: usize,
    /// Above it, there are few connections.
    pub(super) memory: MemoryBudget,
    /// The maximum length of a body. Linkerd's webhooks have the same limit.
    pub(super) body: usize,
    /// The maximum memory of all bodies and answers together.
    pub(super) bodies: usize,
    /// The timeout for a TLS handshake. In a burst, a slow API server completes handshakes late, and waits for a review for
    /// at most 30 s.
    pub(super) handshake_time: Duration,
    /// The timeout for the head of a request, from its first byte.
    pub(super) header_time: Duration,
    /// The timeout for a body, with the wait for memory. An API server waits for 10 s by default.
    pub(super) body_time: Duration,
    /// The timeout for the handler.
    pub(super) handler: Duration,
    /// The timeout for a client to take its answer.
    pub(super) answer_time: Duration,
    /// The time after which a connection without a request is closed. An API server closes its own connections after 90
    /// s. If the server closed one first, a request that is being sent would be lost.
    pub(super) idle_time: Duration,
    /// The time for which new connections are accepted after the request to stop.
    pub(super) shutdown_delay: Duration,
    /// The time for requests under way, and for one more request of each open connection, when the server stops.
    pub(super) drain_time: Duration,
}

// === impl Limits ===

impl Limits {
    pub(super) const DEFAULT: Self = Self {
        connections: 1000,
        memory: MemoryBudget::UNLIMITED,
        body: 10 << 20,
        bodies: 40 << 20,
        handshake_time: Duration::from_secs(30),
        header_time: Duration::from_secs(10),
        body_time: Duration::from_secs(10),
        handler: Duration::from_secs(10),
        answer_time: Duration::from_secs(10),
        idle_time: Duration::from_secs(180),
        shutdown_delay: Duration::ZERO,
        drain_time: Duration::from_secs(4),
    };
}
