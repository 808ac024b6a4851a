//! The budgets of one connection: how much it reads and sends in one turn of its task, how many small frames it sends
//! before the client has acknowledged them, and how many answers it accepts to PINGs that it has not sent.
//!
//! In: the bytes that are read from the socket, written to it, and passed to h2; PINGs and their answers. Out: whether
//! more bytes may follow. Always holds: within one turn a connection reads and sends a bounded number of bytes, so that
//! a flood does not delay other connections; while the socket is full, no data is passed to h2, which would buffer it;
//! the number of unacknowledged small frames stays below the limit at which clients close the connection.

use std::{
    future::poll_fn,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    task::{Context, Poll},
};

/// Bytes read in a turn: some hundred requests, or some thousand of the smallest frames.
const READ_PER_TURN: usize = 64 * 1024;
/// Bytes read in a turn while memory is short: some requests.
const READ_IN_SHORTAGE: usize = 1024;
/// Bytes read while the socket is full. A client may have to send data before it can read, but the amount is limited.
const READ_WHILE_FULL: usize = 1024 * 1024;
/// Bytes passed to h2 in a turn. The last frame may exceed the limit.
const SEND_PER_TURN: usize = 64 * 1024;
/// Bytes that the headers or the trailers of a response count as.
const HEADERS: usize = 64;
/// A DATA frame with fewer bytes is small. Clients with h2 0.4.16 or newer add up by how much the frames that the
/// readers of their streams leave unread are smaller, and close a connection with `too_many_data_frames` when the sum
/// is too large.
const SMALL_FRAME: usize = 256;
/// The maximum of this sum over the frames that no answered PING covers. Such clients accept at least the sum of 100 of
/// the smallest frames (`DEFAULT_DATA_FRAME_BUDGET`). Frames that an answered PING covers may still be unread, so the
/// maximum is less than half of that.
const MAX_MISSING: usize = 48 * SMALL_FRAME;
/// The maximum number of answers to PINGs that were not sent. A client has no reason to send any, except one for the
/// PING with which h2 ends a connection, and h2 logs each of them.
const MAX_UNASKED_PONGS: usize = 100;

/// Shared by a connection, its transport and its streams, which all run in one task.
#[derive(Default)]
pub(super) struct Budget {
    read: AtomicUsize,
    sent: AtomicUsize,
    socket_full: AtomicBool,
    paused: AtomicBool,
    read_while_full: AtomicUsize,
    /// By how much the frames that no answered PING covers are smaller than [`SMALL_FRAME`], in bytes.
    missing: AtomicUsize,
    /// PINGs that the client has not answered.
    unanswered_pings: AtomicUsize,
    unasked_pongs: AtomicUsize,
}

// === impl Budget ===

impl Budget {
    /// Begins a turn of the connection's task, with or without a read budget, which is smaller while memory is short.
    pub(super) fn begin_turn(&self, may_read: bool, has_memory: bool) {
        let remaining = match (may_read, has_memory) {
            (false, _) => 0,
            (true, false) => READ_IN_SHORTAGE,
            (true, true) => READ_PER_TURN,
        };
        self.read.store(READ_PER_TURN - remaining, Relaxed);
        self.sent.store(0, Relaxed);
    }

    /// Returns how many more bytes may be read in this turn.
    pub(super) fn remaining_read(&self) -> usize {
        READ_PER_TURN.saturating_sub(self.read.load(Relaxed))
    }

    /// Begins or ends a pause, in which nothing is read. The caller ends it: no byte of the client does.
    pub(super) fn pause(&self, paused: bool) {
        self.paused.store(paused, Relaxed);
    }

    /// Returns whether reading has to wait: for the end of a pause, until the client reads, or forever because the
    /// connection is flooded. In the second case, the connection wakes up when the socket becomes writable.
    pub(super) fn must_not_read(&self) -> bool {
        let must_write_first = self.is_socket_full() && self.read_while_full.load(Relaxed) >= READ_WHILE_FULL;
        must_write_first || self.paused.load(Relaxed) || self.is_flooded()
    }

    pub(super) fn record_read(&self, bytes: usize) {
        self.read.fetch_add(bytes, Relaxed);
        self.read_while_full.fetch_add(bytes, Relaxed);
    }

    /// Records whether the socket accepted a write.
    pub(super) fn record_write(&self, accepted: bool) {
        self.socket_full.store(!accepted, Relaxed);
        if accepted {
            self.read_while_full.store(0, Relaxed);
        }
    }

    /// Returns whether streams can send at all. If not, the connection waits for the socket or for the answer to a
    /// PING.
    pub(super) fn is_open(&self) -> bool {
        !self.is_socket_full() && self.missing.load(Relaxed) < MAX_MISSING
    }

    fn may_send(&self) -> bool {
        self.sent.load(Relaxed) < SEND_PER_TURN && self.missing.load(Relaxed) < MAX_MISSING
    }

    /// Ready when a stream may pass a frame to h2. Otherwise the connection polls the stream again in a later turn.
    pub(super) fn poll_send(&self, cx: &Context<'_>) -> Poll<()> {
        if self.may_send() {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits until a stream may pass a frame to h2.
    pub(super) async fn may_send_now(&self) {
        poll_fn(|cx| self.poll_send(cx)).await;
    }

    pub(super) fn record_headers(&self) {
        self.sent.fetch_add(HEADERS, Relaxed);
    }

    pub(super) fn is_socket_full(&self) -> bool {
        self.socket_full.load(Relaxed)
    }

    /// Records a DATA frame that was passed to h2.
    pub(super) fn record_data(&self, bytes: usize) {
        self.sent.fetch_add(bytes, Relaxed);
        self.missing.fetch_add(SMALL_FRAME.saturating_sub(bytes), Relaxed);
    }

    /// Returns by how many bytes the frames that no answered PING covers are too small.
    pub(super) fn unacknowledged(&self) -> usize {
        self.missing.load(Relaxed)
    }

    /// Returns whether a PING should be sent to acknowledge small frames. The PING is sent at half of the limit, so
    /// that its answer can arrive before the limit is reached.
    pub(super) fn needs_ping(&self) -> bool {
        self.missing.load(Relaxed) >= MAX_MISSING / 2
    }

    /// Records that a PING is sent.
    pub(super) fn record_ping(&self) {
        self.unanswered_pings.fetch_add(1, Relaxed);
    }

    /// Records answers to PINGs that have arrived.
    pub(super) fn record_pongs(&self, pongs: usize) {
        // As in `acknowledge`, no other update happens meanwhile.
        let unanswered = self.unanswered_pings.load(Relaxed);
        self.unanswered_pings.store(unanswered.saturating_sub(pongs), Relaxed);
        self.unasked_pongs.fetch_add(pongs.saturating_sub(unanswered), Relaxed);
    }

    /// Returns whether the client has sent more answers to PINGs than any client has a reason to.
    pub(super) fn is_flooded(&self) -> bool {
        self.unasked_pongs.load(Relaxed) > MAX_UNASKED_PONGS
    }

    /// Records the answer to a PING, before which `covered` bytes were unacknowledged.
    pub(super) fn acknowledge(&self, covered: usize) {
        // All callers run in one task, so no other update happens between the load and the store.
        self.missing.store(self.missing.load(Relaxed).saturating_sub(covered), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_frames_wait_for_the_answer_to_a_ping_and_large_ones_do_not_count() {
        let budget = Budget::default();
        for _ in 0..1_000 {
            budget.record_data(SMALL_FRAME);
            budget.begin_turn(true, true);
        }
        assert!(budget.may_send() && !budget.needs_ping());
        // 100 of the smallest frames are too many, and the client may have as many unread before the PING.
        for (bytes, most) in [(1, 49), (19, 52), (200, 220)] {
            let mut frames = 0;
            while budget.may_send() {
                budget.record_data(bytes);
                frames += 1;
            }
            assert_eq!((frames, budget.is_open(), budget.needs_ping()), (most, false, true), "of {bytes} bytes");
            assert!(frames * (256 - bytes) < 25_600 / 2, "of {bytes} bytes");
            budget.acknowledge(budget.unacknowledged() / 2);
            assert!(budget.is_open());
            budget.acknowledge(budget.unacknowledged());
        }
    }

    #[test]
    fn a_turn_ends_when_its_send_or_read_budget_is_used_up() {
        let budget = Budget::default();
        budget.record_data(SEND_PER_TURN);
        budget.record_read(READ_PER_TURN + 1);
        assert_eq!((budget.may_send(), budget.remaining_read()), (false, 0));
        budget.begin_turn(true, true);
        assert_eq!((budget.may_send(), budget.remaining_read()), (true, READ_PER_TURN));
        budget.begin_turn(true, false);
        assert_eq!(budget.remaining_read(), READ_IN_SHORTAGE);
        budget.begin_turn(false, true);
        assert_eq!((budget.may_send(), budget.remaining_read()), (true, 0));
    }

    #[test]
    fn answers_to_pings_that_were_not_sent_are_a_flood_and_those_to_others_are_none() {
        let budget = Budget::default();
        for _ in 0..10_000 {
            budget.record_ping();
            budget.record_pongs(1);
        }
        budget.record_ping();
        budget.record_pongs(101);
        assert!(!budget.is_flooded() && !budget.must_not_read());
        budget.record_pongs(1);
        assert!(budget.is_flooded() && budget.must_not_read());
    }

    #[test]
    fn no_stream_sends_while_the_socket_is_full() {
        let budget = Budget::default();
        budget.record_write(false);
        assert!(!budget.is_open());
        budget.record_write(true);
        assert!(budget.is_open());
    }

    #[test]
    fn reading_continues_for_a_while_when_the_socket_is_full_and_stops_in_a_pause() {
        let budget = Budget::default();
        budget.record_read(READ_WHILE_FULL);
        budget.record_write(true);
        budget.record_write(false);
        budget.record_read(READ_WHILE_FULL - 1);
        assert!(!budget.must_not_read());
        budget.record_read(1);
        assert!(budget.must_not_read());
        budget.record_write(true);
        assert!(!budget.must_not_read());
        budget.pause(true);
        assert!(budget.must_not_read());
        budget.pause(false);
        assert!(!budget.must_not_read());
    }
}
