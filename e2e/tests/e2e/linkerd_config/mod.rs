//! The LinkerdConfig controller: what it writes to the ConfigMap, what it reports, and what it must not change.
//!
//! ```text
//!   test ─▶ ConfigMaps, LinkerdConfigs ◀─ FaultProxy ◀─ Manager        an Installation: namespace, proxy, managers
//! ```
//!
//! * The namespace of an installation is the control-plane namespace of its managers and holds their Lease.
//! * The control plane is [lent](Lent), and other tests have used it before. The name of each LinkerdConfig begins with
//!   the namespace, so that no test takes another test's resource for its own.
//! * kubectl parses the documents, with the YAML library that Linkerd uses.

mod adoption;
mod bad_input;
mod break_glass;
mod config_maps;
mod crash;
mod deletion;
mod document;
mod drift;
mod fights;
mod helm;
mod injectors;
mod lent;
mod modes;
mod namespaces;
mod overlay;
mod permissions;
mod process;
mod quiet;
mod rollouts;
mod several;
mod trust_anchors;
mod versions;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    FaultProxy, Job, Manager, ManagerOptions, TestNamespace, eventually, holds,
    mesh::{Mesh, SOON},
};
use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::ConfigMap};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use document::{difference, put_over, unmarked};
use lent::Lent;

/// The document that Helm writes.
const HELM: &str = include_str!("../../../../src/values/testdata/installed.yaml");
const CREATED_BY: &str = "linkerd/helm edge-26.8.3";
const CONFIG_MAP: &str = "linkerd-config";
const TRUST_ROOTS: &str = "linkerd-identity-trust-roots";
const OPERATOR: &str = "linkerd-config-operator";
const FINALIZER: &str = "config.linkerd.io/restore-base";
/// The conditions of a reconciled resource without meshed workloads.
const WELL: [&str; 4] = [
    "Accepted=True/Accepted",
    "ConfigMapSynced=True/Synced",
    "Ready=True/Reconciled",
    "RolloutComplete=True/NothingSelected",
];
/// How long tests wait for a write that must not happen.
const QUIET: Duration = Duration::from_secs(1);
/// A Lease that does not expire during a test: another replica can only lead after its release.
const LONG_LEASE: &str = "--leader-election-lease-duration=600s";

static PARSED: AtomicUsize = AtomicUsize::new(0);

/// Linkerd in a dedicated namespace, and the proxy between its managers and the API server.
struct Installation {
    namespace: String,
    /// Except where a test needs another one, the same.
    operator_namespace: String,
    client: Client,
    proxy: FaultProxy,
    maps: Api<ConfigMap>,
    configs: Api<DynamicObject>,
    revisions: Api<ControllerRevision>,
    control_plane: Arc<Lent>,
}

impl Installation {
    /// Installs Linkerd as Helm does: the document [`HELM`], and trust roots with the anchors in the document.
    async fn new() -> Result<Self> {
        Self::empty().await?.installed().await
    }

    /// Installs Linkerd, starts a manager, and declares a resource. Waits until it is reconciled.
    async fn adopted(spec: Value) -> Result<(Self, Manager)> {
        let installation = Self::new().await?;
        let manager = installation.manager().await?;
        installation.adopt("mesh", spec).await?;
        Ok((installation, manager))
    }

    /// Creates only the namespace.
    async fn empty() -> Result<Self> {
        Self::on(Arc::new(Lent::take().await?)).await
    }

    /// Creates another installation in the same cluster.
    async fn beside(&self) -> Result<Self> {
        Self::on(Arc::clone(&self.control_plane)).await?.installed().await
    }

    async fn on(control_plane: Arc<Lent>) -> Result<Self> {
        let client = control_plane.client().await?;
        let namespace = TestNamespace::create(&client, "linkerd-config").await?.name().to_owned();
        Ok(Self {
            proxy: FaultProxy::start(&control_plane).await?,
            maps: Api::namespaced(client.clone(), &namespace),
            configs: Api::all_with(client.clone(), &kind()),
            revisions: Api::namespaced(client.clone(), &namespace),
            control_plane,
            operator_namespace: namespace.clone(),
            namespace,
            client,
        })
    }

    async fn installed(self) -> Result<Self> {
        self.installed_with(json!({"data": {"values": HELM}})).await
    }

    /// Installs Linkerd with this merged into its ConfigMap.
    async fn installed_with(self, map: Value) -> Result<Self> {
        self.put_trust_roots(&self.base_anchors().await?).await?;
        self.put_map(map).await?;
        Ok(self)
    }

    // === managers ===

    async fn manager(&self) -> Result<Manager> {
        self.manager_with(&[]).await
    }

    async fn manager_with(&self, args: &[&str]) -> Result<Manager> {
        self.replica("operator").args(args.iter().copied()).ready(&self.control_plane).await
    }

    /// A manager behind the proxy. With the identity of a killed one it leads immediately.
    fn replica(&self, identity: &str) -> ManagerOptions {
        let namespaces = [
            format!("--controller-namespace={}", self.namespace),
            format!("--operator-namespace={}", self.operator_namespace),
        ];
        ManagerOptions::only(Job::LinkerdConfig).args(namespaces).identity(identity).through(&self.proxy)
    }

    /// The write requests of the managers that contain this text, as `METHOD path`. Requests for Leases are left out.
    fn writes(&self, contains: &str) -> Vec<String> {
        self.proxy.writes().into_iter().filter(|line| line.contains(contains)).collect()
    }

    // === the ConfigMap ===

    /// Creates [`CONFIG_MAP`] as the chart does, with this merged into it.
    async fn put_map(&self, over: Value) -> Result<ConfigMap> {
        let mut object = json!({
            "metadata": {
                "name": CONFIG_MAP,
                "labels": {"linkerd.io/control-plane-component": "controller", "app.kubernetes.io/managed-by": "Helm"},
                "annotations": {"linkerd.io/created-by": CREATED_BY, "meta.helm.sh/release-name": "linkerd-control-plane"},
            },
            "data": {"linkerd-crds-chart-version": "linkerd-crds-1.0.0-edge"},
        });
        put_over(&mut object, &over);
        let params = PostParams { field_manager: Some("helm".to_owned()), ..PostParams::default() };
        self.maps.create(&params, &serde_json::from_value(object)?).await.context("creating the ConfigMap")
    }

    async fn put_trust_roots(&self, bundle: &str) -> Result<()> {
        let object = json!({"metadata": {"name": TRUST_ROOTS}, "data": {"ca-bundle.crt": bundle}});
        self.maps.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    async fn set_trust_roots(&self, bundle: &str) -> Result<()> {
        self.set_trust_roots_as("e2e", bundle).await
    }

    /// Writes the bundle as this field manager.
    async fn set_trust_roots_as(&self, manager: &str, bundle: &str) -> Result<()> {
        let patch = json!({"data": {"ca-bundle.crt": bundle}});
        let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        self.maps.patch(TRUST_ROOTS, &params, &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn trust_roots(&self) -> Result<String> {
        let map = self.maps.get(TRUST_ROOTS).await?;
        map.data.unwrap_or_default().remove("ca-bundle.crt").context("no bundle")
    }

    async fn map(&self) -> Result<ConfigMap> {
        Ok(self.maps.get(CONFIG_MAP).await?)
    }

    /// Checks that the ConfigMap is not written.
    async fn stays(&self, map: &ConfigMap) -> Result<()> {
        holds(QUIET, "an unchanged ConfigMap", async || {
            let now = self.map().await?;
            ensure!(&now == map, "{map:?} became {now:?}");
            Ok(())
        })
        .await
    }

    async fn text(&self) -> Result<String> {
        self.map().await?.data.and_then(|mut data| data.remove("values")).context("a ConfigMap without values")
    }

    /// The document as Go parses it, without the marker that the operator adds.
    async fn document(&self) -> Result<Value> {
        Ok(unmarked(self.parse(&self.text().await?).await?))
    }

    /// Merges this into the ConfigMap, as this field manager.
    async fn patch_map(&self, manager: &str, patch: Value) -> Result<ConfigMap> {
        let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        Ok(self.maps.patch(CONFIG_MAP, &params, &Patch::Merge(patch)).await?)
    }

    async fn rewrite(&self, manager: &str, values: &str) -> Result<ConfigMap> {
        self.patch_map(manager, json!({"data": {"values": values}})).await
    }

    /// Merges this into the document, as this field manager.
    async fn edit(&self, manager: &str, patch: Value) -> Result<ConfigMap> {
        let mut document = self.parse(&self.text().await?).await?;
        put_over(&mut document, &patch);
        self.rewrite(manager, &serde_json::to_string_pretty(&document)?).await
    }

    /// The document [`HELM`] with this merged into it.
    async fn helm_with(&self, patch: Value) -> Result<Value> {
        static READ: OnceCell<Value> = OnceCell::const_new();
        let mut document = READ.get_or_try_init(async || self.parse(HELM).await).await?.clone();
        put_over(&mut document, &patch);
        Ok(document)
    }

    /// This document with the access log that many tests declare.
    async fn with_access_log(&self, base: &str) -> Result<Value> {
        let mut document = self.parse(base).await?;
        put_over(&mut document, &json!({"proxy": {"accessLog": "json"}}));
        Ok(document)
    }

    /// Waits until the document is [`HELM`] with this merged into it.
    async fn is_helm_with(&self, patch: Value) -> Result<()> {
        self.document_is(&self.helm_with(patch).await?).await
    }

    /// Waits until the document equals this one.
    async fn document_is(&self, expected: &Value) -> Result<()> {
        self.document_is_within(SOON, expected).await
    }

    async fn document_is_within(&self, deadline: Duration, expected: &Value) -> Result<()> {
        // Parsed again only when the text changes: parsing starts a process.
        let (mut read, mut document) = (String::new(), Value::Null);
        eventually(deadline, "the declared document", async || {
            let text = self.text().await?;
            if text != read {
                document = unmarked(self.parse(&text).await?);
                read = text;
            }
            ensure!(&document == expected, "it differs in {}", difference(&document, expected));
            Ok(())
        })
        .await
    }

    async fn base_anchors(&self) -> Result<String> {
        let document = self.helm_with(json!({})).await?;
        document.get("identityTrustAnchorsPEM").and_then(Value::as_str).map(str::to_owned).context("no trust anchors")
    }

    /// Parses the text with kubectl, which uses Linkerd's YAML library.
    async fn parse(&self, text: &str) -> Result<Value> {
        let number = PARSED.fetch_add(1, Ordering::Relaxed);
        let file = self.control_plane.directory().join(format!("values-{number}.json"));
        // kubectl accepts only objects, and does not parse YAML within strings: the document becomes a field of an
        // object.
        let object = match serde_json::from_str::<Value>(text) {
            Ok(json) => format!("apiVersion: v1\nkind: Values\nmetadata: {{name: values}}\nvalues: {json}\n"),
            Err(_) => {
                let indented = text.lines().map(|line| format!("  {line}\n")).collect::<String>();
                format!("apiVersion: v1\nkind: Values\nmetadata: {{name: values}}\nvalues:\n{indented}")
            }
        };
        tokio::fs::write(&file, object).await?;
        let file = file.display().to_string();
        let read = self.control_plane.kubectl(&["annotate", "--local", "-f", &file, "read=true", "-o", "json"]).await;
        tokio::fs::remove_file(&file).await?;
        serde_json::from_str::<Value>(&read?)?.get_mut("values").map(Value::take).context("no values")
    }

    // === LinkerdConfigs ===

    /// The name of a LinkerdConfig, which is unique in the cluster.
    fn full(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    /// Creates a LinkerdConfig. Unless the spec sets `injectorSync`, no injector is probed.
    async fn declare(&self, name: &str, mut spec: Value) -> Result<DynamicObject> {
        if spec.get("injectorSync").is_none() {
            put_over(&mut spec, &json!({"injectorSync": {"method": "Delay", "delay": "0s"}}));
        }
        put_over(&mut spec, &json!({"global": {"linkerdNamespace": self.namespace}}));
        let object = DynamicObject::new(&self.full(name), &kind()).data(json!({ "spec": spec }));
        self.configs.create(&PostParams::default(), &object).await.with_context(|| format!("creating {name}"))
    }

    async fn change(&self, name: &str, spec: Value) -> Result<DynamicObject> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        Ok(self.configs.patch(&self.full(name), &PatchParams::default(), &patch).await?)
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.configs.delete(&self.full(name), &DeleteParams::default()).await?;
        Ok(())
    }

    /// Creates a LinkerdConfig, and waits until it is reconciled.
    async fn adopt(&self, name: &str, spec: Value) -> Result<Value> {
        self.declare(name, spec).await?;
        self.reaches(name, &WELL).await
    }

    async fn delete_and_wait(&self, name: &str) -> Result<()> {
        self.delete(name).await?;
        self.is_deleted(name).await
    }

    /// Waits until the LinkerdConfig is deleted.
    async fn is_deleted(&self, name: &str) -> Result<()> {
        eventually(SOON, format_args!("{name} to be deleted"), async || {
            let left = self.configs.get_opt(&self.full(name)).await?;
            ensure!(left.is_none(), "its finalizers are {:?}", left.map(|left| left.metadata.finalizers));
            Ok(())
        })
        .await
    }

    /// Checks that the finalizer of `mesh` is not removed.
    async fn keeps_its_finalizer(&self) -> Result<()> {
        holds(QUIET, "the finalizer", async || {
            ensure!(self.finalizers("mesh").await? == [FINALIZER], "it was removed");
            Ok(())
        })
        .await
    }

    async fn finalizers(&self, name: &str) -> Result<Vec<String>> {
        Ok(self.configs.get(&self.full(name)).await?.finalizers().to_vec())
    }

    /// Waits until the status is for the newest generation and has these conditions, each as `Type=Status/Reason`.
    /// `Stalled` must be absent unless it is expected. Returns the status.
    async fn reaches(&self, name: &str, expected: &[&str]) -> Result<Value> {
        self.reaches_within(SOON, name, expected).await
    }

    /// Waits until the resource is well, and its status counts this many drifts. Returns the status, which is written
    /// after the document and the Events: until then it is that of the time before.
    async fn reports_drifts(&self, name: &str, count: u64) -> Result<Value> {
        eventually(SOON, format_args!("{count} drifts in the status of {name}"), async || {
            let status = self.reaches(name, &WELL).await?;
            ensure!(status["drift"]["count"] == count, "{status}");
            Ok(status)
        })
        .await
    }

    async fn reaches_within(&self, deadline: Duration, name: &str, expected: &[&str]) -> Result<Value> {
        eventually(deadline, format_args!("{name} to be {expected:?}"), async || {
            let mut object = self.configs.get(&self.full(name)).await?;
            let generation = json!(object.metadata.generation);
            let status = object.data.get_mut("status").map(Value::take).unwrap_or_default();
            let observed = status.get("observedGeneration");
            ensure!(observed == Some(&generation), "generation {generation} has the status {status}");
            let conditions = status.get("conditions").and_then(Value::as_array).context("no conditions")?;
            let mut seen = Vec::new();
            for condition in conditions {
                let text = |key: &str| condition[key].as_str().unwrap_or_default();
                seen.push(format!("{}={}/{}", text("type"), text("status"), text("reason")));
                ensure!(condition["observedGeneration"] == generation, "generation {generation}: {condition}");
            }
            let missing = expected.iter().any(|expected| !seen.iter().any(|seen| seen == expected));
            let stalled = |all: &[String]| all.iter().any(|seen| seen.starts_with("Stalled"));
            let expected = expected.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
            ensure!(!missing && stalled(&seen) == stalled(&expected), "{conditions:?}");
            Ok(status)
        })
        .await
    }

    // === results ===

    /// The documents that installers wrote, oldest first. Consecutive revisions with the same text count once, because
    /// a new revision does not always have a new text. An old text may return later. At most five are kept.
    async fn bases(&self) -> Result<Vec<String>> {
        let mut revisions = self.revisions().await?;
        revisions.dedup_by(|later, earlier| later.1 == earlier.1);
        Ok(revisions.into_iter().map(|(_, text)| text).collect())
    }

    /// The revisions that contain a base: their numbers and texts.
    async fn revisions(&self) -> Result<Vec<(i64, String)>> {
        let labels = format!("config.linkerd.io/base-of={CONFIG_MAP}");
        let mut revisions = Vec::new();
        for revision in self.revisions.list(&ListParams::default().labels(&labels)).await? {
            let data = revision.data.context("a revision without data")?.0;
            let text = data.get("values").and_then(Value::as_str).context("a revision without values")?;
            revisions.push((revision.revision, text.to_owned()));
        }
        revisions.sort();
        let numbers = revisions.iter().map(|(number, _)| number).collect::<Vec<_>>();
        // The deletion of the sixth may not have finished.
        ensure!(numbers.is_sorted_by(|one, next| one < next) && numbers.len() <= 6, "{numbers:?}");
        Ok(revisions)
    }

    /// The Events of a LinkerdConfig, as `Reason: note`, oldest first.
    async fn events(&self, name: &str) -> Result<Vec<String>> {
        Mesh::new(&self.client, "default").events_of(&self.full(name)).await
    }

    /// Waits for an Event of a LinkerdConfig with this reason, and returns it as `Reason: note`.
    async fn expect_event(&self, name: &str, reason: &str) -> Result<String> {
        Mesh::new(&self.client, "default").expect_event(&self.full(name), reason).await
    }

    /// Waits for an Event of the ConfigMap with this reason, and returns it as `Reason: note`.
    async fn expect_config_map_event(&self, reason: &str) -> Result<String> {
        Mesh::new(&self.client, &self.namespace).expect_event(CONFIG_MAP, reason).await
    }

    /// The number of Events with this reason that a LinkerdConfig has.
    async fn event_count(&self, name: &str, reason: &str) -> Result<usize> {
        let events = self.events(name).await?;
        Ok(events.iter().filter(|event| event.starts_with(&format!("{reason}: "))).count())
    }

    /// All output about a LinkerdConfig: status, Events, logs and metrics. Tests search it for secrets.
    async fn all_output(&self, name: &str, manager: &Manager) -> Result<String> {
        let status = self.configs.get(&self.full(name)).await?.data.get("status").cloned();
        let of_map = Mesh::new(&self.client, &self.namespace).events_of(CONFIG_MAP).await?;
        let metrics = manager.get("/metrics").await?.1;
        Ok(format!("{status:?}\n{:?}\n{of_map:?}\n{}\n{metrics}", self.events(name).await?, manager.log()))
    }
}

fn kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("config.linkerd.io", "v1alpha1", "LinkerdConfig"))
}

/// The message of a condition.
fn message(status: &Value, of: &str) -> Result<String> {
    let conditions = status["conditions"].as_array().context("no conditions")?;
    let Some(condition) = conditions.iter().find(|condition| condition["type"] == of) else {
        bail!("no condition {of} in {status}");
    };
    Ok(condition["message"].as_str().unwrap_or_default().to_owned())
}
