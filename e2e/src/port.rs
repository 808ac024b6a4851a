//! Free ports.
//!
//! * Out: ports nobody listens on now. Always: below the range from which the kernel takes the ports of outgoing
//!   connections, so that a server which is stopped and started again finds its port still free.

use std::{
    hash::{BuildHasher, RandomState},
    net::{IpAddr, Ipv4Addr, TcpListener},
};

use anyhow::{Context, Result};

const FIRST: u64 = 12_000;
const COUNT: u64 = 20_000;

/// On loopback.
pub(crate) fn free() -> Result<u16> {
    free_at(Ipv4Addr::LOCALHOST.into())
}

/// On an address of this machine.
pub(crate) fn free_at(address: IpAddr) -> Result<u16> {
    let random = RandomState::new();
    (0..200u64)
        .map(|attempt| FIRST + random.hash_one(attempt) % COUNT)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| TcpListener::bind((address, *port)).is_ok())
        .with_context(|| format!("no free port on {address}"))
}
