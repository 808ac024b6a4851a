//! Without a change, the manager sends no request.

use anyhow::{Result, ensure};
use e2e::{Manager, eventually, holds, mesh::SOON};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{Installation, QUIET, TRUST_ROOTS, WELL};

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

/// The controller reads none of these labels and annotations.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_metadata_cause_no_reconcile() -> Result<()> {
    let (installation, manager) = Installation::adopted(json!({"proxy": {"accessLog": "json"}})).await?;
    installation.expect_event("mesh", "LinkerdConfigUpdated").await?;
    let before = settled(&manager).await?;
    for number in 0..50 {
        let touched = json!({"touched": number.to_string()});
        let touch = json!({"metadata": {"annotations": touched, "labels": touched}});
        let touch_all = Patch::Merge(&touch);
        installation.configs.patch(&installation.full("mesh"), &PatchParams::default(), &touch_all).await?;
        installation.maps.patch(TRUST_ROOTS, &PatchParams::default(), &touch_all).await?;
        installation.patch_map("kubectl-annotate", touch).await?;
    }
    holds(QUIET, "that nothing is reconciled", async || {
        let now = reconciles(&manager).await;
        ensure!(now == before, "{before} reconciles, then {now}");
        Ok(())
    })
    .await?;
    // The controller still watches: it reads annotations with this prefix.
    let touched = json!({"metadata": {"annotations": {"config.linkerd.io/touched": "last"}}});
    installation.patch_map("kubectl-annotate", touched).await?;
    eventually(SOON, "a reconcile", async || {
        ensure!(reconciles(&manager).await > before, "no reconcile yet");
        Ok(())
    })
    .await
}

/// Waits until no more reconciles begin, and returns the number of finished ones. Our own write causes a reconcile too.
async fn settled(manager: &Manager) -> Result<f64> {
    let mut seen = reconciles(manager).await;
    eventually(SOON, "the controller to be idle", async || {
        tokio::time::sleep(QUIET / 2).await;
        let before = std::mem::replace(&mut seen, reconciles(manager).await);
        ensure!(seen > 0.0 && seen == before, "{before} reconciles, then {seen}");
        Ok(seen)
    })
    .await
}

/// The number of finished reconciles.
async fn reconciles(manager: &Manager) -> f64 {
    let queue = [("name", "linkerdconfig_controller_workqueue")];
    manager.metric("workqueue_work_duration_seconds_count", &queue).await.unwrap_or_default()
}
