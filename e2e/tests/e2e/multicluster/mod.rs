//! Services of other clusters, with two and three real API servers: each other cluster is behind a fault proxy.
//!
//! The tests share a manager and the API servers; each has a namespace of the same name in all clusters, and links of
//! its own.

mod federated;
mod links;
mod outages;
mod remote_discovery;

use std::{ops::Deref, path::PathBuf};

use anyhow::{Context, Result, ensure};
use e2e::{
    FaultProxy, Job, Manager, ManagerOptions, TestNamespace,
    discovery::Endpoints,
    eventually, kubeconfig,
    link::{link, link_name},
    mesh::SOON,
    shared_manager, shared_other,
};
use hyper::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::discovery::{
    Objects, Served,
    objects::{Object, address, meshed, of_pod, service, slice},
};

/// A namespace in this cluster, served by a manager that serves other clusters, too.
struct Linked(Served<&'static Manager>);

/// Another cluster, behind a fault proxy.
struct OtherCluster {
    /// The name of its link, unique to the test.
    name: String,
    objects: Objects,
    proxy: FaultProxy,
}

// === impl Linked ===

impl Linked {
    async fn start(prefix: &str) -> Result<Self> {
        static MANAGER: OnceCell<Manager> = OnceCell::const_new();
        // It installs what a manager needs.
        let (control_plane, _) = shared_manager().await?;
        let manager = MANAGER.get_or_try_init(async || {
            let component = "components: [../../config/components/multicluster/control-plane]";
            control_plane.apply(&control_plane.shipped_with("config/control-plane", component).await?).await?;
            options(control_plane.operator_kubeconfig().await?).ready(control_plane).await
        });
        Ok(Self(Served::by(manager.await?, &control_plane.client().await?, prefix).await?))
    }

    /// Creates the namespace of this test in another cluster, without a link.
    async fn other(&self, cluster: &str) -> Result<OtherCluster> {
        let control_plane = shared_other(cluster).await?;
        let namespace = TestNamespace::create_named(&control_plane.client().await?, self.name()).await?;
        let proxy = FaultProxy::start(control_plane).await?;
        Ok(OtherCluster { name: format!("{cluster}-{}", self.name()), objects: Objects::of(namespace), proxy })
    }

    /// A second proxy in front of a cluster.
    async fn other_again(&self, cluster: &str) -> Result<FaultProxy> {
        FaultProxy::start(shared_other(cluster).await?).await
    }

    /// Creates the namespace of this test in another cluster, and links it.
    async fn linked(&self, cluster: &str) -> Result<OtherCluster> {
        let other = self.other(cluster).await?;
        self.link(&other, &kubeconfig::embedded(other.proxy.kubeconfig())?).await?;
        Ok(other)
    }

    /// Links `east` with a Service `bb`, of one meshed Pod 10.1.0.1, and creates the Service `web` with its endpoints. Returns
    /// a stream that has received them.
    async fn start_with_web(prefix: &str) -> Result<(Self, OtherCluster, Endpoints)> {
        let rig = Self::start(prefix).await?;
        let east = rig.linked("east").await?;
        east.put_backends("bb", &["10.1.0.1"]).await?;
        rig.put(remote_discovery("web", &east, "bb")).await?;
        let stream = rig.shows("web", &["10.1.0.1:8080"]).await?;
        Ok((rig, east, stream))
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), "linkerd")
    }

    /// Creates or changes the Secret of a link, as `linkerd multicluster link` writes it.
    async fn link(&self, other: &OtherCluster, kubeconfig: &str) -> Result<()> {
        self.put_secret(&other.name, link(&other.name, "other.trust", kubeconfig)).await
    }

    async fn put_secret(&self, cluster: &str, secret: Value) -> Result<()> {
        let name = link_name(cluster);
        let params = PatchParams::apply("e2e").force();
        self.secrets()
            .patch(&name, &params, &Patch::Apply(&secret))
            .await
            .with_context(|| format!("applying {name}"))?;
        Ok(())
    }

    async fn unlink(&self, other: &OtherCluster) -> Result<()> {
        self.secrets().delete(&link_name(&other.name), &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until `/ready` has a line with this text, while the manager is ready. Returns all lines.
    async fn says(&self, text: &str) -> Result<String> {
        eventually(SOON, format_args!("/ready to say {text}"), async || {
            let (status, body) = self.manager.get("/ready").await?;
            ensure!(status == StatusCode::OK && body.contains(text), "{status} {body}");
            Ok(body)
        })
        .await
    }

    /// Waits until a metric of another cluster has a value.
    async fn measures(&self, metric: &str, other: &OtherCluster, expected: impl Fn(Option<f64>) -> bool) -> Result<()> {
        self.manager.measures(metric, &[("cluster", &other.name)], expected).await
    }
}

impl Deref for Linked {
    type Target = Served<&'static Manager>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

// === impl OtherCluster ===

impl OtherCluster {
    /// Creates a Service with port 80, and a slice of meshed Pods with these addresses at port 8080.
    async fn put_backends(&self, name: &str, addresses: &[&str]) -> Result<()> {
        self.put(service(name)).await?;
        let pods: Vec<(String, &str)> =
            addresses.iter().enumerate().map(|(number, address)| (format!("{name}-{number}"), *address)).collect();
        for (pod, _) in &pods {
            self.put(meshed(pod)).await?;
        }
        let endpoints: Vec<Value> = pods.iter().map(|(pod, address)| of_pod(address, pod)).collect();
        self.put(slice(name, name, &endpoints)).await
    }

    /// Replaces the endpoints of a slice by addresses without Pods.
    async fn set_addresses(&self, slice: &str, addresses: &[&str]) -> Result<()> {
        let endpoints: Vec<Value> = addresses.iter().map(|ip| address(ip)).collect();
        self.set_endpoints(slice, &endpoints).await
    }
}

impl Deref for OtherCluster {
    type Target = Objects;

    fn deref(&self) -> &Objects {
        &self.objects
    }
}

fn options(kubeconfig: impl Into<PathBuf>) -> ManagerOptions {
    ManagerOptions::only(Job::Destination).args(["--enable-multicluster"]).kubeconfig(kubeconfig)
}

/// A Service that has the endpoints of another one in a cluster.
fn remote_discovery(name: &str, other: &OtherCluster, remote: &str) -> Object {
    service(name)
        .labelled("multicluster.linkerd.io/remote-discovery", &other.name)
        .labelled("multicluster.linkerd.io/remote-service", remote)
}

/// A Service that has the endpoints of all members, as `SERVICE@CLUSTER`, and of one in this cluster.
fn federated(name: &str, members: &[String], local: &str) -> Object {
    service(name)
        .annotated("multicluster.linkerd.io/remote-discovery", &members.join(","))
        .annotated("multicluster.linkerd.io/local-discovery", local)
}
