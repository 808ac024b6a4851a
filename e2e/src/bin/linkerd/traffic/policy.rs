//! Linkerd's policy controller, which sends the proxies their inbound and outbound policies.
//!
//! * In: its program, a [`ControlPlane`]. Out: the address of its gRPC server.
//! * Always: no policy resources exist. Only traffic with mTLS is allowed, so each answered request proves that it used
//!   mTLS.

use std::{net::SocketAddr, path::Path};

use anyhow::{Context, Result};
use e2e::{
    ControlPlane, Spawn,
    linkerd_controller::{LinkerdProgram, loopback},
};
use k8s_openapi::{
    api::apps::v1::Deployment, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, api::PostParams};
use serde_json::json;

/// The default for Servers and Pods.
pub(crate) const DEFAULT: &str = "all-authenticated";
/// The kinds that the controller watches, besides those in `crd/linkerd`.
const KINDS: [(&str, &str, &str); 6] = [
    ("ServerAuthorization", "serverauthorizations", "v1beta1"),
    ("AuthorizationPolicy", "authorizationpolicies", "v1alpha1"),
    ("MeshTLSAuthentication", "meshtlsauthentications", "v1alpha1"),
    ("NetworkAuthentication", "networkauthentications", "v1alpha1"),
    ("HTTPLocalRateLimitPolicy", "httplocalratelimitpolicies", "v1alpha1"),
    ("EgressNetwork", "egressnetworks", "v1alpha1"),
];

pub(crate) struct Policy {
    pub(crate) address: SocketAddr,
    _program: LinkerdProgram,
}

// === impl Policy ===

impl Policy {
    pub(crate) async fn start(program: &Path, control_plane: &ControlPlane) -> Result<Self> {
        let client = control_plane.client().await?;
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        for (kind, plural, version) in KINDS {
            let definition = json!({
                "metadata": {"name": format!("{plural}.policy.linkerd.io")},
                "spec": {
                    "group": "policy.linkerd.io", "scope": "Namespaced",
                    "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                    "versions": [{"name": version, "served": true, "storage": true,
                        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
                },
            });
            let created = definitions.create(&PostParams::default(), &serde_json::from_value(definition)?).await;
            created.with_context(|| format!("creating the CRD of {kind}"))?;
        }
        // The owner of the controller's Lease.
        let deployments: Api<Deployment> = Api::namespaced(client, "linkerd");
        let labels = json!({"app": "linkerd-destination"});
        let deployment = json!({
            "metadata": {"name": "linkerd-destination"},
            "spec": {"selector": {"matchLabels": labels}, "template": {
                "metadata": {"labels": labels}, "spec": {"containers": [{"name": "policy", "image": "none"}]}}},
        });
        deployments.create(&PostParams::default(), &serde_json::from_value(deployment)?).await?;

        let (admin, address) = (loopback()?, loopback()?);
        let log = control_plane.directory().join("linkerd-policy.log");
        let mut spawn = Spawn::new("Linkerd's policy controller", program, log)
            .args([format!("--kubeconfig={}", control_plane.kubeconfig().display())])
            .args([format!("--admin-addr={admin}"), format!("--grpc-addr={address}")])
            .args([format!("--default-policy={DEFAULT}"), "--admission-controller-disabled".to_owned()])
            .args(["--control-plane-namespace=linkerd", "--cluster-networks=10.0.0.0/8"])
            .args(["--default-opaque-ports=25,587,3306,4444,5432,6379,9300,11211"]);
        spawn.env = vec![("HOSTNAME".to_owned(), "linkerd-destination-policy".to_owned())];
        Ok(Self { address, _program: LinkerdProgram::start(spawn, admin).await? })
    }
}
