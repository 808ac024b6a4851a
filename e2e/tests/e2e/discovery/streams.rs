//! The messages of a stream and their timing, and the isolation of other clients from one that does not read.
//!
//! The slow clients have the windows of Linkerd's proxies: 64 KiB per stream and 1 MiB per connection, so sixteen
//! unread streams use up the window of their connection. Each test has a dedicated manager, because it checks its
//! metrics.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    discovery::Message,
    eventually, holds,
    mesh::SOON,
    slow_client::{SlowClient, SlowStream, StreamEnd, Windows},
};
use futures::future::{join_all, try_join_all};
use h2::Reason;
use serde_json::json;

use super::crowd::{Crowd, address, shows};

/// A number of endpoints that takes more than 64 KiB.
const MANY: u32 = 300;
/// The flag for [`STALL_TIMEOUT`].
const STALLS_SOON: &str = "--stream-stall-timeout=3s";
const STALL_TIMEOUT: Duration = Duration::from_secs(3);
/// The flag for [`LATER`], where something must happen before a stream stalls, also on a busy host.
const STALLS_LATER: &str = "--stream-stall-timeout=10s";
const LATER: Duration = Duration::from_secs(10);
const QUIET: Duration = Duration::from_secs(1);
const STREAMS: &str = "linkerd_operator_discovery_streams";
const ENDED: &str = "linkerd_operator_discovery_streams_ended_total";
const CLOSED: &str = "linkerd_operator_discovery_connections_ended_total";
const STALLED: [(&str, &str); 1] = [("reason", "stalled")];
const BLOCKED: [(&str, &str); 1] = [("state", "blocked")];

/// Services `web` with many endpoints and `small` with one, and a manager that serves them and has no clients yet.
async fn crowd(args: &[&str]) -> Result<Crowd> {
    let crowd = Crowd::start(args).await?;
    crowd.put("web", 0..MANY).await?;
    crowd.put("small", 0..1).await?;
    crowd.shows("web", 0..MANY).await?;
    crowd.shows("small", 0..1).await?;
    crowd.manager.counts("endpoints_subscribers", &[], None).await?;
    Ok(crowd)
}

/// Opens `count` streams of `web`, and waits until their windows are full.
async fn unread(crowd: &Crowd, client: &SlowClient, count: u32) -> Result<Vec<SlowStream>> {
    let mut streams = client.get_many(&crowd.path("web"), count.try_into()?).await?;
    crowd.manager.counts(STREAMS, &BLOCKED, f64::from(count)).await?;
    let window = Windows::OF_PROXIES.stream as usize;
    eventually(SOON, "all windows to be full", async || {
        let unread: Vec<usize> = streams.iter_mut().map(SlowStream::unread).collect();
        ensure!(unread.iter().all(|unread| *unread == window), "{unread:?}");
        Ok(())
    })
    .await?;
    Ok(streams)
}

/// Maximum time for a stalled stream to be reset, or its connection to be closed.
fn stalled() -> Duration {
    LATER * 2 + SOON
}

#[tokio::test]
async fn sixteen_unread_streams_block_only_their_own_connection() -> Result<()> {
    let crowd = crowd(&[STALLS_LATER]).await?;
    // The connection window is exactly sixteen stream windows, so not even a part of another message fits.
    let windows = Windows { connection: 16 * Windows::OF_PROXIES.stream, ..Windows::OF_PROXIES };
    let mut client = SlowClient::connect(crowd.manager.destination_address(), windows).await?;
    let mut unread = unread(&crowd, &client, 16).await?;
    let mut shut_out = client.get(&crowd.path("small")).await?;
    shut_out.is_quiet_for(Duration::from_millis(300)).await.context("the connection window is not used up")?;

    let mut web = crowd.shows("web", 0..MANY).await?;
    let mut small = crowd.shows("small", 0..1).await?;
    crowd.set_slice("web-0", 0..MANY + 1).await?;
    crowd.set_slice("small-0", 0..2).await?;
    shows(&mut web, 0..MANY + 1).await?;
    shows(&mut small, 0..2).await?;
    assert_eq!(crowd.manager.metric(ENDED, &STALLED).await, Some(0.0), "the changes waited for the stalled streams");

    for stream in unread.iter_mut().chain([&mut shut_out]) {
        assert_eq!(stream.end(stalled()).await?, StreamEnd::Reset(Reason::CANCEL));
    }
    crowd.manager.counts(ENDED, &STALLED, 17.0).await?;
    assert!(client.is_open(), "the connection was closed as soon as its streams had ended");
    // The unread data still fills the connection window, so no more data can be sent.
    client.closed(stalled()).await?;
    crowd.manager.counts(CLOSED, &STALLED, 1.0).await?;
    crowd.set_slice("small-0", 0..3).await?;
    shows(&mut small, 0..3).await?;
    web.is_quiet_for(QUIET).await
}

/// Only a part of the last message fits into the connection window.
#[tokio::test]
async fn a_connection_that_short_unread_messages_block_is_closed() -> Result<()> {
    let crowd = crowd(&[STALLS_SOON]).await?;
    let windows = Windows { connection: 65_535, ..Windows::OF_PROXIES };
    let length = {
        let client = SlowClient::connect(crowd.manager.destination_address(), windows).await?;
        let mut stream = client.get(&crowd.path("small")).await?;
        stream.next().await?;
        stream.sizes[0] + 5
    };
    let mut client = SlowClient::connect(crowd.manager.destination_address(), windows).await?;
    let unread = client.get_many(&crowd.path("small"), 65_535 / length + 1).await?;
    assert!(unread.len() > 100);
    crowd.manager.counts(STREAMS, &BLOCKED, 1.0).await?;
    client.closed(stalled()).await?;
    crowd.manager.counts(CLOSED, &STALLED, 1.0).await
}

#[tokio::test]
async fn a_client_that_reads_in_time_keeps_its_streams() -> Result<()> {
    let crowd = crowd(&[STALLS_LATER]).await?;
    let client = SlowClient::connect(crowd.manager.destination_address(), Windows::OF_PROXIES).await?;
    let mut streams = unread(&crowd, &client, 16).await?;
    try_join_all(streams.iter_mut().map(|stream| stream.until(|known| known.len() == MANY as usize))).await?;
    // The same after another change.
    crowd.set_slice("web-0", 1000..1000 + MANY).await?;
    crowd.manager.counts(STREAMS, &BLOCKED, 16.0).await?;
    let all_new = async |stream: &mut SlowStream| {
        stream.until(|known| known.keys().copied().eq((1000..1000 + MANY).map(address))).await
    };
    try_join_all(streams.iter_mut().map(all_new)).await?;
    holds(LATER * 2, "streams and connection stay open", async || {
        ensure!(client.is_open(), "the connection was closed");
        ensure!(crowd.manager.metric(ENDED, &STALLED).await == Some(0.0), "a stream was ended");
        Ok(())
    })
    .await?;
    crowd.set_slice("web-0", 1000..1001).await?;
    try_join_all(streams.iter_mut().map(|stream| stream.until(|known| known.len() == 1))).await?;
    Ok(())
}

#[tokio::test]
async fn an_unread_stream_is_reset_and_its_connection_stays_open() -> Result<()> {
    let crowd = crowd(&[STALLS_SOON]).await?;
    let client = SlowClient::connect(crowd.manager.destination_address(), Windows::OF_PROXIES).await?;
    let mut reading = client.get(&crowd.path("small")).await?;
    reading.next().await?;
    let mut unread = unread(&crowd, &client, 1).await?.pop().context("one stream")?;
    assert_eq!(unread.end(stalled()).await?, StreamEnd::Reset(Reason::CANCEL));
    let mut count = 1;
    holds(STALL_TIMEOUT * 2, "the connection stays open", async || {
        count += 1;
        crowd.set_slice("small-0", 0..count).await?;
        reading.until(|known| known.len() == count as usize).await?;
        ensure!(client.is_open(), "the connection was closed");
        Ok(())
    })
    .await?;
    assert_eq!(crowd.manager.metric(CLOSED, &STALLED).await, Some(0.0));
    Ok(())
}

#[tokio::test]
async fn a_thousand_streams_without_a_window_do_not_affect_others() -> Result<()> {
    let crowd = crowd(&[STALLS_LATER]).await?;
    let windowless = Windows { stream: 0, ..Windows::OF_PROXIES };
    let mut client = SlowClient::connect(crowd.manager.destination_address(), windowless).await?;
    let mut streams = client.get_many(&crowd.path("web"), 1000).await?;
    crowd.manager.counts(STREAMS, &[], 1000.0).await?;
    let mut web = crowd.shows("web", 0..MANY).await?;
    crowd.set_slice("web-0", 0..MANY + 1).await?;
    shows(&mut web, 0..MANY + 1).await?;
    let more = join_all((0..100).map(|_| crowd.shows("web", 0..MANY + 1))).await;
    assert!(more.iter().all(Result::is_ok), "{:?}", more.iter().find_map(|stream| stream.as_ref().err()));

    // Their first message has been blocked since they were opened.
    for stream in &mut streams {
        assert_eq!(stream.end(stalled()).await?, StreamEnd::Reset(Reason::CANCEL));
    }
    crowd.manager.counts(ENDED, &STALLED, 1000.0).await?;
    client.closed(stalled()).await?;
    web.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn a_slow_client_receives_the_latest_state_and_no_intermediate_ones() -> Result<()> {
    let crowd = crowd(&[]).await?;
    let client = SlowClient::connect(crowd.manager.destination_address(), Windows::OF_PROXIES).await?;
    let mut slow = unread(&crowd, &client, 1).await?.pop().context("one stream")?;
    let mut quick = crowd.shows("web", 0..MANY).await?;
    // Each step adds and removes endpoints; the last change affects all of them.
    for step in 1..=20 {
        crowd.set_slice("web-0", step..MANY + 2 * step).await?;
        shows(&mut quick, step..MANY + 2 * step).await?;
    }
    crowd.mesh.patch_workload("vm", json!({"spec": {"meshTLS": {"serverName": "other.example"}}})).await?;
    quick.next().await?;
    assert!(quick.messages.len() > 21, "{} messages", quick.messages.len());

    let fresh = crowd.shows("web", 20..MANY + 40).await?;
    slow.until(|known| *known == fresh.known).await?;
    slow.is_quiet_for(QUIET).await?;
    let added = |message: &Message| matches!(message, Message::Add(_));
    // The message that was blocked, then one Add and one Remove with the difference to the current state.
    assert_eq!(slow.messages.iter().map(added).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(quick.known, fresh.known);
    Ok(())
}

#[tokio::test]
async fn a_set_that_exceeds_one_message_is_split_and_its_changes_are_small() -> Result<()> {
    const ALL: u32 = 12_000;
    const LONGEST: usize = 4 * 1024 * 1024;
    let crowd = Crowd::start(&[]).await?;
    crowd.mesh.put_service("web", json!({ "selector": null })).await?;
    for number in 0..ALL / 100 {
        crowd.put_slice("web", &format!("web-{number}"), number * 100..number * 100 + 100).await?;
    }
    crowd.shows("web", 0..ALL).await?;
    let client = SlowClient::connect(crowd.manager.destination_address(), Windows::OF_PROXIES).await?;
    let mut stream = client.get(&crowd.path("web")).await?;
    stream.until(|known| known.len() == ALL as usize).await?;
    assert!(stream.sizes.iter().all(|size| *size < LONGEST), "{:?}", stream.sizes);
    assert!(stream.sizes.iter().sum::<usize>() > 3 * 1024 * 1024, "{:?} is less than expected", stream.sizes);
    assert!(stream.sizes.len() > 1 && stream.messages.iter().all(|message| matches!(message, Message::Add(_))));
    stream.is_quiet_for(QUIET).await?;

    let messages = stream.messages.len();
    crowd.set_slice("web-7", 700..799).await?;
    stream.until(|known| known.len() == ALL as usize - 1).await?;
    crowd.set_slice("web-7", 700..800).await?;
    stream.until(|known| known.len() == ALL as usize).await?;
    let flipped = vec![address(799)];
    assert_eq!(stream.messages[messages..], [Message::Remove(flipped.clone()), Message::Add(flipped)]);
    assert!(stream.sizes[messages..].iter().all(|size| *size < 1024), "{:?}", stream.sizes);
    Ok(())
}

#[tokio::test]
async fn a_service_without_endpoints_is_reported_as_empty_except_with_strict_parity() -> Result<()> {
    for (args, first) in [(&[][..], Some(Message::NoEndpoints { exists: true })), (&["--strict-upstream-parity"], None)]
    {
        let crowd = Crowd::start(args).await?;
        crowd.put("web", 0..0).await?;
        crowd.put_slice("web", "web-0", 0..0).await?;
        let discovery = crowd.manager.discovery().await?;
        let mut stream = crowd.known(&discovery, "web").await?;
        match &first {
            Some(_) => assert_eq!(stream.next().await?, first),
            None => stream.is_quiet_for(QUIET).await?,
        }
        crowd.set_slice("web-0", 0..2).await?;
        shows(&mut stream, 0..2).await?;
        crowd.set_slice("web-0", 0..0).await?;
        shows(&mut stream, 0..0).await?;
        let both = vec![address(0), address(1)];
        let expected = first.into_iter().chain([Message::Add(both.clone()), Message::Remove(both)]);
        assert_eq!(stream.messages, expected.collect::<Vec<_>>(), "{args:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_thousand_streams_share_a_connection_and_release_all_resources() -> Result<()> {
    let crowd = Crowd::start(&[]).await?;
    for number in 0..50 {
        crowd.put(&format!("web-{number}"), number * 10..number * 10 + 3).await?;
    }
    crowd.shows("web-49", 490..493).await?;
    let client = SlowClient::connect(crowd.manager.destination_address(), Windows::OF_PROXIES).await?;
    let paths: Vec<String> = (0..1000).map(|number| crowd.path(&format!("web-{}", number % 50))).collect();
    let mut streams = try_join_all(paths.iter().map(|path| client.get(path))).await?;
    // All streams are read concurrently, as by a proxy; otherwise unread streams could use up the connection window.
    let first_messages = (0..).zip(&mut streams).map(async |(number, stream)| {
        let first = number % 50 * 10;
        stream.until(|known| known.keys().copied().eq((first..first + 3).map(address))).await?;
        ensure!(stream.messages.len() == 1, "{:?}", stream.messages);
        Ok(())
    });
    try_join_all(first_messages).await?;
    crowd.manager.counts(STREAMS, &[], 1000.0).await?;
    crowd.manager.counts("endpoints_subscribers", &[], 1000.0).await?;
    crowd.manager.counts("endpoints_subscribers", &[("service", "web-0")], 20.0).await?;
    let idle = [("state", "idle")];
    crowd.manager.counts(STREAMS, &idle, 1000.0).await?;
    drop((streams, client));
    for series in ["endpoints_subscribers", "endpoints_pods", "endpoints_updates", "endpoints_exists"] {
        crowd.manager.counts(series, &[], None).await?;
    }
    crowd.manager.counts(STREAMS, &[], 0.0).await
}
