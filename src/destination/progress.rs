//! Whether clients take what waits for them: of each stream, and of the connection that carries it.
//!
//! hyper does not ask a body for more while a piece of it waits for the client's window, so a body cannot see by itself that
//! its client takes nothing. What sees it is the task around the stream: it shares a [`Progress`] with the body, and
//! ends when that has stalled. Ended so, hyper and h2 reset the stream; an orderly end could not overtake the data.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

/// How often is looked within the time that a client has. Streams have no timers: there may be a hundred thousand.
const LOOKS: u32 = 6;

/// Of one stream.
#[derive(Default)]
pub(super) struct Progress {
    connection: Arc<ConnectionProgress>,
    waiting: AtomicBool,
    /// How often it was found waiting since its client took something.
    looks: AtomicU32,
    stalled: AtomicBool,
    task: AtomicWaker,
}

/// Of all streams of a connection together.
#[derive(Default)]
pub(super) struct ConnectionProgress {
    /// How often any stream's client took something.
    taken: AtomicU64,
    streams: Mutex<Vec<Weak<Progress>>>,
}

/// Runs the streams of a connection, each as a task that can be ended alone.
#[derive(Clone)]
pub(super) struct Executor {
    pub(super) progress: Arc<ConnectionProgress>,
    pub(super) tasks: TaskTracker,
}

struct StreamTask<F> {
    stream: Pin<Box<F>>,
    progress: Arc<Progress>,
}

tokio::task_local! {
    static CURRENT: Arc<Progress>;
}

// === impl Progress ===

impl Progress {
    /// The progress of the stream whose task this is.
    pub(super) fn current() -> Arc<Self> {
        CURRENT.try_with(Arc::clone).unwrap_or_default()
    }

    /// Something was handed to the transport.
    pub(super) fn offered(&self) {
        self.waiting.store(true, Ordering::Relaxed);
    }

    /// The transport has room for more.
    pub(super) fn taken(&self) {
        if self.waiting.swap(false, Ordering::Relaxed) {
            self.looks.store(0, Ordering::Relaxed);
            self.connection.taken.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Whether its client's time is over with this look.
    fn look(&self) -> bool {
        // The first look finds what may have been offered a moment ago.
        let over = self.waiting.load(Ordering::Relaxed) && self.looks.fetch_add(1, Ordering::Relaxed) >= LOOKS;
        if over {
            self.stalled.store(true, Ordering::Relaxed);
            self.task.wake();
        }
        over
    }
}

// === impl ConnectionProgress ===

impl ConnectionProgress {
    fn begin(self: &Arc<Self>) -> Arc<Progress> {
        let progress = Arc::new(Progress { connection: Arc::clone(self), ..Progress::default() });
        let mut streams = self.streams.lock();
        if streams.len() == streams.capacity() {
            streams.retain(|stream| stream.strong_count() > 0);
        }
        streams.push(Arc::downgrade(&progress));
        progress
    }

    /// Ends the streams whose clients take nothing for this long. Resolves when one was ended so, and for as long again no
    /// client of the connection took anything: then its window is shut by what they keep unread, and only its end helps.
    /// So it does when the window is seen to be shut for both times together: of a short message a part may have been taken,
    /// and where nothing follows it nobody waits for the rest.
    pub(super) async fn stalled(&self, timeout: Duration, is_shut: impl Fn() -> bool) {
        let mut since_then: Option<(u64, u32)> = None;
        let mut shut = 0;
        loop {
            sleep(timeout / LOOKS).await;
            let ended = self.look();
            shut = if is_shut() { shut + 1 } else { 0 };
            if shut > 2 * LOOKS {
                return;
            }
            let taken = self.taken.load(Ordering::Relaxed);
            since_then = match since_then {
                Some((then, LOOKS..)) if then == taken => return,
                Some((then, looks)) if then == taken => Some((then, looks + 1)),
                _ => ended.then_some((taken, 1)),
            };
        }
    }

    /// Whether any stream's time is over.
    fn look(&self) -> bool {
        let mut streams = self.streams.lock();
        streams.retain(|stream| stream.strong_count() > 0);
        // All of them: no short cut.
        streams.iter().filter_map(Weak::upgrade).filter(|stream| stream.look()).count() > 0
    }
}

// === impl Executor ===

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        let progress = self.progress.begin();
        self.tasks.spawn(StreamTask { stream: Box::pin(stream), progress });
    }
}

impl<F: Future> Future for StreamTask<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { stream, progress } = self.get_mut();
        if progress.is_stalled() {
            return Poll::Ready(());
        }
        progress.task.register(cx.waker());
        CURRENT.sync_scope(Arc::clone(progress), || stream.as_mut().poll(cx)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// A stream that offers something once, and waits for ever after that.
    fn stream(connection: &Arc<ConnectionProgress>, offers: bool) -> (Arc<Progress>, impl Future<Output = ()> + use<>) {
        let progress = connection.begin();
        let stream = Box::pin(async move {
            if offers {
                Progress::current().offered();
            }
            pending::<()>().await;
        });
        (Arc::clone(&progress), StreamTask { stream, progress })
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_stream_whose_client_takes_nothing_of_what_waits_is_ended() {
        let connection = Arc::<ConnectionProgress>::default();
        let watch = Arc::clone(&connection);
        tokio::spawn(async move { watch.stalled(TIMEOUT, || false).await });
        let (_, idle) = stream(&connection, false);
        let (slow, slow_task) = stream(&connection, true);
        let (_, unread) = stream(&connection, true);
        let (idle, slow_task, unread) = (tokio::spawn(idle), tokio::spawn(slow_task), tokio::spawn(unread));
        for _ in 0..10 {
            sleep(Duration::from_secs(8)).await;
            slow.taken();
            slow.offered();
        }
        assert_eq!([idle.is_finished(), slow_task.is_finished(), unread.is_finished()], [false, false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_has_its_whole_time() {
        let connection = Arc::<ConnectionProgress>::default();
        let watch = Arc::clone(&connection);
        tokio::spawn(async move { watch.stalled(TIMEOUT, || false).await });
        let (_, task) = stream(&connection, true);
        let task = tokio::spawn(task);
        sleep(TIMEOUT - Duration::from_secs(1)).await;
        assert!(!task.is_finished());
        sleep(TIMEOUT / LOOKS + Duration::from_secs(2)).await;
        assert!(task.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_stalls_when_nobody_takes_anything_after_a_stream_was_ended() {
        let connection = Arc::<ConnectionProgress>::default();
        let watch = Arc::clone(&connection);
        let stalled = tokio::spawn(async move { watch.stalled(TIMEOUT, || false).await });
        let (_, task) = stream(&connection, true);
        tokio::spawn(task);
        sleep(TIMEOUT * 2).await;
        assert!(!stalled.is_finished(), "the stream ended a minute ago at most");
        sleep(TIMEOUT / 2).await;
        assert!(stalled.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_stalls_when_its_window_stays_shut_though_nobody_is_seen_to_wait() {
        let (connection, shut) = (Arc::<ConnectionProgress>::default(), Arc::<AtomicBool>::default());
        let (watch, is_shut) = (Arc::clone(&connection), Arc::clone(&shut));
        let stalled = tokio::spawn(async move { watch.stalled(TIMEOUT, || is_shut.load(Ordering::Relaxed)).await });
        for _ in 0..5 {
            shut.store(true, Ordering::Relaxed);
            sleep(TIMEOUT * 2 - Duration::from_secs(1)).await;
            shut.store(false, Ordering::Relaxed);
            sleep(TIMEOUT).await;
        }
        assert!(!stalled.is_finished(), "it was opened each time");
        shut.store(true, Ordering::Relaxed);
        sleep(TIMEOUT * 2 + TIMEOUT / 2).await;
        assert!(stalled.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_on_which_somebody_takes_something_stays() {
        let connection = Arc::<ConnectionProgress>::default();
        let watch = Arc::clone(&connection);
        let stalled = tokio::spawn(async move { watch.stalled(TIMEOUT, || false).await });
        let (_, unread) = stream(&connection, true);
        let unread = tokio::spawn(unread);
        let (reading, task) = stream(&connection, true);
        tokio::spawn(task);
        for _ in 0..30 {
            sleep(Duration::from_secs(20)).await;
            reading.taken();
            reading.offered();
        }
        assert!(unread.is_finished() && !stalled.is_finished());
    }

    #[tokio::test]
    async fn streams_that_ended_are_forgotten() {
        let connection = Arc::<ConnectionProgress>::default();
        for _ in 0..10_000 {
            drop(connection.begin());
        }
        assert!(connection.streams.lock().len() < 100);
    }
}
