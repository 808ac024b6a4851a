//! The method Evict: Pods are evicted, and templates are not changed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{
    eventually,
    workload::{Kind, Workload},
};
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{DEADLINE, RolloutRig, hash_of, opted_in, put_over};

/// Looks at the number of available replicas until `stop` is set. Returns the number of looks and the lowest number.
async fn fewest(workload: &Workload, stop: &AtomicBool) -> Result<(usize, i64)> {
    let (mut looks, mut fewest) = (0, i64::MAX);
    while !stop.load(Ordering::SeqCst) {
        let available = workload.object().await?.data.pointer("/status/availableReplicas").and_then(Value::as_i64);
        fewest = fewest.min(available.unwrap_or_default());
        looks += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok((looks, fewest))
}

async fn template(workload: &Workload) -> Result<Option<Value>> {
    Ok(workload.object().await?.data.pointer("/spec/template").cloned())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_evicted_as_their_budgets_allow_and_no_template_is_changed() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let web = mesh.deployment_with("web", 3, json!({"spec": {"minReadySeconds": 1}})).await?;
    let guarded = mesh.deployment("guarded", 1).await?;
    let mut manual = opted_in();
    put_over(&mut manual, &json!({"spec": {"updateStrategy": {"type": "OnDelete"}}}));
    let store = mesh.put(&mesh.app, Kind::StatefulSet, "store", 2, manual).await?;
    mesh.put_budget("guarded", "guarded", json!({"minAvailable": 1})).await?;
    let budgets = mesh.put_budget("web", "web", json!({"maxUnavailable": 1})).await?;
    eventually(DEADLINE, "the budget of web to allow one disruption", async || {
        let allowed = budgets.get("web").await?.status.map(|status| status.disruptions_allowed);
        ensure!(allowed == Some(1), "{allowed:?}");
        Ok(())
    })
    .await?;
    mesh.adopt(json!({"rollout": {"method": "Evict"}})).await?;
    let template = template(&web).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let looking = tokio::spawn({
        let (web, stop) = (web.clone(), stop.clone());
        async move { fewest(&web, &stop).await }
    });
    mesh.configure(1).await?;
    let status = mesh.rollout_is("False/BlockedByPDB").await?;
    let marker = hash_of(&status)?;
    web.has(3, marker).await?;
    // Only an eviction can update a workload with the strategy OnDelete.
    store.has(2, marker).await?;
    assert!(guarded.is_marked(marker).await.is_err());
    stop.store(true, Ordering::SeqCst);
    let (looks, fewest) = timeout(DEADLINE, looking).await.context("the looks did not end")???;
    // Each of the three Pods was replaced and then not available for a second.
    ensure!(looks >= 3 && fewest == 2, "down to {fewest} of 3, in {looks} looks");
    assert_eq!(mesh.restarts.all()?.len(), 0);

    budgets.delete("guarded", &DeleteParams::default()).await?;
    guarded.gets(1, marker).await?;
    assert_eq!(mesh.is_complete().await?, marker);
    mesh.no_more_than(0).await?;
    assert_eq!(self::template(&web).await?, template);
    web.expect_event("ProxyUpToDate").await?;
    Ok(())
}

/// The API server refuses to evict a Pod with two budgets.
#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_that_stays_blocked_fails_with_the_cause_and_the_others_proceed() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let (first, second) = (mesh.deployment("a", 1).await?, mesh.deployment("b", 1).await?);
    for name in ["one", "two"] {
        mesh.put_budget(name, "a", json!({"maxUnavailable": 1})).await?;
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
    let marker = hash_of(&status)?;
    second.has(1, marker).await?;
    assert!(first.is_marked(marker).await.is_err());
    let failure = &status["rollout"]["failures"][0];
    assert_eq!((&failure["name"], &failure["reason"]), (&json!("a"), &json!("EvictionBlocked")), "{failure}");
    assert!(failure["message"].as_str().is_some_and(|text| text.contains("PodDisruptionBudget")), "{failure}");
    Ok(())
}
