//! Places are permits, as those of a semaphore. A client needs one for each stream, unfinished request and connection.
//!
//! In: a maximum, and the peers that take places. Out: places, each held until it is dropped. Always holds: no more
//! places than the maximum are held; while at least half of them are held, a peer gets a place only if it holds fewer
//! than are free. So one greedy peer leaves half of the places to others, two leave a third, and peers with few places
//! get more until the last one is held.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

/// Places that peers share.
pub(super) struct Places {
    max: usize,
    held: AtomicUsize,
}

/// The places of one peer.
pub(super) struct Share {
    places: Arc<Places>,
    held: AtomicUsize,
}

/// A place, held until this is dropped.
pub(super) struct HeldPlace(Arc<Share>);

/// Why a peer gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// All places are held.
    Full,
    /// The peer holds as many places as are free, or more.
    Share,
}

/// The places for connections. A peer is an IP address.
pub(super) struct ConnectionPlaces {
    places: Arc<Places>,
    shares: Mutex<HashMap<IpAddr, Weak<Share>>>,
}

// === impl Places ===

impl Places {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, held: AtomicUsize::new(0) })
    }

    /// Returns the share of a new peer.
    pub(super) fn share(self: &Arc<Self>) -> Arc<Share> {
        Arc::new(Share { places: Arc::clone(self), held: AtomicUsize::new(0) })
    }
}

// === impl Share ===

impl Share {
    /// # Errors
    /// When all places are held, or too many of them by this peer.
    pub(super) fn take(self: &Arc<Self>) -> Result<HeldPlace, NoPlace> {
        let max = self.places.max;
        let mine = self.held.load(Ordering::Relaxed);
        let mut refusal = NoPlace::Full;
        // Two requests of one peer that run at the same moment may both be counted as the last permitted one.
        let taken = self.places.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            let free = max.saturating_sub(held);
            refusal = if free == 0 { NoPlace::Full } else { NoPlace::Share };
            (free > 0 && (held < max / 2 || mine < free)).then_some(held + 1)
        });
        taken.map_err(|_| refusal)?;
        self.held.fetch_add(1, Ordering::Relaxed);
        Ok(HeldPlace(Arc::clone(self)))
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
        self.0.places.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the address by which the connections of a peer are limited. `None` for connections from this host: behind the
/// Pod's proxy, the connections of all clients come from this host.
pub(super) fn limited_peer(peer: IpAddr, local: IpAddr) -> Option<IpAddr> {
    let (peer, local) = (peer.to_canonical(), local.to_canonical());
    (!peer.is_loopback() && peer != local).then_some(peer)
}

// === impl ConnectionPlaces ===

impl ConnectionPlaces {
    pub(super) fn new(max: usize) -> Self {
        Self { places: Places::new(max), shares: Mutex::default() }
    }

    /// Takes a place for a connection between these addresses.
    ///
    /// # Errors
    /// When all places are held, or too many of them by this peer.
    pub(super) fn take(&self, peer: IpAddr, local: IpAddr) -> Result<HeldPlace, NoPlace> {
        let Some(peer) = limited_peer(peer, local) else { return self.places.share().take() };
        let mut shares = self.shares.lock();
        if shares.len() > 2 * self.places.max {
            shares.retain(|_, share| share.strong_count() > 0);
        }
        let share = shares.get(&peer).and_then(Weak::upgrade).unwrap_or_else(|| self.places.share());
        let place = share.take()?;
        shares.insert(peer, Arc::downgrade(&share));
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes places until the peer gets no more.
    fn take_all(share: &Arc<Share>) -> Vec<HeldPlace> {
        std::iter::from_fn(|| share.take().ok()).collect()
    }

    #[test]
    fn a_greedy_peer_leaves_half_of_the_places_and_two_leave_a_third() {
        let places = Places::new(12);
        let [first, second] = [places.share(), places.share()];
        let held = take_all(&first);
        assert_eq!((held.len(), first.take().err()), (6, Some(NoPlace::Share)));
        let also_held = take_all(&second);
        assert_eq!(also_held.len(), 3, "as many as are free");
        drop(held);
        assert_eq!(take_all(&second).len(), 3, "up to half, of the places that are free again");
    }

    #[test]
    fn peers_with_few_places_get_all_that_are_free() {
        let places = Places::new(100);
        let peers: Vec<_> = (0..100).map(|_| places.share()).collect();
        let held: Vec<HeldPlace> = peers.iter().map(|peer| peer.take().ok().unwrap()).collect();
        assert_eq!(places.share().take().err(), Some(NoPlace::Full));
        drop(held);
        assert!(places.share().take().is_ok());
    }

    #[test]
    fn a_dropped_place_is_free_again() {
        let places = Places::new(1);
        let place = places.share().take().ok().unwrap();
        assert_eq!(places.share().take().err(), Some(NoPlace::Full));
        drop(place);
        assert!(places.share().take().is_ok());
    }

    #[test]
    fn the_connections_of_an_address_are_one_share_except_those_of_this_host() {
        const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
        let places = ConnectionPlaces::new(12);
        let take_all = |peer: &str| {
            let peer = peer.parse().unwrap();
            std::iter::from_fn(|| places.take(peer, SERVER).ok()).collect::<Vec<_>>()
        };
        assert_eq!(take_all("10.0.0.2").len(), 6);
        assert_eq!(take_all("::ffff:10.0.0.1").len(), 12, "the Pod's own address");
        assert_eq!(take_all("127.0.0.1").len(), 12);
        let greedy = [take_all("10.0.0.2"), take_all("10.0.0.3")];
        assert_eq!(greedy.map(|held| held.len()), [6, 3], "two addresses are two peers");
    }
}
