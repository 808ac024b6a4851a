//! The CRD and the operator of another version, with objects that are stored: an upgrade, and the way back.

use std::{
    collections::BTreeMap,
    io::Write,
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result, ensure};
use e2e::{Manager, eventually, mesh::SOON};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    ResourceExt,
    api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};

use super::{CONFIG_MAP, Installation, Lent, WELL, unmarked};
use crate::other_version::{OtherVersion, Version};

const CRD: &str = "linkerdconfigs.config.linkerd.io";
/// The field manager of Terraform, which the schema of older versions does not have in its default of
/// `drift.trustedManagers`.
const TERRAFORM: &str = "terraform-provider-helm_v3.1.2_x5";
const SAMPLES: [&str; 4] = ["minimal", "observe", "full", "2020"];

/// Name → uid, generation, spec and status of each LinkerdConfig.
type Stored = BTreeMap<String, Value>;

struct Upgrade {
    other: OtherVersion,
    installation: Installation,
}

impl Upgrade {
    /// Applies the CRD of this version as `make install` does, and waits until it is used.
    async fn install_crd(&self, version: Version) -> Result<()> {
        let control_plane = &self.installation.control_plane;
        let read = async |path: &str| control_plane.kubectl(&["get", "--raw", path]).await;
        let crd = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD}");
        let schema =
            async || -> Result<Value> { Ok(serde_json::from_str::<Value>(&read(&crd).await?)?["spec"].take()) };
        let published = async || read("/openapi/v3/apis/config.linkerd.io/v1alpha1").await;
        let (before, published_before) = (schema().await?, published().await?);
        let folder = self.other.repository(version).join("crd");
        control_plane.kubectl(&["apply", "--server-side", "-k", &folder.display().to_string()]).await?;
        if schema().await? == before {
            return Ok(());
        }
        // The API server publishes the new schema after it has begun to use it.
        eventually(SOON, "the new CRD to be used", async || {
            ensure!(published().await? != published_before, "the published schema is the old one");
            Ok(())
        })
        .await
    }

    async fn start(&self, version: Version) -> Result<Manager> {
        self.start_as(version, "operator").await
    }

    async fn start_as(&self, version: Version, identity: &str) -> Result<Manager> {
        let Self { other, installation } = self;
        installation.replica(identity).binary(other.binary(version)).ready(&installation.control_plane).await
    }

    /// An installation with the CRD of the other version.
    async fn from(other: OtherVersion) -> Result<Self> {
        let lent = Lent::with_crds(&other.repository(Version::Other).join("crd")).await?;
        let installation = Installation::on(Arc::new(lent)).await?.installed().await?;
        Ok(Self { other, installation })
    }

    async fn stored(&self) -> Result<Stored> {
        let all = self.installation.configs.list(&ListParams::default()).await?;
        let object = |object: kube::api::DynamicObject| {
            let metadata = &object.metadata;
            let kept = json!({"uid": metadata.uid, "generation": metadata.generation, "finalizers": metadata.finalizers,
                "spec": object.data["spec"], "status": object.data["status"]});
            (object.name_any(), kept)
        };
        Ok(all.into_iter().map(object).collect())
    }

    /// Waits until the objects are these.
    async fn still_are(&self, stored: &Stored, when: &str) -> Result<()> {
        eventually(SOON, format_args!("the objects to be unchanged {when}"), async || {
            let now = self.stored().await?;
            for (name, before) in stored {
                ensure!(now.get(name) == Some(before), "{name} was {before}, and is {:?}", now.get(name));
            }
            ensure!(now.len() == stored.len(), "{} objects, {} before", now.len(), stored.len());
            Ok(())
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_objects_are_unchanged_by_the_crd_and_the_operator_of_another_version() -> Result<()> {
    let name = "stored_objects_are_unchanged_by_the_crd_and_the_operator_of_another_version";
    let Some(other) = OtherVersion::given(name)? else { return Ok(()) };
    let samples = other.repository(Version::Other).join("config/samples");
    let upgrade = Upgrade::from(other).await?;
    let installation = &upgrade.installation;

    let mut manager = upgrade.start(Version::Other).await?;
    let spec = json!({
        "deletionPolicy": "RestoreBase", "priority": 7, "proxy": {"accessLog": "json", "inboundPort": 5143},
        "values": {"proxy": {"aNewFlag": true, "list": [{"name": "a", "weight": 1}]}},
    });
    installation.declare("mesh", spec).await?;
    for sample in SAMPLES {
        let file = samples.join(format!("linkerdconfig-{sample}.yaml")).display().to_string();
        installation.control_plane.kubectl(&["create", "-f", &file]).await?;
    }
    installation.reaches("mesh", &WELL).await?;
    eventually(SOON, "every object to have a status", async || {
        for (name, object) in upgrade.stored().await? {
            ensure!(object["status"]["observedGeneration"] == object["generation"], "{name}: {object}");
        }
        Ok(())
    })
    .await?;
    ensure!(manager.terminate(SOON).await?.success(), "the other version did not exit with success");
    let mut stored = upgrade.stored().await?;
    ensure!(stored.len() == 1 + SAMPLES.len(), "{stored:?}");

    for (port, version) in (5200..).zip([Version::This, Version::Other]) {
        upgrade.install_crd(version).await?;
        upgrade.still_are(&stored, &format!("with the CRD of {version:?}")).await?;
        // A write stores the object again, without fields that the CRD does not have.
        for name in stored.keys() {
            let touch = Patch::Merge(json!({"metadata": {"annotations": {"touched": version.name()}}}));
            installation.configs.patch(name, &PatchParams::default(), &touch).await?;
        }
        upgrade.still_are(&stored, &format!("after a write with the CRD of {version:?}")).await?;

        let map = installation.map().await?;
        let mut manager = upgrade.start(version).await?;
        let queue = [("name", "linkerdconfig_controller_workqueue")];
        manager.measures("workqueue_work_duration_seconds_count", &queue, |count| count >= Some(1.0)).await?;
        upgrade.still_are(&stored, &format!("with the operator of {version:?}")).await?;
        ensure!(installation.map().await? == map, "{version:?} wrote the ConfigMap without a change");

        installation.change("mesh", json!({"proxy": {"inboundPort": port}})).await?;
        installation.reaches("mesh", &WELL).await?;
        let document = installation.document().await?;
        ensure!(document["proxy"]["ports"]["inbound"] == port, "{}", document["proxy"]["ports"]);
        ensure!(manager.terminate(SOON).await?.success(), "{version:?} did not exit with success");
        stored = upgrade.stored().await?;
    }
    Ok(())
}

/// The documents in the ConfigMap, from when this was started.
struct Documents {
    texts: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<Result<()>>,
}

impl Documents {
    async fn record(installation: &Installation) -> Result<Self> {
        let map = installation.map().await?;
        let params = WatchParams::default().fields(&format!("metadata.name={CONFIG_MAP}")).timeout(290);
        let version = map.resource_version().context("no resourceVersion")?;
        let mut changes = installation.maps.watch(&params, &version).await?.boxed();
        let texts = Arc::new(Mutex::new(vec![text_of(&map)]));
        let recorded = Arc::clone(&texts);
        let task = tokio::spawn(async move {
            while let Some(change) = changes.try_next().await? {
                let (WatchEvent::Added(map) | WatchEvent::Modified(map)) = change else { continue };
                recorded.lock().expect("no panic while it is locked").push(text_of(&map));
            }
            Ok(())
        });
        Ok(Self { texts, task })
    }

    /// Checks that every recorded document has these values, once the last one is recorded.
    async fn all_have(&self, installation: &Installation, values: &Value) -> Result<()> {
        let last = installation.text().await?;
        let texts = eventually(SOON, "the last document to be recorded", async || {
            ensure!(!self.task.is_finished(), "the watch ended");
            let texts = self.texts.lock().expect("no panic while it is locked").clone();
            ensure!(texts.last() == Some(&last), "{} documents", texts.len());
            Ok(texts)
        })
        .await?;
        for text in texts {
            let document = unmarked(installation.parse(&text).await?);
            let mut expected = document.clone();
            super::put_over(&mut expected, values);
            ensure!(document == expected, "a document differs in {}", super::difference(&document, &expected));
        }
        Ok(())
    }
}

impl Drop for Documents {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn text_of(map: &ConfigMap) -> String {
    map.data.as_ref().and_then(|data| data.get("values")).cloned().unwrap_or_default()
}

/// The steps of `docs/src/operate/upgrade.md`, with values that a resource declares in fields of the older schema.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_in_the_order_of_the_page_keeps_every_declared_value_in_effect() -> Result<()> {
    let name = "an_upgrade_in_the_order_of_the_page_keeps_every_declared_value_in_effect";
    let Some(other) = OtherVersion::given(name)? else { return Ok(()) };
    let upgrade = Upgrade::from(other).await?;
    let installation = &upgrade.installation;

    let spec = json!({
        "global": {"clusterNetworks": ["10.0.0.0/8"], "disableIPv6": false},
        "proxy": {"accessLog": "apache", "defaultInboundPolicy": "deny", "opaquePorts": ["9999"]},
        "injectorSync": {"method": "Delay", "delay": "0s", "timeout": "10s"},
        "rollout": {"soak": "1s", "interval": "1s", "progressDeadline": "15s"},
    });
    let stored = installation.declare("mesh", spec.clone()).await?;
    if stored.data["spec"]["proxy"]["defaultInboundPolicy"].is_null() {
        writeln!(std::io::stderr(), "{name}: left out, because the CRD of the other version lacks the fields")?;
        return Ok(());
    }
    let kept = json!({
        "clusterNetworks": "10.0.0.0/8", "disableIPv6": false,
        "proxy": {"defaultInboundPolicy": "deny", "opaquePorts": "9999"},
    });
    let with = |access_log: &str, log_level: &str| {
        let mut values = kept.clone();
        super::put_over(&mut values, &json!({"proxy": {"accessLog": access_log, "logLevel": log_level}}));
        values
    };
    let log_level = "warn,linkerd=info,hickory=error";
    let old = upgrade.start_as(Version::Other, "old").await?;
    installation.is_helm_with(with("apache", log_level)).await?;
    let documents = Documents::record(installation).await?;

    // Step 1: the CRD, while the old operator runs. It reconciles the resource again as the new API server returns it.
    upgrade.install_crd(Version::This).await?;
    let with_new_crd = installation.configs.get(&installation.full("mesh")).await?;
    let mut expected = with_new_crd.data["spec"].clone();
    super::put_over(&mut expected, &spec);
    ensure!(with_new_crd.data["spec"] == expected, "the CRD dropped fields: {}", with_new_crd.data["spec"]);
    installation.change("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    installation.is_helm_with(with("json", log_level)).await?;
    documents.all_have(installation, &kept).await.context("step 1")?;

    // Step 2: a new replica becomes ready, then the old one is stopped.
    let new = upgrade.start_as(Version::This, "new").await?;
    hand_over(old).await?;
    let deprecated = [
        "spec.global.clusterNetworks",
        "spec.global.disableIPv6",
        "spec.proxy.defaultInboundPolicy",
        "spec.proxy.opaquePorts",
    ];
    eventually(SOON, "the status of the new operator", async || {
        let status = installation.reaches("mesh", &WELL).await?;
        let fields = status["deprecatedFields"].as_array().context("no deprecated fields")?;
        ensure!(deprecated.iter().all(|field| fields.contains(&json!(field))), "{fields:?}");
        Ok(())
    })
    .await?;
    installation.change("mesh", json!({"proxy": {"accessLog": "apache"}})).await?;
    installation.is_helm_with(with("apache", log_level)).await?;
    documents.all_have(installation, &kept).await.context("step 2")?;

    // The resource has the default of the old schema. An installer that only the present default names is trusted.
    let trusted = stored.data["spec"]["drift"]["trustedManagers"].clone();
    let text = serde_json::to_string(&installation.helm_with(json!({"proxy": {"logLevel": "debug"}})).await?)?;
    drop(documents);
    installation.rewrite(TERRAFORM, &text).await?;
    installation.is_helm_with(with("apache", "debug")).await?;
    let status = installation.reaches("mesh", &WELL).await?;
    ensure!(status["drift"]["count"].is_null(), "{TERRAFORM} is not trusted with {trusted}: {}", status["drift"]);

    // The way back keeps the newer CRD.
    let documents = Documents::record(installation).await?;
    let old = upgrade.start_as(Version::Other, "old").await?;
    hand_over(new).await?;
    installation.change("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    installation.is_helm_with(with("json", "debug")).await?;
    documents.all_have(installation, &kept).await.context("the way back")?;
    hand_over(old).await
}

/// Stops a replica, so that the other one leads.
async fn hand_over(mut manager: Manager) -> Result<()> {
    ensure!(manager.terminate(SOON).await?.success(), "the replica did not exit with success");
    Ok(())
}
