//! The progress deadline of a restart, and workloads that are not healthy for reasons of their own.

use anyhow::{Context, Result, ensure};
use e2e::{
    eventually,
    workload::{self, Kind, NEVER_READY, opted_in},
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{DEADLINE, Mesh, put_over};

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_that_makes_progress_may_take_longer_than_its_deadline() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let mut slow = opted_in();
    put_over(&mut slow, &json!({"spec": {"minReadySeconds": 3}}));
    let store = mesh.put(&mesh.app, Kind::StatefulSet, "store", 4, slow).await?;
    mesh.adopt(json!({"rollout": {"progressDeadline": "9s"}})).await?;
    mesh.configure(1).await?;
    let marker = mesh.is_complete().await?;
    store.has(4, &marker).await?;
    assert_eq!(store.event_count("ProxyRolloutFailed").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_lifted_when_the_workload_becomes_ready() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let stuck = mesh.put(&mesh.other, Kind::Deployment, "stuck", 1, opted_in()).await?;
    let quotas = mesh.exhaust_quota(&mesh.other).await?;
    mesh.adopt(json!({"rollout": {"progressDeadline": "3s"}})).await?;
    mesh.configure(1).await?;
    mesh.rollout_is("False/Halted").await?;
    // The controller of the workload continues as soon as it can, without a retry of the operator.
    let more = Patch::Merge(json!({"spec": {"hard": {"pods": "5"}}}));
    quotas.patch("pods", &PatchParams::default(), &more).await?;
    let marker = mesh.is_complete().await?;
    stuck.has(1, &marker).await?;
    assert_eq!(mesh.counts([&stuck])?, [1]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_that_was_not_healthy_before_is_skipped_and_named() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let web = mesh.deployment("web", 1).await?;
    let container =
        |image: &str| json!({"spec": {"template": {"spec": {"containers": [{"name": "broken", "image": image}]}}}});
    let mut broken = opted_in();
    put_over(&mut broken, &container(&format!("broken:{NEVER_READY}")));
    let broken = workload::put(&mesh.installation.client, &mesh.app, Kind::Deployment, "broken", 1, broken).await?;
    mesh.adopt(json!({"rollout": {"progressDeadline": "3s"}})).await?;
    mesh.configure(1).await?;
    let status = mesh.rollout_is("False/WorkloadsSkipped").await?;
    let marker = status["injectionHash"].as_str().context("no hash")?;
    web.has(1, marker).await?;
    let rollout = mesh.shows(json!({"skipped": [{"reason": "Unhealthy", "count": 1}]})).await?;
    assert_eq!(rollout["workloads"]["failed"], 0, "{rollout}");
    let conditions = status["conditions"].as_array().context("no conditions")?;
    let message = conditions.iter().find(|it| it["type"] == "RolloutComplete").context("no RolloutComplete")?;
    let named = format!("{}/Deployment/broken", mesh.app);
    assert!(message["message"].as_str().is_some_and(|text| text.contains(&named)), "{message}");
    assert_eq!(mesh.counts([&web, &broken])?, [1, 0]);
    // The owner corrects the image.
    broken.patch(container("broken")).await?;
    assert_eq!(mesh.is_complete().await?, marker);
    broken.has(1, marker).await?;
    Ok(())
}

/// The API server refuses to evict a Pod with two budgets.
#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_that_stays_blocked_fails_with_the_cause_and_the_others_proceed() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let (first, second) = (mesh.deployment("a", 1).await?, mesh.deployment("b", 1).await?);
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(mesh.installation.client.clone(), &mesh.app);
    for name in ["one", "two"] {
        let budget = json!({
            "metadata": {"name": name},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "a"}}},
        });
        budgets.create(&PostParams::default(), &serde_json::from_value(budget)?).await?;
    }
    mesh.adopt(json!({"rollout": {"method": "Evict", "respectPDB": false, "progressDeadline": "4s"}})).await?;
    mesh.configure(1).await?;
    let blocked = |status: &Value| {
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let complete = conditions.filter(|it| it["type"] == "RolloutComplete");
        complete.filter_map(|it| it["message"].as_str()).any(|text| text.contains("PodDisruptionBudget"))
    };
    eventually(DEADLINE, "the condition to name what blocks", async || {
        let status = mesh.status().await?.0;
        ensure!(blocked(&status), "{status}");
        Ok(())
    })
    .await?;
    let status = mesh.rollout_is("False/WorkloadsFailed").await?;
    let marker = status["injectionHash"].as_str().context("no hash")?;
    second.has(1, marker).await?;
    assert!(first.is_marked(marker).await.is_err());
    let failure = &status["rollout"]["failures"][0];
    assert_eq!((&failure["name"], &failure["reason"]), (&json!("a"), &json!("EvictionBlocked")), "{failure}");
    assert!(failure["message"].as_str().is_some_and(|text| text.contains("PodDisruptionBudget")), "{failure}");
    Ok(())
}
