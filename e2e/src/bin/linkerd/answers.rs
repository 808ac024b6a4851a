//! Asks our server and Linkerd's the same questions about random clusters at rest.
//!
//! * In: the path of Linkerd's controller, seeds. Out: how often the answers were equal, and each kind of difference
//!   with its number in the documentation, if it has one.
//! * Always: both servers have the same flags, and are started anew for each state of a cluster, so that the answers
//!   depend on the objects alone and not on their history.

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
    linkerd_controller::LinkerdDestination,
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
/// How often a difference is asked for again: the servers may have observed the last write at different times.
const REPETITIONS: usize = 3;
const READY: Duration = Duration::from_secs(30);

/// The sets of flags: those of Linkerd's chart, and two others that turn each of them around.
const FLAGS: [(&str, &[&str]); 3] = [
    (
        "the chart's",
        &[
            "-outbound-transport-mode=transport-header",
            "-enable-h2-upgrade=true",
            "-enable-endpoint-slices=true",
            "-cluster-domain=cluster.local",
            "-identity-trust-domain=cluster.local",
            "-default-opaque-ports=25,587,3306,4444,5432,6379,9300,11211",
            "-enable-ipv6=false",
            r#"-meshed-http2-client-params={"keep_alive":{"interval":{"seconds":10},"timeout":{"seconds":3},"while_idle":true}}"#,
        ],
    ),
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

/// A request to one of the two methods, and its answer; `None` is silence.
enum Question {
    Get(Request),
    Profile(Request),
}

/// An answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
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
                let questions = questions(&world, &state);
                let servers = [ours.discovery().await?, theirs.discovery().await?];
                answers.states += 1;
                eprintln!("seed {seed}, {changes} changes, {name}: {} questions", questions.len());
                let context = format!("seed {seed}, {changes} changes, flags: {name}");
                answers.add(&servers, &questions, &context).await;
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
fn questions(world: &World, state: &ApiState) -> Vec<Question> {
    let endpoints = state.slices.values().flat_map(|slice| &slice.endpoints);
    let others = endpoints.filter(|it| it.target_ref.as_ref().and_then(|to| to.kind.as_deref()) != Some("Pod"));
    let hostnames: BTreeSet<&str> = others.filter_map(|endpoint| endpoint.hostname.as_deref()).collect();
    let is_asked = |request: &Request| !request.path.split('.').next().is_some_and(|host| hostnames.contains(host));
    let profiles = world.profile_requests().into_iter().filter(is_asked).chain(cluster_ip_requests(state));
    world.requests().into_iter().map(Question::Get).chain(profiles.map(Question::Profile)).collect()
}

// === impl Answers ===

impl Answers {
    /// Returns whether each difference has a number.
    pub(crate) fn is_explained(&self) -> bool {
        self.differences.keys().all(|difference| difference.number.is_some())
    }

    async fn add(&mut self, servers: &[Discovery; 2], questions: &[Question], context: &str) {
        let told = stream::iter(questions).map(|question| ask_both(servers, question)).buffered(AT_ONE_TIME);
        let told: Vec<[Told; 2]> = told.collect().await;
        for (question, [ours, theirs]) in questions.iter().zip(told) {
            self.compared += 1;
            let request = question.request();
            let found = differences::of(&ours, &theirs);
            if found.is_empty() {
                self.equal += 1;
            }
            for (difference, example) in found {
                let first =
                    || format!("{context}: {} {} {:?}: {example}", question.method(), request.path, request.token);
                let examples =
                    self.differences.entry(difference).or_insert_with(|| Examples { count: 0, first: first() });
                examples.count += 1;
            }
        }
    }
}

/// Asks both servers until their answers are equal, or still differ after some repetitions.
async fn ask_both([ours, theirs]: &[Discovery; 2], question: &Question) -> [Told; 2] {
    let mut repetitions = 0;
    loop {
        let told: [Told; 2] = tokio::join!(question.ask(ours), question.ask(theirs)).into();
        if told[0] == told[1] || repetitions == REPETITIONS {
            return told;
        }
        repetitions += 1;
        sleep(QUIET).await;
    }
}

// === impl Question ===

impl Question {
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

    async fn ask(&self, server: &Discovery) -> Told {
        match self {
            Self::Get(Request { path, token }) => {
                // Linkerd's server sends its headers with the first message.
                let first = timeout(SILENCE, async {
                    let mut stream = server.get(path, token).await?;
                    stream.next().await.map_err(status)?;
                    Ok(stream)
                });
                Told::Endpoints(match first.await {
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
                Told::Profile(match first.await {
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
