//! The restarted workloads: those that opt in, or all that do not opt out. Some workloads are never restarted.

use anyhow::Result;
use e2e::workload::{self, Kind, Workload, opted_in, reconciled};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

use super::{Mesh, names, put_over};

/// A template with an old proxy that was added manually, for namespaces without an injector.
fn injected_by_hand(mesh: &Mesh) -> Value {
    json!({"spec": {"template": {
        "metadata": {"labels": {"linkerd.io/control-plane-ns": mesh.installation.namespace}},
        "spec": {"containers": [
            {"name": "app", "image": "app"},
            {"name": "linkerd-proxy", "image": "proxy:old", "env": [{"name": "LINKERD_CONFIG_HASH", "value": "old"}]},
        ]},
    }}})
}

async fn put_namespace(mesh: &Mesh, name: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(mesh.installation.client.clone());
    // Another test may have created it.
    let _ =
        namespaces.create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": name}}))?).await;
    Ok(())
}

/// Creates workloads that are opted in, but must never be restarted.
async fn put_workloads_that_are_never_restarted(mesh: &Mesh, operator: &str) -> Result<Vec<Workload>> {
    for namespace in ["cert-manager", operator] {
        put_namespace(mesh, namespace).await?;
    }
    mesh.label_namespace(&mesh.other, "config.linkerd.io/admission-webhooks", "disabled").await?;
    let mut object = opted_in();
    put_over(&mut object, &injected_by_hand(mesh));
    let mut put = Vec::new();
    for namespace in [&mesh.installation.namespace, &mesh.other, "kube-system", "cert-manager", operator] {
        put.push(mesh.put(namespace, Kind::Deployment, "never", 1, object.clone()).await?);
    }
    Ok(put)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_opts_in_and_the_more_specific_one_wins_but_some_workloads_are_never_restarted() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let operator = format!("operator-of-{}", mesh.installation.namespace);
    let never = put_workloads_that_are_never_restarted(&mesh, &operator).await?;
    let app = mesh.app.clone();
    let put = async |name: &str, over: Value| mesh.put(&app, Kind::Deployment, name, 1, over).await;
    let template = |part: &str, value: &str| json!({"spec": {"template": {"metadata": {part: {"config.linkerd.io/reconcile": value}}}}});
    put("by-namespace", json!({})).await?;
    put("disabled", reconciled("disabled")).await?;
    let observed = put("observed", reconciled("observe")).await?;
    put("template-disabled", template("annotations", "disabled")).await?;
    put("template-auto", template("labels", "auto")).await?;
    mesh.label_namespace(&mesh.app, "config.linkerd.io/reconcile", "auto").await?;
    mesh.manager = Some(mesh.installation.manager_with(&[&format!("--operator-namespace={operator}")]).await?);
    mesh.declare(json!({})).await?;
    // Once the others are done, only the observed workload is outdated.
    mesh.configure(1).await?;
    let marker = mesh.is_complete().await?;
    assert_eq!(mesh.restarted()?, names(["by-namespace", "template-auto"]));
    assert!(observed.is_marked(&marker).await.is_err());
    mesh.shows(json!({"workloads": {"selected": 2, "updated": 2}, "summary": "2/2"})).await?;
    mesh.no_more_than(2).await?;

    // The observed workload opts in later.
    observed.patch(reconciled("auto")).await?;
    observed.gets(1, &marker).await?;
    mesh.shows(json!({"summary": "3/3"})).await?;
    assert_eq!(mesh.restarts.all()?.len(), 3);
    assert_eq!(mesh.restarted()?, names(["by-namespace", "template-auto", "observed"]));
    drop(never);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_opt_in_all_every_workload_that_does_not_opt_out_is_restarted() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let operator = format!("operator-of-{}", mesh.installation.namespace);
    put_workloads_that_are_never_restarted(&mesh, &operator).await?;
    let app = mesh.app.clone();
    let client = mesh.installation.client.clone();
    let put = async |namespace: &str, name: &str, over: Value| {
        let put = workload::put(&client, namespace, Kind::Deployment, name, 1, over).await?;
        put.is_settled(1).await?;
        anyhow::Ok(put)
    };
    let tier = json!({"metadata": {"labels": {"tier": "front"}}});
    put(&app, "plain", json!({})).await?;
    put(&app, "front", tier.clone()).await?;
    put(&app, "disabled", reconciled("disabled")).await?;
    mesh.manager = Some(mesh.installation.manager_with(&[&format!("--operator-namespace={operator}")]).await?);
    mesh.declare(json!({"rollout": {"optIn": "All"}})).await?;
    mesh.rollout_is(super::COMPLETE).await?;
    mesh.configure(1).await?;
    mesh.is_complete().await?;
    assert_eq!(mesh.restarted()?, names(["front", "plain"]));

    // The selectors restrict the workloads.
    mesh.forget().await?;
    let selectors = json!({
        "workloadSelector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["front", "back"]}]},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": app}},
    });
    mesh.configure_with(2, selectors).await?;
    mesh.is_complete().await?;
    assert_eq!(mesh.restarted()?, names(["front"]));

    mesh.forget().await?;
    mesh.label_namespace(&app, "config.linkerd.io/reconcile", "disabled").await?;
    mesh.configure_with(3, json!({"workloadSelector": null, "namespaceSelector": null})).await?;
    mesh.rollout_is("True/NothingSelected").await?;
    mesh.no_more_than(0).await?;
    mesh.patch_namespace(&app, json!({"metadata": {"labels": {"config.linkerd.io/reconcile": null}}})).await?;
    mesh.is_complete().await?;
    assert_eq!(mesh.restarted()?, names(["front", "plain"]));
    Ok(())
}
