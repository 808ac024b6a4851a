//! Many concurrent `Get` and `GetProfile` streams, like those of proxies, from a client with little overhead.
//!
//! ```text
//!   Client: one thread ──▶ Load: connections (streams: frames ──▶ message: gRPC messages) ──▶ Arrivals
//! ```
//!
//! * In: the address of any server of the Destination API, and the request of each stream. Out: the time of each
//!   stream's first message, the time and summary of each later one, the streams that were refused, late or ended; and
//!   the cost of the client.
//! * Always: like a proxy where it matters to the server: HTTP/2 windows of 64 KiB per stream and 1 MiB per connection,
//!   replenished when half is used; context tokens with nodes; a stream without a message after 3 s, or a refused one,
//!   is requested again. An open loop: delays are measured from the moment at which all streams were due.
//! * It handles raw frames in one thread and decodes only measured fields: a client that is the bottleneck would
//!   measure itself.

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

pub use arrivals::{Arrivals, Counts, SentChange};
pub use connection::Unread;
pub use cost::{CoreTime, Cost};
pub use message::What;

pub use crate::query::Method;

use connection::Connection;
use streams::Streams;

const PATIENCE: Duration = Duration::from_secs(60);
/// The number of connections that are set up concurrently. The measurement begins when all exist.
const CONNECTING: usize = 64;

/// The request of one stream.
#[derive(Clone, Debug)]
pub struct StreamRequest {
    pub method: Method,
    pub path: String,
    pub token: String,
}

/// The dedicated thread of all loads, so that their cost can be separated from the rest of the process.
pub struct LoadThread {
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
    /// Keeps the channel open: the streams wait for its start signal.
    _opened: watch::Sender<Option<Instant>>,
}

// === impl LoadThread ===

impl LoadThread {
    /// # Errors
    /// Fails when the thread cannot be created.
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

    /// The cost of all loads so far.
    ///
    /// # Errors
    /// Fails when `/proc` cannot be read.
    pub fn cost(&self) -> Result<Cost> {
        Cost::of_thread(std::process::id(), self.thread_id)
    }

    /// Connects, and opens all streams at the same moment: `requests` are distributed to the connections in turn.
    ///
    /// # Errors
    /// Fails when a connection cannot be opened.
    pub async fn open(&self, address: SocketAddr, connections: usize, requests: Vec<StreamRequest>) -> Result<Load> {
        let made = self.connect_all(connections, requests, |_| address).await?;
        Ok(self.start_all(made, |_, connection, _, start, arrivals| connection.run(start, arrivals)))
    }

    /// As [`LoadThread::open`], with every other connection on the second server. When its server is gone, a client opens
    /// its streams on the other one.
    ///
    /// # Errors
    /// Fails when a connection cannot be opened.
    pub async fn open_on_either(
        &self,
        servers: [SocketAddr; 2],
        connections: usize,
        requests: Vec<StreamRequest>,
    ) -> Result<Load> {
        let [first, second] = servers;
        let in_order = move |number: usize| if number.is_multiple_of(2) { [first, second] } else { [second, first] };
        let made = self.connect_all(connections, requests, |number| in_order(number)[0]).await?;
        Ok(self.start_all(made, |number, connection, requests, start, arrivals| {
            connection.run_on_either(requests, in_order(number), start, arrivals)
        }))
    }

    /// Returns the connections with their numbers and requests.
    async fn connect_all(
        &self,
        connections: usize,
        requests: Vec<StreamRequest>,
        server: impl Fn(usize) -> SocketAddr,
    ) -> Result<Vec<(usize, Connection, Vec<StreamRequest>)>> {
        ensure!(connections > 0, "a load needs a connection");
        let mut dealt = Vec::new();
        dealt.resize_with(connections, Vec::new);
        for (number, request) in requests.into_iter().enumerate() {
            dealt.get_mut(number % connections).context("a connection")?.push(request);
        }
        stream::iter(dealt.into_iter().enumerate())
            .map(|(number, requests)| {
                let connecting = self.runtime.spawn(Connection::open(server(number), Streams::new(&requests)));
                async move { anyhow::Ok((number, connecting.await??, requests)) }
            })
            .buffer_unordered(CONNECTING)
            .try_collect()
            .await
    }

    /// Gives the start signal to a task for each connection.
    fn start_all<F: Future<Output = ()> + Send + 'static>(
        &self,
        made: Vec<(usize, Connection, Vec<StreamRequest>)>,
        run: impl Fn(usize, Connection, Vec<StreamRequest>, watch::Receiver<Option<Instant>>, Arc<Mutex<Arrivals>>) -> F,
    ) -> Load {
        let arrivals = Arc::<Mutex<Arrivals>>::default();
        let (opened, start) = watch::channel(None);
        let mut tasks = JoinSet::new();
        for (number, connection, requests) in made {
            tasks.spawn_on(run(number, connection, requests, start.clone(), Arc::clone(&arrivals)), &self.runtime);
        }
        opened.send_replace(Some(Instant::now()));
        Load { tasks, arrivals, _opened: opened }
    }

    /// Opens this number of connections at the same moment, as proxies do when their server returns. For each, the time
    /// until the server answered, or the error.
    pub async fn connect(&self, address: SocketAddr, count: usize) -> Vec<Result<Duration>> {
        let begun = Instant::now();
        let connect = || {
            self.runtime.spawn(async move {
                let connection = Connection::open(address, Streams::new(&[])).await?;
                anyhow::Ok((connection, begun.elapsed()))
            })
        };
        let connecting: Vec<_> = std::iter::repeat_with(connect).take(count).collect();
        // All connections are kept until the last is open.
        let made = futures::future::join_all(connecting).await;
        made.into_iter().map(|made| made?.map(|(_, took)| took)).collect()
    }

    /// Sends requests on a connection whose streams are never read.
    ///
    /// # Errors
    /// Fails when the connection cannot be opened.
    pub async fn open_unread(&self, address: SocketAddr, requests: &[StreamRequest]) -> Result<Unread> {
        let requests = requests.to_vec();
        self.runtime.spawn(async move { Unread::open(address, &requests).await }).await?
    }
}

impl Drop for LoadThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

// === impl Load ===

impl Load {
    /// Waits until this number of streams have their first message. Returns the time of each, sorted.
    ///
    /// # Errors
    /// Fails when they do not arrive in time, or a stream ends.
    pub async fn first_messages(&self, streams: usize) -> Result<Vec<Duration>> {
        let all = async {
            loop {
                {
                    self.none_ended()?;
                    let arrivals = self.arrivals();
                    if arrivals.first.len() >= streams {
                        let mut first = arrivals.first.clone();
                        first.sort();
                        return Ok(first);
                    }
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, all)
            .await
            .with_context(|| format!("{} of {streams} first messages arrived", self.arrivals().first.len()))?
    }

    /// # Errors
    /// Fails if a stream has ended since the last reset.
    pub fn none_ended(&self) -> Result<()> {
        match self.arrivals().ended.first_key_value() {
            Some((why, count)) => bail!("{count} streams ended: {why}"),
            None => Ok(()),
        }
    }

    /// Everything received so far. It is a lock: while it is held, nothing is received, and a second call deadlocks.
    pub fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        lock(&self.arrivals)
    }

    /// The totals of everything received so far.
    pub fn counts(&self) -> Counts {
        self.arrivals().counts
    }

    /// Discards everything received so far.
    pub fn reset(&self) {
        *self.arrivals() = Arrivals::default();
    }

    /// Closes all connections, and waits until their tasks have ended.
    pub async fn close(mut self) {
        self.tasks.shutdown().await;
    }
}

fn lock(arrivals: &Mutex<Arrivals>) -> MutexGuard<'_, Arrivals> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}
