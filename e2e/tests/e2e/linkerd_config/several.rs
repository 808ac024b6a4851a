//! Several resources for one ConfigMap: one is active, and the others name it and wait.

use anyhow::{Result, ensure};
use e2e::{eventually, holds, mesh::SOON};
use kube::ResourceExt;
use serde_json::json;

use super::{HELM, Installation, QUIET, WELL, message};

const LOST: [&str; 1] = ["Accepted=False/Conflicted"];

#[tokio::test(flavor = "multi_thread")]
async fn the_older_resource_is_active_unless_another_has_a_higher_priority() -> Result<()> {
    let installation = Installation::new().await?;
    let uid = installation.map().await?.uid();
    let _manager = installation.manager().await?;
    // The name decides last: by name the second resource would be active.
    let first = installation.declare("z", json!({"proxy": {"accessLog": "json"}})).await?;
    installation.reaches("z", &WELL).await?;
    // Timestamps have a resolution of one second.
    eventually(SOON, "the clock to advance", async || {
        let probe = installation
            .maps
            .create(
                &kube::api::PostParams { dry_run: true, ..Default::default() },
                &serde_json::from_value(json!({"metadata": {"name": "probe"}}))?,
            )
            .await?;
        ensure!(probe.creation_timestamp() > first.creation_timestamp(), "still the same second");
        Ok(())
    })
    .await?;
    let apache = json!({"proxy": {"accessLog": "apache", "logLevel": "debug"}});
    installation.declare("a", apache.clone()).await?;
    let status = installation.reaches("a", &LOST).await?;
    assert_eq!(status["active"], false);
    // It is in reserve, which is no problem: tools that follow kstatus consider a resource without Ready current.
    assert!(message(&status, "Ready").is_err(), "{status}");
    assert!(message(&status, "Accepted")?.contains(&installation.full("z")), "{status}");
    let note = installation.expect_event("a", "Conflicted").await?;
    assert!(note.contains(&installation.full("z")), "{note}");
    assert_eq!(installation.reaches("z", &WELL).await?["active"], true);
    let json_log = installation.helm_with(json!({"proxy": {"accessLog": "json"}})).await?;
    installation.document_is(&json_log).await?;

    installation.change("a", json!({"priority": 1})).await?;
    assert_eq!(installation.reaches("a", &WELL).await?["active"], true);
    assert_eq!(installation.reaches("z", &LOST).await?["active"], false);
    // No value of the first resource is left.
    installation.is_helm_with(apache).await?;
    installation.expect_event("a", "Activated").await?;
    installation.expect_event("z", "Conflicted").await?;

    installation.delete_and_wait("a").await?;
    installation.reaches("z", &WELL).await?;
    installation.document_is(&json_log).await?;
    installation.expect_event("z", "Activated").await?;

    assert_eq!(installation.map().await?.uid(), uid);
    assert_eq!(installation.bases().await?, [HELM]);
    assert_eq!(installation.event_count("a", "Conflicted").await?, 1);
    for name in ["a", "z"] {
        assert_eq!(installation.event_count(name, "DriftDetected").await?, 0, "a takeover is not drift");
    }
    Ok(())
}

/// The choice of the active resource does not depend on validity: an invalid one can be active, and reports its errors.
#[tokio::test(flavor = "multi_thread")]
async fn an_inactive_resource_that_is_invalid_or_observing_does_not_affect_the_active_one() -> Result<()> {
    let installation = Installation::new().await?;
    let _manager = installation.manager().await?;
    installation.adopt("winner", json!({"priority": 5, "proxy": {"accessLog": "json"}})).await?;
    installation.declare("invalid", json!({"values": {"proxy": {"uid": "many"}}})).await?;
    installation.declare("observing", json!({"mode": "Observe", "proxy": {"logLevel": "debug"}})).await?;
    installation.declare("restoring", json!({"deletionPolicy": "RestoreBase"})).await?;
    for name in ["invalid", "observing", "restoring"] {
        assert_eq!(installation.reaches(name, &LOST).await?["active"], false);
        assert_eq!(installation.finalizers(name).await?, [""; 0], "only an active resource has a finalizer");
    }
    let declared = installation.helm_with(json!({"proxy": {"accessLog": "json"}})).await?;
    let writes = installation.writes("/configmaps/");
    installation.delete_and_wait("restoring").await?;
    holds(QUIET, "the document of the active resource", async || {
        ensure!(
            installation.document().await? == declared && installation.writes("/configmaps/") == writes,
            "it was written"
        );
        Ok(())
    })
    .await?;
    // A revert writes no status of another resource.
    let before = installation.writes("/status").len();
    installation.edit("kubectl-edit", json!({"proxy": {"accessLog": ""}})).await?;
    installation.document_is(&declared).await?;
    installation.expect_event("winner", "DriftReverted").await?;
    installation.reports_drifts("winner", 1).await?;
    let statuses = installation.writes("/status");
    assert!(statuses.len() > before, "no status was written");
    assert!(statuses[before..].iter().all(|write| write.contains("winner")), "{:?}", &statuses[before..]);
    Ok(())
}

/// A user who suspends the resource in effect does not want another one to write instead.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_resource_keeps_its_place_and_the_others_say_so() -> Result<()> {
    let installation = Installation::new().await?;
    let _manager = installation.manager().await?;
    let held = json!({"priority": 1, "mode": "Suspend", "deletionPolicy": "RestoreBase"});
    installation.declare("held", held).await?;
    installation.declare("waiting", json!({"proxy": {"accessLog": "json"}})).await?;
    let status = installation.reaches("waiting", &LOST).await?;
    let why = message(&status, "Accepted")?;
    assert!(why.contains(&format!("{} is suspended", installation.full("held"))), "{why}");
    assert_eq!(installation.text().await?, HELM);
    // No base is saved for the suspended resource, so its deletion restores nothing.
    assert!(installation.bases().await?.is_empty() && installation.finalizers("held").await?.is_empty());
    Ok(())
}
