//! Whether this process may write, checked immediately before each write.
//!
//! In: the [`LeaderState`] that the election publishes. Out: deadlines of writes, and the start and end of terms.
//! Always holds: a writer that was refused observes the next term as a new one.

#[cfg(test)]
use std::time::Duration;

use tokio::{sync::watch, time::Instant};

/// Whether this process leads. Cheap to clone and to check.
#[derive(Clone)]
pub struct Leadership(pub(super) watch::Receiver<LeaderState>);

#[derive(Clone, Debug, Default)]
pub(super) struct LeaderState {
    pub(super) term: Option<LeaderTerm>,
    /// Increases with each term, so that a reader notices a term that was lost and won again between two reads. A term
    /// that is renewed only after writes had stopped counts as lost: no other replica led, but changes in between were
    /// not written.
    pub(super) terms: u64,
    pub(super) problem: Option<String>,
    /// The holder in the Lease as last read or written; empty after a release.
    pub(super) holder: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LeaderTerm {
    /// No write starts after this time.
    pub(super) writes_until: Instant,
    /// Every write has ended by this time.
    pub(super) deadline: Instant,
}

// === impl LeaderTerm ===

impl LeaderTerm {
    /// Returns the part of this term that is within another one.
    pub(super) fn within(self, other: Self) -> Self {
        Self { writes_until: self.writes_until.min(other.writes_until), deadline: self.deadline.min(other.deadline) }
    }
}

// === impl Leadership ===

impl Leadership {
    /// Returns the term in which writes are allowed now.
    pub(super) fn current(&self) -> Option<LeaderTerm> {
        let state = self.0.borrow();
        // Compared while the state is borrowed, so that a writer that is refused here observes the next term as a new
        // one.
        state.term.filter(|term| Instant::now() < term.writes_until)
    }

    /// Waits until writes are allowed.
    pub(super) async fn held(&self) {
        let mut state = self.0.clone();
        while self.current().is_none() {
            if state.changed().await.is_err() {
                // The elector has ended, because the process is stopping.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns the deadline of a write that starts now; `None` if it must not start.
    pub fn write_deadline(&self) -> Option<Instant> {
        self.current().map(|term| term.deadline)
    }

    /// Returns the number of the term in which writes are allowed now.
    pub fn term(&self) -> Option<u64> {
        let state = self.0.borrow();
        state.term.filter(|term| Instant::now() < term.writes_until).map(|_| state.terms)
    }

    /// Resolves when this process does not lead.
    pub async fn ended(&self) {
        let ended = self.0.clone().wait_for(|state| state.term.is_none()).await.is_ok();
        if !ended {
            // The elector has ended, so no further write starts; deadlines end the writes in progress.
            std::future::pending::<()>().await;
        }
    }

    /// Waits for a term newer than `seen`, and returns its number.
    pub async fn next_term(&mut self, seen: u64) -> u64 {
        let term = self.0.wait_for(|state| state.term.is_some() && state.terms > seen).await.map(|state| state.terms);
        match term {
            Ok(term) => term,
            // The elector has ended, because the process is stopping.
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns the holder in the Lease, as this process last read or wrote it; `None` without a Lease.
    pub fn holder(&self) -> Option<String> {
        self.0.borrow().holder.clone()
    }

    /// Returns why this process cannot take part in the election, for `/ready`.
    pub fn problem(&self) -> Option<String> {
        self.0.borrow().problem.clone()
    }
}

#[cfg(test)]
impl Leadership {
    /// The leadership of a process that leads for as long as any test takes.
    pub(crate) fn for_test() -> Self {
        let deadline = Instant::now() + Duration::from_secs(365 * 24 * 3600);
        let term = Some(LeaderTerm { writes_until: deadline, deadline });
        Self(watch::channel(LeaderState { term, terms: 1, ..LeaderState::default() }).1)
    }

    pub(crate) fn for_test_of_a_follower() -> Self {
        Self(watch::channel(LeaderState::default()).1)
    }
}
