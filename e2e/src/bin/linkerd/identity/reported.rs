//! A LinkerdTrust for the mesh, and what its status says about the real proxies.
//!
//! * In: the mesh, the bundle of its proxies. Out: the status of the LinkerdTrust. Always: the operator reads no file of
//!   the mesh; it connects to the admin ports of the proxies, over the loopback addresses of their Pods.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{ControlPlane, Job, Manager, ManagerOptions, eventually};
use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::traffic::network::PodNetwork;

const ADMIN_PORT: u16 = 4191;
const FIRST_ROOT: &str = "root.linkerd.cluster.local";
/// Longer than the validity of a certificate.
const OBSERVED: Duration = Duration::from_secs(90);

pub(super) struct TrustReporter {
    _manager: Manager,
    forwarders: JoinSet<()>,
    /// The number of Pods that it can connect to.
    pods: usize,
}

// === impl TrustReporter ===

impl TrustReporter {
    pub(super) async fn start(control_plane: &ControlPlane, bundle: &str) -> Result<Self> {
        control_plane.install_crds("crd").await?;
        Self::put_bundle(control_plane, bundle).await?;
        let trust = json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdTrust", "metadata": {"name": "mesh"},
            "spec": {}});
        control_plane.apply(&[trust]).await?;
        let manager = ManagerOptions::only(Job::LinkerdConfig).ready(control_plane).await?;
        Ok(Self { _manager: manager, forwarders: JoinSet::new(), pods: 0 })
    }

    pub(super) async fn put_bundle(control_plane: &ControlPlane, bundle: &str) -> Result<()> {
        let metadata = json!({"name": "linkerd-identity-trust-roots", "namespace": "linkerd"});
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca-bundle.crt": bundle}});
        control_plane.apply(&[map]).await.map(drop)
    }

    /// Creates the object of a Pod whose proxy runs with these anchors.
    pub(super) async fn add(
        &mut self,
        control_plane: &ControlPlane,
        (namespace, account): (&str, &str),
        anchors: &str,
        network: PodNetwork,
    ) -> Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (port, name) = (listener.local_addr()?.port(), format!("shown-{}", self.pods));
        self.forwarders.spawn(forward(listener, network));
        let at = |variable: &str, port: u16| json!({"name": format!("LINKERD2_PROXY_{variable}_LISTEN_ADDR"), "value": format!("0.0.0.0:{port}")});
        let env = json!([at("INBOUND", 4143), at("CONTROL", 4190), at("ADMIN", port),
            {"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": anchors}]);
        let labels = json!({"linkerd.io/control-plane-ns": "linkerd"});
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"serviceAccountName": account, "containers": [{"name": "linkerd-proxy", "image": "none", "env": env}]}});
        control_plane.apply(&[pod]).await?;
        let status = json!({"status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
        let patch = ["-n", namespace, "patch", "pod", &name, "--subresource=status", "--type=merge", "-p"];
        control_plane.kubectl(&[&patch[..], &[&status.to_string()]].concat()).await?;
        self.pods += 1;
        Ok(())
    }

    /// Waits until the certificates of all proxies reach the first root, or the one that replaces it, and nothing is broken.
    pub(super) async fn presented(&self, control_plane: &ControlPlane, is_next: bool) -> Result<()> {
        eventually(OBSERVED, "the LinkerdTrust to report the certificates of all proxies", async || {
            let object = control_plane.get(&["linkerdtrust", "mesh"]).await?;
            let status = object.get("status").context("no status")?;
            let named = |anchor: &&Value| (anchor.get("name") == Some(&json!(FIRST_ROOT))) != is_next;
            let anchors = status.get("anchors").and_then(Value::as_array).context("no anchors")?;
            let root = anchors.iter().find(named).with_context(|| format!("no such root: {status:#}"))?;
            ensure!(root.get("presentedBy") == Some(&json!(self.pods)), "{status:#}");
            let conditions = status.get("conditions").and_then(Value::as_array).context("no conditions")?;
            ensure!(conditions.iter().all(|it| it.get("reason") != Some(&json!("Broken"))), "{status:#}");
            Ok(())
        })
        .await
    }
}

/// Connects to the admin port of the proxy for each connection.
async fn forward(listener: TcpListener, network: PodNetwork) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(pass(stream, network.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn pass(mut from: TcpStream, network: PodNetwork) {
    let to = network.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT))).await;
    if let Ok(mut to) = to {
        _ = copy_bidirectional(&mut from, &mut to).await;
    }
}
