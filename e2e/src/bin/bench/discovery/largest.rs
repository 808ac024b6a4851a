//! The largest cluster that Kubernetes supports: 150,000 Pods and 15,000 Services on 5,000 nodes.
//!
//! * In: an empty cluster. Out: the time until our server is ready, its memory, and a hundred thousand streams. Always:
//!   one replica on one core; API server, etcd and the clients share another.

use std::time::Duration;

use anyhow::Result;
use e2e::{ManagerOptions, memory::Memory};
use serde_json::json;

use super::{
    cluster::{self, ClusterSize, stream_requests},
    keep,
    rest::bare_client,
    rig::Rig,
    streams::Herd,
};
use crate::report::{Report, json_of, median, milliseconds};

const SIZE: ClusterSize = ClusterSize::LARGEST;
/// It limits no row.
const MEMORY_LIMIT: u64 = 4 << 30;
const ROUNDS: usize = 3;
const STREAMS: usize = 100_000;
const CONNECTIONS: usize = 1_000;

pub(super) async fn largest(report: &mut Report, rig: &Rig) -> Result<()> {
    let empty = rig.subject_with(discovery_only()).await?.memory_at_rest().await?;
    // Without these objects nothing can be measured, so an error ends the run.
    cluster::populate(&rig.client, SIZE).await?;
    cluster::run_pods(&rig.client, SIZE).await?;
    for (jobs, options, limit) in
        [("discovery alone", discovery_only as fn() -> _, "≤ 2 KiB"), ("all jobs", all_jobs, "≤ 3 KiB")]
    {
        let result = start(report, rig, (jobs, options, limit), empty).await;
        keep(report, "largest", result);
    }
    let herd = Herd {
        what: format!("{STREAMS} streams of {} Services on {CONNECTIONS} connections", SIZE.services),
        connections: CONNECTIONS,
        requests: stream_requests(STREAMS, SIZE.services),
        first: "all ≤ 8 s, none refused",
        memory: Some("≤ 5 KiB"),
        memory_limit: Some(MEMORY_LIMIT),
    };
    herd.measure(report, rig).await
}

fn all_jobs() -> ManagerOptions {
    ManagerOptions { memory_limit: Some(MEMORY_LIMIT), ..ManagerOptions::default() }
}

fn discovery_only() -> ManagerOptions {
    let args = ["--enable-external-workload=false", "--enable-linkerd-config=false"].map(str::to_owned).to_vec();
    ManagerOptions { args, ..all_jobs() }
}

/// The time until the server is ready, against a client that lists the same and keeps nothing, and its memory then.
async fn start(
    report: &mut Report,
    rig: &Rig,
    (jobs, options, limit): (&str, fn() -> ManagerOptions, &'static str),
    empty: Option<Memory>,
) -> Result<()> {
    let (mut bare, mut ours, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(bare_client(rig).await?);
        let subject = rig.subject_with(options()).await?;
        ours.push(subject.ready);
        rest.extend(subject.memory_at_rest().await?);
    }
    let seconds = |all: &[Duration]| median(all.iter().map(milliseconds).collect()) / 1000.0;
    let ratios = ours.iter().zip(&bare).map(|(ours, bare)| ours.as_secs_f64() / bare.as_secs_f64()).collect();
    let text = format!("{:.2} times: {:.1} s and {:.1} s", median(ratios), seconds(&ours), seconds(&bare));
    let raw = json!({
        "list_milliseconds": bare.iter().map(milliseconds).collect::<Vec<_>>(),
        "ready_milliseconds": ours.iter().map(milliseconds).collect::<Vec<_>>(),
    });
    let figure =
        format!("{} Pods, {jobs}: ready, against a bare client that lists the kinds of discovery", SIZE.pods());
    report.row(figure, text, "≤ 1 time", raw);
    report.memory(&format!("{} Pods, {jobs}: memory", SIZE.pods()), &rest, "");
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let of = |memory: &Memory, base: u64| memory.resident.saturating_sub(base) as f64 / 1024.0 / SIZE.pods() as f64;
    let base = empty.map_or(0, |empty| empty.resident);
    let each = median(rest.iter().map(|memory| of(memory, base)).collect());
    let raw = json!({"empty": empty.as_ref().map(json_of), "rest": rest.iter().map(json_of).collect::<Vec<_>>()});
    report.row(format!("{jobs}: memory for each Pod"), format!("{each:.2} KiB"), limit, raw);
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let peaks: Vec<f64> = rest.iter().map(|memory| memory.peak as f64 / memory.resident as f64).collect();
    let text = format!("{:.2} times", median(peaks.clone()));
    report.row(format!("{jobs}: peak memory against rest"), text, "≤ 1.15 times", json!({ "ratios": peaks }));
    Ok(())
}
