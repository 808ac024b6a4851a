//! The mode Observe, in which the ConfigMap is not written. `break_glass.rs` has the mode Suspend.

use anyhow::Result;
use kube::ResourceExt;
use serde_json::json;

use super::{FINALIZER, Installation, WELL, message};

const OBSERVING: [&str; 3] = ["Accepted=True/Accepted", "ConfigMapSynced=False/Observing", "Ready=True/Observing"];

#[tokio::test(flavor = "multi_thread")]
async fn observe_writes_nothing_and_names_the_values_that_would_change() -> Result<()> {
    let installation = Installation::new().await?;
    let before = installation.map().await?;
    let manager = installation.manager().await?;
    let env = json!([{"name": "TOKEN", "value": "s3cret"}]);
    let proxy = json!({
        "adminPort": 1, "controlPort": 2, "inboundPort": 3, "outboundPort": 4, "accessLog": "json", "logFormat": "json",
        "logLevel": "warn,s3cret=info", "proxyGID": 5, "proxyUID": 6, "nativeSidecar": false, "await": false, "additionalEnv": env,
    });
    installation.declare("mesh", json!({"mode": "Observe", "deletionPolicy": "RestoreBase", "proxy": proxy})).await?;
    let status = installation.reaches("mesh", &OBSERVING).await?;
    let accepted = message(&status, "Accepted")?;
    assert!(accepted.ends_with("nothing is written"), "{accepted}");
    let why = message(&status, "ConfigMapSynced")?;
    // The message names the first ten of twelve paths, in their order.
    for part in
        ["12", "proxy.accessLog", "proxy.additionalEnv", "proxy.await", "proxy.ports.control", "proxy.ports.inbound"]
    {
        assert!(why.contains(part), "{part} should be in {why}");
    }
    assert!(!why.contains("proxy.uid") && !why.contains("s3cret"), "{why}");
    installation.edit("kubectl-edit", json!({"imagePullPolicy": "Always"})).await?;
    let edited = installation.map().await?;
    installation.reaches("mesh", &OBSERVING).await?;
    installation.stays(&edited).await?;
    assert_eq!(installation.bases().await?, [""; 0]);
    assert_eq!(installation.finalizers("mesh").await?, [""; 0]);
    for kind in ["/configmaps/", "/controllerrevisions"] {
        assert_eq!(installation.writes(kind), [""; 0]);
    }
    assert!(!installation.all_output("mesh", &manager).await?.contains("s3cret"));

    // The current document becomes the base, because no other was saved.
    let base = installation.text().await?;
    installation.change("mesh", json!({"mode": "Enforce"})).await?;
    installation.reaches("mesh", &WELL).await?;
    assert_eq!(installation.bases().await?, [base]);
    assert_eq!(installation.map().await?.uid(), before.uid());
    assert_eq!(installation.finalizers("mesh").await?, [FINALIZER]);
    Ok(())
}
