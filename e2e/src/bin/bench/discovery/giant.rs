//! A Service with 12,000 endpoints: the cost of a flip for its clients, and the cost of clients that never read.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    ManagerOptions,
    discovery::{Discovery, token},
    memory::{Memory, mebibytes},
    wait::eventually,
};
use serde_json::json;
use tokio::time::sleep;

use super::{
    changing::{ChangeKind, Changing},
    cluster::{GIANT, GIANT_ENDPOINTS, NAMESPACE, path_of, populate_giant, stream_request},
    rig::{DiscoveryBench, PATIENCE, Subject},
};
use crate::{report::Report, spent::Spent};

const STREAMS: usize = 100;
const CONNECTIONS: usize = 10;
const FLIPS: u16 = 100;
const READERS: u16 = 1_000;
const SETTLED: Duration = Duration::from_millis(200);

/// Measures flips of one endpoint, at clients that have all endpoints.
pub(super) async fn giant(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    populate_giant(&rig.client).await?;
    let changing = Changing::prepare(&rig.client, GIANT, ChangeKind::Flip).await?;
    let subject = rig.subject().await?;
    let messages = messages_of_all(&subject).await?;
    let requests = (0..STREAMS).map(|number| stream_request(path_of(GIANT), number)).collect();
    let load = rig.loads.open(subject.address, CONNECTIONS, requests).await?;
    let whole = (STREAMS * messages) as u64;
    eventually(PATIENCE, "all streams to have all endpoints", async || {
        load.none_ended()?;
        let so_far = load.counts().messages;
        ensure!(so_far >= whole, "{so_far} of {whole} messages");
        Ok(())
    })
    .await?;
    sleep(Duration::from_secs(1)).await;
    load.reset();
    let mut spent = Spent::default();
    for number in 0..FLIPS {
        let phase = rig.phase(&subject)?;
        changing.change_and_wait(number, &load, STREAMS as u64).await?;
        spent += phase.end()?;
        sleep(SETTLED).await;
    }
    let late = changing.lateness(&load)?;
    let (messages, bytes) = (load.counts().messages, load.counts().bytes);
    let flips = STREAMS as u64 * u64::from(FLIPS);
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let text = format!(
        "{:.2} messages of {} bytes; {}",
        messages as f64 / flips as f64,
        bytes / messages.max(1),
        late.since_seen.text()
    );
    let raw = late.json(json!({"messages": messages, "bytes": bytes, "flips": FLIPS, "streams": STREAMS}));
    let figure =
        format!("a flip of one endpoint in a Service of {GIANT_ENDPOINTS} endpoints, to each of {STREAMS} clients");
    report.row(figure, text, "1 small message", raw);
    report.spent(&spent);
    load.close().await;
    Ok(())
}

/// Returns the number of messages in which a client receives all endpoints.
async fn messages_of_all(subject: &Subject) -> Result<usize> {
    let opened = Discovery::connect(subject.address).await?.get(&path_of(GIANT), &token(NAMESPACE, "node-0")).await;
    let mut endpoints = opened.context("requesting the giant")?;
    // The endpoint that changes is not ready.
    endpoints.until("all endpoints", |known| known.len() == GIANT_ENDPOINTS - 1).await?;
    Ok(endpoints.messages.len())
}

/// Clients that never read, each of which starts at another version of the Service.
pub(super) async fn unread(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    populate_giant(&rig.client).await?;
    let changing = Changing::prepare(&rig.client, GIANT, ChangeKind::Flip).await?;
    // All clients must exist at the same time, although creating the versions takes long.
    let args = ["--stream-stall-timeout", "600s"].map(str::to_owned).to_vec();
    let subject = rig.subject_with(ManagerOptions { args, ..ManagerOptions::default() }).await?;
    // Shows when the server has processed a version.
    let load = rig.open(&subject, 1, vec![stream_request(path_of(GIANT), 0)]).await?;
    let Some(Memory { resident: before, .. }) = subject.memory_at_rest().await? else { return Ok(()) };
    let phase = rig.phase(&subject)?;
    let mut readers = Vec::new();
    for number in 0..READERS {
        changing.change_and_wait(number, &load, 1).await?;
        let request = [stream_request(path_of(GIANT), 0)];
        readers.push(rig.loads.open_unread(subject.address, &request).await?);
    }
    subject.has_streams(usize::from(READERS) + 1).await?;
    let spent = phase.end()?;
    sleep(Duration::from_secs(2)).await;
    let Memory { resident: after, peak, container, .. } =
        subject.memory()?.context("the server's memory is unknown")?;
    subject.has_streams(usize::from(READERS) + 1).await.context("a client was disconnected before the end")?;
    let text = format!(
        "{:.0} MiB more than {:.0} (peak {:.0}), opened in {:.0} s",
        mebibytes(after.saturating_sub(before)),
        mebibytes(before),
        mebibytes(peak),
        spent.took.as_secs_f64()
    );
    let raw = json!({"before_bytes": before, "after_bytes": after, "peak_bytes": peak, "container_bytes": container, "readers": readers.len()});
    let figure = format!("{READERS} clients that never read, at different versions of {GIANT_ENDPOINTS} endpoints");
    report.row(figure, text, "megabytes, not gigabytes", raw);
    report.spent(&spent);
    drop(readers);
    load.close().await;
    Ok(())
}
