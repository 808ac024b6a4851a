//! Changes that no client can observe must cause no message: touched objects, and relists. A change that clients can
//! observe follows each of them, to show that the streams still work.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    Fault, FaultProxy, ManagerOptions,
    discovery::{WATCHED, expire},
    objects::kind,
    wait::eventually,
};
use serde_json::json;
use tokio::time::sleep;

use super::{
    changing::{ChangeKind, Changing},
    cluster::{SERVERS, SERVICES, populate_servers, server_kind, stream_requests, touch},
    rig::{DiscoveryBench, PATIENCE},
};
use crate::report::Report;

const STREAMS: usize = 10_000;
const TOUCHED_PODS: usize = 1_000;
/// The Service with the change that clients can observe, and the number of its streams.
const CONTROL: &str = "web-0";
const CONTROL_STREAMS: u64 = (STREAMS / SERVICES) as u64;
/// The time in which no message may arrive.
const QUIET: Duration = Duration::from_secs(3);

/// Edits annotations of all Servers, and of one Pod of each Service.
pub(super) async fn noise(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    populate_servers(&rig.client).await?;
    let control = Changing::prepare(&rig.client, CONTROL, ChangeKind::Flip).await?;
    let subject = rig.subject().await?;
    let load = rig.open(&subject, 100, stream_requests(STREAMS, SERVICES)).await?;
    let pods = (0..TOUCHED_PODS).map(|n| format!("web-{n}-0"));
    let servers = (0..SERVERS).map(|n| format!("server-{n}"));
    let touches: [(_, _, Vec<String>); 2] = [
        (format!("{SERVERS} Servers"), server_kind(), servers.collect()),
        (format!("the annotations of {TOUCHED_PODS} Pods"), kind("v1", "Pod"), pods.collect()),
    ];
    for (number, (what, kind, names)) in (0..).zip(touches) {
        load.reset();
        let phase = rig.phase(&subject)?;
        touch(&rig.client, &kind, names.into_iter()).await?;
        sleep(QUIET).await;
        let spent = phase.end()?;
        let messages = load.counts().messages;
        control.change_and_wait(number, &load, CONTROL_STREAMS).await?;
        load.none_ended()?;
        let figure = format!("messages to {STREAMS} streams after touching {what}");
        report.row(figure, messages.to_string(), "0", json!(messages));
        report.spent(&spent);
    }
    load.close().await;
    Ok(())
}

/// Ends all watches; when they are resumed, their history is compacted (410).
pub(super) async fn relist(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    if !rig.is_ours() {
        // Another server is not behind our proxy.
        return Ok(());
    }
    let proxy = FaultProxy::start(&rig.control_plane).await?;
    let options = ManagerOptions { kubeconfig: Some(proxy.kubeconfig().to_owned()), ..ManagerOptions::default() };
    let control = Changing::prepare(&rig.client, CONTROL, ChangeKind::Flip).await?;
    let subject = rig.subject_with(options).await?;
    let load = rig.open(&subject, 100, stream_requests(STREAMS, SERVICES)).await?;
    let phase = rig.phase(&subject)?;
    let faults = expire(&proxy);
    proxy.cut_all();
    eventually(PATIENCE, "each kind to be listed again", async || {
        let hits: Vec<usize> = faults.iter().map(Fault::hits).collect();
        ensure!(hits.iter().all(|hits| *hits > 0), "{WATCHED:?}: {hits:?}");
        let manager = subject.manager.as_ref().context("no manager")?;
        let (status, answer) = manager.get("/ready").await?;
        ensure!(status.is_success(), "{status} {answer}");
        Ok(())
    })
    .await?;
    sleep(QUIET * 2).await;
    let spent = phase.end()?;
    let messages = load.counts().messages;
    control.change_and_wait(0, &load, CONTROL_STREAMS).await?;
    load.none_ended()?;
    let lists = proxy.log().iter().filter(|request| request.path.contains("sendInitialEvents=true")).count();
    ensure!(lists >= 2 * WATCHED.len(), "only {lists} lists were streamed");
    let text = format!("{messages}, during a relist of {} kinds", WATCHED.len());
    report.row(format!("messages to {STREAMS} streams after a relist of everything (410)"), text, "0", json!(messages));
    report.spent(&spent);
    load.close().await;
    Ok(())
}
