//! Clients of the Destination API that reconnect when they lose their stream, as proxies do.
//!
//! * In: an address, and the expected state. Out: for each lost stream, the time until all endpoints were known again;
//!   an error for each wrong message.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    discovery::{Discovery, Endpoints, Message, token},
    real_node,
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::churn::{NAMESPACE, SERVICE, Truth};

/// Each client has a separate connection.
const CLIENTS: usize = 24;
/// The timeout of one attempt to open a stream, which equals a proxy's connect timeout.
const ATTEMPT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);
/// A Remove may arrive while its workload becomes ready again.
const UNDER_WAY: Duration = Duration::from_secs(3);
const ALL_KNOWN: Duration = Duration::from_secs(30);

pub(crate) struct NodeClients {
    stop: watch::Sender<bool>,
    running: JoinSet<Result<Vec<Duration>>>,
}

impl NodeClients {
    /// Starts the clients, and waits until each knows all endpoints.
    pub(crate) async fn start(at: SocketAddr, truth: &Truth) -> Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let mut running = JoinSet::new();
        let mut first = JoinSet::new();
        for _ in 0..CLIENTS {
            let (ready, is_ready) = tokio::sync::oneshot::channel();
            let client = NodeClient { at, truth: truth.clone(), stopped: stopped.clone() };
            running.spawn(client.run(ready));
            first.spawn(is_ready);
        }
        while let Some(known) =
            timeout(ALL_KNOWN, first.join_next()).await.context("not every client knows all endpoints")?
        {
            if known?.is_err() {
                let failed = running.join_next().await.context("no client")??;
                bail!("a client ended: {:#}", failed.err().context("it ended without an error")?);
            }
        }
        Ok(Self { stop, running })
    }

    /// Stops the clients. Returns the times from the loss of each stream until all endpoints were known again.
    pub(crate) async fn stop(mut self) -> Result<Vec<Duration>> {
        self.stop.send(true)?;
        let mut recovered = Vec::new();
        while let Some(ended) = timeout(ALL_KNOWN, self.running.join_next()).await.context("a client hangs")? {
            recovered.extend(ended??);
        }
        recovered.sort();
        Ok(recovered)
    }
}

struct NodeClient {
    at: SocketAddr,
    truth: Truth,
    stopped: watch::Receiver<bool>,
}

impl NodeClient {
    async fn run(self, ready: tokio::sync::oneshot::Sender<()>) -> Result<Vec<Duration>> {
        let mut stream = self.connected(Instant::now()).await?;
        self.knows_all(&mut stream).await?;
        let _ = ready.send(());
        let mut recovered = Vec::new();
        let mut stopped = self.stopped.clone();
        loop {
            tokio::select! {
                _ = stopped.changed() => break,
                ended = self.read_to_end(&mut stream) => ended?,
            }
            let lost = Instant::now();
            stream = self.connected(lost).await?;
            while !self.knows_all(&mut stream).await? {
                // The other replica was terminating, too.
                stream = self.connected(lost).await?;
            }
            recovered.push(lost.elapsed());
        }
        // The last state must be correct, because nothing changes any more.
        ensure!(self.knows_all(&mut stream).await?, "the stream ended although nothing changed");
        Ok(recovered)
    }

    /// Opens a stream and waits for its first message.
    async fn connected(&self, lost: Instant) -> Result<Endpoints> {
        loop {
            let attempt = async {
                let discovery = Discovery::connect(self.at).await?;
                let path = format!("{SERVICE}.{NAMESPACE}.svc.cluster.local:80");
                let mut stream = discovery.get(&path, &token(NAMESPACE, real_node::NAME)).await?;
                stream.next().await?.context("the stream ended before its first message")?;
                anyhow::Ok(stream)
            };
            let seen = match timeout(ATTEMPT, attempt).await {
                Ok(Ok(stream)) => {
                    self.is_right(&stream)?;
                    return Ok(stream);
                }
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => format!("no message within {ATTEMPT:?}"),
            };
            ensure!(lost.elapsed() < ALL_KNOWN, "no new stream within {ALL_KNOWN:?} after the loss of one: {seen}");
            sleep(PAUSE).await;
        }
    }

    /// Reads until the known endpoints are the expected ones; false when the stream ends before.
    async fn knows_all(&self, stream: &mut Endpoints) -> Result<bool> {
        let end = Instant::now() + ALL_KNOWN;
        // The expected state may change at the same time.
        while !self.truth.is(stream.known.keys().copied()) {
            ensure!(Instant::now() < end, "not all endpoints are known after {ALL_KNOWN:?}: {:?}", stream.addresses());
            if !self.read_next(stream).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads until the stream ends, for any reason.
    async fn read_to_end(&self, stream: &mut Endpoints) -> Result<()> {
        while self.read_next(stream).await? {}
        Ok(())
    }

    /// Reads a message if one arrives; false when the stream has ended, an error when a message is wrong.
    async fn read_next(&self, stream: &mut Endpoints) -> Result<bool> {
        match timeout(PAUSE, stream.next()).await {
            Err(_) => Ok(true),
            Ok(Ok(Some(_))) => self.is_right(stream).map(|()| true),
            Ok(Ok(None)) => Ok(false),
            Ok(Err(error)) if is_status(&error) => Ok(false),
            Ok(Err(error)) => Err(error),
        }
    }

    fn is_right(&self, stream: &Endpoints) -> Result<()> {
        let removed = match stream.messages.last() {
            Some(Message::Remove(addresses)) => addresses.as_slice(),
            Some(Message::NoEndpoints { exists }) => {
                bail!("received NoEndpoints {{ exists: {exists} }}, although most workloads are ready")
            }
            Some(Message::Add(_)) if stream.messages.len() == 1 => {
                // The first message replaces a proxy's state, so endpoints that it omits are lost.
                let missing = self.truth.missing(&stream.known.keys().copied().collect(), UNDER_WAY);
                ensure!(missing.is_empty(), "the first message does not contain {missing:?}, which are ready");
                &[]
            }
            _ => &[],
        };
        for address in removed {
            ensure!(!self.truth.ready_for(*address, UNDER_WAY), "{address} was removed although it is ready");
        }
        Ok(())
    }
}

/// Returns whether the server or its connection ended the stream.
fn is_status(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<tonic::Status>().is_some())
}
