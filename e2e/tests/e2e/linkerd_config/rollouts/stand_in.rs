//! Checks of the test environment, without a manager: Pods are injected, restarts are observed, and an image may never
//! run.

use anyhow::{Context, Result, ensure};
use e2e::{
    eventually, holds,
    workload::{Kind, NEVER_READY, RESTARTED_FOR},
};
use serde_json::{Value, json};

use super::{DEADLINE, Mesh, QUIET, opted_in};

fn restart(value: &str) -> Value {
    json!({"spec": {"template": {"metadata": {"annotations": {RESTARTED_FOR: value}}}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn workloads_of_each_kind_are_injected_and_their_restarts_are_observed() -> Result<()> {
    let mesh = Mesh::new().await?;
    let web = mesh.deployment("web", 2).await?;
    let store = mesh.put(&mesh.app, Kind::StatefulSet, "store", 2, opted_in()).await?;
    // One Pod on each node.
    let agent = mesh.put(&mesh.other, Kind::DaemonSet, "agent", 2, opted_in()).await?;
    for (number, workload) in [&web, &store, &agent].into_iter().enumerate() {
        for proxy in workload.proxies().await? {
            let proxy = proxy.with_context(|| format!("{workload} has a Pod without proxy"))?;
            assert_eq!((proxy.marker, proxy.version.as_deref()), (None, Some("edge-26.8.3")));
        }
        let before = workload.uids().await?;
        workload.patch(restart("once")).await?;
        eventually(DEADLINE, format_args!("the restart of {workload}"), async || {
            let seen = mesh.restarts.of(workload)?;
            ensure!(seen.len() == 1 && seen[0].settled.is_some(), "{seen:?}");
            Ok(())
        })
        .await?;
        assert!(before.is_disjoint(&workload.uids().await?));
        assert_eq!(mesh.restarts.all()?.len(), number + 1);
    }
    assert_eq!(mesh.restarts.most_at_once("")?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_never_ready_stops_a_restart_and_no_old_pod_is_deleted() -> Result<()> {
    let mesh = Mesh::new().await?;
    let web = mesh.deployment("web", 2).await?;
    let before = web.uids().await?;
    let container =
        |image: &str| json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": image}]}}}});
    web.patch(container(&format!("web:{NEVER_READY}"))).await?;
    eventually(DEADLINE, "a new Pod", async || {
        ensure!(web.uids().await?.len() == 3, "{:?}", web.uids().await?);
        Ok(())
    })
    .await?;
    holds(QUIET, "the old Pods, and a new one that is not ready", async || {
        let now = web.uids().await?;
        ensure!(now.is_superset(&before) && now.len() == 3, "{before:?}, then {now:?}");
        Ok(())
    })
    .await?;
    web.patch(container("web")).await?;
    web.is_settled(2).await?;
    assert_eq!(web.uids().await?, before);
    assert_eq!(mesh.counts([&web])?, [0]);
    Ok(())
}
