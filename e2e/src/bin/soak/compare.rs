//! Compares what clients received with the oracle, in rounds.
//!
//! ```text
//!   watches settled ─▶ churn paused ─▶ controllers idle ─▶ objects listed ─▶ oracle ─▶ every open stream, and a new one for each call
//! ```
//!
//! * In: calls, the readers that follow them, an API server whose objects can be frozen. Out: the differences that
//!   did not disappear within [`DEADLINE`].
//! * Always: nothing is written between the list and the last check. An answer must be correct in two checks, a moment
//!   apart, so that a temporarily correct answer does not pass.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    Manager, eventually,
    oracle::{ApiState, Settings},
    world::api,
};
use futures::{StreamExt, stream};
use tokio::time::{sleep, timeout};

use crate::{
    call::{Call, Reply, reply_difference},
    churn::Churn,
    readers::{Reader, Readers},
};

/// The time after which a difference is a mismatch.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);
/// A resumed watch without events counts as failing for 25 s; a refused watch may back off for half a minute.
const SETTLED: Duration = Duration::from_secs(75);
const LISTED: Duration = Duration::from_secs(30);
const QUIET: Duration = Duration::from_millis(200);
const CONNECTIONS: usize = 4;
const AT_A_TIME: usize = 32;
/// The maximum length of the text of one difference.
const LONGEST: usize = 1500;

pub(crate) struct Comparer {
    pub client: kube::Client,
    pub settings: Settings,
    pub calls: Arc<[Call]>,
}

pub(crate) struct Round {
    /// The number of compared answers.
    pub compared: usize,
    /// The duration of the pause of the churn.
    pub took: Duration,
    pub mismatches: Vec<Mismatch>,
}

/// A wrong answer of one client.
pub(crate) struct Mismatch {
    pub client: &'static str,
    /// `None` for what the controllers wrote.
    pub call: Option<Call>,
    pub difference: String,
}

/// The oracle's replies to one call.
struct ExpectedReplies {
    fresh: Reply,
    while_open: Reply,
}

// === impl Comparer ===

impl Comparer {
    /// # Errors
    /// Fails when no comparison was possible: the watches did not settle, or the objects could not be listed.
    pub(crate) async fn round(&self, manager: &Manager, churn: &Churn, readers: &Readers) -> Result<Round> {
        // The churn continues, because a watch becomes healthy only with its next event.
        eventually(SETTLED, "the watches to settle", async || {
            let (_, body) = manager.get("/ready").await?;
            ensure!(body == "ready\n", "{}", body.trim());
            Ok(())
        })
        .await?;
        let paused = Instant::now();
        let _silence = churn.pause().await;
        let written = self.controllers(manager, churn).await?;
        let state = timeout(LISTED, api::list(&self.client)).await.context("listing took too long")??;
        let expected = self.expected(state).await?;
        let open = self.open_streams(readers.all(), &expected);
        let new = self.new_streams(manager, &expected);
        let (open, new) = tokio::join!(open, new);
        let mut mismatches = open;
        mismatches.extend(new?);
        mismatches.extend(written);
        let compared = readers.all().len() + self.calls.len();
        Ok(Round { compared, took: paused.elapsed(), mismatches })
    }

    /// Waits until the controllers have written what follows from the objects, and write no more.
    ///
    /// # Errors
    /// Fails when they still write.
    async fn controllers(&self, manager: &Manager, churn: &Churn) -> Result<Option<Mismatch>> {
        let right = eventually(DEADLINE, "the controllers", async || churn.jobs().check(manager).await).await;
        eventually(DEADLINE, "the controllers to write nothing", async || {
            let before = writes(manager).await?;
            sleep(2 * QUIET).await;
            let after = writes(manager).await?;
            ensure!(before == after, "{before:?} writes, then {after:?}");
            Ok(())
        })
        .await?;
        let mismatch = |error: anyhow::Error| {
            let difference = cut(format!("{error:#}"));
            Mismatch { client: "a controller", call: None, difference }
        };
        Ok(right.err().map(mismatch))
    }

    /// Scans all objects for each call, in a thread, because streams must be read at the same time.
    async fn expected(&self, state: ApiState) -> Result<Vec<ExpectedReplies>> {
        let (settings, calls) = (self.settings.clone(), Arc::clone(&self.calls));
        let work = tokio::task::spawn_blocking(move || {
            let of = |call: &Call| ExpectedReplies {
                fresh: call.fresh(&state, &settings),
                while_open: call.while_open(&state, &settings),
            };
            calls.iter().map(of).collect()
        });
        Ok(work.await?)
    }

    async fn open_streams(&self, readers: &[Arc<Reader>], expected: &[ExpectedReplies]) -> Vec<Mismatch> {
        let begun = Instant::now();
        let wrong = || -> Vec<(&Reader, &ExpectedReplies)> {
            let both = readers.iter().filter_map(|reader| Some((&**reader, expected.get(reader.number)?)));
            both.filter(|(reader, expected)| !expected.is(reader.known().as_ref())).collect()
        };
        let mut were_right = false;
        loop {
            let wrong = wrong();
            if wrong.is_empty() && were_right {
                return Vec::new();
            }
            if begun.elapsed() >= DEADLINE {
                return wrong.into_iter().map(|(reader, expected)| self.mismatch(reader, expected)).collect();
            }
            were_right = wrong.is_empty();
            sleep(QUIET).await;
        }
    }

    fn mismatch(&self, reader: &Reader, expected: &ExpectedReplies) -> Mismatch {
        let known = reader.known().clone();
        // A refused client is compared with the reply to a new stream.
        let difference = match &known {
            None => "it received no answer".to_owned(),
            Some(refused) if refused.is_refusal() => reply_difference(&expected.fresh, known.as_ref()),
            Some(_) => reply_difference(&expected.while_open, known.as_ref()),
        };
        let call = self.calls.get(reader.number).cloned();
        Mismatch { client: "an open stream", call, difference: cut(difference) }
    }

    /// Opens new streams on new connections.
    async fn new_streams(&self, manager: &Manager, expected: &[ExpectedReplies]) -> Result<Vec<Mismatch>> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(manager.discovery().await?);
        }
        let comparisons = self.calls.iter().zip(expected).zip(connections.iter().cycle());
        let comparisons = comparisons.map(async |((call, expected), connection)| {
            let mut seen = None;
            let right = eventually(DEADLINE, "", async || {
                let reply = call.first_reply(connection).await?;
                let right = reply == expected.fresh;
                seen = Some(reply);
                ensure!(right, "the answer differs");
                Ok(())
            });
            let failed = right.await.is_err();
            let difference = || cut(reply_difference(&expected.fresh, seen.as_ref()));
            failed.then(|| Mismatch { client: "a new stream", call: Some(call.clone()), difference: difference() })
        });
        Ok(stream::iter(comparisons).buffer_unordered(AT_A_TIME).filter_map(async |it| it).collect().await)
    }
}

// === impl ExpectedReplies ===

impl ExpectedReplies {
    /// Returns whether the client's last state is correct.
    fn is(&self, known: Option<&Reply>) -> bool {
        match known {
            None => false,
            Some(refused) if refused.is_refusal() => refused == &self.fresh,
            Some(current) => current == &self.while_open,
        }
    }
}

/// The number of writes that the controllers have sent.
async fn writes(manager: &Manager) -> Result<f64> {
    let samples = manager.metrics().await?;
    let names =
        ["linkerd_operator_endpointslice_writes_total", "linkerd_operator_linkerdconfig_configmap_writes_total"];
    let writes = samples.iter().filter(|sample| names.contains(&sample.name.as_str()));
    writes.map(|sample| sample.value).reduce(|sum, more| sum + more).context("the manager has no metric of writes")
}

/// Limits the text to about a screenful.
fn cut(text: String) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use e2e::oracle::Answer;
    use linkerd2_proxy_api::destination::WeightedAddr;
    use tonic::Code;

    use super::*;

    fn endpoints(weights: &[(u8, u32)]) -> Reply {
        let endpoint = |(last, weight): &(u8, u32)| {
            let address = std::net::SocketAddr::from(([10, 0, 0, *last], 80));
            (address, WeightedAddr { weight: *weight, ..WeightedAddr::default() })
        };
        Reply::Get(Answer::Endpoints(weights.iter().map(endpoint).collect()))
    }

    #[test]
    fn after_a_deletion_an_open_stream_is_empty_and_a_refused_client_stays_refused() {
        let fresh = Reply::Get(Answer::Refused(Code::NotFound, "Service web.world not found".to_owned()));
        let expected =
            ExpectedReplies { fresh: fresh.clone(), while_open: Reply::Get(Answer::Endpoints(BTreeMap::new())) };
        assert!(expected.is(Some(&endpoints(&[]))));
        assert!(expected.is(Some(&fresh)));
        assert!(!expected.is(Some(&endpoints(&[(1, 1)]))));
        assert!(!expected.is(Some(&Reply::Get(Answer::Refused(Code::Unavailable, String::new())))));
        assert!(!expected.is(None), "a client without an answer is not correct");
    }

    #[test]
    fn a_missing_outdated_or_unexpected_endpoint_is_a_difference() {
        let wanted = endpoints(&[(1, 1), (2, 1)]);
        let expected = ExpectedReplies { fresh: wanted.clone(), while_open: wanted.clone() };
        assert!(expected.is(Some(&endpoints(&[(1, 1), (2, 1)]))));
        for seen in [&[(1, 1)][..], &[(1, 1), (2, 7)], &[(1, 1), (2, 1), (3, 1)]] {
            assert!(!expected.is(Some(&endpoints(seen))), "{seen:?}");
        }
    }

    #[test]
    fn a_long_difference_is_cut() {
        assert_eq!(cut("x".repeat(2 * LONGEST)).chars().count(), LONGEST + 1);
        assert_eq!(cut("short".to_owned()), "short");
    }
}
