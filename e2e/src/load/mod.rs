//! Many `Get` and `GetProfile` streams at once, as proxies hold them, from a client that costs little itself.
//!
//! ```text
//!   Client: one thread ──▶ Load: connections (streams: frames ──▶ message: gRPC messages) ──▶ Arrivals
//! ```
//!
//! * In: the address of any server of the Destination API, and what each stream asks for. Out: when the first message of each
//!   stream came, when each later one did and what it was about, which streams were refused, late or ended; and what the
//!   client itself cost.
//! * Always: proxy-faithful where it matters to the server: HTTP/2 windows of 64 KiB a stream and 1 MiB a connection, given
//!   back when half of one is used; context tokens with nodes; a stream that has no message after 3 s is asked for anew, as
//!   is a refused one. An open loop: what comes late is counted from the moment at which all were due.
//! * On bare frames, in one thread, decoding only what is measured: a client that is the bottleneck measures itself.

mod arrivals;
mod connection;
mod cost;
mod message;
mod streams;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::{
    runtime::{self, Handle},
    sync::{oneshot, watch},
    task::JoinSet,
    time::timeout,
};

pub use arrivals::{Arrivals, Change, Counts};
pub use connection::Unread;
pub use cost::{CoreTime, Cost};
pub use message::What;

use connection::Connection;
use streams::Streams;

const PATIENCE: Duration = Duration::from_secs(60);
/// As many connections are made at the same time: what is measured begins when all are there.
const CONNECTING: usize = 64;

/// What one stream asks for.
#[derive(Clone, Debug)]
pub struct Ask {
    pub method: Method,
    pub path: String,
    pub token: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    GetProfile,
}

/// The thread in which all loads live, so that what they cost can be told from what the rest of the process does.
pub struct Client {
    runtime: Handle,
    thread_id: u32,
    /// Ends the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Open streams. Dropping it closes their connections.
pub struct Load {
    tasks: JoinSet<()>,
    arrivals: Arc<Mutex<Arrivals>>,
    /// Kept until the streams end: they wait for it to open.
    _opened: watch::Sender<Option<Instant>>,
}

// === impl Client ===

impl Client {
    /// # Errors
    /// When there is no thread to be had.
    pub fn start() -> Result<Self> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (started, runtime) = mpsc::channel();
        let run = move || {
            let made = runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = made else { return };
            let thread_id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            let _ = started.send((runtime.handle().clone(), thread_id));
            let _ = runtime.block_on(stopped);
        };
        let thread = std::thread::Builder::new().name("load".to_owned()).spawn(run)?;
        let (runtime, thread_id) = runtime.recv().context("the load's thread did not start")?;
        Ok(Self { runtime, thread_id, stop: Some(stop), thread: Some(thread) })
    }

    /// What all loads together have cost so far.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn cost(&self) -> Result<Cost> {
        Cost::of_thread(std::process::id(), self.thread_id)
    }

    /// Connects, and opens all streams at the same moment: `asks` are dealt out to the connections in turn.
    ///
    /// # Errors
    /// When a connection cannot be made.
    pub async fn open(&self, address: SocketAddr, connections: usize, asks: Vec<Ask>) -> Result<Load> {
        ensure!(connections > 0, "a load needs a connection");
        let mut dealt = Vec::new();
        dealt.resize_with(connections, Vec::new);
        for (number, ask) in asks.into_iter().enumerate() {
            dealt.get_mut(number % connections).context("a connection")?.push(ask);
        }
        let made: Vec<Connection> = stream::iter(dealt)
            .map(|asks| async move {
                let connecting = self.runtime.spawn(Connection::open(address, Streams::new(&asks)));
                connecting.await?
            })
            .buffer_unordered(CONNECTING)
            .try_collect()
            .await?;
        let arrivals = Arc::<Mutex<Arrivals>>::default();
        let (opened, start) = watch::channel(None);
        let mut tasks = JoinSet::new();
        for connection in made {
            tasks.spawn_on(connection.run(start.clone(), Arc::clone(&arrivals)), &self.runtime);
        }
        opened.send_replace(Some(Instant::now()));
        Ok(Load { tasks, arrivals, _opened: opened })
    }

    /// Makes so many connections at the same moment, as proxies do when their server is back: how long it took until the
    /// server answered on each, or why it did not.
    pub async fn connect(&self, address: SocketAddr, count: usize) -> Vec<Result<Duration>> {
        let begun = Instant::now();
        let connect = || {
            self.runtime.spawn(async move {
                let connection = Connection::open(address, Streams::new(&[])).await?;
                anyhow::Ok((connection, begun.elapsed()))
            })
        };
        let connecting: Vec<_> = std::iter::repeat_with(connect).take(count).collect();
        // All are kept until the last is there.
        let made = futures::future::join_all(connecting).await;
        made.into_iter().map(|made| made?.map(|(_, took)| took)).collect()
    }

    /// Asks on a connection whose streams are never read.
    ///
    /// # Errors
    /// When the connection cannot be made.
    pub async fn open_unread(&self, address: SocketAddr, asks: &[Ask]) -> Result<Unread> {
        let asks = asks.to_vec();
        self.runtime.spawn(async move { Unread::open(address, &asks).await }).await?
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

// === impl Load ===

impl Load {
    /// Waits until so many streams have their first message; how long each took, sorted.
    ///
    /// # Errors
    /// When they do not come, or a stream ends.
    pub async fn first_messages(&self, streams: usize) -> Result<Vec<Duration>> {
        let all = async {
            loop {
                {
                    let arrivals = self.arrivals();
                    if let Some((why, count)) = arrivals.ended.first_key_value() {
                        bail!("{count} streams ended: {why}");
                    }
                    if arrivals.first.len() >= streams {
                        let mut first = arrivals.first.clone();
                        first.sort();
                        return Ok(first);
                    }
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, all).await.with_context(|| format!("{} of {streams} came", self.arrivals().first.len()))?
    }

    /// Everything that has come so far. Nothing comes while this is held, and whoever asks twice waits for ever.
    pub fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        lock(&self.arrivals)
    }

    /// What has come so far, in numbers.
    pub fn counts(&self) -> Counts {
        self.arrivals().counts
    }

    /// Forgets what has come so far.
    pub fn reset(&self) {
        *self.arrivals() = Arrivals::default();
    }

    /// Closes all connections, and waits until nothing of it is left here.
    pub async fn close(mut self) {
        self.tasks.shutdown().await;
    }
}

fn lock(arrivals: &Mutex<Arrivals>) -> MutexGuard<'_, Arrivals> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}
