//! Two controllers that revert each other: neither wins, and the load on the API server is bounded.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::{eventually, holds, manager::BACKED_OFF};
use serde_json::json;

use super::{HELM, Installation};

const STALLED: [&str; 4] =
    ["Accepted=True/Accepted", "ConfigMapSynced=False/Drifted", "Ready=False/Drifted", "Stalled=True/RepeatedDrift"];

const REVERTED_BY_INSTALLER: [&str; 4] = [
    "Accepted=True/Accepted",
    "ConfigMapSynced=False/InstallerReverts",
    "Ready=False/InstallerReverts",
    "Stalled=True/InstallerReverts",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_persistent_competing_controller_is_named_and_reverted_with_backoff() -> Result<()> {
    let (installation, manager) = Installation::adopted(json!({"proxy": {"accessLog": "json"}})).await?;
    let declared = installation.helm_with(json!({"proxy": {"accessLog": "json"}})).await?;
    let theirs = installation.helm_with(json!({"proxy": {"accessLog": "apache"}})).await?.to_string();
    let written = installation.writes("/configmaps/").len();
    let reverts = || installation.writes("/configmaps/").len() - written;

    // The other controller overwrites each revert.
    let begun = Instant::now();
    let mut edits = 0;
    eventually(BACKED_OFF, "the operator to stall", async || {
        let status = &installation.configs.get(&installation.full("mesh")).await?.data["status"];
        if installation.text().await? != theirs {
            installation.rewrite("sisyphus", &theirs).await?;
            edits += 1;
        }
        let conditions = status["conditions"].to_string();
        ensure!(conditions.contains("RepeatedDrift"), "after {edits} edits: {conditions}");
        Ok(())
    })
    .await?;
    println!("stalled after {} reverts of {edits} edits, in {:?}", reverts(), begun.elapsed());
    ensure!((5..=6).contains(&reverts()), "{} reverts before it stalled", reverts());
    let status = installation.reaches("mesh", &STALLED).await?;
    let why = super::message(&status, "Stalled")?;
    assert!(why.contains("sisyphus"), "{why}");
    // The other controller writes last, so that there is drift during the pause, which is at least 10 s.
    if installation.text().await? != theirs {
        installation.rewrite("sisyphus", &theirs).await?;
    }
    let reached = reverts();
    holds(Duration::from_secs(6), "the pause", async || {
        ensure!(reverts() <= reached + 1, "{} more reverts", reverts() - reached);
        Ok(())
    })
    .await?;
    for reason in ["DriftDetected", "DriftReverted"] {
        assert_eq!(installation.event_count("mesh", reason).await?, 1, "one Event per minute");
    }

    // The other controller stops. After its backoff, the operator reverts the last edit.
    let fought = reverts();
    installation.document_is_within(BACKED_OFF, &declared).await?;
    ensure!(reverts() <= fought + 1, "{} reverts for the last edit", reverts() - fought);
    // It stays stalled until no edit was reverted for ten minutes.
    installation.reaches("mesh", &["ConfigMapSynced=True/Synced", "Stalled=True/RepeatedDrift"]).await?;
    assert_eq!(installation.bases().await?, [HELM]);
    assert!(manager.metric("linkerd_operator_linkerdconfig_drift_total", &[("manager", "other")]).await >= Some(5.0));
    manager.counts("linkerd_operator_linkerdconfig_drift_total", &[("manager", "sisyphus")], None).await?;
    Ok(())
}

/// Argo CD with `selfHeal` restores the document in Git whenever the ConfigMap differs from it.
#[tokio::test(flavor = "multi_thread")]
async fn an_installer_that_keeps_restoring_its_document_is_named_with_the_remedy() -> Result<()> {
    let (installation, _manager) = Installation::adopted(json!({"proxy": {"accessLog": "json"}})).await?;
    heal_until_stalled(&installation, "argocd-controller").await?;
    let status = installation.reaches("mesh", &REVERTED_BY_INSTALLER).await?;
    for of in ["ConfigMapSynced", "Ready", "Stalled"] {
        let why = super::message(&status, of)?;
        assert!(why.contains("argocd-controller") && why.contains("ignoreDifferences"), "{of}: {why}");
    }
    let note = installation.expect_event("mesh", "InstallerReverts").await?;
    assert!(note.contains("argocd-controller") && note.contains("ignoreDifferences"), "{note}");
    assert_eq!(status["drift"], json!(null), "what an installer writes is not drift");
    assert_eq!(installation.bases().await?, [HELM]);

    // Argo CD ignores the field from now on. The resource stays stalled until no write was undone for ten minutes.
    let declared = installation.helm_with(json!({"proxy": {"accessLog": "json"}})).await?;
    installation.document_is_within(BACKED_OFF, &declared).await?;
    installation.reaches("mesh", &["ConfigMapSynced=True/Synced", "Stalled=True/InstallerReverts"]).await?;
    assert_eq!(installation.event_count("mesh", "InstallerReverts").await?, 1);
    // With mode Suspend the resource is left alone, so it is not stalled.
    installation.change("mesh", json!({"mode": "Suspend"})).await?;
    installation.reaches("mesh", &["Accepted=False/Suspended"]).await?;
    Ok(())
}

/// Restores Helm's document as this manager whenever the operator has written, until the operator reports it.
async fn heal_until_stalled(installation: &Installation, manager: &str) -> Result<()> {
    eventually(BACKED_OFF, "the operator to name the installer", async || {
        if installation.text().await? != HELM {
            installation.rewrite(manager, HELM).await?;
        }
        let status = &installation.configs.get(&installation.full("mesh")).await?.data["status"];
        ensure!(status["conditions"].to_string().contains("InstallerReverts"), "{status}");
        Ok(())
    })
    .await?;
    if installation.text().await? != HELM {
        installation.rewrite(manager, HELM).await?;
    }
    Ok(())
}
