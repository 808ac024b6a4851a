//! Sends the same requests to our server and to Linkerd's, for random clusters at rest.
//!
//! * In: the path of Linkerd's controller, seeds. Out: how often the answers were equal, and each kind of difference
//!   with its number in the documentation, if it has one.
//! * Always: both servers have the same flags, and are restarted for each state of a cluster. The answers therefore
//!   depend only on the objects, and not on their history.

use std::{collections::BTreeMap, path::Path};

use anyhow::Result;
use e2e::{
    ControlPlane, Rig,
    discovery::Discovery,
    linkerd_controller::CHART_FLAGS,
    oracle::ApiState,
    query::{QUIET, Query, Received, queries},
    world::{World, api},
};
use futures::{StreamExt, stream};
use kube::Client;
use tokio::time::sleep;
use tonic::Status;

use crate::{
    differences::{self, Difference},
    replica::{EitherReplica, ServerKind},
};

/// The number of changes before each comparison.
const BURSTS: [usize; 4] = [0, 20, 60, 120];
const AT_ONE_TIME: usize = 100;
/// How often a request is repeated while the answers differ: the servers may observe the last write at
/// different times.
const REPETITIONS: usize = 3;

/// The sets of flags: those of Linkerd's chart, and two others that turn each of them around.
const FLAGS: [(&str, &[&str]); 3] = [
    ("the chart's", &CHART_FLAGS),
    (
        "IPv6, zone weights, transparent",
        &[
            "-outbound-transport-mode=transparent",
            "-cluster-domain=cluster.local",
            "-identity-trust-domain=mesh.example",
            "-default-opaque-ports=8000-9000",
            "-enable-ipv6=true",
            "-ext-endpoint-zone-weights=true",
        ],
    ),
    (
        "no HTTP/2 upgrade",
        &[
            "-outbound-transport-mode=transport-header",
            "-enable-h2-upgrade=false",
            "-cluster-domain=cluster.local",
            "-identity-trust-domain=cluster.local",
            "-enable-ipv6=true",
        ],
    ),
];

/// The result of all comparisons.
#[derive(Default)]
pub(crate) struct Answers {
    pub(crate) states: usize,
    pub(crate) compared: usize,
    pub(crate) equal: usize,
    pub(crate) differences: BTreeMap<Difference, Examples>,
}

/// How often a difference was seen, and the first time.
pub(crate) struct Examples {
    pub(crate) count: usize,
    pub(crate) first: String,
}

/// Starts an API server that has the objects of a random cluster.
pub(crate) async fn begin(world: &World) -> Result<(ControlPlane, Client)> {
    let Rig { control_plane, client } = Rig::linkerd().start().await?;
    api::begin(&client, world).await?;
    Ok((control_plane, client))
}

pub(crate) async fn compare(controller: &Path, seeds: &[u64]) -> Result<Answers> {
    let mut answers = Answers::default();
    for &seed in seeds {
        let mut world = World::for_linkerd(seed)?;
        let (control_plane, client) = begin(&world).await?;
        for changes in BURSTS {
            for _ in 0..changes {
                api::apply(&client, &world.mutate()?).await?;
            }
            for (name, flags) in FLAGS {
                let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
                let ours = EitherReplica::start(ServerKind::Ours, controller, &control_plane, &flags).await?;
                let theirs = EitherReplica::start(ServerKind::Theirs, controller, &control_plane, &flags).await?;
                let state = api::list(&client).await?;
                let queries = queries(&world, &state);
                let servers = [ours.discovery().await?, theirs.discovery().await?];
                answers.states += 1;
                eprintln!("seed {seed}, {changes} changes, {name}: {} queries", queries.len());
                let context = format!("seed {seed}, {changes} changes, flags: {name}");
                answers.add(&state, &servers, &queries, &context).await;
                theirs.print_panic(&context);
                ours.kill().await?;
            }
        }
    }
    Ok(answers)
}

// === impl Answers ===

impl Answers {
    /// Returns whether each difference has a number.
    pub(crate) fn is_explained(&self) -> bool {
        self.differences.keys().all(|difference| difference.number.is_some())
    }

    pub(crate) async fn add(&mut self, state: &ApiState, servers: &[Discovery; 2], queries: &[Query], context: &str) {
        let requested = stream::iter(queries).map(|query| request_both(servers, query)).buffered(AT_ONE_TIME);
        let received: Vec<[Received; 2]> = requested.collect().await;
        for (query, [ours, theirs]) in queries.iter().zip(received) {
            let request = query.request();
            let found = differences::of(state, request, &ours, &theirs);
            self.count(found, || format!("{context}: {} {} {:?}", query.method(), request.path, request.token));
        }
    }

    /// Counts one comparison, which found these differences.
    pub(crate) fn count(&mut self, found: Vec<(Difference, String)>, what_was_compared: impl Fn() -> String) {
        self.compared += 1;
        self.equal += usize::from(found.is_empty());
        for (difference, example) in found {
            let first = || Examples { count: 0, first: format!("{}: {example}", what_was_compared()) };
            self.differences.entry(difference).or_insert_with(first).count += 1;
        }
    }
}

/// Sends a request to both servers, and repeats it while the answers differ.
async fn request_both([ours, theirs]: &[Discovery; 2], query: &Query) -> [Received; 2] {
    let mut repetitions = 0;
    loop {
        let refused = |status: &Status| query.refused(status);
        let received: [Received; 2] = tokio::join!(query.send(ours, refused), query.send(theirs, refused)).into();
        if received[0] == received[1] || repetitions == REPETITIONS {
            return received;
        }
        repetitions += 1;
        sleep(QUIET).await;
    }
}
