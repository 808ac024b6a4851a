//! What changes while a rollout is under way.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{eventually, mesh::SOON, workload::Workload};
use serde_json::json;

use super::{DEADLINE, Mesh};

/// Three workloads that take so many seconds.
async fn three(mesh: &Mesh, seconds: u32) -> Result<[Workload; 3]> {
    let slow = json!({"spec": {"minReadySeconds": seconds}});
    Ok([
        mesh.deployment_with("a", 1, slow.clone()).await?,
        mesh.deployment_with("b", 1, slow.clone()).await?,
        mesh.deployment_with("c", 1, slow).await?,
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_it_finishes_what_it_began_and_resumed_the_rest() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let three = three(&mesh, 2).await?;
    mesh.adopt(json!({})).await?;
    mesh.configure(1).await?;
    let first = mesh.first_of(&three.each_ref()).await?;
    mesh.change(json!({"rollout": {"paused": true}})).await?;
    let status = mesh.rollout_is("False/Paused").await?;
    let marker = status["injectionHash"].as_str().context("no hash")?.to_owned();
    first.gets(1, &marker).await?;
    mesh.shows(json!({"phase": "Paused", "workloads": {"updated": 1}, "summary": "1/3"})).await?;
    mesh.no_more_than(1).await?;
    mesh.tells("RolloutPaused").await?;
    mesh.change(json!({"rollout": {"paused": false}})).await?;
    assert_eq!(mesh.is_complete().await?, marker);
    for workload in &three {
        workload.has(1, &marker).await?;
    }
    assert_eq!(mesh.counts(three.each_ref())?, [1, 1, 1]);
    mesh.tells("RolloutResumed").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_while_the_first_is_restarted_restarts_the_others_once() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let three = three(&mesh, 3).await?;
    mesh.adopt(json!({})).await?;
    mesh.configure(1).await?;
    let first = mesh.first_of(&three.each_ref()).await?;
    mesh.configure(2).await?;
    let marker = mesh.is_complete().await?;
    for workload in &three {
        workload.has(1, &marker).await?;
        let expected = if workload.name() == first.name() { 2 } else { 1 };
        let restarts = mesh.restarts.of(workload)?;
        ensure!(restarts.len() == expected, "{restarts:?}");
    }
    assert_eq!(mesh.restarts.most_at_once("")?, 1);
    Ok(())
}

/// As by an autoscaler: what is born midway is new, and what was there is not.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_scaled_midway_is_restarted_once_all_the_same() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let three = three(&mesh, 1).await?;
    mesh.adopt(json!({})).await?;
    mesh.configure(1).await?;
    let first = mesh.first_of(&three.each_ref()).await?;
    for workload in &three {
        workload.scale(2).await?;
    }
    let marker = mesh.is_complete().await?;
    for workload in &three {
        workload.has(2, &marker).await?;
    }
    assert_eq!(mesh.counts(three.each_ref())?, [1, 1, 1], "{first} was the first");
    Ok(())
}

/// Of two injectors one is behind, and nobody asks it before it is ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_newborn_that_a_lagging_injector_made_is_found_and_healed() -> Result<()> {
    let mut mesh = Mesh::with_injectors(2).await?;
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
    eventually(SOON, "the API server to ask the other replica", async || {
        for _ in 0..3 {
            let proxy = mesh.newborn().await?;
            ensure!(proxy.as_ref().and_then(|proxy| proxy.marker.as_ref()) == Some(&old), "{proxy:?}");
        }
        Ok(())
    })
    .await?;
    web.scale(2).await?;
    web.is_settled(2).await?;
    assert!(web.is_marked(&marker).await.is_err(), "the newborn is not old");
    // It is seen; but what would come in its place would be no better.
    mesh.rollout_is("False/WaitingForInjector").await?;
    mesh.shows(json!({"pods": {"outdated": 1, "current": 2}})).await?;
    mesh.no_more_than(4).await?;
    mesh.injector.set_lag(1, Duration::ZERO)?;
    eventually(DEADLINE, "the newborn to be healed", async || web.has(2, &marker).await).await?;
    mesh.is_complete().await?;
    assert_eq!(mesh.counts([&web, &api])?, [3, 2]);
    Ok(())
}
