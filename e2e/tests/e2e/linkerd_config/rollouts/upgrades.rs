//! New versions of the proxy.

use anyhow::{Context, Result, ensure};
use e2e::{
    eventually,
    workload::{Kind, NEVER_READY, Workload},
};
use serde_json::json;

use super::{
    super::{HELM, message},
    DEADLINE, RolloutRig,
};

async fn has_version(workload: &Workload, version: &str) -> Result<()> {
    for proxy in workload.proxies().await? {
        let proxy = proxy.context("a Pod without proxy")?;
        ensure!(proxy.version.as_deref() == Some(version), "{workload}: {proxy:?}");
    }
    Ok(())
}

/// Creates the Deployment of the proxy injector, as Linkerd's chart does.
async fn injector_deployment(mesh: &RolloutRig, version: &str) -> Result<Workload> {
    let of_template = json!({"linkerd.io/control-plane-component": "proxy-injector"});
    let labels = json!({"linkerd.io/control-plane-component": "proxy-injector", "app.kubernetes.io/version": version});
    let template = json!({"metadata": {"labels": of_template, "annotations": {"linkerd.io/inject": "disabled"}}});
    let over = json!({"metadata": {"labels": labels}, "spec": {"template": template}});
    mesh.put(&mesh.installation.namespace, Kind::Deployment, "linkerd-proxy-injector", 1, over).await
}

/// Scenario 4. Linkerd supports proxies that are older than the control plane, not newer ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_version_reaches_the_control_plane_first() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let injector = injector_deployment(&mesh, "edge-26.8.3").await?;
    let web = mesh.deployment("web", 1).await?;
    mesh.adopt(json!({})).await?;
    mesh.is_complete().await?;
    mesh.forget().await?;
    let upgraded = HELM.replace("linkerdVersion: edge-26.8.3", "linkerdVersion: edge-26.9.1");
    mesh.installation.rewrite("helm", &upgraded).await?;
    let status = mesh.rollout_is("False/WaitingForControlPlane").await?;
    let why = message(&status, "RolloutComplete")?;
    for part in ["linkerd-proxy-injector", "edge-26.8.3", "edge-26.9.1"] {
        assert!(why.contains(part), "{part} should be in {why}");
    }
    mesh.no_more_than(0).await?;

    let with_image = |image: &str| {
        let container = json!({"name": "linkerd-proxy-injector", "image": image});
        let labels = json!({"app.kubernetes.io/version": "edge-26.9.1"});
        json!({"metadata": {"labels": labels}, "spec": {"template": {"spec": {"containers": [container]}}}})
    };
    injector.patch(with_image(&format!("injector:{NEVER_READY}"))).await?;
    eventually(DEADLINE, "the rollout to wait for the update of the injector", async || {
        let status = mesh.rollout_is("False/WaitingForControlPlane").await?;
        let why = message(&status, "RolloutComplete")?;
        ensure!(why.contains("the update of Deployment linkerd-proxy-injector is not complete"), "{why}");
        Ok(())
    })
    .await?;
    // The injector's own update is a change of its template, which is not a restart.
    assert_eq!(mesh.counts([&web])?, [0]);
    injector.patch(with_image("injector:edge-26.9.1")).await?;
    eventually(DEADLINE, "the upgrade", async || has_version(&web, "edge-26.9.1").await).await?;
    assert_eq!(mesh.rollout_is(super::COMPLETE).await?["proxyVersion"], "edge-26.9.1");
    assert_eq!(mesh.counts([&web])?, [1]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_that_waits_for_too_long_is_shown_by_a_metric() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    injector_deployment(&mesh, "edge-26.8.3").await?;
    mesh.deployment("web", 1).await?;
    mesh.adopt(json!({"rollout": {"progressDeadline": "1s"}})).await?;
    mesh.change(json!({"proxy": {"proxyVersion": "edge-26.9.1"}})).await?;
    let status = mesh.rollout_is("False/WaitingForControlPlane").await?;
    assert!(message(&status, "VersionSkew")?.contains("newer than the control plane"), "{status}");
    let has_progress = async |expected: f64| {
        eventually(DEADLINE, format_args!("a metric of {expected}"), async || {
            let manager = mesh.manager.as_ref().context("no manager")?;
            let seen = manager.metric("linkerd_operator_linkerdconfig_rollout_no_progress", &[]).await;
            ensure!(seen == Some(expected), "{seen:?}");
            Ok(())
        })
        .await
    };
    has_progress(1.0).await?;
    // The reason that names the cause stays.
    mesh.rollout_is("False/WaitingForControlPlane").await?;
    mesh.change(json!({"proxy": {"proxyVersion": null}})).await?;
    mesh.is_complete().await?;
    has_progress(0.0).await
}
