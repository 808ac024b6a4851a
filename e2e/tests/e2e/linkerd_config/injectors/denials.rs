//! Documents that injectors deny: the operator rolls them back, and does not retry them.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{eventually, holds, injector::Behaviour, mesh::SOON};
use serde_json::{Value, json};

use super::{super::QUIET, Mesh, REFUSED, SYNCED, message};

/// Traps 2 and 3 of the specification: a denied document prevents the creation of every Pod.
#[tokio::test(flavor = "multi_thread")]
async fn a_denied_document_is_rolled_back_and_not_retried() -> Result<()> {
    let mesh = Mesh::new(2).await?;
    mesh.declare(json!({"proxy": {"accessLog": "json"}})).await?;
    mesh.reaches(&SYNCED).await?;
    let (good, marker) = (mesh.installation.document().await?, mesh.marker().await?);

    let long = format!("template: patch.json: {}", "bad value ".repeat(500));
    mesh.injector.set_behaviour(1, Behaviour::Denies(long.clone())).await?;
    mesh.installation.change("mesh", json!({"proxy": {"accessLog": "apache"}})).await?;
    mesh.installation.document_is(&good).await?;
    let rolled_back = [
        "ConfigMapSynced=False/Restored",
        "InjectorSynced=False/Denied",
        "Ready=False/RolledBack",
        "Stalled=True/RolledBack",
    ];
    let status = mesh.reaches(&rolled_back).await?;
    let text = message(&status, "InjectorSynced");
    let pod = mesh.injector.pod(1)?;
    assert!(text.contains(&pod) && text.contains("template: patch.json: bad value"), "{text}");
    assert!(text.len() < 1200, "{} bytes", text.len());
    assert_eq!(status["revisions"]["failed"].as_array().map(Vec::len), Some(1), "{status}");
    assert_eq!(mesh.marker().await?, marker);
    assert!(mesh.expect_event("InjectorDenied").await?.contains(&pod));
    mesh.expect_event("ConfigRolledBack").await?;

    // It is not retried automatically, by another manager, or after an unrelated change.
    let writes = mesh.installation.writes("/configmaps/").len();
    mesh.injector.set_behaviour(1, Behaviour::Right).await?;
    let Mesh { installation, injector, mut manager } = mesh;
    ensure!(manager.terminate(SOON).await?.success());
    let manager = installation.manager().await?;
    installation.patch_map("kubectl-label", json!({"metadata": {"labels": {"touched": "true"}}})).await?;
    holds(Duration::from_secs(3), "the last good document", async || {
        ensure!(installation.document().await? == good, "it was retried");
        ensure!(installation.writes("/configmaps/").len() == writes, "it was written");
        Ok(())
    })
    .await?;
    let mesh = Mesh { installation, injector, manager };
    mesh.reaches(&rolled_back).await?;
    // A changed document is tried.
    mesh.installation.change("mesh", json!({"proxy": {"accessLog": "apache", "logFormat": "json"}})).await?;
    let status = mesh.reaches(&SYNCED).await?;
    assert_eq!(status["revisions"].get("failed"), None, "{status}");
    assert_eq!(mesh.installation.document().await?["proxy"]["accessLog"], "apache");
    Ok(())
}

/// The replica's file may contain the denied document for some time after the rollback.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_still_denies_the_last_document_does_not_roll_back_the_next_one() -> Result<()> {
    let mesh = Mesh::new(2).await?;
    mesh.declare(json!({"proxy": {"accessLog": "json"}})).await?;
    mesh.reaches(&SYNCED).await?;
    mesh.injector.set_behaviour(1, Behaviour::Denies("no such format".to_owned())).await?;
    mesh.installation.change("mesh", json!({"proxy": {"accessLog": "apache"}})).await?;
    mesh.reaches(&["InjectorSynced=False/Denied", "Stalled=True/RolledBack"]).await?;
    // The resource returns to the last good value, and then changes to a new one.
    mesh.installation.change("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    mesh.injectors_are("InjectorSynced=False/Propagating", &["perhaps because of an older configuration"]).await?;
    mesh.installation.change("mesh", json!({"proxy": {"accessLog": "json", "logFormat": "json"}})).await?;
    let pod = mesh.injector.pod(1)?;
    mesh.injectors_are(
        "InjectorSynced=False/Propagating",
        &["1 of 2", &pod, "perhaps because of an older configuration"],
    )
    .await?;
    holds(Duration::from_secs(4), "the new document", async || {
        ensure!(mesh.installation.document().await?["proxy"]["logFormat"] == "json", "it was rolled back");
        Ok(())
    })
    .await?;
    mesh.injector.set_behaviour(1, Behaviour::Right).await?;
    mesh.reaches(&SYNCED).await?;
    assert_eq!(mesh.installation.event_count("mesh", "ConfigRolledBack").await?, 1);
    Ok(())
}

/// The replica's file may contain the installer's broken document for some time after its correction.
#[tokio::test(flavor = "multi_thread")]
async fn a_corrected_document_of_the_installer_is_not_blamed_for_the_broken_one() -> Result<()> {
    let mesh = Mesh::new(1).await?;
    mesh.declare(json!({"proxy": {"accessLog": "json"}})).await?;
    mesh.reaches(&SYNCED).await?;
    let helm = async |patch: Value| {
        let document = mesh.installation.helm_with(patch).await?;
        mesh.installation.rewrite("helm", &serde_json::to_string(&document)?).await
    };
    // The stand-in denies it, too.
    helm(json!({"proxy": {"logHTTPHeaders": "all"}})).await?;
    let denied = ["InjectorSynced=False/Denied", "Ready=False/Denied", "Stalled=True/Denied"];
    mesh.reaches(&[&denied[..], &["SuspectBase=True/UnexpectedValues"]].concat()).await?;
    mesh.injector.set_behaviour(0, Behaviour::Denies("logHTTPHeaders must be one of".to_owned())).await?;
    helm(json!({"linkerdVersion": "edge-26.8.4"})).await?;
    mesh.injectors_are("InjectorSynced=False/Propagating", &["perhaps because of an older configuration"]).await?;
    mesh.injector.set_behaviour(0, Behaviour::Right).await?;
    mesh.reaches(&SYNCED).await?;
    assert_eq!(mesh.installation.document().await?["proxy"]["accessLog"], "json");
    assert_eq!(mesh.installation.event_count("mesh", "ConfigRolledBack").await?, 0);
    Ok(())
}

/// Scenario 6: the schema accepts the value, and the template of the injector does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_only_the_injector_rejects_does_not_prevent_pods_for_long() -> Result<()> {
    let mesh = Mesh::new(2).await?;
    mesh.declare(json!({})).await?;
    mesh.reaches(&SYNCED).await?;
    let good = mesh.installation.document().await?;
    let bad = json!({"values": {"proxy": {"logHTTPHeaders": "everything"}}});
    let changed = mesh.installation.change("mesh", bad).await;
    ensure!(changed.is_ok(), "the API server rejects {REFUSED}: this test needs another value");
    eventually(SOON, "the outcome", async || {
        let refused = mesh.installation.reaches_within(QUIET, "mesh", &["Accepted=False/Invalid"]).await;
        let rolled_back = mesh.installation.reaches_within(QUIET, "mesh", &["Stalled=True/RolledBack"]).await;
        ensure!(refused.is_ok() || rolled_back.is_ok(), "neither rejected nor rolled back");
        Ok(())
    })
    .await?;
    mesh.installation.document_is(&good).await?;
    // Pods are created and injected again.
    eventually(SOON, "a Pod to be injected", async || {
        let pod = mesh.dry_run().await?;
        let names = pod["spec"]["initContainers"].as_array().cloned().unwrap_or_default();
        ensure!(names.iter().any(|container| container["name"] == "linkerd-proxy"), "{names:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_responses_roll_the_document_back() -> Result<()> {
    let mesh = Mesh::new(2).await?;
    mesh.declare(json!({"proxy": {"accessLog": "json"}})).await?;
    mesh.reaches(&SYNCED).await?;
    let good = mesh.installation.document().await?;
    for (number, (behaviour, says)) in [
        (Behaviour::Breaks, "broke"),
        (Behaviour::Garbage, "not an AdmissionReview"),
        (Behaviour::BadPatch(e2e::injector::NOT_BASE64.to_owned()), "not an AdmissionReview"),
        (Behaviour::BadPatch(e2e::injector::NOT_A_PATCH.to_owned()), "patch"),
    ]
    .into_iter()
    .enumerate()
    {
        mesh.injector.set_behaviour(1, behaviour.clone()).await?;
        mesh.installation.change("mesh", json!({"proxy": {"inboundPort": 5000 + number}})).await?;
        let status = mesh.reaches(&["InjectorSynced=False/Denied", "Stalled=True/RolledBack"]).await?;
        let text = message(&status, "InjectorSynced");
        assert!(text.contains(says), "{behaviour:?}: {text}");
        mesh.installation.document_is(&good).await?;
        mesh.injector.set_behaviour(1, Behaviour::Right).await?;
    }
    Ok(())
}

/// The next manager probes the injectors, and rolls back the document that they deny.
#[tokio::test(flavor = "multi_thread")]
async fn a_manager_killed_between_the_write_and_the_probe_leaves_no_bad_document() -> Result<()> {
    let mesh = Mesh::new(2).await?;
    mesh.declare(json!({"proxy": {"accessLog": "json"}})).await?;
    mesh.reaches(&SYNCED).await?;
    let good = mesh.installation.document().await?;
    for replica in 0..2 {
        mesh.injector.set_behaviour(replica, Behaviour::Hangs).await?;
    }
    mesh.installation.change("mesh", json!({"proxy": {"accessLog": "apache"}})).await?;
    eventually(SOON, "the write", async || {
        ensure!(mesh.installation.document().await?["proxy"]["accessLog"] == "apache", "not yet");
        Ok(())
    })
    .await?;
    let Mesh { installation, injector, mut manager } = mesh;
    manager.kill().await?;
    for replica in 0..2 {
        injector.set_behaviour(replica, Behaviour::Denies("bad".to_owned())).await?;
    }
    // With the identity of the killed manager it leads immediately.
    let manager = installation.manager().await?;
    let mesh = Mesh { installation, injector, manager };
    mesh.reaches(&["InjectorSynced=False/Denied", "Stalled=True/RolledBack"]).await?;
    mesh.installation.document_is(&good).await?;
    drop(mesh.manager);
    Ok(())
}
