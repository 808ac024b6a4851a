//! Documents that injectors deny: the operator rolls them back, and does not retry them.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Action, Rule, eventually, holds, injector::Behaviour, mesh::SOON};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{InjectorRig, SYNCED, message};

/// Traps 2 and 3 of the specification: a denied document prevents the creation of every Pod.
#[tokio::test(flavor = "multi_thread")]
async fn a_denied_document_is_rolled_back_and_not_retried() -> Result<()> {
    let mesh = InjectorRig::synced(2).await?;
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
    let text = message(&status, "InjectorSynced")?;
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
    let InjectorRig { installation, injector, mut manager } = mesh;
    ensure!(manager.terminate(SOON).await?.success());
    let manager = installation.manager().await?;
    installation.patch_map("kubectl-label", json!({"metadata": {"labels": {"touched": "true"}}})).await?;
    holds(Duration::from_secs(3), "the last good document", async || {
        ensure!(installation.document().await? == good, "it was retried");
        ensure!(installation.writes("/configmaps/").len() == writes, "it was written");
        Ok(())
    })
    .await?;
    let mesh = InjectorRig { installation, injector, manager };
    mesh.reaches(&rolled_back).await?;
    // A changed document is tried.
    mesh.installation.change("mesh", json!({"proxy": {"accessLog": "apache", "logFormat": "json"}})).await?;
    let status = mesh.reaches(&SYNCED).await?;
    assert_eq!(status["revisions"].get("failed"), None, "{status}");
    assert_eq!(mesh.installation.document().await?["proxy"]["accessLog"], "apache");
    Ok(())
}

/// The replica's file may contain the installer's broken document for some time after its correction.
#[tokio::test(flavor = "multi_thread")]
async fn a_corrected_document_of_the_installer_is_not_blamed_for_the_broken_one() -> Result<()> {
    let mesh = InjectorRig::synced(1).await?;
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

#[tokio::test(flavor = "multi_thread")]
async fn unusable_responses_roll_the_document_back() -> Result<()> {
    let mesh = InjectorRig::synced(2).await?;
    let good = mesh.installation.document().await?;
    for (port, behaviour, says) in
        [(5001, Behaviour::Breaks, "broke"), (5002, Behaviour::Garbage, "not an AdmissionReview")]
    {
        mesh.injector.set_behaviour(1, behaviour.clone()).await?;
        mesh.installation.change("mesh", json!({"proxy": {"inboundPort": port}})).await?;
        let status = mesh.reaches(&["InjectorSynced=False/Denied", "Stalled=True/RolledBack"]).await?;
        let text = message(&status, "InjectorSynced")?;
        assert!(text.contains(says), "{behaviour:?}: {text}");
        mesh.installation.document_is(&good).await?;
        mesh.injector.set_behaviour(1, Behaviour::Right).await?;
    }
    Ok(())
}

/// The next manager probes the injectors, and rolls back the document that they deny.
#[tokio::test(flavor = "multi_thread")]
async fn a_manager_killed_between_the_write_and_the_probe_leaves_no_bad_document() -> Result<()> {
    let mesh = InjectorRig::synced(2).await?;
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
    let InjectorRig { installation, injector, mut manager } = mesh;
    manager.kill().await?;
    for replica in 0..2 {
        injector.set_behaviour(replica, Behaviour::Denies("bad".to_owned())).await?;
    }
    // With the identity of the killed manager it leads immediately.
    let manager = installation.manager().await?;
    let mesh = InjectorRig { installation, injector, manager };
    mesh.reaches(&["InjectorSynced=False/Denied", "Stalled=True/RolledBack"]).await?;
    mesh.installation.document_is(&good).await?;
    drop(mesh.manager);
    Ok(())
}

/// A denied document prevents the creation of every Pod, so its rollback must not wait for a status.
#[tokio::test(flavor = "multi_thread")]
async fn a_denied_document_is_rolled_back_although_the_status_cannot_be_written() -> Result<()> {
    let mesh = InjectorRig::synced(1).await?;
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
    fault.is_hit(|now| now > hits + 1).await?;
    mesh.installation.document_is(&good).await?;
    // The status that is written at last names the failed document, so that the next leader does not write it again.
    fault.remove();
    let status = mesh.reaches(&["InjectorSynced=False/Denied", "Stalled=True/RolledBack"]).await?;
    assert!(message(&status, "InjectorSynced")?.contains("bad"), "{status}");
    assert_eq!(status["revisions"]["failed"].as_array().map(Vec::len), Some(1), "{status}");
    assert_eq!(mesh.installation.writes("/configmaps/").len(), writes + 2, "it was written again");
    Ok(())
}

/// While Linkerd is upgraded, the new document may need new replicas.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_old_replicas_denied_is_retried_with_new_ones() -> Result<()> {
    let mesh = InjectorRig::synced(2).await?;
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

impl InjectorRig {
    /// Labels the Pod of a replica as the controller of its Deployment does for a Pod template.
    async fn set_template(&self, replica: usize, template: &str) -> Result<()> {
        let pods: kube::Api<k8s_openapi::api::core::v1::Pod> =
            kube::Api::namespaced(self.installation.client.clone(), &self.installation.namespace);
        let patch = json!({"metadata": {"labels": {"pod-template-hash": template}}});
        pods.patch(&self.injector.pod(replica)?, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }
}
