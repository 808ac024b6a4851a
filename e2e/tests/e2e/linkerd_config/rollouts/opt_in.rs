//! The restarted workloads are those that opt in. Some workloads are never restarted.

use anyhow::Result;
use e2e::workload::{Kind, opted_in, reconciled};
use serde_json::{Value, json};

use super::{RolloutRig, names, put_over};

/// A template with an old proxy that was added manually, for namespaces without an injector.
fn injected_by_hand(mesh: &RolloutRig) -> Value {
    json!({"spec": {"template": {
        "metadata": {"labels": {"linkerd.io/control-plane-ns": mesh.installation.namespace}},
        "spec": {"containers": [
            {"name": "app", "image": "app"},
            {"name": "linkerd-proxy", "image": "proxy:old", "env": [{"name": "LINKERD_CONFIG_HASH", "value": "old"}]},
        ]},
    }}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_opts_in_and_the_more_specific_one_wins_but_some_workloads_are_never_restarted() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let operator = format!("operator-of-{}", mesh.installation.namespace);
    // These workloads opt in, but are never restarted. Another test may have created the namespace.
    for namespace in ["cert-manager", &operator] {
        let _ = mesh.installation.control_plane.kubectl(&["create", "namespace", namespace]).await;
    }
    mesh.label_namespace(&mesh.other, "config.linkerd.io/admission-webhooks", "disabled").await?;
    let mut never = opted_in();
    put_over(&mut never, &injected_by_hand(&mesh));
    for namespace in [&mesh.installation.namespace, &mesh.other, "kube-system", "cert-manager", &operator] {
        mesh.put(namespace, Kind::Deployment, "never", 1, never.clone()).await?;
    }
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
    Ok(())
}
