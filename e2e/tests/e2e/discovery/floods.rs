//! Clients that attack: the manager lives, what they cost is bounded, and nobody else notices.
//!
//! * In: a flood, and a manager of the test's own. Out: how the flooder's connections end, the memory that it took, and whether
//!   a client on another connection was told of ten changes meanwhile.
//! * An attacker whose connection is ended comes back at once, so that the flood lasts as long as the test looks.

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
    hostile_client::{ENDLESS, ENHANCE_YOUR_CALM, Heard, HostileClient},
    http2::{CANCEL, Frame},
    mesh::SOON,
};
use tokio::task::JoinSet;

use super::crowd::{Crowd, shows};

/// What the tests' proxies have.
const WINDOW: u32 = 65_535;
/// Above what the manager takes before the flood. A flood of what is not bounded takes this within the second.
const MEMORY: u64 = 48 * 1024 * 1024;
/// Of a change, until others are told of it. It holds on a machine that runs all other tests as well.
const LATE: Duration = Duration::from_secs(2);
const CHANGES: u32 = 10;
/// Bytes of a flood.
const MUCH: u64 = 4 * 1024 * 1024;
const ENDED: &str = "linkerd_operator_discovery_connections_ended_total";

/// How a flood has gone so far.
#[derive(Clone, Debug, Default)]
struct Tally {
    connections: u64,
    bytes: u64,
    /// How connections ended: the code and the text of the last GOAWAY.
    ends: BTreeMap<Option<(u32, String)>, u64>,
    /// Of connections that have ended, and of the present one.
    streams_ended: (u64, u64),
}

/// A flooder at work. Dropping it ends its connection.
struct Attack {
    tally: Arc<Mutex<Tally>>,
    task: JoinSet<Result<()>>,
}

// === impl Attack ===

impl Attack {
    fn begin(crowd: &Crowd, flood: Flood, deaf: bool) -> Self {
        let (address, path) = (crowd.manager.destination_address(), crowd.path("small"));
        let tally = Arc::<Mutex<Tally>>::default();
        let mut task = JoinSet::new();
        let shared = Arc::clone(&tally);
        task.spawn(async move {
            loop {
                let mut client = HostileClient::connect(address, &path, WINDOW).await?;
                client.deaf = deaf;
                lock(&shared).connections += 1;
                client.flood(flood, |bytes, heard| lock(&shared).turned(bytes, heard)).await?;
                lock(&shared).ended(client.heard);
            }
        });
        Self { tally, task }
    }

    fn tally(&self) -> Tally {
        lock(&self.tally).clone()
    }

    fn goes_on(&mut self) -> Result<()> {
        match self.task.try_join_next() {
            None => Ok(()),
            Some(ended) => ended?.context("the flooder has ended"),
        }
    }
}

// === impl Tally ===

impl Tally {
    fn turned(&mut self, bytes: usize, heard: &Heard) {
        self.bytes += bytes as u64;
        self.streams_ended.1 = heard.ended_streams + heard.resets.values().sum::<u64>();
    }

    fn ended(&mut self, heard: Heard) {
        *self.ends.entry(heard.go_away.map(|last| (last.code, last.text))).or_default() += 1;
        self.streams_ended.0 += std::mem::take(&mut self.streams_ended.1);
    }

    /// Enough for what is not bounded to have taken much, or for the server to have shown that it does not bear it.
    fn is_much(&self) -> bool {
        self.bytes > MUCH || self.ends.values().sum::<u64>() > 3
    }
}

fn lock(tally: &Mutex<Tally>) -> std::sync::MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `small`, and a client that was told of it.
async fn bystander(args: &[&str]) -> Result<(Crowd, Endpoints)> {
    let crowd = Crowd::start(args).await?;
    crowd.put("small", 0..1).await?;
    let stream = crowd.shows("small", 0..1).await?;
    Ok((crowd, stream))
}

/// One more endpoint, or one less; how long it took for the client to be told of it.
async fn told_of_a_change(crowd: &Crowd, stream: &mut Endpoints) -> Result<Duration> {
    let next = if stream.known.len() == 1 { 2 } else { 1 };
    crowd.set_slice("small-0", 0..next).await?;
    let written = Instant::now();
    shows(stream, 0..next).await?;
    Ok(written.elapsed())
}

/// The longest that one of ten changes took. Each has to come.
async fn told_of_changes(crowd: &Crowd, stream: &mut Endpoints) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for _ in 0..CHANGES {
        longest = longest.max(told_of_a_change(crowd, stream).await?);
    }
    Ok(longest)
}

/// Floods a manager, and tells a client of changes meanwhile.
async fn flooded(crowd: &mut Crowd, stream: &mut Endpoints, name: &str, flood: Flood, deaf: bool) -> Result<Tally> {
    let before = forget_peak(crowd)?;
    let mut attack = Attack::begin(crowd, flood, deaf);
    let begin = Instant::now();
    let mut longest = told_of_changes(crowd, stream).await?;
    while !attack.tally().is_much() {
        longest = longest.max(told_of_a_change(crowd, stream).await?);
        attack.goes_on()?;
        ensure!(begin.elapsed() < SOON, "no flood comes about: {:?}", attack.tally());
    }
    let tally = attack.tally();
    drop(attack);
    let peak = crowd.manager.peak_memory_bytes()?.saturating_sub(before);
    eprintln!("{name}: {longest:?} at most for a change, {} KiB more at the peak, {tally:?}", peak / 1024);
    ensure!(longest < LATE, "a change took {longest:?}; {tally:?}");
    ensure!(peak < MEMORY, "{} KiB more; {tally:?}", peak / 1024);
    ensure!(crowd.manager.is_running(), "the manager has ended");
    // And whoever comes now is served.
    crowd.manager.discovery().await?.get(&crowd.path("small"), "").await?.next().await?.context("no first message")?;
    Ok(tally)
}

/// What the manager takes now, from where its peak counts anew.
fn forget_peak(crowd: &Crowd) -> Result<u64> {
    std::fs::write(format!("/proc/{}/clear_refs", crowd.manager.pid()), "5")?;
    crowd.manager.resident_memory_bytes()
}

/// All connections that the server ended, it ended with this.
/// A connection that is closed while more comes is reset, and then the last words may be lost.
fn all_calmed_down(tally: &Tally) -> Result<()> {
    let mut told = tally.ends.keys().flatten();
    ensure!(tally.ends.keys().any(Option::is_some), "nobody was told anything: {tally:?}");
    ensure!(told.all(|(code, _)| *code == ENHANCE_YOUR_CALM), "{tally:?}");
    Ok(())
}

// === Tests ===

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_resets_what_it_opens_is_told_to_calm_down_and_nobody_else_notices() -> Result<()> {
    let (mut crowd, mut stream) = bystander(&[]).await?;
    for (name, flood) in
        [("resets at once", flood::resets_at_once as Flood), ("made you reset", flood::makes_the_server_reset)]
    {
        // Much may be sent before the first is told.
        let attack = Attack::begin(&crowd, flood, false);
        eventually(SOON, "the flooder to be told to calm down", async || {
            all_calmed_down(&attack.tally()).context(name)
        })
        .await?;
        drop(attack);
        flooded(&mut crowd, &mut stream, name, flood, false).await.context(name)?;
    }
    Ok(())
}

/// None of its streams waits to be accepted when it is reset, so h2 sees nothing wrong with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_resets_what_was_answered_is_told_to_calm_down_and_nobody_else_notices() -> Result<()> {
    let (mut crowd, mut stream) = bystander(&[]).await?;
    let mut attack = Attack::begin(&crowd, flood::resets_what_was_answered, false);
    eventually(SOON, "the flooder to be told to calm down", async || {
        let tally = attack.tally();
        all_calmed_down(&tally)
    })
    .await?;
    attack.goes_on()?;
    drop(attack);
    let counted = crowd.manager.metric(ENDED, &[("reason", "flood")]).await;
    ensure!(counted.is_some_and(|count| count >= 1.0), "{counted:?} connections are said to have ended by a flood");
    flooded(&mut crowd, &mut stream, "resets what was answered", flood::resets_what_was_answered, false).await.map(drop)
}

/// A proxy that ends leaves all its streams at once, and one that is told of a thousand names may not want what it asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_thousands_of_streams_which_it_had_for_a_while_is_no_flooder() -> Result<()> {
    const STREAMS: usize = 3000;
    const WHILE: Duration = Duration::from_millis(1500);
    const SHORT: usize = 800;
    let (crowd, mut stream) = bystander(&[]).await?;
    let address = crowd.manager.destination_address();
    let mut client = HostileClient::connect(address, &crowd.path("small"), WINDOW).await?;
    for (count, time) in [(STREAMS, WHILE), (SHORT, Duration::ZERO)] {
        for _ in 0..count {
            client.until("room", |heard| heard.room > 1000).await?;
            client.get();
        }
        client.until("all answers", |heard| heard.answered.len() == count).await?;
        tokio::time::sleep(time).await;
        for stream in std::mem::take(&mut client.heard.answered) {
            client.put(&Frame::reset(stream, CANCEL));
        }
        // It is answered after what was said before it.
        let pongs = client.heard.pongs;
        flood::ping(&mut client);
        client.until("a pong", |heard| heard.pongs > pongs).await?;
    }
    client.get();
    client.until("an answer", |heard| heard.answered.len() == 1).await?;
    ensure!(client.heard.go_away.is_none(), "{:?}", client.heard);
    told_of_a_change(&crowd, &mut stream).await.map(drop)
}

/// Each may still become one.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_requests_that_are_never_finished_harm_nobody_else() -> Result<()> {
    const STREAMS: u32 = 20_000;
    const MEMORY: u64 = 128 * 1024 * 1024;
    // However little memory there is here.
    let (mut crowd, mut stream) = bystander(&["--max-streams=100000"]).await?;
    let before = forget_peak(&crowd)?;
    let address = crowd.manager.destination_address();
    let mut client = HostileClient::connect(address, &crowd.path("small"), WINDOW).await?;
    for _ in 0..STREAMS {
        client.begin();
    }
    flood::ping(&mut client);
    let all = client.until("a pong", |heard| heard.pongs > 0);
    let (_, longest) = tokio::try_join!(all, told_of_changes(&crowd, &mut stream))?;
    let known = u32::try_from(stream.known.len())?;
    crowd.shows("small", 0..known).await.context("whoever comes now")?;
    // They are told that they took too long.
    client.until("all to be ended", |heard| heard.ended || heard.ended_streams == u64::from(STREAMS)).await?;
    let peak = crowd.manager.peak_memory_bytes()?.saturating_sub(before);
    eprintln!("{longest:?} at most for a change, {} KiB more at the peak", peak / 1024);
    ensure!(longest < LATE, "a change was late");
    ensure!(peak < MEMORY, "{} KiB more", peak / 1024);
    ensure!(crowd.manager.is_running(), "the manager has ended");
    told_of_a_change(&crowd, &mut stream).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_without_end_and_measure_harm_nobody_else() -> Result<()> {
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
async fn tiny_frames_of_every_kind_harm_nobody_else() -> Result<()> {
    let (mut crowd, mut stream) = bystander(&[]).await?;
    for (name, flood, ends) in [
        ("PING", flood::ping as Flood, false),
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
    Ok(())
}

/// The server must not keep what it cannot send.
#[tokio::test(flavor = "multi_thread")]
async fn questions_whose_answers_nobody_reads_harm_nobody_else() -> Result<()> {
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

/// Windows bound what a client can leave unread only if it has any.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_streams_on_a_socket_that_nobody_empties_cost_little_and_end() -> Result<()> {
    const STREAMS: u32 = 1000;
    /// A piece of 16 KiB for each would be more.
    const MEMORY: u64 = 12 * 1024 * 1024;
    let mut crowd = Crowd::start(&["--stream-stall-timeout=3s"]).await?;
    crowd.put("web", 0..5000).await?;
    crowd.put("small", 0..1).await?;
    drop(crowd.shows("web", 0..5000).await?);
    let mut stream = crowd.shows("small", 0..1).await?;
    let before = forget_peak(&crowd)?;

    let mut client = HostileClient::connect(crowd.manager.destination_address(), &crowd.path("web"), ENDLESS).await?;
    client.put(&Frame::window_update(0, ENDLESS - WINDOW));
    for _ in 0..STREAMS {
        client.get();
    }
    client.send().await?;
    eventually(SOON, "some streams to begin", async || {
        let open = crowd.manager.metric("linkerd_operator_discovery_streams", &[]).await;
        ensure!(open > Some(1.0), "{open:?}");
        Ok(())
    })
    .await?;
    let longest = told_of_changes(&crowd, &mut stream).await?;
    crowd.counts(ENDED, &[("reason", "stalled")], 1.0).await?;
    let longest = longest.max(told_of_changes(&crowd, &mut stream).await?);
    let peak = crowd.manager.peak_memory_bytes()?.saturating_sub(before);
    eprintln!("{longest:?} at most for a change, {} KiB more at the peak", peak / 1024);
    ensure!(peak < MEMORY, "{} KiB more", peak / 1024);
    ensure!(longest < LATE, "a change took {longest:?}");
    ensure!(crowd.manager.is_running(), "the manager has ended");
    drop(client);
    Ok(())
}
