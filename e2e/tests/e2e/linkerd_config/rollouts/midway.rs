//! Changes during a rollout.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{eventually, mesh::SOON};
use serde_json::json;

use super::{DEADLINE, RolloutRig};

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_rollout_finishes_the_current_restart_and_continues_when_resumed() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let three = mesh.three(1, 2).await?;
    mesh.adopt(json!({})).await?;
    mesh.configure(1).await?;
    let first = mesh.first_of(&three.each_ref()).await?;
    mesh.change(json!({"rollout": {"paused": true}})).await?;
    let status = mesh.rollout_is("False/Paused").await?;
    let marker = status["injectionHash"].as_str().context("no hash")?.to_owned();
    first.gets(1, &marker).await?;
    mesh.shows(json!({"phase": "Paused", "workloads": {"updated": 1}, "summary": "1/3"})).await?;
    mesh.no_more_than(1).await?;
    mesh.expect_event("RolloutPaused").await?;
    mesh.change(json!({"rollout": {"paused": false}})).await?;
    assert_eq!(mesh.is_complete().await?, marker);
    for workload in &three {
        workload.has(1, &marker).await?;
    }
    assert_eq!(mesh.counts(three.each_ref())?, [1, 1, 1]);
    mesh.expect_event("RolloutResumed").await?;
    Ok(())
}

/// One of two injectors is outdated, and is not probed until it is ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_injected_by_a_lagging_injector_is_found_and_replaced() -> Result<()> {
    let mut mesh = RolloutRig::with_injectors(2).await?;
    let (web, api) = (mesh.deployment("web", 1).await?, mesh.deployment("api", 1).await?);
    mesh.adopt(json!({"injectorSync": {"nudge": false}})).await?;
    mesh.configure(1).await?;
    let old = mesh.is_complete().await?;
    mesh.injector.set_ready(1, false).await?;
    mesh.injector.set_lag(1, Duration::MAX)?;
    mesh.configure(2).await?;
    let marker = mesh.is_complete().await?;
    assert_eq!(mesh.counts([&web, &api])?, [2, 2]);

    mesh.injector.set_ready(1, true).await?;
    mesh.injector.set_ready(0, false).await?;
    eventually(SOON, "the API server to call the other replica", async || {
        for _ in 0..3 {
            let proxy = mesh.new_proxy().await?;
            ensure!(proxy.as_ref().and_then(|proxy| proxy.marker.as_ref()) == Some(&old), "{proxy:?}");
        }
        Ok(())
    })
    .await?;
    web.scale(2).await?;
    web.is_settled(2).await?;
    assert!(web.is_marked(&marker).await.is_err(), "the new Pod must be outdated");
    // The Pod is found, but its replacement would be outdated too.
    mesh.rollout_is("False/WaitingForInjector").await?;
    mesh.shows(json!({"pods": {"outdated": 1, "current": 2}})).await?;
    mesh.no_more_than(4).await?;
    mesh.injector.set_lag(1, Duration::ZERO)?;
    eventually(DEADLINE, "the outdated Pod to be replaced", async || web.has(2, &marker).await).await?;
    mesh.is_complete().await?;
    assert_eq!(mesh.counts([&web, &api])?, [3, 2]);
    Ok(())
}
