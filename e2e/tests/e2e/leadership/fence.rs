//! A leader that is late, or cut off from its Lease: it stops by itself, and what slips through does no harm.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{
    Action, FaultProxy, Rule, eventually,
    fault_proxy::Request,
    holds,
    mesh::{Mesh, SOON},
};
use serde_json::json;

use super::{
    EXPIRED, RENEW_DEADLINE, RETRY, SLACK, STOP, Stage, follows, is_leading, leads, serves, slice_writes, writes,
};

/// Long enough for a write that should not come to come.
const QUIET: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_leader_that_stood_still_past_its_lease_follows_and_can_lead_again_f16() -> Result<()> {
    let stage = Stage::new().await?;
    let (mut first, mut second) = stage.pair().await?;
    first.pause()?;
    stage.mesh.set_ready("vm", false).await?;
    stage.mesh.put_workload("vm-2", "web", &["192.0.2.5"]).await?;
    stage.held_by("second", EXPIRED).await?;
    stage.mesh.shows("web", &[("vm", false), ("vm-2", true)]).await?;
    // What the first one last knew is wrong by now in each of these.
    stage.mesh.delete_workload("vm-2").await?;
    stage.mesh.put_workload("vm-3", "web", &["192.0.2.6"]).await?;
    stage.mesh.shows("web", &[("vm", false), ("vm-3", true)]).await?;

    first.resume()?;
    follows(&first, RETRY + SLACK).await?;
    let tried = writes(&first).await?;
    holds(QUIET, "the late leader to follow", async || {
        serves(&first).await?;
        ensure!(writes(&first).await? == tried && !is_leading(&first).await, "it wrote");
        ensure!(is_leading(&second).await, "no flapping");
        let shown = stage.mesh.readiness("web").await?;
        ensure!(shown == [("vm".to_owned(), false), ("vm-3".to_owned(), true)].into(), "{shown:?}");
        Ok(())
    })
    .await?;
    ensure!(first.log().contains("no longer leading"), "it says so:\n{}", first.log());

    second.terminate(STOP).await?;
    stage.mesh.set_ready("vm", true).await?;
    stage.held_by("first", SOON).await?;
    stage.mesh.shows("web", &[("vm", true), ("vm-3", true)]).await
}

/// Changes that it heard of in this while were nobody's to write, and nobody else will.
#[tokio::test]
async fn a_leader_that_could_not_write_for_a_while_and_kept_its_lease_catches_up() -> Result<()> {
    let stage = Stage::new().await?;
    let proxy = FaultProxy::start(&stage.control_plane).await?;
    let mut only = stage.manager_behind(&proxy, "only").await?;
    leads(&only, SOON).await?;
    stage.mesh.shows("web", &[("vm", true)]).await?;
    // On its return it hears of the change well before it has renewed its Lease.
    proxy.inject(Rule::path("/leases/").method("PUT"), Action::Delay(Duration::from_millis(500)));
    only.pause()?;
    stage.mesh.set_ready("vm", false).await?;
    // The pause itself is what is tested: longer than the renew deadline, shorter than it takes to lose the Lease.
    tokio::time::sleep(RENEW_DEADLINE + Duration::from_millis(500)).await;
    only.resume()?;
    stage.mesh.shows("web", &[("vm", false)]).await?;
    ensure!(!only.log().contains("no longer leading"), "it kept the Lease:\n{}", only.log());
    Ok(())
}

/// Has the first write after `prepare` wait at the proxy until the second replica leads and has written the same, then lets
/// it go. Returns what the API server said to it.
async fn late_write(
    method: &str,
    prepare: impl AsyncFn(&Mesh) -> Result<()>,
    change: impl AsyncFn(&Mesh) -> Result<()>,
) -> Result<u16> {
    let stage = Stage::new().await?;
    let proxy = FaultProxy::start(&stage.control_plane).await?;
    let mut first = stage.manager_behind(&proxy, "first").await?;
    leads(&first, SOON).await?;
    stage.mesh.shows("web", &[("vm", true)]).await?;
    let second = stage.manager("second").await?;
    prepare(&stage.mesh).await?;
    let held = proxy.inject(Rule::path("/endpointslices").method(method).times(1), Action::Hold);
    change(&stage.mesh).await?;
    let place = eventually(SOON, "the write to be held", async || {
        let log = proxy.log();
        let held = |request: &Request| request.method == method && request.path.contains("/endpointslices");
        log.iter().rposition(|request| held(request) && request.status.is_none()).context("it is not")
    })
    .await?;
    // Its connection stays open, as of a process that is not scheduled.
    first.pause()?;
    stage.held_by("second", EXPIRED).await?;
    stage.mesh.shows("web", &[("vm", false)]).await?;
    stage.mesh.shows("web-2", &[("vm-2", true)]).await?;
    // Something newer than what the late write knows.
    stage.flip(true).await?;

    held.release();
    let answer = eventually(SOON, "the late write to be answered", async || {
        proxy.log().get(place).and_then(|request| request.status).context("no answer yet")
    })
    .await?;
    first.resume()?;
    follows(&first, RETRY + SLACK).await?;
    holds(QUIET, "the slices to be right", async || {
        let shown = (stage.mesh.readiness("web").await?, stage.mesh.readiness("web-2").await?);
        ensure!(shown == ([("vm".to_owned(), true)].into(), [("vm-2".to_owned(), true)].into()), "{shown:?}");
        Ok(())
    })
    .await?;
    for service in ["web", "web-2"] {
        ensure!(stage.mesh.our_slices(service).await?.len() == 1, "{service} has one slice");
    }
    ensure!(is_leading(&second).await, "no flapping");
    Ok(answer)
}

#[tokio::test]
async fn an_update_that_arrives_after_the_next_leaders_is_a_conflict() -> Result<()> {
    let prepare = async |mesh: &Mesh| {
        mesh.put_service("web-2", json!({})).await?;
        mesh.put_workload("vm-2", "web-2", &["192.0.2.5"]).await?;
        mesh.shows("web-2", &[("vm-2", true)]).await
    };
    let answer = late_write("PUT", prepare, async |mesh| mesh.set_ready("vm", false).await).await?;
    assert_eq!(answer, 409);
    Ok(())
}

#[tokio::test]
async fn a_slice_that_arrives_after_the_next_leaders_exists_already() -> Result<()> {
    let prepare = async |mesh: &Mesh| {
        mesh.put_workload("vm-2", "web-2", &["192.0.2.5"]).await?;
        mesh.set_ready("vm", false).await?;
        mesh.shows("web", &[("vm", false)]).await
    };
    let answer = late_write("POST", prepare, async |mesh| mesh.put_service("web-2", json!({})).await.map(drop)).await?;
    assert_eq!(answer, 409);
    Ok(())
}

/// The leader loses its way to the Lease and nothing else, while it has a write to repeat.
async fn lease_partition(action: Action) -> Result<()> {
    let stage = Stage::new().await?;
    let proxy = FaultProxy::start(&stage.control_plane).await?;
    let first = stage.manager_behind(&proxy, "first").await?;
    leads(&first, SOON).await?;
    stage.mesh.shows("web", &[("vm", true)]).await?;
    let second = stage.manager("second").await?;
    // Refused writes are repeated, so that there is always one about to be made.
    let refused = proxy.inject(Rule::path("/endpointslices"), Action::Status { code: 503, retry_after: None });
    stage.mesh.set_ready("vm", false).await?;
    eventually(SOON, "retries", async || {
        ensure!(refused.hits() > 1, "{} refused", refused.hits());
        Ok(())
    })
    .await?;
    refused.remove();
    stage.mesh.shows("web", &[("vm", false)]).await?;

    let partition = proxy.inject(Rule::path("/leases/"), action);
    let since = Instant::now();
    let refused = proxy.inject(Rule::path("/endpointslices"), Action::Status { code: 503, retry_after: None });
    // It goes on as long as it may; what it begins last may need a moment to arrive ...
    let (mut flips, mut ready) = (0, false);
    while since.elapsed() < RENEW_DEADLINE + Duration::from_millis(300) {
        ready = !ready;
        stage.mesh.set_ready("vm", ready).await?;
        flips += 1;
    }
    ensure!(flips > 2 && refused.hits() > 0, "{flips} flips, {} writes", refused.hits());
    ensure!(stage.holder().await? == "first", "the Lease is still its own");
    // ... and has stopped, by its own clock, while nobody else may write yet.
    let written = slice_writes(&proxy);
    let quiet = async |ready: bool| {
        stage.mesh.set_ready("vm", ready).await?;
        let now = slice_writes(&proxy);
        ensure!(
            now == written,
            "{} writes past the deadline, {:?} after the last renewal",
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
        ensure!(is_leading(&second).await, "it does not");
        Ok(Ok(()))
    })
    .await??;
    ensure!(!is_leading(&first).await, "one leader");
    serves(&first).await?;
    let (_, body) = first.get("/ready").await?;
    ensure!(body.contains("Lease linkerd/"), "it says what it lacks: {body}");
    stage.flip(!ready).await?;

    refused.remove();
    partition.remove();
    eventually(SOON, "/ready to say nothing more", async || {
        let (_, body) = first.get("/ready").await?;
        ensure!(body == "ready\n", "{body}");
        Ok(())
    })
    .await?;
    holds(QUIET, "the first one to follow", async || {
        ready = !ready;
        quiet(ready).await?;
        ensure!(!is_leading(&first).await && is_leading(&second).await, "no flapping");
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
