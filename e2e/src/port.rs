//! Free loopback ports.
//!
//! * Out: ports nobody listens on now. Always: below the range from which the kernel takes the ports of outgoing
//!   connections, so that a server which is stopped and started again finds its port still free.

use std::{
    hash::{BuildHasher, RandomState},
    net::{Ipv4Addr, TcpListener},
};

use anyhow::{Context, Result};

const FIRST: u64 = 12_000;
const COUNT: u64 = 20_000;

pub(crate) fn free() -> Result<u16> {
    let random = RandomState::new();
    (0..200u64)
        .map(|attempt| FIRST + random.hash_one(attempt) % COUNT)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .context("no free port on 127.0.0.1")
}
