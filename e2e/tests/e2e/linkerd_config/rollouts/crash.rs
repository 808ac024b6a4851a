//! A manager is killed or hands over during a rollout, or its connections are cut. Each workload is restarted once.

use anyhow::{Context, Result, ensure};
use e2e::{Action, FaultProxy, Rule, eventually, mesh::SOON};
use serde_json::json;

use super::{super::LONG_LEASE, COMPLETE, DEADLINE, RolloutRig, all_have, are_recorded_as_updated};

/// The outcome of the patch in flight when the manager is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PatchEnd {
    /// The patch never reaches the API server.
    Lost,
    /// The API server executes the patch, but the manager receives no response.
    Unknown,
    /// The API server executes the patch after the next manager has restarted a workload.
    Late,
    /// The manager has received the response, and the new Pods are being created.
    Known,
}

/// Scenario 12.
#[tokio::test(flavor = "multi_thread")]
async fn a_manager_killed_at_any_moment_of_a_restart_restarts_each_workload_once() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let slow = json!({"spec": {"minReadySeconds": 2}});
    let two = [mesh.deployment_with("a", 1, slow).await?, mesh.deployment("b", 1).await?];
    mesh.adopt(json!({})).await?;
    for (number, end) in (1..).zip([PatchEnd::Lost, PatchEnd::Unknown, PatchEnd::Late, PatchEnd::Known]) {
        mesh.forget().await?;
        killed(&mut mesh, number, end).await.with_context(|| format!("{end:?}"))?;
        let marker = mesh.is_complete().await?;
        all_have(&two, 1, &marker).await?;
        mesh.no_more_than(2).await.with_context(|| format!("{end:?}"))?;
        assert_eq!(mesh.counts(two.each_ref())?, [1, 1], "{end:?}");
        assert_eq!(mesh.restarts.most_at_once("")?, 1, "{end:?}: {:?}", mesh.restarts.all()?);
    }
    Ok(())
}

async fn killed(mesh: &mut RolloutRig, number: u16, end: PatchEnd) -> Result<()> {
    let mut manager = mesh.manager.take().context("no manager")?;
    let action = if end == PatchEnd::Lost { Action::Hold } else { Action::Detain };
    let rule = Rule::path("/deployments/").method("PATCH");
    let fault = (end != PatchEnd::Known).then(|| mesh.installation.proxy.inject(rule.times(1), action));
    mesh.configure(number).await?;
    eventually(SOON, "the restart to begin", async || {
        match &fault {
            Some(fault) => ensure!(fault.hits() == 1, "the fault must apply once"),
            None => ensure!(!mesh.restarts.all()?.is_empty(), "no restart was recorded"),
        }
        Ok(())
    })
    .await?;
    manager.kill().await?;
    if let Some(fault) = fault.as_ref().filter(|_| end == PatchEnd::Unknown) {
        fault.release();
        eventually(SOON, "the patch to be executed", async || {
            ensure!(!mesh.restarts.all()?.is_empty(), "the fault must apply once");
            Ok(())
        })
        .await?;
    }
    mesh.manager = Some(mesh.installation.manager().await?);
    if let Some(fault) = fault {
        if end == PatchEnd::Late {
            eventually(DEADLINE, "the next manager to restart something", async || {
                ensure!(!mesh.restarts.all()?.is_empty(), "it did not");
                Ok(())
            })
            .await?;
        }
        fault.remove();
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_that_is_handed_over_is_finished_by_the_next_manager() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let three = mesh.three(1, 2).await?;
    mesh.manager = Some(mesh.installation.manager_with(&[LONG_LEASE]).await?);
    mesh.declare(json!({})).await?;
    mesh.rollout_is(COMPLETE).await?;
    let second_proxy = FaultProxy::start(&mesh.installation.control_plane).await?;
    let second = mesh.installation.replica("second").through(&second_proxy);
    let second = second.ready(&mesh.installation.control_plane).await?;
    mesh.configure(1).await?;
    mesh.first_of(&three.each_ref()).await?;
    let by_second = || second_proxy.count("PATCH", "/deployments/");
    assert_eq!(by_second(), 0, "a follower must not restart");
    let mut first = mesh.manager.take().context("no manager")?;
    ensure!(first.terminate(SOON).await?.success());
    let marker = mesh.is_complete().await?;
    all_have(&three, 1, &marker).await?;
    mesh.no_more_than(3).await?;
    assert_eq!(mesh.counts(three.each_ref())?, [1, 1, 1]);
    assert_eq!(mesh.restarts.most_at_once("")?, 1);
    assert!(by_second() >= 2, "{}", by_second());
    are_recorded_as_updated(&three).await?;
    drop(second);
    Ok(())
}

/// Responses are lost, watches are cut, and some writes conflict.
#[tokio::test(flavor = "multi_thread")]
async fn each_workload_is_restarted_once_despite_cut_connections() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let three = mesh.three(1, 1).await?;
    mesh.adopt(json!({})).await?;
    let patches = Rule::path("/deployments/").method("PATCH");
    let lost = mesh.installation.proxy.inject(patches.clone().times(2), Action::After);
    let conflict = Action::Status { code: 409, retry_after: None };
    let conflicts = mesh.installation.proxy.inject(patches.skip(1).times(2), conflict);
    mesh.configure(1).await?;
    for restarts in 1..=3 {
        eventually(DEADLINE, "the next restart", async || {
            ensure!(mesh.restarts.all()?.len() >= restarts, "{:?}", mesh.restarts.all()?);
            Ok(())
        })
        .await?;
        mesh.installation.proxy.cut_all();
    }
    let marker = mesh.is_complete().await?;
    all_have(&three, 1, &marker).await?;
    assert_eq!(mesh.counts(three.each_ref())?, [1, 1, 1]);
    assert_eq!(mesh.restarts.most_at_once("")?, 1);
    assert_eq!((lost.hits(), conflicts.hits()), (2, 2));
    are_recorded_as_updated(&three).await?;
    Ok(())
}
