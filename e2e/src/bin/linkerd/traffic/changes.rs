//! Changes of the Service, as the rollout of a Deployment with one replica makes them.
//!
//! * In: the cluster, the addresses of the server's Pods, the clients. Out: the time until all clients use a change.
//! * Always: a Pod exists before it is published and until no client uses it, and no request should fail.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use tokio::time::{Instant, timeout};

use super::{client::Observed, cluster::Cluster};

/// A proxy's longest backoff is 10 s.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct TrafficChanges {
    cluster: Cluster,
    clients: Vec<Observed>,
    /// The addresses that Pods take in turn. Each one is served.
    addresses: Vec<Ipv4Addr>,
    /// The Pod that is published.
    current: Option<String>,
    /// The Pod that the next change publishes.
    next: (String, Ipv4Addr),
}

// === impl TrafficChanges ===

impl TrafficChanges {
    pub(crate) async fn new(mut cluster: Cluster, clients: Vec<Observed>, addresses: Vec<Ipv4Addr>) -> Result<Self> {
        let next = next_pod(&mut cluster, &addresses).await?;
        Ok(Self { cluster, clients, addresses, current: None, next })
    }

    /// Publishes the next Pod instead of the current one. Returns the time until the slowest client used it.
    pub(crate) async fn change(&mut self) -> Result<Duration> {
        // Created before the write, so that the servers have it in their caches, as those of a real cluster have.
        let after = next_pod(&mut self.cluster, &self.addresses).await?;
        let (pod, address) = std::mem::replace(&mut self.next, after);
        let begun = Instant::now();
        self.cluster.publish(&pod, address).await?;
        let used = try_join_all(self.clients.iter().map(|client| client.answered_by(address)));
        let used = timeout(DEADLINE, used).await.with_context(|| {
            let endpoints: Vec<_> = self.clients.iter().map(Observed::endpoint).collect();
            format!("not all clients used {address} after {DEADLINE:?}, but {endpoints:?}")
        })??;
        if let Some(old) = self.current.replace(pod) {
            self.cluster.delete_pod(&old).await?;
        }
        let last = used.into_iter().max().context("there are no clients")?;
        Ok(last.saturating_duration_since(begun))
    }

    /// Removes the endpoint of the Service.
    pub(crate) async fn empty(&self) -> Result<()> {
        self.cluster.publish_nothing().await
    }
}

async fn next_pod(cluster: &mut Cluster, addresses: &[Ipv4Addr]) -> Result<(String, Ipv4Addr)> {
    let turn = cluster.pods() % addresses.len().max(1);
    let address = *addresses.get(turn).context("the server has no addresses")?;
    Ok((cluster.next_pod(address).await?, address))
}
