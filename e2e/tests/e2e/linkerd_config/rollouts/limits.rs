//! The number of concurrent restarts, and the pauses between them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::workload::{Kind, Workload, opted_in};
use serde_json::{Value, json};

use super::{RolloutRig, put_over};

/// Slows a restart down, so that restarts overlap if the limits allow it.
fn slow(seconds: u32) -> Value {
    json!({"spec": {"minReadySeconds": seconds}})
}

/// Creates three workloads in one namespace and two in another.
async fn five(mesh: &RolloutRig) -> Result<Vec<Workload>> {
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

#[tokio::test(flavor = "multi_thread")]
async fn restarts_use_and_never_exceed_the_declared_concurrency() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
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

/// The times are lower bounds: a busy machine takes longer.
#[tokio::test(flavor = "multi_thread")]
async fn the_interval_separates_restarts_and_the_soak_follows_each() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    mesh.three(1, 0).await?;
    mesh.adopt(json!({})).await?;
    for (number, pause, least) in [
        (1, json!({"interval": "5s"}), Duration::from_secs(10)),
        (2, json!({"interval": "0s", "soak": "4s"}), Duration::from_secs(8)),
    ] {
        mesh.forget().await?;
        let begun = Instant::now();
        mesh.configure_with(number, pause).await?;
        mesh.is_complete().await?;
        assert_eq!(mesh.restarts.all()?.len(), 3);
        ensure!(begun.elapsed() >= least, "{:?} for three restarts", begun.elapsed());
    }
    Ok(())
}
