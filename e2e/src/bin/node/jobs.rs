//! The operator's three controllers, tested from outside of the cluster.

use std::{net::SocketAddr, time::Instant};

use anyhow::{Result, ensure};
use e2e::{
    ControlPlane,
    discovery::{Discovery, token},
    eventually,
    mesh::{Mesh, SOON},
    real_node,
    shipped::in_repository,
};
use kube::Client;
use serde_json::json;

pub(crate) const NAMESPACE: &str = "mixed";
const CONFIG_MAP: [&str; 6] = ["-n", "linkerd", "get", "configmap", "linkerd-config", "-o=jsonpath={.data.values}"];

/// ExternalWorkloads become endpoints of a Service, in its EndpointSlices and for a client at `outside`.
pub(crate) async fn external_workload(
    control_plane: &ControlPlane,
    client: &Client,
    outside: SocketAddr,
) -> Result<()> {
    let begun = Instant::now();
    control_plane.kubectl(&["create", "namespace", NAMESPACE]).await?;
    let mesh = Mesh::new(client, NAMESPACE);
    mesh.put_service("legacy", json!({})).await?;
    mesh.put_workload("vm-1", "legacy", &["192.0.2.11"]).await?;
    mesh.put_workload("vm-2", "legacy", &["192.0.2.12"]).await?;
    mesh.shows("legacy", &[("vm-1", true), ("vm-2", true)]).await?;
    mesh.expect_event("vm-1", "Published").await?;
    crate::step("ExternalWorkload: two workloads are in an EndpointSlice", begun);

    let begun = Instant::now();
    let discovery = Discovery::connect(outside).await?;
    let path = format!("legacy.{NAMESPACE}.svc.cluster.local:80");
    let mut endpoints = discovery.get(&path, &token(NAMESPACE, real_node::NAME)).await?;
    endpoints.shows(&["192.0.2.11:80", "192.0.2.12:80"]).await?;
    mesh.set_ready("vm-2", false).await?;
    endpoints.shows(&["192.0.2.11:80"]).await?;
    mesh.set_ready("vm-2", true).await?;
    endpoints.shows(&["192.0.2.11:80", "192.0.2.12:80"]).await?;
    crate::step("Destination: a client outside receives them, and each change, through a NodePort", begun);
    Ok(())
}

/// A resource owns the proxy configuration, and a manual edit is reverted.
pub(crate) async fn linkerd_config(control_plane: &ControlPlane) -> Result<()> {
    let begun = Instant::now();
    let declared = in_repository("config/samples/linkerdconfig-minimal.yaml");
    control_plane.kubectl(&["apply", "-f", &declared]).await?;
    has(control_plane, "accessLog: apache").await?;
    let edited = control_plane.kubectl(&CONFIG_MAP).await?.replace("accessLog: apache", "accessLog: json");
    let patch = json!({"data": {"values": edited}}).to_string();
    control_plane
        .kubectl(&["-n", "linkerd", "patch", "configmap", "linkerd-config", "--type=merge", "-p", &patch])
        .await?;
    has(control_plane, "accessLog: apache").await?;
    crate::step("LinkerdConfig: the ConfigMap has the declared value, and a manual edit was reverted", begun);
    Ok(())
}

async fn has(control_plane: &ControlPlane, line: &str) -> Result<()> {
    eventually(SOON, format_args!("linkerd-config to have {line:?}"), async || {
        let values = control_plane.kubectl(&CONFIG_MAP).await?;
        ensure!(values.contains(line), "{values}");
        Ok(())
    })
    .await
}
