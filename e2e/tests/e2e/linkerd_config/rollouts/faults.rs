//! An API server that fails during a rollout: retries restart no workload twice.

use anyhow::{Result, ensure};
use e2e::{Action, Rule, eventually, mesh::SOON};
use serde_json::json;

use super::Mesh;

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_restart_is_reported_and_retried_until_it_is_made_once() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let three = [mesh.deployment("a", 1).await?, mesh.deployment("b", 1).await?, mesh.deployment("c", 1).await?];
    mesh.adopt(json!({"rollout": {"maxConcurrent": 3, "maxConcurrentPerNamespace": 3}})).await?;
    let refused = Action::Status { code: 500, retry_after: None };
    let fault = mesh.installation.proxy.inject(Rule::path("/deployments/").method("PATCH"), refused);
    mesh.configure(1).await?;
    mesh.rollout_is("False/WriteFailed").await?;
    let (before, hits) = (std::time::Instant::now(), fault.hits());
    tokio::time::sleep(super::QUIET).await;
    let more = fault.hits() - hits;
    ensure!(more < 40, "{more} attempts within {:?}", before.elapsed());
    mesh.no_more_than(0).await?;
    fault.remove();
    let marker = mesh.is_complete().await?;
    for workload in &three {
        workload.has(1, &marker).await?;
    }
    assert_eq!(mesh.counts(three.each_ref())?, [1, 1, 1]);
    Ok(())
}

/// Responses are lost, watches are cut, and some writes conflict.
#[tokio::test(flavor = "multi_thread")]
async fn each_workload_is_restarted_once_despite_cut_connections() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let slow = json!({"spec": {"minReadySeconds": 1}});
    let three = [
        mesh.deployment_with("a", 1, slow.clone()).await?,
        mesh.deployment_with("b", 1, slow.clone()).await?,
        mesh.deployment_with("c", 1, slow).await?,
    ];
    mesh.adopt(json!({})).await?;
    let patches = Rule::path("/deployments/").method("PATCH");
    let lost = mesh.installation.proxy.inject(patches.clone().times(2), Action::After);
    let conflict = Action::Status { code: 409, retry_after: None };
    let conflicts = mesh.installation.proxy.inject(patches.skip(1).times(2), conflict);
    mesh.configure(1).await?;
    for restarts in 1..=3 {
        eventually(super::DEADLINE, "the next restart", async || {
            ensure!(mesh.restarts.all()?.len() >= restarts, "{:?}", mesh.restarts.all()?);
            Ok(())
        })
        .await?;
        mesh.installation.proxy.cut_all();
    }
    let marker = mesh.is_complete().await?;
    for workload in &three {
        workload.has(1, &marker).await?;
    }
    assert_eq!(mesh.counts(three.each_ref())?, [1, 1, 1]);
    assert_eq!(mesh.restarts.most_at_once("")?, 1);
    assert_eq!((lost.hits(), conflicts.hits()), (2, 2));
    for workload in &three {
        eventually(SOON, "rollout-state=updated", async || {
            let state = workload.annotation("rollout-state").await?;
            ensure!(state.as_deref() == Some("updated"), "{workload}: {state:?}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}
