//! Ten thousand streams at once: how soon each has its first message, and what memory they take.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tokio::time::sleep;

use super::{
    cluster::{SERVERS, SERVICES, asks, populate_servers},
    rig::{Rig, Subject, mebibytes},
};
use crate::{
    report::{Report, Samples, median},
    spent::Spent,
};

const STREAMS: usize = 10_000;
const ROUNDS: usize = 3;
/// For the server to have nothing left to do.
const SETTLED: Duration = Duration::from_secs(3);

/// Proxies that connect at the same moment.
const CONNECTIONS: usize = 2_000;

/// All streams opened some times.
#[derive(Default)]
struct Opened {
    first: Samples,
    refused: u64,
    timed_out: u64,
    /// Of the last time.
    spent: Option<Spent>,
}

/// Spread over all Services and on one, on many connections and on more.
pub(super) async fn streams(report: &mut Report, rig: &Rig) -> Result<()> {
    for (connections, limit) in [(100, "≤ 5 KiB"), (1_000, "≤ 7 KiB")] {
        for services in [SERVICES, 1] {
            let (mut opened, mut each, mut raw) = (Opened::default(), Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let subject = rig.subject().await?;
                let before = subject.memory_at_rest().await?;
                let load = opened.open(rig, &subject, connections, services).await?;
                sleep(SETTLED).await;
                if let (Some(before), Some(after)) = (before, subject.memory("VmRSS:")?) {
                    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
                    each.push(after.saturating_sub(before) as f64 / STREAMS as f64 / 1024.0);
                    raw.push((before, after));
                }
                load.close().await;
                subject.has_streams(0).await?;
            }
            let of = if services == 1 { "1 Service".to_owned() } else { format!("{services} Services") };
            let what = format!("{STREAMS} streams of {of} on {connections} connections");
            opened.row(report, &what);
            if let Some((before, after)) = raw.last() {
                let text = format!(
                    "{:.1} KiB (of {ROUNDS}; the last from {:.1} to {:.1} MiB)",
                    median(each),
                    mebibytes(*before),
                    mebibytes(*after)
                );
                report.row(format!("memory of a stream, {what}"), text, limit, json!({"before_and_after_bytes": raw}));
            }
        }
    }
    Ok(())
}

/// The same when there are Servers.
pub(super) async fn servers(report: &mut Report, rig: &Rig) -> Result<()> {
    populate_servers(&rig.client).await?;
    let mut opened = Opened::default();
    for _ in 0..ROUNDS {
        let subject = rig.subject().await?;
        opened.open(rig, &subject, 100, SERVICES).await?.close().await;
        subject.has_streams(0).await?;
    }
    opened.row(report, &format!("{STREAMS} streams of {SERVICES} Services on 100 connections, with {SERVERS} Servers"));
    Ok(())
}

/// Connections without streams: whether all are taken.
pub(super) async fn connect(report: &mut Report, rig: &Rig) -> Result<()> {
    let subject = rig.subject().await?;
    let phase = rig.phase(&subject)?;
    let connected = rig.loads.connect(subject.address, CONNECTIONS).await;
    let spent = phase.end()?;
    let why = connected.iter().find_map(|one| one.as_ref().err()).map(|error| format!(": {error:#}"));
    let failed = connected.iter().filter(|one| one.is_err()).count();
    let took: Samples = connected.into_iter().flatten().collect();
    let text = format!("{}; {failed} not answered{}", took.text(), why.unwrap_or_default());
    let raw = json!({"answered": took.histogram(), "not_answered": failed});
    report.row(format!("{CONNECTIONS} connections at once"), text, "all < 1 s", raw);
    report.spent(&spent);
    Ok(())
}

impl Opened {
    async fn open(
        &mut self,
        rig: &Rig,
        subject: &Subject,
        connections: usize,
        services: usize,
    ) -> Result<e2e::load::Load> {
        let phase = rig.phase(subject)?;
        let load = rig.loads.open(subject.address, connections, asks(STREAMS, services)).await?;
        let first = load.first_messages(STREAMS).await?;
        self.spent = Some(phase.end()?);
        first.into_iter().for_each(|first| self.first.push(first, 1));
        self.refused += load.arrivals().refused;
        self.timed_out += load.arrivals().timed_out;
        Ok(load)
    }

    fn row(&self, report: &mut Report, what: &str) {
        let text = format!("{}; {} refused, {} late", self.first.text(), self.refused, self.timed_out);
        let raw =
            json!({"first_messages": self.first.histogram(), "refused": self.refused, "timed_out": self.timed_out});
        report.row(format!("first messages, {what} at once, {ROUNDS} times"), text, "all < 1 s, none refused", raw);
        if let Some(spent) = &self.spent {
            report.spent(spent);
        }
    }
}
