//! The number of concurrent restarts, and the pauses between them.

use anyhow::{Context, Result, ensure};
use e2e::workload::{Kind, Workload, opted_in};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Mesh, put_over};

/// Slows a restart down, so that restarts overlap if the limits allow it.
fn slow(seconds: u32) -> Value {
    json!({"spec": {"minReadySeconds": seconds}})
}

/// Creates three workloads in one namespace and two in another.
async fn five(mesh: &Mesh) -> Result<Vec<Workload>> {
    let mut five = Vec::new();
    for name in ["a", "b", "c"] {
        five.push(mesh.deployment_with(name, 1, slow(1)).await?);
    }
    for name in ["d", "e"] {
        let mut object = opted_in();
        put_over(&mut object, &slow(1));
        five.push(mesh.put(&mesh.other, Kind::Deployment, name, 1, object).await?);
    }
    Ok(five)
}

/// The times of the last restart, as the operator and the Deployment controller recorded them. Both are in whole seconds,
/// rounded down, so a difference of whole seconds is exact.
#[derive(Debug)]
struct Times {
    started: Timestamp,
    completed: Timestamp,
}

impl Times {
    async fn of(workload: &Workload) -> Result<Self> {
        let started = workload.annotation("rollout-started-at").await?.context("no time of the restart")?;
        let object = workload.object().await?;
        let conditions =
            object.data.pointer("/status/conditions").and_then(Value::as_array).context("no conditions")?;
        let progressing = conditions.iter().find(|it| it["reason"] == "NewReplicaSetAvailable");
        let completed =
            progressing.and_then(|it| it["lastUpdateTime"].as_str()).context("the Deployment is not complete")?;
        Ok(Self { started: started.parse()?, completed: completed.parse()? })
    }
}

/// The times of the restarts, in the order in which they began.
async fn in_order(workloads: &[Workload]) -> Result<Vec<Times>> {
    let mut all = Vec::new();
    for workload in workloads {
        all.push(Times::of(workload).await?);
    }
    all.sort_by_key(|times| times.started);
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_use_and_never_exceed_the_declared_concurrency() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let five = five(&mesh).await?;
    mesh.adopt(json!({})).await?;
    let (app, other) = (mesh.app.clone(), mesh.other.clone());
    for (number, limits, in_all, in_app, in_other) in [
        (1, json!({"maxConcurrent": 2, "maxConcurrentPerNamespace": 5}), 2, 2, 2),
        // 50% of five is 2.5, rounded up.
        (2, json!({"maxConcurrent": "50%", "maxConcurrentPerNamespace": 5}), 3, 3, 2),
        (3, json!({"maxConcurrent": 5, "maxConcurrentPerNamespace": 1}), 2, 1, 1),
    ] {
        mesh.forget().await?;
        mesh.configure_with(number, limits.clone()).await?;
        let marker = mesh.is_complete().await?;
        for workload in &five {
            workload.is_marked(&marker).await?;
        }
        let seen = mesh.restarts.most_at_once("")?;
        ensure!(seen == in_all, "{seen} at a time with {limits}: {:?}", mesh.restarts.all()?);
        for (namespace, most) in [(&app, in_app), (&other, in_other)] {
            let seen = mesh.restarts.most_at_once(namespace)?;
            ensure!(seen <= most, "{seen} at a time in {namespace} with {limits}: {:?}", mesh.restarts.all()?);
        }
        assert_eq!(mesh.restarts.all()?.len(), 5);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_interval_separates_restarts_and_the_soak_follows_each() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let mut three = Vec::new();
    for name in ["a", "b", "c"] {
        three.push(mesh.deployment(name, 1).await?);
    }
    mesh.adopt(json!({})).await?;
    mesh.configure_with(1, json!({"interval": "3s"})).await?;
    mesh.is_complete().await?;
    for pair in in_order(&three).await?.windows(2) {
        let gap = pair[1].started.duration_since(pair[0].started);
        ensure!(gap >= SignedDuration::from_secs(3), "{gap:?} between {pair:?}");
    }

    mesh.forget().await?;
    mesh.configure_with(2, json!({"interval": "0s", "soak": "2s"})).await?;
    mesh.is_complete().await?;
    assert_eq!(mesh.restarts.all()?.len(), 3);
    for pair in in_order(&three).await?.windows(2) {
        let gap = pair[1].started.duration_since(pair[0].completed);
        ensure!(gap >= SignedDuration::from_secs(2), "{gap:?} of soak between {pair:?}");
    }
    Ok(())
}
