//! A TLS server that presents certificates as a proxy does.
//!
//! * In: the chain of an issuer, the root that clients must have. Out: an address of the host. Always: it refuses clients
//!   without a certificate, but only after it has presented its own.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};
use tokio::{
    io::AsyncReadExt,
    net::TcpListener,
    sync::watch,
    task::{AbortHandle, JoinSet},
};
use tokio_rustls::TlsAcceptor;

use serde_json::{Value, json};

use crate::{control_plane::ControlPlane, identity::MeshAuthority};

/// The age of a certificate that a proxy has just received.
pub const FRESH: Duration = Duration::ZERO;
/// The age of a certificate whose renewal is overdue.
pub const LATE: Duration = Duration::from_secs(30 * 3600);

/// The identity of the Pods of [`ShownProxy::pod`].
pub const IDENTITY: &str = "default.default.serviceaccount.identity.linkerd.cluster.local";

pub struct ShownProxy {
    pub address: SocketAddr,
    identity: String,
    age: Duration,
    config: watch::Sender<Arc<ServerConfig>>,
    server: AbortHandle,
}

// === impl ShownProxy ===

impl ShownProxy {
    /// Presents a certificate of the first authority, and then the whole chain.
    ///
    /// # Errors
    /// Fails if no port is free, or the chain is empty.
    pub async fn start(identity: &str, chain: &[&MeshAuthority], root: &MeshAuthority, age: Duration) -> Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), identity, chain, root, age).await
    }

    /// The same, at an address of the host.
    ///
    /// # Errors
    /// As for [`ShownProxy::start`].
    pub async fn start_at(
        host: IpAddr,
        identity: &str,
        chain: &[&MeshAuthority],
        root: &MeshAuthority,
        age: Duration,
    ) -> Result<Self> {
        let (config, current) = watch::channel(config(identity, chain, root, age)?);
        let listener = TcpListener::bind((host, 0)).await?;
        let address = listener.local_addr()?;
        let server = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let accept = TlsAcceptor::from(Arc::clone(&current.borrow())).accept(stream);
                connections.spawn(async {
                    if let Ok(mut accepted) = accept.await {
                        _ = accepted.read(&mut [0]).await;
                    }
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, identity: identity.to_owned(), age, config, server: server.abort_handle() })
    }

    /// A Pod in the namespace `default`, in which this is the proxy, with these trust anchors.
    pub fn pod(&self, name: &str, anchors: &str) -> Value {
        let at = |variable: &str, port: u16| json!({"name": format!("LINKERD2_PROXY_{variable}_LISTEN_ADDR"), "value": format!("0.0.0.0:{port}")});
        let env = json!([at("INBOUND", 4143), at("CONTROL", 4190), at("ADMIN", self.address.port()),
            {"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": anchors}]);
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": {"linkerd.io/control-plane-ns": "linkerd"}},
            "spec": {"containers": [{"name": "linkerd-proxy", "image": "proxy", "env": env}]}})
    }

    /// An ExternalWorkload in the namespace `default`, of which this is the proxy.
    pub fn external_workload(&self, name: &str) -> Value {
        json!({"apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"meshTLS": {"identity": self.identity, "serverName": format!("{name}.cluster.local")},
                "workloadIPs": [{"ip": self.address.ip()}],
                "ports": [{"name": "linkerd-proxy", "port": self.address.port()}]}})
    }

    /// Renews the certificate, from this chain.
    pub fn renew(&self, chain: &[&MeshAuthority], root: &MeshAuthority) -> Result<()> {
        self.config.send_replace(config(&self.identity, chain, root, self.age)?);
        Ok(())
    }
}

/// Lets a Pod run on this host, as the kubelet reports it.
///
/// # Errors
/// Fails if there is no such Pod.
pub async fn runs(control_plane: &ControlPlane, namespace: &str, pod: &str) -> Result<()> {
    let status = json!({"status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
    let patch =
        ["-n", namespace, "patch", "pod", pod, "--subresource=status", "--type=merge", "-p", &status.to_string()];
    control_plane.kubectl(&patch).await.map(drop)
}

impl Drop for ShownProxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn config(identity: &str, chain: &[&MeshAuthority], root: &MeshAuthority, age: Duration) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(root.der().to_vec()))?;
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    let (leaf, key) = chain.first().context("the chain is empty")?.signs_leaf(identity, age)?;
    let sent = chain.iter().map(|authority| authority.der().to_vec());
    let chain = std::iter::once(leaf).chain(sent).map(CertificateDer::from).collect();
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key)))?;
    Ok(Arc::new(config))
}
