//! New versions of the proxy, and the triggers of a restart.

use anyhow::{Context, Result, ensure};
use e2e::{eventually, workload::Workload};
use serde_json::json;

use super::{super::HELM, DEADLINE, Mesh};

async fn has_version(workload: &Workload, version: &str) -> Result<()> {
    for proxy in workload.proxies().await? {
        let proxy = proxy.context("a Pod without proxy")?;
        ensure!(proxy.version.as_deref() == Some(version), "{workload}: {proxy:?}");
    }
    Ok(())
}

/// Scenario 4.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_by_helm_brings_the_new_proxy_to_all_workloads() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let (web, api) = (mesh.deployment("web", 2).await?, mesh.deployment("api", 1).await?);
    mesh.adopt(json!({"proxy": {"accessLog": "json"}})).await?;
    mesh.is_complete().await?;
    mesh.forget().await?;
    let upgraded = HELM.replace("linkerdVersion: edge-26.8.3", "linkerdVersion: edge-26.9.1");
    mesh.installation.rewrite("helm", &upgraded).await?;
    mesh.expect_event("BaseUpdated").await?;
    let declared = json!({"linkerdVersion": "edge-26.9.1", "proxy": {"accessLog": "json"}});
    mesh.installation.document_is(&mesh.installation.helm_with(declared).await?).await?;
    for workload in [&web, &api] {
        eventually(DEADLINE, format_args!("{workload} to be upgraded"), async || {
            has_version(workload, "edge-26.9.1").await
        })
        .await?;
    }
    let status = mesh.rollout_is(super::COMPLETE).await?;
    assert_eq!(status["proxyVersion"], "edge-26.9.1");
    assert_eq!(mesh.counts([&web, &api])?, [1, 1]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_not_a_declared_trigger_restarts_nothing() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let web = mesh.deployment("web", 1).await?;
    mesh.adopt(json!({"rollout": {"triggers": ["ProxyVersion"]}})).await?;
    mesh.configure(1).await?;
    mesh.is_complete().await?;
    mesh.no_more_than(0).await?;
    mesh.change(json!({"proxy": {"proxyVersion": "edge-26.9.1"}})).await?;
    eventually(DEADLINE, "the upgrade", async || has_version(&web, "edge-26.9.1").await).await?;
    mesh.is_complete().await?;
    assert_eq!(mesh.counts([&web])?, [1]);
    Ok(())
}
