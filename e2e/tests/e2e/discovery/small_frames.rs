//! Many small messages on one connection.
//!
//! A client with a current h2 closes its connection ("too_many_data_frames") when more small DATA frames are unread
//! than its window allows: about 2,200 with the window of Linkerd's proxies, 138 with the default of h2. A `Remove` of
//! one endpoint is such a frame, and a change of a Service is sent on all its streams of a connection at the same time.
//!
//! * In: thousands of streams of one Service on one connection, and changes of it. Out: the messages of each stream,
//!   and whether the connection stays open.
//! * The client runs in a separate thread, like a proxy in a separate process, and is paused during each change. The
//!   result therefore does not depend on timing: a server without a limit has sent all frames by the time the client
//!   resumes.

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

use super::crowd::{Crowd, NEVER_TOO_LATE, address, shows};

/// Each flip removes one endpoint and adds it again.
const FLIPS: usize = 2;
/// Maximum time for a change to reach all streams: many times the usual time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Duration of a pause: more than enough to send ten thousand frames.
const PAUSE: Duration = Duration::from_millis(500);
/// The default windows of h2.
const OF_H2: Windows = Windows { stream: 65_535, connection: 65_535 };

struct BusyClient {
    thread: JoinHandle<Result<()>>,
    /// The number of messages that its streams have read.
    received: Arc<AtomicUsize>,
    pauses: mpsc::UnboundedSender<Pause>,
    streams: usize,
}

/// The client confirms its pause on the first channel, and resumes when the second is closed.
type Pause = (oneshot::Sender<()>, std::sync::mpsc::Receiver<()>);

// === impl BusyClient ===

impl BusyClient {
    /// Opens the streams. Each waits for `late` before every read, and reads until it has received all flips.
    fn start(crowd: &Crowd, windows: Windows, streams: usize, late: Duration) -> Result<Self> {
        let (server, path) = (crowd.manager.destination_address(), crowd.path("small"));
        let received = Arc::<AtomicUsize>::default();
        let (pauses, mut requested) = mpsc::unbounded_channel::<Pause>();
        let shared = Arc::clone(&received);
        let reads = async move {
            let client = SlowClient::connect(server, windows).await?;
            let mut readers = JoinSet::new();
            // One task per stream, as in a proxy.
            for mut stream in client.get_many(&path, streams).await? {
                let received = Arc::clone(&shared);
                readers.spawn(async move {
                    while stream.messages.len() < 1 + 2 * FLIPS {
                        if !late.is_zero() {
                            sleep(late).await;
                        }
                        ensure!(stream.next().await?.is_some(), "the stream ended after {:?}", stream.messages);
                        received.fetch_add(1, Ordering::Relaxed);
                    }
                    ensure!(stream.messages == all_messages(), "unexpected messages: {:?}", stream.messages);
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
                    Some((paused, resume)) = requested.recv() => {
                        _ = paused.send(());
                        _ = resume.recv();
                    }
                }
            }
            ensure!(client.is_open(), "the connection ended");
            Ok(())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::spawn(move || runtime.block_on(reads));
        Ok(Self { thread, received, pauses, streams })
    }

    /// Pauses the client until the returned sender is dropped.
    async fn pause(&self) -> Result<std::sync::mpsc::Sender<()>> {
        let (paused, is_paused) = oneshot::channel();
        let (guard, resume) = std::sync::mpsc::channel();
        self.pauses.send((paused, resume)).ok().context("the client has ended")?;
        is_paused.await.context("the client has ended")?;
        Ok(guard)
    }

    /// Waits until each stream has read this number of messages, or the client has ended.
    async fn receives(&self, messages: usize) -> Result<()> {
        let (all, deadline) = (messages * self.streams, Instant::now() + PATIENCE);
        loop {
            let now = self.received.load(Ordering::Relaxed);
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

/// Flips an endpoint, and checks that all streams receive every change and that their connection stays open.
async fn all_streams_receive_every_flip(windows: Windows, streams: usize, late: Duration) -> Result<()> {
    let crowd = Crowd::start(NEVER_TOO_LATE).await?;
    crowd.put("small", 0..2).await?;
    let mut other = crowd.shows("small", 0..2).await?;
    let begin = Instant::now();
    let client = BusyClient::start(&crowd, windows, streams, late)?;
    client.receives(1).await?;
    eprintln!("{streams} streams in {:?}", begin.elapsed());
    for change in 0..2 * FLIPS {
        if client.thread.is_finished() {
            break;
        }
        let pause = client.pause().await?;
        let endpoints = 0..1 + u32::try_from(change % 2)?;
        crowd.set_slice("small-0", endpoints.clone()).await?;
        shows(&mut other, endpoints).await?;
        sleep(PAUSE).await;
        drop(pause);
        let begin = Instant::now();
        client.receives(2 + change).await?;
        eprintln!("received in {:?}", begin.elapsed());
    }
    client.thread.join().map_err(|_| anyhow::anyhow!("the client panicked"))?
}

/// A debug build serves this number in a few seconds.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_streams_of_one_connection_receive_every_flip_and_it_stays_open() -> Result<()> {
    all_streams_receive_every_flip(Windows::OF_PROXIES, 10_000, Duration::ZERO).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_the_default_window_of_h2_stays_open() -> Result<()> {
    all_streams_receive_every_flip(OF_H2, 2000, Duration::ZERO).await
}

/// The delay before each read keeps frames unread for as long.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_streams_are_read_late_stays_open() -> Result<()> {
    all_streams_receive_every_flip(Windows::OF_PROXIES, 6000, Duration::from_millis(20)).await
}
