//! Where the process listens.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use anyhow::Context;
use tokio::net::TcpListener;

/// Listens on an address; `[::]` is `0.0.0.0` where there is no IPv6.
///
/// # Errors
/// When the address is taken or not ours, with what it is for and the flag to choose another with.
pub(crate) async fn listen(address: SocketAddr, purpose: &str, flag: &str) -> anyhow::Result<TcpListener> {
    let bound = match TcpListener::bind(address).await {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && error.kind() != ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    };
    bound.with_context(|| format!("cannot listen on {address} for {purpose}: choose another {flag}"))
}
