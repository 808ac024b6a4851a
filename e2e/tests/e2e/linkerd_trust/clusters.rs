//! Two clusters with one root, whose proxies connect to each other. Situations 21 and 22.
//!
//! Each has an operator of its own, which does not see the other cluster: the Namespace of the multicluster extension stands
//! for it.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    eventually,
    identity::MeshAuthority,
    shown_proxy::{FRESH, IDENTITY, ShownProxy},
    tls::certificate_of,
};
use futures::future::try_join;
use serde_json::json;

use super::{REMOVED, RENEWED, ReportedMesh, SOON, bundle_becomes, bundle_is, next_step};

/// Injectors may serve an earlier bundle for four minutes.
const INJECTED: Duration = Duration::from_secs(300);
const NAMESPACE: &str = "Namespace linkerd-multicluster is for other clusters";

struct LinkedPki {
    old: MeshAuthority,
    old_issuer: MeshAuthority,
    new: MeshAuthority,
    issuer: MeshAuthority,
    bridge: MeshAuthority,
}

struct LinkedMeshes {
    meshes: [ReportedMesh; 2],
    /// What the proxies of each trust, by their names.
    trusted: [HashMap<&'static str, String>; 2],
}

// === impl LinkedPki ===

impl LinkedPki {
    fn new() -> Result<Self> {
        let (old, new) = (MeshAuthority::root("old")?, MeshAuthority::root("new")?);
        let (old_issuer, issuer) = (old.signs("issuer")?, new.signs("new issuer")?);
        let bridge = old.bridges(&new, "new")?;
        Ok(Self { old, old_issuer, new, issuer, bridge })
    }

    fn both(&self) -> String {
        format!("{}{}", self.old.pem(), self.new.pem())
    }
}

// === impl LinkedMeshes ===

impl LinkedMeshes {
    async fn start(pki: &LinkedPki) -> Result<Self> {
        let mesh = || ReportedMesh::with_root(pki.old.clone());
        let (west, east) = try_join(mesh(), mesh()).await?;
        let extension = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "linkerd-multicluster", "labels": {"linkerd.io/extension": "multicluster"}}});
        for mesh in [&west, &east] {
            mesh.permit().await?;
            mesh.rig.apply(std::slice::from_ref(&extension)).await?;
        }
        let trusted = || ["web-1", "web-2"].map(|name| (name, pki.old.pem())).into();
        Ok(Self { meshes: [west, east], trusted: [trusted(), trusted()] })
    }

    /// Declares the new root in a cluster.
    async fn declare(&self, cluster: usize, pki: &LinkedPki, is_bridged: bool) -> Result<()> {
        let mut spec = json!({"mode": "Enforce", "anchors": {"pem": pki.new.pem()}});
        if let Some(spec) = spec.as_object_mut().filter(|_| is_bridged) {
            let pem = format!("{}{}", pki.bridge.pem(), pki.old.pem());
            spec.insert("bridge".to_owned(), json!({"pem": pem}));
        }
        let trust = json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdTrust",
            "metadata": {"name": "mesh"}, "spec": spec});
        self.mesh(cluster)?.rig.apply(&[trust]).await.map(drop)
    }

    fn mesh(&self, cluster: usize) -> Result<&ReportedMesh> {
        self.meshes.get(cluster).context("no such cluster")
    }

    /// Creates a Pod in a cluster, with the present bundle.
    async fn create(
        &mut self,
        cluster: usize,
        name: &'static str,
        bundle: &str,
        chain: &[&MeshAuthority],
    ) -> Result<()> {
        let mesh = self.meshes.get_mut(cluster).context("no such cluster")?;
        mesh.put_proxy(name, bundle, chain).await?;
        self.trusted.get_mut(cluster).context("no such cluster")?.insert(name, bundle.to_owned());
        Ok(())
    }

    /// Replaces the first Pods of a cluster by one with this bundle.
    async fn create_again(&mut self, cluster: usize, bundle: &str, chain: &[&MeshAuthority]) -> Result<()> {
        for name in ["web-1", "web-2"] {
            self.meshes.get_mut(cluster).context("no such cluster")?.delete_proxy(name).await?;
            self.trusted.get_mut(cluster).context("no such cluster")?.remove(name);
        }
        self.create(cluster, "api", bundle, chain).await
    }

    /// Renews the certificates of all proxies of a cluster one by one. After each, all proxies must connect.
    async fn renew(&self, cluster: usize, chain: &[&MeshAuthority], pki: &LinkedPki) -> Result<()> {
        for proxy in self.mesh(cluster)?.proxies.values() {
            proxy.renew(chain, &pki.old)?;
            self.connect().await?;
        }
        Ok(())
    }

    /// Verifies that each proxy accepts what each presents, in both clusters.
    async fn connect(&self) -> Result<()> {
        for (server, proxy) in self.meshes.iter().flat_map(|mesh| &mesh.proxies) {
            for (client, anchors) in self.trusted.iter().flatten() {
                let accepted = certificate_of(proxy.address, IDENTITY, anchors).await;
                accepted.with_context(|| format!("{client} refuses the certificate of {server}"))?;
            }
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_bridge_each_of_two_clusters_rotates_alone_and_the_old_root_leaves_once_both_have() -> Result<()> {
    let pki = LinkedPki::new()?;
    let mut linked = LinkedMeshes::start(&pki).await?;
    let chain = [&pki.issuer, &pki.bridge];
    let mut services = Vec::new();
    for cluster in [0, 1] {
        linked.declare(cluster, &pki, true).await?;
        let mesh = linked.mesh(cluster)?;
        bundle_becomes(&mesh.rig, &pki.both()).await?;
        mesh.reaches(SOON, "AwaitingIssuer", &["ReadyToSwitch=True/OverBridge"]).await?;
        linked.renew(cluster, &chain, &pki).await?;
        let status = mesh.reaches(RENEWED, "Retiring", &["BundleSynced=False/RemovalHeld"]).await?;
        ensure!(next_step(&status).contains(NAMESPACE), "{status:#}");
        services.push(mesh.put_identity("linkerd-identity-1", &chain, &[&pki.old, &pki.new]).await?);
        bundle_is(&mesh.rig, &pki.both()).await?;
    }
    // No certificate of any cluster needs the old root.
    for cluster in [0, 1] {
        linked.mesh(cluster)?.accept_unseen().await?;
    }
    for cluster in [0, 1] {
        let rig = &linked.mesh(cluster)?.rig;
        eventually(REMOVED, "the old root to be removed", async || bundle_is(rig, &pki.new.pem()).await).await?;
        linked.create(cluster, "api", &pki.new.pem(), &chain).await?;
        linked.connect().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_bridge_the_issuer_of_one_cluster_waits_until_the_proxies_of_the_other_are_accepted() -> Result<()> {
    let pki = LinkedPki::new()?;
    let mut linked = LinkedMeshes::start(&pki).await?;
    for cluster in [0, 1] {
        linked.declare(cluster, &pki, false).await?;
        bundle_becomes(&linked.mesh(cluster)?.rig, &pki.both()).await?;
    }
    linked.create_again(0, &pki.both(), &[&pki.old_issuer]).await?;
    let status = linked.mesh(0)?.reaches(INJECTED, "AwaitingIssuer", &["ReadyToSwitch=False/ProxiesNotSeen"]).await?;
    let shown = status["conditions"].to_string();
    ensure!(shown.contains(NAMESPACE), "{status:#}");
    // The proxies of the other cluster would refuse its certificates.
    let early = ShownProxy::start(IDENTITY, &[&pki.issuer], &pki.old, FRESH).await?;
    ensure!(certificate_of(early.address, IDENTITY, &pki.old.pem()).await.is_err(), "they accept it");

    linked.create_again(1, &pki.both(), &[&pki.old_issuer]).await?;
    for cluster in [0, 1] {
        linked.mesh(cluster)?.reaches(INJECTED, "AwaitingIssuer", &["ReadyToSwitch=False/ProxiesNotSeen"]).await?;
        linked.mesh(cluster)?.accept_unseen().await?;
    }
    for cluster in [0, 1] {
        linked.mesh(cluster)?.reaches(SOON, "AwaitingIssuer", &["ReadyToSwitch=True/Synced"]).await?;
        linked.renew(cluster, &[&pki.issuer], &pki).await?;
    }
    Ok(())
}
