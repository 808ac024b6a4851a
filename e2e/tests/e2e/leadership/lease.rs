//! The Lease in other hands.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{eventually, holds, mesh::SOON};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::{LEASE, RETRY, SLACK, Stage, is_leading, leads, signed, writes};

#[tokio::test]
async fn a_lease_deleted_by_hand_is_made_again_and_one_replica_leads_f17() -> Result<()> {
    let stage = Stage::new().await?;
    let replicas = stage.pair().await?;
    for round in 0..3 {
        stage.leases.delete(LEASE, &DeleteParams::default()).await?;
        // Either may be the first to make it; the other one notices when it looks at it next.
        let one_leads = async || {
            let leading = (is_leading(&replicas.0).await, is_leading(&replicas.1).await);
            let holder = stage.holder().await?;
            ensure!(
                matches!((leading, &*holder), ((true, false), "first") | ((false, true), "second")),
                "{leading:?} {holder}"
            );
            Ok(())
        };
        eventually(2 * RETRY + SLACK, "one replica to lead", one_leads).await?;
        stage.flip(round % 2 == 1).await?;
        holds(2 * RETRY, "one replica to lead", one_leads).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_lease_given_to_another_holder_by_hand_stops_the_leader_at_once_for_as_long_as_it_says_f17() -> Result<()> {
    const THEIRS: Duration = Duration::from_secs(4);
    let stage = Stage::new().await?;
    let (first, second) = stage.pair().await?;
    let before = stage.record().await?;
    let patch = json!({"spec": {"holderIdentity": "somebody", "leaseDurationSeconds": THEIRS.as_secs()}});
    stage.leases.patch(LEASE, &PatchParams::default(), &Patch::Merge(patch)).await?;
    let edited = k8s_openapi::jiff::Timestamp::now();
    // With its next renewal, which is refused.
    eventually(RETRY + Duration::from_millis(500), "nobody to lead", async || {
        ensure!(!is_leading(&first).await && !is_leading(&second).await, "somebody leads");
        Ok(())
    })
    .await?;
    ensure!(first.log().contains("somebody else holds it"), "it says why:\n{}", first.log());
    let written = writes(&first).await? + writes(&second).await?;
    stage.mesh.set_ready("vm", false).await?;
    ensure!(stage.holder().await? == "somebody", "it is theirs still");
    let now = writes(&first).await? + writes(&second).await?;
    ensure!(now == written, "nobody writes");

    let record = eventually(SOON, "a replica to hold the Lease again", async || {
        let record = stage.record().await?;
        ensure!(record.holder_identity.as_deref() != Some("somebody"), "{record:?}");
        Ok(record)
    })
    .await?;
    // They begin to count when they see it, which is when they look next.
    let waited = record.acquire_time.map(|acquired| acquired.0.duration_since(edited)).unwrap_or_default();
    ensure!(waited >= signed(THEIRS)? && waited <= signed(THEIRS + 2 * RETRY + SLACK)?, "taken after {waited:?}");
    assert_eq!(record.lease_transitions, before.lease_transitions.map(|transitions| transitions + 1));
    stage.mesh.shows("web", &[("vm", false)]).await
}

/// Nobody can tell the two apart, so both lead, as they would with client-go. What they write is right all the same.
#[tokio::test]
async fn two_replicas_under_one_identity_do_no_harm_f17() -> Result<()> {
    let stage = Stage::new().await?;
    let (mut one, other) = (stage.manager("same").await?, stage.manager("same").await?);
    leads(&one, SOON).await?;
    leads(&other, SOON).await?;
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
    ensure!(stage.mesh.our_slices("web").await?.len() == 1, "one slice");
    // Each goes on without the other, which is what a container that starts again under its pod's name relies on.
    one.kill().await?;
    stage.mesh.put_service("later", json!({})).await?;
    stage.mesh.put_workload("vm-later", "later", &["192.0.2.30"]).await?;
    stage.mesh.shows("later", &[("vm-later", true)]).await
}
