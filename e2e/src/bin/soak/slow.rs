//! Clients that do not read, replaced when the server has ended their streams.
//!
//! * In: the address of a destination server, the paths, the server's stall timeout. Out: how their streams ended, and
//!   how many did not.
//! * Always: the number of clients of each kind is constant; a stream that the server should have ended is counted and
//!   given up.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use e2e::slow_client::{SlowClient, StreamEnd, Windows};
use futures::future::join_all;
use rand::seq::IndexedRandom;
use tokio::{task::JoinSet, time::sleep};

use crate::tally::Tally;

/// The kind of a client's misbehavior.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// It never opens the window of its streams, so that no byte of a message may be sent.
    Closed,
    /// It has a proxy's windows and never reads: a part of a long message is sent, and the rest is blocked.
    Unread,
    /// It never reads its socket, not even resets of its streams: the kernel's buffers fill up.
    SocketUnread,
}

/// The number of clients, and of streams per client. HTTP/2 allows a hundred streams before the server's SETTINGS
/// arrive.
const CLIENTS: [(Manner, usize, usize); 3] =
    [(Manner::Closed, 4, 25), (Manner::Unread, 2, 20), (Manner::SocketUnread, 2, 100)];
/// The number of times an open connection is used again after all of its streams were ended.
const GENERATIONS: usize = 3;
const PAUSE: Duration = Duration::from_secs(1);
/// For a loaded host.
const GRACE: Duration = Duration::from_secs(20);

/// Dropping it closes the connections.
pub(crate) struct SlowReaders {
    clients: JoinSet<()>,
    counts: Arc<SlowCounts>,
}

#[derive(Default)]
pub(crate) struct SlowCounts {
    pub opened: AtomicU64,
    pub ended: Tally,
    /// Streams that the server did not end.
    pub left: AtomicU64,
    /// Connections that the client did not read and that the server should have closed by then.
    pub unread_connections: AtomicU64,
    pub failed: Tally,
}

struct SlowReader {
    address: SocketAddr,
    paths: Arc<[String]>,
    big: String,
    stall: Duration,
    counts: Arc<SlowCounts>,
}

// === impl SlowReaders ===

impl SlowReaders {
    pub(crate) fn begin(address: SocketAddr, paths: &[String], big: &str, stall: Duration) -> Self {
        let counts = Arc::<SlowCounts>::default();
        let paths: Arc<[String]> = paths.into();
        let mut clients = JoinSet::new();
        for (manner, count, streams) in CLIENTS {
            for _ in 0..count {
                let (paths, counts) = (Arc::clone(&paths), Arc::clone(&counts));
                let client = SlowReader { address, paths, big: big.to_owned(), stall, counts };
                clients.spawn(async move {
                    loop {
                        if let Err(error) = client.live(manner, streams).await {
                            client.counts.failed.count(&error.to_string());
                        }
                        sleep(PAUSE).await;
                    }
                });
            }
        }
        Self { clients, counts }
    }

    /// The maximum number of their connections.
    pub(crate) fn connections() -> usize {
        CLIENTS.iter().map(|(_, clients, _)| clients).sum()
    }

    pub(crate) fn counts(&self) -> &SlowCounts {
        &self.counts
    }

    pub(crate) async fn close(&mut self) {
        self.clients.shutdown().await;
    }
}

// === impl SlowReader ===

impl SlowReader {
    /// Runs one connection, from its beginning to its end.
    async fn live(&self, manner: Manner, streams: usize) -> Result<()> {
        match manner {
            Manner::Closed => {
                let paths: Vec<&str> = self.paths.sample(&mut rand::rng(), streams).map(String::as_str).collect();
                self.wait_for_ends(Windows { stream: 0, ..Windows::OF_PROXIES }, &paths).await
            }
            Manner::Unread => self.wait_for_ends(Windows::OF_PROXIES, &vec![&self.big; streams]).await,
            Manner::SocketUnread => {
                // Far more than the kernel buffers for a connection.
                let windows = Windows { stream: 1024 * 1024, connection: 512 * 1024 * 1024 };
                let client = SlowClient::connect(self.address, windows).await?;
                client.stop_reading();
                let mut pending = Vec::with_capacity(streams);
                for _ in 0..streams {
                    pending.push(client.request(&self.big).await?);
                    self.counts.opened.fetch_add(1, Ordering::Relaxed);
                }
                // A client that does not read cannot detect that the server has closed the connection; the server's
                // metrics show it.
                sleep(self.stall * 2 + GRACE / 2).await;
                self.counts.unread_connections.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    async fn wait_for_ends(&self, windows: Windows, paths: &[impl AsRef<str>]) -> Result<()> {
        let client = SlowClient::connect(self.address, windows).await?;
        for _ in 0..GENERATIONS {
            let opened = join_all(paths.iter().map(|path| client.get(path.as_ref()))).await;
            let mut streams: Vec<_> = opened.into_iter().filter_map(Result::ok).collect();
            self.counts.opened.fetch_add(streams.len() as u64, Ordering::Relaxed);
            let patience = self.stall * 2 + GRACE;
            for end in join_all(streams.iter_mut().map(|stream| stream.end(patience))).await {
                match end {
                    Ok(StreamEnd::Status(status)) => self.counts.ended.count(&format!("with status {status}")),
                    Ok(StreamEnd::Reset(reason)) => self.counts.ended.count(&format!("reset with {reason:?}")),
                    Ok(StreamEnd::Broken(_)) => self.counts.ended.count("with the connection"),
                    Err(_) => drop(self.counts.left.fetch_add(1, Ordering::Relaxed)),
                }
            }
            if streams.is_empty() || !client.is_open() {
                break;
            }
        }
        Ok(())
    }
}
