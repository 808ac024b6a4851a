//! The listening sockets of the process.

use std::{
    io::{self, ErrorKind},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::Context;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::sleep,
};
use tracing::warn;

/// The maximum number of connections that wait to be accepted; the kernel limits it to `net.core.somaxconn`. After a
/// restart all proxies of a mesh connect together. A connection that exceeds the backlog is reset, or retried after a
/// second.
const BACKLOG: u32 = 16_384;
/// The delay after an error. Most likely no file descriptors are left. Without the delay, the caller would use a whole
/// core.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Listens on an address. Without IPv6, `[::]` falls back to `0.0.0.0`. `send_buffer` is the size of the kernel's
/// buffer for each connection, which the kernel doubles for its own data. Without it, the buffer grows up to 4 MiB
/// while a client does not read. The buffer counts toward the memory limit of the container.
///
/// # Errors
/// When the address is in use or not local. The error has the purpose of the listener and the flag that sets its
/// address.
pub(crate) fn listen(
    address: SocketAddr,
    send_buffer: Option<u32>,
    purpose: &str,
    flag: &str,
) -> anyhow::Result<TcpListener> {
    let bound = match bind(address, send_buffer) {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && error.kind() != ErrorKind::AddrInUse => {
            bind((Ipv4Addr::UNSPECIFIED, address.port()).into(), send_buffer)
        }
        bound => bound,
    };
    bound.with_context(|| format!("cannot listen on {address} for {purpose}: choose another {flag}"))
}

/// Returns the next connection. An error is logged with the purpose of the listener, and the next attempt follows.
pub(crate) async fn accept(listener: &TcpListener, purpose: &str) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                warn!(%error, "could not accept a connection for {purpose}, retrying");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

fn bind(address: SocketAddr, send_buffer: Option<u32>) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // tokio's own listeners do the same: a restart does not have to wait for old connections in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    if let Some(bytes) = send_buffer {
        // Accepted connections inherit it.
        socket.set_send_buffer_size(bytes)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how much the kernel accepts for a client that reads nothing, up to 1 MiB.
    async fn accepted_of_a_mebibyte(send_buffer: Option<u32>) -> usize {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into(), send_buffer, "a test", "address").unwrap();
        let client = TcpSocket::new_v4().unwrap();
        client.set_recv_buffer_size(4096).unwrap();
        let (client, server): (io::Result<TcpStream>, _) =
            tokio::join!(client.connect(listener.local_addr().unwrap()), listener.accept());
        let (_client, (server, _), mut accepted) = (client.unwrap(), server.unwrap(), 0);
        while accepted < 1 << 20 {
            match server.try_write(&[0; 4096]) {
                Ok(length) => accepted += length,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        accepted
    }

    #[tokio::test]
    async fn the_send_buffer_is_that_of_each_connection() {
        // By default, the kernel accepts everything on most machines.
        let accepted = accepted_of_a_mebibyte(Some(16 << 10)).await;
        assert!(accepted < 100 << 10, "{accepted} bytes");
    }
}
