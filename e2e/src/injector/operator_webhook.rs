//! The webhook of a manager that injects proxies itself, registered as the operator's manifests do.
//!
//! * In: the namespace of the operator, which is that of the control plane, too. Out: the arguments of the manager;
//!   objects in the API server through which the API server and the LinkerdConfig controller find it.
//! * Always: it reviews only objects of this namespace. [`unregister`](super::unregister) removes the webhook.

use std::{fs, net::SocketAddr};

use anyhow::{Context, Result};
use k8s_openapi::{
    ByteString,
    api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Service, discovery::v1::EndpointSlice},
};
use kube::{Api, Client, api::PostParams};
use serde_json::json;
use tempfile::TempDir;

use super::registration::machine_address;
use crate::{certificate, control_plane::ControlPlane, port};

pub(super) const CONFIGURATION: &str = "linkerd-operator-proxy-injector";
const WEBHOOK: &str = "proxy-injector.linkerd-operator.linkerd.io";
const SERVICE: &str = "linkerd-operator-webhook";
const PATH: &str = "/proxy-injector";

pub struct OperatorWebhook {
    client: Client,
    namespace: String,
    address: SocketAddr,
    folder: TempDir,
}

impl OperatorWebhook {
    /// Registers the webhook. It has no ready replica yet.
    pub async fn register(control_plane: &ControlPlane, namespace: &str) -> Result<Self> {
        // Never in an existing cluster, which may have a real Linkerd.
        control_plane.ca_pem()?;
        let client = control_plane.client().await?;
        let certificate = certificate::for_names(&[&format!("{SERVICE}.{namespace}.svc")])?;
        let folder = tempfile::Builder::new().prefix("webhook-").tempdir_in(control_plane.directory())?;
        let tls = folder.path().join("tls");
        fs::create_dir(&tls)?;
        fs::write(tls.join("tls.crt"), &certificate.certificate_pem)?;
        fs::write(tls.join("tls.key"), &certificate.key_pem)?;
        let ports = json!([{"name": "webhook", "port": 443, "targetPort": "webhook"}]);
        let service = json!({"metadata": {"name": SERVICE}, "spec": {"type": "ClusterIP", "ports": ports}});
        let services: Api<Service> = Api::namespaced(client.clone(), namespace);
        services.create(&PostParams::default(), &serde_json::from_value(service)?).await.context("the Service")?;
        let webhook = json!({
            "metadata": {"name": CONFIGURATION},
            "webhooks": [{
                "name": WEBHOOK,
                "clientConfig": {
                    "service": {"name": SERVICE, "namespace": namespace, "path": PATH, "port": 443},
                    "caBundle": ByteString(certificate.ca_pem.into_bytes()),
                },
                "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
                    "resources": ["pods", "services"], "scope": "Namespaced"}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "admissionReviewVersions": ["v1"],
                "failurePolicy": "Ignore",
                "sideEffects": "None",
            }],
        });
        let webhooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        webhooks.create(&PostParams::default(), &serde_json::from_value(webhook)?).await.context("the webhook")?;
        let address = machine_address()?;
        let address = SocketAddr::new(address, port::free_at(address)?);
        Ok(Self { client, namespace: namespace.to_owned(), address, folder })
    }

    /// The arguments of the manager that serves the webhook.
    pub fn args(&self) -> [String; 3] {
        [
            "--enable-proxy-injector".to_owned(),
            format!("--webhook-addr={}", self.address),
            format!("--webhook-folder={}", self.folder.path().display()),
        ]
    }

    /// Makes the manager an endpoint of the Service, after it is ready.
    pub async fn serve(&self) -> Result<()> {
        let slice = json!({
            "metadata": {"name": SERVICE, "labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": if self.address.is_ipv4() { "IPv4" } else { "IPv6" },
            "endpoints": [{"addresses": [self.address.ip()], "conditions": {"ready": true}}],
            "ports": [{"name": "webhook", "port": self.address.port(), "protocol": "TCP"}],
        });
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &self.namespace);
        slices.create(&PostParams::default(), &serde_json::from_value(slice)?).await.context("the EndpointSlice")?;
        Ok(())
    }
}
