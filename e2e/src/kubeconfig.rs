//! Kubeconfig files with a bearer token, and clients made from them.
//!
//! * Always: these clients never retry, so a test sees every answer of the API server.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;

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

/// A client for the current context of a kubeconfig. It belongs to the async runtime in which it was created.
pub async fn client(path: &Path) -> Result<Client> {
    // The second and later calls fail because a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(path).with_context(|| format!("reading {}", path.display()))?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}
