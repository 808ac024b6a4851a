//! Whether this process may write, asked right before each write.
//!
//! In: the [`State`] that the election publishes. Out: permits, and the beginning and end of terms. Always holds: who is told
//! that it may not write learns of the next term as a new one.

#[cfg(test)]
use std::time::Duration;

use tokio::{sync::watch, time::Instant};

/// Whether this process leads. Cheap to clone and to ask.
#[derive(Clone)]
pub struct Leadership(pub(super) watch::Receiver<State>);

#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) term: Option<Term>,
    /// Grows with each term, so that one that was lost and won again unseen is noticed. A term that was renewed only after
    /// writes had stopped counts as lost: nobody else has led, but what changed meanwhile was nobody's to write.
    pub(super) terms: u64,
    pub(super) problem: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    /// No write begins after this.
    pub(super) writes_until: Instant,
    /// Every write has ended by this.
    pub(super) deadline: Instant,
}

// === impl Leadership ===

impl Leadership {
    /// When a write that begins now has to have ended. `None`: do not write.
    pub fn write_deadline(&self) -> Option<Instant> {
        let state = self.0.borrow();
        let term = state.term?;
        // With the state still borrowed: who is told no here is sure to see the next term as a new one.
        (Instant::now() < term.writes_until).then_some(term.deadline)
    }

    /// The number of the term in which writes are allowed now.
    pub fn term(&self) -> Option<u64> {
        let state = self.0.borrow();
        state.term.filter(|term| Instant::now() < term.writes_until).map(|_| state.terms)
    }

    /// Resolves when this process does not lead.
    pub async fn ended(&self) {
        let ended = self.0.clone().wait_for(|state| state.term.is_none()).await.is_ok();
        if !ended {
            // The elector is gone, and so is whoever permits a write; deadlines end the rest.
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when a term has begun that is newer than `seen`, to its number.
    pub async fn next_term(&mut self, seen: u64) -> u64 {
        let term = self.0.wait_for(|state| state.term.is_some() && state.terms > seen).await.map(|state| state.terms);
        match term {
            Ok(term) => term,
            // The elector ended: the process is about to.
            Err(_) => std::future::pending().await,
        }
    }

    /// Why nobody can lead here, for the reader of `/ready`.
    pub fn problem(&self) -> Option<String> {
        self.0.borrow().problem.clone()
    }
}

#[cfg(test)]
impl Leadership {
    /// Of a process that leads, for as long as any test takes.
    pub(crate) fn for_test() -> Self {
        let deadline = Instant::now() + Duration::from_secs(3600);
        let term = Some(Term { writes_until: deadline, deadline });
        Self(watch::channel(State { term, terms: 1, problem: None }).1)
    }

    pub(crate) fn for_test_of_a_follower() -> Self {
        Self(watch::channel(State::default()).1)
    }
}
