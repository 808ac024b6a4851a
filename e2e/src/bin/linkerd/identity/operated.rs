//! The operator that replaces the root of the mesh: it writes the bundle and the issuer, and reports about the real proxies.
//!
//! * In: the mesh, the bundle of its proxies. Out: the objects that the operator writes, and the status of its LinkerdTrust.
//!   Always: the operator reads no file of the mesh; it connects to the admin ports of the proxies over the loopback addresses
//!   of their Pods, and to the identity service from another Pod, through the proxy of its Pod.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, Job, Manager, ManagerOptions, eventually,
    identity::AUDIENCE,
    shipped::{OPERATOR_ACCOUNT, OPERATOR_NAMESPACE},
};
use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::traffic::{
    identity::{BUNDLE, ISSUER, IdentityServiceOptions, MeshTrust, RootFolder},
    network::PodNetwork,
};

const ADMIN_PORT: u16 = 4191;
/// Longer than the validity of a certificate.
const OBSERVED: Duration = Duration::from_secs(90);

pub(super) struct TrustOperator {
    _managers: [Manager; 2],
    forwarders: JoinSet<()>,
    /// The number of Pods that it can connect to.
    pods: usize,
}

/// A Pod whose proxy runs.
pub(super) struct ShownPod<'a> {
    pub(super) name: &'static str,
    pub(super) namespace: &'static str,
    pub(super) account: &'static str,
    pub(super) anchors: &'a str,
    pub(super) network: PodNetwork,
    /// The address of the identity service, and a network from which it is another Pod's.
    pub(super) service: Option<(SocketAddr, PodNetwork)>,
}

// === impl TrustOperator ===

impl TrustOperator {
    pub(super) async fn start(
        control_plane: &ControlPlane,
        trust: &MeshTrust,
        options: IdentityServiceOptions,
    ) -> Result<Self> {
        control_plane.install_crds("crd").await?;
        control_plane.create_namespaces(&[OPERATOR_NAMESPACE]).await?;
        let metadata = |name: &str| json!({"name": name, "namespace": "linkerd"});
        let (certificate, key) = trust.issuer()?;
        control_plane
            .apply(&[
                json!({"apiVersion": "v1", "kind": "ServiceAccount",
                    "metadata": {"name": OPERATOR_ACCOUNT, "namespace": OPERATOR_NAMESPACE}}),
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(BUNDLE),
                    "data": {"ca-bundle.crt": trust.anchors()}}),
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata(ISSUER),
                    "stringData": {"crt.pem": certificate, "key.pem": key}}),
                settings(options),
                json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdTrust", "metadata": {"name": "mesh"},
                    "spec": {}}),
            ])
            .await?;
        let token = control_plane.directory().join("operator-token");
        fs::write(&token, control_plane.token_for(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT, &[AUDIENCE]).await?)?;
        let own = format!("--operator-namespace={OPERATOR_NAMESPACE}");
        let with_token = [own.clone(), format!("--identity-token-file={}", token.display())];
        let writer = [own, "--enable-linkerd-config=false".to_owned(), "--enable-issuer-writer".to_owned()];
        let manager = ManagerOptions::only(Job::LinkerdConfig).args(with_token).ready(control_plane).await?;
        let writer = ManagerOptions::only(Job::LinkerdConfig).args(writer).ready(control_plane).await?;
        Ok(Self { _managers: [manager, writer], forwarders: JoinSet::new(), pods: 0 })
    }

    /// Creates the object of a Pod whose proxy runs with these anchors. An older one is deleted.
    pub(super) async fn show(&mut self, control_plane: &ControlPlane, pod: ShownPod<'_>) -> Result<()> {
        let ShownPod { name, namespace, account, anchors, network, service } = pod;
        let delete = ["-n", namespace, "delete", "pod", name, "--ignore-not-found", "--force", "--grace-period=0"];
        let deleted = control_plane.kubectl(&delete).await?;
        self.pods += usize::from(deleted.trim().is_empty());
        let admin = self.forward(network, SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT))).await?;
        let at = |variable: &str, port: u16| json!({"name": format!("LINKERD2_PROXY_{variable}_LISTEN_ADDR"), "value": format!("0.0.0.0:{port}")});
        let env = json!([at("INBOUND", 4143), at("CONTROL", 4190), at("ADMIN", admin),
            {"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": anchors}]);
        let mut containers = vec![json!({"name": "linkerd-proxy", "image": "none", "env": env})];
        if let Some((address, from)) = service {
            let port = self.forward(from, address).await?;
            let ports = json!([{"name": "ident-grpc", "containerPort": port}]);
            containers.push(json!({"name": "identity", "image": "none", "ports": ports}));
        }
        // The component is read of Pods in the namespace of Linkerd only.
        let labels = json!({"linkerd.io/control-plane-ns": "linkerd", "linkerd.io/control-plane-component": name});
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"serviceAccountName": account, "containers": containers}});
        control_plane.apply(&[pod]).await?;
        e2e::shown_proxy::runs(control_plane, namespace, name).await
    }

    /// Returns a port of this host that is forwarded to an address in the network of a Pod.
    async fn forward(&mut self, network: PodNetwork, address: SocketAddr) -> Result<u16> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        self.forwarders.spawn(forward(listener, network, address));
        Ok(port)
    }

    /// Does not wait until all proxies have been created again.
    pub(super) async fn cut(control_plane: &ControlPlane) -> Result<()> {
        let patch = r#"{"spec":{"distrust":{"connections":"Cut"}}}"#;
        control_plane.kubectl(&["patch", "linkerdtrust", "mesh", "--type=merge", "-p", patch]).await.map(drop)
    }

    /// Declares what is in the folder of the next root, and writes the next issuer.
    pub(super) async fn declare(control_plane: &ControlPlane, next: &RootFolder) -> Result<()> {
        let RootFolder(folder) = next;
        let read = |name: &str| fs::read_to_string(folder.join(name)).with_context(|| format!("no {name}"));
        let next = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": format!("{ISSUER}-next"), "namespace": "linkerd"},
            "stringData": {"tls.crt": read("issuer.crt")?, "tls.key": read("issuer.key")?}});
        control_plane.apply(&[next]).await?;
        let manifest = folder.join("linkerdtrust.yaml");
        control_plane.kubectl(&["apply", "-f", manifest.to_str().context("the path is not UTF-8")?]).await.map(drop)
    }

    /// Waits until the certificates of all proxies reach the desired root, or the one that it replaces, and nothing is
    /// broken.
    pub(super) async fn presented(&self, control_plane: &ControlPlane, is_desired: bool) -> Result<()> {
        self.reports(control_plane, "the certificates of all proxies", |status| {
            let anchors = status.get("anchors").and_then(Value::as_array).context("no anchors")?;
            let mut roots = anchors.iter().filter(|anchor| anchor.get("desired") == Some(&json!(is_desired)));
            let root = roots.next().context("no such root")?;
            ensure!(root.get("presentedBy") == Some(&json!(self.pods)), "others present certificates of this root");
            let broken = conditions(status).any(|it| it.get("reason") == Some(&json!("Broken")));
            ensure!(!broken, "something is broken");
            Ok(())
        })
        .await
    }

    /// Waits until exactly these Pods are behind.
    pub(super) async fn behind(&self, control_plane: &ControlPlane, pods: &[&str]) -> Result<()> {
        self.reports(control_plane, "the proxies that trust the distrusted root", |status| {
            let rows = status.get("behind").and_then(Value::as_array);
            let mut names: Vec<_> = rows.into_iter().flatten().filter_map(|row| row.get("name")?.as_str()).collect();
            names.sort_unstable();
            ensure!(names == pods, "{names:?}");
            Ok(())
        })
        .await
    }

    /// Waits until the rotation is complete.
    pub(super) async fn is_ready(&self, control_plane: &ControlPlane) -> Result<()> {
        self.reports(control_plane, "the end of the rotation", |status| {
            let mut ready = conditions(status).filter(|it| it.get("type") == Some(&json!("Ready")));
            ensure!(ready.all(|it| it.get("status") == Some(&json!("True"))), "it is not ready");
            ensure!(status.get("phase") == Some(&json!("Steady")), "another phase");
            Ok(())
        })
        .await
    }

    async fn reports(
        &self,
        control_plane: &ControlPlane,
        what: &str,
        check: impl Fn(&Value) -> Result<()>,
    ) -> Result<()> {
        eventually(OBSERVED, format_args!("the LinkerdTrust to report {what}"), async || {
            let object = control_plane.get(&["linkerdtrust", "mesh"]).await?;
            let status = object.get("status").context("no status")?;
            check(status).with_context(|| format!("{status:#}"))
        })
        .await
    }
}

/// The ConfigMap with the lifetime of certificates. The Pods that only the destination reads have no proxy that can be asked:
/// after this time, they have no certificate of an earlier root.
pub(super) fn settings(options: IdentityServiceOptions) -> Value {
    let [lifetime, skew] = [options.lifetime, options.clock_skew].map(|time| format!("{}s", time.as_secs()));
    let values = json!({"identity": {"issuer": {"issuanceLifetime": lifetime, "clockSkewAllowance": skew}}});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "linkerd-config", "namespace": "linkerd"},
        "data": {"values": values.to_string()}})
}

fn conditions(status: &Value) -> impl Iterator<Item = &Value> {
    status.get("conditions").and_then(Value::as_array).into_iter().flatten()
}

/// Connects to an address in the network of a Pod for each connection.
async fn forward(listener: TcpListener, network: PodNetwork, address: SocketAddr) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(pass(stream, network.clone(), address));
        while connections.try_join_next().is_some() {}
    }
}

async fn pass(mut from: TcpStream, network: PodNetwork, address: SocketAddr) {
    if let Ok(mut to) = network.connect(address).await {
        _ = copy_bidirectional(&mut from, &mut to).await;
    }
}
