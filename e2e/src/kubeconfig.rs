//! Kubeconfig files with a bearer token, and clients made from them.
//!
//! * Always: these clients never retry, so a test sees every answer of the API server.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::control_plane::ControlPlane;

/// Writes a kubeconfig with one cluster and one user.
pub(crate) fn write(path: &Path, server: &str, ca_pem: &str, user: &str, token: &str) -> Result<()> {
    let ca_path = path.with_extension("ca.crt");
    fs::write(&ca_path, ca_pem).with_context(|| format!("writing {}", ca_path.display()))?;
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": {"server": server, "certificate-authority": ca_path}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user}}],
        "current-context": "e2e",
    });
    // JSON is YAML.
    fs::write(path, serde_json::to_vec_pretty(&config)?).with_context(|| format!("writing {}", path.display()))
}

/// The text of a kubeconfig of `write`, with the certificate itself instead of its path, as in the Secret of another
/// cluster.
pub fn embedded(path: &Path) -> Result<String> {
    let mut config: Value =
        serde_json::from_slice(&fs::read(path)?).with_context(|| format!("reading {}", path.display()))?;
    let cluster = config.pointer_mut("/clusters/0/cluster").and_then(Value::as_object_mut).context("a cluster")?;
    let ca = cluster.remove("certificate-authority").context("a path of the certificate")?;
    let pem = fs::read(ca.as_str().unwrap_or_default()).with_context(|| format!("reading {ca}"))?;
    cluster.insert("certificate-authority-data".to_owned(), serde_json::to_value(ByteString(pem))?);
    Ok(config.to_string())
}

/// The same for the admin of a control plane.
pub fn embedded_of(control_plane: &ControlPlane) -> Result<String> {
    let path = control_plane.directory().join("kubeconfig-embedded");
    write(&path, control_plane.server_url(), control_plane.ca_pem()?, "admin", control_plane.admin_token()?)?;
    embedded(&path)
}

/// A client for the current context of a kubeconfig. It belongs to the async runtime in which it was created.
pub async fn client(path: &Path) -> Result<Client> {
    // The second and later calls fail because a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(path).with_context(|| format!("reading {}", path.display()))?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    // On two cores, the handshakes of a burst of 2,000 connections take longer than the default.
    config.connect_timeout = Some(Duration::from_secs(30));
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}
