//! Pods without a proxy as configured: they are counted and named, and restarted only with the triggers for them.

use anyhow::{Context, Result, ensure};
use e2e::{command::Ended, eventually, mesh::SOON, workload::Workload};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{COMPLETE, DEADLINE, RolloutRig};

const WITH_UNINJECTED: [&str; 4] = ["ProxyConfig", "ProxyVersion", "TrustRoots", "Uninjected"];

/// Creates an opted-in Deployment with one Pod while the API server calls no injector.
async fn late(mesh: &RolloutRig) -> Result<Workload> {
    mesh.injector.set_ready(0, false).await?;
    eventually(SOON, "the API server to call no injector", async || {
        let proxy = mesh.new_proxy().await?;
        ensure!(proxy.is_none(), "{proxy:?}");
        Ok(())
    })
    .await?;
    let late = mesh.deployment("late", 1).await?;
    assert_eq!(late.proxies().await?, [None]);
    Ok(late)
}

/// Waits until `explain --workloads` prints Pods of this workload with a problem, and returns them.
async fn uncovered(mesh: &RolloutRig, workload: &str) -> Result<Value> {
    let name = mesh.installation.full("mesh");
    eventually(DEADLINE, format_args!("explain to name the Pods of {workload}"), async || {
        let kubeconfig = mesh.installation.control_plane.kubeconfig().display().to_string();
        let args = ["explain", &name, "--workloads", "--output", "json", "--kubeconfig", &kubeconfig];
        let document = Ended::operator(&args, DEADLINE).await?.document()?;
        let rows = document["workloads"].as_array().context("no workloads")?;
        let row = rows.iter().find(|row| row["name"] == workload).context("no row")?;
        ensure!(row["uncovered"].is_array(), "{row}");
        Ok(row["uncovered"].clone())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_whose_pods_were_created_without_an_injector_is_named_and_restarted_once_with_the_trigger()
-> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    mesh.patch_namespace(&mesh.app, json!({"metadata": {"annotations": {"linkerd.io/inject": "enabled"}}})).await?;
    let web = mesh.deployment("web", 1).await?;
    mesh.adopt(json!({})).await?;
    let late = late(&mesh).await?;
    let pod = late.pods().await?.first().and_then(|pod| pod.metadata.name.clone()).context("no Pod")?;
    mesh.injector.set_ready(0, true).await?;
    mesh.rollout_is(COMPLETE).await?;
    mesh.shows(json!({"pods": {"uninjected": 1, "meshed": 1}, "summary": "1/1"})).await?;
    let uncovered = uncovered(&mesh, "late").await?;
    assert_eq!((&uncovered[0]["pod"], &uncovered[0]["reason"]), (&json!(pod), &json!("Uninjected")));
    let message = uncovered[0]["message"].as_str().unwrap_or_default();
    assert!(message.ends_with("spec.rollout.triggers does not include Uninjected"), "{message}");
    let before = late.uids().await?;
    mesh.no_more_than(0).await?;
    assert_eq!(late.uids().await?, before);
    let manager = mesh.manager.as_ref().context("no manager")?;
    manager.counts("linkerd_operator_linkerdconfig_pods", &[("class", "uninjected")], 1.0).await?;

    mesh.change(json!({"rollout": {"triggers": WITH_UNINJECTED}})).await?;
    let marker = mesh.is_complete().await?;
    late.has(1, &marker).await?;
    assert_eq!(mesh.counts([&web, &late])?, [0, 1]);
    mesh.shows(json!({"pods": {"uninjected": 0, "meshed": 2, "current": 2}, "summary": "2/2"})).await?;
    mesh.no_more_than(1).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_trigger_a_workload_is_restarted_for_the_shape_of_its_proxy_alone() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let web = mesh.deployment("web", 1).await?;
    let pinned = json!({"spec": {"template": {"metadata": {"annotations": {"config.linkerd.io/proxy-enable-native-sidecar": "true"}}}}});
    let pinned = mesh.deployment_with("pinned", 1, pinned).await?;
    mesh.adopt(json!({"rollout": {"triggers": ["TrustRoots"]}})).await?;
    mesh.change(json!({"proxy": {"nativeSidecar": false}})).await?;
    mesh.shows(json!({"pods": {"otherShape": 1}})).await?;
    let shape = uncovered(&mesh, "web").await?;
    assert_eq!(shape[0]["reason"], "ProxyShape", "{shape}");
    mesh.no_more_than(0).await?;

    mesh.change(json!({"rollout": {"triggers": ["ProxyShape"]}})).await?;
    mesh.is_complete().await?;
    assert_eq!(mesh.counts([&web, &pinned])?, [1, 0]);
    for pod in web.pods().await? {
        let names: Vec<_> =
            pod.spec.context("no spec")?.containers.into_iter().map(|container| container.name).collect();
        assert_eq!(names, ["linkerd-proxy", "web"]);
    }
    mesh.shows(json!({"pods": {"otherShape": 0}})).await?;
    mesh.no_more_than(1).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_behind_its_network_validator_is_counted_and_named() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    mesh.deployment("web", 1).await?;
    mesh.adopt(json!({})).await?;
    let pods: Api<Pod> = Api::namespaced(mesh.installation.client.clone(), &mesh.app);
    let spec = json!({
        // No kubelet starts it, so its status is the one below.
        "schedulerName": "none",
        "initContainers": [
            {"name": "linkerd-network-validator", "image": "proxy"},
            {"name": "linkerd-proxy", "image": "proxy", "restartPolicy": "Always"},
        ],
        "containers": [{"name": "app", "image": "app"}],
    });
    let labels =
        json!({"linkerd.io/control-plane-ns": mesh.installation.namespace, "linkerd-operator-e2e": "workload"});
    let pod = json!({"metadata": {"name": "stuck", "labels": labels}, "spec": spec});
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let state = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let validator = json!({"name": "linkerd-network-validator", "image": "proxy", "imageID": "", "ready": false, "restartCount": 3, "state": state});
    let status = json!({"status": {"initContainerStatuses": [validator]}});
    pods.patch_status("stuck", &PatchParams::default(), &Patch::Merge(status)).await?;
    mesh.shows(json!({"pods": {"waitingForNetwork": 1}})).await?;
    let manager = mesh.manager.as_ref().context("no manager")?;
    let series = "linkerd_operator_linkerdconfig_pods_with_problems";
    manager.counts(series, &[("problem", "waiting_for_network")], 1.0).await?;
    let stuck = uncovered(&mesh, "stuck").await?;
    assert_eq!((&stuck[0]["pod"], &stuck[0]["reason"]), (&json!("stuck"), &json!("WaitingForNetwork")));
    mesh.no_more_than(0).await?;
    Ok(())
}
