//! Manual edits of the document, which are reverted or reported.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::{Manager, eventually};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{HELM, Installation, WELL};

/// A revert follows within one second of the watch event; a busy test machine needs longer.
const REVERTED: Duration = Duration::from_secs(10);

/// A mesh with an access log, with this `spec.drift`.
async fn with_access_log(drift: Value) -> Result<(Installation, Manager, Value)> {
    let (installation, manager) =
        Installation::adopted(json!({"proxy": {"accessLog": "json"}, "drift": drift})).await?;
    let declared = installation.helm_with(json!({"proxy": {"accessLog": "json"}})).await?;
    installation.document_is(&declared).await?;
    Ok((installation, manager, declared))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manual_edit_is_reverted_immediately_and_reported_without_its_values() -> Result<()> {
    let (installation, manager, declared) = with_access_log(json!({})).await?;
    let before = installation.map().await?;
    let edit =
        json!({"proxy": {"accessLog": "apache", "logLevel": "s3cret-level"}, "podLabels": {"s3cret-key": "s3cret"}});
    let edited = installation.edit("kubectl-edit", edit).await?;
    let begun = Instant::now();
    eventually(REVERTED, "the edit to be reverted", async || {
        let now = installation.map().await?;
        ensure!(now.resource_version() != edited.resource_version(), "it is not");
        Ok(())
    })
    .await?;
    println!("an edit was reverted within {:?}", begun.elapsed());
    installation.document_is(&declared).await?;
    for reason in ["DriftDetected", "DriftReverted"] {
        let note = installation.expect_event("mesh", reason).await?;
        for part in ["kubectl-edit", "proxy.accessLog", "proxy.logLevel"] {
            assert!(note.contains(part), "{note} should name {part}");
        }
    }
    let note = installation.expect_config_map_event("DriftReverted").await?;
    assert!(note.contains("kubectl-edit") && note.contains("proxy.accessLog"), "{note}");

    let status = installation.reports_drifts("mesh", 1).await?;
    assert_eq!(status["drift"]["manager"], "kubectl-edit", "{status}");
    let paths = status["drift"]["paths"].as_array().cloned().unwrap_or_default();
    assert!(paths.contains(&json!("proxy.accessLog")) && paths.contains(&json!("proxy.logLevel")), "{paths:?}");
    assert!(status["drift"]["lastTime"].is_string(), "{status}");
    assert!(!installation.all_output("mesh", &manager).await?.contains("s3cret-level"));
    assert!(!installation.all_output("mesh", &manager).await?.contains("\"s3cret\""));

    let after = installation.map().await?;
    assert_eq!((after.uid(), after.labels()), (before.uid(), before.labels()));
    assert_eq!(after.annotations(), before.annotations());
    assert_eq!(installation.bases().await?, [HELM]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn reported_drift_is_kept_until_it_is_undone_or_the_action_is_revert() -> Result<()> {
    let (installation, _manager, declared) = with_access_log(json!({"action": "Report"})).await?;
    let writes = installation.writes("/configmaps/");
    let edited = installation.edit("kubectl-edit", json!({"proxy": {"logLevel": "debug"}})).await?;
    let status = installation
        .reaches("mesh", &["Accepted=True/Accepted", "ConfigMapSynced=False/Drifted", "Ready=False/Drifted"])
        .await?;
    let why = super::message(&status, "ConfigMapSynced")?;
    assert!(why.contains("kubectl-edit") && why.contains("proxy.logLevel"), "{why}");
    installation.expect_event("mesh", "DriftDetected").await?;
    installation.stays(&edited).await?;
    assert_eq!(installation.writes("/configmaps/"), writes);
    assert_eq!(installation.event_count("mesh", "DriftReverted").await?, 0);

    // The edit is undone by its manager, then made again, and reverted after a change of the action.
    installation.rewrite("kubectl-edit", &serde_json::to_string(&declared)?).await?;
    installation.reaches("mesh", &WELL).await?;
    installation.edit("kubectl-edit", json!({"proxy": {"logLevel": "debug"}})).await?;
    installation.reaches("mesh", &["ConfigMapSynced=False/Drifted"]).await?;
    installation.change("mesh", json!({"drift": {"action": "Revert"}})).await?;
    installation.reaches("mesh", &WELL).await?;
    installation.document_is(&declared).await?;
    assert_eq!(installation.bases().await?, [HELM]);
    Ok(())
}

/// The documents of others that were reverted and kept: the names of their ControllerRevisions, and their texts.
async fn kept(installation: &Installation) -> Result<Vec<(String, String)>> {
    let labels = format!("config.linkerd.io/reverted-of={}", super::CONFIG_MAP);
    let mut kept = Vec::new();
    for revision in installation.revisions.list(&kube::api::ListParams::default().labels(&labels)).await? {
        let text = revision.data.as_ref().and_then(|data| data.0["values"].as_str()).unwrap_or_default().to_owned();
        kept.push((revision.revision, revision.name_any(), text));
    }
    kept.sort();
    Ok(kept.into_iter().map(|(_, name, text)| (name, text)).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reverted_document_is_kept_in_a_controller_revision_that_the_event_names() -> Result<()> {
    let (installation, manager, declared) = with_access_log(json!({})).await?;
    let theirs = installation.text().await?.replace("accessLog: json", "accessLog: apache # on call, 3 a.m.");
    installation.rewrite("kubectl-edit", &theirs).await?;
    installation.document_is(&declared).await?;
    let note = installation.expect_event("mesh", "DriftReverted").await?;
    assert!(note.contains("ControllerRevision linkerd-config-reverted-1"), "{note}");
    assert_eq!(kept(&installation).await?, [("linkerd-config-reverted-1".to_owned(), theirs.clone())]);
    // The same document is kept once, and a document that cannot be parsed is kept, too.
    installation.rewrite("kubectl-edit", &theirs).await?;
    installation.document_is(&declared).await?;
    let broken = "proxy: {logLevel: [unclosed\n";
    installation.rewrite("kubectl-edit", broken).await?;
    installation.document_is(&declared).await?;
    let texts: Vec<String> = kept(&installation).await?.into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, [theirs, broken.to_owned()]);
    assert_eq!(installation.bases().await?, [HELM]);
    // It is no base: a new manager continues with Helm's document.
    drop(manager);
    let _manager = installation.manager().await?;
    installation.change("mesh", json!({"proxy": {"accessLog": null}})).await?;
    installation.is_helm_with(json!({})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_five_reverted_documents_are_kept_and_none_with_a_private_key() -> Result<()> {
    let (installation, manager, declared) = with_access_log(json!({})).await?;
    let key = "-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\n";
    for secret in [
        json!({"identity": {"issuer": {"tls": {"keyPEM": key}}}}).to_string(),
        format!("proxy: [unclosed\nkey: |\n  {}", key.replace('\n', "\n  ")),
    ] {
        installation.rewrite("kubectl-edit", &secret).await?;
        installation.document_is(&declared).await?;
    }
    assert_eq!(kept(&installation).await?, []);
    // Reverts pause after six within ten minutes; a new leader counts again.
    drop(manager);
    let _manager = installation.manager().await?;
    for number in 1..=6 {
        installation.edit("kubectl-edit", json!({"controllerReplicas": 10 + number})).await?;
        installation.document_is(&declared).await?;
    }
    eventually(REVERTED, "the oldest to be deleted", async || {
        let names: Vec<String> = kept(&installation).await?.into_iter().map(|(name, _)| name).collect();
        ensure!(names == [2, 3, 4, 5, 6].map(|number| format!("linkerd-config-reverted-{number}")), "{names:?}");
        Ok(())
    })
    .await?;
    assert_eq!(installation.bases().await?, [HELM]);
    Ok(())
}

/// The revert does not depend on the copy: the document may prevent the creation of every Pod.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_cannot_be_kept_is_reverted_nevertheless() -> Result<()> {
    let (installation, _manager, declared) = with_access_log(json!({})).await?;
    let rejected = e2e::Action::Status { code: 403, retry_after: None };
    installation.proxy.inject(e2e::Rule::path("/controllerrevisions").method("POST"), rejected);
    installation.edit("kubectl-edit", json!({"proxy": {"accessLog": ""}})).await?;
    installation.document_is(&declared).await?;
    let note = installation.expect_event("mesh", "DriftReverted").await?;
    assert!(note.contains("could not be kept"), "{note}");
    Ok(())
}
