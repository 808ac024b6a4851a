//! Rollouts by a manager with exactly the shipped permissions.

use anyhow::Result;
use e2e::workload::{Kind, opted_in};
use serde_json::json;

use super::{
    super::{Installation, Lent, permissions},
    RolloutRig,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_permissions_are_sufficient_for_rollouts() -> Result<()> {
    let installation = Installation::on(std::sync::Arc::new(Lent::take_with_nodes().await?)).await?;
    let installation = permissions::restricted(installation.installed().await?).await?;
    let mut mesh = RolloutRig::on(installation, 1).await?;
    let web = mesh.deployment("web", 2).await?;
    let store = mesh.put(&mesh.app, Kind::StatefulSet, "store", 1, opted_in()).await?;
    let agent = mesh.put(&mesh.other, Kind::DaemonSet, "agent", 2, opted_in()).await?;
    mesh.adopt(json!({})).await?;
    mesh.configure(1).await?;
    mesh.is_complete().await?;
    assert_eq!(mesh.counts([&web, &store, &agent])?, [1, 1, 1]);
    mesh.configure_with(2, json!({"method": "Evict"})).await?;
    let marker = mesh.is_complete().await?;
    web.has(2, &marker).await?;
    store.has(1, &marker).await?;
    agent.has(2, &marker).await?;
    web.expect_event("ProxyUpToDate").await?;
    assert_eq!(permissions::refused(&mesh.installation), []);
    Ok(())
}
