//! Many small messages at once on one connection.
//!
//! A client on a current h2 ends its connection ("too_many_data_frames") when more small DATA frames lie unread than its window
//! allows for: some 2,200 with the window of Linkerd's proxies, 138 with h2's own. A `Remove` of one endpoint is such a frame,
//! and on a connection that carries a cluster every stream is told of it at the same moment.
//!
//! * In: thousands of streams of one Service on one connection, and changes of it. Out: what each stream was told, and whether
//!   the connection lives.
//! * The client has a thread of its own, as a proxy is a process of its own, and at times it does not run. So nothing depends on
//!   which of the two is faster: a server that knows no measure has sent everything when the client goes on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    discovery::Message,
    slow_client::{SlowClient, Windows},
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::sleep,
};

use super::crowd::{Crowd, address, shows};

/// Each takes one endpoint away and brings it back.
const FLIPS: usize = 2;
/// For all streams to be told of a change: many times what it takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// More than enough to send ten thousand frames.
const STILL: Duration = Duration::from_millis(500);
/// What h2 gives who asks for nothing else.
const OF_H2: Windows = Windows { stream: 65_535, connection: 65_535 };

struct Client {
    thread: JoinHandle<Result<()>>,
    /// How many messages its streams have read.
    told: Arc<AtomicUsize>,
    halts: mpsc::UnboundedSender<Halt>,
    streams: usize,
}

/// Says that the client stands still, which it does until the other channel is closed.
type Halt = (oneshot::Sender<()>, std::sync::mpsc::Receiver<()>);

// === impl Client ===

impl Client {
    /// Opens so many streams, each of which is read this long after something may have come, until it was told of all flips.
    fn start(crowd: &Crowd, windows: Windows, streams: usize, late: Duration) -> Result<Self> {
        let (server, path) = (crowd.manager.destination_address(), crowd.path("small"));
        let told = Arc::<AtomicUsize>::default();
        let (halts, mut halted) = mpsc::unbounded_channel::<Halt>();
        let counted = Arc::clone(&told);
        let reads = async move {
            let client = SlowClient::connect(server, windows).await?;
            let mut readers = JoinSet::new();
            // A task each, as in a proxy.
            for mut stream in client.get_many(&path, streams).await? {
                let told = Arc::clone(&counted);
                readers.spawn(async move {
                    while stream.messages.len() < 1 + 2 * FLIPS {
                        if !late.is_zero() {
                            sleep(late).await;
                        }
                        ensure!(stream.next().await?.is_some(), "the stream ended after {:?}", stream.messages);
                        told.fetch_add(1, Ordering::Relaxed);
                    }
                    ensure!(stream.messages == all_messages(), "told otherwise: {:?}", stream.messages);
                    Ok(stream)
                });
            }
            let mut read = Vec::new();
            loop {
                tokio::select! {
                    stream = readers.join_next() => match stream {
                        Some(stream) => read.push(stream??),
                        None => break,
                    },
                    Some((stands, until)) = halted.recv() => {
                        _ = stands.send(());
                        _ = until.recv();
                    }
                }
            }
            ensure!(client.is_open(), "the connection ended");
            Ok(())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::spawn(move || runtime.block_on(reads));
        Ok(Self { thread, told, halts, streams })
    }

    /// From now on nothing of it runs, until what is returned is dropped.
    async fn stands_still(&self) -> Result<std::sync::mpsc::Sender<()>> {
        let (stands, standing) = oneshot::channel();
        let (go_on, until) = std::sync::mpsc::channel();
        self.halts.send((stands, until)).ok().context("the client has ended")?;
        standing.await.context("the client has ended")?;
        Ok(go_on)
    }

    /// Waits until each stream has had so many messages.
    async fn is_told(&self, messages: usize) -> Result<()> {
        let (all, deadline) = (messages * self.streams, Instant::now() + PATIENCE);
        loop {
            let now = self.told.load(Ordering::Relaxed);
            if now == all || self.thread.is_finished() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{now} messages of {all} in {PATIENCE:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn all_messages() -> Vec<Message> {
    let flipped = vec![address(1)];
    let flip = [Message::Remove(flipped.clone()), Message::Add(flipped)];
    let first = Message::Add(vec![address(0), address(1)]);
    [first].into_iter().chain(std::iter::repeat_n(flip, FLIPS).flatten()).collect()
}

/// Opens the streams, flips an endpoint, and checks that all streams are told of all of it on a connection that stays.
async fn all_are_told(windows: Windows, streams: usize, late: Duration) -> Result<()> {
    // All ask at once, on a machine that may be busy: how long they wait for their turn is not what this is about.
    let crowd = Crowd::start(&["--max-stream-wait=60s"]).await?;
    crowd.put("small", 0..2).await?;
    let mut other = crowd.shows("small", 0..2).await?;
    let begin = Instant::now();
    let client = Client::start(&crowd, windows, streams, late)?;
    client.is_told(1).await?;
    eprintln!("{streams} streams in {:?}", begin.elapsed());
    for change in 0..2 * FLIPS {
        if client.thread.is_finished() {
            break;
        }
        let still = client.stands_still().await?;
        let endpoints = 0..1 + u32::try_from(change % 2)?;
        crowd.set_slice("small-0", endpoints.clone()).await?;
        shows(&mut other, endpoints).await?;
        sleep(STILL).await;
        drop(still);
        let begin = Instant::now();
        client.is_told(2 + change).await?;
        eprintln!("told in {:?}", begin.elapsed());
    }
    client.thread.join().map_err(|_| anyhow::anyhow!("the client panicked"))?
}

/// As many as a debug build serves in a few seconds.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_streams_of_one_connection_are_told_of_every_flip_and_it_stays() -> Result<()> {
    all_are_told(Windows::OF_PROXIES, 10_000, Duration::ZERO).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_the_smallest_window_stays_as_well() -> Result<()> {
    all_are_told(OF_H2, 2000, Duration::ZERO).await
}

/// So that frames lie unread for as long.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_streams_are_read_late_stays_as_well() -> Result<()> {
    all_are_told(Windows::OF_PROXIES, 6000, Duration::from_millis(20)).await
}
