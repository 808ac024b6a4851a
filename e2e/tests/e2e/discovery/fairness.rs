//! Fairness: a greedy or silent client leaves streams and connections to others.
//!
//! * In: flags with low limits, and clients that take as much as they get. Out: what another client gets.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    eventually,
    hostile_client::HostileClient,
    http2::{CANCEL, Frame},
    load::{self, Method, StreamRequest},
    mesh::SOON,
};
use futures::future::{try_join, try_join_all};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{
    crowd::{Crowd, NEVER_TOO_LATE, shows},
    overload::{connect, crowd},
};

const WINDOW: u32 = 65_535;
const REFUSED: &str = "linkerd_operator_discovery_streams_refused_total";
const ENDED: &str = "linkerd_operator_discovery_connections_ended_total";
/// The memory limit of the shipped Deployment.
const LIMIT: u64 = 250 * 1024 * 1024;

#[tokio::test]
async fn a_greedy_connection_gets_half_of_the_streams_and_others_get_the_rest() -> Result<()> {
    let crowd = crowd(&["--max-streams=100"]).await?;
    let path = crowd.path("small");
    let mut greedy = HostileClient::connect(crowd.manager.destination_address(), &path, WINDOW).await?;
    for _ in 0..100 {
        greedy.get();
    }
    greedy
        .until("half of the streams", |received| received.ended_streams == 50 && received.answered.len() == 50)
        .await?;
    crowd.manager.counts(REFUSED, &[("reason", "share")], 50.0).await?;
    let others = try_join_all((0..10).map(|_| connect(&crowd))).await?;
    let mut streams = Vec::new();
    for client in &others {
        streams.extend(client.get_many(&path, 4).await?);
    }
    for stream in &mut streams {
        stream.next().await?;
    }
    crowd.manager.counts(REFUSED, &[("reason", "full")], 0.0).await
}

#[tokio::test]
async fn silent_connections_take_no_place_and_the_oldest_are_closed() -> Result<()> {
    const SILENT: usize = 400;
    let crowd = crowd(&["--max-connections=3"]).await?;
    let address = crowd.manager.destination_address();
    let mut silent = try_join_all((0..SILENT).map(|_| TcpStream::connect(address))).await?;
    // Less than the time in which a client has to send the preface.
    timeout(Duration::from_secs(5), crowd.shows("small", 0..1)).await.context("a client that is not silent")??;
    let mut byte = [0; 1];
    let oldest = silent.first_mut().context("a connection")?;
    let read = timeout(SOON, tokio::io::AsyncReadExt::read(oldest, &mut byte)).await.context("the oldest is open")?;
    ensure!(matches!(read, Ok(0) | Err(_)), "the oldest received data");
    Ok(())
}

/// An idle connection is otherwise closed after five minutes.
#[tokio::test]
async fn connections_without_a_stream_leave_their_places_to_clients_that_wait() -> Result<()> {
    let crowd = crowd(&["--max-connections=3"]).await?;
    let path = crowd.path("small");
    let with_stream = connect(&crowd).await?;
    let mut stream = with_stream.get(&path).await?;
    stream.next().await?;
    let mut idle = try_join_all((0..2).map(|_| connect(&crowd))).await?;
    for metric in ["linkerd_operator_discovery_connections", "linkerd_operator_discovery_max_connections"] {
        crowd.manager.counts(metric, &[], 3.0).await?;
    }
    // One client for each idle connection: while none waits, the others may stay.
    let waiting = || async { timeout(SOON, crowd.shows("small", 0..1)).await.context("a client that has a request")? };
    let _streams = try_join(waiting(), waiting()).await?;
    try_join_all(idle.iter_mut().map(|client| client.closed(SOON))).await?;
    crowd.manager.counts(ENDED, &[("reason", "idle")], 2.0).await?;
    ensure!(with_stream.is_open(), "the connection with a stream was closed");
    Ok(())
}

/// Behind the server's own proxy, the clients of one identity share a connection.
#[tokio::test]
async fn resets_of_one_client_do_not_close_the_connection_that_it_shares_with_others() -> Result<()> {
    const SHARED: usize = 1_000;
    /// More than a connection of one client may reset: a thousand, and a hundred in each second.
    const RESETS: usize = 3_000;
    /// Less than the shared connection may reset: a thousand in each second.
    const PACE: Duration = Duration::from_micros(1250);
    let crowd = crowd(NEVER_TOO_LATE).await?;
    let mut client = HostileClient::connect(crowd.manager.destination_address(), &crowd.path("small"), WINDOW).await?;
    let mut open = 0;
    for (count, resets) in [(SHARED, false), (RESETS, true)] {
        let mut pace = tokio::time::interval(PACE);
        for _ in 0..count {
            client.until("room", |received| received.room > 1000).await?;
            client.get();
            if resets {
                pace.tick().await;
                client.until("an answer", |received| received.answered.len() > open).await?;
                let stream = client.received.answered.pop_back().context("an answered stream")?;
                client.put(&Frame::reset(stream, CANCEL));
            }
        }
        open = client.received.answered.len().max(open);
        if !resets {
            client.until("all answers", |received| received.answered.len() == SHARED).await?;
            open = SHARED;
        }
    }
    e2e::flood::ping(&mut client);
    client.until("a pong", |received| received.pongs > 0).await?;
    ensure!(!client.received.ended && client.received.go_away.is_none(), "{:?}", client.received.go_away);
    crowd.manager.counts("linkerd_operator_discovery_streams", &[], 1_000.0).await
}

/// The server's own proxy has a connection for each identity of its clients and each name by which they call it.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_streams_of_many_identities_are_served_with_the_shipped_memory_limit() -> Result<()> {
    const STREAMS: usize = 10_000;
    let crowd = Crowd::with_memory(LIMIT).await?;
    crowd.manager.counts("linkerd_operator_memory_limit_bytes", &[], LIMIT as f64).await?;
    crowd.put("small", 0..1).await?;
    let mut bystander = crowd.shows("small", 0..1).await?;
    let loads = load::LoadThread::start()?;
    let request = StreamRequest { method: Method::Get, path: crowd.path("small"), token: String::new() };
    for connections in [200, 20] {
        let load = loads.open(crowd.manager.destination_address(), connections, vec![request.clone(); STREAMS]).await?;
        load.first_messages(STREAMS).await?;
        crowd.set_slice("small-0", 0..2).await?;
        eventually(SOON, "each stream to receive the change", async || {
            let counts = load.counts();
            ensure!(counts.messages == 2 * STREAMS as u64, "{} messages", counts.messages);
            Ok(())
        })
        .await
        .with_context(|| format!("{connections} connections"))?;
        ensure!(load.arrivals().ended.is_empty(), "{:?}", load.arrivals().ended);
        crowd.set_slice("small-0", 0..1).await?;
        shows(&mut bystander, 0..1).await?;
        load.close().await;
        sleep(Duration::from_millis(100)).await;
    }
    for reason in ["full", "share", "memory"] {
        crowd.manager.counts(REFUSED, &[("reason", reason)], 0.0).await?;
    }
    let peak = crowd.manager.memory()?.peak;
    ensure!(peak < LIMIT, "{} MiB at the peak", peak / 1024 / 1024);
    Ok(())
}
