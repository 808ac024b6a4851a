//! Whether this process may write, checked right before each write.
//!
//! In: the [`LeaderState`] that the election publishes. Out: deadlines of writes, and the beginning and end of terms. Always holds:
//! a writer that was refused sees the next term as a new one.

#[cfg(test)]
use std::time::Duration;

use tokio::{sync::watch, time::Instant};

/// Whether this process leads. Cheap to clone and to check.
#[derive(Clone)]
pub struct Leadership(pub(super) watch::Receiver<LeaderState>);

#[derive(Clone, Debug, Default)]
pub(super) struct LeaderState {
    pub(super) term: Option<LeaderTerm>,
    /// Grows with each term, so that a term that was lost and won again unseen is noticed. A term that was renewed only after
    /// writes had stopped counts as lost: no other replica has led, but the changes of that time were not written.
    pub(super) terms: u64,
    pub(super) problem: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LeaderTerm {
    /// No write begins after this.
    pub(super) writes_until: Instant,
    /// Every write has ended by this.
    pub(super) deadline: Instant,
}

// === impl Leadership ===

impl Leadership {
    /// Returns the deadline of a write that begins now; `None` if it must not begin.
    pub fn write_deadline(&self) -> Option<Instant> {
        let state = self.0.borrow();
        let term = state.term?;
        // While the state is borrowed, so that a writer that is refused here sees the next term as a new one.
        (Instant::now() < term.writes_until).then_some(term.deadline)
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
            // The elector has ended, so no further write begins; deadlines end the others.
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when a term newer than `seen` has begun, to its number.
    pub async fn next_term(&mut self, seen: u64) -> u64 {
        let term = self.0.wait_for(|state| state.term.is_some() && state.terms > seen).await.map(|state| state.terms);
        match term {
            Ok(term) => term,
            // The elector ended: the process is about to.
            Err(_) => std::future::pending().await,
        }
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
        let deadline = Instant::now() + Duration::from_secs(3600);
        let term = Some(LeaderTerm { writes_until: deadline, deadline });
        Self(watch::channel(LeaderState { term, terms: 1, problem: None }).1)
    }

    pub(crate) fn for_test_of_a_follower() -> Self {
        Self(watch::channel(LeaderState::default()).1)
    }
}
