//! The server's memory without clients, and the time until it is ready.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use e2e::{ManagerOptions, kubeconfig};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client,
    core::{PartialObjectMeta, WatchEvent},
};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::json;
use tokio::sync::oneshot;

use super::rig::DiscoveryBench;
use crate::{
    report::{Report, median, milliseconds},
    spent::SERVERS_CORE,
};

const ROUNDS: usize = 5;
/// The annotation of the bookmark at the end of a list.
const LISTED: &str = "k8s.io/initial-events-end";
/// The default on a node with 64 cores.
const THREADS: usize = 64;

/// Measures a server in an empty cluster.
pub(super) async fn empty(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    if rig.is_ours() {
        let mut at_rest = Vec::new();
        for _ in 0..ROUNDS {
            at_rest.extend(rig.subject().await?.memory_at_rest().await?);
        }
        report.memory("discovery: memory, empty cluster", &at_rest, "≤ 20 MiB");
    }
    Ok(())
}

/// Measures a server in a cluster with 1,000 Services and 10,000 Pods.
pub(super) async fn ready(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    const AT_REST: &str = "discovery: memory, 1,000 Services and 10,000 running Pods";
    const LIMIT: &str = "≤ 60 MiB";
    if !rig.is_ours() {
        let at_rest = rig.subject().await?.memory_at_rest().await?;
        if at_rest.is_some() {
            report.memory(AT_REST, at_rest.as_slice(), LIMIT);
        }
        return Ok(());
    }
    let (mut bare, mut ours, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(bare_client(rig).await?);
        let subject = rig.subject().await?;
        ours.push(subject.ready);
        rest.extend(subject.memory_at_rest().await?);
    }
    let ratios = ours.iter().zip(&bare).map(|(ours, bare)| ours.as_secs_f64() / bare.as_secs_f64()).collect();
    let raw = json!({
        "list_milliseconds": bare.iter().map(milliseconds).collect::<Vec<_>>(),
        "ready_milliseconds": ours.iter().map(milliseconds).collect::<Vec<_>>(),
    });
    let text = format!(
        "{:.2} times: {:.0} ms and {:.0} ms",
        median(ratios),
        median(ours.iter().map(milliseconds).collect()),
        median(bare.iter().map(milliseconds).collect()),
    );
    report.row("ready, against a bare client that lists the same on the same core", text, "≤ 1.5 times", raw);
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let ratios: Vec<f64> = rest.iter().map(|memory| memory.peak as f64 / memory.resident as f64).collect();
    report.memory(AT_REST, &rest, LIMIT);
    report.row(
        "peak memory since the start, against memory at rest",
        format!("{:.2} times", median(ratios.clone())),
        "≤ 1.5 times",
        json!({ "ratios": ratios }),
    );
    many_threads(report, rig).await
}

/// Measures the memory with the worker threads of a large node. Each has caches of its own.
async fn many_threads(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    let mut at_rest = Vec::new();
    for _ in 0..ROUNDS {
        let env = vec![("TOKIO_WORKER_THREADS".to_owned(), THREADS.to_string())];
        let subject = rig.subject_with(ManagerOptions { env, ..ManagerOptions::default() }).await?;
        at_rest.extend(subject.memory_at_rest().await?);
    }
    report.memory(&format!("the same with {THREADS} worker threads"), &at_rest, "");
    Ok(())
}

/// The time of a client that lists the same objects and keeps nothing, on the server's core.
pub(super) async fn bare_client(rig: &DiscoveryBench) -> Result<Duration> {
    let path = rig.control_plane.kubeconfig().to_owned();
    let (done, result) = oneshot::channel();
    std::thread::spawn(move || {
        let run = || {
            let mut cores = CpuSet::new();
            cores.set(SERVERS_CORE);
            sched_setaffinity(None, &cores)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async { list_everything(&kubeconfig::client(&path).await?).await })
        };
        let _ = done.send(run());
    });
    result.await.context("the bare client's thread ended")?
}

/// Lists all kinds concurrently, as our server does: in streams. Only the metadata is decoded.
async fn list_everything(client: &Client) -> Result<Duration> {
    let kinds = [
        "/api/v1/pods",
        "/api/v1/services",
        "/api/v1/nodes",
        "/apis/discovery.k8s.io/v1/endpointslices",
        "/apis/apps/v1/replicasets",
        "/apis/batch/v1/jobs",
        "/apis/policy.linkerd.io/v1beta3/servers",
        "/apis/workload.linkerd.io/v1beta1/externalworkloads",
    ];
    let begun = Instant::now();
    let list = |path: &'static str| async move {
        let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        let request = http::Request::get(format!("{path}?{query}")).body(Vec::new())?;
        let mut events = pin!(client.request_events::<PartialObjectMeta<Pod>>(request).await?);
        loop {
            match events.try_next().await?.context("the stream ended before the list was complete")? {
                WatchEvent::Bookmark(bookmark) if bookmark.metadata.annotations.contains_key(LISTED) => break,
                _ => {}
            }
        }
        anyhow::Ok(())
    };
    futures::future::try_join_all(kinds.map(list)).await?;
    Ok(begun.elapsed())
}
