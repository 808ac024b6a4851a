//! Many small messages at once on one connection.
//!
//! A client on a current h2 ends its connection ("too_many_data_frames") when more small DATA frames lie unread than its window
//! allows for: some 2,200 with the window of Linkerd's proxies, 138 with h2's own. A `Remove` of one endpoint is such a frame,
//! and on a connection that carries a cluster every stream is told of it at the same moment.
//!
//! * In: thousands of streams of one Service on one connection, and changes of it. Out: what each stream was told, and whether
//!   the connection lives.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use e2e::{
    discovery::Message,
    slow_client::{SlowClient, Windows},
};
use tokio::{task::JoinSet, time::sleep};

use super::crowd::{Crowd, address};

/// Each takes one endpoint away and brings it back.
const FLIPS: usize = 2;
/// For all streams to be told of a change: many times what it takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// What h2 gives who asks for nothing else.
const OF_H2: Windows = Windows { stream: 65_535, connection: 65_535 };

/// Opens the streams, flips an endpoint, and checks that all streams are told of all of it on a connection that stays.
async fn all_are_told(windows: Windows, count: usize, pause: Duration) -> Result<()> {
    let crowd = Crowd::start(&[]).await?;
    crowd.put("small", 0..2).await?;
    drop(crowd.shows("small", 0..2).await?);
    let begin = Instant::now();
    let client = SlowClient::connect(crowd.manager.destination_address(), windows).await?;
    let told = Arc::<AtomicUsize>::default();
    let mut readers = JoinSet::new();
    // A task each, as in a proxy.
    for stream in client.get_many(&crowd.path("small"), count).await? {
        let (mut stream, told) = (stream, Arc::clone(&told));
        readers.spawn(async move {
            while stream.messages.len() < 1 + 2 * FLIPS {
                if !pause.is_zero() {
                    sleep(pause).await;
                }
                ensure!(stream.next().await?.is_some(), "the stream ended after {:?}", stream.messages);
                told.fetch_add(1, Ordering::Relaxed);
            }
            Ok(stream)
        });
    }
    // It is asked at such a rate that this test does not starve itself.
    let all = async |messages: usize, readers: &mut JoinSet<Result<_>>| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = told.load(Ordering::Relaxed);
            if now == messages * count {
                return Ok(());
            }
            ensure!(client.is_open(), "the connection ended after {now} messages");
            ensure!(Instant::now() < deadline, "{now} messages of {} in {PATIENCE:?}", messages * count);
            if messages < 1 + 2 * FLIPS
                && let Some(ended) = readers.try_join_next()
            {
                ended?.map(drop)?;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    all(1, &mut readers).await?;
    eprintln!("{count} streams in {:?}", begin.elapsed());
    for flip in 0..FLIPS {
        let begin = Instant::now();
        crowd.set_slice("small-0", 0..1).await?;
        all(2 + 2 * flip, &mut readers).await?;
        let removed = begin.elapsed();
        crowd.set_slice("small-0", 0..2).await?;
        all(3 + 2 * flip, &mut readers).await?;
        eprintln!("gone in {removed:?}, back in {:?}", begin.elapsed() - removed);
    }
    let flipped = vec![address(1)];
    let flip = [Message::Remove(flipped.clone()), Message::Add(flipped)];
    let mut expected = vec![Message::Add(vec![address(0), address(1)])];
    expected.extend((0..FLIPS).flat_map(|_| flip.clone()));
    while let Some(stream) = readers.join_next().await {
        ensure!(stream??.messages == expected, "told otherwise");
    }
    ensure!(client.is_open(), "the connection ended");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_streams_of_one_connection_are_told_of_every_flip_and_it_stays() -> Result<()> {
    all_are_told(Windows::OF_PROXIES, 10_000, Duration::ZERO).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_the_smallest_window_stays_as_well() -> Result<()> {
    all_are_told(OF_H2, 2000, Duration::ZERO).await
}

/// So that frames lie unread for as long.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_streams_are_read_late_stays_as_well() -> Result<()> {
    all_are_told(Windows::OF_PROXIES, 6000, Duration::from_millis(20)).await
}
