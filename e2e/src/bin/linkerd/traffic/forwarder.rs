//! Forwards connections to a Service of the control plane, as kube-proxy does.
//!
//! * In: the addresses of the replicas that run; connections of the proxies. Out: each connection, forwarded to a random
//!   replica that accepts it.
//! * Always: an open connection stays with its replica, and ends with it.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use rand::seq::SliceRandom;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// The replicas of a Service. Its copies share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets(Arc<Mutex<Vec<SocketAddr>>>);

// === impl Targets ===

impl Targets {
    pub(crate) fn only(address: SocketAddr) -> Self {
        let targets = Self::default();
        targets.add(address);
        targets
    }

    pub(crate) fn add(&self, address: SocketAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(address);
    }

    pub(crate) fn remove(&self, address: SocketAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|target| *target != address);
    }

    fn shuffled(&self) -> Vec<SocketAddr> {
        let mut targets = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        targets.shuffle(&mut rand::rng());
        targets
    }

    /// Forwards all connections of the listener until the returned future is dropped.
    pub(crate) async fn forward(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                    connections.spawn(self.clone().forward_one(stream));
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }

    /// Without a replica that accepts, the connection is closed.
    async fn forward_one(self, mut stream: TcpStream) {
        for target in self.shuffled() {
            if let Ok(mut replica) = TcpStream::connect(target).await {
                let _ = (stream.set_nodelay(true), replica.set_nodelay(true));
                let _ = copy_bidirectional(&mut stream, &mut replica).await;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Result;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A replica that answers each connection with one byte.
    async fn replica(byte: u8) -> Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(&[byte]).await;
            }
        });
        Ok(address)
    }

    async fn answer(service: SocketAddr) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        TcpStream::connect(service).await?.read_to_end(&mut bytes).await?;
        Ok(bytes)
    }

    #[tokio::test]
    async fn a_connection_reaches_a_replica_that_accepts_and_is_still_a_target() -> Result<()> {
        let (first, second) = (replica(1).await?, replica(2).await?);
        let gone = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let service = listener.local_addr()?;
        let targets = Targets::only(gone);
        tokio::spawn(targets.clone().forward(listener));
        assert!(answer(service).await?.is_empty(), "no replica accepts");
        targets.add(first);
        for _ in 0..10 {
            assert_eq!(answer(service).await?, [1]);
        }
        targets.add(second);
        targets.remove(first);
        for _ in 0..10 {
            assert_eq!(answer(service).await?, [2]);
        }
        Ok(())
    }
}
