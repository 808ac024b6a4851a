//! New trust anchors: the control plane is restarted first, and a bundle without any of the old anchors needs approval.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{
    super::{
        HELM, Installation, Lent,
        trust_anchors::{certificate, hash},
    },
    RolloutRig,
};
use e2e::{
    eventually,
    identity::MeshAuthority,
    shown_proxy::{FRESH, ShownProxy},
    workload,
};

/// A mesh with an external authority, so that the anchors are not copied into the document.
async fn of_external_authority() -> Result<(RolloutRig, String)> {
    let bundle = certificate("root.linkerd.cluster.local")?;
    Ok((with_bundle(&bundle).await?, bundle))
}

async fn with_bundle(bundle: &str) -> Result<RolloutRig> {
    let installation = Installation::on(Arc::new(Lent::take_with_nodes().await?)).await?;
    installation.put_trust_roots(bundle).await?;
    let external = HELM.replace("  externalCA: false", "  externalCA: true");
    ensure!(external != HELM, "the document has another form");
    installation.put_map(json!({"data": {"values": external}})).await?;
    RolloutRig::on(installation, 1).await
}

/// The field manager of the operator.
const OPERATOR: &str = "linkerd-config-operator";

/// A mesh with a LinkerdTrust, whose workload `web` runs with the old root.
struct RotatedMesh {
    mesh: RolloutRig,
    old: Arc<MeshAuthority>,
    new: Arc<MeshAuthority>,
    web: workload::Workload,
    shown: Option<ShownProxy>,
}

impl RotatedMesh {
    async fn new() -> Result<Self> {
        let (old, new) = (Arc::new(MeshAuthority::root("old")?), Arc::new(MeshAuthority::root("new")?));
        let mut mesh = with_bundle(&old.pem()).await?;
        let web = mesh.deployment("web", 1).await?;
        mesh.adopt(json!({})).await?;
        let mut mesh = Self { mesh, web, shown: None, old, new };
        mesh.presents(&[&mesh.old.signs("issuer")?]).await?;
        Ok(mesh)
    }

    /// Creates a Pod without an owner whose proxy presents the certificates of this issuer, and deletes the one before.
    async fn presents(&mut self, chain: &[&MeshAuthority]) -> Result<()> {
        const NAME: &str = "shown";
        let (app, control_plane) = (&self.mesh.app, &self.mesh.installation.namespace);
        let pods: Api<Pod> = Api::namespaced(self.mesh.installation.client.clone(), app);
        if self.shown.take().is_some() {
            pods.delete(NAME, &DeleteParams::default().grace_period(0)).await?;
        }
        let identity = format!("default.{app}.serviceaccount.identity.{control_plane}.cluster.local");
        let shown = ShownProxy::start(&identity, chain, &self.old, FRESH).await?;
        let port = |variable: &str, port: u16| json!({"name": format!("LINKERD2_PROXY_{variable}_LISTEN_ADDR"), "value": format!("0.0.0.0:{port}")});
        let roots = json!({"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": self.old.pem()});
        let env = json!([port("INBOUND", 4143), port("CONTROL", 4190), port("ADMIN", shown.address.port()), roots]);
        let pod = json!({
            "metadata": {"name": NAME, "labels": {"linkerd.io/control-plane-ns": control_plane}},
            "spec": {"containers": [{"name": "linkerd-proxy", "image": "proxy", "env": env}]},
        });
        eventually(super::DEADLINE, "the Pod", async || {
            pods.create(&PostParams::default(), &serde_json::from_value(pod.clone())?).await?;
            Ok(())
        })
        .await?;
        let status = json!({"status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
        pods.patch_status(NAME, &PatchParams::default(), &Patch::Merge(status)).await?;
        self.shown = Some(shown);
        Ok(())
    }

    fn trusts(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("config.linkerd.io", "v1alpha1", "LinkerdTrust");
        Api::all_with(self.mesh.installation.client.clone(), &ApiResource::from_gvk(&kind))
    }

    async fn declares(&self, mut spec: Value) -> Result<()> {
        spec["controlPlaneNamespace"] = json!(self.mesh.installation.namespace);
        spec["anchors"] = json!({"pem": self.new.pem()});
        let name = &self.mesh.installation.namespace;
        let (version, metadata) = ("config.linkerd.io/v1alpha1", json!({"name": name}));
        let trust = json!({"apiVersion": version, "kind": "LinkerdTrust", "metadata": metadata, "spec": spec});
        self.trusts().patch(name, &PatchParams::apply("e2e").force(), &Patch::Apply(trust)).await?;
        Ok(())
    }

    /// Waits until the LinkerdTrust says of the present bundle and this issuer that these roots are sufficient, and no other.
    async fn suffice(&self, bundle: &[&MeshAuthority], issuer: &str, roots: &[&MeshAuthority]) -> Result<()> {
        let expected: BTreeSet<_> = roots.iter().map(|root| root.sha256()).collect();
        let bundle = hash(&pem_of(bundle));
        eventually(super::DEADLINE, "the sufficient anchors", async || {
            let trust = self.trusts().get(&self.mesh.installation.namespace).await?;
            let status = &trust.data["status"];
            ensure!(
                status["trustRootsSHA256"] == json!(bundle) && status["issuer"]["name"] == json!(issuer),
                "{status:#}"
            );
            let found: BTreeSet<String> = serde_json::from_value(status["sufficientAnchors"].clone())?;
            ensure!(found == expected, "{status:#}");
            Ok(())
        })
        .await
    }

    async fn status(&self) -> Result<Value> {
        Ok(self.trusts().get(&self.mesh.installation.namespace).await?.data["status"].clone())
    }

    async fn next_step(&self, beginning: &str) -> Result<()> {
        eventually(super::DEADLINE, "the next step", async || {
            let status = self.status().await?;
            ensure!(status["nextStep"].as_str().is_some_and(|next| next.starts_with(beginning)), "{status:#}");
            Ok(())
        })
        .await
    }

    /// Says that the next issuer is written, as the process does that writes it.
    async fn issuer_is_written(&self) -> Result<()> {
        let name = &self.mesh.installation.namespace;
        eventually(super::DEADLINE, "the condition of the issuer", async || {
            let trust = self.trusts().get(name).await?;
            let mut conditions = trust.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
            if conditions.iter().any(|it| it["type"] == json!("IssuerSynced")) {
                return Ok(());
            }
            let condition = json!({"type": "IssuerSynced", "status": "True", "reason": "Synced", "message": "written",
                "observedGeneration": trust.metadata.generation, "lastTransitionTime": "2026-01-01T00:00:00Z"});
            conditions.push(condition);
            let version = trust.metadata.resource_version;
            let patch = json!({"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}});
            self.trusts().patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            bail!("it is not there yet")
        })
        .await
    }

    /// Waits until only the Pod that was created by hand trusts the old root, and deletes it: the resource is Ready then.
    async fn forgets_the_old_root(&self) -> Result<()> {
        eventually(super::DEADLINE, "the last proxy with the old root", async || {
            let status = self.status().await?;
            let behind = &status["behind"][0];
            ensure!(status["proxies"]["exposed"] == json!(1) && behind["name"] == json!("shown"), "{status:#}");
            Ok(())
        })
        .await?;
        let pods: Api<Pod> = Api::namespaced(self.mesh.installation.client.clone(), &self.mesh.app);
        pods.delete("shown", &DeleteParams::default().grace_period(0)).await?;
        eventually(super::DEADLINE, "no proxy with the old root", async || {
            let status = self.status().await?;
            ensure!(status["proxies"]["exposed"] == json!(0), "{status:#}");
            Ok(())
        })
        .await
    }

    /// Writes the bundle, and waits until the operator has seen it.
    async fn bundle(&self, roots: &[&MeshAuthority]) -> Result<()> {
        self.bundle_as("e2e", roots).await
    }

    /// The same, as this field manager.
    async fn bundle_as(&self, manager: &str, roots: &[&MeshAuthority]) -> Result<()> {
        let bundle = pem_of(roots);
        self.mesh.installation.set_trust_roots_as(manager, &bundle).await?;
        eventually(super::DEADLINE, "the hash of the bundle", async || {
            let (status, _) = self.mesh.status().await?;
            ensure!(status["trustRootsSHA256"] == json!(hash(&bundle)), "{status}");
            Ok(())
        })
        .await
    }
}

/// Creates the Pod of the control plane, which has a proxy, or replaces it.
async fn control_plane_pod(mesh: &RolloutRig) -> Result<()> {
    let namespace = &mesh.installation.namespace;
    let pods: Api<Pod> = Api::namespaced(mesh.installation.client.clone(), namespace);
    let old = pods.delete("linkerd-destination", &DeleteParams::default().grace_period(0)).await;
    if old.is_ok() {
        // Timestamps have a resolution of one second.
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    let pod = json!({
        "metadata": {
            "name": "linkerd-destination",
            "labels": {
                "linkerd.io/control-plane-component": "destination", "linkerd.io/control-plane-ns": namespace,
                "linkerd-operator-e2e": "workload",
            },
        },
        "spec": {"containers": [{"name": "linkerd-proxy", "image": "proxy"}, {"name": "destination", "image": "controller"}]},
    });
    eventually(super::DEADLINE, "a Pod of the control plane", async || {
        pods.create(&PostParams::default(), &serde_json::from_value(pod.clone())?).await?;
        Ok(())
    })
    .await
}

async fn has_roots(workload: &workload::Workload, bundle: &str) -> Result<()> {
    for proxy in workload.proxies().await? {
        let anchors = proxy.context("a Pod without proxy")?.trust_anchors;
        ensure!(anchors.as_deref() == Some(bundle), "{workload} has {anchors:?}");
    }
    Ok(())
}

/// Scenario 5.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_anchor_reaches_the_control_plane_first() -> Result<()> {
    let (mut mesh, bundle) = of_external_authority().await?;
    control_plane_pod(&mesh).await?;
    let (web, api) = (mesh.deployment("web", 1).await?, mesh.deployment("api", 1).await?);
    mesh.adopt(json!({})).await?;
    let marker = mesh.is_complete().await?;
    mesh.is_quiet().await?;
    let writes = mesh.installation.writes("/configmaps/").len();
    tokio::time::sleep(Duration::from_millis(1100)).await;

    let both = format!("{bundle}{}", certificate("next.linkerd.cluster.local")?);
    mesh.installation.set_trust_roots(&both).await?;
    mesh.rollout_is("False/WaitingForControlPlane").await?;
    mesh.no_more_than(0).await?;
    control_plane_pod(&mesh).await?;
    for workload in [&web, &api] {
        eventually(super::DEADLINE, "the new anchors", async || has_roots(workload, &both).await).await?;
    }
    assert_eq!(mesh.is_complete().await?, marker);
    assert_eq!(mesh.counts([&web, &api])?, [1, 1]);
    for workload in [&web, &api] {
        assert_eq!(workload.restarted_for().await?, Some(format!("{marker}-{}", &hash(&both)[..8])));
    }
    assert_eq!(mesh.installation.writes("/configmaps/").len(), writes);
    Ok(())
}

/// Trap 9: proxies with the new anchors could not connect to proxies with the old ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_without_any_of_the_old_anchors_needs_approval() -> Result<()> {
    let (mut mesh, _) = of_external_authority().await?;
    let web = mesh.deployment("web", 1).await?;
    mesh.adopt(json!({})).await?;
    let new = certificate("other.linkerd.cluster.local")?;
    mesh.installation.set_trust_roots(&new).await?;
    mesh.rollout_is("False/AwaitingApproval").await?;
    // The Pods show what they trust, also to a new resource.
    mesh.installation.delete_and_wait("mesh").await?;
    mesh.declare(json!({})).await?;
    mesh.rollout_is("False/AwaitingApproval").await?;
    // An approval applies only to the bundle with this hash.
    mesh.annotate("approve-trust-roots", &hash("something else")).await?;
    mesh.no_more_than(0).await?;
    mesh.rollout_is("False/AwaitingApproval").await?;
    mesh.annotate("approve-trust-roots", &hash(&new)).await?;
    eventually(super::DEADLINE, "the new anchors", async || has_roots(&web, &new).await).await?;
    mesh.is_complete().await?;
    assert_eq!(mesh.counts([&web])?, [1]);
    Ok(())
}

fn pem_of(roots: &[&MeshAuthority]) -> String {
    roots.iter().map(|root| root.pem()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_over_a_declared_bridge_restarts_nothing() -> Result<()> {
    let mut trust = RotatedMesh::new().await?;
    let roots = (Arc::clone(&trust.old), Arc::clone(&trust.new));
    let (old, new) = (&*roots.0, &*roots.1);
    let (issuer, bridge) = (new.signs("new issuer")?, old.bridges(new, "new")?);
    let declared = pem_of(&[&bridge, old]);
    trust.declares(json!({"bridge": {"pem": declared}})).await?;
    trust.suffice(&[old], "issuer", &[old, new]).await?;
    trust.bundle(&[old, new]).await?;
    trust.suffice(&[old, new], "issuer", &[old, new]).await?;
    trust.mesh.no_more_than(0).await?;
    trust.presents(&[&issuer, &bridge]).await?;
    trust.suffice(&[old, new], "new issuer", &[old, new]).await?;
    trust.bundle(&[new]).await?;
    trust.suffice(&[new], "new issuer", &[old, new]).await?;
    trust.mesh.no_more_than(0).await?;
    trust.mesh.is_complete().await?;
    has_roots(&trust.web, &old.pem()).await?;

    // Until no proxy trusts the old root. That of the workload cannot be asked whether its certificate needs it.
    trust.declares(json!({"bridge": {"pem": declared}, "restarts": "Always"})).await?;
    trust.mesh.rollout_is("False/AwaitingApproval").await?;
    trust.mesh.no_more_than(0).await?;
    trust.mesh.annotate("approve-trust-roots", &hash(&new.pem())).await?;
    eventually(super::DEADLINE, "the new root", async || has_roots(&trust.web, &new.pem()).await).await?;
    trust.mesh.is_complete().await?;
    assert_eq!(trust.mesh.counts([&trust.web])?, [1]);

    // The key of the old root was stolen, and one proxy still accepts others over the bridge.
    trust.declares(json!({"bridge": {"pem": declared}, "distrust": {"pem": old.pem()}})).await?;
    eventually(super::DEADLINE, "the exposed proxy", async || {
        let status = trust.status().await?;
        let ready = status["conditions"].as_array().into_iter().flatten().find(|it| it["type"] == json!("Ready"));
        ensure!(ready.is_some_and(|ready| ready["reason"] == json!("ProxiesExposed")), "{status:#}");
        Ok(())
    })
    .await?;
    trust.forgets_the_old_root().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_without_a_bridge_restarts_each_workload_once() -> Result<()> {
    let mut trust = RotatedMesh::new().await?;
    let roots = (Arc::clone(&trust.old), Arc::clone(&trust.new));
    let (old, new) = (&*roots.0, &*roots.1);
    let (issuer, both) = (new.signs("new issuer")?, pem_of(&[old, new]));
    trust.declares(json!({})).await?;
    trust.suffice(&[old], "issuer", &[new]).await?;
    trust.mesh.no_more_than(0).await.context("new Pods would not trust the new root either")?;
    trust.bundle(&[old, new]).await?;
    eventually(super::DEADLINE, "the new root", async || has_roots(&trust.web, &both).await).await?;
    trust.mesh.is_complete().await?;
    trust.presents(&[&issuer]).await?;
    trust.suffice(&[old, new], "new issuer", &[new]).await?;
    trust.bundle_as(OPERATOR, &[new]).await?;
    trust.suffice(&[new], "new issuer", &[new]).await?;
    trust.mesh.no_more_than(1).await?;
    trust.mesh.is_complete().await?;
    has_roots(&trust.web, &both).await?;
    assert_eq!(trust.mesh.counts([&trust.web])?, [1]);

    // The key of the old root was stolen: no proxy may keep it, also outside of the window.
    trust.mesh.change(json!({"rollout": {"window": {"allow": [{"cron": "0 0 1 1 *", "duration": "1m"}]}}})).await?;
    trust.declares(json!({"mode": "Enforce", "distrust": {"pem": old.pem()}})).await?;
    // The Pod that was created by hand has no root of the bundle.
    trust.mesh.rollout_is("False/AwaitingApproval").await?;
    trust.mesh.annotate("approve-trust-roots", &hash(&new.pem())).await?;
    eventually(super::DEADLINE, "the last pass", async || has_roots(&trust.web, &new.pem()).await).await?;
    assert_eq!(trust.mesh.counts([&trust.web])?, [2]);
    trust.forgets_the_old_root().await
}

/// One pass, in which connections are refused: the operator waits for neither certificates nor an approval.
#[tokio::test(flavor = "multi_thread")]
async fn while_connections_are_cut_a_distrusted_root_leaves_bundle_and_proxies_at_once() -> Result<()> {
    let mut trust = RotatedMesh::new().await?;
    let roots = (Arc::clone(&trust.old), Arc::clone(&trust.new));
    let (old, new) = (&*roots.0, &*roots.1);
    let closed = json!({"allow": [{"cron": "0 0 1 1 *", "duration": "1m"}]});
    trust.mesh.change(json!({"rollout": {"window": closed}})).await?;
    let distrust = json!({"pem": old.pem(), "connections": "Cut"});
    trust.declares(json!({"mode": "Enforce", "issuer": {"manage": "Secret"}, "distrust": distrust})).await?;
    let both = pem_of(&[old, new]);
    trust.next_step("write an issuer of new (").await?;
    assert_eq!(trust.mesh.installation.trust_roots().await?, both, "no issuer of the new root signs yet");
    trust.issuer_is_written().await?;
    trust.next_step("the distrusted roots stay in the bundle until new certificates").await?;
    trust.mesh.no_more_than(0).await?;
    trust.bundle_as(OPERATOR, &[new]).await?;
    eventually(super::DEADLINE, "the new root", async || has_roots(&trust.web, &new.pem()).await).await?;
    trust.next_step("create the Pods of ").await?;
    let issuer = new.signs("new issuer")?;
    trust.presents(&[&issuer]).await?;
    trust.forgets_the_old_root().await
}
