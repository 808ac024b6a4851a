//! A manager whose dashboard has something on each of its parts, and a client that reads it as a browser does.

mod mesh;

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use hyper::{Method, StatusCode};
use k8s_openapi::api::{apps::v1::Deployment, discovery::v1::EndpointSlice};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpStream,
    time::timeout,
};

use crate::{
    ControlPlane, LinkerdConfigs, Manager, ManagerOptions, Options, injector::reviews::INSTALLED, mesh::SOON, port,
    shipped::in_repository, wait::eventually,
};

const DEADLINE: Duration = Duration::from_secs(10);

/// A cluster with a Service, a LinkerdConfig that changes the log level of proxies, and two workloads with old Pods, of
/// which one has opted in to restarts.
pub struct DashboardWorld {
    pub control_plane: ControlPlane,
    pub manager: Manager,
}

/// The server-sent events about an authority.
pub struct Followed(Lines<BufReader<TcpStream>>);

// === impl DashboardWorld ===

impl DashboardWorld {
    /// The authority of the Service.
    pub const AUTHORITY: &str = "web.shop.svc.cluster.local:80";
    pub const IDENTITY: &str = "operator-1";

    pub async fn start() -> Result<Self> {
        let control_plane = ControlPlane::start(Options::default()).await?;
        control_plane.install_crds("crd").await?;
        let external_workloads = in_repository("crd/linkerd/externalworkloads.yaml");
        control_plane.kubectl(&["apply", "--server-side", "-f", &external_workloads]).await?;
        control_plane
            .apply(&[
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "linkerd"}}),
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}),
            ])
            .await?;
        let marker = "0123456789abcdef";
        let mut objects = vec![
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "linkerd-config", "namespace": "linkerd"},
                "data": {"values": INSTALLED}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
                "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}),
            slice(&["192.0.2.11", "192.0.2.12"]),
        ];
        for (name, labels) in [("web", json!({"config.linkerd.io/reconcile": "auto"})), ("db", json!({}))] {
            objects.extend(workload("shop", name, &labels, marker));
        }
        control_plane.apply(&objects).await?;
        for name in ["web", "db"] {
            is_available(&control_plane.client().await?, "shop", name).await?;
        }
        LinkerdConfigs::new(&control_plane.client().await?)
            .create("mesh", json!({"proxy": {"logLevel": "debug"}}))
            .await?;
        let args = [
            "--enable-webhooks".to_owned(),
            "--webhook-certificate-secret=linkerd-operator-webhook".to_owned(),
            format!("--webhook-addr=127.0.0.1:{}", port::free()?),
        ];
        let identity = Some(Self::IDENTITY.to_owned());
        let options = ManagerOptions { identity, ..ManagerOptions::new(args) };
        Ok(Self { manager: options.ready(&control_plane).await?, control_plane })
    }

    /// Returns the JSON at a path of the dashboard.
    pub async fn json(&self, path: &str) -> Result<Value> {
        let (status, body) = self.manager.get(&format!("/dashboard/{path}")).await?;
        ensure!(status == StatusCode::OK, "{status}: {body}");
        Ok(serde_json::from_str(&body)?)
    }

    /// Replaces the addresses of the Service.
    pub async fn set_addresses(&self, addresses: &[&str]) -> Result<()> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.control_plane.client().await?, "shop");
        let patch = Patch::Merge(slice(addresses));
        slices.patch("web-1", &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until the opted-in workload is shown as one that waits for its restart.
    pub async fn shows_rollout(&self) -> Result<Value> {
        eventually(SOON, "the rollout on the dashboard", async || {
            let config = self.json("config.json?name=mesh").await?;
            let first = config.pointer("/workloads/0").context("no workload")?;
            ensure!(first.get("decision") == Some(&json!("Pending")), "{first}");
            Ok(config)
        })
        .await
    }
}

// === impl Followed ===

impl Followed {
    /// Follows an authority on the admin server at this address.
    pub async fn connect(admin: SocketAddr, authority: &str) -> Result<Self> {
        let mut stream = TcpStream::connect(admin).await?;
        let request = format!("GET /dashboard/stream?authority={authority} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        Ok(Self(BufReader::new(stream).lines()))
    }

    /// Returns the data of the next event of this name.
    pub async fn next(&mut self, name: &str) -> Result<Value> {
        let expected = format!("event: {name}");
        let read = async {
            let mut is_next = false;
            while let Some(line) = self.0.next_line().await? {
                if let (true, Some(data)) = (is_next, line.strip_prefix("data: ")) {
                    return Ok(serde_json::from_str(data)?);
                }
                is_next = line == expected;
            }
            anyhow::bail!("the response ended before an event {name}")
        };
        timeout(DEADLINE, read).await.with_context(|| format!("no event {name} within {DEADLINE:?}"))?
    }

    /// Waits until the response ends.
    pub async fn ends(&mut self) -> Result<()> {
        let read = async {
            // The last chunk has no bytes.
            while let Some(line) = self.0.next_line().await? {
                if line == "0" {
                    break;
                }
            }
            Ok(())
        };
        timeout(DEADLINE, read).await.with_context(|| format!("the response did not end within {DEADLINE:?}"))?
    }
}

/// Sends one GET with this `Host`, and returns the status.
pub async fn status_for_host(admin: SocketAddr, host: &str) -> Result<StatusCode> {
    let request = http::Request::builder().method(Method::GET).uri("/dashboard/overview.json").header("host", host);
    let stream = TcpStream::connect(admin).await?;
    let answer = crate::plain_http::exchanged(stream, request.body(http_body_util::Full::default())?);
    Ok(timeout(DEADLINE, answer).await.context("no answer")??.0)
}

fn slice(addresses: &[&str]) -> Value {
    let endpoint = |address: &&str| json!({"addresses": [address], "conditions": {"ready": true}});
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

/// Returns a Deployment, and a Pod of it whose proxy was injected with the configuration of this hash.
fn workload(namespace: &str, name: &str, labels: &Value, marker: &str) -> [Value; 2] {
    let inject = json!({"linkerd.io/inject": "enabled"});
    let template = json!({
        "metadata": {"labels": {"app": name}, "annotations": inject},
        "spec": {"containers": [{"name": "app", "image": "app"}]},
    });
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template});
    [
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec}),
        pod(namespace, name, &format!("{name}-1"), marker),
    ]
}

/// Returns a Pod of a Deployment, with a native sidecar as INSTALLED configures it.
fn pod(namespace: &str, deployment: &str, name: &str, marker: &str) -> Value {
    let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment, "uid": deployment}]);
    let proxy = json!({"name": "linkerd-proxy", "image": "cr.l5d.io/linkerd/proxy:edge-26.8.3", "restartPolicy": "Always",
        "env": [{"name": "LINKERD_CONFIG_HASH", "value": marker}]});
    let init = json!({"name": "linkerd-init", "image": "cr.l5d.io/linkerd/proxy-init:v2"});
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": owner,
            "annotations": {"linkerd.io/inject": "enabled"},
            "labels": {"app": deployment, "linkerd.io/control-plane-ns": "linkerd"}},
        "spec": {"initContainers": [init, proxy], "containers": [{"name": "app", "image": "app"}]}})
}

/// Writes what the controller of a Deployment would write: nothing runs it here.
async fn is_available(client: &Client, namespace: &str, name: &str) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let status = json!({"status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
        "availableReplicas": 1}});
    deployments.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.map(drop)?;
    Ok(())
}
