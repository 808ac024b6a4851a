//! The controller in the manager: a prerequisite, and metrics. `../process.rs` has the other prerequisites.

use anyhow::{Context, Result, ensure};
use e2e::{eventually, holds, mesh::SOON};
use hyper::StatusCode;
use serde_json::json;

use super::{HELM, Installation, QUIET, WELL};

#[tokio::test(flavor = "multi_thread")]
async fn without_the_namespace_of_its_lease_the_manager_waits_and_reports_it() -> Result<()> {
    let installation = Installation::new().await?;
    let nowhere = installation.full("operator");
    let manager = installation.manager_with(&[&format!("--operator-namespace={nowhere}")]).await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    eventually(SOON, "/ready to name the missing object", async || {
        let (status, body) = manager.get("/ready").await?;
        ensure!(status == StatusCode::OK && body.contains(&nowhere), "{status} {body}");
        Ok(())
    })
    .await?;
    holds(QUIET, "that nothing is written", async || {
        let writes = installation.writes(&installation.namespace);
        ensure!(writes.is_empty() && installation.text().await? == HELM, "{writes:?}");
        Ok(())
    })
    .await?;
    installation.control_plane.create_namespaces(&[&nowhere]).await?;
    installation.reaches("mesh", &WELL).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_show_the_current_state_and_count_the_writes() -> Result<()> {
    let (installation, manager) = Installation::adopted(json!({"proxy": {"accessLog": "json"}})).await?;
    let status = installation.reaches("mesh", &WELL).await?;
    installation.declare("other", json!({"priority": -1})).await?;
    installation.reaches("other", &["Accepted=False/Conflicted"]).await?;
    installation.edit("another-editor", json!({"imagePullPolicy": "Always"})).await?;
    installation.expect_config_map_event("DriftReverted").await?;
    let (mesh, other) = (installation.full("mesh"), installation.full("other"));
    let hash = status["configHash"].as_str().context("no hash")?;
    let info = "linkerd_operator_linkerdconfig_info";
    let condition = "linkerd_operator_linkerdconfig_condition";
    for (name, labels) in [
        (info, vec![("name", mesh.as_str()), ("active", "true"), ("config_hash", hash)]),
        (info, vec![("name", &other), ("active", "false")]),
        (condition, vec![("name", &mesh), ("type", "Ready"), ("status", "True"), ("reason", "Reconciled")]),
        (condition, vec![("name", &mesh), ("type", "ConfigMapSynced"), ("status", "True")]),
        (condition, vec![("name", &other), ("type", "Accepted"), ("status", "False"), ("reason", "Conflicted")]),
        ("linkerd_operator_linkerdconfig_drift_total", vec![("manager", "other")]),
    ] {
        let seen = eventually(SOON, format_args!("{name} {labels:?}"), async || {
            manager.metric(name, &labels).await.context("the series is absent")
        })
        .await?;
        assert_eq!(seen, 1.0, "{name} {labels:?}");
    }
    let writes = manager.metric("linkerd_operator_linkerdconfig_configmap_writes_total", &[]).await;
    assert_eq!(writes, Some(2.0));
    let samples = manager.metrics().await?;
    let drift = samples.iter().filter(|sample| sample.name == "linkerd_operator_linkerdconfig_drift_total");
    for sample in drift {
        assert!(
            !sample.has(&[("manager", "another-editor")]),
            "the name of a manager must not become a label: {sample:?}"
        );
    }
    // Each resource has one series; those of earlier states are deleted.
    installation.delete_and_wait("other").await?;
    installation.change("mesh", json!({"values": {"proxy": {"UID": 7}}})).await?;
    installation.reaches("mesh", &["Accepted=False/Invalid"]).await?;
    eventually(SOON, "the old series to be deleted", async || {
        let samples = manager.metrics().await?;
        let of = |name: &str| samples.iter().filter(|sample| sample.name == name).cloned().collect::<Vec<_>>();
        ensure!(of(info).len() == 1, "{:?}", of(info));
        let ready = of(condition).into_iter().filter(|sample| sample.has(&[("type", "Ready")]) && sample.value == 1.0);
        let ready = ready.collect::<Vec<_>>();
        ensure!(ready.len() == 1 && ready[0].has(&[("status", "False")]), "{ready:?}");
        Ok(())
    })
    .await
}
