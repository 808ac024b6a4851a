//! Streams that stay open on both servers while a random cluster changes.
//!
//! * In: the path of Linkerd's controller, seeds. Out: for each server, how many open streams had another answer than a
//!   new stream once the changes had settled, and how many streams the server ended.
//! * Always: a client repeats its request when it is refused or its stream ends, as a proxy does. An open stream that
//!   has received that there are no endpoints equals a new one that receives nothing. A stream of a deleted Service
//!   may stay open, while a new one is refused, or receives the profile of an address that no object has.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Result;
use e2e::{
    discovery::Discovery,
    oracle::{Answer, ProfileAnswer},
    query::{QUIET, Query, Received, queries},
    world::{World, api},
};
use futures::{StreamExt, stream};
use tokio::{sync::watch, task::JoinSet, time::sleep};
use tonic::{Code, Status};

use crate::{
    answers::begin,
    replica::{EitherReplica, ServerKind, chart_flags},
};

/// The number of changes before each comparison.
const BURSTS: [usize; 5] = [1, 3, 10, 40, 80];
/// How often an open and a new stream are compared until they are equal.
const LOOKS: usize = 10;
const AT_ONE_TIME: usize = 100;

/// The result for one server.
#[derive(Default)]
pub(crate) struct Live {
    pub(crate) compared: usize,
    /// The streams whose answer differed from that of a new stream, by what differed.
    pub(crate) stale: BTreeMap<&'static str, usize>,
    /// The first stale answer, for the reader of the report.
    pub(crate) example: Option<String>,
    pub(crate) ended: Ends,
}

/// How many streams the server ended, by the status.
pub(crate) type Ends = BTreeMap<String, usize>;

/// The clients of one server. Their streams end with this value.
struct Side {
    server: Discovery,
    clients: Vec<LiveClient>,
    ended: Arc<Mutex<Ends>>,
    _tasks: JoinSet<()>,
}

/// A client that keeps its stream open.
struct LiveClient {
    query: Query,
    latest: watch::Receiver<Received>,
}

/// Returns the results of our server and of Linkerd's.
pub(crate) async fn compare(controller: &Path, seeds: &[u64]) -> Result<[Live; 2]> {
    let mut results = [Live::default(), Live::default()];
    let flags = chart_flags();
    for &seed in seeds {
        let mut world = World::for_linkerd(seed)?;
        let (control_plane, client) = begin(&world).await?;
        let ours = EitherReplica::start(ServerKind::Ours, controller, &control_plane, &flags).await?;
        let theirs = EitherReplica::start(ServerKind::Theirs, controller, &control_plane, &flags).await?;
        let queries = queries(&world, &api::list(&client).await?);
        let sides = [ours.discovery().await?, theirs.discovery().await?].map(|server| Side::open(server, &queries));
        for changes in BURSTS {
            for _ in 0..changes {
                api::apply(&client, &world.mutate()?).await?;
            }
            let context = format!("seed {seed}, after {changes} changes");
            for (side, result) in sides.iter().zip(&mut results) {
                side.compare(result, &context).await;
            }
        }
        for (side, result) in sides.iter().zip(&mut results) {
            for (status, count) in &*side.ended.lock().unwrap_or_else(PoisonError::into_inner) {
                *result.ended.entry(status.clone()).or_default() += count;
            }
        }
        ours.kill().await?;
    }
    Ok(results)
}

// === impl Side ===

impl Side {
    fn open(server: Discovery, queries: &[Query]) -> Self {
        let (ended, mut tasks) = (Arc::<Mutex<Ends>>::default(), JoinSet::new());
        let clients = queries.iter().map(|query| {
            let (sender, latest) = watch::channel(query.silence());
            tasks.spawn(keep_open(query.clone(), server.clone(), sender, Arc::clone(&ended)));
            LiveClient { query: query.clone(), latest }
        });
        let clients = clients.collect();
        Self { server, clients, ended, _tasks: tasks }
    }

    async fn compare(&self, result: &mut Live, context: &str) {
        let looks = stream::iter(&self.clients).map(|client| client.stale(&self.server)).buffered(AT_ONE_TIME);
        for (client, stale) in self.clients.iter().zip(looks.collect::<Vec<_>>().await) {
            result.add(client, stale, context);
        }
    }
}

// === impl LiveClient ===

impl LiveClient {
    /// Returns the answers of the open stream and of a new one, if they do not become equal.
    async fn stale(&self, server: &Discovery) -> Option<[Received; 2]> {
        let mut looks = 0;
        loop {
            let new = self.query.send(server, |status| self.query.refused(status)).await;
            let open = self.latest.borrow().clone();
            if are_equal(&open, &new) {
                return None;
            }
            looks += 1;
            if looks == LOOKS {
                return Some([open, new]);
            }
            sleep(QUIET).await;
        }
    }
}

/// Reads a stream, and repeats the request when it is refused or the stream ends.
async fn keep_open(query: Query, server: Discovery, latest: watch::Sender<Received>, ended: Arc<Mutex<Ends>>) {
    loop {
        match query.open(&server).await {
            Ok(mut stream) => {
                let status = loop {
                    match stream.next().await {
                        Ok(true) => _ = latest.send_replace(stream.received()),
                        Ok(false) => break "OK".to_owned(),
                        Err(status) if is_quiet(&status) => {}
                        Err(status) => break format!("{:?} {:?}", status.code(), status.message()),
                    }
                };
                *ended.lock().unwrap_or_else(PoisonError::into_inner).entry(status).or_default() += 1;
            }
            Err(status) if is_quiet(&status) => {}
            Err(status) => _ = latest.send_replace(query.refused(&status)),
        }
        sleep(QUIET).await;
    }
}

/// Returns whether only the client's own deadline has passed. The server has nothing to send.
fn is_quiet(status: &Status) -> bool {
    status.code() == Code::DeadlineExceeded
}

fn are_equal(open: &Received, new: &Received) -> bool {
    let is_empty = |received: &Received| match received {
        Received::Endpoints(None) => true,
        Received::Endpoints(Some(Answer::Endpoints(endpoints))) => endpoints.is_empty(),
        _ => false,
    };
    let is_deleted = match (open, new) {
        (_, Received::Endpoints(Some(Answer::Refused(Code::NotFound, text)))) => {
            is_empty(open) && text.starts_with("Service ")
        }
        (
            Received::Profile(Some(ProfileAnswer::Profile(_))),
            Received::Profile(Some(ProfileAnswer::Refused(Code::Unknown, text))),
        ) => text.starts_with("service "),
        (
            Received::Profile(Some(ProfileAnswer::Profile(open))),
            Received::Profile(Some(ProfileAnswer::Profile(new))),
        ) => {
            let is_unused = new.endpoint.as_ref().is_some_and(|endpoint| endpoint.metric_labels.is_empty());
            open.endpoint.is_none() && is_unused
        }
        _ => false,
    };
    open == new || is_empty(open) && is_empty(new) || is_deleted
}

// === impl Live ===

impl Live {
    fn add(&mut self, client: &LiveClient, stale: Option<[Received; 2]>, context: &str) {
        self.compared += 1;
        let Some([open, new]) = stale else { return };
        *self.stale.entry(what_differs(&open, &new)).or_default() += 1;
        let (method, request) = (client.query.method(), client.query.request());
        self.example.get_or_insert_with(|| format!("{context}: {method} {request:?}: open {open:?}, new {new:?}"));
    }
}

fn what_differs(open: &Received, new: &Received) -> &'static str {
    match (open, new) {
        (Received::Endpoints(Some(Answer::Endpoints(open))), Received::Endpoints(Some(Answer::Endpoints(new)))) => {
            match open.keys().eq(new.keys()) {
                true => "Get: the content of an endpoint",
                false => "Get: the set of endpoints",
            }
        }
        (Received::Endpoints(_), _) => "Get: endpoints, a refusal or nothing",
        (Received::Profile(Some(ProfileAnswer::Profile(_))), Received::Profile(Some(ProfileAnswer::Profile(_)))) => {
            "GetProfile: the content of the profile"
        }
        (Received::Profile(_), _) => "GetProfile: a profile, a refusal or nothing",
    }
}
