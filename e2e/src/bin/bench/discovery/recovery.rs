//! The time until all clients know everything again after one of two replicas is gone, and after an outage of the API
//! server.
//!
//! * In: two of our servers, each with half of the clients. Out: for each client that has lost its server, the time from
//!   its notice until the other server has answered its streams; the cost of that for the other server.
//! * Always: both servers share a core. A replica is killed, so that its clients notice at once; or it is suspended, so
//!   that they notice nothing until it does not answer a PING, as when a node loses its network.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{
    Action, FaultProxy, ManagerOptions, Rule, discovery::expire, load::What, memory::mebibytes, wait::eventually,
};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{
    changing,
    cluster::{SERVICES, stream_requests},
    rig::{DiscoveryBench, Subject},
};
use crate::report::{Report, Samples};

const CLIENTS: usize = 10_000;
const STREAMS: usize = 4 * CLIENTS;
/// The time in which clients notice a replica that does not answer, and have everything again.
const PATIENCE: Duration = Duration::from_secs(90);
const MEMORY_LIMIT: u64 = 2 << 30;
const SETTLED: Duration = Duration::from_secs(3);
/// Longer than the longest pause between two attempts.
const OUTAGE: Duration = Duration::from_secs(60);
const LONG_OUTAGE: Duration = Duration::from_secs(3_600);
const STREAMS_IN_OUTAGE: usize = 10_000;
/// The ports of the endpoints before and after the outage.
const PORTS: [u16; 2] = [8_080, 9_090];

#[derive(Clone, Copy, Debug)]
enum Loss {
    Killed,
    Unplugged,
}

pub(super) async fn recovery(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    if !rig.is_ours() {
        // Another server is not killed.
        return Ok(());
    }
    for loss in [Loss::Killed, Loss::Unplugged] {
        lose(report, rig, loss).await?;
    }
    outage(report, rig, OUTAGE).await
}

/// As the outage of [`recovery`], for an hour: what has a lifetime has ended by then.
pub(super) async fn long_outage(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    if rig.is_ours() { outage(report, rig, LONG_OUTAGE).await } else { Ok(()) }
}

/// The API server cannot be reached while an endpoint of each Service changes, and has no history when it returns.
async fn outage(report: &mut Report, rig: &DiscoveryBench, duration: Duration) -> Result<()> {
    let proxy = FaultProxy::start(&rig.control_plane).await?;
    let options = ManagerOptions { kubeconfig: Some(proxy.kubeconfig().to_owned()), ..ManagerOptions::default() };
    changing::move_all(&rig.client, PORTS[0]).await?;
    let subject = rig.subject_with(options).await?;
    let load = rig.open(&subject, 100, stream_requests(STREAMS_IN_OUTAGE, SERVICES)).await?;
    let away = proxy.inject(Rule::any(), Action::Cut);
    proxy.cut_all();
    changing::move_all(&rig.client, PORTS[1]).await?;
    sleep(duration).await;
    load.none_ended()?;
    let of_outage = load.counts().messages;
    let phase = rig.phase(&subject)?;
    let expired = expire(&proxy);
    away.remove();
    let returned = Instant::now();
    let known = || load.arrivals().received(What::Add, PORTS[1]);
    eventually(PATIENCE, "all clients to know what has changed in the outage", async || {
        ensure!(known() == STREAMS_IN_OUTAGE as u64, "{} streams know it", known());
        Ok(())
    })
    .await?;
    let arrivals: Samples = {
        let arrivals = load.arrivals();
        let moved = arrivals.changes.iter().filter(|change| (change.what, change.port) == (What::Add, PORTS[1]));
        let mut samples = Samples::default();
        moved.for_each(|change| samples.push(change.at.saturating_duration_since(returned), change.streams));
        samples
    };
    let spent = phase.end()?;
    load.none_ended()?;
    // The first rule that matches applies, so these could not apply before the return.
    ensure!(expired.iter().any(|fault| fault.hits() > 0), "no watch was refused with 410");
    let figure = format!(
        "API server out of reach for {} s, {SERVICES} Services change, then 410 for every watch: until each of {STREAMS_IN_OUTAGE} streams knows it",
        duration.as_secs()
    );
    let text = format!("{}; {of_outage} messages in the outage", arrivals.text());
    report.row(figure, text, "", json!({"known": arrivals.histogram(), "messages_in_outage": of_outage}));
    report.spent(&spent);
    load.close().await;
    Ok(())
}

async fn lose(report: &mut Report, rig: &DiscoveryBench, loss: Loss) -> Result<()> {
    let options = || ManagerOptions { memory_limit: Some(MEMORY_LIMIT), ..ManagerOptions::default() };
    let (mut lost, survivor) = (rig.subject_with(options()).await?, rig.subject_with(options()).await?);
    let requests = stream_requests(STREAMS, SERVICES);
    let load = rig.loads.open_on_either([lost.address, survivor.address], CLIENTS, requests).await?;
    load.first_messages(STREAMS).await?;
    sleep(SETTLED).await;
    load.reset();
    let before = survivor.memory()?.unwrap_or_default();
    let phase = rig.phase(&survivor)?;
    let manager = lost.manager.as_mut().context("our server")?;
    let begun = Instant::now();
    match loss {
        Loss::Killed => manager.kill().await?,
        Loss::Unplugged => manager.pause()?,
    }
    let all = async {
        while load.arrivals().first.len() < STREAMS / 2 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = timeout(PATIENCE, all).await;
    in_time.with_context(|| format!("{} of {} streams recovered", load.arrivals().first.len(), STREAMS / 2))?;
    let (took, spent) = (begun.elapsed(), phase.end()?);
    let (known, noticed): (Samples, Samples) = {
        let arrivals = load.arrivals();
        let noticed = arrivals.left.iter().map(|at| at.saturating_duration_since(begun));
        (arrivals.first.iter().copied().collect(), noticed.collect())
    };
    sleep(SETTLED).await;
    let after = survivor.memory()?.unwrap_or_default();
    let text = format!(
        "from a client's notice until it knows all: {}; the last one {:.1} s after the loss, noticed {}; memory from {:.0} to {:.0} MiB, peak {:.0}",
        known.text(),
        took.as_secs_f64(),
        noticed.text(),
        mebibytes(before.resident),
        mebibytes(after.resident),
        mebibytes(after.peak)
    );
    let raw = json!({"known": known.histogram(), "noticed": noticed.histogram(), "seconds": took.as_secs_f64(),
        "resident_before": before.resident, "resident_after": after.resident, "peak": after.peak});
    let figure = format!("one of two replicas {loss:?}, {CLIENTS} clients with {STREAMS} streams, half of them on it");
    report.row(figure, text, "", raw);
    report.spent(&spent);
    load.close().await;
    drop::<Subject>(lost);
    Ok(())
}
