//! The LinkerdConfig controller: what it makes of the ConfigMap, what it says, and what it leaves alone.
//!
//! ```text
//!   test ─▶ ConfigMaps, LinkerdConfigs ◀─ FaultProxy ◀─ Manager        an Installation: a namespace, a proxy, managers of its own
//! ```
//!
//! * Always: an installation is its managers' control-plane namespace and holds their Lease. The control plane is [lent](Lent),
//!   and was used by others before; names of LinkerdConfigs begin with the namespace's, so that nothing of theirs is taken for
//!   ours.
//! * The documents are read by kubectl, whose YAML is that of Linkerd's own readers.

mod adoption;
mod bad_input;
mod config_maps;
mod crash;
mod deletion;
mod document;
mod drift;
mod fights;
mod injectors;
mod installers;
mod lent;
mod modes;
mod overlay;
mod permissions;
mod process;
mod quiet;
mod rollouts;
mod several;
mod trust_anchors;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    FaultProxy, Manager, ManagerOptions, TestNamespace, eventually,
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

/// What Helm wrote.
const HELM: &str = include_str!("../../../../src/linkerd_config/values/testdata/installed.yaml");
const CREATED_BY: &str = "linkerd/helm edge-26.8.3";
const CONFIG_MAP: &str = "linkerd-config";
const TRUST_ROOTS: &str = "linkerd-identity-trust-roots";
const OPERATOR: &str = "linkerd-config-operator";
/// All is well, where no workload is meshed.
const WELL: [&str; 4] = [
    "Accepted=True/Accepted",
    "ConfigMapSynced=True/Synced",
    "Ready=True/Reconciled",
    "RolloutComplete=True/NothingSelected",
];
/// Long enough for a write that should not come to come.
const QUIET: Duration = Duration::from_secs(1);
/// Longer than the pauses between attempts grow within a test.
const BACKED_OFF: Duration = Duration::from_secs(70);

static PARSED: AtomicUsize = AtomicUsize::new(0);

/// Linkerd in a namespace of its own, and the way of managers to it.
struct Installation {
    namespace: String,
    client: Client,
    proxy: FaultProxy,
    maps: Api<ConfigMap>,
    configs: Api<DynamicObject>,
    revisions: Api<ControllerRevision>,
    control_plane: Arc<Lent>,
}

impl Installation {
    /// As Helm leaves it: the document [`HELM`], and the trust roots that it names.
    async fn new() -> Result<Self> {
        Self::empty().await?.installed().await
    }

    /// The namespace alone.
    async fn empty() -> Result<Self> {
        Self::on(Arc::new(Lent::take().await?)).await
    }

    /// Another one, in the same cluster.
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
            namespace,
            client,
        })
    }

    async fn installed(self) -> Result<Self> {
        self.put_trust_roots(&self.base_anchors().await?).await?;
        self.put_map(json!({ "data": { "values": HELM } })).await?;
        Ok(self)
    }

    // === managers ===

    async fn manager(&self) -> Result<Manager> {
        self.manager_with(&[]).await
    }

    async fn manager_with(&self, args: &[&str]) -> Result<Manager> {
        let mut manager = self.start_manager("operator", &self.proxy, args)?;
        manager.ready(SOON).await?;
        Ok(manager)
    }

    /// Under the name of one that was killed it leads at once.
    fn start_manager(&self, identity: &str, proxy: &FaultProxy, args: &[&str]) -> Result<Manager> {
        let namespace = &self.namespace;
        let own = [
            "--enable-external-workload=false".to_owned(),
            "--enable-destination=false".to_owned(),
            format!("--controller-namespace={namespace}"),
            format!("--operator-namespace={namespace}"),
        ];
        let options = ManagerOptions {
            args: own.into_iter().chain(args.iter().map(|arg| (*arg).to_owned())).collect(),
            identity: Some(identity.to_owned()),
            kubeconfig: Some(proxy.kubeconfig().to_owned()),
            ..ManagerOptions::default()
        };
        Manager::start(&self.control_plane, options)
    }

    /// What changes something and contains this text, of the requests that managers sent; not the Lease.
    fn writes(&self, contains: &str) -> Vec<String> {
        let log = self.proxy.log().into_iter();
        let writes = log.filter(|request| request.method != "GET" && !request.path.contains("/leases"));
        let line = writes.map(|request| {
            let path = request.path.split('?').next().unwrap_or_default();
            format!("{} {path}", request.method)
        });
        line.filter(|line| line.contains(contains)).collect()
    }

    // === the ConfigMap ===

    /// Creates [`CONFIG_MAP`] as the chart does, with this over it.
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
        let patch = json!({"data": {"ca-bundle.crt": bundle}});
        self.maps.patch(TRUST_ROOTS, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn map(&self) -> Result<ConfigMap> {
        Ok(self.maps.get(CONFIG_MAP).await?)
    }

    async fn text(&self) -> Result<String> {
        self.map().await?.data.and_then(|mut data| data.remove("values")).context("a ConfigMap without values")
    }

    /// As Go reads it, without the marker that each document of ours ends with.
    async fn document(&self) -> Result<Value> {
        Ok(unmarked(self.parse(&self.text().await?).await?))
    }

    /// Puts this over the ConfigMap, as this field manager.
    async fn patch_map(&self, manager: &str, patch: Value) -> Result<ConfigMap> {
        let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        Ok(self.maps.patch(CONFIG_MAP, &params, &Patch::Merge(patch)).await?)
    }

    async fn rewrite(&self, manager: &str, values: &str) -> Result<ConfigMap> {
        self.patch_map(manager, json!({"data": {"values": values}})).await
    }

    /// Changes what the document says, as this field manager.
    async fn edit(&self, manager: &str, patch: Value) -> Result<ConfigMap> {
        let mut document = self.parse(&self.text().await?).await?;
        put_over(&mut document, &patch);
        self.rewrite(manager, &serde_json::to_string_pretty(&document)?).await
    }

    /// What [`HELM`] says, with this over it.
    async fn helm_with(&self, patch: Value) -> Result<Value> {
        static READ: OnceCell<Value> = OnceCell::const_new();
        let mut document = READ.get_or_try_init(async || self.parse(HELM).await).await?.clone();
        put_over(&mut document, &patch);
        Ok(document)
    }

    /// Waits until the document says exactly this.
    async fn says(&self, expected: &Value) -> Result<()> {
        self.says_within(SOON, expected).await
    }

    async fn says_within(&self, deadline: Duration, expected: &Value) -> Result<()> {
        // Read again only when it is another: reading costs a process.
        let (mut read, mut document) = (String::new(), Value::Null);
        eventually(deadline, "the document that is declared", async || {
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

    /// By kubectl, which reads YAML with the library that Linkerd uses.
    async fn parse(&self, text: &str) -> Result<Value> {
        let number = PARSED.fetch_add(1, Ordering::Relaxed);
        let file = self.control_plane.directory().join(format!("values-{number}.json"));
        // Within the object that kubectl wants, and not as its text: it reads no YAML that is the value of a string.
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

    /// Unique in the cluster.
    fn full(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    /// Where nothing else is said, for a mesh whose injectors are not asked.
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

    /// Waits until it is no more.
    async fn is_gone(&self, name: &str) -> Result<()> {
        eventually(SOON, format_args!("{name} to be gone"), async || {
            let left = self.configs.get_opt(&self.full(name)).await?;
            ensure!(left.is_none(), "its finalizers are {:?}", left.map(|left| left.metadata.finalizers));
            Ok(())
        })
        .await
    }

    async fn finalizers(&self, name: &str) -> Result<Vec<String>> {
        Ok(self.configs.get(&self.full(name)).await?.finalizers().to_vec())
    }

    /// Waits until the status is about the newest spec and has these conditions, each `Type=Status/Reason`; `Stalled` only if
    /// it is named. Returns the status.
    async fn reaches(&self, name: &str, expected: &[&str]) -> Result<Value> {
        self.reaches_within(SOON, name, expected).await
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
            let missing = expected.iter().any(|wanted| !seen.iter().any(|seen| seen == wanted));
            let stalled = |all: &[String]| all.iter().any(|seen| seen.starts_with("Stalled"));
            let expected = expected.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
            ensure!(!missing && stalled(&seen) == stalled(&expected), "{conditions:?}");
            Ok(status)
        })
        .await
    }

    // === what comes of it ===

    /// What installers wrote, oldest first. A revision may be there for another reason than a new text, and a text of old come
    /// back; there are never more than five.
    async fn bases(&self) -> Result<Vec<String>> {
        let mut revisions = self.revisions().await?;
        revisions.dedup_by(|later, earlier| later.1 == earlier.1);
        Ok(revisions.into_iter().map(|(_, text)| text).collect())
    }

    /// Those that hold a base: their number and text.
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
        // The sixth may still be on its way out.
        ensure!(numbers.is_sorted_by(|one, next| one < next) && numbers.len() <= 6, "{numbers:?}");
        Ok(revisions)
    }

    /// Those of a LinkerdConfig, as `Reason: note`, oldest first.
    async fn events(&self, name: &str) -> Result<Vec<String>> {
        Mesh::new(&self.client, "default").events_of(&self.full(name)).await
    }

    async fn tells(&self, name: &str, reason: &str) -> Result<String> {
        Mesh::new(&self.client, "default").tells(&self.full(name), reason).await
    }

    async fn map_tells(&self, reason: &str) -> Result<String> {
        Mesh::new(&self.client, &self.namespace).tells(CONFIG_MAP, reason).await
    }

    /// How many Events of this reason a LinkerdConfig has.
    async fn told(&self, name: &str, reason: &str) -> Result<usize> {
        let events = self.events(name).await?;
        Ok(events.iter().filter(|event| event.starts_with(&format!("{reason}: "))).count())
    }

    /// All that is said anywhere, for what must not be.
    async fn everything_said(&self, name: &str, manager: &Manager) -> Result<String> {
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
