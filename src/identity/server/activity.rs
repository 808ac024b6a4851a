//! The calls of one connection, the memory that they take, and when the connection must end.
//!
//! In: the beginnings of calls, their answers, and the turns of the connection's task. Out: whether a call is accepted;
//! why the connection ends. Always holds: a call has memory from its beginning until its answer was written to the
//! socket; a connection without a call ends, and so does one whose client takes no answers.

use std::{
    mem,
    sync::{Arc, Weak},
    task::Context,
    time::Duration,
};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::{Instant, interval_at, sleep};

use crate::resources::shares::{Share, Taken};

/// The time until the first call of a connection.
const FIRST_CALL: Duration = Duration::from_secs(30);
/// The time without a call, after which a connection ends.
const IDLE: Duration = Duration::from_secs(300);
/// The time in which no call is accepted or answered although some are open: longer than any answer takes.
const STALLED: Duration = Duration::from_secs(60);
const CHECK: Duration = Duration::from_secs(5);
/// When the server stops, the time for a client without a call to close its connection.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(1);
const STOP_CHECK: Duration = Duration::from_millis(50);
/// The memory of a call without its message: its stream and its task. See `a_call_has_the_memory_that_is_counted`.
pub(super) const MEMORY_OF_CALL: usize = 6 << 10;
/// The memory of the answer to a call that is refused.
pub(super) const MEMORY_OF_REFUSAL: usize = 4 << 10;

pub(super) struct ConnectionActivity {
    counts: Mutex<CallCounts>,
    calls: Arc<Share>,
    refusals: Arc<Share>,
    /// The connection's task.
    task: AtomicWaker,
}

struct CallCounts {
    has_called: bool,
    /// The calls whose answers were not written to the socket.
    open: usize,
    /// The memory of the calls that were answered in this turn.
    answered: Vec<Taken>,
    /// The memory of the calls that were answered in earlier turns. h2 may still hold the answers.
    sending: Vec<Taken>,
    /// Whether the client has opened calls although it takes no refusals.
    is_flooded: bool,
    /// When the connection was accepted, a call was accepted, or an answer was sent.
    last: Instant,
}

/// A call whose answer h2 has not received until this is dropped.
pub(super) struct OpenCall {
    activity: Weak<ConnectionActivity>,
    /// The part of its connection, until the answer is sent.
    pub(super) memory: Taken,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleEnd {
    /// Its client may still send a call, which is answered.
    Graceful,
    AtOnce,
}

// === impl ConnectionActivity ===

impl ConnectionActivity {
    pub(super) fn new(calls: Arc<Share>, refusals: Arc<Share>) -> Arc<Self> {
        let counts = CallCounts {
            has_called: false,
            open: 0,
            answered: Vec::new(),
            sending: Vec::new(),
            is_flooded: false,
            last: Instant::now(),
        };
        Arc::new(Self { counts: Mutex::new(counts), calls, refusals, task: AtomicWaker::new() })
    }

    /// Begins a call.
    ///
    /// # Errors
    /// When the call must be refused, because there is no memory for it.
    pub(super) fn call(self: &Arc<Self>) -> Result<OpenCall, OpenCall> {
        let accepted = self.calls.try_take(MEMORY_OF_CALL);
        let mut counts = self.counts.lock();
        counts.has_called = true;
        counts.open += 1;
        let activity = Arc::downgrade(self);
        if let Ok(memory) = accepted {
            counts.last = Instant::now();
            return Ok(OpenCall { activity, memory });
        }
        let memory = self.refusals.try_take(MEMORY_OF_REFUSAL);
        counts.is_flooded |= memory.is_err();
        Err(OpenCall { activity, memory: memory.unwrap_or_else(|_| self.refusals.take_nothing()) })
    }

    pub(super) fn has_open_call(&self) -> bool {
        self.counts.lock().open > 0
    }

    /// Returns whether a further call would be refused.
    pub(super) fn is_short(&self) -> bool {
        !self.calls.has_room_for(MEMORY_OF_CALL)
    }

    /// Returns whether the client opens more calls than the server can refuse.
    pub(super) fn is_flooded(&self) -> bool {
        self.counts.lock().is_flooded
    }

    /// Begins a turn of the connection's task.
    pub(super) fn begin_turn(&self, cx: &Context<'_>) {
        self.task.register(cx.waker());
        let mut counts = self.counts.lock();
        let mut answered = mem::take(&mut counts.answered);
        counts.sending.append(&mut answered);
    }

    /// Ends the turn, and the calls whose answers h2 had before it if it has written all frames.
    pub(super) fn end_turn(&self, has_written: bool) {
        let mut counts = self.counts.lock();
        if has_written && !counts.sending.is_empty() {
            counts.open = counts.open.saturating_sub(counts.sending.len());
            counts.sending = Vec::new();
            counts.last = Instant::now();
        }
    }

    /// Waits until the connection must end.
    pub(super) async fn ended(&self) -> IdleEnd {
        let mut check = interval_at(Instant::now() + CHECK, CHECK);
        loop {
            check.tick().await;
            if let Some(end) = self.counts.lock().end(Instant::now()) {
                return end;
            }
        }
    }

    /// Waits until no call is open while the server stops.
    pub(super) async fn unused(&self) {
        sleep(GOAWAY_TIMEOUT).await;
        while self.has_open_call() {
            sleep(STOP_CHECK).await;
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
        // Without it, the connection has ended.
        let Some(activity) = self.activity.upgrade() else { return };
        activity.counts.lock().answered.push(self.memory.take());
        // The next turn writes the answer, or finds that it was written.
        activity.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::resources::shares::Pool;

    fn activity(memory: &Arc<Pool>) -> Arc<ConnectionActivity> {
        ConnectionActivity::new(memory.share(), Pool::new(4 * MEMORY_OF_REFUSAL).share())
    }

    fn turn(activity: &ConnectionActivity, has_written: bool) {
        activity.begin_turn(&Context::from_waker(Waker::noop()));
        activity.end_turn(has_written);
    }

    async fn time_of_end(activity: &ConnectionActivity) -> (IdleEnd, u64) {
        let begun = Instant::now();
        let end = activity.ended().await;
        (end, begun.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_call_ends_after_half_a_minute_and_later_after_five() {
        let activity = activity(&Pool::new(MEMORY_OF_CALL));
        assert_eq!(time_of_end(&activity).await, (IdleEnd::AtOnce, 30));
        drop(activity.call());
        turn(&activity, true);
        assert!(!activity.has_open_call());
        assert_eq!(time_of_end(&activity).await, (IdleEnd::Graceful, 300));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_client_takes_no_answer_ends_after_a_minute() {
        let activity = activity(&Pool::new(MEMORY_OF_CALL));
        let _call = activity.call();
        assert_eq!(time_of_end(&activity).await, (IdleEnd::AtOnce, 60));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_has_memory_until_its_answer_is_written() {
        let memory = Pool::new(MEMORY_OF_CALL);
        let activity = activity(&memory);
        let call = activity.call().ok().unwrap();
        assert!(activity.is_short() && activity.call().is_err());
        turn(&activity, true);
        drop(call);
        turn(&activity, false);
        assert!(activity.has_open_call());
        assert_eq!(memory.free(), 0);
        turn(&activity, true);
        assert!(!activity.has_open_call());
        assert_eq!(memory.free(), MEMORY_OF_CALL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_opens_calls_and_takes_no_refusals_is_flooding() {
        let activity = activity(&Pool::new(0));
        for _ in 0..10 {
            assert!(activity.call().is_err());
            turn(&activity, true);
        }
        assert!(!activity.is_flooded());
        for flooded in [false, false, true] {
            assert!(activity.call().is_err());
            turn(&activity, false);
            assert_eq!(activity.is_flooded(), flooded);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_are_refused_are_no_progress() {
        let activity = activity(&Pool::new(MEMORY_OF_CALL));
        let call = activity.call();
        for _ in 0..3 {
            sleep(Duration::from_secs(20)).await;
            assert!(activity.call().is_err());
            turn(&activity, false);
        }
        assert_eq!(time_of_end(&activity).await, (IdleEnd::AtOnce, 5));
        drop(call);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_for_open_calls_only() {
        let activity = activity(&Pool::new(MEMORY_OF_CALL));
        let begun = Instant::now();
        activity.unused().await;
        assert_eq!(begun.elapsed().as_secs(), 1);
        let call = activity.call();
        assert!(tokio::time::timeout(Duration::from_secs(15), activity.unused()).await.is_err());
        drop(call);
        turn(&activity, true);
        activity.unused().await;
    }
}
