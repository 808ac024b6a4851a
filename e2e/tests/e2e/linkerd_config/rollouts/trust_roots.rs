//! New trust anchors: the control plane is restarted first, and a bundle without any of the old anchors needs approval.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use super::{
    super::{
        HELM, Installation, Lent,
        trust_anchors::{certificate, hash},
    },
    RolloutRig,
};
use e2e::{eventually, workload};

/// A mesh with an external authority, so that the anchors are not copied into the document.
async fn of_external_authority() -> Result<(RolloutRig, String)> {
    let installation = Installation::on(std::sync::Arc::new(Lent::take_with_nodes().await?)).await?;
    let bundle = certificate("root.linkerd.cluster.local")?;
    installation.put_trust_roots(&bundle).await?;
    let external = HELM.replace("  externalCA: false", "  externalCA: true");
    ensure!(external != HELM, "the document has another form");
    installation.put_map(json!({"data": {"values": external}})).await?;
    Ok((RolloutRig::on(installation, 1).await?, bundle))
}

/// Creates the Pod of the control plane, which has a proxy, or replaces it.
async fn control_plane_pod(mesh: &RolloutRig) -> Result<()> {
    let namespace = &mesh.installation.namespace;
    let pods: Api<Pod> = Api::namespaced(mesh.installation.client.clone(), namespace);
    let old = pods.delete("linkerd-destination", &DeleteParams::default().grace_period(0)).await;
    if old.is_ok() {
        // Timestamps have a resolution of one second.
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    let pod = json!({
        "metadata": {
            "name": "linkerd-destination",
            "labels": {
                "linkerd.io/control-plane-component": "destination", "linkerd.io/control-plane-ns": namespace,
                "linkerd-operator-e2e": "workload",
            },
        },
        "spec": {"containers": [{"name": "linkerd-proxy", "image": "proxy"}, {"name": "destination", "image": "controller"}]},
    });
    eventually(super::DEADLINE, "a Pod of the control plane", async || {
        pods.create(&PostParams::default(), &serde_json::from_value(pod.clone())?).await?;
        Ok(())
    })
    .await
}

async fn has_roots(workload: &workload::Workload, bundle: &str) -> Result<()> {
    for proxy in workload.proxies().await? {
        let anchors = proxy.context("a Pod without proxy")?.trust_anchors;
        ensure!(anchors.as_deref() == Some(bundle), "{workload} has {anchors:?}");
    }
    Ok(())
}

/// Scenario 5.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_anchor_reaches_the_control_plane_first() -> Result<()> {
    let (mut mesh, bundle) = of_external_authority().await?;
    control_plane_pod(&mesh).await?;
    let (web, api) = (mesh.deployment("web", 1).await?, mesh.deployment("api", 1).await?);
    mesh.adopt(json!({})).await?;
    let marker = mesh.is_complete().await?;
    mesh.is_quiet().await?;
    let writes = mesh.installation.writes("/configmaps/").len();
    tokio::time::sleep(Duration::from_millis(1100)).await;

    let both = format!("{bundle}{}", certificate("next.linkerd.cluster.local")?);
    mesh.installation.set_trust_roots(&both).await?;
    mesh.rollout_is("False/WaitingForControlPlane").await?;
    mesh.no_more_than(0).await?;
    control_plane_pod(&mesh).await?;
    for workload in [&web, &api] {
        eventually(super::DEADLINE, "the new anchors", async || has_roots(workload, &both).await).await?;
    }
    assert_eq!(mesh.is_complete().await?, marker);
    assert_eq!(mesh.counts([&web, &api])?, [1, 1]);
    for workload in [&web, &api] {
        assert_eq!(workload.restarted_for().await?, Some(format!("{marker}-{}", &hash(&both)[..8])));
    }
    assert_eq!(mesh.installation.writes("/configmaps/").len(), writes);
    Ok(())
}

/// Trap 9: proxies with the new anchors could not connect to proxies with the old ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_without_any_of_the_old_anchors_needs_approval() -> Result<()> {
    let (mut mesh, _) = of_external_authority().await?;
    let web = mesh.deployment("web", 1).await?;
    mesh.adopt(json!({})).await?;
    let new = certificate("other.linkerd.cluster.local")?;
    mesh.installation.set_trust_roots(&new).await?;
    mesh.rollout_is("False/AwaitingApproval").await?;
    // The Pods show what they trust, also to a new resource.
    mesh.installation.delete_and_wait("mesh").await?;
    mesh.declare(json!({})).await?;
    mesh.rollout_is("False/AwaitingApproval").await?;
    // An approval applies only to the bundle with this hash.
    mesh.annotate("approve-trust-roots", &hash("something else")).await?;
    mesh.no_more_than(0).await?;
    mesh.rollout_is("False/AwaitingApproval").await?;
    mesh.annotate("approve-trust-roots", &hash(&new)).await?;
    eventually(super::DEADLINE, "the new anchors", async || has_roots(&web, &new).await).await?;
    mesh.is_complete().await?;
    assert_eq!(mesh.counts([&web])?, [1]);
    Ok(())
}
