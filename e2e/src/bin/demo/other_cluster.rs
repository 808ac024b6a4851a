//! An act: a Service has the endpoints of another cluster, which dies and returns.

use anyhow::{Result, ensure};
use e2e::{ControlPlane, Manager, Options, kubeconfig, link::link, mesh::SOON, wait::eventually};
use serde_json::{Value, json};

use crate::{Kubectl, external_workload::proxy, metrics, say};

const NAMESPACE: &str = "catalog";

pub(crate) async fn act(control_plane: &ControlPlane, manager: &Manager) -> Result<()> {
    say("A second cluster, east, with a Service bb in the namespace catalog.");
    let mut east = ControlPlane::start(Options::default()).await?;
    east.install_crds("crd/linkerd").await?;
    for cluster in [control_plane, &east] {
        cluster.kubectl(&["create", "namespace", NAMESPACE]).await?;
    }
    east.apply(&[service("bb", &json!({})), slice(&["10.1.0.1"])]).await?;
    let show = Kubectl(control_plane);
    show_slices(&east).await?;

    say(
        "A link to east, as `linkerd multicluster link` writes it, and a Service web of this cluster with the endpoints of bb in\n\
         east. A proxy receives them.",
    );
    control_plane.apply(&[link("east", "east.example", &kubeconfig::embedded_of(&east)?)]).await?;
    let annotations = json!({"annotations": {"multicluster.linkerd.io/remote-discovery": "bb@east"}});
    control_plane.apply(&[service("web", &annotations)]).await?;
    show.run(&["-n", "linkerd", "get", "secrets", "-L", "multicluster.linkerd.io/cluster-name"]).await?;
    let column = "-o=custom-columns=SERVICE:.metadata.name,MEMBERS:.metadata.annotations.multicluster\\.linkerd\\.io/remote-discovery";
    show.run(&["-n", NAMESPACE, "get", "service", "web", column]).await?;
    let mut proxy = proxy(control_plane, manager, "web.catalog.svc.cluster.local:80")?;
    proxy.prints(&["10.1.0.1", "bb.catalog@east"]).await?;

    say("The API server of east is killed. Its endpoints stay, the manager stays ready, and it says what is wrong.");
    east.stop_api_server(false).await?;
    let ready = eventually(SOON, "/ready to name the cluster", async || {
        let (status, body) = manager.get("/ready").await?;
        ensure!(status.is_success() && body.contains("cluster east: "), "{status} {body}");
        Ok(body)
    })
    .await?;
    println!("$ curl http://{}/ready\n{}", manager.admin_address(), ready.trim_end());
    metrics(manager, &["linkerd_operator_remote_cluster_staleness_seconds", "linkerd_operator_remote_cluster_objects"])
        .await?;

    say("The API server returns, and bb has a second endpoint. The proxy receives the difference.");
    east.start_api_server().await?;
    east.apply(&[slice(&["10.1.0.1", "10.1.0.2"])]).await?;
    show_slices(&east).await?;
    let news = proxy.prints(&["10.1.0.2"]).await?;
    ensure!(!news.contains("10.1.0.1 "), "the known endpoint was sent again:\n{news}");
    Ok(())
}

async fn show_slices(east: &ControlPlane) -> Result<()> {
    let columns = "-o=custom-columns=SLICE:.metadata.name,ADDRESSES:.endpoints[*].addresses[0],PORT:.ports[*].port";
    Kubectl(east).run(&["-n", NAMESPACE, "get", "endpointslices", columns]).await
}

fn service(name: &str, metadata: &Value) -> Value {
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"ports": [{"name": "http", "port": 80}]}});
    e2e::mesh::merge(&mut service, json!({ "metadata": metadata }));
    service
}

/// The slice of `bb`.
fn slice(addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
    let metadata = json!({"name": "bb-1", "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": "bb"}});
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints})
}
