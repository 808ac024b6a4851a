//! Pods that are born while somebody else's document is live.

use anyhow::{Result, ensure};
use e2e::{Action, Rule, eventually, mesh::SOON};
use serde_json::json;

use super::{Mesh, names};

/// Scenario 3: the edit leaves our marker in the document, so that the newborn looks as if nothing were wrong with it.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_workload_of_a_pod_that_was_born_under_an_edit_is_restarted() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let (web, api) = (mesh.deployment("web", 1).await?, mesh.deployment("api", 1).await?);
    mesh.adopt(json!({"proxy": {"accessLog": "json"}})).await?;
    let marker = mesh.is_complete().await?;
    mesh.forget().await?;
    // Born in another second, so that it is older than the edit for whoever reads times.
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
    let born = web.uids().await?;
    revert.release();
    let declared = json!({"proxy": {"accessLog": "json"}});
    mesh.installation.says(&mesh.installation.helm_with(declared).await?).await?;
    let restart = mesh.restarts.next_of(&web, 0).await?;
    ensure!(restart.restarted_for.is_some(), "{restart:?}");
    assert_eq!(mesh.is_complete().await?, marker);
    web.has(2, &marker).await?;
    assert!(born.is_disjoint(&web.uids().await?), "a Pod of the drift is left");
    assert_eq!((mesh.restarted()?, mesh.counts([&web, &api])?), (names(["web"]), [1, 0]));
    let note = mesh.installation.map_tells("DriftReverted").await?;
    assert!(note.contains("kubectl-edit") && note.contains("proxy.accessLog"), "{note}");
    // Nobody goes on finding it.
    mesh.no_more_than(1).await
}
