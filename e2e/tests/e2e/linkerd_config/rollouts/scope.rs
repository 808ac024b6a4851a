//! A change of what a rollout selects, without a change of the configuration.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use kube::api::{WatchEvent, WatchParams};
use serde_json::{Value, json};

use super::{Kind, Mesh};

/// `kubectl wait --for=condition=RolloutComplete` returns for the first status that is True for the newest generation.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_change_of_the_selection_the_rollout_is_complete_only_for_the_new_selection() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let web = mesh.deployment("web", 1).await?;
    let api = mesh.put(&mesh.app, Kind::Deployment, "api", 1, json!({})).await?;
    mesh.adopt(json!({})).await?;
    mesh.configure(1).await?;
    let marker = mesh.is_complete().await?;
    assert_eq!(mesh.counts([&web, &api])?, [1, 0]);

    let statuses = follow(&mesh).await?;
    // Restarts take some time, so that an early True differs from the final one.
    api.patch(json!({"spec": {"minReadySeconds": 3}})).await?;
    mesh.change(json!({"rollout": {"optIn": "All"}})).await?;
    api.gets(1, &marker).await?;
    mesh.shows(json!({"summary": "2/2"})).await?;
    mesh.is_complete().await?;
    let generation = mesh.status().await?.1;
    let statuses = statuses.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let conditions = statuses
        .iter()
        .flat_map(|status| status["conditions"].as_array().into_iter().flatten().map(move |it| (status, it)));
    let is_complete = |condition: &Value| {
        condition["type"] == "RolloutComplete"
            && condition["status"] == "True"
            && condition["observedGeneration"] == generation
    };
    let complete: Vec<_> = conditions.filter(|(_, condition)| is_complete(condition)).collect();
    ensure!(!complete.is_empty(), "no status is complete: {statuses:?}");
    for (status, condition) in complete {
        ensure!(status["rollout"]["summary"] == "2/2", "{condition}, {}", status["rollout"]);
    }
    Ok(())
}

/// Collects every status of the resource from now on.
async fn follow(mesh: &Mesh) -> Result<Arc<Mutex<Vec<Value>>>> {
    let configs = mesh.installation.configs.clone();
    let name = mesh.installation.full("mesh");
    let version = configs.get(&name).await?.metadata.resource_version.context("no version")?;
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let statuses = Arc::clone(&seen);
    tokio::spawn(async move {
        let mut events = std::pin::pin!(configs.watch(&params, &version).await?);
        while let Some(event) = events.next().await {
            if let WatchEvent::Modified(object) = event? {
                let status = object.data.get("status").cloned().unwrap_or_default();
                statuses.lock().unwrap_or_else(PoisonError::into_inner).push(status);
            }
        }
        anyhow::Ok(())
    });
    Ok(seen)
}
