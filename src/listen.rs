//! Where the process listens.

use std::{
    io::{self, ErrorKind},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use anyhow::Context;
use tokio::net::{TcpListener, TcpSocket};

/// Connections that wait to be accepted; the kernel allows no more than `net.core.somaxconn`. After a restart all proxies of
/// a mesh connect at once, and one that finds no room is reset, or waits a second for its next try.
const BACKLOG: u32 = 16_384;

/// Listens on an address; `[::]` is `0.0.0.0` where there is no IPv6.
///
/// # Errors
/// When the address is taken or not ours, with what it is for and the flag to choose another with.
pub(crate) fn listen(address: SocketAddr, purpose: &str, flag: &str) -> anyhow::Result<TcpListener> {
    let bound = match bind(address) {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && error.kind() != ErrorKind::AddrInUse => {
            bind((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        bound => bound,
    };
    bound.with_context(|| format!("cannot listen on {address} for {purpose}: choose another {flag}"))
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As tokio's own listeners: a restart need not wait for the last connections to be forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
