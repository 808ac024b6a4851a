//! Since when a task could go on: how long what has come for it waits for its turn.
//!
//! In: the wake-ups of a task. Out: at each turn, the time of the first since the last. Where all workers are busy, tasks
//! that could go on stand in line, and what waits in their sockets waits with them. Nothing else shows that: the time that
//! a request takes once it is read stays short however long the line is.

use std::{
    sync::Arc,
    task::{Wake, Waker},
};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Stands between a task and what wakes it.
#[derive(Default)]
pub(super) struct Readiness {
    task: AtomicWaker,
    since: Mutex<Option<Instant>>,
}

// === impl Readiness ===

impl Readiness {
    /// The task's turn begins: since when it could have, if it was woken.
    pub(super) fn begin_turn(&self, task: &Waker) -> Option<Instant> {
        self.task.register(task);
        self.since.lock().take()
    }
}

impl Wake for Readiness {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.since.lock().get_or_insert_with(Instant::now);
        self.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_turn_knows_since_when_it_could_have_been() {
        let readiness = Arc::<Readiness>::default();
        assert_eq!(readiness.begin_turn(Waker::noop()), None);
        let begun = Instant::now();
        Waker::from(Arc::clone(&readiness)).wake();
        tokio::time::advance(Duration::from_secs(1)).await;
        Waker::from(Arc::clone(&readiness)).wake();
        assert_eq!(readiness.begin_turn(Waker::noop()), Some(begun), "the first wake-up counts");
        assert_eq!(readiness.begin_turn(Waker::noop()), None);
    }
}
