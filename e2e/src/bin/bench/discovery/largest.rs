//! The largest cluster that Kubernetes supports: 150,000 Pods and 15,000 Services on 5,000 nodes.
//!
//! * In: an empty cluster. Out: the time until our server is ready, its memory, and a hundred thousand streams. Always:
//!   one replica on one core; API server, etcd and the clients share another.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{
    FaultProxy, Job, ManagerOptions,
    discovery::{WATCHED, expire_kinds},
    memory::Memory,
};
use serde_json::json;
use tokio::time::sleep;

use super::{
    changing::{ChangeKind, Changing},
    cluster::{self, ClusterSize, stream_requests},
    growth::Growth,
    keep,
    rest::bare_client,
    rig::DiscoveryBench,
    streams::Herd,
    taken::Taken,
};
use crate::report::{Report, json_of, median, milliseconds};

const SIZE: ClusterSize = ClusterSize::LARGEST;
/// It limits no row.
const MEMORY_LIMIT: u64 = 4 << 30;
const ROUNDS: usize = 3;
const RELIST_STREAMS: usize = 100;
/// The changes before the relist, for comparison.
const RELIST_CHANGES: usize = 50;
const RELIST_PAUSE: Duration = Duration::from_millis(20);
const STREAMS: usize = 100_000;
const CONNECTIONS: usize = 1_000;

/// The Services of the sizes whose costs are compared.
const GROWTH: [usize; 4] = [100, 1_000, 10_000, SIZE.services];

pub(super) async fn largest(report: &mut Report, rig: &mut DiscoveryBench) -> Result<()> {
    let mut empty = Memory::default();
    if !rig.control_plane.processes().is_empty() {
        empty = rig.subject_with(discovery_only()).await?.memory_at_rest().await?.unwrap_or_default();
        let mut growth = Growth::default();
        let grown = grow(report, rig, &mut growth, &empty).await;
        growth.report(report);
        // Without the objects nothing else can be measured.
        grown?;
    } else if !cluster::is_populated(&rig.client, SIZE).await? {
        // An existing cluster has one size, so nothing can be compared.
        cluster::populate(&rig.client, SIZE).await?;
        cluster::run_pods(&rig.client, SIZE).await?;
    }
    for (jobs, options, limit) in
        [("discovery alone", discovery_only as fn() -> _, "≤ 2 KiB"), ("all jobs", all_jobs, "≤ 3 KiB")]
    {
        let result = start(report, rig, (jobs, options, limit), empty.resident).await;
        keep(report, "start", result);
    }
    // By default, a request that its client gives up before the answer is refused, and made again.
    for (memory, with, args) in
        [(Some("≤ 5 KiB"), "", vec![]), (None, ", a request may wait 10 s", vec!["--max-stream-wait=10s".to_owned()])]
    {
        let herd = Herd {
            what: format!("{STREAMS} streams of {} Services on {CONNECTIONS} connections{with}", SIZE.services),
            connections: CONNECTIONS,
            requests: stream_requests(STREAMS, SIZE.services),
            first: "all ≤ 8 s",
            memory,
            memory_limit: Some(MEMORY_LIMIT),
            args,
        };
        let result = herd.measure(report, rig).await;
        keep(report, "streams", result);
    }
    let result = relist(report, rig).await;
    keep(report, "relist", result);
    Ok(())
}

/// Creates the objects in steps, and measures the costs after each.
async fn grow(report: &mut Report, rig: &mut DiscoveryBench, growth: &mut Growth, empty: &Memory) -> Result<()> {
    let mut from = 0;
    for services in GROWTH {
        let size = ClusterSize { services, ..SIZE };
        // The creation takes half as long on both cores.
        rig.pin(false)?;
        cluster::grow(&rig.client, from, size).await?;
        cluster::run_pods(&rig.client, size).await?;
        // The memory of the API server after the creation would be that of most of the host.
        rig.control_plane.compact_etcd().await?;
        rig.control_plane.restart_api_server(true).await?;
        rig.pin(true)?;
        let result = growth.measure(rig, size, discovery_only, empty).await;
        keep(report, "growth", result);
        from = services;
    }
    Ok(())
}

/// Lists every kind again, except EndpointSlices, while an endpoint changes: the changes must not wait for the lists.
/// Changes of a kind that is being listed are known only when its list is complete.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
async fn relist(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    let proxy = FaultProxy::start(&rig.control_plane).await?;
    let options = ManagerOptions { kubeconfig: Some(proxy.kubeconfig().to_owned()), ..discovery_only() };
    let changing = Changing::prepare(&rig.client, "web-0", ChangeKind::Move).await?;
    let subject = rig.subject_with(options).await?;
    let load = rig.open(&subject, 10, stream_requests(RELIST_STREAMS, 1)).await?;
    let mut changes = 0..;
    let mut change = async || {
        let number = changes.next().context("too many changes")?;
        changing.change_and_wait(number, &load, RELIST_STREAMS as u64).await?;
        sleep(RELIST_PAUSE).await;
        anyhow::Ok(())
    };
    let before = subject.taken().await?;
    for _ in 0..RELIST_CHANGES {
        change().await?;
    }
    let (usual, begun) = (subject.taken().await?.since(&before), subject.taken().await?);
    let kinds = WATCHED.into_iter().filter(|kind| *kind != "endpointslices");
    let faults = expire_kinds(&proxy, kinds);
    let events = subject.events("pods").await?;
    proxy.cut_all();
    let listing = Instant::now();
    while subject.events("pods").await? < events + SIZE.pods() as f64 {
        ensure!(listing.elapsed() < Duration::from_secs(300), "the Pods were not listed again");
        change().await?;
    }
    ensure!(faults.iter().all(|fault| fault.hits() > 0), "not every kind was listed again");
    let took = listing.elapsed();
    let during = subject.taken().await?.since(&begun);
    load.none_ended()?;
    let bounds =
        |taken: &Taken| format!("p99 ≤ {:.1} ms, max ≤ {:.1} ms", taken.bound(0.99) * 1e3, taken.bound(1.0) * 1e3);
    let text = format!(
        "{} ({} objects and more in {:.1} s); before it {}",
        bounds(&during),
        SIZE.pods(),
        took.as_secs_f64(),
        bounds(&usual)
    );
    let raw = json!({"during": during.json(), "before": usual.json()});
    report.row(
        format!("an endpoint of {RELIST_STREAMS} streams changes during a relist of everything but EndpointSlices: from the event to the stream, in the server"),
        text,
        "≤ 50 ms",
        raw,
    );
    load.close().await;
    Ok(())
}

fn all_jobs() -> ManagerOptions {
    ManagerOptions { memory_limit: Some(MEMORY_LIMIT), ..ManagerOptions::default() }
}

fn discovery_only() -> ManagerOptions {
    ManagerOptions::only(Job::Destination).memory_limit(MEMORY_LIMIT)
}

/// The time until the server is ready, against a client that lists the same and keeps nothing, and its memory then.
async fn start(
    report: &mut Report,
    rig: &DiscoveryBench,
    (jobs, options, limit): (&str, fn() -> ManagerOptions, &'static str),
    empty: u64,
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
    let each = median(rest.iter().map(|memory| of(memory, empty)).collect());
    let raw = json!({"empty_resident_bytes": empty, "rest": rest.iter().map(json_of).collect::<Vec<_>>()});
    report.row(format!("{jobs}: memory for each Pod"), format!("{each:.2} KiB"), limit, raw);
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let peaks: Vec<f64> = rest.iter().map(|memory| memory.peak as f64 / memory.resident as f64).collect();
    let text = format!("{:.2} times", median(peaks.clone()));
    report.row(format!("{jobs}: peak memory against rest"), text, "≤ 1.15 times", json!({ "ratios": peaks }));
    Ok(())
}
