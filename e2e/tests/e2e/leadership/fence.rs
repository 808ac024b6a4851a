//! A leader that is paused or cut off from its Lease: it stops writing, and late writes of it do no harm.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{
    Action, FaultProxy, Rule, eventually,
    fault_proxy::RecordedRequest,
    holds,
    manager::QUIET,
    mesh::{Mesh, SOON},
};
use serde_json::json;

use super::{
    EXPIRED, LEASE, RENEW_DEADLINE, SLACK, STOP, Stage, is_leading, serves, slice_writes, stops_leading, writes,
};

#[tokio::test]
async fn a_leader_paused_past_its_lease_follows_and_can_lead_again_f16() -> Result<()> {
    let stage = Stage::new().await?;
    let (mut first, mut second) = stage.pair().await?;
    first.pause()?;
    stage.mesh.set_ready("vm", false).await?;
    stage.mesh.put_workload("vm-2", "web", &["192.0.2.5"]).await?;
    stage.held_by("second", EXPIRED).await?;
    stage.mesh.shows("web", &[("vm", false), ("vm-2", true)]).await?;
    // The cache of the first replica is outdated for all of these objects.
    stage.mesh.delete_workload("vm-2").await?;
    stage.mesh.put_workload("vm-3", "web", &["192.0.2.6"]).await?;
    stage.mesh.shows("web", &[("vm", false), ("vm-3", true)]).await?;

    first.resume()?;
    stops_leading(&first, SOON).await?;
    let tried = writes(&first).await?;
    holds(QUIET, "the resumed replica to follow", async || {
        serves(&first).await?;
        ensure!(writes(&first).await? == tried && !is_leading(&first).await, "the resumed replica wrote or leads");
        ensure!(is_leading(&second).await, "the second replica lost the Lease");
        let shown = stage.mesh.readiness("web").await?;
        ensure!(shown == [("vm".to_owned(), false), ("vm-3".to_owned(), true)].into(), "{shown:?}");
        Ok(())
    })
    .await?;
    ensure!(first.log().contains("no longer leading"), "the log must report the lost leadership:\n{}", first.log());

    second.terminate(STOP).await?;
    stage.mesh.set_ready("vm", true).await?;
    stage.held_by("first", SOON).await?;
    stage.mesh.shows("web", &[("vm", true), ("vm-3", true)]).await
}

/// It must write the changes that it received while it did not lead, because no other replica does.
#[tokio::test]
async fn a_leader_paused_past_the_renew_deadline_keeps_its_lease_and_catches_up() -> Result<()> {
    let stage = Stage::new().await?;
    let proxy = FaultProxy::start(&stage.control_plane).await?;
    let mut only = stage.manager_behind(&proxy, "only").await?;
    only.leads(LEASE, SOON).await?;
    stage.mesh.shows("web", &[("vm", true)]).await?;
    // When resumed, it receives the change well before it has renewed its Lease.
    proxy.inject(Rule::path("/leases/").method("PUT"), Action::Delay(Duration::from_millis(500)));
    only.pause()?;
    stage.mesh.set_ready("vm", false).await?;
    // The pause must be longer than the renew deadline, and too short to lose the Lease.
    tokio::time::sleep(RENEW_DEADLINE + Duration::from_millis(500)).await;
    only.resume()?;
    stage.mesh.shows("web", &[("vm", false)]).await?;
    ensure!(!only.log().contains("no longer leading"), "the Lease must not be lost:\n{}", only.log());
    Ok(())
}

/// Holds the first write after `prepare` at the proxy until the second replica leads and has made the same write, then
/// releases it. Returns the status of the late write.
async fn late_write(
    method: &str,
    prepare: impl AsyncFn(&Mesh) -> Result<()>,
    change: impl AsyncFn(&Mesh) -> Result<()>,
) -> Result<u16> {
    let stage = Stage::new().await?;
    let proxy = FaultProxy::start(&stage.control_plane).await?;
    let mut first = stage.manager_behind(&proxy, "first").await?;
    first.leads(LEASE, SOON).await?;
    stage.mesh.shows("web", &[("vm", true)]).await?;
    let second = stage.manager("second").await?;
    prepare(&stage.mesh).await?;
    let held = proxy.inject(Rule::path("/endpointslices").method(method).times(1), Action::Hold);
    change(&stage.mesh).await?;
    let place = eventually(SOON, "the write to be held", async || {
        let log = proxy.log();
        let held = |request: &RecordedRequest| request.method == method && request.path.contains("/endpointslices");
        log.iter().rposition(|request| held(request) && request.status.is_none()).context("no write is held")
    })
    .await?;
    // The connection stays open, as for a process that is not scheduled.
    first.pause()?;
    stage.held_by("second", EXPIRED).await?;
    stage.mesh.shows("web", &[("vm", false)]).await?;
    stage.mesh.shows("web-2", &[("vm-2", true)]).await?;
    // A change that is newer than the late write.
    stage.flip(true).await?;

    held.release();
    let status = eventually(SOON, "the late write to be answered", async || {
        proxy.log().get(place).and_then(|request| request.status).context("no response yet")
    })
    .await?;
    first.resume()?;
    stops_leading(&first, SOON).await?;
    holds(QUIET, "the slices to stay correct", async || {
        let shown = (stage.mesh.readiness("web").await?, stage.mesh.readiness("web-2").await?);
        ensure!(shown == ([("vm".to_owned(), true)].into(), [("vm-2".to_owned(), true)].into()), "{shown:?}");
        Ok(())
    })
    .await?;
    for service in ["web", "web-2"] {
        ensure!(stage.mesh.our_slices(service).await?.len() == 1, "{service} must have one slice");
    }
    ensure!(is_leading(&second).await, "the second replica lost the Lease");
    Ok(status)
}

#[tokio::test]
async fn an_update_that_arrives_after_that_of_the_next_leader_conflicts() -> Result<()> {
    let prepare = async |mesh: &Mesh| {
        mesh.put_service("web-2", json!({})).await?;
        mesh.put_workload("vm-2", "web-2", &["192.0.2.5"]).await?;
        mesh.shows("web-2", &[("vm-2", true)]).await
    };
    let status = late_write("PUT", prepare, async |mesh| mesh.set_ready("vm", false).await).await?;
    assert_eq!(status, 409);
    Ok(())
}

#[tokio::test]
async fn a_create_that_arrives_after_that_of_the_next_leader_fails() -> Result<()> {
    let prepare = async |mesh: &Mesh| {
        mesh.put_workload("vm-2", "web-2", &["192.0.2.5"]).await?;
        mesh.set_ready("vm", false).await?;
        mesh.shows("web", &[("vm", false)]).await
    };
    let status = late_write("POST", prepare, async |mesh| mesh.put_service("web-2", json!({})).await.map(drop)).await?;
    assert_eq!(status, 409);
    Ok(())
}

/// The leader is cut off from its Lease only, while it has a write to retry.
async fn lease_partition(action: Action) -> Result<()> {
    let stage = Stage::new().await?;
    let proxy = FaultProxy::start(&stage.control_plane).await?;
    let first = stage.manager_behind(&proxy, "first").await?;
    first.leads(LEASE, SOON).await?;
    stage.mesh.shows("web", &[("vm", true)]).await?;
    let second = stage.manager("second").await?;
    // Refused writes are retried, so the leader always has a pending write.
    let refused = proxy.inject(Rule::path("/endpointslices"), Action::Status { code: 503, retry_after: None });
    stage.mesh.set_ready("vm", false).await?;
    refused.is_hit(|hits| hits > 1).await?;
    refused.remove();
    stage.mesh.shows("web", &[("vm", false)]).await?;

    let partition = proxy.inject(Rule::path("/leases/"), action);
    let since = Instant::now();
    let refused = proxy.inject(Rule::path("/endpointslices"), Action::Status { code: 503, retry_after: None });
    // The leader writes until the renew deadline; its last write may need a moment to arrive. The Lease expires later.
    let (mut flips, mut ready) = (0, false);
    while since.elapsed() < RENEW_DEADLINE + SLACK {
        ready = !ready;
        stage.mesh.set_ready("vm", ready).await?;
        flips += 1;
    }
    ensure!(flips > 2 && refused.hits() > 0, "{flips} flips, {} writes", refused.hits());
    // Now it must have stopped by its own clock, before another replica may write.
    let written = slice_writes(&proxy);
    let quiet = async |ready: bool| {
        stage.mesh.set_ready("vm", ready).await?;
        let now = slice_writes(&proxy);
        ensure!(
            now == written,
            "{} writes past the deadline, {:?} after the partition",
            now - written,
            since.elapsed()
        );
        anyhow::Ok(())
    };
    eventually(EXPIRED, "the other replica to lead", async || {
        ready = !ready;
        if let Err(error) = quiet(ready).await {
            return Ok(Err(error));
        }
        ensure!(is_leading(&second).await, "it does not lead");
        Ok(Ok(()))
    })
    .await??;
    ensure!(!is_leading(&first).await, "the first replica still leads");
    serves(&first).await?;
    let (_, body) = first.get("/ready").await?;
    ensure!(body.contains("Lease linkerd/"), "/ready must name the Lease: {body}");
    stage.flip(!ready).await?;

    refused.remove();
    partition.remove();
    first.is_well(SOON).await?;
    holds(QUIET, "the first replica to follow", async || {
        ready = !ready;
        quiet(ready).await?;
        ensure!(!is_leading(&first).await && is_leading(&second).await, "the Lease changed its holder");
        Ok(())
    })
    .await?;
    stage.flip(!ready).await
}

#[tokio::test]
async fn a_leader_whose_lease_hangs_stops_before_it_expires_f16() -> Result<()> {
    lease_partition(Action::Hang).await
}

#[tokio::test]
async fn a_leader_whose_lease_is_refused_stops_before_it_expires_f16() -> Result<()> {
    lease_partition(Action::Status { code: 503, retry_after: None }).await
}
