//! Healthy proxies: `Get` and `GetProfile` streams that read everything immediately and store the current state.
//!
//! * In: the address of a destination server, calls. Out: the current, folded state of each stream; how streams
//!   ended.
//! * Always: an end that neither the client nor a change of the target explains is counted as one. The number of
//!   readers is constant: a reader whose stream has ended or was refused requests it again, after a pause unless the
//!   stream ended with OK. A reader stores only its current state, so memory does not grow with the
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

use anyhow::{Result, bail, ensure};
use e2e::{
    discovery::fold,
    eventually,
    oracle::{Answer, ProfileAnswer},
};
use linkerd2_proxy_api::destination::{
    DestinationProfile, GetDestination, Update, destination_client::DestinationClient,
};
use rand::{seq::IteratorRandom, seq::SliceRandom};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tonic::{
    Response, Status, Streaming,
    transport::{Channel, Endpoint},
};

use crate::{
    call::{Call, Method, Reply},
    churn::Tracked,
    tally::Tally,
};

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
    connections: tokio::sync::Mutex<Vec<ReaderConnection>>,
    count: usize,
    counts: Arc<ReaderCounts>,
}

/// One client of one call.
pub(crate) struct Reader {
    /// The index of its call.
    pub number: usize,
    tracked: Tracked,
    known: Mutex<Option<Reply>>,
    request_again: Notify,
}

#[derive(Default)]
pub(crate) struct ReaderCounts {
    pub messages: AtomicU64,
    /// Streams and connections that the client ended and opened again.
    pub streams_renewed: AtomicU64,
    pub connections_renewed: AtomicU64,
    /// Ends of streams whose target now has another kind of reply.
    pub explained: AtomicU64,
    /// Other ends that the client did not cause, by method and status.
    pub unexplained: Tally,
    pub refused: Tally,
    /// Violations of the contract: a Remove as the first message, a Remove of an unknown address, and so on.
    pub forbidden: Tally,
}

struct ReaderConnection {
    readers: Vec<Arc<Reader>>,
    task: JoinHandle<()>,
}

// === impl Readers ===

impl Readers {
    /// Opens `copies` streams for each `Get`, and one for each `GetProfile`, distributed over the connections.
    pub(crate) fn open(address: SocketAddr, calls: &[Tracked], copies: usize, connections: usize) -> Self {
        let all: Vec<_> = (0..copies)
            .flat_map(|copy| calls.iter().enumerate().map(move |(number, tracked)| (copy, number, tracked)))
            .filter(|(copy, _, (call, _))| *copy == 0 || call.method == Method::Get)
            .map(|(_, number, tracked)| {
                let tracked = tracked.clone();
                Arc::new(Reader { number, tracked, known: Mutex::default(), request_again: Notify::new() })
            })
            .collect();
        let counts = Arc::<ReaderCounts>::default();
        let count = connections;
        let connections: Vec<ReaderConnection> = (0..connections)
            .map(|number| {
                let readers: Vec<_> = all.iter().skip(number).step_by(connections.max(1)).cloned().collect();
                let task = tokio::spawn(serve(address, readers.clone(), Arc::clone(&counts)));
                ReaderConnection { readers, task }
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

    pub(crate) fn counts(&self) -> &ReaderCounts {
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

// === impl ReaderCounts ===

impl ReaderCounts {
    pub(crate) fn number(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

// === impl Reader ===

impl Reader {
    /// The current state of its open stream, or its refusal; `None` before the first answer.
    pub(crate) fn known(&self) -> MutexGuard<'_, Option<Reply>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn follow(&self, client: &DestinationClient<Channel>, counts: &ReaderCounts) {
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
    async fn read(&self, client: &DestinationClient<Channel>, counts: &ReaderCounts) -> Duration {
        let Call { method, request } = &self.tracked.0;
        let (path, context_token) = (request.path.clone(), request.token.clone());
        let request = GetDestination { scheme: String::new(), path, context_token };
        let mut client = client.clone();
        match method {
            Method::Get => {
                let response = timeout(PATIENCE, client.get(request)).await.ok();
                self.messages(response, counts, |known, update: Update| {
                    let is_first = known.is_none();
                    match known.get_or_insert(Reply::Get(Answer::Endpoints(BTreeMap::new()))) {
                        Reply::Get(Answer::Endpoints(endpoints)) => fold(endpoints, is_first, update).map(drop),
                        other => bail!("a message after {other:?}"),
                    }
                })
                .await
            }
            Method::GetProfile => {
                let response = timeout(PATIENCE, client.get_profile(request)).await.ok();
                self.messages(response, counts, |known, profile: DestinationProfile| {
                    let profile = Reply::GetProfile(ProfileAnswer::Profile(Box::new(profile)));
                    ensure!(known.as_ref() != Some(&profile), "a profile without a change");
                    *known = Some(profile);
                    Ok(())
                })
                .await
            }
        }
    }

    /// Folds the messages of a stream into the current state, until it ends. `None` is a request without response
    /// headers.
    async fn messages<T>(
        &self,
        response: Option<Result<Response<Streaming<T>>, Status>>,
        counts: &ReaderCounts,
        fold: impl Fn(&mut Option<Reply>, T) -> Result<()>,
    ) -> Duration {
        let (call, history) = &self.tracked;
        let unexplained =
            |what: &str| counts.unexplained.count(&format!("{:?} {}: {what}", call.method, call.request.path));
        let mut messages = match response {
            Some(Ok(response)) => response.into_inner(),
            Some(Err(status)) => {
                counts.refused.count(&format!("{:?} with {:?}", call.method, status.code()));
                *self.known() = Some(call.refused(&status));
                return AFTER_REFUSAL;
            }
            None => {
                unexplained("no response headers in time");
                *self.known() = None;
                return AFTER_ERROR;
            }
        };
        *self.known() = None;
        let pause = loop {
            match messages.message().await {
                Ok(Some(message)) => {
                    counts.messages.fetch_add(1, Ordering::Relaxed);
                    if let Err(error) = fold(&mut self.known(), message) {
                        counts.forbidden.count(&format!("{:?}: {error}", call.method));
                        break AFTER_ERROR;
                    }
                }
                Ok(None) => {
                    if history.as_ref().is_some_and(|(history, place)| history.explains_end_of(*place)) {
                        counts.explained.fetch_add(1, Ordering::Relaxed);
                    } else {
                        unexplained("OK");
                    }
                    break Duration::ZERO;
                }
                Err(status) => {
                    unexplained(&format!("{:?}", status.code()));
                    break AFTER_ERROR;
                }
            }
        };
        *self.known() = None;
        pause
    }
}

/// Runs all streams of one connection, until the task is aborted.
async fn serve(address: SocketAddr, readers: Vec<Arc<Reader>>, counts: Arc<ReaderCounts>) {
    loop {
        match connect(address).await {
            Ok(client) => {
                futures::future::join_all(readers.iter().map(|reader| reader.follow(&client, &counts))).await;
            }
            Err(error) => {
                counts.unexplained.count(&format!("connection failed: {error:#}"));
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
