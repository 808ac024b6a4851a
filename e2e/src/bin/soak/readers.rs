//! Healthy proxies: `Get` streams that read everything immediately and store the current state.
//!
//! * In: the address of a destination server, requests. Out: the current, folded state of each stream; how streams
//!   ended.
//! * Always: the number of readers is constant: a reader whose stream has ended or was refused requests it again, after
//!   a pause unless the stream ended with OK. A reader stores only its current state, so memory does not grow with the
//!   duration.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use e2e::{
    answers::refusal,
    discovery::fold,
    eventually,
    oracle::{Answer, Request},
};
use linkerd2_proxy_api::destination::{GetDestination, destination_client::DestinationClient};
use rand::{seq::IteratorRandom, seq::SliceRandom};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tonic::transport::{Channel, Endpoint};

use crate::tally::Tally;

/// The windows of Linkerd's proxies.
const STREAM_WINDOW: u32 = 65_535;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// The timeout for a connection or for response headers.
const PATIENCE: Duration = Duration::from_secs(20);
/// Well below the deadline of a comparison.
const AFTER_REFUSAL: Duration = Duration::from_secs(2);
const AFTER_ERROR: Duration = Duration::from_millis(200);

/// Dropping it closes all connections.
pub(crate) struct Readers {
    address: SocketAddr,
    all: Vec<Arc<Reader>>,
    connections: tokio::sync::Mutex<Vec<Connection>>,
    count: usize,
    counts: Arc<Counts>,
}

/// One client of one request.
pub(crate) struct Reader {
    /// The index of its request.
    pub number: usize,
    request: Request,
    known: Mutex<Option<Answer>>,
    request_again: Notify,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub messages: AtomicU64,
    /// Streams and connections that the client ended and opened again.
    pub streams_renewed: AtomicU64,
    pub connections_renewed: AtomicU64,
    /// Stream ends that the client did not cause.
    pub ended: Tally,
    pub refused: Tally,
    /// Violations of the contract: a Remove as the first message, a Remove of an unknown address, and so on.
    pub forbidden: Tally,
}

struct Connection {
    readers: Vec<Arc<Reader>>,
    task: JoinHandle<()>,
}

// === impl Readers ===

impl Readers {
    /// Opens `copies` streams for each request, distributed over the connections.
    pub(crate) fn open(address: SocketAddr, requests: &[Request], copies: usize, connections: usize) -> Self {
        let reader = |(number, request): (usize, &Request)| {
            let request = request.clone();
            Arc::new(Reader { number, request, known: Mutex::default(), request_again: Notify::new() })
        };
        let all: Vec<_> = (0..copies).flat_map(|_| requests.iter().enumerate().map(reader)).collect();
        let counts = Arc::<Counts>::default();
        let count = connections;
        let connections: Vec<Connection> = (0..connections)
            .map(|number| {
                let readers: Vec<_> = all.iter().skip(number).step_by(connections.max(1)).cloned().collect();
                let task = tokio::spawn(serve(address, readers.clone(), Arc::clone(&counts)));
                Connection { readers, task }
            })
            .collect();
        Self { address, all, connections: connections.into(), count, counts }
    }

    pub(crate) fn all(&self) -> &[Arc<Reader>] {
        &self.all
    }

    pub(crate) fn connections(&self) -> usize {
        self.count
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Waits until each reader has an answer.
    pub(crate) async fn all_answered(&self, deadline: Duration) -> Result<()> {
        eventually(deadline, "every stream to be answered", async || {
            let silent = self.all.iter().filter(|reader| reader.known().is_none()).count();
            ensure!(silent == 0, "{silent} of {} are not answered", self.all.len());
            Ok(())
        })
        .await
    }

    /// Closes this number of connections, and opens them again immediately.
    pub(crate) async fn reconnect(&self, count: usize) {
        let mut connections = self.connections.lock().await;
        connections.shuffle(&mut rand::rng());
        for connection in connections.iter_mut().take(count) {
            connection.task.abort();
            // Waits for the old task, so that it cannot write any more.
            let _ = (&mut connection.task).await;
            connection.readers.iter().for_each(|reader| *reader.known() = None);
            self.counts.connections_renewed.fetch_add(1, Ordering::Relaxed);
        }
        for connection in connections.iter_mut().take(count) {
            connection.task = tokio::spawn(serve(self.address, connection.readers.clone(), Arc::clone(&self.counts)));
        }
    }

    /// Ends this number of single streams and opens them again.
    pub(crate) fn renew_streams(&self, count: usize) {
        for reader in self.all.iter().sample(&mut rand::rng(), count) {
            reader.request_again.notify_one();
            self.counts.streams_renewed.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) async fn close(&self) {
        for connection in self.connections.lock().await.iter_mut() {
            connection.task.abort();
            let _ = (&mut connection.task).await;
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.connections.get_mut().iter().for_each(|connection| connection.task.abort());
    }
}

// === impl Counts ===

impl Counts {
    pub(crate) fn number(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

// === impl Reader ===

impl Reader {
    /// The current state of its open stream, or its refusal; `None` before the first answer.
    pub(crate) fn known(&self) -> MutexGuard<'_, Option<Answer>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn follow(&self, client: &DestinationClient<Channel>, counts: &Counts) {
        loop {
            let pause = tokio::select! {
                pause = self.read(client, counts) => pause,
                () = self.request_again.notified() => {
                    // The state belonged to the stream that has ended.
                    *self.known() = None;
                    Duration::ZERO
                }
            };
            sleep(pause).await;
        }
    }

    /// Runs one stream, from its request to its end. Returns the pause before the next one.
    async fn read(&self, client: &DestinationClient<Channel>, counts: &Counts) -> Duration {
        let Request { path, token } = self.request.clone();
        let request = GetDestination { scheme: String::new(), path, context_token: token };
        let mut client = client.clone();
        let mut updates = match timeout(PATIENCE, client.get(request)).await {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => {
                counts.refused.count(&format!("{:?}", status.code()));
                *self.known() = Some(refusal(&status));
                return AFTER_REFUSAL;
            }
            Err(_) => {
                counts.ended.count("no response headers in time");
                *self.known() = None;
                return AFTER_ERROR;
            }
        };
        *self.known() = None;
        let pause = loop {
            match updates.message().await {
                Ok(Some(update)) => {
                    counts.messages.fetch_add(1, Ordering::Relaxed);
                    let mut known = self.known();
                    let is_first = known.is_none();
                    let Answer::Endpoints(endpoints) = known.get_or_insert(Answer::Endpoints(BTreeMap::new())) else {
                        break AFTER_ERROR;
                    };
                    if let Err(error) = fold(endpoints, is_first, update) {
                        counts.forbidden.count(&error.to_string());
                        break AFTER_ERROR;
                    }
                }
                Ok(None) => {
                    counts.ended.count("OK");
                    break Duration::ZERO;
                }
                Err(status) => {
                    counts.ended.count(&format!("{:?}", status.code()));
                    break AFTER_ERROR;
                }
            }
        };
        *self.known() = None;
        pause
    }
}

/// Runs all streams of one connection, until the task is aborted.
async fn serve(address: SocketAddr, readers: Vec<Arc<Reader>>, counts: Arc<Counts>) {
    loop {
        match connect(address).await {
            Ok(client) => {
                futures::future::join_all(readers.iter().map(|reader| reader.follow(&client, &counts))).await;
            }
            Err(error) => {
                counts.ended.count(&format!("connection failed: {error:#}"));
                sleep(AFTER_ERROR).await;
            }
        }
    }
}

async fn connect(address: SocketAddr) -> Result<DestinationClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(PATIENCE)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    Ok(DestinationClient::new(endpoint.connect().await?).max_decoding_message_size(4 * 1024 * 1024))
}
