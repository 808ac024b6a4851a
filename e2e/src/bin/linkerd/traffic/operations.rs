//! The operations, and what the clients observe while they run.
//!
//! * In: a running mesh. Out: for each operation, the requests, the failures, and how long each change of the Service
//!   takes until all clients use it.
//! * Always: the time of a change begins before the write to the API server. It ends with the first answer of the new
//!   endpoint to the slowest client.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use tokio::{sync::Mutex, time::sleep};

use super::{
    changes::TrafficChanges,
    client::{Observed, RequestCounts},
    replicas::Replicas,
};
use crate::replica::ServerKind;

const MOVES: usize = 200;
const SHORT_GAPS: usize = 100;
/// Shorter than the 3 s for which a proxy queues requests to a Service without endpoints.
const SHORT_GAP: Duration = Duration::from_millis(300);
const LONG_GAPS: usize = 3;
const LONG_GAP: Duration = Duration::from_secs(5);
const ROLLS: usize = 10;
/// Few, because the next leader is elected only when the Lease of the killed one has expired.
const KILLS: usize = 3;
const SWAPS: usize = 10;
/// The pause between two changes.
const PAUSE: Duration = Duration::from_millis(50);

/// One operation.
pub(crate) struct Operation {
    pub(crate) name: String,
    pub(crate) server: String,
    pub(crate) involves_operator: bool,
    pub(crate) counts: RequestCounts,
    /// The failures until the clients use the endpoint of an empty Service, which no server can avoid.
    pub(crate) unavoidable: u64,
    /// For each change, the time until the slowest client used it.
    pub(crate) followed: Vec<Duration>,
}

/// The Service, and the clients that use it.
pub(crate) struct TrafficMesh {
    pub(crate) changes: Arc<Mutex<TrafficChanges>>,
    pub(crate) clients: Vec<Observed>,
}

/// The state before an operation.
struct Begun {
    name: String,
    server: ServerKind,
    before: RequestCounts,
}

// === impl Operation ===

impl Operation {
    /// The failures that must not happen.
    pub(crate) fn failed(&self) -> u64 {
        self.counts.failed.saturating_sub(self.unavoidable)
    }

    fn joined(mut self, other: Self) -> Self {
        self.counts.add(&other.counts);
        self.unavoidable += other.unavoidable;
        self.followed.extend(other.followed);
        self
    }
}

// === impl TrafficMesh ===

impl TrafficMesh {
    /// Runs all operations on the server that runs, and on the other one, and swaps them.
    pub(crate) async fn all(&self, replicas: &mut Replicas<'_>) -> Result<Vec<Operation>> {
        let mut operations = self.each(ServerKind::Ours, replicas).await?;
        let mut swaps = [(ServerKind::Theirs, Vec::new()), (ServerKind::Ours, Vec::new())];
        for _ in 0..SWAPS {
            for (to, done) in &mut swaps {
                done.push(self.swap(*to, replicas).await?);
            }
        }
        replicas.roll(ServerKind::Theirs).await?;
        operations.extend(self.each(ServerKind::Theirs, replicas).await?);
        operations.extend(swaps.into_iter().filter_map(|(_, done)| done.into_iter().reduce(Operation::joined)));
        Ok(operations)
    }

    async fn each(&self, server: ServerKind, replicas: &mut Replicas<'_>) -> Result<Vec<Operation>> {
        Ok(vec![
            self.moves(server).await?,
            self.short_gaps(server).await?,
            self.long_gaps(server).await?,
            self.rolls(server, replicas).await?,
            self.kills(server, replicas).await?,
        ])
    }

    async fn moves(&self, server: ServerKind) -> Result<Operation> {
        let begun = self.begin("a Pod moves to another address", server);
        let mut changes = self.changes.lock().await;
        let mut followed = Vec::new();
        for _ in 0..MOVES {
            followed.push(changes.change().await?);
            sleep(PAUSE).await;
        }
        Ok(self.end(begun, 0, followed))
    }

    async fn short_gaps(&self, server: ServerKind) -> Result<Operation> {
        let begun = self.begin(&format!("the Service is empty for {SHORT_GAP:?}, then full"), server);
        let mut changes = self.changes.lock().await;
        let mut followed = Vec::new();
        for _ in 0..SHORT_GAPS {
            changes.empty().await?;
            sleep(SHORT_GAP).await;
            followed.push(changes.change().await?);
        }
        Ok(self.end(begun, 0, followed))
    }

    async fn long_gaps(&self, server: ServerKind) -> Result<Operation> {
        let begun = self.begin(&format!("the Service is empty for {LONG_GAP:?}, then full"), server);
        let mut changes = self.changes.lock().await;
        let (mut followed, mut unavoidable) = (Vec::new(), 0);
        for _ in 0..LONG_GAPS {
            let full = self.counts();
            changes.empty().await?;
            sleep(LONG_GAP).await;
            followed.push(changes.change().await?);
            // A proxy refuses requests until it receives the change.
            unavoidable += self.counts().since(&full).failed;
        }
        Ok(self.end(begun, unavoidable, followed))
    }

    async fn rolls(&self, server: ServerKind, replicas: &mut Replicas<'_>) -> Result<Operation> {
        let begun = self.begin(&format!("both replicas are replaced, {ROLLS} times"), server);
        let roll = async {
            for _ in 0..ROLLS {
                replicas.roll(server).await?;
            }
            Ok(())
        };
        let followed = self.change_during(roll).await?;
        Ok(self.end(begun, 0, followed))
    }

    async fn kills(&self, server: ServerKind, replicas: &mut Replicas<'_>) -> Result<Operation> {
        let begun = self.begin(&format!("the leader is killed and replaced, {KILLS} times"), server);
        let mut followed = Vec::new();
        for _ in 0..KILLS {
            let leader = replicas.leader().await?;
            followed.extend(self.change_during(replicas.kill(leader, server)).await?);
        }
        Ok(self.end(begun, 0, followed))
    }

    /// Replaces one server by the other one.
    async fn swap(&self, to: ServerKind, replicas: &mut Replicas<'_>) -> Result<Operation> {
        let begun = self.begin(&format!("the container is swapped, {SWAPS} times"), to);
        let followed = self.change_during(replicas.roll(to)).await?;
        let mut operation = self.end(begun, 0, followed);
        operation.server = format!("to {to}");
        operation.involves_operator = true;
        Ok(operation)
    }

    /// Changes the Service again and again until the operation has ended.
    async fn change_during(&self, operation: impl Future<Output = Result<()>>) -> Result<Vec<Duration>> {
        let ended = Arc::new(AtomicBool::new(false));
        // A task of its own, because the start of a process blocks the operation's thread.
        let changing = tokio::spawn({
            let (changes, ended) = (self.changes.clone(), ended.clone());
            async move {
                let mut changes = changes.lock().await;
                let mut followed = Vec::new();
                while !ended.load(Ordering::Relaxed) {
                    followed.push(changes.change().await?);
                    sleep(PAUSE).await;
                }
                anyhow::Ok(followed)
            }
        });
        let result = operation.await;
        ended.store(true, Ordering::Relaxed);
        let followed = changing.await??;
        result.map(|()| followed)
    }

    fn begin(&self, name: &str, server: ServerKind) -> Begun {
        Begun { name: name.to_owned(), server, before: self.counts() }
    }

    fn end(&self, begun: Begun, unavoidable: u64, followed: Vec<Duration>) -> Operation {
        let Begun { name, server, before } = begun;
        eprintln!("traffic: {name}: {server}: {} changes", followed.len());
        Operation {
            name,
            server: server.to_string(),
            involves_operator: server == ServerKind::Ours,
            counts: self.counts().since(&before),
            unavoidable,
            followed,
        }
    }

    fn counts(&self) -> RequestCounts {
        let mut sum = RequestCounts::default();
        self.clients.iter().for_each(|client| sum.add(&client.counts()));
        sum
    }
}
