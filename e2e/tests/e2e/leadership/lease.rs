//! A Lease that is deleted or edited by hand, or shared under one identity.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{eventually, holds, mesh::SOON};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::{LEASE, RETRY, Stage, is_leading, signed, writes};

#[tokio::test]
async fn a_deleted_lease_is_recreated_and_one_replica_leads_f17() -> Result<()> {
    let stage = Stage::new().await?;
    let replicas = stage.pair().await?;
    for round in 0..3 {
        stage.leases.delete(LEASE, &DeleteParams::default()).await?;
        // Either replica may recreate the Lease; the other detects the change with its next attempt.
        let one_leads = async || {
            let leading = (is_leading(&replicas.0).await, is_leading(&replicas.1).await);
            let holder = stage.holder().await?;
            ensure!(
                matches!((leading, &*holder), ((true, false), "first") | ((false, true), "second")),
                "{leading:?} {holder}"
            );
            Ok(())
        };
        eventually(SOON, "one replica to lead", one_leads).await?;
        stage.flip(round % 2 == 1).await?;
        holds(2 * RETRY, "one replica to lead", one_leads).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_lease_edited_to_another_holder_stops_the_leader_until_it_expires_f17() -> Result<()> {
    /// Longer than the test needs to see that no replica leads.
    const THEIRS: Duration = Duration::from_secs(10);
    let stage = Stage::new().await?;
    let (first, second) = stage.pair().await?;
    let before = stage.record().await?;
    let patch = json!({"spec": {"holderIdentity": "other-holder", "leaseDurationSeconds": THEIRS.as_secs()}});
    stage.leases.patch(LEASE, &PatchParams::default(), &Patch::Merge(patch)).await?;
    let edited = k8s_openapi::jiff::Timestamp::now();
    // The leader stops at its next renewal, which is refused, and not only when the other Lease expires.
    eventually(THEIRS / 2, "no replica to lead", async || {
        ensure!(!is_leading(&first).await && !is_leading(&second).await, "a replica leads");
        Ok(())
    })
    .await?;
    ensure!(first.log().contains("another holder has the Lease"), "the log must have the reason:\n{}", first.log());
    let written = writes(&first).await? + writes(&second).await?;
    stage.mesh.set_ready("vm", false).await?;
    ensure!(stage.holder().await? == "other-holder", "the other holder must still have the Lease");
    let now = writes(&first).await? + writes(&second).await?;
    ensure!(now == written, "no replica must write");

    let record = eventually(SOON, "a replica to hold the Lease again", async || {
        let record = stage.record().await?;
        ensure!(record.holder_identity.as_deref() != Some("other-holder"), "{record:?}");
        Ok(record)
    })
    .await?;
    let waited = record.acquire_time.map(|acquired| acquired.0.duration_since(edited)).unwrap_or_default();
    ensure!(waited >= signed(THEIRS)?, "taken after {waited:?}");
    assert_eq!(record.lease_transitions, before.lease_transitions.map(|transitions| transitions + 1));
    stage.mesh.shows("web", &[("vm", false)]).await
}

/// The Lease cannot distinguish the two, so both lead, as with client-go. Their writes are still correct.
#[tokio::test]
async fn two_replicas_under_one_identity_do_no_harm_f17() -> Result<()> {
    let stage = Stage::new().await?;
    let (mut one, other) = (stage.manager("same").await?, stage.manager("same").await?);
    one.leads(LEASE, SOON).await?;
    other.leads(LEASE, SOON).await?;
    let mut expected = vec![("vm".to_owned(), true)];
    for round in 0..6 {
        let name = format!("vm-{round}");
        stage.mesh.put_workload(&name, "web", &[&format!("192.0.2.{}", 10 + round)]).await?;
        expected.push((name, true));
        for ready in [false, true] {
            stage.mesh.set_ready("vm", ready).await?;
        }
    }
    let expected: Vec<(&str, bool)> = expected.iter().map(|(name, ready)| (name.as_str(), *ready)).collect();
    stage.mesh.shows("web", &expected).await?;
    ensure!(stage.mesh.our_slices("web").await?.len() == 1, "web must have one slice");
    // Each continues without the other. A container that restarts under the name of its Pod relies on this.
    one.kill().await?;
    stage.mesh.put_service("later", json!({})).await?;
    stage.mesh.put_workload("vm-later", "later", &["192.0.2.30"]).await?;
    stage.mesh.shows("later", &[("vm-later", true)]).await
}
