//! The memory of requests under review and of their answers, and the share of each client.
//!
//! In: clients, and how much memory their requests and answers take. Out: that memory, as soon as it is free. Always
//! holds: all requests and answers together have at most this memory; one client has at most three quarters of it, unless
//! a single request needs more, so that others do not wait for a client that takes all it can.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{AcquireError, Semaphore};

/// The unit of memory.
const KIB: usize = 1024;

/// The memory of all requests and answers.
pub(super) struct ReviewMemory {
    /// One permit for each KiB.
    all: Arc<Semaphore>,
    size: usize,
    /// The share of each client, which ends with its last request.
    shares: Mutex<HashMap<IpAddr, Weak<ClientShare>>>,
}

struct ClientShare {
    /// One permit for each KiB.
    free: Semaphore,
    size: usize,
}

/// The memory of one request, and then of its answer, until this is dropped.
pub(super) struct HeldMemory {
    all: Arc<Semaphore>,
    share: Arc<ClientShare>,
    kib: usize,
}

// === impl ReviewMemory ===

impl ReviewMemory {
    pub(super) fn new(bytes: usize) -> Self {
        let size = bytes.div_ceil(KIB);
        Self { all: Arc::new(Semaphore::new(size)), size, shares: Mutex::default() }
    }

    /// Returns the memory of a new request of this client: none yet.
    pub(super) fn of_request(&self, client: IpAddr) -> HeldMemory {
        let mut shares = self.shares.lock();
        let share = shares.get(&client).and_then(Weak::upgrade).unwrap_or_else(|| {
            shares.retain(|_, share| share.strong_count() > 0);
            let size = self.size - self.size / 4;
            let share = Arc::new(ClientShare { free: Semaphore::new(size), size });
            shares.insert(client, Arc::downgrade(&share));
            share
        });
        HeldMemory { all: Arc::clone(&self.all), share, kib: 0 }
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn free_kib(&self) -> usize {
        self.all.available_permits()
    }
}

// === impl HeldMemory ===

impl HeldMemory {
    pub(super) fn bytes(&self) -> usize {
        self.kib * KIB
    }

    /// Waits until the client has this memory of its share, and then until others do not need it. Cancel safe.
    ///
    /// # Errors
    /// Never: the semaphores are not closed.
    pub(super) async fn grow(&mut self, bytes: usize, has_share: impl FnOnce()) -> Result<(), AcquireError> {
        let kib = self.kib.max(bytes.div_ceil(KIB));
        let of_share = self.share.free.acquire_many(permits(self.of_share(kib) - self.of_share(self.kib))).await?;
        has_share();
        self.all.acquire_many(permits(kib - self.kib)).await?.forget();
        of_share.forget();
        self.kib = kib;
        Ok(())
    }

    /// Changes the memory to that of the answer, which exists already. So if it takes more, the rest is not waited for.
    pub(super) fn settle(&mut self, bytes: usize) {
        let kib = bytes.div_ceil(KIB);
        if kib > self.kib {
            let of_share = permits(self.of_share(kib) - self.of_share(self.kib));
            let Ok(of_share) = self.share.free.try_acquire_many(of_share) else { return };
            let Ok(of_all) = self.all.try_acquire_many(permits(kib - self.kib)) else { return };
            of_all.forget();
            of_share.forget();
        } else {
            self.all.add_permits(self.kib - kib);
            self.share.free.add_permits(self.of_share(self.kib) - self.of_share(kib));
        }
        self.kib = kib;
    }

    /// Returns how much of this memory counts toward the share of the client.
    fn of_share(&self, kib: usize) -> usize {
        kib.min(self.share.size)
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.settle(0);
    }
}

fn permits(kib: usize) -> u32 {
    u32::try_from(kib).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const ATTACKER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    /// Returns memory of this size if it is free.
    async fn held(memory: &ReviewMemory, client: IpAddr, kib: usize) -> Option<HeldMemory> {
        let mut held = memory.of_request(client);
        timeout(Duration::from_secs(1), held.grow(kib * KIB, || {})).await.ok()?.unwrap();
        Some(held)
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_has_three_quarters_and_others_do_not_wait_for_it() {
        let memory = ReviewMemory::new(16 * KIB);
        let mut of_attacker = Vec::new();
        for _ in 0..3 {
            of_attacker.push(held(&memory, ATTACKER, 4).await.unwrap());
        }
        assert!(held(&memory, ATTACKER, 1).await.is_none());
        let own = held(&memory, OTHER, 4).await.unwrap();
        assert!(held(&memory, OTHER, 1).await.is_none(), "there is none");
        drop(of_attacker.pop());
        assert!(held(&memory, ATTACKER, 4).await.is_some());
        assert!(held(&memory, OTHER, 4).await.is_some());
        drop((own, of_attacker));
        assert_eq!(memory.free_kib(), 16);
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_request_may_need_more_than_a_share() {
        let memory = ReviewMemory::new(16 * KIB);
        let mut large = held(&memory, ATTACKER, 16).await.unwrap();
        assert!(held(&memory, ATTACKER, 1).await.is_none() && held(&memory, OTHER, 1).await.is_none());
        large.settle(13 * KIB);
        assert!(held(&memory, ATTACKER, 1).await.is_none() && held(&memory, OTHER, 3).await.is_some());
        large.settle(2 * KIB);
        assert!(held(&memory, ATTACKER, 10).await.is_some() && held(&memory, ATTACKER, 11).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn memory_grows_is_changed_to_that_of_the_answer_and_is_free_when_it_is_dropped() {
        let memory = ReviewMemory::new(16 * KIB);
        let mut held = memory.of_request(ATTACKER);
        for (bytes, kib) in [(1, 1), (KIB + 1, 2), (1, 2), (8 * KIB, 8)] {
            held.grow(bytes, || {}).await.unwrap();
            assert_eq!((memory.free_kib(), held.bytes()), (16 - kib, kib * KIB));
        }
        timeout(Duration::from_secs(1), held.grow(17 * KIB, || {})).await.unwrap_err();
        assert_eq!(memory.free_kib(), 8, "what was waited for is not kept");
        // The answer takes less than was reserved, then more.
        held.settle(9 * KIB);
        assert_eq!(memory.free_kib(), 7);
        held.settle(20 * KIB);
        assert_eq!(memory.free_kib(), 7, "it exists, whether there is memory for it or not");
        held.settle(1);
        assert_eq!(memory.free_kib(), 15);
        drop(held);
        assert_eq!(memory.free_kib(), 16);
        let next = memory.of_request(OTHER);
        assert_eq!(memory.shares.lock().keys().copied().collect::<Vec<_>>(), [OTHER], "no share is left");
        drop(next);
    }
}
