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
use bytes::{BufMut, Bytes, BytesMut};
use e2e::{
    discovery::Endpoints,
    eventually,
    hostile_client::{ENDLESS, ENHANCE_YOUR_CALM, Heard, HostileClient},
    http2::{
        CANCEL, CONTINUATION, DATA, END_HEADERS, Frame, HEADERS, INITIAL_WINDOW_SIZE, PING, SETTINGS, grpc_message,
        header_block,
    },
    mesh::SOON,
};
use tokio::task::JoinSet;

use super::crowd::{Crowd, shows};

const PRIORITY: u8 = 0x2;
const UNKNOWN: u8 = 0xfa;
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

/// What a flooder says next. Called until a batch is full.
type Flood = fn(&mut HostileClient);

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

/// `small`, a client that was told of it, and what the manager takes now.
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
fn all_calmed_down(tally: &Tally) -> Result<()> {
    ensure!(!tally.ends.is_empty(), "the flood goes on: {tally:?}");
    let calm = |end: &Option<(u32, String)>| end.as_ref().is_some_and(|(code, _)| *code == ENHANCE_YOUR_CALM);
    ensure!(tally.ends.keys().all(calm), "{tally:?}");
    Ok(())
}

// === Floods ===

fn resets_at_once(client: &mut HostileClient) {
    let stream = client.get();
    client.put(&Frame::reset(stream, CANCEL));
}

/// Never more than a hundred at a time, so that nothing waits to be accepted.
fn resets_what_was_answered(client: &mut HostileClient) {
    while let Some(stream) = client.heard.answered.pop_front() {
        client.put(&Frame::reset(stream, CANCEL));
        client.get();
    }
    if client.streams() == 0 {
        for _ in 0..100 {
            client.get();
        }
    }
}

/// By a window that is larger than any may be (RFC 9113, section 6.9.1): "MadeYouReset".
fn makes_the_server_reset(client: &mut HostileClient) {
    let stream = client.get();
    client.put(&Frame::window_update(stream, ENDLESS));
}

fn continues_without_end(client: &mut HostileClient) {
    if client.streams() == 0 {
        let stream = client.new_stream();
        client.put(&Frame::new(HEADERS, 0, stream, header_block([(":method", "POST")])));
    }
    client.put(&Frame::new(CONTINUATION, 0, 1, header_block([("x", "y".repeat(1000).as_str())])));
}

fn continues_with_nothing(client: &mut HostileClient) {
    if client.streams() == 0 {
        let stream = client.new_stream();
        client.put(&Frame::new(HEADERS, 0, stream, Bytes::new()));
    }
    client.put(&Frame::new(CONTINUATION, 0, 1, Bytes::new()));
}

fn request_with(client: &mut HostileClient, fields: &[u8]) {
    let stream = client.new_stream();
    let mut block = BytesMut::from(&e2e::http2::grpc_request("/")[..]);
    block.extend_from_slice(fields);
    let mut frames = block.freeze();
    let mut kind = HEADERS;
    while !frames.is_empty() {
        let payload = frames.split_to(frames.len().min(16 * 1024));
        let flags = if frames.is_empty() { END_HEADERS } else { 0 };
        client.put(&Frame::new(kind, flags, stream, payload));
        kind = CONTINUATION;
    }
}

fn one_long_header(client: &mut HostileClient) {
    request_with(client, &header_block([("x", "y".repeat(20_000).as_str())]));
}

fn many_small_headers(client: &mut HostileClient) {
    let names: Vec<String> = (0..1000).map(|number| format!("x{number}")).collect();
    request_with(client, &header_block(names.iter().map(|name| (name.as_str(), ""))));
}

/// A field of 4 KiB that the server is to remember, named ten thousand times by one byte (RFC 7541, section 6.1).
fn a_bomb_of_headers(client: &mut HostileClient) {
    // Newest first, after the 61 of the static table.
    const NEWEST: u8 = 0x80 | 62;
    let literal = header_block([("x", "y".repeat(4000).as_str())]);
    let mut fields = BytesMut::new();
    // The same literal, but to be remembered.
    fields.put_u8(0x40);
    fields.extend_from_slice(&literal.slice(1..));
    fields.put_bytes(NEWEST, 10_000);
    request_with(client, &fields);
}

fn ping(client: &mut HostileClient) {
    client.put(&Frame::new(PING, 0, 0, vec![7; 8]));
}

fn settings(client: &mut HostileClient) {
    client.put(&Frame::settings(&[(INITIAL_WINDOW_SIZE, WINDOW)]));
}

fn empty_settings(client: &mut HostileClient) {
    client.put(&Frame::new(SETTINGS, 0, 0, Bytes::new()));
}

/// Each of which changes the window of a hundred streams.
fn settings_that_matter(client: &mut HostileClient) {
    while client.streams() < 100 {
        client.get();
    }
    client.put(&Frame::settings(&[(INITIAL_WINDOW_SIZE, 0)]));
    client.put(&Frame::settings(&[(INITIAL_WINDOW_SIZE, WINDOW)]));
}

fn empty_data(client: &mut HostileClient) {
    let stream = if client.streams() == 0 { client.begin() } else { 1 };
    client.put(&Frame::new(DATA, 0, stream, Bytes::new()));
}

/// Of a message that would be as long as any may be.
fn data_of_one_byte(client: &mut HostileClient) {
    let stream = if client.streams() == 0 {
        let stream = client.begin();
        client.put(&Frame::new(DATA, 0, stream, grpc_message(&[0; 16 * 1024]).slice(..5)));
        stream
    } else {
        1
    };
    client.put(&Frame::new(DATA, 0, stream, vec![0]));
}

/// A thousand such, so that none is ever complete.
fn data_of_one_byte_on_many_streams(client: &mut HostileClient) {
    if client.streams() == 0 {
        for _ in 0..1000 {
            let stream = client.begin();
            client.put(&Frame::new(DATA, 0, stream, grpc_message(&[0; 16 * 1024]).slice(..5)));
        }
    }
    for number in 0..1000 {
        client.put(&Frame::new(DATA, 0, 2 * number + 1, vec![0]));
    }
}

fn windows_of_one_byte(client: &mut HostileClient) {
    let stream = if client.streams() == 0 { client.get() } else { 1 };
    client.put(&Frame::window_update(0, 1));
    client.put(&Frame::window_update(stream, 1));
}

fn priorities(client: &mut HostileClient) {
    // Of streams that will never be.
    let stream = client.new_stream();
    client.put(&Frame::new(PRIORITY, 0, stream, vec![0, 0, 0, 0, 16]));
}

fn unknown_frames(client: &mut HostileClient) {
    client.put(&Frame::new(UNKNOWN, 0xff, 0, Bytes::new()));
}

// === Tests ===

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_resets_what_it_opens_is_told_to_calm_down_and_nobody_else_notices() -> Result<()> {
    let (mut crowd, mut stream) = bystander(&[]).await?;
    for (name, flood) in [("resets at once", resets_at_once as Flood), ("made you reset", makes_the_server_reset)] {
        let tally = flooded(&mut crowd, &mut stream, name, flood, false).await.context(name)?;
        all_calmed_down(&tally).context(name)?;
    }
    Ok(())
}

/// None of its streams waits to be accepted when it is reset, so h2 sees nothing wrong with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_resets_what_was_answered_is_told_to_calm_down_and_nobody_else_notices() -> Result<()> {
    let (mut crowd, mut stream) = bystander(&[]).await?;
    let mut attack = Attack::begin(&crowd, resets_what_was_answered, false);
    eventually(SOON, "the flooder to be told to calm down", async || {
        let tally = attack.tally();
        all_calmed_down(&tally)
    })
    .await?;
    attack.goes_on()?;
    drop(attack);
    let counted = crowd.manager.metric(ENDED, &[("reason", "flood")]).await;
    ensure!(counted.is_some_and(|count| count >= 1.0), "{counted:?} connections are said to have ended by a flood");
    flooded(&mut crowd, &mut stream, "resets what was answered", resets_what_was_answered, false).await.map(drop)
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
        ping(&mut client);
        client.until("a pong", |heard| heard.pongs > pongs).await?;
    }
    client.get();
    client.until("an answer", |heard| heard.answered.len() == 1).await?;
    ensure!(client.heard.go_away.is_none(), "{:?}", client.heard);
    told_of_a_change(&crowd, &mut stream).await.map(drop)
}

/// They wait for their messages, one of which may be on its way.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_requests_that_are_never_finished_harm_nobody_else() -> Result<()> {
    const STREAMS: u32 = 20_000;
    const MEMORY: u64 = 96 * 1024 * 1024;
    let (mut crowd, mut stream) = bystander(&[]).await?;
    let before = forget_peak(&crowd)?;
    let address = crowd.manager.destination_address();
    let mut client = HostileClient::connect(address, &crowd.path("small"), WINDOW).await?;
    for _ in 0..STREAMS {
        client.begin();
    }
    ping(&mut client);
    let all = client.until("a pong", |heard| heard.pongs > 0);
    let (all, longest) = tokio::join!(all, told_of_changes(&crowd, &mut stream));
    all?;
    let peak = crowd.manager.peak_memory_bytes()?.saturating_sub(before);
    eprintln!("{longest:?} at most for a change, {} KiB more at the peak", peak / 1024);
    ensure!(longest? < LATE, "a change was late");
    ensure!(peak < MEMORY, "{} KiB more", peak / 1024);
    let known = u32::try_from(stream.known.len())?;
    crowd.shows("small", 0..known).await.context("whoever comes now")?;
    // They are told that they took too long.
    client.until("all to be ended", |heard| heard.ended || heard.ended_streams == u64::from(STREAMS)).await?;
    ensure!(crowd.manager.is_running(), "the manager has ended");
    told_of_a_change(&crowd, &mut stream).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_without_end_and_measure_harm_nobody_else() -> Result<()> {
    let (mut crowd, mut stream) = bystander(&[]).await?;
    for (name, flood, ends) in [
        ("long continuations", continues_without_end as Flood, true),
        ("empty continuations", continues_with_nothing, true),
        ("one long header", one_long_header, false),
        ("many small headers", many_small_headers, false),
        ("a bomb of headers", a_bomb_of_headers, true),
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
        ("PING", ping as Flood, false),
        ("SETTINGS", settings, false),
        ("empty SETTINGS", empty_settings, false),
        ("SETTINGS that matter", settings_that_matter, false),
        ("empty DATA", empty_data, true),
        ("DATA of one byte", data_of_one_byte, false),
        ("DATA of one byte on many streams", data_of_one_byte_on_many_streams, false),
        ("WINDOW_UPDATE of one byte", windows_of_one_byte, false),
        ("PRIORITY", priorities, false),
        ("unknown frames", unknown_frames, false),
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
        ("PING", ping as Flood),
        ("SETTINGS", empty_settings),
        ("made you reset", makes_the_server_reset),
        ("long headers", one_long_header),
    ] {
        flooded(&mut crowd, &mut stream, name, flood, true).await.context(name)?;
    }
    Ok(())
}

/// Windows bound what a client can leave unread only if it has any.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_streams_on_a_socket_that_nobody_empties_cost_little_and_end() -> Result<()> {
    const STREAMS: u32 = 1000;
    /// Of which most is what a stream costs however little is on its way.
    const MEMORY: u64 = 32 * 1024 * 1024;
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
    crowd.counts("linkerd_operator_discovery_streams", &[("state", "blocked")], f64::from(STREAMS)).await?;
    let longest = told_of_changes(&crowd, &mut stream).await?;
    let peak = crowd.manager.peak_memory_bytes()?.saturating_sub(before);
    eprintln!("{longest:?} at most for a change, {} KiB more at the peak", peak / 1024);
    ensure!(peak < MEMORY, "{} KiB more", peak / 1024);
    ensure!(longest < LATE, "a change took {longest:?}");

    crowd.counts(ENDED, &[("reason", "stalled")], 1.0).await?;
    told_of_changes(&crowd, &mut stream).await?;
    ensure!(crowd.manager.is_running(), "the manager has ended");
    drop(client);
    Ok(())
}
