//! LinkerdConfigs, as users write and read them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{objects::kind, wait::eventually};

/// All LinkerdConfigs of a cluster.
#[derive(Clone)]
pub struct LinkerdConfigs(pub Api<DynamicObject>);

impl LinkerdConfigs {
    pub fn new(client: &Client) -> Self {
        Self(Api::all_with(client.clone(), &linkerd_config()))
    }

    pub async fn create(&self, name: &str, spec: Value) -> Result<()> {
        let object = DynamicObject::new(name, &linkerd_config()).data(json!({ "spec": spec }));
        let created = self.0.create(&PostParams::default(), &object).await;
        created.map(drop).with_context(|| format!("creating LinkerdConfig {name}"))
    }

    /// Merges this into the spec.
    pub async fn change(&self, name: &str, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let changed = self.0.patch(name, &PatchParams::default(), &patch).await;
        changed.map(drop).with_context(|| format!("changing LinkerdConfig {name}"))
    }

    /// Waits until the status is for the newest generation, and has these conditions, each as `Type=Status/Reason`.
    /// Returns the status.
    pub async fn reaches(&self, deadline: Duration, name: &str, expected: &[&str]) -> Result<Value> {
        eventually(deadline, format_args!("LinkerdConfig {name} to be {expected:?}"), async || {
            let object = self.0.get(name).await?;
            let status = object.data.get("status").cloned().unwrap_or_default();
            let (generation, observed) = (json!(object.metadata.generation), status.get("observedGeneration"));
            ensure!(observed == Some(&generation), "generation {generation} has the status {status}");
            let conditions = status.get("conditions").and_then(Value::as_array).context("no conditions")?;
            let seen: Vec<String> = conditions.iter().map(shown).collect();
            ensure!(expected.iter().all(|expected| seen.iter().any(|seen| seen == expected)), "{conditions:?}");
            Ok(status)
        })
        .await
    }
}

fn linkerd_config() -> ApiResource {
    kind("config.linkerd.io/v1alpha1", "LinkerdConfig")
}

/// A condition as `Type=Status/Reason`.
fn shown(condition: &Value) -> String {
    let text = |key: &str| condition.get(key).and_then(Value::as_str).unwrap_or_default();
    format!("{}={}/{}", text("type"), text("status"), text("reason"))
}
