//! Workloads that do not become ready after a restart: the rollout halts, rolls back or continues, and can be retried.

use anyhow::{Context, Result, ensure};
use e2e::{
    eventually, holds,
    mesh::SOON,
    workload::{Kind, NEVER_READY, Workload, opted_in},
};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{super::HELM, DEADLINE, QUIET, RolloutRig, all_have, hash_of, put_over};

/// A spec with a version of the proxy that cannot be pulled.
fn bad(rollout: &Value) -> Value {
    let mut spec = json!({"proxy": {"proxyVersion": NEVER_READY}, "rollout": {"progressDeadline": "3s"}});
    put_over(&mut spec, &json!({ "rollout": rollout }));
    spec
}

async fn is_failed(workload: &Workload) -> Result<()> {
    eventually(SOON, format_args!("{workload} to be reported as failed"), async || {
        let state = workload.annotation("rollout-state").await?;
        ensure!(state.as_deref() == Some("failed"), "{state:?}");
        let why = workload.annotation("rollout-message").await?;
        ensure!(why.as_ref().is_some_and(|why| !why.is_empty()), "{why:?}");
        ensure!(workload.event_count("ProxyRolloutFailed").await? == 1, "{:?}", workload.events().await?);
        Ok(())
    })
    .await
}

/// Scenario 7: after two failures the third workload is not restarted.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_halts_at_the_limit_of_failures_and_continues_when_the_spec_is_corrected() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let three = mesh.three(2, 0).await?;
    mesh.adopt(json!({})).await?;
    mesh.change(bad(&json!({"maxFailures": 2, "onFailure": "Halt"}))).await?;
    mesh.rollout_is("False/Halted").await?;
    let rollout = mesh.shows(json!({"phase": "Halted", "workloads": {"failed": 2}})).await?;
    let failures = rollout["failures"].as_array().context("no failures")?;
    assert_eq!(failures.len(), 2, "{rollout}");
    for failure in failures {
        let name = failure["name"].as_str().context("a failure without name")?;
        assert!(failure["kind"] == "Deployment" && failure["namespace"] == mesh.app.as_str(), "{failure}");
        assert!(failure["reason"] == "ProgressDeadlineExceeded" && failure["message"].is_string(), "{failure}");
        let failed = three.iter().find(|workload| workload.name() == name).context("an unknown name")?;
        is_failed(failed).await?;
        // Kubernetes keeps the old Pods until a new one is ready.
        assert_eq!(failed.uids().await?.len(), 3);
    }
    mesh.expect_event("RolloutHalted").await?;
    mesh.no_more_than(2).await?;
    let untouched = mesh.counts(three.each_ref())?.iter().filter(|restarts| **restarts == 0).count();
    assert_eq!(untouched, 1, "{:?}", mesh.restarts.all()?);

    mesh.change(json!({"proxy": {"proxyVersion": "edge-26.9.1"}})).await?;
    let marker = mesh.is_complete().await?;
    all_have(&three, 2, &marker).await?;
    mesh.shows(json!({"summary": "3/3", "workloads": {"updated": 3}})).await?;
    assert_eq!(mesh.restarts.all()?.len(), 5);
    Ok(())
}

/// Scenario 7, with `onFailure: Rollback`.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_rolled_back_to_the_last_good_configuration_if_declared() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let three = mesh.three(2, 0).await?;
    mesh.adopt(json!({})).await?;
    mesh.configure(1).await?;
    let good = mesh.is_complete().await?;
    let document = mesh.installation.document().await?;
    let mut before = Vec::new();
    for workload in &three {
        before.push((workload.uids().await?, workload.restarted_for().await?));
    }
    mesh.forget().await?;

    mesh.change(bad(&json!({"onFailure": "Rollback"}))).await?;
    let first = mesh.first_of(&three.each_ref()).await?;
    mesh.rollout_is("False/RolledBack").await?;
    mesh.installation.document_is(&document).await?;
    for (workload, (uids, restarted_for)) in three.iter().zip(before) {
        workload.gets(2, &good).await?;
        // No running Pod was replaced.
        assert_eq!((workload.uids().await?, workload.restarted_for().await?), (uids, restarted_for), "{workload}");
    }
    let restarts = mesh.restarts.all()?;
    assert!(restarts.iter().all(|restart| restart.workload == first.to_string()), "{restarts:?}");
    assert_eq!(restarts.len(), 2, "the restart and its rollback: {restarts:?}");
    eventually(SOON, "rollout-state=rolled-back", async || {
        let state = first.annotation("rollout-state").await?;
        ensure!(state.as_deref() == Some("rolled-back"), "{state:?}");
        Ok(())
    })
    .await?;
    mesh.expect_event("ConfigRolledBack").await?;
    mesh.shows(json!({"phase": "RolledBack"})).await?;
    // The status is about the document in force, not about the declared one.
    let conditions = ["ConfigMapSynced=False/Restored", "Ready=False/RolledBack", "Stalled=True/RolledBack"];
    let status = mesh.installation.reaches("mesh", &conditions).await?;
    assert_eq!(status["proxyVersion"], "edge-26.8.3");
    // The configuration is not retried until it changes.
    mesh.no_more_than(2).await?;
    mesh.installation.document_is(&document).await?;
    mesh.change(json!({"proxy": {"proxyVersion": "edge-26.9.1"}})).await?;
    let marker = mesh.is_complete().await?;
    all_have(&three, 2, &marker).await?;
    Ok(())
}

/// The version of the proxy is Helm's, so the operator has nothing to take back: the overlay did not fail.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_fails_removes_neither_the_overlay_nor_the_version() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    mesh.deployment("web", 1).await?;
    let rollout = json!({"progressDeadline": "3s", "onFailure": "Rollback"});
    mesh.adopt(json!({"proxy": {"accessLog": "json"}, "rollout": rollout})).await?;
    mesh.is_quiet().await?;
    let upgraded = HELM.replace("linkerdVersion: edge-26.8.3", &format!("linkerdVersion: {NEVER_READY}"));
    mesh.installation.rewrite("helm", &upgraded).await?;
    let status = mesh.rollout_is("False/Halted").await?;
    let why = super::super::message(&status, "RolloutComplete")?;
    assert!(why.contains("not rolled back"), "{why}");
    let declared = json!({"linkerdVersion": NEVER_READY, "proxy": {"accessLog": "json"}});
    let declared = mesh.installation.helm_with(declared).await?;
    holds(QUIET, "the declared document", async || {
        ensure!(mesh.installation.document().await? == declared, "it was rolled back");
        Ok(())
    })
    .await?;
    assert_eq!(mesh.installation.event_count("mesh", "ConfigRolledBack").await?, 0);
    Ok(())
}

/// The StatefulSet controller waits for the Pod that does not become ready, even after its template is rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_set_is_rolled_back_together_with_its_stuck_pod() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let store = mesh.put(&mesh.app, Kind::StatefulSet, "store", 3, opted_in()).await?;
    mesh.adopt(json!({})).await?;
    mesh.configure(1).await?;
    let good = mesh.is_complete().await?;
    let restarted_for = store.restarted_for().await?;
    mesh.change(bad(&json!({"onFailure": "Rollback"}))).await?;
    mesh.rollout_is("False/RolledBack").await?;
    store.gets(3, &good).await?;
    assert_eq!(store.restarted_for().await?, restarted_for);
    assert_eq!(
        mesh.counts([&store])?,
        [3],
        "the good restart, the failed one and its rollback: {:?}",
        mesh.restarts.all()?
    );
    Ok(())
}

/// Trap 22: without quota for one more Pod a Deployment cannot begin its update.
#[tokio::test(flavor = "multi_thread")]
async fn a_workload_with_an_exhausted_quota_fails_with_the_reason_and_the_others_proceed() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let stuck = mesh.put(&mesh.other, Kind::Deployment, "stuck", 1, opted_in()).await?;
    let (web, api) = (mesh.deployment("web", 1).await?, mesh.deployment("api", 1).await?);
    let quotas = mesh.exhaust_quota(&mesh.other).await?;
    mesh.adopt(json!({"rollout": {"progressDeadline": "3s", "onFailure": "Continue"}})).await?;
    mesh.configure(1).await?;
    let status = mesh.rollout_is("False/WorkloadsFailed").await?;
    let marker = hash_of(&status)?;
    web.has(1, marker).await?;
    api.has(1, marker).await?;
    let rollout = mesh.shows(json!({"summary": "2/3", "workloads": {"updated": 2, "failed": 1}})).await?;
    let [failure] = &rollout["failures"].as_array().context("no failures")?[..] else { panic!("{rollout}") };
    assert_eq!((&failure["name"], &failure["reason"]), (&json!("stuck"), &json!("ProgressDeadlineExceeded")));
    assert!(failure["message"].as_str().is_some_and(|message| message.contains("exceeded quota")), "{failure}");
    is_failed(&stuck).await?;
    mesh.no_more_than(3).await?;

    // With more quota, the retry annotation restarts it.
    let more = Patch::Merge(json!({"spec": {"hard": {"pods": "5"}}}));
    quotas.patch("pods", &PatchParams::default(), &more).await?;
    mesh.annotate("retry", "with room").await?;
    assert_eq!(mesh.is_complete().await?, marker);
    stuck.gets(1, marker).await?;
    mesh.shows(json!({"summary": "3/3", "workloads": {"updated": 3}})).await?;
    Ok(())
}

/// Trap 17: another controller removes our annotation.
#[tokio::test(flavor = "multi_thread")]
async fn a_workload_whose_owner_removes_the_annotation_is_skipped() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    // The old Pod stays until the new one is available, so the workload still needs a restart.
    let owned = mesh.deployment_with("owned", 1, json!({"spec": {"minReadySeconds": 5}})).await?;
    let web = mesh.deployment("web", 1).await?;
    mesh.adopt(json!({})).await?;
    mesh.configure(1).await?;
    let removal =
        json!({"spec": {"template": {"metadata": {"annotations": {"config.linkerd.io/restarted-for": null}}}}});
    let mut removals = 0;
    eventually(DEADLINE, "the workload to be skipped", async || {
        if owned.restarted_for().await?.is_some() {
            owned.patch(removal.clone()).await?;
            removals += 1;
        }
        let skipped = mesh.status().await?.0["rollout"]["skipped"].take();
        ensure!(skipped == json!([{"reason": "Reverted", "count": 1}]), "{skipped}, {removals} times");
        Ok(())
    })
    .await?;
    assert!((1..=3).contains(&removals), "{removals} times");
    mesh.rollout_is("False/WorkloadsSkipped").await?;
    web.is_settled(1).await?;
    assert_eq!(mesh.counts([&web])?, [1]);
    let restarts = mesh.restarts.all()?.len();
    holds(QUIET, "no further restart", async || {
        ensure!(mesh.restarts.all()?.len() == restarts, "{:?}", mesh.restarts.all()?);
        Ok(())
    })
    .await?;

    // The next configuration restarts only the other workload.
    mesh.configure(2).await?;
    mesh.rollout_is("False/WorkloadsSkipped").await?;
    assert_eq!((mesh.counts([&web])?, mesh.restarts.all()?.len()), ([2], restarts + 1));
    // A retry of the resource restarts it again, and its owner accepts the annotation now.
    mesh.annotate("retry", "the owner ignores the annotation").await?;
    let marker = mesh.is_complete().await?;
    owned.has(1, &marker).await
}
