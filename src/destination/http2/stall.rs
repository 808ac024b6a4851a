//! Stall detection: finds streams and connections whose clients do not accept data.
//!
//! In: the progress that [`super::stream`] records for each stream, and shortages of the server. Out: the stalled
//! streams, and whether their connection has stalled or is idle. Always holds: in a shortage, the same streams and
//! connections are found, only sooner.

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
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::budget::Budget;

/// The number of checks within the stall timeout. Streams have no timers, because a hundred thousand of them may be
/// open.
const CHECKS: u32 = 6;
/// A connection without a stream for five stall timeouts is closed: the number of connections is limited.
const IDLE_CHECKS: u32 = 5 * CHECKS;
/// How long a connection has no stream before others may have its permit: a proxy opens its first stream at once.
const IDLE_IN_SHORTAGE: Duration = Duration::from_secs(1);

/// The initial window of a stream (RFC 9113, section 6.9.2). A client can change it, but proxies do not.
const STREAM_WINDOW: usize = 65_535;

/// The progress of one stream: the data that its client has accepted.
#[derive(Default)]
pub(in crate::destination) struct StreamProgress {
    connection: Arc<StallDetector>,
    waiting: AtomicBool,
    /// Bytes that the client has accepted.
    taken: AtomicUsize,
    /// The number of checks that found the stream waiting since the client last accepted data.
    checks: AtomicU32,
    stalled: AtomicBool,
    /// Whether the stream was waiting at the last request for memory.
    waited_for_memory: AtomicBool,
    /// Whether the stream ended because of a request for memory.
    ended_for_memory: AtomicBool,
    task: AtomicWaker,
}

/// The resources that the server needs back from its connections. Each number counts the requests for one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::destination) struct Shortage {
    /// Streams that wait for their clients are to end, because they hold frames.
    pub(in crate::destination) of_memory: u64,
    /// Connections without streams are to close, because others wait for their permits.
    pub(in crate::destination) of_connections: u64,
}

/// The reason why a connection should be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// No client of the connection accepts data.
    Stalled,
    /// The connection had no stream for a long time.
    Idle,
    /// The server needs the memory of the data that the client does not read.
    Memory,
}

/// The progress of all streams of a connection together.
#[derive(Default)]
pub(super) struct StallDetector {
    /// How often a client of any stream has accepted data.
    taken: AtomicU64,
    streams: Mutex<Vec<Weak<StreamProgress>>>,
}

/// The numbers of streams that a check found.
#[derive(Default)]
struct Check {
    open: usize,
    /// Streams that wait for their clients.
    waiting: usize,
    /// Streams whose clients have exceeded the timeout.
    stalled: usize,
    /// Stalled streams whose clients had accepted less than a window.
    stalled_within_window: usize,
}

// === impl StreamProgress ===

impl StreamProgress {
    /// Records that the client has no window for the pending data.
    pub(super) fn waits(&self) {
        self.waiting.store(true, Ordering::Relaxed);
    }

    /// Records that the client had window for `bytes`.
    pub(super) fn took(&self, bytes: usize) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        if self.waiting.swap(false, Ordering::Relaxed) {
            self.checks.store(0, Ordering::Relaxed);
            self.stalled.store(false, Ordering::Relaxed);
            self.waited_for_memory.store(false, Ordering::Relaxed);
        }
        self.connection.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Ready when the client has accepted no data for the stall timeout.
    pub(super) fn poll_stalled(&self, cx: &Context<'_>) -> Poll<()> {
        self.task.register(cx.waker());
        if self.is_stalled() { Poll::Ready(()) } else { Poll::Pending }
    }

    pub(in crate::destination) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    pub(in crate::destination) fn has_ended_for_memory(&self) -> bool {
        self.ended_for_memory.load(Ordering::Relaxed)
    }

    /// Ends the stream if its client accepted no data between two requests for memory.
    fn give_up_memory(&self) {
        let is_waiting = self.waiting.load(Ordering::Relaxed);
        if is_waiting && self.waited_for_memory.swap(true, Ordering::Relaxed) {
            self.ended_for_memory.store(true, Ordering::Relaxed);
            self.stalled.store(true, Ordering::Relaxed);
            self.task.wake();
        }
    }

    /// Counts a check. Returns whether the client has exceeded the timeout.
    fn check(&self) -> bool {
        // The first check does not count: the stream may have waited only for a moment.
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

    /// Marks streams as stalled whose clients accept no data for `timeout`. Returns when the connection should be
    /// closed:
    ///
    /// * The connection has stalled when a stream has stalled and no client of the connection accepts data for another
    ///   `timeout`. The unread data of ended streams then fills the connection's window, and only the end of the
    ///   connection frees it. Exception: a client that accepted a whole window may have filled only the window of its
    ///   stream. In this case, time counts only while another stream waits or no stream is open.
    /// * The connection is idle when it had no stream for five timeouts, or for a second while others wait for a
    ///   connection.
    /// * When the server needs memory, the connection ends if no stream could send between two requests: the socket is
    ///   full, or the client acknowledges no small frames.
    pub(super) async fn close_reason(
        &self,
        timeout: Duration,
        mut shortage: watch::Receiver<Shortage>,
        budget: &Budget,
    ) -> CloseReason {
        let mut unchanged: Option<(u64, u32)> = None;
        let mut is_window_full = false;
        let mut idle = 0;
        let mut next_check = Instant::now() + timeout / CHECKS;
        let mut known = *shortage.borrow_and_update();
        // The state at the last request: what clients had accepted if no stream could send, and since when the
        // connection had no stream.
        let mut closed_with: Option<u64> = None;
        let mut without_stream: Option<Instant> = None;
        loop {
            tokio::select! {
                () = sleep_until(next_check) => {}
                // The server outlives the connections, so the channel stays open except in tests.
                Ok(()) = shortage.changed() => {
                    let latest = *shortage.borrow_and_update();
                    if latest.of_memory != known.of_memory {
                        self.streams.lock().iter().filter_map(Weak::upgrade).for_each(|stream| stream.give_up_memory());
                        let taken = self.taken.load(Ordering::Relaxed);
                        if !budget.is_open() && closed_with == Some(taken) {
                            return CloseReason::Memory;
                        }
                        closed_with = (!budget.is_open()).then_some(taken);
                    }
                    if latest.of_connections != known.of_connections {
                        let has_stream = self.streams.lock().iter().any(|stream| stream.strong_count() > 0);
                        let since = *without_stream.get_or_insert_with(Instant::now);
                        if has_stream {
                            without_stream = None;
                        } else if since.elapsed() > IDLE_IN_SHORTAGE {
                            return CloseReason::Idle;
                        }
                    }
                    known = latest;
                    continue;
                }
            }
            next_check = Instant::now() + timeout / CHECKS;
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

    use tokio::time::sleep;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn no_shortage() -> watch::Receiver<Shortage> {
        watch::Sender::default().subscribe()
    }

    /// Adds a stream. If `waits`, the stream has data but its client has no window; otherwise it has no data.
    fn stream(connection: &Arc<StallDetector>, waits: bool) -> (Arc<StreamProgress>, impl Future<Output = ()> + use<>) {
        let progress = connection.stream();
        if waits {
            progress.waits();
        }
        (Arc::clone(&progress), poll_fn(move |cx| progress.poll_stalled(cx)))
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_stream_whose_client_accepts_no_pending_data_has_stalled() {
        let connection = Arc::<StallDetector>::default();
        let watch = Arc::clone(&connection);
        tokio::spawn(async move { watch.close_reason(TIMEOUT, no_shortage(), &Budget::default()).await });
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
    async fn a_stream_does_not_stall_before_the_timeout() {
        let connection = Arc::<StallDetector>::default();
        let watch = Arc::clone(&connection);
        tokio::spawn(async move { watch.close_reason(TIMEOUT, no_shortage(), &Budget::default()).await });
        let (_, task) = stream(&connection, true);
        let task = tokio::spawn(task);
        sleep(TIMEOUT - Duration::from_secs(1)).await;
        assert!(!task.is_finished());
        sleep(TIMEOUT / CHECKS + Duration::from_secs(2)).await;
        assert!(task.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_stalls_when_no_client_accepts_data_after_a_stream_has_stalled() {
        let connection = Arc::<StallDetector>::default();
        let watch = Arc::clone(&connection);
        let stalled = tokio::spawn(async move { watch.close_reason(TIMEOUT, no_shortage(), &Budget::default()).await });
        let (_, task) = stream(&connection, true);
        tokio::spawn(task);
        sleep(TIMEOUT * 2).await;
        assert!(!stalled.is_finished(), "the stream stalled at most a minute ago");
        sleep(TIMEOUT / 2).await;
        assert!(stalled.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_other_streams_have_no_data_stays_open() {
        let connection = Arc::<StallDetector>::default();
        let watch = Arc::clone(&connection);
        let stalled = tokio::spawn(async move { watch.close_reason(TIMEOUT, no_shortage(), &Budget::default()).await });
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
        assert!(stalled.is_finished(), "the other stream cannot send data either");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_a_client_that_accepts_data_stays_open() {
        let connection = Arc::<StallDetector>::default();
        let watch = Arc::clone(&connection);
        let stalled = tokio::spawn(async move { watch.close_reason(TIMEOUT, no_shortage(), &Budget::default()).await });
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
        let reason = tokio::spawn(async move { watch.close_reason(TIMEOUT, no_shortage(), &Budget::default()).await });
        let quiet = connection.stream();
        sleep(TIMEOUT * 20).await;
        assert!(!reason.is_finished(), "the connection has a stream, even though it sends no data");
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

    #[tokio::test(start_paused = true)]
    async fn when_memory_is_short_a_stream_ends_whose_client_accepts_no_data() {
        let connection = Arc::<StallDetector>::default();
        let (watch, shortage) = (Arc::clone(&connection), watch::Sender::<Shortage>::default());
        let receiver = shortage.subscribe();
        tokio::spawn(async move { watch.close_reason(TIMEOUT, receiver, &Budget::default()).await });
        let (_, idle) = stream(&connection, false);
        let (slow, slow_task) = stream(&connection, true);
        let (unread, unread_task) = stream(&connection, true);
        let tasks = [idle, slow_task, unread_task]
            .map(|task| Box::pin(task) as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>);
        let tasks = tasks.map(tokio::spawn);
        for _ in 0..3 {
            sleep(Duration::from_millis(100)).await;
            shortage.send_modify(|shortage| shortage.of_memory += 1);
            sleep(Duration::from_millis(1)).await;
            slow.took(1);
            slow.waits();
        }
        assert_eq!(tasks.map(|task| task.is_finished()), [false, false, true]);
        assert!(unread.has_ended_for_memory() && !slow.has_ended_for_memory());
    }

    #[tokio::test(start_paused = true)]
    async fn when_memory_is_short_a_connection_ends_whose_socket_accepts_no_data_or_whose_client_acknowledges_none() {
        let full_socket = |budget: &Budget| budget.record_write(false);
        let unacknowledged = |budget: &Budget| (0..100).for_each(|_| budget.record_data(1));
        let closed: [fn(&Budget); 2] = [full_socket, unacknowledged];
        for (accepts, close) in [(true, closed[0]), (true, closed[1]), (false, closed[0]), (false, closed[1])] {
            let connection = Arc::<StallDetector>::default();
            let (watch, shortage) = (Arc::clone(&connection), watch::Sender::<Shortage>::default());
            let receiver = shortage.subscribe();
            let (stream, _) = stream(&connection, false);
            let reason = tokio::spawn(async move {
                let budget = Budget::default();
                close(&budget);
                watch.close_reason(TIMEOUT, receiver, &budget).await
            });
            for _ in 0..3 {
                sleep(Duration::from_millis(100)).await;
                shortage.send_modify(|shortage| shortage.of_memory += 1);
                if accepts {
                    stream.took(1);
                }
            }
            sleep(Duration::from_millis(100)).await;
            assert_eq!(reason.is_finished(), !accepts);
            reason.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn when_places_are_short_a_connection_without_streams_is_closed() {
        for has_stream in [true, false] {
            let connection = Arc::<StallDetector>::default();
            let (watch, shortage) = (Arc::clone(&connection), watch::Sender::<Shortage>::default());
            let receiver = shortage.subscribe();
            let _stream = has_stream.then(|| stream(&connection, false));
            let reason = tokio::spawn(async move { watch.close_reason(TIMEOUT, receiver, &Budget::default()).await });
            let request = || shortage.send_modify(|shortage| shortage.of_connections += 1);
            sleep(TIMEOUT).await;
            request();
            sleep(IDLE_IN_SHORTAGE / 2).await;
            request();
            sleep(Duration::from_millis(1)).await;
            assert!(!reason.is_finished(), "its first stream may follow");
            sleep(IDLE_IN_SHORTAGE).await;
            request();
            sleep(Duration::from_millis(1)).await;
            assert_eq!(reason.is_finished(), !has_stream);
            reason.abort();
        }
    }
}
