//! Permits for streams, unfinished requests and connections, as those of a semaphore.
//!
//! In: a maximum, and the peers that acquire permits. Out: permits, each held until it is dropped. Always holds: no
//! more permits than the maximum are held; while at least half of them are held, a peer gets a permit only if it holds
//! fewer than are free. So one greedy peer leaves half of the permits to others, two leave a third, and peers with few
//! permits get more until the last one is held.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

/// The permits that peers share.
pub(super) struct Permits {
    max: usize,
    held: AtomicUsize,
}

/// The permits of one peer.
pub(super) struct PermitShare {
    permits: Arc<Permits>,
    held: AtomicUsize,
}

/// Held until it is dropped.
pub(super) struct Permit(Arc<PermitShare>);

/// Why a peer gets no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exhausted {
    /// All permits are held.
    Full,
    /// The peer holds as many permits as are free, or more.
    Share,
}

/// The permits for connections. A peer is an IP address.
pub(super) struct ConnectionPermits {
    permits: Arc<Permits>,
    shares: Mutex<HashMap<IpAddr, Weak<PermitShare>>>,
}

// === impl Permits ===

impl Permits {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, held: AtomicUsize::new(0) })
    }

    /// Returns the share of a new peer.
    pub(super) fn share(self: &Arc<Self>) -> Arc<PermitShare> {
        Arc::new(PermitShare { permits: Arc::clone(self), held: AtomicUsize::new(0) })
    }
}

// === impl PermitShare ===

impl PermitShare {
    /// # Errors
    /// When all permits are held, or too many of them by this peer.
    pub(super) fn try_acquire(self: &Arc<Self>) -> Result<Permit, Exhausted> {
        let max = self.permits.max;
        let mine = self.held.load(Ordering::Relaxed);
        let mut refusal = Exhausted::Full;
        // Two requests of one peer that run at the same moment may both be counted as the last permitted one.
        let taken = self.permits.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            let free = max.saturating_sub(held);
            refusal = if free == 0 { Exhausted::Full } else { Exhausted::Share };
            (free > 0 && (held < max / 2 || mine < free)).then_some(held + 1)
        });
        taken.map_err(|_| refusal)?;
        self.held.fetch_add(1, Ordering::Relaxed);
        Ok(Permit(Arc::clone(self)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
        self.0.permits.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the address by which the connections of a peer are limited. `None` for connections from this host: behind
/// the Pod's proxy, the connections of all clients come from this host.
pub(super) fn limited_peer(peer: IpAddr, local: IpAddr) -> Option<IpAddr> {
    let (peer, local) = (peer.to_canonical(), local.to_canonical());
    (!peer.is_loopback() && peer != local).then_some(peer)
}

// === impl ConnectionPermits ===

impl ConnectionPermits {
    pub(super) fn new(max: usize) -> Self {
        Self { permits: Permits::new(max), shares: Mutex::default() }
    }

    /// Acquires a permit for a connection between these addresses.
    ///
    /// # Errors
    /// When all permits are held, or too many of them by this peer.
    pub(super) fn try_acquire(&self, peer: IpAddr, local: IpAddr) -> Result<Permit, Exhausted> {
        let Some(peer) = limited_peer(peer, local) else { return self.permits.share().try_acquire() };
        let mut shares = self.shares.lock();
        if shares.len() > 2 * self.permits.max {
            shares.retain(|_, share| share.strong_count() > 0);
        }
        let share = shares.get(&peer).and_then(Weak::upgrade).unwrap_or_else(|| self.permits.share());
        let permit = share.try_acquire()?;
        shares.insert(peer, Arc::downgrade(&share));
        Ok(permit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acquires permits until the peer gets no more.
    fn acquire_all(share: &Arc<PermitShare>) -> Vec<Permit> {
        std::iter::from_fn(|| share.try_acquire().ok()).collect()
    }

    #[test]
    fn a_greedy_peer_leaves_half_of_the_places_and_two_leave_a_third() {
        let permits = Permits::new(12);
        let [first, second] = [permits.share(), permits.share()];
        let held = acquire_all(&first);
        assert_eq!((held.len(), first.try_acquire().err()), (6, Some(Exhausted::Share)));
        let also_held = acquire_all(&second);
        assert_eq!(also_held.len(), 3, "as many as are free");
        drop(held);
        assert_eq!(acquire_all(&second).len(), 3, "up to half, of the permits that are free again");
    }

    #[test]
    fn peers_with_few_places_get_all_that_are_free() {
        let permits = Permits::new(100);
        let peers: Vec<_> = (0..100).map(|_| permits.share()).collect();
        let held: Vec<Permit> = peers.iter().map(|peer| peer.try_acquire().ok().unwrap()).collect();
        assert_eq!(permits.share().try_acquire().err(), Some(Exhausted::Full));
        drop(held);
        assert!(permits.share().try_acquire().is_ok());
    }

    #[test]
    fn a_dropped_place_is_free_again() {
        let permits = Permits::new(1);
        let permit = permits.share().try_acquire().ok().unwrap();
        assert_eq!(permits.share().try_acquire().err(), Some(Exhausted::Full));
        drop(permit);
        assert!(permits.share().try_acquire().is_ok());
    }

    #[test]
    fn the_connections_of_an_address_are_one_share_except_those_of_this_host() {
        const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
        let permits = ConnectionPermits::new(12);
        let acquire_all = |peer: &str| {
            let peer = peer.parse().unwrap();
            std::iter::from_fn(|| permits.try_acquire(peer, SERVER).ok()).collect::<Vec<_>>()
        };
        assert_eq!(acquire_all("10.0.0.2").len(), 6);
        assert_eq!(acquire_all("::ffff:10.0.0.1").len(), 12, "the Pod's own address");
        assert_eq!(acquire_all("127.0.0.1").len(), 12);
        let greedy = [acquire_all("10.0.0.2"), acquire_all("10.0.0.3")];
        assert_eq!(greedy.map(|held| held.len()), [6, 3], "two addresses are two peers");
    }
}
