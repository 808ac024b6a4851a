//! Free ports.
//!
//! * Out: ports that are not in use now. Always: below the kernel's range for outgoing connections, so that the port of
//!   a stopped server is still free when the server is started again.

use std::{
    hash::{BuildHasher, RandomState},
    net::{IpAddr, Ipv4Addr, TcpListener},
};

use anyhow::{Context, Result};

const FIRST: u64 = 12_000;
const COUNT: u64 = 20_000;

/// A free port on loopback.
pub fn free() -> Result<u16> {
    free_at(Ipv4Addr::LOCALHOST.into())
}

/// A free port on an address of this host.
pub fn free_at(address: IpAddr) -> Result<u16> {
    let random = RandomState::new();
    (0..200u64)
        .map(|attempt| FIRST + random.hash_one(attempt) % COUNT)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| TcpListener::bind((address, *port)).is_ok())
        .with_context(|| format!("no free port on {address}"))
}
