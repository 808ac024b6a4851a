//! Linkerd's ConfigMaps and a LinkerdConfig, for an operator with all jobs.

use anyhow::{Context, Result, ensure};
use e2e::eventually;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::BACKED_OFF;

/// The document that Helm writes.
const HELM: &str = include_str!("../../../../src/values/testdata/installed.yaml");
const ANCHORS: &str = "linkerd-identity-trust-roots";

/// The ConfigMap and the LinkerdConfig of Linkerd.
pub(super) struct Linkerd {
    pub(super) maps: Api<ConfigMap>,
    configs: Api<DynamicObject>,
}

impl Linkerd {
    /// Installs Linkerd's ConfigMaps as Helm does, and declares an access log.
    pub(super) async fn install(client: &Client) -> Result<Self> {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "linkerd");
        let helm = PostParams { field_manager: Some("helm".to_owned()), ..PostParams::default() };
        let document: Value = serde_yaml::from_str(HELM)?;
        let anchors = document["identityTrustAnchorsPEM"].as_str().context("no trust anchors")?;
        for (name, key, text) in [(ANCHORS, "ca-bundle.crt", anchors), ("linkerd-config", "values", HELM)] {
            let map = json!({"metadata": {"name": name, "annotations": {"linkerd.io/created-by": "linkerd/helm edge-26.8.3"}},
                "data": {key: text}});
            maps.create(&helm, &serde_json::from_value(map)?).await?;
        }
        let kind = e2e::objects::kind("config.linkerd.io/v1alpha1", "LinkerdConfig");
        let configs = Api::all_with(client.clone(), &kind);
        let spec = json!({"proxy": {"accessLog": "json"}, "injectorSync": {"method": "Delay", "delay": "0s"}});
        configs.create(&PostParams::default(), &DynamicObject::new("mesh", &kind).data(json!({"spec": spec}))).await?;
        let linkerd = Self { maps, configs };
        linkerd.has_access_log("json").await?;
        Ok(linkerd)
    }

    async fn text(&self) -> Result<String> {
        let map = self.maps.get("linkerd-config").await?;
        map.data.and_then(|mut data| data.remove("values")).context("a ConfigMap without values")
    }

    /// Waits until the document and the status have the declared access log.
    pub(super) async fn has_access_log(&self, expected: &str) -> Result<()> {
        eventually(BACKED_OFF, format_args!("the access log {expected}"), async || {
            let document: Value = serde_yaml::from_str(&self.text().await?)?;
            let seen = &document["proxy"]["accessLog"];
            ensure!(seen == expected, "{seen}");
            let config = self.configs.get("mesh").await?;
            let status = &config.data["status"];
            ensure!(status["observedGeneration"] == json!(config.metadata.generation), "{status}");
            let conditions = status["conditions"].as_array().context("no conditions")?;
            ensure!(conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True"), "{conditions:?}");
            Ok(())
        })
        .await
    }

    /// Replaces the access log in the document, as a person does.
    pub(super) async fn edit_access_log(&self, log: &str) -> Result<()> {
        let mut document: Value = serde_yaml::from_str(&self.text().await?)?;
        document["proxy"]["accessLog"] = json!(log);
        self.patch("kubectl-edit", json!({"values": document.to_string()})).await
    }

    /// Adds a key to the ConfigMap that is not read.
    pub(super) async fn add_other_data(&self, text: String) -> Result<()> {
        self.patch("helm", json!({"other": text})).await
    }

    async fn patch(&self, manager: &str, data: Value) -> Result<()> {
        let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        self.maps.patch("linkerd-config", &params, &Patch::Merge(json!({ "data": data }))).await?;
        Ok(())
    }
}
