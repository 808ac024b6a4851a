//! Overload: requests that wait too long or exceed a limit are refused immediately, with a status that clients retry
//! on; open streams are not affected.
//!
//! * In: flags with low limits, and more streams or connections than they allow. Out: the requests that are served and
//!   refused, the form of the refusal, and the metrics.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    discovery::{Discovery, Endpoints},
    eventually, holds,
    hostile_client::{HostileClient, REFUSED_STREAM},
    http2::{DATA, END_STREAM, Frame, grpc_message},
    mesh::SOON,
    slow_client::{SlowClient, Windows},
};
use futures::future::{join_all, try_join_all};
use linkerd2_proxy_api::destination::GetDestination;
use prost::Message as _;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tonic::{Code, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use super::crowd::{Crowd, NEVER_TOO_LATE, shows};

const WINDOW: u32 = 65_535;
const STREAMS: &str = "linkerd_operator_discovery_streams";
const CONNECTIONS: &str = "linkerd_operator_discovery_connections";
const REFUSED: &str = "linkerd_operator_discovery_streams_refused_total";
const WAITED: [(&str, &str); 1] = [("reason", "waited")];
const FULL: [(&str, &str); 1] = [("reason", "full")];
/// The error of a refusal with gRPC status 14, UNAVAILABLE.
const UNAVAILABLE: &str = "refused with grpc-status 14";
/// Maximum time until an immediate refusal.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Services `web` with a hundred endpoints and `small` with one, and a manager that serves them and has no clients.
pub(super) async fn crowd(args: &[&str]) -> Result<Crowd> {
    let crowd = Crowd::start(args).await?;
    crowd.put("web", 0..100).await?;
    crowd.put("small", 0..1).await?;
    // One request at a time, with retries: with low limits the manager may refuse a request.
    for (service, endpoints) in [("web", 0..100), ("small", 0..1)] {
        drop(eventually(SOON, "a first stream", async || crowd.shows(service, endpoints.clone()).await).await?);
        is_empty(&crowd).await?;
    }
    Ok(crowd)
}

pub(super) async fn is_empty(crowd: &Crowd) -> Result<()> {
    eventually(SOON, "all clients to be disconnected", async || {
        for metric in [STREAMS, CONNECTIONS] {
            let open = crowd.manager.metric(metric, &[]).await;
            ensure!(open == Some(0.0), "{metric}: {open:?}");
        }
        Ok(())
    })
    .await
}

pub(super) async fn connect(crowd: &Crowd) -> Result<SlowClient> {
    SlowClient::connect(crowd.manager.destination_address(), Windows::OF_PROXIES).await
}

/// Fails unless the request is refused with headers only.
async fn is_refused(client: &SlowClient, path: &str) -> Result<()> {
    match timeout(AT_ONCE, client.get(path)).await.context("neither served nor refused")? {
        Ok(_) => bail!("the request is served"),
        Err(error) => {
            ensure!(error.to_string() == UNAVAILABLE, "{error:#}");
            Ok(())
        }
    }
}

/// Opens `each` streams on every connection concurrently.
async fn burst(clients: &[Discovery], path: &str, each: usize) -> Vec<Result<Endpoints, tonic::Status>> {
    let mut tasks = JoinSet::new();
    for client in clients.iter().flat_map(|client| std::iter::repeat_n(client, each)) {
        let (client, path) = (client.clone(), path.to_owned());
        tasks.spawn(async move {
            let mut stream = loop {
                match client.get(&path, "").await {
                    // On a busy host, this process may take longer to send thousands of requests than the manager waits.
                    Err(status) if status.code() == Code::DeadlineExceeded => {}
                    answer => break answer?,
                }
            };
            let first = stream.next().await.map_err(|error| tonic::Status::unknown(format!("{error:#}")))?;
            first.map(|_| stream).ok_or_else(|| tonic::Status::unknown("no first message"))
        });
    }
    tasks.join_all().await
}

async fn discoveries(crowd: &Crowd, count: usize) -> Result<Vec<Discovery>> {
    try_join_all((0..count).map(|_| crowd.manager.discovery())).await
}

/// With a maximum wait of 5 ms the first requests are served in time, the last cannot be.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_would_wait_too_long_are_refused_and_succeed_when_retried() -> Result<()> {
    const CLIENTS: usize = 40;
    const EACH: usize = 100;
    let crowd = crowd(&["--max-stream-wait=5ms"]).await?;
    let mut stream = eventually(SOON, "a first stream", async || crowd.shows("small", 0..1).await).await?;
    let refused_before = crowd.manager.metric(REFUSED, &WAITED).await.context("no count of the refused")?;

    let (clients, path) = (discoveries(&crowd, CLIENTS).await?, crowd.path("web"));
    let begin = Instant::now();
    let burst = async {
        let answers = burst(&clients, &path, EACH).await;
        (answers, begin.elapsed())
    };
    let changes = async {
        for count in [2, 1, 2, 1, 2] {
            crowd.set_slice("small-0", 0..count).await?;
            shows(&mut stream, 0..count).await?;
        }
        anyhow::Ok(())
    };
    let ((answers, took), changes) = futures::join!(burst, changes);
    changes.context("the stream that was open before the burst")?;
    let (mut served, mut refused) = (Vec::new(), 0_u32);
    for answer in answers {
        match answer {
            Ok(stream) => served.push(stream),
            Err(status) if status.code() == Code::Unavailable => refused += 1,
            Err(status) => bail!("{status:?}"),
        }
    }
    eprintln!("{} served, {refused} refused, in {took:?}", served.len());
    ensure!(refused > 0, "none of {} requests is refused", served.len());
    let counted = crowd.manager.metric(REFUSED, &WAITED).await.unwrap_or_default() - refused_before;
    ensure!(counted == f64::from(refused), "{refused} requests are refused, but {counted} are counted");
    ensure!(crowd.manager.metric(REFUSED, &FULL).await == Some(0.0), "requests were refused for lack of capacity");

    // Each request is retried with its own backoff, as proxies do.
    let retries = AtomicUsize::new(0);
    let clients: Vec<&Discovery> = clients.iter().collect();
    let retried = (0..refused).zip(clients.iter().cycle()).map(async |(number, client)| {
        let mut pause = Duration::from_millis(u64::from(number % 1000));
        loop {
            sleep(pause).await;
            match client.get(&path, "").await {
                Ok(mut stream) => {
                    stream.next().await?.context("no first message")?;
                    return Ok(stream);
                }
                Err(status) if status.code() == Code::Unavailable => retries.fetch_add(1, Ordering::Relaxed),
                Err(status) => bail!("{status:?}"),
            };
            pause = (pause * 2).clamp(Duration::from_millis(100), Duration::from_secs(2));
        }
    });
    let all = timeout(SOON * 2, try_join_all(retried)).await;
    let all = all.with_context(|| {
        format!("some requests were not served; {} retries were refused", retries.load(Ordering::Relaxed))
    })??;
    eprintln!("{} retries were refused", retries.load(Ordering::Relaxed));
    crowd.manager.counts(STREAMS, &[], (served.len() + all.len() + 1) as f64).await?;
    crowd.set_slice("small-0", 0..3).await?;
    shows(&mut stream, 0..3).await
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_concurrent_requests_are_all_served() -> Result<()> {
    let crowd = crowd(NEVER_TOO_LATE).await?;
    let clients = discoveries(&crowd, 20).await?;
    let begin = Instant::now();
    let answers = burst(&clients, &crowd.path("web"), 100).await;
    eprintln!("in {:?}", begin.elapsed());
    let streams = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
    assert_eq!(streams.len(), 2000);
    for reason in [WAITED, FULL] {
        assert_eq!(crowd.manager.metric(REFUSED, &reason).await, Some(0.0), "{reason:?}");
    }
    Ok(())
}

/// The idle time of a connection between requests must not count as waiting.
#[tokio::test]
async fn idle_time_between_requests_is_not_counted_as_waiting() -> Result<()> {
    // Longer than the maximum wait of a stream.
    const WHILE: Duration = Duration::from_secs(2);
    let crowd = crowd(&[]).await?;
    let path = crowd.path("small");
    let mut bare = HostileClient::connect(crowd.manager.destination_address(), &path, WINDOW).await?;
    let proxy = connect(&crowd).await?;
    let mut streams = Vec::new();
    for count in 1..4 {
        bare.get();
        bare.until("an answer", |received| received.answered.len() == count).await?;
        let mut stream = proxy.get(&path).await?;
        stream.next().await?;
        streams.push(stream);
        // A request without its message gets no response until the message arrives.
        bare.begin();
        bare.send().await?;
        sleep(WHILE).await;
    }
    assert_eq!(bare.received.ended_streams, 0, "{:?}", bare.received);
    assert_eq!(crowd.manager.metric(REFUSED, &WAITED).await, Some(0.0));
    Ok(())
}

/// These streams wait for a slow client, not for the manager.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_wait_for_a_slow_client_are_not_overload() -> Result<()> {
    // Longer than the maximum wait of a stream, which is longer than the default for the sake of a busy host.
    const LONG: Duration = Duration::from_secs(8);
    let crowd = crowd(&["--max-stream-wait=6s"]).await?;
    let windowless = Windows { stream: 0, ..Windows::OF_PROXIES };
    let client = SlowClient::connect(crowd.manager.destination_address(), windowless).await?;
    let waiting = client.get_many(&crowd.path("web"), 1000).await?;
    crowd.manager.counts(STREAMS, &[("state", "blocked")], 1000.0).await?;
    let others = discoveries(&crowd, 4).await?;
    holds(LONG, "other clients are served", async || {
        for answer in burst(&others, &crowd.path("small"), 5).await {
            answer?;
        }
        Ok(())
    })
    .await?;
    for reason in [WAITED, FULL] {
        assert_eq!(crowd.manager.metric(REFUSED, &reason).await, Some(0.0), "{reason:?}");
    }
    assert!(client.is_open());
    drop(waiting);
    Ok(())
}

#[tokio::test]
async fn a_stream_above_the_limit_is_refused_until_another_ends() -> Result<()> {
    const MOST: usize = 10;
    let crowd = crowd(&["--max-streams=10"]).await?;
    crowd.manager.counts("linkerd_operator_discovery_max_streams", &[], 10.0).await?;
    let path = crowd.path("small");
    // The limit applies to the process, not to a connection.
    let clients = try_join_all((0..MOST).map(|_| connect(&crowd))).await?;
    let mut streams = try_join_all(clients.iter().map(|client| client.get(&path))).await?;
    for stream in &mut streams {
        stream.next().await?;
    }
    let eleventh = connect(&crowd).await?;
    for client in [&eleventh, &clients[0]] {
        is_refused(client, &path).await?;
    }
    crowd.manager.counts(REFUSED, &FULL, 2.0).await?;
    // The manager stays healthy: otherwise Kubernetes would restart it under load.
    let health = Channel::from_shared(format!("http://{}", crowd.manager.destination_address()))?.connect().await?;
    let healthy = HealthClient::new(health).check(HealthCheckRequest::default()).await?.into_inner();
    assert_eq!(healthy.status(), ServingStatus::Serving);
    crowd.manager.counts(STREAMS, &[], 10.0).await?;

    streams.pop();
    let mut replacement = eventually(SOON, "a free stream", async || eleventh.get(&path).await).await?;
    replacement.next().await?;
    is_refused(&eleventh, &path).await?;
    crowd.set_slice("small-0", 0..2).await?;
    let updates = streams.iter_mut().chain([&mut replacement]).map(|stream| stream.until(|known| known.len() == 2));
    try_join_all(updates).await?;
    assert_eq!(crowd.manager.metric(REFUSED, &WAITED).await, Some(0.0));
    Ok(())
}

/// A compliant client would not send the sixth request, so a hostile client sends it.
#[tokio::test]
async fn a_connection_cannot_exceed_its_stream_limit() -> Result<()> {
    let crowd = crowd(&["--max-streams-per-connection=5"]).await?;
    crowd.manager.counts("linkerd_operator_discovery_max_streams_per_connection", &[], 5.0).await?;
    let path = crowd.path("small");
    let mut client = HostileClient::connect(crowd.manager.destination_address(), &path, WINDOW).await?;
    for _ in 0..6 {
        client.get();
    }
    client
        .until("five streams and a refusal", |received| received.answered.len() == 5 && !received.resets.is_empty())
        .await?;
    assert_eq!(client.received.resets.get(&REFUSED_STREAM), Some(&1), "{:?}", client.received);
    // Another connection has its own limit.
    let other = connect(&crowd).await?;
    let streams = other.get_many(&path, 5).await?;
    crowd.manager.counts(STREAMS, &[], 10.0).await?;
    // A compliant client holds its sixth request back.
    assert!(timeout(Duration::from_millis(500), other.get(&path)).await.is_err());
    drop(streams);
    eventually(SOON, "a free stream", async || other.get(&path).await).await?.next().await?;
    ensure!(!client.received.ended && client.received.go_away.is_none(), "{:?}", client.received);
    Ok(())
}

#[tokio::test]
async fn a_connection_above_the_limit_waits_until_another_closes() -> Result<()> {
    let crowd = crowd(&["--max-connections=3"]).await?;
    let path = crowd.path("small");
    let mut clients = try_join_all((0..3).map(|_| connect(&crowd))).await?;
    let mut streams = try_join_all(clients.iter().map(|client| client.get(&path))).await?;
    for stream in &mut streams {
        stream.next().await?;
    }
    crowd.manager.counts(CONNECTIONS, &[], 3.0).await?;
    let fourth = connect(&crowd).await?;
    let mut request = Box::pin(fourth.get(&path));
    ensure!(timeout(Duration::from_millis(700), &mut request).await.is_err(), "the fourth connection is served");
    crowd.manager.counts(CONNECTIONS, &[], 3.0).await?;

    streams.pop();
    clients.pop();
    let mut served = request.await.context("the fourth connection, after another was closed")?;
    served.next().await?;
    crowd.set_slice("small-0", 0..2).await?;
    let updates = streams.iter_mut().chain([&mut served]).map(|stream| stream.until(|known| known.len() == 2));
    assert!(join_all(updates).await.iter().all(Result::is_ok));
    crowd.manager.counts(CONNECTIONS, &[], 3.0).await
}

/// Clients based on hyper, such as proxies, may send END_STREAM after the message and after our response. h2 tolerates
/// a thousand frames on streams that it has forgotten, and then closes the connection.
#[tokio::test]
async fn refused_requests_that_end_later_do_not_close_their_connection() -> Result<()> {
    const TOGETHER: u64 = 200;
    const TIMES: u64 = 10;
    let crowd = crowd(&[]).await?;
    let mut client = HostileClient::connect(crowd.manager.destination_address(), "", WINDOW).await?;
    let message = GetDestination { path: crowd.path("missing"), ..GetDestination::default() }.encode_to_vec();
    let message = grpc_message(&message);
    for time in 1..=TIMES {
        let streams: Vec<u32> = (0..TOGETHER).map(|_| client.begin()).collect();
        for stream in &streams {
            client.put(&Frame::new(DATA, 0, *stream, message.clone()));
        }
        client.send().await?;
        // Long enough for a response that does not wait for the end of the request.
        sleep(Duration::from_millis(50)).await;
        for stream in streams {
            client.put(&Frame::new(DATA, END_STREAM, stream, Vec::new()));
        }
        client.until("all to be refused", |received| received.ended_streams == time * TOGETHER).await?;
    }
    assert_eq!(client.received.go_away, None);
    Ok(())
}
