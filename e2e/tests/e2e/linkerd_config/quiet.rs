//! Nothing to do is nothing sent.

use anyhow::{Result, ensure};
use e2e::holds;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{Installation, QUIET, TRUST_ROOTS, WELL};

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_reconciles_without_a_reason_send_nothing() -> Result<()> {
    let installation = Installation::new().await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    let status = installation.reaches("mesh", &WELL).await?;
    for reason in ["LinkerdConfigUpdated", "ConfigMapUpdated", "TrustAnchorsReused"] {
        installation.tells("mesh", reason).await?;
    }
    let sent = || {
        let log = installation.proxy.log().into_iter();
        log.filter(|request| !request.path.contains("/leases") && !request.path.contains("watch=true"))
            .collect::<Vec<_>>()
    };
    let before = sent();
    let (cpu, reconciles) = (manager.cpu_time()?, reconciles(&manager).await);
    for number in 0..100 {
        let touch = Patch::Merge(json!({"metadata": {"annotations": {"touched": number.to_string()}}}));
        installation.configs.patch(&installation.full("mesh"), &PatchParams::default(), &touch).await?;
        installation.maps.patch(TRUST_ROOTS, &PatchParams::default(), &touch).await?;
    }
    holds(QUIET, "that nothing is sent", async || {
        let after = sent();
        ensure!(after.len() == before.len(), "{:?}", &after[before.len()..]);
        Ok(())
    })
    .await?;
    let cost = manager.cpu_time()? - cpu;
    println!(
        "200 changes that mean nothing cost {cost:?} of CPU; reconciles: {reconciles:?} then {:?}",
        self::reconciles(&manager).await
    );
    assert_eq!(installation.reaches("mesh", &WELL).await?, status);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_the_config_map_that_mean_nothing_send_nothing() -> Result<()> {
    let installation = Installation::new().await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    installation.reaches("mesh", &WELL).await?;
    for reason in ["LinkerdConfigUpdated", "ConfigMapUpdated", "TrustAnchorsReused"] {
        installation.tells("mesh", reason).await?;
    }
    let before = installation.writes("");
    for number in 0..50 {
        let labels = json!({"metadata": {"labels": {"touched": number.to_string()}}});
        installation.patch_map("kubectl-label", labels).await?;
    }
    holds(QUIET, "that nothing is written", async || {
        let after = installation.writes("");
        ensure!(after.len() == before.len(), "{:?}", &after[before.len()..]);
        Ok(())
    })
    .await?;
    drop(manager);
    Ok(())
}

async fn reconciles(manager: &e2e::Manager) -> Option<f64> {
    manager.metric("workqueue_adds_total", &[]).await
}
