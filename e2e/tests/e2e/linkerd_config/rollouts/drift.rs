//! Pods that are created while the document has been edited.

use anyhow::{Result, ensure};
use e2e::{Action, Rule};
use serde_json::json;

use super::{RolloutRig, names};

/// Scenario 3: the edit keeps our marker in the document, so that the new Pod seems to be up to date.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_workload_of_a_pod_that_was_created_during_an_edit_is_restarted() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let (web, api) = (mesh.deployment("web", 1).await?, mesh.deployment("api", 1).await?);
    mesh.adopt(json!({"proxy": {"accessLog": "json"}})).await?;
    let marker = mesh.is_complete().await?;
    mesh.forget().await?;
    // Timestamps have a resolution of one second: the first Pods must be older than the edit.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;

    let revert = mesh.installation.proxy.inject(Rule::path("/configmaps/").method("PATCH").times(1), Action::Hold);
    mesh.installation.edit("kubectl-edit", json!({"proxy": {"accessLog": ""}})).await?;
    revert.is_hit(|hits| hits == 1).await?;
    web.scale(2).await?;
    web.is_settled(2).await?;
    web.is_marked(&marker).await?;
    let during_edit = web.uids().await?;
    revert.release();
    let declared = json!({"proxy": {"accessLog": "json"}});
    mesh.installation.is_helm_with(declared).await?;
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
