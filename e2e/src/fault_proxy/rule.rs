//! Rules that select requests and the faults for them.
//!
//! * In: the requests in order. Out: the action for each, or none.
//! * Always: the first rule that matches and is not used up applies.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use tokio::sync::watch;

use crate::{mesh::SOON, wait::eventually};

/// The treatment of a matching request.
#[derive(Clone, Debug)]
pub enum Action {
    /// The proxy answers with a Kubernetes `Status`; `retry_after` is in seconds.
    Status { code: u16, retry_after: Option<u32> },
    /// The request is forwarded after this time.
    Delay(Duration),
    /// The request is never answered.
    Hang,
    /// The request is not forwarded, and the connection is closed.
    Cut,
    /// The request is forwarded after [`Fault::release`], if the client is still connected.
    Hold,
    /// The request is forwarded after [`Fault::release`], even if the client has disconnected: it arrives late.
    Detain,
    /// The request is forwarded and processed; then the connection is closed without an answer.
    After,
}

/// The outcome of a write in flight whose client is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEnd {
    /// The write never reaches the API server.
    Lost,
    /// The API server executes the write, but the client receives no response.
    Unknown,
    /// The API server executes the write after the next client has reached the end state.
    Late,
}

/// A selection of requests, by method, path and number.
#[derive(Clone, Debug)]
pub struct Rule {
    method: Option<String>,
    path: String,
    skip: usize,
    times: Option<usize>,
}

impl WriteEnd {
    /// What holds the write until the client is killed.
    pub fn action(self) -> Action {
        if self == Self::Lost { Action::Hold } else { Action::Detain }
    }
}

impl Rule {
    /// Matches every request.
    pub fn any() -> Self {
        Self::path("")
    }

    /// Matches requests whose path and query contain this text. Watches have `watch=true` in the query.
    pub fn path(contains: &str) -> Self {
        Self { method: None, path: contains.to_owned(), skip: 0, times: None }
    }

    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }

    /// Skips the first `count` matches.
    pub fn skip(mut self, count: usize) -> Self {
        self.skip = count;
        self
    }

    /// Limits the rule to this number of matches, after the skipped ones; the default is unlimited.
    pub fn times(mut self, count: usize) -> Self {
        self.times = Some(count);
        self
    }

    fn matches(&self, method: &str, path: &str) -> bool {
        self.method.as_ref().is_none_or(|wanted| wanted == method) && path.contains(&self.path)
    }
}

/// An active rule. Dropping this changes nothing: a fault lasts until it is removed or used up.
#[derive(Clone)]
pub struct Fault(Arc<FaultState>);

struct FaultState {
    rule: Rule,
    action: Action,
    matched: AtomicUsize,
    hits: AtomicUsize,
    removed: AtomicBool,
    released: watch::Sender<bool>,
}

impl Fault {
    /// The number of requests to which the rule was applied.
    pub fn hits(&self) -> usize {
        self.0.hits.load(Ordering::SeqCst)
    }

    /// Waits until this accepts the number of [hits](Fault::hits).
    pub async fn is_hit(&self, accepts: impl Fn(usize) -> bool) -> Result<()> {
        eventually(SOON, "the requests that the fault intercepts", async || {
            ensure!(accepts(self.hits()), "{} so far", self.hits());
            Ok(())
        })
        .await
    }

    /// Releases current and future requests of [`Action::Hold`], [`Action::Detain`] and [`Action::Hang`].
    pub fn release(&self) {
        self.0.released.send_replace(true);
    }

    /// Deactivates the rule, and releases the requests it holds.
    pub fn remove(&self) {
        self.0.removed.store(true, Ordering::SeqCst);
        self.release();
    }

    pub(super) fn action(&self) -> Action {
        self.0.action.clone()
    }

    pub(super) async fn released(&self) {
        // The sender lives as long as `self`, so only a release ends the wait.
        let _ = self.0.released.subscribe().wait_for(|released| *released).await;
    }
}

#[derive(Default)]
pub(super) struct Rules(Mutex<Vec<Fault>>);

impl Rules {
    pub(super) fn add(&self, rule: Rule, action: Action) -> Fault {
        let fault = Fault(Arc::new(FaultState {
            rule,
            action,
            matched: AtomicUsize::new(0),
            hits: AtomicUsize::new(0),
            removed: AtomicBool::new(false),
            released: watch::Sender::new(false),
        }));
        self.lock().push(fault.clone());
        fault
    }

    pub(super) fn clear(&self) {
        self.lock().drain(..).for_each(|fault| fault.remove());
    }

    pub(super) fn decide(&self, method: &str, path: &str) -> Option<Fault> {
        let mut faults = self.lock();
        faults.retain(|fault| !fault.0.removed.load(Ordering::SeqCst));
        faults
            .iter()
            .filter(|fault| fault.0.rule.matches(method, path))
            .find(|fault| {
                let Rule { skip, times, .. } = fault.0.rule;
                let before = fault.0.matched.fetch_add(1, Ordering::SeqCst);
                let applies = before >= skip && times.is_none_or(|times| before - skip < times);
                if applies {
                    fault.0.hits.fetch_add(1, Ordering::SeqCst);
                }
                applies
            })
            .cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_applies_only_to_the_nth_matching_request() {
        let rules = Rules::default();
        let fault = rules.add(Rule::path("/leases").method("PUT").skip(1).times(1), Action::Hold);
        let applied = |method, path| rules.decide(method, path).is_some();
        assert!(!applied("GET", "/leases/a"));
        assert!(!applied("PUT", "/pods/a"));
        assert!(!applied("PUT", "/leases/a"));
        assert!(applied("PUT", "/leases/a"));
        assert!(!applied("PUT", "/leases/a"));
        assert_eq!(fault.hits(), 1);
    }

    #[test]
    fn the_next_rule_applies_when_the_first_is_used_up() {
        let rules = Rules::default();
        let first = rules.add(Rule::any().times(1), Action::Cut);
        let second = rules.add(Rule::any(), Action::Cut);
        for _ in 0..3 {
            assert!(rules.decide("GET", "/").is_some());
        }
        assert_eq!((first.hits(), second.hits()), (1, 2));
        rules.clear();
        assert!(rules.decide("GET", "/").is_none());
    }
}
