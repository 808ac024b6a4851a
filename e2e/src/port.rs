//! Free ports.
//!
//! * Out: ports that are not in use now. Always: below the kernel's range for outgoing connections, so that the port of
//!   a stopped server is still free when the server is started again. This process gets a port only once, because a
//!   server listens on its port only some time after the port was chosen.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, RandomState},
    net::{IpAddr, Ipv4Addr, TcpListener},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result};

const FIRST: u64 = 12_000;
const COUNT: u64 = 20_000;

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A free port on loopback.
pub fn free() -> Result<u16> {
    free_at(Ipv4Addr::LOCALHOST.into())
}

/// A free port on an address of this host.
pub fn free_at(address: IpAddr) -> Result<u16> {
    let random = RandomState::new();
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    (0..200u64)
        .map(|attempt| FIRST + random.hash_one(attempt) % COUNT)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| !given.contains(port) && TcpListener::bind((address, *port)).is_ok() && given.insert(*port))
        .with_context(|| format!("no free port on {address}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        // Among 1,000 of 20,000 random numbers, the probability of no pair is below 1e-10.
        let ports: Vec<u16> = (0..1_000).map(|_| free().unwrap()).collect();
        let different: BTreeSet<u16> = ports.iter().copied().collect();
        assert_eq!(different.len(), ports.len());
    }
}
