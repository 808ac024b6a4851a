//! Which requests go wrong, and how.
//!
//! * In: the requests as they come, in order. Out: the action for each, or none.
//! * Always: the first rule that matches and is not used up decides.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;

/// What happens to a request that matches.
#[derive(Clone, Debug)]
pub enum Action {
    /// Answered by the proxy with a Kubernetes `Status`; `retry_after` in seconds.
    Status { code: u16, retry_after: Option<u32> },
    /// Forwarded later.
    Delay(Duration),
    /// Never answered.
    Hang,
    /// Not forwarded; the connection is closed.
    Cut,
    /// Forwarded once [`Fault::release`] is called, if the client is still there.
    Hold,
    /// Forwarded once [`Fault::release`] is called, also when the client has long gone: a request that arrives late.
    Detain,
    /// Forwarded and carried out; then the connection is closed instead of an answer.
    After,
}

/// Which requests, and how many of them.
#[derive(Clone, Debug)]
pub struct Rule {
    method: Option<String>,
    path: String,
    skip: usize,
    times: Option<usize>,
}

impl Rule {
    /// Every request.
    pub fn any() -> Self {
        Self::path("")
    }

    /// Requests whose path and query contain this text. Watches have `watch=true` in the query.
    pub fn path(contains: &str) -> Self {
        Self { method: None, path: contains.to_owned(), skip: 0, times: None }
    }

    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }

    /// Leaves the first `count` that match alone.
    pub fn skip(mut self, count: usize) -> Self {
        self.skip = count;
        self
    }

    /// Applies to so many that match, after the skipped ones; without it, to all.
    pub fn times(mut self, count: usize) -> Self {
        self.times = Some(count);
        self
    }

    fn matches(&self, method: &str, path: &str) -> bool {
        self.method.as_ref().is_none_or(|wanted| wanted == method) && path.contains(&self.path)
    }
}

/// A rule in force. Dropping this changes nothing: a fault lasts until it is removed or used up.
#[derive(Clone)]
pub struct Fault(Arc<State>);

struct State {
    rule: Rule,
    action: Action,
    matched: AtomicUsize,
    hits: AtomicUsize,
    removed: AtomicBool,
    released: watch::Sender<bool>,
}

impl Fault {
    /// How many requests it was applied to.
    pub fn hits(&self) -> usize {
        self.0.hits.load(Ordering::SeqCst)
    }

    /// Lets the requests of [`Action::Hold`], [`Action::Detain`] and [`Action::Hang`] go on, and those to come.
    pub fn release(&self) {
        self.0.released.send_replace(true);
    }

    /// Ends it for requests to come, and releases those it holds.
    pub fn remove(&self) {
        self.0.removed.store(true, Ordering::SeqCst);
        self.release();
    }

    pub(super) fn action(&self) -> Action {
        self.0.action.clone()
    }

    pub(super) async fn released(&self) {
        // The sender lives as long as this does, so this ends only by a release.
        let _ = self.0.released.subscribe().wait_for(|released| *released).await;
    }
}

#[derive(Default)]
pub(super) struct Rules(Mutex<Vec<Fault>>);

impl Rules {
    pub(super) fn add(&self, rule: Rule, action: Action) -> Fault {
        let fault = Fault(Arc::new(State {
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
    fn a_rule_applies_to_the_nth_matching_request_only() {
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
    fn a_used_up_rule_leaves_room_for_the_next() {
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
