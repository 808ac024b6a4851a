//! The EndpointSlices that Kubernetes writes for a Deployment that restarts: the usual case in a mesh.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{discovery::Endpoints, eventually};
use k8s_openapi::api::{apps::v1::Deployment, discovery::v1::EndpointSlice};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{QUIET, Served, objects::service};

const DEADLINE: Duration = Duration::from_secs(60);

/// Creates a Deployment and a Service that selects it, both with this name.
async fn deploy(rig: &Served, name: &str, replicas: u32) -> Result<()> {
    let labels = json!({ "app": name });
    let meshed = json!({"app": name, "linkerd.io/control-plane-ns": "linkerd"});
    let container = json!({"name": "app", "image": "app", "ports": [{"name": "web", "containerPort": 8080}]});
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": meshed}, "spec": {"containers": [container]}}},
    }))?;
    rig.namespace.api().create(&PostParams::default(), &deployment).await?;
    let ports = json!([{"name": "http", "port": 80, "targetPort": "web"}]);
    rig.put(service(name).with(json!({"spec": {"selector": labels, "ports": ports}}))).await
}

async fn patch(rig: &Served, name: &str, patch: Value) -> Result<()> {
    rig.namespace.api::<Deployment>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Waits until all Pods have the current template and the slices have `count` ready addresses; returns the addresses.
async fn published(rig: &Served, name: &str, count: usize) -> Result<BTreeSet<SocketAddr>> {
    let deployments = rig.namespace.api::<Deployment>();
    let slices = rig.namespace.api::<EndpointSlice>();
    let params = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
    eventually(DEADLINE, format_args!("{count} published endpoints of {name}"), async || {
        let deployment = deployments.get(name).await?;
        let status = deployment.status.unwrap_or_default();
        ensure!(
            status.observed_generation == deployment.metadata.generation,
            "the Deployment controller has not observed the change yet"
        );
        let replicas = [status.replicas, status.updated_replicas, status.ready_replicas].map(Option::unwrap_or_default);
        ensure!(replicas.iter().all(|replicas| usize::try_from(*replicas) == Ok(count)), "{replicas:?} replicas");
        let mut addresses = BTreeSet::new();
        for slice in slices.list(&params).await? {
            let port = slice.ports.iter().flatten().find_map(|port| port.port);
            for endpoint in &slice.endpoints {
                if endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true) {
                    let ip: IpAddr = endpoint.addresses.first().context("an endpoint without address")?.parse()?;
                    addresses.insert(SocketAddr::new(ip, u16::try_from(port.context("no port")?)?));
                }
            }
        }
        ensure!(addresses.len() == count, "{addresses:?}");
        Ok(addresses)
    })
    .await
}

async fn converges(stream: &mut Endpoints, published: &BTreeSet<SocketAddr>) -> Result<()> {
    stream.until(&format!("{published:?}"), |known| known.keys().eq(published)).await
}

#[tokio::test]
async fn a_stream_follows_a_restart_to_the_new_pods_and_is_never_empty() -> Result<()> {
    let rig = Served::start("restart").await?;
    deploy(&rig, "web", 3).await?;
    let before = published(&rig, "web", 3).await?;
    let mut stream = rig.get("web:80").await?;
    converges(&mut stream, &before).await?;
    for endpoint in stream.known.values() {
        let labels = &endpoint.metric_labels;
        ensure!(labels.get("deployment").is_some_and(|name| name == "web"), "{labels:?}");
        ensure!(labels.contains_key("pod_template_hash") && labels["serviceaccount"] == "default", "{labels:?}");
    }
    let restarted = json!({"spec": {"template": {"metadata": {"annotations": {"restarted": "once"}}}}});
    patch(&rig, "web", restarted).await?;
    let after = published(&rig, "web", 3).await?;
    ensure!(before.is_disjoint(&after), "{before:?} and {after:?}");
    // The minimum is taken after every message, because a proxy may have to work with that state.
    let mut fewest = stream.known.len();
    stream
        .until(&format!("{after:?}"), |known| {
            fewest = fewest.min(known.len());
            known.keys().eq(&after)
        })
        .await?;
    ensure!(fewest >= 2, "the stream had only {fewest} endpoints during the restart");
    stream.is_quiet_for(QUIET).await
}
