//! Whether clients take what waits for them: of each stream, and of the connection that carries it.
//!
//! In: what [`super::connection`] says of each stream. Out: which streams have stalled, and whether their connection has, or
//! serves nobody.

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

/// How often is looked within the time that a client has. Streams have no timers: there may be a hundred thousand.
const LOOKS: u32 = 6;
/// Connections on which there was no stream for five times as long are of no use, and their number is limited.
const IDLE_LOOKS: u32 = 5 * LOOKS;

/// What a client has room for on a new stream, unless it says otherwise; proxies do not (RFC 9113, section 6.9.2).
const STREAM_WINDOW: usize = 65_535;

/// Of one stream.
#[derive(Default)]
pub(in crate::destination) struct Progress {
    connection: Arc<ConnectionProgress>,
    waiting: AtomicBool,
    /// Bytes that its client took.
    taken: AtomicUsize,
    /// How often it was found waiting since its client took something.
    looks: AtomicU32,
    stalled: AtomicBool,
    task: AtomicWaker,
}

/// Why a connection is not worth its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::destination) enum Useless {
    /// Nobody takes anything on it.
    Stalled,
    /// There was no stream on it for long.
    Idle,
}

/// Of all streams of a connection together.
#[derive(Default)]
pub(in crate::destination) struct ConnectionProgress {
    /// How often any stream's client took something.
    taken: AtomicU64,
    streams: Mutex<Vec<Weak<Progress>>>,
}

/// What was found at a look.
#[derive(Default)]
struct Look {
    streams: usize,
    /// For their clients.
    waiting: usize,
    /// Their clients' time was over.
    ended: usize,
    /// And they had taken less than a window.
    ended_short: usize,
}

// === impl Progress ===

impl Progress {
    /// The client has no room for what is to be sent.
    pub(in crate::destination) fn waits(&self) {
        self.waiting.store(true, Ordering::Relaxed);
    }

    /// The client had room for so many bytes.
    pub(in crate::destination) fn took(&self, bytes: usize) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        if self.waiting.swap(false, Ordering::Relaxed) {
            self.looks.store(0, Ordering::Relaxed);
            self.stalled.store(false, Ordering::Relaxed);
        }
        self.connection.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Ready when the client has taken nothing for too long.
    pub(in crate::destination) fn poll_stalled(&self, cx: &Context<'_>) -> Poll<()> {
        self.task.register(cx.waker());
        if self.is_stalled() { Poll::Ready(()) } else { Poll::Pending }
    }

    pub(in crate::destination) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Whether its client's time is over with this look.
    fn look(&self) -> bool {
        // The first look finds what may wait for a moment only.
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
    /// A stream begins.
    pub(in crate::destination) fn begin(self: &Arc<Self>) -> Arc<Progress> {
        let progress = Arc::new(Progress { connection: Arc::clone(self), ..Progress::default() });
        let mut streams = self.streams.lock();
        if streams.len() == streams.capacity() {
            streams.retain(|stream| stream.strong_count() > 0);
        }
        streams.push(Arc::downgrade(&progress));
        progress
    }

    /// Ends the streams whose clients take nothing for this long. Resolves when one was ended so, and for as long again no
    /// client of the connection took anything: then its window is shut by what they keep unread, and only its end helps. A
    /// client that took a whole window and no more may have shut only its own, though; of its connection nothing is known
    /// before another waits. And when there was no stream for long.
    pub(in crate::destination) async fn useless(&self, timeout: Duration) -> Useless {
        let mut since_then: Option<(u64, u32)> = None;
        let mut is_shut = false;
        let mut idle = 0;
        loop {
            sleep(timeout / LOOKS).await;
            let Look { streams, waiting, ended, ended_short } = self.look();
            idle = if streams == 0 { idle + 1 } else { 0 };
            if idle > IDLE_LOOKS {
                return Useless::Idle;
            }
            let taken = self.taken.load(Ordering::Relaxed);
            since_then = match since_then {
                Some((then, LOOKS..)) if then == taken => return Useless::Stalled,
                Some((then, looks)) if then == taken => {
                    is_shut |= ended_short > 0;
                    Some((then, looks + u32::from(is_shut || waiting > 0 || streams == 0)))
                }
                _ => {
                    is_shut = ended_short > 0;
                    (ended > 0).then_some((taken, 1))
                }
            };
        }
    }

    fn look(&self) -> Look {
        let mut streams = self.streams.lock();
        streams.retain(|stream| stream.strong_count() > 0);
        let mut look = Look { streams: streams.len(), ..Look::default() };
        for stream in streams.iter().filter_map(Weak::upgrade) {
            look.waiting += usize::from(stream.waiting.load(Ordering::Relaxed));
            let ended = stream.look();
            look.ended += usize::from(ended);
            look.ended_short += usize::from(ended && stream.taken.load(Ordering::Relaxed) < STREAM_WINDOW);
        }
        look
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// A stream whose client has no room, or that has nothing to send.
    fn stream(connection: &Arc<ConnectionProgress>, waits: bool) -> (Arc<Progress>, impl Future<Output = ()> + use<>) {
        let progress = connection.begin();
        if waits {
            progress.waits();
        }
        (Arc::clone(&progress), poll_fn(move |cx| progress.poll_stalled(cx)))
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_stream_whose_client_takes_nothing_of_what_waits_is_ended() {
        let connection = Arc::<ConnectionProgress>::default();
        let watch = Arc::clone(&connection);
        tokio::spawn(async move { watch.useless(TIMEOUT).await });
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
    async fn a_stream_has_its_whole_time() {
        let connection = Arc::<ConnectionProgress>::default();
        let watch = Arc::clone(&connection);
        tokio::spawn(async move { watch.useless(TIMEOUT).await });
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
        let stalled = tokio::spawn(async move { watch.useless(TIMEOUT).await });
        let (_, task) = stream(&connection, true);
        tokio::spawn(task);
        sleep(TIMEOUT * 2).await;
        assert!(!stalled.is_finished(), "the stream ended a minute ago at most");
        sleep(TIMEOUT / 2).await;
        assert!(stalled.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_other_streams_have_nothing_to_say_stays() {
        let connection = Arc::<ConnectionProgress>::default();
        let watch = Arc::clone(&connection);
        let stalled = tokio::spawn(async move { watch.useless(TIMEOUT).await });
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
        assert!(stalled.is_finished(), "then it cannot be told either");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_on_which_somebody_takes_something_stays() {
        let connection = Arc::<ConnectionProgress>::default();
        let watch = Arc::clone(&connection);
        let stalled = tokio::spawn(async move { watch.useless(TIMEOUT).await });
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
    async fn a_connection_without_a_stream_is_of_no_use_after_a_while() {
        let connection = Arc::<ConnectionProgress>::default();
        let watch = Arc::clone(&connection);
        let useless = tokio::spawn(async move { watch.useless(TIMEOUT).await });
        let quiet = connection.begin();
        sleep(TIMEOUT * 20).await;
        assert!(!useless.is_finished(), "it has a stream, though that says nothing");
        drop(quiet);
        sleep(TIMEOUT * 4).await;
        assert!(!useless.is_finished());
        sleep(TIMEOUT * 2).await;
        assert_eq!(useless.await.unwrap(), Useless::Idle);
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
