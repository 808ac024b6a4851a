//! The CRD and the operator of another version, with objects that are stored: an upgrade, and the way back.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Result, ensure};
use e2e::{Manager, eventually, mesh::SOON};
use kube::{
    ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Installation, Lent, WELL};
use crate::other_version::{OtherVersion, Version};

const CRD: &str = "linkerdconfigs.config.linkerd.io";
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
        let Self { other, installation } = self;
        let mut manager = installation.start_binary(other.binary(version), "operator", &installation.proxy, &[])?;
        manager.ready(SOON).await?;
        Ok(manager)
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
    let lent = Lent::with_crds(&other.repository(Version::Other).join("crd")).await?;
    let installation = Installation::on(Arc::new(lent)).await?.installed().await?;
    let upgrade = Upgrade { other, installation };
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
        eventually(SOON, "a reconcile", async || {
            let count = manager.metric("workqueue_work_duration_seconds_count", &queue).await;
            ensure!(count.is_some_and(|count| count >= 1.0), "{count:?} reconciles");
            Ok(())
        })
        .await?;
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
