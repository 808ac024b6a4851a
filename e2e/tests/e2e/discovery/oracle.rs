//! Random clusters on a real API server: the responses of `Get` are compared with those of the oracle.
//!
//! After each burst of changes, three responses are compared: those of streams that were open throughout, those of new
//! streams, and those of the oracle for the objects that the API server lists. The control plane runs no controllers,
//! so only the test changes objects.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    ControlPlane, Manager, ManagerOptions, Options,
    answers::{difference, first_answer, refusal, settings},
    discovery::{Discovery, Endpoints},
    eventually,
    mesh::SOON,
    oracle::{Answer, Request, answer, answer_while_open},
    world::{World, api},
};
use futures::future::try_join_all;
use tokio::time::{sleep, timeout};
use tonic::Status;

/// The number of changes in each burst.
const BURSTS: [usize; 6] = [1, 3, 10, 40, 40, 80];
/// A stream without a message for this time has settled.
const QUIET: Duration = Duration::from_millis(150);

/// The state of a client of one request.
enum Known {
    Stream(Box<Endpoints>),
    Refused(Status),
}

/// A client that repeats its request when its stream ends.
struct Client {
    discovery: Discovery,
    request: Request,
    known: Known,
}

impl Client {
    async fn open(discovery: &Discovery, request: Request) -> Self {
        let known = request_stream(discovery, &request).await;
        Self { discovery: discovery.clone(), request, known }
    }

    /// Reads messages, and repeats the request after a refusal or the end of the stream, until the response is as
    /// expected: `while_open` for an open stream, `fresh` for a refusal.
    async fn reaches(&mut self, while_open: &Answer, fresh: &Answer) -> Result<()> {
        let result = timeout(SOON, async {
            loop {
                match &mut self.known {
                    Known::Stream(stream) if &Answer::Endpoints(stream.known.clone()) == while_open => {
                        if stream.settle(QUIET).await? {
                            if &Answer::Endpoints(stream.known.clone()) == while_open {
                                return anyhow::Ok(());
                            }
                            continue;
                        }
                    }
                    Known::Stream(stream) => {
                        if stream.next().await?.is_some() {
                            continue;
                        }
                    }
                    Known::Refused(status) if &refusal(status) == fresh => return Ok(()),
                    Known::Refused(_) => sleep(QUIET).await,
                }
                self.known = request_stream(&self.discovery, &self.request).await;
            }
        });
        let missed = match result.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => format!("not within {SOON:?}"),
        };
        let seen = match &self.known {
            Known::Stream(stream) => Answer::Endpoints(stream.known.clone()),
            Known::Refused(status) => refusal(status),
        };
        bail!("{:?}: {missed}; {}", self.request, difference(while_open, Some(&seen)))
    }
}

async fn request_stream(discovery: &Discovery, request: &Request) -> Known {
    match discovery.get(&request.path, &request.token).await {
        Ok(stream) => Known::Stream(Box::new(stream)),
        Err(status) => Known::Refused(status),
    }
}

/// The seed of the random cluster, from the environment: `E2E_SEED=7`.
fn seed() -> Result<u64> {
    match std::env::var("E2E_SEED") {
        Ok(seed) => seed.parse().context("E2E_SEED must be a number"),
        Err(_) => Ok(1),
    }
}

#[tokio::test]
async fn old_and_new_streams_of_a_random_cluster_match_the_oracle() -> Result<()> {
    let seed = seed()?;
    let mut world = World::valid(seed)?;
    let control_plane = ControlPlane::start(Options::default()).await?;
    control_plane.kubectl(&["create", "namespace", "linkerd"]).await?;
    control_plane.install_crds("crd/linkerd").await?;
    let api_client = control_plane.client().await?;
    api::begin(&api_client, &world).await?;
    let (settings, args) = settings();
    let mut manager = Manager::start(&control_plane, ManagerOptions { args, ..ManagerOptions::default() })?;
    manager.ready(SOON).await?;
    let discovery = manager.discovery().await?;
    let open = world.requests().into_iter().map(|request| Client::open(&discovery, request));
    let mut clients: Vec<Client> = futures::future::join_all(open).await;
    for (burst, changes) in [0].into_iter().chain(BURSTS).enumerate() {
        for _ in 0..changes {
            api::apply(&api_client, &world.mutate()?).await?;
        }
        let state = api::list(&api_client).await?;
        let compared = clients.iter_mut().map(async |client| {
            let request = client.request.clone();
            let fresh = answer(&state, &settings, &request);
            client.reaches(&answer_while_open(&state, &settings, &request), &fresh).await?;
            eventually(SOON, format_args!("a new stream for {request:?}"), async || {
                let seen = first_answer(&discovery, &request).await?;
                ensure!(seen == fresh, "{}", difference(&fresh, Some(&seen)));
                Ok(())
            })
            .await
        });
        try_join_all(compared).await.with_context(|| format!("seed {seed}, burst {burst} of {changes} changes"))?;
    }
    Ok(())
}
