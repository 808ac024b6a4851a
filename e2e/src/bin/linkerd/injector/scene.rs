//! A mesh with Linkerd's injector: the control plane, the operator's manager, a LinkerdConfig, a workload.
//!
//! * In: the path of Linkerd's controller, the installer's document. Out: functions that change the resource or the
//!   document, and wait for conditions.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, Injector, LinkerdConfigs, Manager, ManagerOptions, Options, eventually,
    injector::CertificateKind,
    mesh::merge,
    workload::{self, Proxy},
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// Linkerd's namespace.
pub(super) const LINKERD: &str = "linkerd";
/// The namespace of the workloads.
pub(super) const APP: &str = "app";
pub(super) const REPLICAS: usize = 2;
const NAME: &str = "mesh";
const CONFIG_MAP: &str = "linkerd-config";
const TRUST_ROOTS: &str = "linkerd-identity-trust-roots";
const SOON: Duration = Duration::from_secs(90);

pub(super) struct Scene {
    pub(super) client: Client,
    pub(super) injector: Injector,
    maps: Api<ConfigMap>,
    configs: LinkerdConfigs,
    manager: Manager,
    pub(super) control_plane: ControlPlane,
}

// === impl Scene ===

impl Scene {
    /// Installs the document, and starts the replicas and the manager.
    pub(super) async fn start(controller: &Path, document: &str) -> Result<Self> {
        let control_plane = ControlPlane::start(Options::full()).await?;
        control_plane.add_node("node", "zone").await?;
        control_plane.install_crds("crd").await?;
        control_plane.create_namespaces(&[LINKERD, APP]).await?;
        let client = control_plane.client().await?;
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), LINKERD);
        let anchors = anchors(document)?;
        let created_by = json!({"linkerd.io/created-by": "linkerd/helm edge-26.8.3"});
        for (name, annotations, data) in [
            (TRUST_ROOTS, json!({}), json!({"ca-bundle.crt": anchors})),
            (CONFIG_MAP, created_by, json!({"values": document})),
        ] {
            let map = json!({"metadata": {"name": name, "annotations": annotations}, "data": data});
            maps.create(&as_helm_creates(), &serde_json::from_value(map)?).await.context("installing Linkerd")?;
        }
        let signed = CertificateKind::SignedByAuthority;
        let injector = Injector::start_linkerd(controller, signed, &control_plane, LINKERD, &[APP], REPLICAS).await?;
        let mut manager = Manager::start(&control_plane, ManagerOptions::default())?;
        manager.ready(SOON).await?;
        let configs = LinkerdConfigs::new(&client);
        Ok(Self { client, injector, maps, configs, manager, control_plane })
    }

    /// Replaces the replicas by others with this certificate.
    pub(super) async fn replace_injector(&mut self, controller: &Path, certificate: CertificateKind) -> Result<()> {
        for replica in self.injector.replicas() {
            self.injector.remove_replica(replica).await?;
        }
        self.injector =
            Injector::start_linkerd(controller, certificate, &self.control_plane, LINKERD, &[APP], REPLICAS).await?;
        Ok(())
    }

    /// Creates the LinkerdConfig, without pauses in its rollouts.
    pub(super) async fn declare(&self, spec: Value) -> Result<()> {
        let mut whole = json!({"injectorSync": {"method": "Probe"}, "rollout": {"interval": "0s", "soak": "0s"}});
        merge(&mut whole, spec);
        self.configs.create(NAME, whole).await
    }

    pub(super) async fn change(&self, spec: Value) -> Result<()> {
        self.configs.change(NAME, spec).await
    }

    /// Writes a document as Helm does, and waits until it is the base of what the operator declares.
    pub(super) async fn install(&self, document: &str) -> Result<()> {
        let before = self.base().await?;
        let params = PatchParams { field_manager: Some("helm".to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({"data": {"values": document}}));
        self.maps.patch(CONFIG_MAP, &params, &patch).await.context("installing a document")?;
        eventually(SOON, "the document to become the base", async || {
            let base = self.base().await?;
            ensure!(base > before, "the base is revision {base:?}");
            Ok(())
        })
        .await
    }

    /// The revision of the installer's document.
    async fn base(&self) -> Result<Option<i64>> {
        let object = self.configs.0.get(NAME).await?;
        Ok(object.data.pointer("/status/revisions/base").and_then(Value::as_i64))
    }

    /// Waits for these conditions, each as `Type=Status/Reason`. Returns the status.
    pub(super) async fn reaches(&self, expected: &[&str]) -> Result<Value> {
        self.configs.reaches(SOON, NAME, expected).await
    }

    /// Waits until both replicas are proven current. Returns the injection hash.
    pub(super) async fn is_current(&self, further: &[&str]) -> Result<String> {
        let expected = [&["InjectorSynced=True/AllReplicasCurrent", "ConfigMapSynced=True/Synced"], further].concat();
        let status = self.reaches(&expected).await?;
        let synced = status.pointer("/injector/synced").and_then(Value::as_u64);
        ensure!(synced == Some(REPLICAS as u64), "{:?}", status.get("injector"));
        let hash = status.get("injectionHash").and_then(Value::as_str).context("no injection hash")?;
        Ok(hash.to_owned())
    }

    /// The proxy that the API server and the injector give to a new Pod.
    pub(super) async fn new_proxy(&self) -> Result<Option<Proxy>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), APP);
        let pod = serde_json::from_value(json!({
            "metadata": {"generateName": "new-", "annotations": {"linkerd.io/inject": "enabled"}},
            "spec": {"serviceAccountName": "default", "containers": [{"name": "web", "image": "web"}]},
        }))?;
        let params = PostParams { dry_run: true, ..PostParams::default() };
        Ok(workload::proxy(&pods.create(&params, &pod).await.context("creating a Pod")?))
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        self.manager.terminate(SOON).await.map(drop)
    }
}

/// The message of a condition.
pub(super) fn message(status: &Value, of: &str) -> String {
    let conditions = status.get("conditions").and_then(Value::as_array).into_iter().flatten();
    let mut of_type = conditions.filter(|condition| condition.get("type").and_then(Value::as_str) == Some(of));
    let message = of_type.next().and_then(|condition| condition.get("message")?.as_str());
    message.unwrap_or_default().to_owned()
}

fn anchors(document: &str) -> Result<String> {
    let document: Value = serde_yaml::from_str(document).context("the document is not YAML")?;
    let anchors = document.get("identityTrustAnchorsPEM").and_then(Value::as_str);
    anchors.map(str::to_owned).context("the document has no trust anchors")
}

fn as_helm_creates() -> PostParams {
    PostParams { field_manager: Some("helm".to_owned()), ..PostParams::default() }
}
