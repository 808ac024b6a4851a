//! The same Lease in the hands of client-go: a kube-scheduler, told to elect on it.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Process, Signal, eventually, holds, mesh::SOON};

use super::{LEASE, NAMESPACE, STOP, Stage, leads, serves, writes};

/// From the end of one holder to the next one's beginning: looks are a second apart, up to 2.2 of them with client-go's jitter.
const PROMPTLY: Duration = Duration::from_millis(3500);

fn waits_for_the_lease(elector: &Process) -> Result<()> {
    let log = elector.log();
    ensure!(log.contains("lease is held by") || log.contains("ttempting to acquire leader lease"), "{log}");
    Ok(())
}

#[tokio::test]
async fn it_waits_for_a_holder_of_client_gos_and_takes_what_that_releases() -> Result<()> {
    let stage = Stage::new().await?;
    let mut elector = stage.control_plane.start_elector(NAMESPACE, LEASE)?;
    let held = eventually(Duration::from_secs(60), "the elector to hold the Lease", async || {
        let record = stage.record().await?;
        ensure!(record.holder_identity.as_ref().is_some_and(|holder| !holder.is_empty()), "{record:?}");
        Ok(record)
    })
    .await?;
    let manager = stage.manager("operator").await?;
    // Longer than the Lease, so that it is renewed meanwhile.
    holds(super::DURATION + Duration::from_secs(1), "it to wait", async || {
        serves(&manager).await?;
        ensure!(writes(&manager).await? == 0.0, "it wrote");
        ensure!(stage.record().await?.holder_identity == held.holder_identity, "the Lease changed hands");
        ensure!(stage.mesh.our_slices("web").await?.is_empty(), "there is a slice");
        Ok(())
    })
    .await?;

    elector.signal(Signal::TERM)?;
    elector.wait(STOP).await?;
    // client-go's scheduler releases what it holds when it is told to end, so there is nothing to wait out.
    let record = stage.held_by("operator", PROMPTLY).await?;
    assert_eq!(record.lease_transitions, held.lease_transitions.map(|transitions| transitions + 1));
    leads(&manager, SOON).await?;
    stage.mesh.shows("web", &[("vm", true)]).await
}

#[tokio::test]
async fn a_follower_of_client_gos_waits_for_it_and_takes_what_it_releases() -> Result<()> {
    let stage = Stage::new().await?;
    let mut manager = stage.manager("operator").await?;
    leads(&manager, SOON).await?;
    let elector = stage.control_plane.start_elector(NAMESPACE, LEASE)?;
    eventually(Duration::from_secs(60), "the elector to wait", async || waits_for_the_lease(&elector)).await?;
    holds(super::DURATION + Duration::from_secs(1), "the Lease to stay ours", async || {
        ensure!(stage.holder().await? == "operator", "it went to {}", stage.holder().await?);
        Ok(())
    })
    .await?;
    stage.mesh.shows("web", &[("vm", true)]).await?;
    let before = stage.record().await?;

    manager.terminate(STOP).await?;
    let record = eventually(PROMPTLY, "the elector to hold the Lease", async || {
        let record = stage.record().await?;
        let holder = record.holder_identity.clone().unwrap_or_default();
        ensure!(!holder.is_empty() && holder != "operator", "{record:?}");
        Ok(record)
    })
    .await?;
    assert_eq!(record.lease_transitions, before.lease_transitions.map(|transitions| transitions + 1));
    Ok(())
}
