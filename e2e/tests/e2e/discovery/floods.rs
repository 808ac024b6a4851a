//! Attacking clients: the manager stays up, their cost is bounded, and other clients are not affected.
//!
//! * In: a flood, and a dedicated manager. Out: how the flooder's connections end, the memory that the flood took, and
//!   whether a client on another connection received ten changes during the flood.
//! * An attacker whose connection is closed reconnects immediately, so the flood lasts as long as the test.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    discovery::Endpoints,
    eventually,
    flood::{self, Flood},
    hostile_client::{ENDLESS, ENHANCE_YOUR_CALM, HostileClient, ReceivedFrames},
    http2::{CANCEL, Frame},
    mesh::SOON,
};
use tokio::task::JoinSet;

use super::crowd::{Crowd, NEVER_TOO_LATE, shows};

/// The initial window of a proxy.
const WINDOW: u32 = 65_535;
/// Maximum memory above the manager's usage before the flood. An unbounded flood exceeds it within a second.
const MEMORY: u64 = 48 * 1024 * 1024;
/// Maximum time for a change to reach another client. A change that waits for the end of the flood takes longer. Not less,
/// because all other tests run on the same cores.
const LATE: Duration = Duration::from_secs(10);
const CHANGES: u32 = 10;
/// Bytes after which a flood is long enough to show unbounded memory.
const FLOOD_BYTES: u64 = 4 * 1024 * 1024;
const ENDED: &str = "linkerd_operator_discovery_connections_ended_total";

/// The result of a flood so far.
#[derive(Clone, Debug, Default)]
struct FloodTally {
    connections: u64,
    bytes: u64,
    /// Ended connections, by code and text of the last GOAWAY.
    ends: BTreeMap<Option<(u32, String)>, u64>,
    /// Ended streams of the closed connections, and of the current one.
    streams_ended: (u64, u64),
}

/// A running flooder. Dropping it closes its connection.
struct RunningFlood {
    tally: Arc<Mutex<FloodTally>>,
    task: JoinSet<Result<()>>,
}

// === impl RunningFlood ===

impl RunningFlood {
    fn begin(crowd: &Crowd, flood: Flood, never_reads: bool) -> Self {
        let (address, path) = (crowd.manager.destination_address(), crowd.path("small"));
        let tally = Arc::<Mutex<FloodTally>>::default();
        let mut task = JoinSet::new();
        let shared = Arc::clone(&tally);
        task.spawn(async move {
            loop {
                let mut client = HostileClient::connect(address, &path, WINDOW).await?;
                client.never_reads = never_reads;
                lock(&shared).connections += 1;
                client.flood(flood, |bytes, received| lock(&shared).turned(bytes, received)).await?;
                lock(&shared).ended(client.received);
            }
        });
        Self { tally, task }
    }

    fn tally(&self) -> FloodTally {
        lock(&self.tally).clone()
    }

    fn still_running(&mut self) -> Result<()> {
        match self.task.try_join_next() {
            None => Ok(()),
            Some(ended) => ended?.context("the flooder has stopped"),
        }
    }
}

// === impl FloodTally ===

impl FloodTally {
    fn turned(&mut self, bytes: usize, received: &ReceivedFrames) {
        self.bytes += bytes as u64;
        self.streams_ended.1 = received.ended_streams + received.resets.values().sum::<u64>();
    }

    fn ended(&mut self, received: ReceivedFrames) {
        *self.ends.entry(received.go_away.map(|last| (last.code, last.text))).or_default() += 1;
        self.streams_ended.0 += std::mem::take(&mut self.streams_ended.1);
    }

    /// Whether the flood was long enough for unbounded memory to show, or the server has ended enough connections.
    fn is_long_enough(&self) -> bool {
        self.bytes > FLOOD_BYTES || self.ends.values().sum::<u64>() > 3
    }
}

fn lock(tally: &Mutex<FloodTally>) -> std::sync::MutexGuard<'_, FloodTally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a manager with the Service `small`, and a client that has received its endpoint.
async fn bystander(args: &[&str]) -> Result<(Crowd, Endpoints)> {
    let crowd = Crowd::start(args).await?;
    crowd.put("small", 0..1).await?;
    let stream = crowd.shows("small", 0..1).await?;
    Ok((crowd, stream))
}

/// Adds or removes an endpoint, and returns how long the change took to reach the client.
async fn propagate_change(crowd: &Crowd, stream: &mut Endpoints) -> Result<Duration> {
    let next = if stream.known.len() == 1 { 2 } else { 1 };
    crowd.set_slice("small-0", 0..next).await?;
    let written = Instant::now();
    shows(stream, 0..next).await?;
    Ok(written.elapsed())
}

/// Makes ten changes, each of which must arrive, and returns the longest delay.
async fn propagate_changes(crowd: &Crowd, stream: &mut Endpoints) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for _ in 0..CHANGES {
        longest = longest.max(propagate_change(crowd, stream).await?);
    }
    Ok(longest)
}

/// Floods a manager while another client receives changes.
async fn flooded(
    crowd: &mut Crowd,
    stream: &mut Endpoints,
    name: &str,
    flood: Flood,
    never_reads: bool,
) -> Result<FloodTally> {
    let before = reset_peak_memory(crowd)?;
    let mut attack = RunningFlood::begin(crowd, flood, never_reads);
    let begin = Instant::now();
    let mut longest = propagate_changes(crowd, stream).await?;
    attack.still_running()?;
    while !attack.tally().is_long_enough() {
        longest = longest.max(propagate_change(crowd, stream).await?);
        attack.still_running()?;
        ensure!(begin.elapsed() < SOON, "the flood did not get going: {:?}", attack.tally());
    }
    let tally = attack.tally();
    drop(attack);
    let peak = crowd.manager.memory()?.peak.saturating_sub(before);
    eprintln!("{name}: {longest:?} at most for a change, {} KiB more at the peak, {tally:?}", peak / 1024);
    ensure!(longest < LATE, "a change took {longest:?}; {tally:?}");
    ensure!(peak < MEMORY, "{} KiB more; {tally:?}", peak / 1024);
    ensure!(crowd.manager.is_running(), "the manager has ended");
    // A new client is served.
    crowd.manager.discovery().await?.get(&crowd.path("small"), "").await?.next().await?.context("no first message")?;
    Ok(tally)
}

/// Resets the manager's peak memory, and returns its current usage in bytes.
fn reset_peak_memory(crowd: &Crowd) -> Result<u64> {
    std::fs::write(format!("/proc/{}/clear_refs", crowd.manager.pid()), "5")?;
    Ok(crowd.manager.memory()?.resident)
}

/// Fails unless the server ended at least one connection with GOAWAY, and every GOAWAY was ENHANCE_YOUR_CALM.
/// A connection that is closed while bytes still arrive is reset, and its GOAWAY may then be lost.
fn all_calmed_down(tally: &FloodTally) -> Result<()> {
    let mut go_aways = tally.ends.keys().flatten();
    ensure!(tally.ends.keys().any(Option::is_some), "no connection received GOAWAY: {tally:?}");
    ensure!(go_aways.all(|(code, _)| *code == ENHANCE_YOUR_CALM), "{tally:?}");
    Ok(())
}

// === Tests ===

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_resets_its_own_requests_is_disconnected_and_others_are_served() -> Result<()> {
    let (mut crowd, mut stream) = bystander(&[]).await?;
    for (name, flood) in
        [("resets at once", flood::resets_at_once as Flood), ("made you reset", flood::makes_the_server_reset)]
    {
        // The client may send many frames before the first GOAWAY arrives.
        let attack = RunningFlood::begin(&crowd, flood, false);
        eventually(SOON, "the flooder to receive ENHANCE_YOUR_CALM", async || {
            all_calmed_down(&attack.tally()).context(name)
        })
        .await?;
        drop(attack);
        flooded(&mut crowd, &mut stream, name, flood, false).await.context(name)?;
    }
    Ok(())
}

/// No stream is pending acceptance when it is reset, so the checks of h2 do not detect this flood.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_resets_answered_streams_is_disconnected_and_others_are_served() -> Result<()> {
    let (mut crowd, mut stream) = bystander(NEVER_TOO_LATE).await?;
    let mut attack = RunningFlood::begin(&crowd, flood::resets_answered_streams, false);
    eventually(SOON, "the flooder to receive ENHANCE_YOUR_CALM", async || {
        let tally = attack.tally();
        all_calmed_down(&tally)
    })
    .await?;
    attack.still_running()?;
    drop(attack);
    let counted = crowd.manager.metric(ENDED, &[("reason", "flood")]).await;
    ensure!(counted.is_some_and(|count| count >= 1.0), "{counted:?} connections are counted as ended by a flood");
    flooded(&mut crowd, &mut stream, "resets answered streams", flood::resets_answered_streams, false).await.map(drop)
}

/// A proxy that stops resets all its streams together, and a proxy with a thousand names may cancel recent requests.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_resets_thousands_of_older_streams_is_not_a_flooder() -> Result<()> {
    const STREAMS: usize = 3000;
    const WHILE: Duration = Duration::from_millis(1500);
    const SHORT: usize = 800;
    let (crowd, mut stream) = bystander(NEVER_TOO_LATE).await?;
    let address = crowd.manager.destination_address();
    let mut client = HostileClient::connect(address, &crowd.path("small"), WINDOW).await?;
    for (count, time) in [(STREAMS, WHILE), (SHORT, Duration::ZERO)] {
        for _ in 0..count {
            client.until("room", |received| received.room > 1000).await?;
            client.get();
        }
        client.until("all answers", |received| received.answered.len() == count).await?;
        tokio::time::sleep(time).await;
        for stream in std::mem::take(&mut client.received.answered) {
            client.put(&Frame::reset(stream, CANCEL));
        }
        // The server answers the PING after it has handled the preceding frames.
        let pongs = client.received.pongs;
        flood::ping(&mut client);
        client.until("a pong", |received| received.pongs > pongs).await?;
    }
    client.get();
    client.until("an answer", |received| received.answered.len() == 1).await?;
    ensure!(client.received.go_away.is_none(), "{:?}", client.received);
    propagate_change(&crowd, &mut stream).await.map(drop)
}

/// Each stream may still become a valid request.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_unfinished_requests_do_not_affect_others() -> Result<()> {
    const STREAMS: u32 = 20_000;
    const MEMORY: u64 = 128 * 1024 * 1024;
    // An explicit limit, so that the memory of this host does not matter.
    let (mut crowd, mut stream) = bystander(&["--max-streams=100000"]).await?;
    let before = reset_peak_memory(&crowd)?;
    let address = crowd.manager.destination_address();
    let mut client = HostileClient::connect(address, &crowd.path("small"), WINDOW).await?;
    for _ in 0..STREAMS {
        client.begin();
    }
    flood::ping(&mut client);
    let all = client.until("a pong", |received| received.pongs > 0);
    let (_, longest) = tokio::try_join!(all, propagate_changes(&crowd, &mut stream))?;
    let known = u32::try_from(stream.known.len())?;
    crowd.shows("small", 0..known).await.context("a new client")?;
    // The server ends the requests with a timeout.
    client.until("all to be ended", |received| received.ended || received.ended_streams == u64::from(STREAMS)).await?;
    let peak = crowd.manager.memory()?.peak.saturating_sub(before);
    eprintln!("{longest:?} at most for a change, {} KiB more at the peak", peak / 1024);
    ensure!(longest < LATE, "a change was late");
    ensure!(peak < MEMORY, "{} KiB more", peak / 1024);
    ensure!(crowd.manager.is_running(), "the manager has ended");
    propagate_change(&crowd, &mut stream).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_and_oversized_headers_do_not_affect_others() -> Result<()> {
    let (mut crowd, mut stream) = bystander(&[]).await?;
    for (name, flood, ends) in [
        ("long continuations", flood::continues_without_end as Flood, true),
        ("empty continuations", flood::continues_with_nothing, true),
        ("one long header", flood::one_long_header, false),
        ("many small headers", flood::many_small_headers, true),
        ("a bomb of headers", flood::a_bomb_of_headers, true),
    ] {
        let tally = flooded(&mut crowd, &mut stream, name, flood, false).await.context(name)?;
        match ends {
            true => all_calmed_down(&tally).context(name)?,
            false => ensure!(tally.streams_ended != (0, 0), "{name} is accepted: {tally:?}"),
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tiny_frames_of_every_kind_do_not_affect_others() -> Result<()> {
    let (mut crowd, mut stream) = bystander(&[]).await?;
    for (name, flood, ends) in [
        ("PING", flood::ping as Flood, false),
        ("answers to PINGs", flood::pongs, true),
        ("SETTINGS", flood::settings, false),
        ("empty SETTINGS", flood::empty_settings, false),
        ("SETTINGS that matter", flood::settings_that_matter, false),
        ("empty DATA", flood::empty_data, true),
        ("DATA of one byte", flood::data_of_one_byte, false),
        ("DATA of one byte on many streams", flood::data_of_one_byte_on_many_streams, false),
        ("WINDOW_UPDATE of one byte", flood::windows_of_one_byte, false),
        ("PRIORITY", flood::priorities, false),
        ("unknown frames", flood::unknown_frames, false),
    ] {
        let tally = flooded(&mut crowd, &mut stream, name, flood, false).await.context(name)?;
        if ends {
            all_calmed_down(&tally).context(name)?;
        }
    }
    // The library logs single frames, unless it is silenced.
    let log = crowd.manager.log();
    let of_frames = log.lines().filter(|line| line.contains(" h2::")).count();
    ensure!(of_frames == 0, "{of_frames} lines of the log are about frames");
    Ok(())
}

/// The server must not queue responses without limit when the client does not read.
#[tokio::test(flavor = "multi_thread")]
async fn requests_whose_responses_are_not_read_do_not_affect_others() -> Result<()> {
    let (mut crowd, mut stream) = bystander(&[]).await?;
    for (name, flood) in [
        ("PING", flood::ping as Flood),
        ("SETTINGS", flood::empty_settings),
        ("made you reset", flood::makes_the_server_reset),
        ("long headers", flood::one_long_header),
    ] {
        flooded(&mut crowd, &mut stream, name, flood, true).await.context(name)?;
    }
    Ok(())
}

/// This client opens unlimited windows, so flow control does not bound the data that it leaves unread.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_streams_on_an_unread_socket_take_little_memory_and_end() -> Result<()> {
    const STREAMS: u32 = 1000;
    /// Less than a 16 KiB frame per stream.
    const MEMORY: u64 = 12 * 1024 * 1024;
    let mut crowd = Crowd::start(&["--stream-stall-timeout=3s"]).await?;
    crowd.put("web", 0..5000).await?;
    crowd.put("small", 0..1).await?;
    drop(crowd.shows("web", 0..5000).await?);
    let mut stream = crowd.shows("small", 0..1).await?;
    let before = reset_peak_memory(&crowd)?;

    let mut client = HostileClient::connect(crowd.manager.destination_address(), &crowd.path("web"), ENDLESS).await?;
    client.put(&Frame::window_update(0, ENDLESS - WINDOW));
    for _ in 0..STREAMS {
        client.get();
    }
    client.send().await?;
    crowd.manager.measures("linkerd_operator_discovery_streams", &[], |open| open > Some(1.0)).await?;
    let longest = propagate_changes(&crowd, &mut stream).await?;
    crowd.manager.counts(ENDED, &[("reason", "stalled")], 1.0).await?;
    let longest = longest.max(propagate_changes(&crowd, &mut stream).await?);
    let peak = crowd.manager.memory()?.peak.saturating_sub(before);
    eprintln!("{longest:?} at most for a change, {} KiB more at the peak", peak / 1024);
    ensure!(peak < MEMORY, "{} KiB more", peak / 1024);
    ensure!(longest < LATE, "a change took {longest:?}");
    ensure!(crowd.manager.is_running(), "the manager has ended");
    drop(client);
    Ok(())
}
