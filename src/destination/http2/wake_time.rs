//! Since when a task could go on: how long what has come for it waits for its turn.
//!
//! In: a task's future, and what wakes it. Out: for each turn, the time of the first wake-up since the last. Where all
//! workers are busy, tasks that could go on stand in line, and what waits in their sockets waits with them. Nothing else
//! shows that: the time that a request takes once it is read stays short however long the line is.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::{Context, Wake, Waker},
};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Stands between a task and what wakes it.
pub(in crate::destination) struct Readiness {
    task: AtomicWaker,
    /// The first wake-up since the turn began.
    woken: Mutex<Option<Instant>>,
    /// What led to this turn.
    since: Mutex<Instant>,
}

// === impl Readiness ===

impl Readiness {
    /// Of a task that is about to be spawned: from now on it could go on.
    pub(in crate::destination) fn new() -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self { task: AtomicWaker::new(), woken: Mutex::new(Some(now)), since: Mutex::new(now) })
    }

    /// Runs the task.
    pub(in crate::destination) async fn of<F: Future>(self: Arc<Self>, task: F) -> F::Output {
        let waker = Waker::from(Arc::clone(&self));
        let mut task = pin!(task);
        poll_fn(|cx| {
            self.task.register(cx.waker());
            let woken = self.woken.lock().take();
            *self.since.lock() = woken.unwrap_or_else(Instant::now);
            task.as_mut().poll(&mut Context::from_waker(&waker))
        })
        .await
    }

    /// Since when this turn could have been.
    pub(in crate::destination) fn since(&self) -> Instant {
        *self.since.lock()
    }
}

impl Wake for Readiness {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.lock().get_or_insert_with(Instant::now);
        self.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::{task::Poll, time::Duration};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_turn_knows_since_when_it_could_have_been() {
        let second = Duration::from_secs(1);
        let readiness = Readiness::new();
        let begun = Instant::now();
        let inner = Arc::clone(&readiness);
        let waker = Mutex::new(None);
        let task = Arc::clone(&readiness).of(poll_fn(|cx| {
            *waker.lock() = Some(cx.waker().clone());
            Poll::<()>::Pending
        }));
        let mut task = pin!(task);
        let mut turn = || assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        tokio::time::advance(second).await;
        turn();
        assert_eq!(inner.since(), begun, "the first turn could have been when the task was made");
        waker.lock().take().unwrap().wake_by_ref();
        tokio::time::advance(second).await;
        Waker::from(Arc::clone(&inner)).wake();
        tokio::time::advance(second).await;
        turn();
        assert_eq!(inner.since(), begun + second, "the first wake-up counts");
        turn();
        assert_eq!(inner.since(), begun + 3 * second, "nothing led to this one");
    }
}
