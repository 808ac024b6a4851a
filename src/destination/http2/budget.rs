//! How much one connection may take of the process at a time, and send before its client has shown that it keeps up.
//!
//! In: what is read from the socket, written to it, and handed to h2. Out: whether there may be more. Always holds: within
//! one turn of its task a connection reads and is handed a bounded number of bytes, so that a flood waits for its next turn
//! like everybody else; while the socket is full nothing is handed to h2, which would keep it in memory; and of the frames
//! that clients count as too small there are never more under way than they bear.

use std::{
    future::poll_fn,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    task::{Context, Poll},
};

/// What is read in a turn: some hundred requests, or some thousand of the smallest frames.
const READ: usize = 64 * 1024;
/// What is read while the socket is full: the client may have to say something before it can read, but not without end.
const READ_WHILE_FULL: usize = 1024 * 1024;
/// What is handed to h2 in a turn, give or take one piece.
const HANDED: usize = 64 * 1024;
/// What the head or the end of a response counts.
const HEADERS: usize = 64;
/// A DATA frame of fewer bytes is small: h2's clients, from 0.4.16 on, close a connection with `too_many_data_frames` when
/// small ones pile up that their streams' readers have not taken.
const SMALL: usize = 256;
/// What they bear is at least 100 of the smallest (`DEFAULT_DATA_FRAME_BUDGET`). What a PING that was answered covers may still
/// wait for its readers, so it is less than half of that.
const SMALL_UNDER_WAY: usize = 48;

/// Shared by a connection, its transport and its streams, which all run in one task.
#[derive(Default)]
pub(in crate::destination) struct Pace {
    read: AtomicUsize,
    handed: AtomicUsize,
    full: AtomicBool,
    read_while_full: AtomicUsize,
    /// Small frames that no answered PING covers.
    small: AtomicUsize,
}

// === impl Pace ===

impl Pace {
    /// A turn of the connection's task begins; in it may be read, or not.
    pub(in crate::destination) fn begin_turn(&self, may_read: bool) {
        self.read.store(if may_read { 0 } else { READ }, Relaxed);
        self.handed.store(0, Relaxed);
    }

    /// How many more bytes may be read in this turn.
    pub(in crate::destination) fn may_read(&self) -> usize {
        READ.saturating_sub(self.read.load(Relaxed))
    }

    /// Whether reading has to wait until the client reads: that the socket takes more will wake the connection.
    pub(in crate::destination) fn must_write_first(&self) -> bool {
        self.is_full() && self.read_while_full.load(Relaxed) >= READ_WHILE_FULL
    }

    pub(in crate::destination) fn read(&self, bytes: usize) {
        self.read.fetch_add(bytes, Relaxed);
        self.read_while_full.fetch_add(bytes, Relaxed);
    }

    /// Whether the socket took what was written to it.
    pub(in crate::destination) fn wrote(&self, taken: bool) {
        self.full.store(!taken, Relaxed);
        if taken {
            self.read_while_full.store(0, Relaxed);
        }
    }

    /// Whether streams can send at all. If not, there is something to wait for: the socket, or the answer to a PING.
    pub(in crate::destination) fn is_open(&self) -> bool {
        !self.is_full() && self.small.load(Relaxed) < SMALL_UNDER_WAY
    }

    fn may_send(&self) -> bool {
        self.handed.load(Relaxed) < HANDED && self.small.load(Relaxed) < SMALL_UNDER_WAY
    }

    /// Ready when a stream may hand h2 something, which may be in another turn: the connection asks its streams again when
    /// they may.
    pub(in crate::destination) fn poll_turn(&self, cx: &Context<'_>) -> Poll<()> {
        if self.may_send() {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    pub(in crate::destination) async fn turn(&self) {
        poll_fn(|cx| self.poll_turn(cx)).await;
    }

    pub(in crate::destination) fn sent_headers(&self) {
        self.handed.fetch_add(HEADERS, Relaxed);
    }

    pub(in crate::destination) fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    /// A DATA frame was handed to h2.
    pub(in crate::destination) fn sent(&self, bytes: usize) {
        self.handed.fetch_add(bytes, Relaxed);
        if bytes < SMALL {
            self.small.fetch_add(1, Relaxed);
        }
    }

    /// How many small frames were sent since the last PING that was answered.
    pub(in crate::destination) fn small(&self) -> usize {
        self.small.load(Relaxed)
    }

    /// Whether a PING should be sent for them. Early, so that its answer may be there before they are too many.
    pub(in crate::destination) fn wants_answer(&self) -> bool {
        self.small.load(Relaxed) >= SMALL_UNDER_WAY / 2
    }

    /// A PING was answered that was sent after so many small frames.
    pub(in crate::destination) fn answered(&self, covered: usize) {
        // One task: nothing comes between.
        self.small.store(self.small.load(Relaxed).saturating_sub(covered), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_frames_wait_for_the_answer_to_a_ping_and_large_ones_do_not_count() {
        let pace = Pace::default();
        for _ in 0..1_000 {
            pace.sent(SMALL);
            pace.begin_turn(true);
        }
        assert!(pace.may_send() && !pace.wants_answer());
        while pace.may_send() {
            pace.sent(19);
        }
        assert_eq!((pace.small(), pace.is_open(), pace.wants_answer()), (SMALL_UNDER_WAY, false, true));
        pace.answered(SMALL_UNDER_WAY / 2);
        assert!(pace.is_open());
    }

    #[test]
    fn a_turn_ends_when_much_was_handed_over_or_read() {
        let pace = Pace::default();
        pace.sent(HANDED);
        pace.read(READ + 1);
        assert_eq!((pace.may_send(), pace.may_read()), (false, 0));
        pace.begin_turn(true);
        assert_eq!((pace.may_send(), pace.may_read()), (true, READ));
        pace.begin_turn(false);
        assert_eq!((pace.may_send(), pace.may_read()), (true, 0));
    }

    #[test]
    fn nothing_is_handed_over_while_the_socket_is_full() {
        let pace = Pace::default();
        pace.wrote(false);
        assert!(!pace.is_open());
        pace.wrote(true);
        assert!(pace.is_open());
    }

    #[test]
    fn while_the_socket_is_full_reading_goes_on_for_a_while() {
        let pace = Pace::default();
        pace.read(READ_WHILE_FULL);
        pace.wrote(true);
        pace.wrote(false);
        pace.read(READ_WHILE_FULL - 1);
        assert!(!pace.must_write_first());
        pace.read(1);
        assert!(pace.must_write_first());
        pace.wrote(true);
        assert!(!pace.must_write_first());
    }
}
