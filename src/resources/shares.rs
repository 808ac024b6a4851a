//! Divides a limited amount of streams, connections or bytes fairly between peers.
//!
//! In: a maximum, and the peers that take a part of it. Out: parts, each given back when it is dropped. Always holds: no
//! more than the maximum is taken; while at least half of it is taken, a peer gets more only if it has less than is free.
//! So one greedy peer leaves half to others, two leave a quarter, and peers with little get more until the last part
//! is taken. The last eighth may be reserved for peers with nearly nothing, so that many greedy peers leave it to others.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// The amount that peers share.
pub struct Pool {
    max: usize,
    taken: AtomicUsize,
    /// A peer with less may have parts of the last eighth.
    little: usize,
}

/// The share of one peer.
pub struct Share {
    pool: Arc<Pool>,
    taken: AtomicUsize,
}

/// A part, given back when it is dropped.
pub struct Taken {
    share: Arc<Share>,
    amount: usize,
}

/// Why a peer gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhausted {
    /// Less is free.
    Full,
    /// The peer has its share.
    Share,
}

// === impl Pool ===

impl Pool {
    pub fn new(max: usize) -> Arc<Self> {
        Self::with_reserve(max, usize::MAX)
    }

    /// The last eighth is for peers that have less than `little`.
    pub fn with_reserve(max: usize, little: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: AtomicUsize::new(0), little })
    }

    pub fn max(&self) -> usize {
        self.max
    }

    /// Returns the share of a new peer.
    pub fn share(self: &Arc<Self>) -> Arc<Share> {
        Arc::new(Share { pool: Arc::clone(self), taken: AtomicUsize::new(0) })
    }

    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.max - self.taken.load(Relaxed)
    }

    /// Checks whether a peer that has `own` may take this amount while `taken` is taken by all peers.
    fn check(&self, taken: usize, own: usize, amount: usize) -> Result<(), Exhausted> {
        let free = self.max.saturating_sub(taken);
        let is_fair = taken < self.max / 2 || own < free;
        let leaves_reserve = own < self.little || amount + self.max / 8 <= free;
        match (amount <= free, is_fair && leaves_reserve) {
            (false, _) => Err(Exhausted::Full),
            (true, false) => Err(Exhausted::Share),
            (true, true) => Ok(()),
        }
    }
}

// === impl Share ===

impl Share {
    /// # Errors
    /// When less is free, or the peer has its share.
    pub fn try_take(self: &Arc<Self>, amount: usize) -> Result<Taken, Exhausted> {
        // Two tasks of one peer that run at the same moment may both take the last part of its share.
        let own = self.taken.load(Relaxed);
        let mut result = Ok(());
        _ = self.pool.taken.fetch_update(Relaxed, Relaxed, |taken| {
            result = self.pool.check(taken, own, amount);
            result.is_ok().then_some(taken + amount)
        });
        result?;
        self.taken.fetch_add(amount, Relaxed);
        Ok(Taken { share: Arc::clone(self), amount })
    }

    /// Returns whether this peer could take this amount now.
    pub fn has_room_for(&self, amount: usize) -> bool {
        self.pool.check(self.pool.taken.load(Relaxed), self.taken.load(Relaxed), amount).is_ok()
    }

    pub fn take_nothing(self: &Arc<Self>) -> Taken {
        Taken { share: Arc::clone(self), amount: 0 }
    }
}

// === impl Taken ===

impl Taken {
    /// Takes more. Returns whether it was free.
    pub fn try_grow(&mut self, amount: usize) -> bool {
        let Ok(mut more) = self.share.try_take(amount) else { return false };
        self.amount += mem::take(&mut more.amount);
        true
    }

    /// Moves the part out of a value that is dropped.
    pub fn take(&mut self) -> Self {
        Self { share: Arc::clone(&self.share), amount: mem::take(&mut self.amount) }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.share.taken.fetch_sub(self.amount, Relaxed);
        self.share.pool.taken.fetch_sub(self.amount, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes parts of this size until the peer gets no more.
    fn take_all(share: &Arc<Share>, amount: usize) -> Vec<Taken> {
        std::iter::from_fn(|| share.try_take(amount).ok()).collect()
    }

    #[test]
    fn a_greedy_peer_leaves_half_and_two_leave_a_quarter_or_more() {
        for unit in [1, 10] {
            let pool = Pool::new(12 * unit);
            let [first, second, third] = [pool.share(), pool.share(), pool.share()];
            let held = take_all(&first, unit);
            assert_eq!((held.len(), first.try_take(unit).err()), (6, Some(Exhausted::Share)));
            let also_held = take_all(&second, unit);
            assert_eq!((also_held.len(), pool.free()), (3, 3 * unit), "as much as is free");
            assert!(third.has_room_for(3 * unit) && !third.has_room_for(3 * unit + 1));
            drop(held);
            assert_eq!(take_all(&second, unit).len(), 3, "up to half, of what is free again");
        }
    }

    #[test]
    fn peers_with_little_get_all_that_is_free() {
        let pool = Pool::new(100);
        let held: Vec<Taken> = (0..100).map(|_| pool.share().try_take(1).ok().unwrap()).collect();
        assert_eq!(pool.share().try_take(1).err(), Some(Exhausted::Full));
        drop(held);
        assert!(pool.share().try_take(1).is_ok());
    }

    #[test]
    fn many_greedy_peers_leave_the_reserve_to_the_first_parts_of_others() {
        let pool = Pool::with_reserve(400, 2);
        let greedy: Vec<_> = (0..30).map(|_| pool.share()).collect();
        let mut held = Vec::new();
        for _ in 0..20 {
            held.extend(greedy.iter().filter_map(|share| share.try_take(1).ok()));
        }
        assert_eq!((pool.free(), greedy[0].try_take(1).err()), (50, Some(Exhausted::Share)));
        let first_parts: Vec<_> = (0..50).map(|_| pool.share().try_take(1)).collect();
        assert!(first_parts.iter().all(Result::is_ok));
        assert_eq!(pool.free(), 0);
    }

    #[test]
    fn what_has_grown_is_given_back_as_a_whole_and_once() {
        let pool = Pool::new(100);
        let share = pool.share();
        let mut held = share.try_take(10).ok().unwrap();
        assert!(held.try_grow(30) && !held.try_grow(61));
        assert_eq!(pool.free(), 60);
        let moved = held.take();
        drop(held);
        assert_eq!(pool.free(), 60);
        drop(moved);
        assert_eq!((pool.free(), share.has_room_for(100)), (100, true));
    }
}
