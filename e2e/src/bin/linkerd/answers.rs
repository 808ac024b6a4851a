//! Sends the same requests to our server and to Linkerd's, for random clusters at rest.
//!
//! * In: the path of Linkerd's controller, seeds. Out: how often the answers were equal, and each kind of difference
//!   with its number in the documentation, if it has one.
//! * Always: both servers have the same flags, and are restarted for each state of a cluster. The answers therefore
//!   depend only on the objects, and not on their history.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result};
use e2e::{
    ControlPlane, Manager, ManagerOptions, Options,
    answers::refusal,
    discovery::Discovery,
    linkerd_controller::{CHART_FLAGS, LinkerdDestination},
    oracle::{Answer, ApiState, ProfileAnswer, Request},
    world::{World, api, cluster_ip_requests},
};
use futures::{StreamExt, stream};
use tokio::time::{sleep, timeout};
use tonic::Status;

use crate::differences::{self, Difference};

/// The number of changes before each comparison.
const BURSTS: [usize; 4] = [0, 20, 60, 120];
/// A server without a message for this time has none.
const SILENCE: Duration = Duration::from_millis(1_500);
/// A stream without a further message for this time has sent its whole answer.
const QUIET: Duration = Duration::from_millis(200);
const AT_ONE_TIME: usize = 100;
/// How often a request is repeated while the answers differ: the servers may observe the last write at
/// different times.
const REPETITIONS: usize = 3;
const READY: Duration = Duration::from_secs(30);

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

/// A request to one of the two methods.
enum Query {
    Get(Request),
    Profile(Request),
}

/// What a client received after a request; `None` if it received no message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Received {
    Endpoints(Option<Answer>),
    Profile(Option<ProfileAnswer>),
}

pub(crate) async fn compare(controller: &Path, seeds: &[u64]) -> Result<Answers> {
    let mut answers = Answers::default();
    for &seed in seeds {
        let mut world = World::for_linkerd(seed)?;
        let control_plane = ControlPlane::start(Options::default()).await?;
        control_plane.kubectl(&["create", "namespace", "linkerd"]).await?;
        control_plane.install_crds("crd/linkerd").await?;
        let client = control_plane.client().await?;
        api::begin(&client, &world).await?;
        for changes in BURSTS {
            for _ in 0..changes {
                api::apply(&client, &world.mutate()?).await?;
            }
            for (name, flags) in FLAGS {
                let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
                let options =
                    ManagerOptions { as_linkerd_destination: true, args: flags.clone(), ..ManagerOptions::default() };
                let mut ours = Manager::start(&control_plane, options)?;
                let theirs = LinkerdDestination::start(controller, &control_plane, &flags).await?;
                ours.ready(READY).await?;
                let state = api::list(&client).await?;
                let queries = queries(&world, &state);
                let servers = [ours.discovery().await?, theirs.discovery().await?];
                answers.states += 1;
                eprintln!("seed {seed}, {changes} changes, {name}: {} queries", queries.len());
                let context = format!("seed {seed}, {changes} changes, flags: {name}");
                answers.add(&servers, &queries, &context).await;
                if let Some(panic) = theirs.log().split("panic: ").nth(1) {
                    eprintln!(
                        "{context}: Linkerd's server panicked: {}",
                        panic.lines().take(30).collect::<Vec<_>>().join("\n")
                    );
                }
                ours.kill().await.context("stopping our server")?;
            }
        }
    }
    Ok(answers)
}

/// Without profiles of hostnames whose endpoints are not Pods (row 20).
fn queries(world: &World, state: &ApiState) -> Vec<Query> {
    let endpoints = state.slices.values().flat_map(|slice| &slice.endpoints);
    let others = endpoints.filter(|it| it.target_ref.as_ref().and_then(|to| to.kind.as_deref()) != Some("Pod"));
    let hostnames: BTreeSet<&str> = others.filter_map(|endpoint| endpoint.hostname.as_deref()).collect();
    let is_requested = |request: &Request| !request.path.split('.').next().is_some_and(|host| hostnames.contains(host));
    let profiles = world.profile_requests().into_iter().filter(is_requested).chain(cluster_ip_requests(state));
    world.requests().into_iter().map(Query::Get).chain(profiles.map(Query::Profile)).collect()
}

// === impl Answers ===

impl Answers {
    /// Returns whether each difference has a number.
    pub(crate) fn is_explained(&self) -> bool {
        self.differences.keys().all(|difference| difference.number.is_some())
    }

    async fn add(&mut self, servers: &[Discovery; 2], queries: &[Query], context: &str) {
        let requested = stream::iter(queries).map(|query| request_both(servers, query)).buffered(AT_ONE_TIME);
        let received: Vec<[Received; 2]> = requested.collect().await;
        for (query, [ours, theirs]) in queries.iter().zip(received) {
            self.compared += 1;
            let request = query.request();
            let found = differences::of(&ours, &theirs);
            if found.is_empty() {
                self.equal += 1;
            }
            for (difference, example) in found {
                let first = || format!("{context}: {} {} {:?}: {example}", query.method(), request.path, request.token);
                let examples =
                    self.differences.entry(difference).or_insert_with(|| Examples { count: 0, first: first() });
                examples.count += 1;
            }
        }
    }
}

/// Sends a request to both servers, and repeats it while the answers differ.
async fn request_both([ours, theirs]: &[Discovery; 2], query: &Query) -> [Received; 2] {
    let mut repetitions = 0;
    loop {
        let received: [Received; 2] = tokio::join!(query.send(ours), query.send(theirs)).into();
        if received[0] == received[1] || repetitions == REPETITIONS {
            return received;
        }
        repetitions += 1;
        sleep(QUIET).await;
    }
}

// === impl Query ===

impl Query {
    fn request(&self) -> &Request {
        match self {
            Self::Get(request) | Self::Profile(request) => request,
        }
    }

    fn method(&self) -> &'static str {
        match self {
            Self::Get(_) => "Get",
            Self::Profile(_) => "GetProfile",
        }
    }

    async fn send(&self, server: &Discovery) -> Received {
        match self {
            Self::Get(Request { path, token }) => {
                // Linkerd's server sends its headers with the first message.
                let first = timeout(SILENCE, async {
                    let mut stream = server.get(path, token).await?;
                    stream.next().await.map_err(status)?;
                    Ok(stream)
                });
                Received::Endpoints(match first.await {
                    Err(_) => None,
                    Ok(Err(status)) => Some(refusal(&status)),
                    Ok(Ok(mut stream)) => match stream.settle(QUIET).await.map_err(status) {
                        Ok(_) => Some(Answer::Endpoints(stream.known)),
                        Err(status) => Some(refusal(&status)),
                    },
                })
            }
            Self::Profile(Request { path, token }) => {
                let first = timeout(SILENCE, async {
                    let mut stream = server.get_profile(path, token).await?;
                    stream.next().await.map_err(status)?;
                    Ok(stream)
                });
                let refused = |status: &Status| ProfileAnswer::Refused(status.code(), status.message().to_owned());
                Received::Profile(match first.await {
                    Err(_) => None,
                    Ok(Err(status)) => Some(refused(&status)),
                    Ok(Ok(mut stream)) => match stream.settle(QUIET).await.map_err(status) {
                        Ok(_) => stream.messages.pop().map(|profile| ProfileAnswer::Profile(Box::new(profile))),
                        Err(status) => Some(refused(&status)),
                    },
                })
            }
        }
    }
}

/// Returns the status in an error of a stream.
fn status(error: anyhow::Error) -> Status {
    let text = format!("{error:#}");
    error.downcast::<Status>().unwrap_or_else(|_| Status::internal(text))
}
