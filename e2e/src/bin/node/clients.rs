//! Clients of the Destination API that come back when they lose their stream, as proxies do.
//!
//! * In: an address, and the truth. Out: for each lost stream, how long it took to know all again; each message that was wrong.

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

/// Each on a connection of its own.
const CLIENTS: usize = 24;
/// As long as a proxy takes to give a connection up.
const ATTEMPT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);
/// A Remove may be on its way while its machine becomes ready again.
const UNDER_WAY: Duration = Duration::from_secs(3);
const ALL_KNOWN: Duration = Duration::from_secs(30);

pub(crate) struct Clients {
    stop: watch::Sender<bool>,
    running: JoinSet<Result<Vec<Duration>>>,
}

impl Clients {
    /// Returns when all know everything.
    pub(crate) async fn start(at: SocketAddr, truth: &Truth) -> Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let mut running = JoinSet::new();
        let mut first = JoinSet::new();
        for _ in 0..CLIENTS {
            let (ready, is_ready) = tokio::sync::oneshot::channel();
            let client = Client { at, truth: truth.clone(), stopped: stopped.clone() };
            running.spawn(client.run(ready));
            first.spawn(is_ready);
        }
        while let Some(known) = timeout(ALL_KNOWN, first.join_next()).await.context("not every client knows all")? {
            if known?.is_err() {
                let failed = running.join_next().await.context("no client")??;
                bail!("a client ended: {:#}", failed.err().context("without an error")?);
            }
        }
        Ok(Self { stop, running })
    }

    /// The time from the loss of each stream to everything being known again.
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

struct Client {
    at: SocketAddr,
    truth: Truth,
    stopped: watch::Receiver<bool>,
}

impl Client {
    async fn run(self, ready: tokio::sync::oneshot::Sender<()>) -> Result<Vec<Duration>> {
        let mut stream = self.connected(Instant::now()).await?;
        self.knows_all(&mut stream).await?;
        let _ = ready.send(());
        let mut recovered = Vec::new();
        let mut stopped = self.stopped.clone();
        loop {
            tokio::select! {
                _ = stopped.changed() => break,
                ended = self.reads(&mut stream) => ended?,
            }
            let lost = Instant::now();
            stream = self.connected(lost).await?;
            while !self.knows_all(&mut stream).await? {
                // That replica was ending too.
                stream = self.connected(lost).await?;
            }
            recovered.push(lost.elapsed());
        }
        // What was told last must be what is so: nothing changes any more.
        ensure!(self.knows_all(&mut stream).await?, "the stream ended, and everything was at rest");
        Ok(recovered)
    }

    /// A stream that has said something.
    async fn connected(&self, lost: Instant) -> Result<Endpoints> {
        loop {
            let attempt = async {
                let discovery = Discovery::connect(self.at).await?;
                let path = format!("{SERVICE}.{NAMESPACE}.svc.cluster.local:80");
                let mut stream = discovery.get(&path, &token(NAMESPACE, real_node::NAME)).await?;
                stream.next().await?.context("the stream ended at once")?;
                anyhow::Ok(stream)
            };
            let seen = match timeout(ATTEMPT, attempt).await {
                Ok(Ok(stream)) => {
                    self.is_right(&stream)?;
                    return Ok(stream);
                }
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => format!("nothing within {ATTEMPT:?}"),
            };
            ensure!(lost.elapsed() < ALL_KNOWN, "no stream {ALL_KNOWN:?} after one was lost: {seen}");
            sleep(PAUSE).await;
        }
    }

    /// Reads on until what is known is what is so; false when the stream ends before.
    async fn knows_all(&self, stream: &mut Endpoints) -> Result<bool> {
        let end = Instant::now() + ALL_KNOWN;
        // What is so may change meanwhile, too.
        while !self.truth.is(stream.known.keys().copied()) {
            ensure!(Instant::now() < end, "not everything is known after {ALL_KNOWN:?}: {:?}", stream.addresses());
            if !self.goes_on(stream).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Until it ends, for whatever reason.
    async fn reads(&self, stream: &mut Endpoints) -> Result<()> {
        while self.goes_on(stream).await? {}
        Ok(())
    }

    /// Reads a message, if there is one; false when the stream has ended, and an error when it says what is not so.
    async fn goes_on(&self, stream: &mut Endpoints) -> Result<bool> {
        match timeout(PAUSE, stream.next()).await {
            Err(_) => Ok(true),
            Ok(Ok(Some(_))) => self.is_right(stream).map(|()| true),
            Ok(Ok(None)) => Ok(false),
            Ok(Err(error)) if is_status(&error) => Ok(false),
            Ok(Err(error)) => Err(error),
        }
    }

    fn is_right(&self, stream: &Endpoints) -> Result<()> {
        let gone = match stream.messages.last() {
            Some(Message::Remove(addresses)) => addresses.as_slice(),
            Some(Message::NoEndpoints { exists }) => bail!("NoEndpoints {{ exists: {exists} }}, while most are ready"),
            Some(Message::Add(_)) if stream.messages.len() == 1 => {
                // The first message is all there is: what it leaves out, it takes from a proxy.
                let missing = self.truth.missing(&stream.known.keys().copied().collect(), UNDER_WAY);
                ensure!(missing.is_empty(), "the first message lacks {missing:?}, which are ready");
                &[]
            }
            _ => &[],
        };
        for address in gone {
            ensure!(!self.truth.ready_for(*address, UNDER_WAY), "{address} is removed, and is ready");
        }
        Ok(())
    }
}

/// Whether the server, or its connection, ended it.
fn is_status(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<tonic::Status>().is_some())
}
