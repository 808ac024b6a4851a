//! Ten thousand concurrent streams: the time to the first message of each, and their memory.

use std::time::Duration;

use anyhow::Result;
use e2e::{
    ManagerOptions,
    load::{Counts, StreamRequest},
    memory::mebibytes,
};
use serde_json::json;
use tokio::time::sleep;

use super::{
    cluster::{SERVERS, SERVICES, populate_servers, stream_requests},
    rig::DiscoveryBench,
};
use crate::report::{Report, Samples, json_of, median};

pub(super) const STREAMS: usize = 10_000;
const AT_ONCE: &str = "all < 1 s, none refused";
const ROUNDS: usize = 3;
/// Time for the server to finish its work.
const SETTLED: Duration = Duration::from_secs(3);

/// Proxies that connect at the same moment.
const CONNECTIONS: usize = 2_000;

/// Streams that are opened at the same moment, and the wanted figures.
#[derive(Default)]
pub(super) struct Herd {
    pub(super) what: String,
    pub(super) connections: usize,
    pub(super) requests: Vec<StreamRequest>,
    /// The wanted time to the first messages.
    pub(super) first: &'static str,
    /// The wanted memory of a stream, if it is measured.
    pub(super) memory: Option<&'static str>,
    /// The memory limit of the server, if the usual one is too small for so many streams.
    pub(super) memory_limit: Option<u64>,
    /// Flags of the server.
    pub(super) args: Vec<String>,
}

/// Streams for all Services and for one, on a hundred and on a thousand connections.
pub(super) async fn streams(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    for (connections, limit) in [(100, "≤ 5 KiB"), (1_000, "≤ 7 KiB")] {
        for services in [SERVICES, 1] {
            let of = if services == 1 { "1 Service".to_owned() } else { format!("{services} Services") };
            let what = format!("{STREAMS} streams of {of} on {connections} connections");
            let requests = stream_requests(STREAMS, services);
            Herd { what, connections, requests, first: AT_ONCE, memory: Some(limit), ..Herd::default() }
                .measure(report, rig)
                .await?;
        }
    }
    Ok(())
}

/// The same with Servers.
pub(super) async fn servers(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    populate_servers(&rig.client).await?;
    let what = format!("{STREAMS} streams of {SERVICES} Services on 100 connections, with {SERVERS} Servers");
    let requests = stream_requests(STREAMS, SERVICES);
    Herd { what, connections: 100, requests, first: AT_ONCE, memory: None, ..Herd::default() }
        .measure(report, rig)
        .await
}

/// Connections without streams: whether all are accepted.
pub(super) async fn connect(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    let subject = rig.subject().await?;
    let phase = rig.phase(&subject)?;
    let connected = rig.loads.connect(subject.address, CONNECTIONS).await;
    let spent = phase.end()?;
    let why = connected.iter().find_map(|one| one.as_ref().err()).map(|error| format!(": {error:#}"));
    let failed = connected.iter().filter(|one| one.is_err()).count();
    let took: Samples = connected.into_iter().flatten().collect();
    let text = format!("{}; {failed} unanswered{}", took.text(), why.unwrap_or_default());
    let raw = json!({"answered": took.histogram(), "not_answered": failed});
    report.row(format!("{CONNECTIONS} concurrent connections"), text, "all < 1 s", raw);
    report.spent(&spent);
    Ok(())
}

// === impl Herd ===

impl Herd {
    /// The KiB of each stream.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    fn for_each_stream(&self, bytes: u64) -> f64 {
        bytes as f64 / self.requests.len() as f64 / 1024.0
    }

    /// Measures several rounds, each with a new server.
    pub(super) async fn measure(&self, report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
        let (mut first, mut counts, mut spent) = (Samples::default(), Counts::default(), None);
        let (mut each, mut charges, mut raw) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (memory_limit, args) = (self.memory_limit, self.args.clone());
            let options = ManagerOptions { memory_limit, args, ..ManagerOptions::default() };
            let subject = rig.subject_with(options).await?;
            let before = if self.memory.is_some() { subject.memory_at_rest().await? } else { None };
            let phase = rig.phase(&subject)?;
            let load = rig.loads.open(subject.address, self.connections, self.requests.clone()).await?;
            let of_round = load.first_messages(self.requests.len()).await?;
            spent = Some(phase.end()?);
            of_round.into_iter().for_each(|took| first.push(took, 1));
            counts += load.counts();
            if let Some(before) = before {
                sleep(SETTLED).await;
                if let Some(after) = subject.memory()? {
                    each.push(self.for_each_stream(after.resident.saturating_sub(before.resident)));
                    let charged = before.container.zip(after.container);
                    charges.extend(charged.map(|(before, after)| self.for_each_stream(after.saturating_sub(before))));
                    raw.push((before, after));
                }
            }
            load.close().await;
            subject.has_streams(0).await?;
        }
        let Counts { refused, timed_out, .. } = counts;
        let text = format!("{}; {refused} refused, {timed_out} late", first.text());
        let messages = json!({"first_messages": first.histogram(), "refused": refused, "timed_out": timed_out});
        let figure = format!("first messages, {} opened at once, {ROUNDS} times", self.what);
        report.row(figure, text, self.first, messages);
        // The cost of the last round.
        if let Some(spent) = &spent {
            report.spent(spent);
        }
        if let (Some(limit), Some((before, after))) = (self.memory, raw.last()) {
            let charged = if charges.is_empty() { "unknown".to_owned() } else { format!("{:.1} KiB", median(charges)) };
            let text = format!(
                "{:.1} KiB (median of {ROUNDS}; the last from {:.1} to {:.1} MiB); container {charged}",
                median(each),
                mebibytes(before.resident),
                mebibytes(after.resident)
            );
            let raw: Vec<_> = raw.iter().map(|(before, after)| [json_of(before), json_of(after)]).collect();
            report.row(format!("memory of a stream, {}", self.what), text, limit, json!({ "before_and_after": raw }));
        }
        Ok(())
    }
}
