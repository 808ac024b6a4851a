//! Without a change, the manager sends no request.

use anyhow::{Result, ensure};
use e2e::{Manager, eventually, holds, mesh::SOON};
use serde_json::json;

use super::{Installation, QUIET, WELL};

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_reconciles_without_a_change_send_no_request() -> Result<()> {
    let (installation, manager) = Installation::adopted(json!({"proxy": {"accessLog": "json"}})).await?;
    let status = installation.reaches("mesh", &WELL).await?;
    for reason in ["LinkerdConfigUpdated", "ConfigMapUpdated", "TrustAnchorsReused"] {
        installation.expect_event("mesh", reason).await?;
    }
    let sent = || {
        let log = installation.proxy.log().into_iter();
        log.filter(|request| !request.path.contains("/leases") && !request.path.contains("watch=true"))
            .collect::<Vec<_>>()
    };
    let before = sent();
    for number in 0..100 {
        let seen = reconciles(&manager).await;
        // The controller reads annotations with this prefix, so it reconciles. This one has no meaning.
        let touched = json!({"metadata": {"annotations": {"config.linkerd.io/touched": number.to_string()}}});
        installation.patch_map("kubectl-annotate", touched).await?;
        eventually(SOON, "a reconcile", async || {
            ensure!(reconciles(&manager).await > seen, "no reconcile yet");
            Ok(())
        })
        .await?;
    }
    holds(QUIET, "that nothing is sent", async || {
        let after = sent();
        ensure!(after.len() == before.len(), "{:?}", &after[before.len()..]);
        Ok(())
    })
    .await?;
    assert_eq!(installation.reaches("mesh", &WELL).await?, status);
    Ok(())
}

/// The number of finished reconciles.
async fn reconciles(manager: &Manager) -> f64 {
    let queue = [("name", "linkerdconfig_controller_workqueue")];
    manager.metric("workqueue_work_duration_seconds_count", &queue).await.unwrap_or_default()
}
