//! The scheduling delay of a task: the time between its wake-up and the turn in which the runtime polls it.
//!
//! In: the future of a task, and its wake-ups. Out: for each turn, the time of the first wake-up since the last turn.
//! When all workers are busy, ready tasks wait in the run queue, and so does the data in their sockets. No other
//! measurement shows this delay: the time from reading a request to its response stays short, however long the run
//! queue is.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::{Context, Wake, Waker},
};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::Instant;

/// A waker that wraps the waker of a task and records the times of wake-ups.
pub(in crate::destination) struct WakeTime {
    task: AtomicWaker,
    /// The first wake-up since the current turn began.
    next: Mutex<Option<Instant>>,
    /// The wake-up that led to the current turn.
    current: Mutex<Instant>,
}

// === impl WakeTime ===

impl WakeTime {
    /// Creates the waker of a task that is about to be spawned. The task counts as woken now.
    pub(in crate::destination) fn new() -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self { task: AtomicWaker::new(), next: Mutex::new(Some(now)), current: Mutex::new(now) })
    }

    /// Runs the task and records its wake-ups.
    pub(in crate::destination) async fn track<F: Future>(self: Arc<Self>, task: F) -> F::Output {
        let waker = Waker::from(Arc::clone(&self));
        let mut task = pin!(task);
        poll_fn(|cx| {
            self.task.register(cx.waker());
            let woken = self.next.lock().take();
            *self.current.lock() = woken.unwrap_or_else(Instant::now);
            task.as_mut().poll(&mut Context::from_waker(&waker))
        })
        .await
    }

    /// Returns the time of the wake-up that led to the current turn.
    pub(in crate::destination) fn of_turn(&self) -> Instant {
        *self.current.lock()
    }
}

impl Wake for WakeTime {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.next.lock().get_or_insert_with(Instant::now);
        self.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::{task::Poll, time::Duration};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_turn_has_the_time_of_its_first_wake_up() {
        let second = Duration::from_secs(1);
        let wake_time = WakeTime::new();
        let begun = Instant::now();
        let inner = Arc::clone(&wake_time);
        let waker = Mutex::new(None);
        let task = Arc::clone(&wake_time).track(poll_fn(|cx| {
            *waker.lock() = Some(cx.waker().clone());
            Poll::<()>::Pending
        }));
        let mut task = pin!(task);
        let mut turn = || assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        tokio::time::advance(second).await;
        turn();
        assert_eq!(inner.of_turn(), begun, "the task is ready when it is created");
        waker.lock().take().unwrap().wake_by_ref();
        tokio::time::advance(second).await;
        Waker::from(Arc::clone(&inner)).wake();
        tokio::time::advance(second).await;
        turn();
        assert_eq!(inner.of_turn(), begun + second, "the first wake-up counts");
        turn();
        assert_eq!(inner.of_turn(), begun + 3 * second, "no wake-up led to this turn");
    }
}
