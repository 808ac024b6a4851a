//! What is left of a resource that is deleted.

use anyhow::{Result, ensure};
use e2e::{Manager, eventually, holds, mesh::SOON};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::json;

use super::{CONFIG_MAP, HELM, Installation, QUIET, WELL};

const FINALIZER: &str = "config.linkerd.io/restore-base";

/// A mesh with an access log, whose resource restores the base when it goes.
async fn restoring() -> Result<(Installation, Manager)> {
    let installation = Installation::new().await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}, "deletionPolicy": "RestoreBase"})).await?;
    installation.reaches("mesh", &WELL).await?;
    assert_eq!(installation.finalizers("mesh").await?, [FINALIZER]);
    Ok((installation, manager))
}

async fn has_no_annotation_of_ours(installation: &Installation) -> Result<()> {
    let map = installation.map().await?;
    let ours = map.annotations().keys().filter(|key| key.starts_with("config.linkerd.io/")).collect::<Vec<_>>();
    ensure!(ours.is_empty(), "{ours:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn retain_leaves_every_byte() -> Result<()> {
    let installation = Installation::new().await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    installation.reaches("mesh", &WELL).await?;
    assert_eq!(installation.finalizers("mesh").await?, [""; 0]);
    let before = installation.map().await?;
    installation.delete("mesh").await?;
    installation.is_gone("mesh").await?;
    holds(QUIET, "the ConfigMap", async || {
        ensure!(installation.map().await? == before, "it was written");
        Ok(())
    })
    .await?;
    // Whoever comes next knows what Helm wrote.
    assert_eq!(installation.bases().await?, [HELM]);
    installation.declare("next", json!({"proxy": {"logFormat": "json"}})).await?;
    installation.reaches("next", &WELL).await?;
    installation.says(&installation.helm_with(json!({"proxy": {"logFormat": "json"}})).await?).await?;
    assert_eq!(installation.bases().await?, [HELM]);
    let gone = manager.metric("linkerd_operator_linkerdconfig_info", &[("name", &installation.full("mesh"))]).await;
    assert_eq!(gone, None, "its series go with it");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_base_puts_back_what_helm_wrote_to_the_byte() -> Result<()> {
    let (installation, manager) = restoring().await?;
    let uid = installation.map().await?.uid();
    installation.delete("mesh").await?;
    installation.is_gone("mesh").await?;
    assert_eq!(installation.text().await?, HELM);
    has_no_annotation_of_ours(&installation).await?;
    assert_eq!(installation.map().await?.uid(), uid);
    drop(manager);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_base_waits_for_the_operator() -> Result<()> {
    let (installation, mut manager) = restoring().await?;
    manager.kill().await?;
    installation.delete("mesh").await?;
    holds(QUIET, "the resource", async || {
        ensure!(installation.finalizers("mesh").await? == [FINALIZER], "it is gone");
        Ok(())
    })
    .await?;
    let manager = installation.manager().await?;
    installation.is_gone("mesh").await?;
    assert_eq!(installation.text().await?, HELM);
    has_no_annotation_of_ours(&installation).await?;
    drop(manager);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_base_is_skipped_when_another_takes_over() -> Result<()> {
    let (installation, manager) = restoring().await?;
    installation.declare("next", json!({"priority": -1, "proxy": {"logFormat": "json"}})).await?;
    installation.reaches("next", &["Accepted=False/Conflicted"]).await?;
    let writes = installation.writes("/configmaps/").len();
    installation.delete("mesh").await?;
    installation.is_gone("mesh").await?;
    installation.reaches("next", &WELL).await?;
    installation.says(&installation.helm_with(json!({"proxy": {"logFormat": "json"}})).await?).await?;
    assert_eq!(installation.writes("/configmaps/").len(), writes + 1, "one step from the one to the other");
    assert_eq!(installation.bases().await?, [HELM]);
    drop(manager);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_finalizer_comes_and_goes_with_what_asks_for_it() -> Result<()> {
    let (installation, manager) = restoring().await?;
    let has = async |expected: &[&str], why: &str| {
        eventually(SOON, why, async || {
            let finalizers = installation.finalizers("mesh").await?;
            ensure!(finalizers == expected, "{finalizers:?}");
            Ok(())
        })
        .await
    };
    installation.change("mesh", json!({"deletionPolicy": "Retain"})).await?;
    has(&[], "Retain to need none").await?;
    installation.change("mesh", json!({"deletionPolicy": "RestoreBase"})).await?;
    has(&[FINALIZER], "RestoreBase to need it").await?;
    installation.declare("other", json!({"priority": 1})).await?;
    installation.reaches("mesh", &["Accepted=False/Conflicted"]).await?;
    has(&[], "a loser to need none").await?;
    installation.delete("other").await?;
    installation.reaches("mesh", &WELL).await?;
    has(&[FINALIZER], "the winner to need it").await?;
    drop(manager);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_does_not_hang_where_there_is_nothing_to_restore() -> Result<()> {
    let (installation, manager) = restoring().await?;
    installation.maps.delete(CONFIG_MAP, &DeleteParams::default()).await?;
    installation.reaches("mesh", &["Accepted=False/TargetNotFound"]).await?;
    installation.delete("mesh").await?;
    installation.is_gone("mesh").await?;
    assert!(installation.maps.get_opt(CONFIG_MAP).await?.is_none());
    drop(manager);
    Ok(())
}

/// Somebody's finalizer keeps it; ours does not, and what was restored stays restored.
#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_others_keep_is_done_with() -> Result<()> {
    let (installation, manager) = restoring().await?;
    let theirs = json!({"metadata": {"finalizers": [FINALIZER, "example.org/kept"]}});
    let params = kube::api::PatchParams::default();
    let patch = |patch| kube::api::Patch::Merge(patch);
    installation.configs.patch(&installation.full("mesh"), &params, &patch(theirs)).await?;
    installation.delete("mesh").await?;
    eventually(SOON, "ours to go", async || {
        let finalizers = installation.finalizers("mesh").await?;
        ensure!(finalizers == ["example.org/kept"], "{finalizers:?}");
        Ok(())
    })
    .await?;
    holds(QUIET, "what Helm wrote", async || {
        ensure!(installation.text().await? == HELM, "it was written again");
        Ok(())
    })
    .await?;
    let free = json!({"metadata": {"finalizers": null}});
    installation.configs.patch(&installation.full("mesh"), &params, &patch(free)).await?;
    installation.is_gone("mesh").await?;
    drop(manager);
    Ok(())
}
