//! The client's application: sends requests to a Service, one after the other, through its outbound proxy.
//!
//! * In: its network namespace, the Service's address. Out: how many requests were sent and failed, and which endpoint
//!   answered last.
//! * Always: a request that has no answer after [`DEADLINE`] has failed.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{
    Request, StatusCode,
    client::conn::http1::{self, SendRequest},
    header,
};
use hyper_util::rt::TokioIo;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use super::network::PodNetwork;

pub(crate) const DEADLINE: Duration = Duration::from_secs(10);
/// The pause between two requests of a client.
pub(crate) const PERIOD: Duration = Duration::from_millis(4);

/// How many requests have ended, and how.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestCounts {
    pub(crate) requests: u64,
    pub(crate) failed: u64,
    /// The failures by reason.
    pub(crate) reasons: BTreeMap<String, u64>,
}

/// The endpoint that answers a client, and since when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answering {
    pub(crate) endpoint: Option<Ipv4Addr>,
    pub(crate) since: Instant,
}

/// The observations of one client.
#[derive(Clone)]
pub(crate) struct Observed {
    counts: Arc<Mutex<RequestCounts>>,
    answering: Arc<watch::Sender<Answering>>,
}

// === impl RequestCounts ===

impl RequestCounts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.failed += other.failed;
        for (reason, count) in &other.reasons {
            *self.reasons.entry(reason.clone()).or_default() += count;
        }
    }

    /// The counts since an earlier state.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let earlier = |reason: &String| before.reasons.get(reason).copied().unwrap_or_default();
        let reasons = self.reasons.iter().map(|(reason, count)| (reason.clone(), count - earlier(reason)));
        Self {
            requests: self.requests - before.requests,
            failed: self.failed - before.failed,
            reasons: reasons.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

// === impl Observed ===

impl Default for Observed {
    fn default() -> Self {
        let (answering, _) = watch::channel(Answering { endpoint: None, since: Instant::now() });
        Self { counts: Arc::default(), answering: Arc::new(answering) }
    }
}

impl Observed {
    pub(crate) fn counts(&self) -> RequestCounts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until this endpoint answers. Returns the time of the first answer.
    pub(crate) async fn answered_by(&self, endpoint: Ipv4Addr) -> Result<Instant> {
        let mut answering = self.answering.subscribe();
        let seen = answering.wait_for(|answering| answering.endpoint == Some(endpoint)).await;
        Ok(seen.context("the client has ended")?.since)
    }

    pub(crate) fn endpoint(&self) -> Option<Ipv4Addr> {
        self.answering.borrow().endpoint
    }

    fn record(&self, answer: &Result<Ipv4Addr>) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.requests += 1;
        match answer {
            Ok(endpoint) => {
                let endpoint = Some(*endpoint);
                self.answering.send_if_modified(|answering| {
                    let changed = answering.endpoint != endpoint;
                    if changed {
                        *answering = Answering { endpoint, since: Instant::now() };
                    }
                    changed
                });
            }
            Err(error) => {
                counts.failed += 1;
                *counts.reasons.entry(format!("{error:#}")).or_default() += 1;
            }
        }
    }
}

/// Sends requests until the returned future is dropped.
pub(crate) async fn send(network: PodNetwork, service: SocketAddr, host: String, observed: Observed) {
    let mut connection = None;
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = timeout(DEADLINE, request(&network, service, &host, &mut connection)).await;
        let answer = answer.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer after {DEADLINE:?}")));
        if answer.is_err() {
            connection = None;
        }
        observed.record(&answer);
    }
}

/// Returns the endpoint that answered.
async fn request(
    network: &PodNetwork,
    service: SocketAddr,
    host: &str,
    connection: &mut Option<SendRequest<Empty<Bytes>>>,
) -> Result<Ipv4Addr> {
    let sender = match connection {
        Some(sender) if !sender.is_closed() => sender,
        _ => connection.insert(connect(network, service).await?),
    };
    let request = Request::get("/").header(header::HOST, host).body(Empty::new())?;
    sender.ready().await.context("the proxy closed the connection")?;
    let response = sender.send_request(request).await.context("the proxy did not answer")?;
    let status = response.status();
    let reason = response.headers().get("l5d-proxy-error").and_then(|value| value.to_str().ok().map(str::to_owned));
    let body = response.into_body().collect().await.context("the answer is incomplete")?.to_bytes();
    let body = String::from_utf8_lossy(&body);
    ensure!(status == StatusCode::OK, "{status}: {}", reason.as_deref().unwrap_or(&body));
    body.parse().with_context(|| format!("the answer is {body:?}"))
}

async fn connect(network: &PodNetwork, service: SocketAddr) -> Result<SendRequest<Empty<Bytes>>> {
    let stream = network.connect(service).await?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the connection, which ends when the sender is dropped.
    tokio::spawn(connection);
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_answers_since_its_first_answer() -> Result<()> {
        let observed = Observed::default();
        let (old, new) = (Ipv4Addr::new(10, 244, 1, 1), Ipv4Addr::new(10, 244, 1, 2));
        observed.record(&Ok(old));
        tokio::time::advance(Duration::from_secs(1)).await;
        let first = Instant::now();
        observed.record(&Ok(new));
        tokio::time::advance(Duration::from_secs(1)).await;
        observed.record(&Ok(new));
        assert_eq!(observed.answered_by(new).await?, first);
        assert_eq!(observed.endpoint(), Some(new));
        Ok(())
    }

    #[test]
    fn the_counts_of_an_operation_contain_only_its_own_failures() {
        let observed = Observed::default();
        observed.record(&Err(anyhow!("503")));
        let before = observed.counts();
        observed.record(&Ok(Ipv4Addr::LOCALHOST));
        observed.record(&Err(anyhow!("504")));
        let counts = observed.counts().since(&before);
        assert_eq!((counts.requests, counts.failed), (2, 1));
        assert_eq!(counts.reasons, BTreeMap::from([("504".to_owned(), 1)]));
    }
}
