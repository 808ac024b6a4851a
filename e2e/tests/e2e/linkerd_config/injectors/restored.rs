//! What happens to a restored document before the next declared one: whatever is in between, a rollback goes back to it,
//! and never to the document that was denied. All tests have the shipped permissions and admission policies.

use anyhow::{Result, ensure};
use e2e::{eventually, injector::Behaviour, mesh::SOON};
use serde_json::{Value, json};

use super::{InjectorRig, LATE, SYNCED, permissions, put_over};

const RESTORED: [&str; 3] =
    ["ConfigMapSynced=False/Restored", "InjectorSynced=False/Denied", "Stalled=True/RolledBack"];

fn first() -> Value {
    json!({"proxy": {"accessLog": "apache"}, "values": {"proxy": {"defaultInboundPolicy": "deny"}}})
}

/// Another document with the same security value.
fn third() -> Value {
    json!({"proxy": {"accessLog": "json"}, "values": {"proxy": {"defaultInboundPolicy": "deny"}}})
}

async fn denies(mesh: &InjectorRig) -> Result<()> {
    mesh.injector.set_behaviour(0, Behaviour::Denies("template: patch.json: bad value".to_owned())).await
}

async fn has_the_first(mesh: &InjectorRig) -> Result<()> {
    let first = json!({"proxy": {"accessLog": "apache", "defaultInboundPolicy": "deny"}});
    mesh.installation.is_helm_with(first).await
}

async fn started() -> Result<InjectorRig> {
    let mesh = InjectorRig::on(permissions::start().await?, 1).await?;
    mesh.declare(first()).await?;
    mesh.reaches(&SYNCED).await?;
    Ok(mesh)
}

/// The second document is denied, and the first one restored. The injector accepts that.
async fn restored() -> Result<InjectorRig> {
    let mesh = started().await?;
    denies(&mesh).await?;
    mesh.installation.change("mesh", json!({"proxy": {"logLevel": "trace"}})).await?;
    mesh.reaches(&RESTORED).await?;
    has_the_first(&mesh).await?;
    mesh.injector.set_behaviour(0, Behaviour::Right).await?;
    eventually(SOON, "the injector to use the restored document", async || {
        let object = mesh.installation.configs.get(&mesh.installation.full("mesh")).await?;
        ensure!(object.data["status"]["injector"]["synced"] == 1, "{}", object.data["status"]["injector"]);
        Ok(())
    })
    .await?;
    Ok(mesh)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspension_or_a_typo_in_between_brings_no_denied_document_back() -> Result<()> {
    let mesh = restored().await?;
    mesh.installation.change("mesh", json!({"mode": "Suspend"})).await?;
    mesh.reaches(&["Accepted=False/Suspended"]).await?;
    mesh.installation.change("mesh", json!({"mode": "Enforce", "values": {"proxy": {"uid": "many"}}})).await?;
    mesh.reaches(&["Accepted=False/Invalid"]).await?;
    has_the_first(&mesh).await?;
    // Only a replica that accepted Pods before is blamed for a denial at once.
    mesh.injector.set_lag(0, LATE)?;
    let corrected = json!({"proxy": {"accessLog": "json", "logLevel": null}, "values": {"proxy": {"uid": null}}});
    mesh.installation.change("mesh", corrected).await?;
    mesh.injectors_are("InjectorSynced=False/Propagating", &["it injects an older configuration"]).await?;
    denies(&mesh).await?;
    mesh.reaches(&RESTORED).await?;
    has_the_first(&mesh).await
}

#[tokio::test(flavor = "multi_thread")]
async fn another_resource_that_takes_over_and_is_denied_restores_the_same_document() -> Result<()> {
    let mesh = restored().await?;
    denies(&mesh).await?;
    let mut rival = json!({"priority": 10, "injectorSync": {"method": "Probe"}});
    put_over(&mut rival, &third());
    mesh.installation.declare("rival", rival).await?;
    mesh.installation.reaches("rival", &RESTORED).await?;
    has_the_first(&mesh).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_is_created_again_and_denied_restores_the_same_document() -> Result<()> {
    let mesh = restored().await?;
    mesh.installation.delete_and_wait("mesh").await?;
    has_the_first(&mesh).await?;
    denies(&mesh).await?;
    mesh.declare(third()).await?;
    mesh.reaches(&RESTORED).await?;
    has_the_first(&mesh).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_changes_before_the_injectors_answer_go_back_to_the_document_that_they_accepted() -> Result<()> {
    let mesh = started().await?;
    mesh.injector.set_behaviour(0, Behaviour::Hangs).await?;
    for level in ["trace", "debug"] {
        mesh.installation.change("mesh", json!({"proxy": {"logLevel": level}})).await?;
        let declared = json!({"proxy": {"accessLog": "apache", "defaultInboundPolicy": "deny", "logLevel": level}});
        mesh.installation.is_helm_with(declared).await?;
        mesh.reaches(&["ConfigMapSynced=True/Synced", "InjectorSynced=False/Propagating"]).await?;
    }
    denies(&mesh).await?;
    mesh.reaches(&RESTORED).await?;
    has_the_first(&mesh).await
}
