//! A document that replicas of the injector denied, after other replicas replaced them.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{holds, injector::Behaviour};
use serde_json::json;

use super::{Mesh, SYNCED};

/// While Linkerd is upgraded, the new document may need new replicas.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_old_replicas_denied_is_retried_with_new_ones() -> Result<()> {
    let mesh = Mesh::new(2).await?;
    mesh.declare(json!({"proxy": {"accessLog": "json"}})).await?;
    mesh.reaches(&SYNCED).await?;
    for replica in [0, 1] {
        mesh.set_template(replica, "old").await?;
        mesh.injector.set_behaviour(replica, Behaviour::Denies("no such value".to_owned())).await?;
    }
    mesh.installation.change("mesh", json!({"proxy": {"accessLog": "apache"}})).await?;
    let rolled_back = ["ConfigMapSynced=False/Restored", "InjectorSynced=False/Denied", "Stalled=True/RolledBack"];
    let status = mesh.reaches(&rolled_back).await?;
    assert_eq!(status["revisions"]["denied"][0]["templates"], json!(["old"]), "{status}");
    assert_eq!(status["revisions"]["denied"][0]["hash"], status["revisions"]["failed"][0]);

    // One old replica is left, and would deny it again.
    for replica in [0, 1] {
        mesh.injector.set_behaviour(replica, Behaviour::Right).await?;
    }
    let new = mesh.injector.add_replica().await?;
    mesh.set_template(new, "new").await?;
    mesh.injector.remove_replica(0).await?;
    holds(Duration::from_secs(3), "the last good document", async || {
        ensure!(mesh.installation.document().await?["proxy"]["accessLog"] == "json", "it was retried");
        Ok(())
    })
    .await?;
    mesh.reaches(&rolled_back).await?;
    mesh.injector.remove_replica(1).await?;
    let status = mesh.reaches(&SYNCED).await?;
    assert_eq!(mesh.installation.document().await?["proxy"]["accessLog"], "apache");
    assert_eq!((status["revisions"].get("failed"), status["revisions"].get("denied")), (None, None), "{status}");
    Ok(())
}
