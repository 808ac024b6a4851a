//! Annotations that a tenant writes on workloads of its own namespace affect only these workloads.

use anyhow::{Context, Result};
use e2e::workload::{self, Kind, NEVER_READY, opted_in};
use serde_json::{Value, json};

use super::{RolloutRig, put_over};

/// The annotations of a restart that failed because a Pod started without a proxy.
fn failed(key: &str) -> Value {
    json!({"metadata": {"annotations": {
        "config.linkerd.io/rollout-hash": key,
        "config.linkerd.io/rollout-state": "failed",
        "config.linkerd.io/rollout-started-at": "2020-01-01T00:00:00Z",
        "config.linkerd.io/rollout-message": format!("Uninjected: {}", "x".repeat(200 * 1024)),
    }}})
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_and_copied_failures_neither_halt_the_rollout_nor_roll_the_configuration_back() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let web = mesh.deployment("web", 1).await?;
    let late = mesh.put(&mesh.other, Kind::Deployment, "late", 1, json!({})).await?;
    mesh.adopt(json!({"rollout": {"onFailure": "Rollback"}})).await?;
    mesh.configure(1).await?;
    let marker = mesh.is_complete().await?;
    let document = mesh.installation.document().await?;
    let key = web.annotation("rollout-hash").await?.context("no rollout-hash")?;

    // Two Deployments without Pods, and a copy of a workload that failed: its Pod is not ready.
    let client = &mesh.installation.client;
    for name in ["forged-a", "forged-b"] {
        let mut object = opted_in();
        put_over(&mut object, &failed(&key));
        workload::put(client, &mesh.app, Kind::Deployment, name, 0, object).await?;
    }
    let original = web.object().await?;
    let mut copy = opted_in();
    put_over(
        &mut copy,
        &json!({
            "metadata": {"annotations": original.metadata.annotations},
            "spec": {"template": {
                "metadata": {"annotations": {"config.linkerd.io/restarted-for": key}},
                "spec": {"containers": [{"name": "copy", "image": format!("copy:{NEVER_READY}")}]},
            }},
        }),
    );
    put_over(&mut copy, &failed(&key));
    workload::put(client, &mesh.app, Kind::Deployment, "copy", 1, copy).await?;

    // A workload that opts in now is restarted for the same configuration.
    late.patch(opted_in()).await?;
    late.gets(1, &marker).await?;
    mesh.installation.document_is(&document).await?;
    let status = mesh.is_complete().await?;
    assert_eq!(status, marker);
    let rollout = mesh.shows(json!({"workloads": {"failed": 0}})).await?;
    assert!(rollout["failures"].is_null(), "{rollout}");
    assert_eq!(mesh.installation.event_count("mesh", "RolloutHalted").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_that_did_not_opt_in_cannot_delay_the_rollout() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let web = mesh.deployment("web", 1).await?;
    mesh.adopt(json!({})).await?;
    // It is never complete, and its restart begins in the future.
    let stuck = json!({
        "metadata": {"annotations": {
            "config.linkerd.io/rollout-hash": "any",
            "config.linkerd.io/rollout-state": "updating",
            "config.linkerd.io/rollout-started-at": "2100-01-01T00:00:00Z",
        }},
        "spec": {"template": {"spec": {"containers": [{"name": "stuck", "image": format!("stuck:{NEVER_READY}")}]}}},
    });
    workload::put(&mesh.installation.client, &mesh.other, Kind::Deployment, "stuck", 1, stuck).await?;
    mesh.shows(json!({"pods": {"meshed": 2}})).await?;
    mesh.configure(1).await?;
    let marker = mesh.is_complete().await?;
    web.has(1, &marker).await?;
    Ok(())
}
