//! A denied document while the API server rejects every status.

use anyhow::{Result, ensure};
use e2e::{Action, Rule, eventually, injector::Behaviour, mesh::SOON};
use serde_json::json;

use super::{Mesh, SYNCED, message};

/// A denied document prevents the creation of every Pod, so its rollback must not wait for a status.
#[tokio::test(flavor = "multi_thread")]
async fn a_denied_document_is_rolled_back_although_the_status_cannot_be_written() -> Result<()> {
    let mesh = Mesh::new(1).await?;
    mesh.declare(json!({"proxy": {"accessLog": "json"}})).await?;
    mesh.reaches(&SYNCED).await?;
    let good = mesh.installation.document().await?;
    let failed = Action::Status { code: 500, retry_after: None };
    let fault = mesh.installation.proxy.inject(Rule::path("mesh/status").method("PUT"), failed);
    mesh.injector.set_behaviour(0, Behaviour::Denies("bad".to_owned())).await?;
    let writes = mesh.installation.writes("/configmaps/").len();
    mesh.installation.change("mesh", json!({"proxy": {"accessLog": "apache"}})).await?;
    eventually(SOON, "the write and the rollback", async || {
        ensure!(mesh.installation.writes("/configmaps/").len() == writes + 2, "not yet");
        Ok(())
    })
    .await?;
    mesh.installation.document_is(&good).await?;
    let hits = fault.hits();
    eventually(SOON, "further attempts to write the status", async || {
        ensure!(fault.hits() > hits + 1, "{} attempts", fault.hits());
        Ok(())
    })
    .await?;
    mesh.installation.document_is(&good).await?;
    // The status that is written at last names the failed document, so that the next leader does not write it again.
    fault.remove();
    let status = mesh.reaches(&["InjectorSynced=False/Denied", "Stalled=True/RolledBack"]).await?;
    assert!(message(&status, "InjectorSynced").contains("bad"), "{status}");
    assert_eq!(status["revisions"]["failed"].as_array().map(Vec::len), Some(1), "{status}");
    assert_eq!(mesh.installation.writes("/configmaps/").len(), writes + 2, "it was written again");
    Ok(())
}
