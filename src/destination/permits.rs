//! The connections that each peer may have.
//!
//! In: the addresses of a new connection. Out: its place, given back when it is dropped. Always holds: an IP address has
//! its fair share of the connections, except this host.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use crate::resources::shares::{Exhausted, Pool, Share, Taken};

/// The permits for connections. A peer is an IP address.
pub(super) struct ConnectionPermits {
    permits: Arc<Pool>,
    shares: Mutex<HashMap<IpAddr, Weak<Share>>>,
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
        Self { permits: Pool::new(max), shares: Mutex::default() }
    }

    /// Acquires a permit for a connection between these addresses.
    ///
    /// # Errors
    /// When all permits are held, or too many of them by this peer.
    pub(super) fn try_acquire(&self, peer: IpAddr, local: IpAddr) -> Result<Taken, Exhausted> {
        let Some(peer) = limited_peer(peer, local) else { return self.permits.share().try_take(1) };
        let mut shares = self.shares.lock();
        if shares.len() > 2 * self.permits.max() {
            shares.retain(|_, share| share.strong_count() > 0);
        }
        let share = shares.get(&peer).and_then(Weak::upgrade).unwrap_or_else(|| self.permits.share());
        let permit = share.try_take(1)?;
        shares.insert(peer, Arc::downgrade(&share));
        Ok(permit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
