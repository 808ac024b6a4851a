//! Stall detection: whether clients take what is sent to them, for each stream and for its connection.
//!
//! In: what [`super::connection`] records for each stream. Out: which streams have stalled, and whether their connection has
//! stalled or is idle.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::sleep;

/// Checks within the stall timeout. Streams have no timers of their own: there may be a hundred thousand.
const CHECKS: u32 = 6;
/// A connection without a stream for five stall timeouts is closed: the number of connections is limited.
const IDLE_CHECKS: u32 = 5 * CHECKS;

/// The window of a new stream, unless the client sets another, which proxies do not (RFC 9113, section 6.9.2).
const STREAM_WINDOW: usize = 65_535;

/// What the client of one stream has taken.
#[derive(Default)]
pub(in crate::destination) struct StreamProgress {
    connection: Arc<StallDetector>,
    waiting: AtomicBool,
    /// Bytes that the client took.
    taken: AtomicUsize,
    /// The number of checks that found the stream waiting since the client last took something.
    checks: AtomicU32,
    stalled: AtomicBool,
    task: AtomicWaker,
}

/// Why a connection should be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// No client takes anything on it.
    Stalled,
    /// It had no stream for long.
    Idle,
}

/// The progress of all streams of a connection together.
#[derive(Default)]
pub(super) struct StallDetector {
    /// How often the client of any stream took something.
    taken: AtomicU64,
    streams: Mutex<Vec<Weak<StreamProgress>>>,
}

/// The result of a check, in numbers of streams.
#[derive(Default)]
struct Check {
    open: usize,
    /// Streams that wait for their clients.
    waiting: usize,
    /// Streams whose clients have exceeded the timeout.
    stalled: usize,
    /// Stalled streams whose clients had taken less than a window.
    stalled_within_window: usize,
}

// === impl StreamProgress ===

impl StreamProgress {
    /// Records that the client has no window for what is to be sent.
    pub(super) fn waits(&self) {
        self.waiting.store(true, Ordering::Relaxed);
    }

    /// Records that the client had window for `bytes`.
    pub(super) fn took(&self, bytes: usize) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        if self.waiting.swap(false, Ordering::Relaxed) {
            self.checks.store(0, Ordering::Relaxed);
            self.stalled.store(false, Ordering::Relaxed);
        }
        self.connection.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Ready when the client has taken nothing for the stall timeout.
    pub(super) fn poll_stalled(&self, cx: &Context<'_>) -> Poll<()> {
        self.task.register(cx.waker());
        if self.is_stalled() { Poll::Ready(()) } else { Poll::Pending }
    }

    pub(in crate::destination) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Returns whether this check exceeds the timeout of the client.
    fn check(&self) -> bool {
        // The first check may find a stream that has waited only for a moment.
        let exceeded = self.waiting.load(Ordering::Relaxed) && self.checks.fetch_add(1, Ordering::Relaxed) >= CHECKS;
        if exceeded {
            self.stalled.store(true, Ordering::Relaxed);
            self.task.wake();
        }
        exceeded
    }
}

// === impl StallDetector ===

impl StallDetector {
    /// Adds a stream.
    pub(super) fn stream(self: &Arc<Self>) -> Arc<StreamProgress> {
        let progress = Arc::new(StreamProgress { connection: Arc::clone(self), ..StreamProgress::default() });
        let mut streams = self.streams.lock();
        if streams.len() == streams.capacity() {
            streams.retain(|stream| stream.strong_count() > 0);
        }
        streams.push(Arc::downgrade(&progress));
        progress
    }

    /// Marks streams as stalled whose clients take nothing for `timeout`, and resolves when the connection should be closed.
    ///
    /// * It has stalled when a stream was ended in this way, and then for the same time again no client of the connection took
    ///   anything. Unread data of the ended streams fills the connection's window then, and only the end of the connection
    ///   frees it. But a client that took a whole window and no more may have filled only the window of its own stream: then
    ///   nothing is concluded about the connection before another stream waits.
    /// * It is idle when it had no stream for long.
    pub(super) async fn close_reason(&self, timeout: Duration) -> CloseReason {
        let mut unchanged: Option<(u64, u32)> = None;
        let mut is_window_full = false;
        let mut idle = 0;
        loop {
            sleep(timeout / CHECKS).await;
            let Check { open, waiting, stalled, stalled_within_window } = self.check();
            idle = if open == 0 { idle + 1 } else { 0 };
            if idle > IDLE_CHECKS {
                return CloseReason::Idle;
            }
            let taken = self.taken.load(Ordering::Relaxed);
            unchanged = match unchanged {
                Some((then, CHECKS..)) if then == taken => return CloseReason::Stalled,
                Some((then, checks)) if then == taken => {
                    is_window_full |= stalled_within_window > 0;
                    Some((then, checks + u32::from(is_window_full || waiting > 0 || open == 0)))
                }
                _ => {
                    is_window_full = stalled_within_window > 0;
                    (stalled > 0).then_some((taken, 1))
                }
            };
        }
    }

    fn check(&self) -> Check {
        let mut streams = self.streams.lock();
        streams.retain(|stream| stream.strong_count() > 0);
        let mut check = Check { open: streams.len(), ..Check::default() };
        for stream in streams.iter().filter_map(Weak::upgrade) {
            check.waiting += usize::from(stream.waiting.load(Ordering::Relaxed));
            let stalled = stream.check();
            check.stalled += usize::from(stalled);
            check.stalled_within_window += usize::from(stalled && stream.taken.load(Ordering::Relaxed) < STREAM_WINDOW);
        }
        check
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// A stream whose client has no room, or that has nothing to send.
    fn stream(connection: &Arc<StallDetector>, waits: bool) -> (Arc<StreamProgress>, impl Future<Output = ()> + use<>) {
        let progress = connection.stream();
        if waits {
            progress.waits();
        }
        (Arc::clone(&progress), poll_fn(move |cx| progress.poll_stalled(cx)))
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_stream_whose_client_takes_nothing_of_what_waits_has_stalled() {
        let connection = Arc::<StallDetector>::default();
        let watch = Arc::clone(&connection);
        tokio::spawn(async move { watch.close_reason(TIMEOUT).await });
        let (_, idle) = stream(&connection, false);
        let (slow, slow_task) = stream(&connection, true);
        let (_, unread) = stream(&connection, true);
        let (idle, slow_task, unread) = (tokio::spawn(idle), tokio::spawn(slow_task), tokio::spawn(unread));
        for _ in 0..10 {
            sleep(Duration::from_secs(8)).await;
            slow.took(1);
            slow.waits();
        }
        assert_eq!([idle.is_finished(), slow_task.is_finished(), unread.is_finished()], [false, false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_has_the_whole_timeout() {
        let connection = Arc::<StallDetector>::default();
        let watch = Arc::clone(&connection);
        tokio::spawn(async move { watch.close_reason(TIMEOUT).await });
        let (_, task) = stream(&connection, true);
        let task = tokio::spawn(task);
        sleep(TIMEOUT - Duration::from_secs(1)).await;
        assert!(!task.is_finished());
        sleep(TIMEOUT / CHECKS + Duration::from_secs(2)).await;
        assert!(task.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_stalls_when_no_client_takes_anything_after_a_stream_was_ended() {
        let connection = Arc::<StallDetector>::default();
        let watch = Arc::clone(&connection);
        let stalled = tokio::spawn(async move { watch.close_reason(TIMEOUT).await });
        let (_, task) = stream(&connection, true);
        tokio::spawn(task);
        sleep(TIMEOUT * 2).await;
        assert!(!stalled.is_finished(), "the stream ended a minute ago at most");
        sleep(TIMEOUT / 2).await;
        assert!(stalled.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_other_streams_have_nothing_to_send_stays() {
        let connection = Arc::<StallDetector>::default();
        let watch = Arc::clone(&connection);
        let stalled = tokio::spawn(async move { watch.close_reason(TIMEOUT).await });
        let (own, unread) = stream(&connection, true);
        own.took(STREAM_WINDOW);
        own.waits();
        tokio::spawn(unread);
        drop(own);
        let (quiet, _task) = stream(&connection, false);
        sleep(TIMEOUT * 20).await;
        assert!(!stalled.is_finished());
        quiet.waits();
        sleep(TIMEOUT * 2).await;
        assert!(stalled.is_finished(), "then that stream cannot be sent anything either");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_on_which_a_client_takes_something_stays() {
        let connection = Arc::<StallDetector>::default();
        let watch = Arc::clone(&connection);
        let stalled = tokio::spawn(async move { watch.close_reason(TIMEOUT).await });
        let (_, unread) = stream(&connection, true);
        let unread = tokio::spawn(unread);
        let (reading, task) = stream(&connection, true);
        tokio::spawn(task);
        for _ in 0..30 {
            sleep(Duration::from_secs(20)).await;
            reading.took(1);
            reading.waits();
        }
        assert!(unread.is_finished() && !stalled.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_stream_is_idle_after_a_while() {
        let connection = Arc::<StallDetector>::default();
        let watch = Arc::clone(&connection);
        let reason = tokio::spawn(async move { watch.close_reason(TIMEOUT).await });
        let quiet = connection.stream();
        sleep(TIMEOUT * 20).await;
        assert!(!reason.is_finished(), "it has a stream, though nothing is sent on it");
        drop(quiet);
        sleep(TIMEOUT * 4).await;
        assert!(!reason.is_finished());
        sleep(TIMEOUT * 2).await;
        assert_eq!(reason.await.unwrap(), CloseReason::Idle);
    }

    #[tokio::test]
    async fn ended_streams_are_removed() {
        let connection = Arc::<StallDetector>::default();
        for _ in 0..10_000 {
            drop(connection.stream());
        }
        assert!(connection.streams.lock().len() < 100);
    }
}
