//! Linkerd's definitions, as the API server takes them.

use std::time::Duration;

use anyhow::{Context, Result};
use e2e::{TestNamespace, eventually};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};

#[tokio::test]
async fn external_workloads_are_taken_in_both_versions() -> Result<()> {
    let control_plane = e2e::shared().await?;
    control_plane.install_crds("crd/linkerd").await?;
    let namespace = TestNamespace::create(&control_plane.client().await?, "crd").await?;

    let tls = json!({"identity": "spiffe://root.linkerd.cluster.local/vm", "serverName": "vm.example"});
    let addresses = json!([{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}]);
    let spec = json!({"meshTLS": tls, "ports": [{"port": 80}], "workloadIPs": addresses});
    let created = create(&namespace, "v1beta1", "beta", spec).await?;
    let protocol = created.data.pointer("/spec/ports/0/protocol");
    assert_eq!(protocol, Some(&json!("TCP")));

    let one = json!([{"ip": "192.0.2.1"}]);
    create(&namespace, "v1alpha1", "alpha", json!({"meshTls": tls, "workloadIPs": one})).await?;
    let refused = create(&namespace, "v1alpha1", "two", json!({"meshTls": tls, "workloadIPs": addresses})).await;
    let error = refused.err().context("v1alpha1 took two addresses")?;
    assert!(error.to_string().contains("must have at most 1 item"), "{error}");
    let refused = create(&namespace, "v1beta1", "bare", json!({})).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("spec.meshTLS")));

    // Discovery, which knows the categories, follows a little later than the paths.
    let shown = eventually(Duration::from_secs(30), "kubectl to know the category", async || {
        control_plane.kubectl(&["get", "external", "-n", namespace.name()]).await
    })
    .await?;
    let mut lines = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(lines.next(), Some(vec!["NAME", "IDENTITY", "AGE"]), "{shown}");
    assert!(lines.any(|line| line.starts_with(&["beta", "spiffe://root.linkerd.cluster.local/vm"])), "{shown}");
    let label = ["get", "crd", "externalworkloads.workload.linkerd.io", "-o", "jsonpath={.metadata.labels}"];
    assert_eq!(control_plane.kubectl(&label).await?, r#"{"app.kubernetes.io/managed-by":"linkerd-operator"}"#);
    Ok(())
}

async fn create(namespace: &TestNamespace, version: &str, name: &str, spec: Value) -> kube::Result<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("workload.linkerd.io", version, "ExternalWorkload"));
    let api: Api<DynamicObject> = Api::namespaced_with(namespace.client().clone(), namespace.name(), &kind);
    let object = DynamicObject::new(name, &kind).data(json!({"spec": spec}));
    api.create(&PostParams::default(), &object).await
}
