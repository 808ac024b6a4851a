//! The open connections of the webhook server, and the share of each client.
//!
//! In: connections, and how much of its next request each client has sent. Out: a place for a further connection, and
//! the connections that must end for it. Always holds: there are at most as many connections as the limit; a connection
//! is closed for another one only while it waits for its own client: for a whole request, for memory that the client has
//! for others, or until it takes an answer; and only after the client had time for that, or if it has most of all
//! connections.
//!
//! API servers open a connection for each review under way and keep a few. At the limit, a new client therefore waits in
//! the backlog of the listener. A connection that is closed while its client begins to use it is a Pod without a proxy.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{limits::Limits, review_memory::HeldMemory};
use crate::memory::MemoryBudget;

/// The time that every client has for a whole request, and to take an answer, whatever others wait for.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time after which a client with most of the connections gets no further ones. Longer than its connections need to
/// become stale, so that an honest burst on a slow machine is not refused.
const GREEDY: Duration = Duration::from_secs(10);
/// How often a client that waits looks again for connections that have become stale.
pub(super) const RECHECK: Duration = Duration::from_millis(100);

/// The maximum number of connections while the memory of the process is exhausted.
const FEW: usize = 256;

/// The open connections.
pub(super) struct Connections {
    limit: usize,
    memory: MemoryBudget,
    table: Mutex<Table>,
    ended: Notify,
}

#[derive(Default)]
struct Table {
    open: HashMap<u64, Arc<Activity>>,
    next: u64,
    greedy: Option<GreedyClient>,
}

/// A client that has most of all connections without a whole request, while others wait.
struct GreedyClient {
    address: IpAddr,
    since: Instant,
    seen: Instant,
}

/// A place for a new connection.
#[derive(Debug, PartialEq)]
enum ConnectionPlace {
    Free,
    /// Another connection must end first.
    Wait,
    /// The client has had most of the connections for a while.
    Refused,
}

/// A connection, which has its place until this is dropped.
pub(super) struct OpenConnection {
    number: u64,
    activity: Arc<Activity>,
    connections: Arc<Connections>,
    /// The memory of an answer that the client has not taken.
    untaken: Mutex<Option<HeldMemory>>,
    taken: Notify,
}

/// The progress of the client of a connection.
struct Activity {
    client: IpAddr,
    progress: Mutex<RequestProgress>,
    closed: CancellationToken,
}

#[derive(Clone, Copy)]
struct RequestProgress {
    phase: Phase,
    /// When the connection was accepted, its next request began or was complete, or its last one was answered.
    since: Instant,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Handshake,
    /// Nothing of the next request has arrived.
    Idle,
    Head,
    /// A part of the body has arrived. With the memory that it takes.
    Body(usize),
    /// The request is complete, and waits for memory that other requests of its client have.
    Queued,
    UnderWay,
    /// The answer is written, and the client has not read it. With its memory.
    Answer(usize),
}

// === impl Connections ===

impl Connections {
    pub(super) fn new(limit: usize, memory: MemoryBudget) -> Arc<Self> {
        Arc::new(Self { limit, memory, table: Mutex::default(), ended: Notify::new() })
    }

    /// Waits for a place for a connection of this client. Returns `None` if the client has had most of the connections
    /// for a while, so that it cannot fill the backlog, too.
    pub(super) async fn admit(self: &Arc<Self>, client: IpAddr) -> Option<OpenConnection> {
        let client = client.to_canonical();
        loop {
            let limit = if self.memory.is_exhausted() { self.limit.min(FEW) } else { self.limit };
            let place = self.table.lock().place(limit, client, Instant::now());
            match place {
                ConnectionPlace::Free => return Some(self.add(client)),
                ConnectionPlace::Refused => return None,
                // The result is the same when the time has passed.
                ConnectionPlace::Wait => _ = timeout(RECHECK, self.ended.notified()).await,
            }
        }
    }

    fn add(self: &Arc<Self>, client: IpAddr) -> OpenConnection {
        let progress = Mutex::new(RequestProgress { phase: Phase::Handshake, since: Instant::now() });
        let activity = Arc::new(Activity { client, progress, closed: CancellationToken::new() });
        let mut table = self.table.lock();
        table.next += 1;
        let number = table.next;
        table.open.insert(number, Arc::clone(&activity));
        let (connections, untaken, taken) = (Arc::clone(self), Mutex::default(), Notify::new());
        OpenConnection { number, activity, connections, untaken, taken }
    }
}

// === impl Table ===

impl Table {
    /// Makes a place for a connection of this client: closes others, if there are too many and they may be closed.
    fn place(&mut self, limit: usize, client: IpAddr, now: Instant) -> ConnectionPlace {
        while self.open.len() >= limit {
            let greediest = self.greediest(|progress| usize::from(progress.is_waiting()));
            // No API server has so many at a time: it limits the requests under way.
            let greediest = greediest.filter(|(_, count, _)| *count > limit - limit / 4);
            let closed = match greediest {
                Some((greediest, _, oldest)) if greediest != client => Some(oldest),
                Some(_) if self.is_greedy_for_a_while(client, now) => return ConnectionPlace::Refused,
                _ => self.greediest(|progress| usize::from(progress.is_stale(now))).map(|(_, _, oldest)| oldest),
            };
            match closed {
                Some(number) => self.close(number),
                None => return ConnectionPlace::Wait,
            }
        }
        ConnectionPlace::Free
    }

    /// Records that a client has most of the connections. Returns whether that has been so for a while.
    fn is_greedy_for_a_while(&mut self, address: IpAddr, now: Instant) -> bool {
        let since = self.greedy.as_ref().filter(|it| it.address == address && now < it.seen + PATIENCE);
        let since = since.map_or(now, |it| it.since);
        self.greedy = Some(GreedyClient { address, since, seen: now });
        since + GREEDY <= now
    }

    /// Returns the client whose connections have the largest sum, the sum, and the oldest connection that is part of it.
    fn greediest(&self, part: impl Fn(RequestProgress) -> usize) -> Option<(IpAddr, usize, u64)> {
        let mut clients: HashMap<IpAddr, (usize, (Instant, u64))> = HashMap::new();
        for (number, activity) in &self.open {
            let progress = *activity.progress.lock();
            let (part, this) = (part(progress), (progress.since, *number));
            if part > 0 {
                let (sum, oldest) = clients.entry(activity.client).or_insert((0, this));
                (*sum, *oldest) = (*sum + part, this.min(*oldest));
            }
        }
        let most = clients.into_iter().max_by_key(|(_, (sum, _))| *sum);
        most.map(|(client, (sum, (_, oldest)))| (client, sum, oldest))
    }

    fn close(&mut self, number: u64) {
        if let Some(activity) = self.open.remove(&number) {
            debug!(client = %activity.client, "closing a webhook connection that waits for its client, for another one");
            activity.closed.cancel();
        }
    }
}

// === impl OpenConnection ===

impl OpenConnection {
    /// The TLS handshake is complete.
    pub(super) fn established(&self) {
        self.activity.set(|_| Some(Phase::Idle));
    }

    /// The client has sent something.
    pub(super) fn received(&self) {
        self.activity.set(|phase| (phase == Phase::Idle).then_some(Phase::Head));
    }

    /// The body of the request takes so much memory so far.
    pub(super) fn reads_body(&self, bytes: usize) {
        self.activity.progress.lock().phase = Phase::Body(bytes);
    }

    /// The request is complete, and waits for memory of its client's share.
    pub(super) fn queue(&self) {
        self.activity.set(|_| Some(Phase::Queued));
    }

    /// The request is complete, and its client is not the reason for what it waits for.
    pub(super) fn begin(&self) {
        self.activity.set(|_| Some(Phase::UnderWay));
    }

    /// hyper writes an answer with this memory.
    pub(super) fn writes(&self, memory: HeldMemory) {
        self.activity.set(|_| Some(Phase::Answer(memory.bytes())));
        *self.untaken.lock() = Some(memory);
    }

    /// All that was written is sent.
    pub(super) fn flushed(&self) {
        if self.has_untaken_answer() {
            self.answered();
        }
    }

    /// The client has its answer.
    pub(super) fn answered(&self) {
        self.activity.set(|_| Some(Phase::Idle));
        *self.untaken.lock() = None;
        self.taken.notify_one();
    }

    pub(super) fn has_untaken_answer(&self) -> bool {
        matches!(self.activity.progress.lock().phase, Phase::Answer(_))
    }

    /// Waits until the client has taken the last answer.
    pub(super) async fn taken(&self) {
        while self.has_untaken_answer() {
            self.taken.notified().await;
        }
    }

    pub(super) fn client(&self) -> IpAddr {
        self.activity.client
    }

    /// Waits until the connection must end for another client.
    pub(super) async fn closed(&self) {
        self.activity.closed.cancelled().await;
    }

    /// Waits until the head of a request is late, the client is late to take an answer, or the connection has been idle for
    /// too long.
    pub(super) async fn overdue(&self, limits: &Limits) {
        loop {
            let (now, progress) = (Instant::now(), *self.activity.progress.lock());
            let end = match progress.phase {
                Phase::Head => Some(progress.since + limits.header_time),
                Phase::Idle => Some(progress.since + limits.idle_time),
                Phase::Answer(_) => Some(progress.since + limits.answer_time),
                // These have their own deadlines.
                Phase::Handshake | Phase::Body(_) | Phase::Queued | Phase::UnderWay => None,
            };
            if end.is_some_and(|end| end <= now) {
                return;
            }
            // A head that begins meanwhile ends earlier than the idle time.
            let next = now + limits.header_time / 2;
            sleep_until(end.map_or(next, |end| end.min(next))).await;
        }
    }

    /// Closes a connection whose client is late to send a body or to take an answer: of the client for which most of such
    /// memory is held, the oldest.
    pub(super) fn close_a_slow_one(&self) {
        let (now, mut table) = (Instant::now(), self.connections.table.lock());
        let slow = |progress: RequestProgress| match progress.phase {
            Phase::Body(bytes) | Phase::Answer(bytes) if progress.is_stale(now) => bytes,
            _ => 0,
        };
        if let Some((_, _, oldest)) = table.greediest(slow) {
            table.close(oldest);
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.connections.table.lock().open.remove(&self.number);
        self.connections.ended.notify_one();
    }
}

// === impl Activity ===

impl Activity {
    fn set(&self, next: impl FnOnce(Phase) -> Option<Phase>) {
        let mut progress = self.progress.lock();
        if let Some(phase) = next(progress.phase) {
            *progress = RequestProgress { phase, since: Instant::now() };
        }
    }
}

// === impl RequestProgress ===

impl RequestProgress {
    fn is_waiting(self) -> bool {
        self.phase != Phase::UnderWay
    }

    fn is_stale(self, now: Instant) -> bool {
        self.is_waiting() && self.since + PATIENCE <= now
    }
}

#[cfg(test)]
#[path = "connections_tests.rs"]
mod tests;
