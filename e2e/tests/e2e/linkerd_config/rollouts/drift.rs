//! Pods that are created while the document has been edited.

use anyhow::{Result, ensure};
use e2e::{Action, Rule, eventually, mesh::SOON};
use serde_json::json;

use super::{
    super::{BACKED_OFF, fights::heal_until_stalled},
    Mesh, names,
};

/// Scenario 3: the edit keeps our marker in the document, so that the new Pod seems to be up to date.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_workload_of_a_pod_that_was_created_during_an_edit_is_restarted() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let (web, api) = (mesh.deployment("web", 1).await?, mesh.deployment("api", 1).await?);
    mesh.adopt(json!({"proxy": {"accessLog": "json"}})).await?;
    let marker = mesh.is_complete().await?;
    mesh.forget().await?;
    // Timestamps have a resolution of one second: the first Pods must be older than the edit.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;

    let revert = mesh.installation.proxy.inject(Rule::path("/configmaps/").method("PATCH").times(1), Action::Hold);
    mesh.installation.edit("kubectl-edit", json!({"proxy": {"accessLog": ""}})).await?;
    eventually(SOON, "the revert to be under way", async || {
        ensure!(revert.hits() == 1, "it is not");
        Ok(())
    })
    .await?;
    web.scale(2).await?;
    web.is_settled(2).await?;
    web.is_marked(&marker).await?;
    let during_edit = web.uids().await?;
    revert.release();
    let declared = json!({"proxy": {"accessLog": "json"}});
    mesh.installation.document_is(&mesh.installation.helm_with(declared).await?).await?;
    let restart = mesh.restarts.next_of(&web, 0).await?;
    ensure!(restart.restarted_for.is_some(), "{restart:?}");
    assert_eq!(mesh.is_complete().await?, marker);
    web.has(2, &marker).await?;
    assert!(during_edit.is_disjoint(&web.uids().await?), "a Pod from the time of the edit is left");
    assert_eq!((mesh.restarted()?, mesh.counts([&web, &api])?), (names(["web"]), [1, 0]));
    let note = mesh.installation.expect_config_map_event("DriftReverted").await?;
    assert!(note.contains("kubectl-edit") && note.contains("proxy.accessLog"), "{note}");
    // The edit causes no further restart.
    mesh.no_more_than(1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_only_reported_does_not_prevent_the_rollout_of_another_one() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let web = mesh.deployment("web", 1).await?;
    mesh.adopt(json!({"drift": {"action": "Report"}})).await?;
    let before = mesh.is_complete().await?;
    mesh.installation.edit("kubectl-edit", json!({"proxy": {"accessLog": "json"}})).await?;
    mesh.installation.reaches("mesh", &["ConfigMapSynced=False/Drifted"]).await?;
    mesh.is_complete().await?;
    mesh.no_more_than(0).await?;
    mesh.configure(1).await?;
    let marker = mesh.is_complete().await?;
    assert_ne!(marker, before);
    web.has(1, &marker).await?;
    assert_eq!(mesh.counts([&web])?, [1]);
    mesh.installation.reaches("mesh", &["ConfigMapSynced=False/Drifted"]).await?;
    assert_eq!(mesh.installation.document().await?["proxy"]["accessLog"], "json");
    Ok(())
}

/// While Argo CD restores its document again and again, each restart could create Pods that are out of date again.
#[tokio::test(flavor = "multi_thread")]
async fn no_workload_is_restarted_while_an_installer_keeps_restoring_its_document() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let web = mesh.deployment("web", 1).await?;
    mesh.adopt(json!({"proxy": {"accessLog": "json"}})).await?;
    mesh.is_complete().await?;
    heal_until_stalled(&mesh.installation, "argocd-controller").await?;
    mesh.forget().await?;
    // A Pod gets the document of the installer.
    web.scale(2).await?;
    web.is_settled(2).await?;
    // The operator writes the declared document after its pause, and all injectors use it. Argo CD may still undo it.
    mesh.installation
        .reaches_within(
            BACKED_OFF,
            "mesh",
            &["ConfigMapSynced=True/Synced", "InjectorSynced=True/AllReplicasCurrent", "Stalled=True/InstallerReverts"],
        )
        .await?;
    mesh.shows(json!({"pods": {"meshed": 2, "outdated": 1}})).await?;
    mesh.rollout_is("False/WaitingForConfigMap").await?;
    mesh.no_more_than(0).await
}
