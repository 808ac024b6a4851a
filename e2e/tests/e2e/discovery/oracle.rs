//! Random clusters on a real API server: the answers of `Get` and `GetProfile` are compared with those of the oracle.
//!
//! After each burst of changes, three answers are compared: those of streams that were open throughout, those of new
//! streams, and those of the oracle for the objects that the API server lists. The control plane runs no controllers,
//! so only the test changes objects.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    ManagerOptions, Rig,
    answers::{difference, profile_difference, profile_refusal, settings},
    discovery::Discovery,
    eventually,
    mesh::SOON,
    oracle::{ApiState, Holders, ObjectKind, Settings, answer, answer_profile, answer_while_open},
    query::{Query, Received, Stream},
    world::{World, api, cluster_ip_requests},
};
use futures::future::{join_all, try_join_all};
use tokio::time::{sleep, timeout};
use tonic::Status;

/// The number of changes in each burst.
const BURSTS: [usize; 6] = [1, 3, 10, 40, 40, 80];
/// The pause before a refused request is repeated.
const PAUSE: Duration = Duration::from_millis(150);

/// A client that repeats its request when its stream ends.
struct RepeatingClient {
    discovery: Discovery,
    query: Query,
    /// The stream, or the refusal.
    known: Result<Stream, Received>,
}

impl RepeatingClient {
    async fn open(discovery: &Discovery, query: Query) -> Self {
        let known = open(discovery, &query).await;
        Self { discovery: discovery.clone(), query, known }
    }

    /// Reads messages, and repeats the request after a refusal or the end of the stream, until the answer is one of
    /// `while_open` for an open stream, or `fresh` for a refusal.
    async fn reaches(&mut self, while_open: &[Received], fresh: &Received) -> Result<()> {
        let result = timeout(SOON, async {
            loop {
                match &mut self.known {
                    Ok(stream) if while_open.contains(&stream.received()) => {
                        let is_open = stream.settle().await?;
                        if is_open && while_open.contains(&stream.received()) {
                            return anyhow::Ok(());
                        }
                        if is_open {
                            continue;
                        }
                    }
                    Ok(stream) => {
                        if stream.next().await? {
                            continue;
                        }
                    }
                    Err(refused) if refused == fresh => return Ok(()),
                    Err(_) => sleep(PAUSE).await,
                }
                self.known = open(&self.discovery, &self.query).await;
            }
        });
        let missed = match result.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => format!("not within {SOON:?}"),
        };
        let seen = match &self.known {
            Ok(stream) => stream.received(),
            Err(refused) => refused.clone(),
        };
        let wanted = while_open.first().unwrap_or(fresh);
        bail!("open stream of {:?}: {missed}; {}", self.query, described(wanted, &seen))
    }
}

async fn open(discovery: &Discovery, query: &Query) -> Result<Stream, Received> {
    query.open(discovery).await.map_err(|status| refusal(query, &status))
}

/// Returns the answer of the oracle to a new stream.
fn fresh(state: &ApiState, settings: &Settings, query: &Query) -> Received {
    match query {
        Query::Get(request) => Received::Endpoints(Some(answer(state, settings, request))),
        Query::Profile(request) => Received::Profile(Some(answer_profile(state, settings, request))),
    }
}

/// Returns the possible answers of an open stream.
fn while_open(state: &ApiState, settings: &Settings, query: &Query, holders: &Holders) -> Vec<Received> {
    match query {
        Query::Get(request) => vec![Received::Endpoints(Some(answer_while_open(state, settings, request)))],
        Query::Profile(request) => {
            let answers = holders.answers_while_open(state, settings, request).into_iter();
            answers.map(|answer| Received::Profile(Some(answer))).collect()
        }
    }
}

/// Returns a refusal without the details of an authority that cannot be parsed, because the oracle has no parser's text.
fn refusal(query: &Query, status: &Status) -> Received {
    match query {
        Query::Get(_) => query.refused(status),
        Query::Profile(_) => Received::Profile(Some(profile_refusal(status))),
    }
}

fn described(expected: &Received, seen: &Received) -> String {
    match (expected, seen) {
        (Received::Endpoints(Some(expected)), Received::Endpoints(seen)) => difference(expected, seen.as_ref()),
        (Received::Profile(Some(expected)), Received::Profile(seen)) => profile_difference(expected, seen.as_ref()),
        (expected, seen) => format!("expected {expected:?}, saw {seen:?}"),
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
    let rig = Rig::linkerd().start().await?;
    let api_client = rig.client.clone();
    api::begin(&api_client, &world).await?;
    let (settings, args) = settings();
    let manager = ManagerOptions::new(args).ready(&rig).await?;
    let (mut holders, state) = (Holders::default(), api::list(&api_client).await?);
    holders.observe(&state);
    let queries: Vec<Query> = (world.requests().into_iter().map(Query::Get))
        .chain(world.profile_requests().into_iter().chain(cluster_ip_requests(&state)).map(Query::Profile))
        .collect();
    let (old, new) = (manager.discovery().await?, manager.discovery().await?);
    let mut clients: Vec<RepeatingClient> =
        join_all(queries.into_iter().map(|query| RepeatingClient::open(&old, query))).await;
    for (burst, changes) in [0].into_iter().chain(BURSTS).enumerate() {
        for _ in 0..changes {
            let change = world.mutate()?;
            api::apply(&api_client, &change).await?;
            if change.key().kind == ObjectKind::Service {
                holders.observe(&api::list(&api_client).await?);
            }
        }
        let state = api::list(&api_client).await?;
        let compared = clients.iter_mut().map(async |client| {
            let query = client.query.clone();
            let expected = fresh(&state, &settings, &query);
            client.reaches(&while_open(&state, &settings, &query, &holders), &expected).await?;
            eventually(SOON, format_args!("a new stream for {query:?}"), async || {
                let seen = query.send(&new, |status| refusal(&query, status)).await;
                ensure!(seen == expected, "{}", described(&expected, &seen));
                Ok(())
            })
            .await
        });
        try_join_all(compared).await.with_context(|| format!("seed {seed}, burst {burst} of {changes} changes"))?;
    }
    Ok(())
}
