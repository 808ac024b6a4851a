//! The memory of calls, and the part that each connection may have.
//!
//! In: a maximum, and what the calls of connections take. Out: memory that is given back when it is dropped. Always
//! holds: no more than the maximum is taken; while at least half of it is taken, a connection gets more only if it has
//! less than is free; and the last quarter is for connections that have nearly nothing. So one greedy connection leaves half
//! to others, and many together leave a quarter to the first calls of new ones.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A connection with less may have memory of the last quarter, in bytes: that of its first calls.
const FIRST_CALLS: usize = 32 << 10;

/// The memory that connections share, in bytes.
pub(super) struct MemoryPool {
    max: usize,
    taken: AtomicUsize,
}

/// The part of one connection.
pub(super) struct MemoryShare {
    pool: Arc<MemoryPool>,
    taken: AtomicUsize,
}

/// Given back when it is dropped.
pub(super) struct TakenMemory {
    share: Arc<MemoryShare>,
    bytes: usize,
}

// === impl MemoryPool ===

impl MemoryPool {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: AtomicUsize::new(0) })
    }

    /// Returns the share of a new connection.
    pub(super) fn share(self: &Arc<Self>) -> Arc<MemoryShare> {
        Arc::new(MemoryShare { pool: Arc::clone(self), taken: AtomicUsize::new(0) })
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.max - self.taken.load(Ordering::Relaxed)
    }
}

// === impl MemoryShare ===

impl MemoryShare {
    /// Takes memory, or none if too much of it is taken, by all connections or by this one.
    pub(super) fn try_take(self: &Arc<Self>, bytes: usize) -> Option<TakenMemory> {
        // Two calls of one connection that run at the same moment may both be counted as the last permitted one.
        let taken = self.pool.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            self.permits(taken, bytes).then_some(taken + bytes)
        });
        taken.ok()?;
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        Some(TakenMemory { share: Arc::clone(self), bytes })
    }

    /// Returns whether this connection could take memory now.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        self.permits(self.pool.taken.load(Ordering::Relaxed), bytes)
    }

    pub(super) fn take_nothing(self: &Arc<Self>) -> TakenMemory {
        TakenMemory { share: Arc::clone(self), bytes: 0 }
    }

    fn permits(&self, taken: usize, bytes: usize) -> bool {
        let (own, max) = (self.taken.load(Ordering::Relaxed), self.pool.max);
        let free = max.saturating_sub(taken);
        let is_fair = taken < max / 2 || own < free;
        let is_first = own < FIRST_CALLS || bytes + max / 4 <= free;
        bytes <= free && is_fair && is_first
    }
}

// === impl TakenMemory ===

impl TakenMemory {
    /// Takes more. Returns whether it was free.
    pub(super) fn try_grow(&mut self, bytes: usize) -> bool {
        let Some(mut more) = self.share.try_take(bytes) else { return false };
        self.bytes += mem::take(&mut more.bytes);
        true
    }

    /// Moves it out of a value that is dropped.
    pub(super) fn take(&mut self) -> Self {
        Self { share: Arc::clone(&self.share), bytes: mem::take(&mut self.bytes) }
    }
}

impl Drop for TakenMemory {
    fn drop(&mut self) {
        self.share.taken.fetch_sub(self.bytes, Ordering::Relaxed);
        self.share.pool.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes 10 bytes until the connection gets no more.
    fn take_all(share: &Arc<MemoryShare>) -> Vec<TakenMemory> {
        std::iter::from_fn(|| share.try_take(10)).collect()
    }

    #[test]
    fn a_greedy_connection_leaves_half_of_the_memory_and_two_leave_a_quarter_or_more() {
        let pool = MemoryPool::new(120);
        let [first, second, third] = [pool.share(), pool.share(), pool.share()];
        let held = take_all(&first);
        assert_eq!((held.len(), first.has_room_for(1)), (6, false));
        let also_held = take_all(&second);
        assert_eq!((also_held.len(), pool.free()), (3, 30));
        assert!(third.has_room_for(30) && !third.has_room_for(31));
        drop(held);
        assert_eq!(take_all(&second).len(), 3);
    }

    #[test]
    fn many_greedy_connections_leave_a_quarter_of_the_memory_to_the_first_calls_of_others() {
        const CALL: usize = 16 << 10;
        let pool = MemoryPool::new(400 * CALL);
        let greedy: Vec<_> = (0..30).map(|_| pool.share()).collect();
        let mut held = Vec::new();
        for _ in 0..20 {
            held.extend(greedy.iter().filter_map(|share| share.try_take(CALL)));
        }
        assert_eq!(pool.free(), 100 * CALL);
        let first_calls: Vec<_> = (0..100).map(|_| pool.share().try_take(CALL)).collect();
        assert!(first_calls.iter().all(Option::is_some));
        assert_eq!(pool.free(), 0);
    }

    #[test]
    fn what_has_grown_is_given_back_as_a_whole_and_once() {
        let pool = MemoryPool::new(100);
        let share = pool.share();
        let mut held = share.try_take(10).unwrap();
        assert!(held.try_grow(30) && !held.try_grow(61));
        assert_eq!(pool.free(), 60);
        let moved = held.take();
        drop(held);
        assert_eq!(pool.free(), 60);
        drop(moved);
        assert_eq!((pool.free(), share.has_room_for(100)), (100, true));
    }
}
