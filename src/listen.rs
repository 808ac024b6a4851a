//! The listening sockets of the process.

use std::{
    io::{self, ErrorKind},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use anyhow::Context;
use tokio::net::{TcpListener, TcpSocket};

/// The maximum number of connections that wait to be accepted; the kernel limits it to `net.core.somaxconn`. After a
/// restart all proxies of a mesh connect together. A connection that exceeds the backlog is reset, or retried after a
/// second.
const BACKLOG: u32 = 16_384;

/// Listens on an address. Without IPv6, `[::]` falls back to `0.0.0.0`.
///
/// # Errors
/// When the address is in use or not local. The error has the purpose of the listener and the flag that sets its
/// address.
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
    // tokio's own listeners do the same: a restart does not have to wait for old connections in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
