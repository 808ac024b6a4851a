//! Leader election against client-go: a kube-scheduler that uses the same Lease.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Process, Signal, eventually, holds, mesh::SOON};

use super::{LEASE, NAMESPACE, STOP, Stage, serves, writes};

fn waits_for_the_lease(elector: &Process) -> Result<()> {
    let log = elector.log();
    ensure!(log.contains("lease is held by") || log.contains("ttempting to acquire leader lease"), "{log}");
    Ok(())
}

#[tokio::test]
async fn the_manager_waits_for_a_client_go_holder_and_takes_the_released_lease() -> Result<()> {
    let stage = Stage::new().await?;
    let mut elector = stage.control_plane.start_elector(NAMESPACE, LEASE)?;
    let held = eventually(Duration::from_secs(60), "the elector to hold the Lease", async || {
        let record = stage.record().await?;
        ensure!(record.holder_identity.as_ref().is_some_and(|holder| !holder.is_empty()), "{record:?}");
        Ok(record)
    })
    .await?;
    let manager = stage.manager("operator").await?;
    // Longer than the Lease duration, so the elector renews the Lease in this time.
    holds(super::DURATION + Duration::from_secs(1), "the manager to wait", async || {
        serves(&manager).await?;
        ensure!(writes(&manager).await? == 0.0, "the manager wrote");
        ensure!(stage.record().await?.holder_identity == held.holder_identity, "the Lease changed its holder");
        ensure!(stage.mesh.our_slices("web").await?.is_empty(), "a slice was written");
        Ok(())
    })
    .await?;

    let version = stage.version().await?;
    elector.signal(Signal::TERM)?;
    elector.wait(STOP).await?;
    let record = stage.is_released(&version, held.holder_identity.as_deref().unwrap_or_default()).await?;
    assert_eq!(record.holder_identity.as_deref(), Some("operator"));
    assert_eq!(record.lease_transitions, held.lease_transitions.map(|transitions| transitions + 1));
    manager.leads(LEASE, SOON).await?;
    stage.mesh.shows("web", &[("vm", true)]).await
}

#[tokio::test]
async fn a_client_go_follower_waits_for_the_manager_and_takes_the_released_lease() -> Result<()> {
    let stage = Stage::new().await?;
    let mut manager = stage.manager("operator").await?;
    manager.leads(LEASE, SOON).await?;
    let elector = stage.control_plane.start_elector(NAMESPACE, LEASE)?;
    eventually(Duration::from_secs(60), "the elector to wait", async || waits_for_the_lease(&elector)).await?;
    holds(super::DURATION + Duration::from_secs(1), "the manager to keep the Lease", async || {
        ensure!(stage.holder().await? == "operator", "its holder is now {}", stage.holder().await?);
        Ok(())
    })
    .await?;
    stage.mesh.shows("web", &[("vm", true)]).await?;
    let (version, before) = (stage.version().await?, stage.record().await?);

    manager.terminate(STOP).await?;
    let record = stage.is_released(&version, "operator").await?;
    assert_eq!(record.lease_transitions, before.lease_transitions.map(|transitions| transitions + 1));
    Ok(())
}
