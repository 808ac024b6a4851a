//! More than the manager is to take: who waits too long, or comes when there is no room, is refused at once and in words that
//! a client understands; who is there already does not notice.
//!
//! * In: flags that make a manager small, and more streams or connections than it takes. Out: who is served, who is refused and
//!   how, and what is counted.

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
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tonic::{Code, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use super::crowd::{Crowd, shows};

const WINDOW: u32 = 65_535;
const STREAMS: &str = "linkerd_operator_discovery_streams";
const CONNECTIONS: &str = "linkerd_operator_discovery_connections";
const REFUSED: &str = "linkerd_operator_discovery_streams_refused_total";
const WAITED: [(&str, &str); 1] = [("reason", "waited")];
const FULL: [(&str, &str); 1] = [("reason", "full")];
/// What h2 and tonic call 14.
const UNAVAILABLE: &str = "refused with grpc-status 14";
/// Of a refusal that has nothing to wait for.
const AT_ONCE: Duration = Duration::from_secs(5);

/// `web` with a hundred endpoints and `small` with one, and a manager that knows them and has no client.
async fn crowd(args: &[&str]) -> Result<Crowd> {
    let crowd = Crowd::start(args).await?;
    crowd.put("web", 0..100).await?;
    crowd.put("small", 0..1).await?;
    // One after the other, and again: it may be that few are let in, or who comes in a quiet moment.
    for (service, endpoints) in [("web", 0..100), ("small", 0..1)] {
        drop(eventually(SOON, "a first stream", async || crowd.shows(service, endpoints.clone()).await).await?);
        is_empty(&crowd).await?;
    }
    Ok(crowd)
}

async fn is_empty(crowd: &Crowd) -> Result<()> {
    eventually(SOON, "all clients to have left", async || {
        for metric in [STREAMS, CONNECTIONS] {
            let open = crowd.manager.metric(metric, &[]).await;
            ensure!(open == Some(0.0), "{metric}: {open:?}");
        }
        Ok(())
    })
    .await
}

async fn connect(crowd: &Crowd) -> Result<SlowClient> {
    SlowClient::connect(crowd.manager.destination_address(), Windows::OF_PROXIES).await
}

/// Fails unless the client is refused by headers alone.
async fn is_refused(client: &SlowClient, path: &str) -> Result<()> {
    match timeout(AT_ONCE, client.get(path)).await.context("neither served nor refused")? {
        Ok(_) => bail!("it is served"),
        Err(error) => {
            ensure!(error.to_string() == UNAVAILABLE, "{error:#}");
            Ok(())
        }
    }
}

/// Asks at once for so many streams on each connection.
async fn burst(clients: &[Discovery], path: &str, each: usize) -> Vec<Result<Endpoints, tonic::Status>> {
    let mut tasks = JoinSet::new();
    for client in clients.iter().flat_map(|client| std::iter::repeat_n(client, each)) {
        let (client, path) = (client.clone(), path.to_owned());
        tasks.spawn(async move {
            let mut stream = client.get(&path, "").await?;
            let first = stream.next().await.map_err(|error| tonic::Status::unknown(format!("{error:#}")))?;
            first.map(|_| stream).ok_or_else(|| tonic::Status::unknown("no first message"))
        });
    }
    tasks.join_all().await
}

async fn discoveries(crowd: &Crowd, count: usize) -> Result<Vec<Discovery>> {
    try_join_all((0..count).map(|_| crowd.manager.discovery())).await
}

/// The first have their turn within five milliseconds, the last cannot.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_would_wait_too_long_are_refused_at_once_and_get_in_when_they_ask_again() -> Result<()> {
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
    changes.context("a stream that was open before")?;
    let (mut served, mut refused) = (Vec::new(), 0_u32);
    for answer in answers {
        match answer {
            Ok(stream) => served.push(stream),
            Err(status) if status.code() == Code::Unavailable => refused += 1,
            Err(status) => bail!("{status:?}"),
        }
    }
    eprintln!("{} served, {refused} refused, in {took:?}", served.len());
    ensure!(refused > 0, "none of {} streams is refused", served.len());
    let counted = crowd.manager.metric(REFUSED, &WAITED).await.unwrap_or_default() - refused_before;
    ensure!(counted == f64::from(refused), "{refused} are refused, {counted} counted");
    ensure!(crowd.manager.metric(REFUSED, &FULL).await == Some(0.0), "there was no lack of room");

    // As proxies do, each on its own, a little later each time.
    let again = AtomicUsize::new(0);
    let clients: Vec<&Discovery> = clients.iter().collect();
    let insist = (0..refused).zip(clients.iter().cycle()).map(async |(number, client)| {
        let mut pause = Duration::from_millis(u64::from(number % 1000));
        loop {
            sleep(pause).await;
            match client.get(&path, "").await {
                Ok(mut stream) => {
                    stream.next().await?.context("no first message")?;
                    return Ok(stream);
                }
                Err(status) if status.code() == Code::Unavailable => again.fetch_add(1, Ordering::Relaxed),
                Err(status) => bail!("{status:?}"),
            };
            pause = (pause * 2).clamp(Duration::from_millis(100), Duration::from_secs(2));
        }
    });
    let all = timeout(SOON * 2, try_join_all(insist)).await;
    let all = all.with_context(|| format!("not all got in; refused again {}", again.load(Ordering::Relaxed)))??;
    eprintln!("refused again {} times", again.load(Ordering::Relaxed));
    crowd.counts(STREAMS, &[], (served.len() + all.len() + 1) as f64).await?;
    crowd.set_slice("small-0", 0..3).await?;
    shows(&mut stream, 0..3).await
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_who_come_at_once_are_all_served() -> Result<()> {
    let crowd = crowd(&[]).await?;
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

/// Between its requests a connection may have nothing to do.
#[tokio::test]
async fn who_asks_again_after_a_while_has_not_waited_all_the_while() -> Result<()> {
    // Longer than a stream may wait for its turn.
    const WHILE: Duration = Duration::from_secs(2);
    let crowd = crowd(&[]).await?;
    let path = crowd.path("small");
    let mut bare = HostileClient::connect(crowd.manager.destination_address(), &path, WINDOW).await?;
    let proxy = connect(&crowd).await?;
    let mut streams = Vec::new();
    for count in 1..4 {
        bare.get();
        bare.until("an answer", |heard| heard.answered.len() == count).await?;
        let mut stream = proxy.get(&path).await?;
        stream.next().await?;
        streams.push(stream);
        // Of one that takes its time with the message, nothing is to be seen until it comes.
        bare.begin();
        bare.send().await?;
        sleep(WHILE).await;
    }
    assert_eq!(bare.heard.ended_streams, 0, "{:?}", bare.heard);
    assert_eq!(crowd.manager.metric(REFUSED, &WAITED).await, Some(0.0));
    Ok(())
}

/// It is they who are slow, not the manager.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_wait_for_their_client_are_no_overload() -> Result<()> {
    // Longer than a stream may wait for its turn.
    const LONG: Duration = Duration::from_secs(4);
    let crowd = crowd(&[]).await?;
    let windowless = Windows { stream: 0, ..Windows::OF_PROXIES };
    let client = SlowClient::connect(crowd.manager.destination_address(), windowless).await?;
    let waiting = client.get_many(&crowd.path("web"), 1000).await?;
    crowd.counts(STREAMS, &[("state", "blocked")], 1000.0).await?;
    let others = discoveries(&crowd, 4).await?;
    holds(LONG, "everybody else is served", async || {
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
async fn a_stream_for_which_there_is_no_room_is_refused_until_another_leaves() -> Result<()> {
    const MOST: usize = 10;
    let crowd = crowd(&["--max-streams=10"]).await?;
    let path = crowd.path("small");
    // Of the process, not of a connection.
    let clients = try_join_all((0..MOST).map(|_| connect(&crowd))).await?;
    let mut streams = try_join_all(clients.iter().map(|client| client.get(&path))).await?;
    for stream in &mut streams {
        stream.next().await?;
    }
    let eleventh = connect(&crowd).await?;
    for client in [&eleventh, &clients[0]] {
        is_refused(client, &path).await?;
    }
    crowd.counts(REFUSED, &FULL, 2.0).await?;
    // Else Kubernetes would replace it for being busy.
    let health = Channel::from_shared(format!("http://{}", crowd.manager.destination_address()))?.connect().await?;
    let healthy = HealthClient::new(health).check(HealthCheckRequest::default()).await?.into_inner();
    assert_eq!(healthy.status(), ServingStatus::Serving);
    crowd.counts(STREAMS, &[], 10.0).await?;

    streams.pop();
    let mut in_its_place = eventually(SOON, "room", async || eleventh.get(&path).await).await?;
    in_its_place.next().await?;
    is_refused(&eleventh, &path).await?;
    crowd.set_slice("small-0", 0..2).await?;
    let told = streams.iter_mut().chain([&mut in_its_place]).map(|stream| stream.until(|known| known.len() == 2));
    try_join_all(told).await?;
    assert_eq!(crowd.manager.metric(REFUSED, &WAITED).await, Some(0.0));
    Ok(())
}

/// A client that heeds the limit would keep the sixth to itself.
#[tokio::test]
async fn a_connection_has_so_many_streams_and_no_more() -> Result<()> {
    let crowd = crowd(&["--max-streams-per-connection=5"]).await?;
    let path = crowd.path("small");
    let mut client = HostileClient::connect(crowd.manager.destination_address(), &path, WINDOW).await?;
    for _ in 0..6 {
        client.get();
    }
    client.until("five streams and a refusal", |heard| heard.answered.len() == 5 && !heard.resets.is_empty()).await?;
    assert_eq!(client.heard.resets.get(&REFUSED_STREAM), Some(&1), "{:?}", client.heard);
    // Another connection has room of its own.
    let other = connect(&crowd).await?;
    let streams = other.get_many(&path, 5).await?;
    crowd.counts(STREAMS, &[], 10.0).await?;
    // The honest client waits with its sixth.
    assert!(timeout(Duration::from_millis(500), other.get(&path)).await.is_err());
    drop(streams);
    eventually(SOON, "room", async || other.get(&path).await).await?.next().await?;
    ensure!(!client.heard.ended && client.heard.go_away.is_none(), "{:?}", client.heard);
    Ok(())
}

#[tokio::test]
async fn a_connection_for_which_there_is_no_room_waits_until_another_leaves() -> Result<()> {
    let crowd = crowd(&["--max-connections=3"]).await?;
    let path = crowd.path("small");
    let mut clients = try_join_all((0..3).map(|_| connect(&crowd))).await?;
    let mut streams = try_join_all(clients.iter().map(|client| client.get(&path))).await?;
    for stream in &mut streams {
        stream.next().await?;
    }
    crowd.counts(CONNECTIONS, &[], 3.0).await?;
    let fourth = connect(&crowd).await?;
    let mut asked = Box::pin(fourth.get(&path));
    ensure!(timeout(Duration::from_millis(700), &mut asked).await.is_err(), "the fourth is served");
    crowd.counts(CONNECTIONS, &[], 3.0).await?;

    streams.pop();
    clients.pop();
    let mut served = asked.await.context("the fourth, when there was room")?;
    served.next().await?;
    crowd.set_slice("small-0", 0..2).await?;
    let told = streams.iter_mut().chain([&mut served]).map(|stream| stream.until(|known| known.len() == 2));
    assert!(join_all(told).await.iter().all(Result::is_ok));
    crowd.counts(CONNECTIONS, &[], 3.0).await
}

/// Else whoever connects and says nothing would keep everybody out.
#[tokio::test]
async fn connections_on_which_nothing_is_said_do_not_keep_their_places() -> Result<()> {
    let crowd = crowd(&["--max-connections=3"]).await?;
    let path = crowd.path("small");
    let address = crowd.manager.destination_address();
    let silent = try_join_all((0..3).map(|_| TcpStream::connect(address))).await?;
    let client = connect(&crowd).await?;
    let mut asked = Box::pin(client.get(&path));
    ensure!(timeout(Duration::from_millis(700), &mut asked).await.is_err(), "there was room");
    asked.await.context("when they were let go")?.next().await?;
    drop(silent);
    Ok(())
}

/// As hyper's clients do it, and so proxies: the end of a request may come after its message, and after our answer. h2 bears
/// a thousand frames on streams that it has forgotten, and then closes the connection.
#[tokio::test]
async fn refused_requests_that_end_later_do_not_cost_their_connection() -> Result<()> {
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
        // Long enough for an answer that would not wait.
        sleep(Duration::from_millis(50)).await;
        for stream in streams {
            client.put(&Frame::new(DATA, END_STREAM, stream, Vec::new()));
        }
        client.until("all to be refused", |heard| heard.ended_streams == time * TOGETHER).await?;
    }
    assert_eq!(client.heard.go_away, None);
    Ok(())
}
