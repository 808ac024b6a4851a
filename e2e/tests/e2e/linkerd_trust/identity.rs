//! The operator's identity service with its shipped permissions, which watches its issuer and the LinkerdTrusts.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use e2e::{
    Manager,
    identity::{AUDIENCE, MeshAuthority, certify},
    port,
};
use linkerd2_proxy_api::identity::CertifyResponse;
use serde_json::Value;

use super::{ReportedMesh, SOON};
use crate::{
    identity::WEB,
    manifests::{
        components::{components, start_manager},
        id,
    },
};

const NAME: &str = "linkerd-operator-identity";

/// Starts replicas of the shipped Deployment.
pub(super) struct ShippedIdentity {
    objects: Vec<Value>,
    /// Of the workload that asks for certificates.
    token: String,
}

/// A replica that a workload asks for certificates.
pub(super) struct WatchingReplica {
    pub(super) manager: Manager,
    address: SocketAddr,
    token: String,
}

// === impl ShippedIdentity ===

impl ShippedIdentity {
    /// Applies what the component has beside its Deployment, and creates the workload.
    pub(super) async fn permit(mesh: &ReportedMesh) -> Result<Self> {
        let component = components(&["identity", "identity/watch"]);
        let mut objects = mesh.rig.shipped_with("config/control-plane", &component).await?;
        objects.retain(|object| id(object).contains(NAME));
        let others: Vec<_> = objects.iter().filter(|object| object["kind"] != "Deployment").cloned().collect();
        mesh.rig.apply(&others).await?;
        mesh.rig.kubectl(&["create", "namespace", "emojivoto"]).await?;
        mesh.rig.kubectl(&["-n=emojivoto", "create", "serviceaccount", "web"]).await?;
        let token = mesh.rig.token_for("emojivoto", "web", &[AUDIENCE]).await?;
        Ok(Self { objects, token })
    }

    /// Starts a replica, which may have no issuer yet.
    pub(super) async fn start(&self, mesh: &ReportedMesh) -> Result<WatchingReplica> {
        let address = SocketAddr::from(([127, 0, 0, 1], port::free()?));
        let flags = [format!("--identity-addr={address}"), "--identity-tls=false".to_owned()];
        let manager = start_manager(&mesh.rig, &self.objects, NAME, "linkerd", &flags).await?;
        Ok(WatchingReplica { manager, address, token: self.token.clone() })
    }

    /// Starts a replica, and waits until it has an issuer.
    pub(super) async fn ready(&self, mesh: &ReportedMesh) -> Result<WatchingReplica> {
        let mut replica = self.start(mesh).await?;
        replica.manager.ready(SOON).await?;
        Ok(replica)
    }
}

// === impl WatchingReplica ===

impl WatchingReplica {
    /// Returns a new certificate.
    pub(super) async fn certify(&self) -> Result<CertifyResponse> {
        Ok(certify(self.address, WEB, &self.token).await?)
    }

    /// Fails if the issuer of a new certificate, with what is sent after it, is another one.
    pub(super) async fn signs_with(&self, chain: &[&MeshAuthority]) -> Result<CertifyResponse> {
        let answer = self.certify().await?;
        let expected: Vec<_> = chain.iter().map(|authority| authority.der()).collect();
        ensure!(answer.intermediate_certificates == expected, "another issuer signs");
        Ok(answer)
    }
}
