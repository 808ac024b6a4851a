//! The latency of one change, the maximum rate of changes, and the cost of a message.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::{ManagerOptions, load::Counts, process::pin_to_cores};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::json;
use tokio::time::sleep;

use super::{
    changing::{ChangeKind, Changing},
    cluster::stream_requests,
    moments::Lateness,
    rig::DiscoveryBench,
};
use crate::{
    report::Report,
    spent::{CLIENTS_CORE, SERVERS_CORE, Spent},
};

const THREADS: [usize; 3] = [1, 2, 4];
const SERVICE: &str = "web-0";
/// It limits no row.
const MEMORY_LIMIT: u64 = 4 << 30;
/// Time for the remaining work of a change before the next one.
const SETTLED: Duration = Duration::from_millis(150);

/// One change after another, each of which is sent to all streams.
struct ChangesInTurn {
    streams: usize,
    connections: usize,
    changes: u16,
    wanted: &'static str,
}

impl ChangesInTurn {
    /// With worker threads, the server has as many of them on both cores, of which it shares one with the client.
    async fn measure(&self, report: &mut Report, rig: &DiscoveryBench, threads: Option<usize>) -> Result<()> {
        let &Self { streams, connections, changes, wanted } = self;
        let changing = Changing::prepare(&rig.client, SERVICE, ChangeKind::Move).await?;
        let env = threads.map(|threads| ("TOKIO_WORKER_THREADS".to_owned(), threads.to_string()));
        let env = env.into_iter().collect();
        let options = ManagerOptions { memory_limit: Some(MEMORY_LIMIT), env, ..ManagerOptions::default() };
        let subject = rig.subject_with(options).await?;
        if let (Some(_), Some(pid)) = (threads, subject.pid) {
            pin_to_cores(pid, &[CLIENTS_CORE, SERVERS_CORE])?;
        }
        let load = rig.open(&subject, connections, stream_requests(streams, 1)).await?;
        let mut spent = Spent::default();
        for number in 0..changes {
            let phase = rig.phase(&subject)?;
            changing.change_and_wait(number, &load, streams as u64).await?;
            spent += phase.end()?;
            sleep(SETTLED).await;
        }
        let late = changing.lateness(&load)?;
        let (all, received) = (streams as u64 * u64::from(changes), late.since_seen.count());
        ensure!(received == all, "{received} streams received a change instead of {all}");
        let with = threads.map(|threads| format!(", {threads} worker threads on both cores")).unwrap_or_default();
        let figure = format!("one change to {streams} streams on {connections} connections, {changes} times{with}");
        let raw = json!({"changes": changes, "messages": load.counts().messages, "reads": load.counts().reads});
        report.row(figure, late.text(), wanted, late.json(raw));
        report.spent(&spent);
        load.close().await;
        Ok(())
    }
}

pub(super) async fn changes(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    for (streams, connections, changes, wanted) in [
        (100, 10, 200, "p99 ≤ 3 ms"),
        (1_000, 10, 200, "p99 ≤ 10 ms"),
        (10_000, 100, 100, "p99 ≤ 50 ms"),
        (10_000, 1_000, 50, "p99 ≤ 90 ms"),
        // As many as the instances of the largest published test of such a system, that of Consul.
        (172_000, 1_720, 20, ""),
    ] {
        ChangesInTurn { streams, connections, changes, wanted }.measure(report, rig, None).await?;
    }
    Ok(())
}

/// The same with several numbers of worker threads.
pub(super) async fn threads(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    for threads in THREADS {
        for connections in [100, 1_000] {
            let changes = ChangesInTurn { streams: 10_000, connections, changes: 50, wanted: "no later with more" };
            changes.measure(report, rig, Some(threads)).await?;
        }
    }
    Ok(())
}

/// Changes at a fixed rate, independent of the server's speed: an open loop.
struct OpenLoop {
    kind: ChangeKind,
    connections: usize,
    rate: u16,
    /// The number of concurrent writes. Flips must be in order.
    writes: usize,
}

/// The result of a churn.
struct Churned {
    spent: Spent,
    lateness: Lateness,
    counts: Counts,
    /// Changes per second.
    rate: f64,
    writer_late: Duration,
    ended: u64,
}

const STREAMS: usize = 1_000;
const SECONDS: u16 = 10;

pub(super) async fn churn(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    for (connections, limit) in [(10, "≤ 4"), (100, "≤ 6")] {
        // Slow enough that each change is sent separately: one message to each stream.
        let churned = OpenLoop { kind: ChangeKind::Flip, connections, rate: 100, writes: 1 }.run(rig).await?;
        if let Some(server) = churned.spent.server {
            #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
            let per_million = server.ran.as_secs_f64() / churned.counts.messages as f64 * 1e6;
            let Counts { messages, bytes, .. } = churned.counts;
            let text = format!("{per_million:.1} ({messages} messages, {} bytes each)", bytes / messages.max(1));
            let figure =
                format!("CPU-seconds for a million messages, {} streams per connection", STREAMS / connections);
            report.row(figure, text, limit, churned.raw());
            report.spent(&churned.spent);
        }
        let churned = OpenLoop { kind: ChangeKind::Move, connections, rate: 300, writes: 8 }.run(rig).await?;
        let apart = churned.lateness.since_seen.count() / STREAMS as u64;
        let text = format!(
            "{:.0} per second, {apart} of {} sent separately; latency {}; {} streams ended",
            churned.rate,
            300 * u32::from(SECONDS),
            churned.lateness.since_seen.text(),
            churned.ended
        );
        let figure = format!("changes to {STREAMS} streams on {connections} connections for {SECONDS} s");
        report.row(figure, text, "≥ 300 per second, p99 < 1 s", churned.raw());
        report.spent(&churned.spent);
    }
    Ok(())
}

impl OpenLoop {
    async fn run(&self, rig: &DiscoveryBench) -> Result<Churned> {
        let changing = Changing::prepare(&rig.client, SERVICE, self.kind).await?;
        let subject = rig.subject().await?;
        let load = rig.open(&subject, self.connections, stream_requests(STREAMS, 1)).await?;
        let phase = rig.phase(&subject)?;
        let begun = Instant::now();
        let changes = self.rate * SECONDS;
        let mut writer_late = Duration::ZERO;
        stream::iter(0..changes)
            .map(|number| {
                let changing = &changing;
                async move {
                    let due = Duration::from_secs(1) * u32::from(number) / u32::from(self.rate);
                    sleep(due.saturating_sub(begun.elapsed())).await;
                    let behind = begun.elapsed().saturating_sub(due);
                    changing.change(number).await?;
                    anyhow::Ok(behind)
                }
            })
            .buffered(self.writes)
            .try_for_each(|behind| {
                writer_late = writer_late.max(behind);
                std::future::ready(Ok(()))
            })
            .await?;
        let took = begun.elapsed();
        sleep(Duration::from_secs(2)).await;
        let spent = phase.end()?;
        let lateness = changing.lateness(&load)?;
        let (counts, ended) = (load.counts(), load.arrivals().ended.values().sum());
        load.close().await;
        let rate = f64::from(changes) / took.as_secs_f64();
        Ok(Churned { spent, lateness, counts, rate, writer_late, ended })
    }
}

impl Churned {
    fn raw(&self) -> serde_json::Value {
        let Counts { messages, bytes, reads, .. } = self.counts;
        self.lateness.json(json!({
            "messages": messages,
            "bytes": bytes,
            "reads": reads,
            "changes_a_second": self.rate,
            "writer_behind_seconds": self.writer_late.as_secs_f64(),
            "streams_ended": self.ended,
        }))
    }
}
