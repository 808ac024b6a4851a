//! Injectors that are absent, wrong or outdated: the rollout waits or halts.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Action, Rule, eventually, injector::Behaviour, mesh::SOON};
use serde_json::json;

use super::{RolloutRig, all_have};

/// Scenario 8.
#[tokio::test(flavor = "multi_thread")]
async fn without_an_injector_nothing_is_restarted_and_a_new_pod_without_a_proxy_is_counted_and_kept() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let (web, api) = (mesh.deployment("web", 1).await?, mesh.deployment("api", 1).await?);
    mesh.adopt(json!({})).await?;
    mesh.injector.set_ready(0, false).await?;
    mesh.configure(1).await?;
    mesh.rollout_is("False/WaitingForInjector").await?;
    eventually(SOON, "the API server to call no injector", async || {
        let proxy = mesh.new_proxy().await?;
        ensure!(proxy.is_none(), "{proxy:?}");
        Ok(())
    })
    .await?;
    web.scale(2).await?;
    web.is_settled(2).await?;
    let before = web.uids().await?;
    assert_eq!(web.proxies().await?.iter().filter(|proxy| proxy.is_none()).count(), 1);
    mesh.shows(json!({"phase": "Waiting", "pods": {"uninjected": 1, "meshed": 2}})).await?;
    mesh.no_more_than(0).await?;
    assert_eq!(web.uids().await?, before);

    mesh.injector.set_ready(0, true).await?;
    let marker = mesh.is_complete().await?;
    web.has(2, &marker).await?;
    assert_eq!(mesh.counts([&web, &api])?, [1, 1]);
    mesh.shows(json!({"pods": {"current": 3, "meshed": 3}})).await?;
    Ok(())
}

/// Trap 4: a workload that comes back without a proxy halts the rollout.
#[tokio::test(flavor = "multi_thread")]
async fn a_workload_that_comes_back_without_a_proxy_halts_the_rollout_and_a_retry_continues() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let three = mesh.three(1, 0).await?;
    mesh.adopt(json!({"rollout": {"maxFailures": 3}})).await?;
    // The injectors pass the probe, and fail afterwards.
    let restart = mesh.installation.proxy.inject(Rule::path("/deployments/").method("PATCH").times(1), Action::Hold);
    mesh.configure(1).await?;
    restart.is_hit(|hits| hits == 1).await?;
    mesh.injector.set_behaviour(0, Behaviour::Unpatched).await?;
    restart.release();
    mesh.rollout_is("False/Halted").await?;
    let rollout = mesh.shows(json!({"phase": "Halted", "workloads": {"failed": 1}})).await?;
    assert_eq!(rollout["failures"][0]["reason"], "Uninjected", "{rollout}");
    let restarted = mesh.restarted()?;
    assert_eq!(restarted.len(), 1, "{restarted:?}");
    mesh.expect_event("RolloutHalted").await?;

    mesh.injector.set_behaviour(0, Behaviour::Right).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(mesh.restarted()?, restarted, "the rollout must not continue without a retry");
    mesh.annotate("retry", "now").await?;
    let marker = mesh.is_complete().await?;
    all_have(&three, 1, &marker).await?;
    Ok(())
}
