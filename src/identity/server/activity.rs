//! The calls of one connection, and when it must end.
//!
//! In: the beginnings and the ends of calls. Out: why the connection ends. Always holds: a connection without a call
//! ends, and so does one whose client takes no answers.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, interval_at};

/// The time until the first call of a connection.
const FIRST_CALL: Duration = Duration::from_secs(30);
/// The time without a call, after which a connection ends.
const IDLE: Duration = Duration::from_secs(300);
/// The time in which no call begins or ends although some are open: longer than any answer takes.
const STALLED: Duration = Duration::from_secs(60);
const CHECK: Duration = Duration::from_secs(5);

pub(super) struct ConnectionActivity(Mutex<CallCounts>);

struct CallCounts {
    has_called: bool,
    open: usize,
    /// When the connection was accepted, or a call began or ended.
    last: Instant,
}

/// A call that is open until this is dropped.
pub(super) struct OpenCall(Arc<ConnectionActivity>);

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleEnd {
    /// Its client may still send a call, which is answered.
    Graceful,
    AtOnce,
}

// === impl ConnectionActivity ===

impl ConnectionActivity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(CallCounts { has_called: false, open: 0, last: Instant::now() })))
    }

    pub(super) fn call(self: &Arc<Self>) -> OpenCall {
        let mut counts = self.0.lock();
        *counts = CallCounts { has_called: true, open: counts.open + 1, last: Instant::now() };
        OpenCall(Arc::clone(self))
    }

    pub(super) fn has_open_call(&self) -> bool {
        self.0.lock().open > 0
    }

    /// Waits until the connection must end.
    pub(super) async fn ended(&self) -> IdleEnd {
        let mut check = interval_at(Instant::now() + CHECK, CHECK);
        loop {
            check.tick().await;
            if let Some(end) = self.0.lock().end(Instant::now()) {
                return end;
            }
        }
    }
}

// === impl CallCounts ===

impl CallCounts {
    fn end(&self, now: Instant) -> Option<IdleEnd> {
        let silent = now - self.last;
        match (self.has_called, self.open) {
            (false, _) => (silent >= FIRST_CALL).then_some(IdleEnd::AtOnce),
            (true, 0) => (silent >= IDLE).then_some(IdleEnd::Graceful),
            (true, _) => (silent >= STALLED).then_some(IdleEnd::AtOnce),
        }
    }
}

// === impl OpenCall ===

impl Drop for OpenCall {
    fn drop(&mut self) {
        let mut counts = self.0.0.lock();
        counts.open = counts.open.saturating_sub(1);
        counts.last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn time_of_end(activity: &ConnectionActivity) -> (IdleEnd, u64) {
        let begun = Instant::now();
        let end = activity.ended().await;
        (end, begun.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_call_ends_after_half_a_minute_and_later_after_five() {
        let activity = ConnectionActivity::new();
        assert_eq!(time_of_end(&activity).await, (IdleEnd::AtOnce, 30));
        drop(activity.call());
        assert!(!activity.has_open_call());
        assert_eq!(time_of_end(&activity).await, (IdleEnd::Graceful, 300));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_client_takes_no_answer_ends_after_a_minute() {
        let activity = ConnectionActivity::new();
        let _call = activity.call();
        assert_eq!(time_of_end(&activity).await, (IdleEnd::AtOnce, 60));
    }
}
